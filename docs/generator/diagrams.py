"""The sequence diagram of a lesson, drawn from the recorded trace of a test.

A lane is a role, an arrow is what one role sent and another received, a note is
a call. Times are left out: they differ from run to run, the order does not.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from generator.recorded import Trace

Entry = dict[str, Any]

CHECKED = "checks every value"
MOST_STEPS = 28
LANE, NOTE_WIDTH, NOTE_HEIGHT = 310, 290, 24  # pixels
HEAD_WIDTH, HEAD_HEIGHT = 190, 28
TOP, ROW = 60, 36
TIMES = "\N{MULTIPLICATION SIGN}"
NOTE_CHARACTERS, ARROW_CHARACTERS, HEAD_CHARACTERS = 38, 42, 24

# How the harness poisons, writes and checks memory: the calls of one role in a
# row, and what a reader is told instead (None: nothing). Tried in this order.
CHORES: list[tuple[tuple[str, ...], str | None]] = [
    (("cudaFree(nullptr)",), None),
    (("cudaGetLastError(",), None),
    (("cudaMemGetInfo(",), None),
    (("cudaMemset(data, 0xEE", "cudaDeviceSynchronize("), None),
    (("cudaMemset(counter_.data", "cudaDeviceSynchronize("), None),
    (("cudaMemcpy(&count, counter_.data",), None),
    (
        (
            "cudaMemcpyToSymbol(mismatches",
            "count_mismatches<",
            "cudaGetLastError(",
            "cudaDeviceSynchronize(",
            "cudaMemcpyFromSymbol(",
        ),
        CHECKED,
    ),
    (("count_wrong<",), CHECKED),
    (("cudaMemcpy(seen.data()",), CHECKED),
    (("write_pattern<",), "writes every value"),
    (("wait_for_flag<",), "a kernel waits for a flag"),
]
ASKED_ONCE = "cuMemGetAllocationGranularity"  # the harness asks it again and again
NAME = re.compile(r"(?:DRIVER\()?(\w+)\)?(<<<)?")


@dataclass(frozen=True)
class Step:
    """One row of the picture."""

    role: str
    kind: str  # call, does, message, end or more
    text: str
    to: str = ""  # of a message
    bytes: int = 0  # of a message
    times: int = 1

    def sentence(self) -> str:
        """The step for a reader who cannot see the picture."""
        if self.kind == "message":
            size = f" of {self.bytes} bytes" if self.bytes else ""
            return f"{self.role} sends {self.text}{size} to {self.to}"
        if self.kind == "call":
            times = f" {self.times} times" if self.times > 1 else ""
            return f"{self.role} calls {self.text}{times}"
        return f"{self.role}: {self.text}" if self.role else self.text


def steps(timeline: Iterable[Entry]) -> list[Step]:
    """What a reader should see of a record's timeline, causes before effects."""
    by_role: dict[str, list[Entry]] = {}
    for entry in sorted(timeline, key=lambda entry: int(entry["t_us"])):
        by_role.setdefault(entry["role"], []).append(entry)
    events = {role: _told(entries) for role, entries in by_role.items()}
    return _without_rounds(_ordered(events))


def _without_rounds(drawn: list[Step]) -> list[Step]:
    """Rounds of up to four steps that come three times or more, told once."""
    kept: list[Step] = []
    while drawn:
        for length in range(1, 5):
            times = 1
            while drawn[:length] == drawn[times * length : (times + 1) * length]:
                times += 1
            if times > 2:
                kept += drawn[:length]
                kept.append(Step("", "more", f"the same {times - 1} times more"))
                drawn = drawn[times * length :]
                break
        else:
            kept.append(drawn.pop(0))
    return kept


def _told(entries: list[Entry]) -> list[Entry]:
    """One role's entries without chores, waits and repeats."""
    rest = [entry for entry in entries if entry["kind"] not in ("wait", "failure")]
    told: list[Entry] = []
    while rest:
        length, entry = _next(rest)
        rest = rest[length:]
        if entry is None:
            continue
        last = told[-1] if told else {}
        if entry["text"] == ASKED_ONCE and any(x["text"] == ASKED_ONCE for x in told):
            continue
        if entry["kind"] in ("call", "does") and entry["text"] == last.get("text"):
            last["times"] += entry["kind"] == "call"
        else:
            told.append({**entry, "times": 1})
    return told


def _next(entries: list[Entry]) -> tuple[int, Entry | None]:
    """How many entries the next thing takes, and what is told of it."""
    first = entries[0]
    for calls, told in CHORES:
        begun = entries[: len(calls)]
        if len(begun) == len(calls) and all(
            entry["kind"] == "call" and entry["text"].startswith(call)
            for entry, call in zip(begun, calls, strict=True)
        ):
            chore = {**first, "kind": "does", "text": told} if told else None
            return len(calls), chore
    if first["kind"] == "call":
        return 1, _call(first)
    return 1, None if first["text"] == "reached its end" else first


def _call(entry: Entry) -> Entry | None:
    """cudaFree(x) and DRIVER(cuMemUnmap)(x) by name; kernels of the test say so."""
    match = NAME.match(entry["text"])
    if match and match[2]:
        return {**entry, "kind": "does", "text": f"runs a kernel: {match[1]}"}
    if match and match[1].startswith("cu"):
        return {**entry, "text": match[1]}
    return None  # a helper of the test, whose calls are noted themselves


def _ordered(events: Mapping[str, list[Entry]]) -> list[Step]:
    """All roles' events in one order that keeps causes before effects.

    An arrow is drawn level, so it stands also before what its sender did next,
    unless roles wrote to each other at the same time.
    """
    nodes = [(role, i) for role, entries in events.items() for i in range(len(entries))]
    before: dict[tuple[str, int], set[tuple[str, int]]] = {n: set() for n in nodes}
    wished: dict[tuple[str, int], set[tuple[str, int]]] = {n: set() for n in nodes}
    for role, i in nodes:
        if i:
            before[role, i].add((role, i - 1))
    received = set()
    for node, sent in _messages(events):
        before[node].add(sent)
        received.add(sent)
        after = (sent[0], sent[1] + 1)
        if after in wished:
            wished[after].add(node)
    done: set[tuple[str, int]] = set()
    made = []
    left = [(int(events[role][i]["t_us"]), role, i) for role, i in nodes]
    heapq.heapify(left)
    while left:
        ready = [x for x in left if before[x[1:]] <= done]
        best = min([x for x in ready if wished[x[1:]] <= done] or ready)
        left.remove(best)
        done.add(best[1:])
        step = _step(events[best[1]][best[2]], best[1:] in received)
        if step:
            made.append(step)
    return made


def _messages(
    events: Mapping[str, list[Entry]],
) -> Iterable[tuple[tuple[str, int], tuple[str, int]]]:
    """Each receive and its send, as (role, position)."""
    for role, entries in events.items():
        count: dict[tuple[str, str], int] = {}
        for i, entry in enumerate(entries):
            sender = str(entry.get("from"))
            if entry["kind"] != "receive" or sender not in events:
                continue
            key = (sender, entry["text"])
            sent = [
                (sender, j)
                for j, other in enumerate(events[sender])
                if other["kind"] == "send" and other["text"] == entry["text"]
            ]
            if sent:
                yield (role, i), sent[min(count.get(key, 0), len(sent) - 1)]
                count[key] = count.get(key, 0) + 1


def _step(entry: Entry, received: bool) -> Step | None:
    role, kind, text = entry["role"], entry["kind"], str(entry["text"])
    if kind == "receive":
        if not entry.get("from"):
            return Step(role, "does", f"receives {text}")
        return Step(entry["from"], "message", text, role, int(entry.get("bytes") or 0))
    if kind == "send":
        return None if received else Step(role, "does", f"sends {text}")
    return Step(role, kind, text, times=entry.get("times", 1))


def figure(trace: Trace, links: Mapping[str, str]) -> str:
    """The picture of a trace with its caption, as HTML; `links` has the reference
    of a call."""
    drawn = steps(trace.timeline)
    title = f"Sequence of {trace.test}"
    return (
        f'<figure class="sequence"><div class="sequence-scroll" tabindex="0" '
        f'role="group" aria-label="{escape(title)}">'
        f"{svg(drawn, trace.roles, title, links)}</div>"
        f"<figcaption>Drawn from a recorded run of <code>{escape(trace.test)}"
        f"</code>: {escape(trace.machine)}.</figcaption></figure>\n"
    )


def svg(
    drawn: list[Step], roles: list[str], title: str, links: Mapping[str, str]
) -> str:
    """The picture alone; its colours are classes of the site's style sheet."""
    left_out = len(drawn) - MOST_STEPS
    drawn = drawn[:MOST_STEPS]
    used = {x.role for x in drawn} | {x.to for x in drawn}
    lanes = [role for role in dict.fromkeys(roles) if role in used]
    x = {role: LANE // 2 + LANE * i for i, role in enumerate(lanes)}
    height = TOP + ROW * (len(drawn) + (left_out > 0)) - 4
    width = LANE * max(len(lanes), 1)
    told = "; ".join(step.sentence() for step in drawn)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img"><title>{escape(title)}</title>'
        f"<desc>{escape(told)}</desc>"
    ]
    for role in lanes:
        parts += [
            f'<line class="life" x1="{x[role]}" y1="34" x2="{x[role]}" y2="{height}"/>',
            _box("head", x[role], 18, HEAD_WIDTH, HEAD_HEIGHT),
            _text("head", x[role], 23, _fitting(role, HEAD_CHARACTERS)),
        ]
    for i, step in enumerate(drawn):
        y = TOP + ROW * i
        if step.kind == "more":
            parts.append(_text("more", width // 2, y + 4, step.text))
        elif step.kind == "message":
            parts.append(_arrow(step, x[step.role], x[step.to], y + 6))
        else:
            parts.append(_note(step, x[step.role], y, links))
    if left_out > 0:
        y = TOP + ROW * len(drawn) + 4
        parts.append(
            _text("more", width // 2, y, f"{left_out} more steps are left out")
        )
    return "\n".join([*parts, "</svg>"])


def _note(step: Step, x: int, y: int, links: Mapping[str, str]) -> str:
    times = f" {TIMES}{step.times}" if step.times > 1 else ""
    text = _fitting(step.text, NOTE_CHARACTERS - len(times)) + times
    note = _box(step.kind, x, y, NOTE_WIDTH, NOTE_HEIGHT) + _text(
        step.kind, x, y + 4, text
    )
    link = links.get(step.text)
    return f'<a href="{escape(link)}">{note}</a>' if link else note


def _arrow(step: Step, start: int, end: int, y: int) -> str:
    size = f", {step.bytes} bytes" if step.bytes else ""
    text = _fitting(step.text, ARROW_CHARACTERS - len(size)) + size
    tip, back = (end - 2, end - 11) if end > start else (end + 2, end + 11)
    return (
        f'<line class="message" x1="{start}" y1="{y}" x2="{back}" y2="{y}"/>'
        f'<path class="tip" d="M{back} {y - 5}L{tip} {y}L{back} {y + 5}z"/>'
        + _text("message", (start + end) // 2, y - 7, text)
    )


def _box(style: str, x: int, y: int, width: int, height: int) -> str:
    return (
        f'<rect class="{style}" x="{x - width // 2}" y="{y - height // 2}" '
        f'width="{width}" height="{height}" rx="5"/>'
    )


def _text(style: str, x: int, y: int, text: str) -> str:
    return f'<text class="{style}" x="{x}" y="{y}">{escape(text)}</text>'


def _fitting(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"
