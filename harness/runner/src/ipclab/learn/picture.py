"""The sequence of a trace as lines of text: a column for each process."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from ipclab.trace import sequence
from ipclab.trace.sequence import Step
from ipclab.trace.story import Story

COLUMN = 36  # characters
MOST_COLUMNS = 4
MOST_STEPS = 40


def lines(story: Story) -> list[str]:
    """The picture; empty if no process has used CUDA IPC."""
    steps = _without_probe(sequence.steps(story, story.findings))
    used = {name for step in steps for name in (step.who, step.to) if name}
    names = [x.name for x in story.trace.processes if x.name in used][:MOST_COLUMNS]
    if not names:
        return []
    drawn = ["".join(f"{name:^{COLUMN}}" for name in names).rstrip()]
    left_out = len(steps) - MOST_STEPS
    for step in steps[:MOST_STEPS]:
        drawn.append(_line(step, names))
    if left_out > 0:
        drawn.append(f"{'…':^{COLUMN}} {left_out} more steps")
    return drawn


def _without_probe(steps: list[Step]) -> list[Step]:
    """Without the allocation by which require_legacy_ipc() tests a machine."""
    probe = ["cuMemAlloc", "cuIpcGetMemHandle", "cuMemFree"]
    first = steps[:3]
    if [x.text for x in first] == probe and len({x.handle for x in first}) == 1:
        return steps[3:]
    return steps


def _line(step: Step, names: list[str]) -> str:
    cells = [f"{'│':^{COLUMN}}" for _ in names]
    if step.to:
        if step.who not in names or step.to not in names:
            return "".join(cells).rstrip()
        return _arrow(step, names)
    detail = step.detail.partition(" (")[0]  # without the size
    text = f"{step.text} ({detail})" if detail else step.text
    if step.times > 1:
        text += f", {step.times} times"
    if step.kind == "refused":
        text = f"✗ {text}"
    if step.finding:
        text = f"! {text}"
    if step.who in names:
        cells[names.index(step.who)] = f"{_cut(text, COLUMN - 2):^{COLUMN}}"
    else:
        cells[0] = f"{_cut(text, COLUMN - 2):^{COLUMN}}"
    line = "".join(cells).rstrip()
    return f"{line}   <- {step.finding}" if step.finding else line


def _arrow(step: Step, names: list[str]) -> str:
    a, b = names.index(step.who), names.index(step.to)
    left, right = min(a, b), max(a, b)
    width = (right - left) * COLUMN - 1
    label = f" {_cut(step.text, width - 6)} "
    shaft = f"{label:─^{width - 1}}"
    arrow = f"{shaft}>" if a < b else f"<{shaft}"
    middle = (COLUMN - 1) // 2
    before = "".join(f"{'│':^{COLUMN}}" for _ in range(left)) + " " * middle
    after = "".join(f"{'│':^{COLUMN}}" for _ in range(len(names) - right - 1))
    drawn = arrow[1:] if a < b else arrow[:-1]
    gap = " " * (COLUMN - middle - 1)
    return f"{before}├{drawn}┤{gap}{after}".rstrip()


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
