"""The sequence of a trace as lines of text: a column for each process."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ipclab.trace import sequence
from ipclab.trace.sequence import Step
from ipclab.trace.story import Story

WIDEST = 36  # characters of a column
NARROWEST = 20
MOST_COLUMNS = 4
MOST_STEPS = 40
PROBE = 3  # calls of require_legacy_ipc()


def lines(story: Story, width: int, ignored: Sequence[str] = ()) -> list[str]:
    """The picture; empty if no process has used CUDA IPC.

    The picture is at most `width` characters wide, unless its columns would be too
    narrow. Findings of the `ignored` rules are not marked.
    """
    marked = [x for x in story.findings if x.rule not in ignored]
    steps = sequence.steps(story, marked)
    probed = _probed(story)
    steps = steps[PROBE:] if probed else steps
    used = {name for step in steps for name in (step.who, step.to) if name}
    names = [x.name for x in story.trace.processes if x.name in used][:MOST_COLUMNS]
    if not names:
        return []
    left_out = len(steps) - MOST_STEPS
    steps = steps[:MOST_STEPS]
    margin = max(len(_remark(step)) for step in steps)
    column = max(NARROWEST, min(WIDEST, (width - margin) // len(names)))
    drawn = ["".join(f"{name:^{column}}" for name in names).rstrip()]
    for step in steps:
        detail = _renumbered(step.detail, probed)
        drawn += _step(replace(step, detail=detail), names, column)
    if left_out > 0:
        drawn.append(f"{'…':^{column}} {left_out} more steps")
    return drawn


def named(story: Story, text: str) -> str:
    """The text with the numbers of memory as in the picture: the first memory of the
    exercise is memory 1, also if require_legacy_ipc() made one before.
    """
    return _renumbered(text, _probed(story))


def _renumbered(text: str, probed: bool) -> str:
    return re.sub(r"\bmemory (\d+)", lambda x: f"memory {int(x[1]) - probed}", text)


def _probed(story: Story) -> bool:
    """Whether the program begins with require_legacy_ipc(), which tests the machine."""
    first = sequence.steps(story, [])[:PROBE]
    calls = [x.text for x in first] == ["cuMemAlloc", "cuIpcGetMemHandle", "cuMemFree"]
    return calls and {x.handle for x in first} == {1}


def _step(step: Step, names: list[str], column: int) -> list[str]:
    if step.to:
        if step.who in names and step.to in names:
            return [_arrow(step, names, column)]
        return [_row("│", 0, names, column)]
    place = names.index(step.who) if step.who in names else 0
    head = ("! " if step.finding else "") + ("✗ " if step.kind == "refused" else "")
    head += step.text
    detail = step.detail.partition(" (")[0]  # without the size
    more = f"({detail})" if detail else ""
    more += f", {step.times} times" if step.times > 1 else ""
    whole = f"{head}{'' if more.startswith(',') else ' '}{more}".rstrip()
    if len(whole) > column - 2:
        whole = whole.replace("kernel ", "", 1)
    rows = [whole] if len(whole) <= column - 2 else [head, more.lstrip(", ")]
    drawn = [_row(text, place, names, column) for text in rows if text]
    return [drawn[0] + _remark(step), *drawn[1:]]


def _row(text: str, place: int, names: list[str], column: int) -> str:
    """A line with this text in one column."""
    cells = [f"{'│':^{column}}" for _ in names]
    cells[place] = f"{_cut(text, column - 2):^{column}}"
    return "".join(cells).rstrip()


def _remark(step: Step) -> str:
    return f"   <- {step.finding}" if step.finding else ""


def _arrow(step: Step, names: list[str], column: int) -> str:
    a, b = names.index(step.who), names.index(step.to)
    left, right = min(a, b), max(a, b)
    width = (right - left) * column - 1
    label = f" {_cut(step.text, width - 6)} "
    shaft = f"{label:─^{width - 1}}"
    arrow = f"{shaft}>" if a < b else f"<{shaft}"
    middle = (column - 1) // 2
    before = "".join(f"{'│':^{column}}" for _ in range(left)) + " " * middle
    after = "".join(f"{'│':^{column}}" for _ in range(len(names) - right - 1))
    drawn = arrow[1:] if a < b else arrow[:-1]
    gap = " " * (column - middle - 1)
    return f"{before}├{drawn}┤{gap}{after}".rstrip()


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
