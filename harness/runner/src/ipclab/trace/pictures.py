"""Draws a trace as SVG: the sequence of its processes, and their memory."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape

from ipclab.trace.files import Entry, Event, Process, when
from ipclab.trace.sequence import Step
from ipclab.trace.story import Story
from ipclab.trace.things import Memory, size_text

WIDE_LANE, LANE, HEAD = (
    300,
    250,
    190,
)  # pixels; with many lanes, each lane is narrower
ROW, SECOND, TOP = 32, 16, 58
MOST_STEPS = 400
BAR, LABEL, WIDE, NARROW = 26, 230, 130, 44  # of the picture of memory
LETTER = 7
MOST_MEMORIES = 40


def sequence(
    drawn: list[Step],
    names: Iterable[str],
    title: str,
    links: Mapping[str, str] | None = None,
    most: int = MOST_STEPS,
) -> str:
    """The sequence: a lane for each of these processes, time downwards.

    Colours are classes of the page's style. A refused call is also dashed and marked,
    and a death is also a cross. `links` has addresses for the names of calls.
    """
    left_out = len(drawn) - most
    drawn = drawn[:most]
    used = {x for step in drawn for x in (step.who, step.to)}
    lanes = [name for name in names if name in used]
    lane = WIDE_LANE if len(lanes) < 3 else LANE
    x = {name: lane // 2 + lane * i for i, name in enumerate(lanes)}
    y = list(itertools.accumulate((_height(x) for x in drawn), initial=TOP))
    ends = {
        step.who: y[i] for i, step in enumerate(drawn) if step.kind in ("end", "death")
    }
    height = y[-1] + ROW * (left_out > 0) + 4
    width = lane * max(len(lanes), 1)
    told = "; ".join(step.sentence for step in drawn[:60])
    role = "group" if links else "img"  # an image has no links inside
    parts = [_svg("sequence", width, height, title, told, role)]
    for name in lanes:
        middle = x[name]
        parts += [
            f'<line class="life" x1="{middle}" y1="34" x2="{middle}" '
            f'y2="{ends.get(name, height)}"/>',
            _box("head", middle, 18, HEAD, 28),
            _text("head", middle, 23, _cut(name, 24)),
        ]
    for number, (step, at) in enumerate(zip(drawn, y, strict=False)):
        if not step.who:
            picture = _text("more", width // 2, at + 4, step.text)
        elif step.to and step.to != step.who:
            picture = _arrow(step, x[step.who], x[step.to], at)
        else:
            picture = _note(step, x[step.who], at, lane - 20, links or {})
        parts.append(f'<g class="step" data-step="{number}">{picture}</g>')
    if left_out > 0:
        parts.append(_text("more", width // 2, y[-1], f"{left_out} more steps"))
    return "\n".join([*parts, "</svg>"])


def _height(step: Step) -> int:
    return ROW + (SECOND if _second(step) else 0)


def _second(step: Step) -> str:
    """The text of a second line: why a call was refused."""
    return step.detail if step.kind in ("refused", "failure") else ""


def _note(step: Step, x: int, y: int, width: int, links: Mapping[str, str]) -> str:
    characters = width * 2 // 15  # of 7.5 pixels
    times = f" \N{MULTIPLICATION SIGN}{step.times}" if step.times > 1 else ""
    mark = {"refused": "\N{BALLOT X} ", "death": "\N{DAGGER} ", "never": "\u2026 "}
    text = mark.get(step.kind, "") + step.text
    second = _second(step)
    if step.detail and not second and len(text) + len(step.detail) + 2 <= characters:
        text += f"  {step.detail}"
    style = step.kind + (" found" if step.finding else "")
    told = f"{step.sentence}{'; ' + step.finding if step.finding else ''}"
    tall = 24 + (SECOND if second else 0)
    box = _box(style, x, y + (tall - 24) // 2, width, tall)
    line = _text(style, x, y + 4, _cut(text, characters - len(times)) + times)
    note = f"<g><title>{escape(told)}</title>{box}{line}"
    if second:
        note += _text(f"{style} why", x, y + 4 + SECOND, _cut(second, characters))
    note += "</g>"
    if step.kind == "death":
        note += f'<path class="cross" d="M{x - 8} {y + 14}l16 14m0 -14l-16 14"/>'
    link = links.get(step.text)
    return f'<a href="{escape(link)}">{note}</a>' if link else note


def _arrow(step: Step, start: int, end: int, y: int) -> str:
    way = 1 if end > start else -1
    text = _cut(f"{step.text}, {step.detail}" if step.detail else step.text, 42)
    return (
        f'<line class="message" x1="{start}" y1="{y + 5}" x2="{end - 11 * way}" '
        f'y2="{y + 5}"/>'
        f'<path class="tip" d="M{end - 11 * way} {y}L{end - 2 * way} {y + 5}'
        f'L{end - 11 * way} {y + 10}z"/>'
        + _text("message", (start + end) // 2, y - 2, text)
    )


@dataclass(frozen=True)
class _Bar:
    """Memory in one process, from one moment to another."""

    process: Process
    text: str
    style: str  # own, open, mapped
    begin: int
    end: int
    died: bool
    told: str = ""  # the first and the last call


def shared(story: Story, since: int = 0) -> list[Memory]:
    """The memory that was exported or opened, without memory that was freed earlier
    than `since` nanoseconds after the trace began."""
    began = story.trace.processes[0].began if story.trace.processes else 0
    return [
        x
        for x in story.memories
        if x.shared and not (x.freed and when(x.freed) - began < since)
    ]


def memory(
    story: Story, title: str, since: int = 0, names: Mapping[int, str] | None = None
) -> str:
    """The memory: a group of bars for each block that was shared. The first bar is for
    the process that owns the block. Each process that has the block open also has a
    bar. A bar goes from the beginning to the end of the use and shows the address. A
    chunk also has a bar from its export until all copies of that descriptor are closed.
    The number of references is below the bars.

    `since` has the same meaning as for `shared`; `names` has other names for memory, by
    its number. The attribute data-moments has a pair `nanoseconds,x` for each moment.
    The attribute data-memory has the number of the memory of a group.
    """
    began = story.trace.processes[0].began if story.trace.processes else 0
    blocks = shared(story, since)
    left_out = len(blocks) - MOST_MEMORIES
    blocks = blocks[:MOST_MEMORIES]
    groups = [(block, _bars(block, story)) for block in blocks]
    moments = sorted({t for _, bars in groups for b in bars for t in (b.begin, b.end)})
    step = max(NARROW, min(WIDE, 1000 // max(len(moments), 1)))
    column = {moment: LABEL + step * i for i, moment in enumerate(moments)}
    rows = sum(len(bars) + 2 for _, bars in groups) + (left_out > 0)
    width = LABEL + step * max(len(moments), 1) + 20
    ends = [
        _place(x, column) + LETTER * len(x.text) for _, bars in groups for x in bars
    ]
    width = max([width, *ends])
    height = BAR * max(rows, 1) + 10
    called = {
        block: f"{names[block.number]}, {size_text(block.size)}"
        if names
        else block.name
        for block in blocks
    }
    told = "; ".join(
        f"{called[block]} of {block.owner.name}, opened {_times(len(block.openings))}"
        for block in blocks
    )
    parts = [_svg("memory", width, height, title, told)]
    where = " ".join(f"{moment - began},{x}" for moment, x in column.items())
    parts.append(
        f'<g class="moments" data-moments="{where}"><line class="now" y1="0" '
        f'y2="{height}" x1="-9" x2="-9"/></g>'
    )
    y = 8
    for block, bars in groups:
        kind = {"malloc": "cudaMalloc", "chunk": "cuMemCreate"}.get(
            block.kind, block.kind
        )
        parts += [
            f'<g class="group" data-memory="{block.number}">',
            _text("block", 8, y + 15, f"{called[block]}, {kind}"),
        ]
        y += BAR
        for bar in bars:
            x1, x2 = column[bar.begin], column[bar.end]
            told = f"{bar.process.name}: {bar.text}, {bar.told}"
            parts += [
                _text("who", 20, y + 15, _cut(bar.process.name, 30)),
                f'<g><title>{escape(told)}</title><rect class="{bar.style}" x="{x1}" '
                f'y="{y + 3}" width="{max(x2 - x1, 6)}" height="{BAR - 8}" rx="3"/>'
                f"{_text('at', _place(bar, column), y + 16, bar.text)}</g>",
            ]
            if bar.died:
                parts.append(
                    f'<path class="cross" d="M{x2 - 6} {y + 5}l12 14m0 -14l-12 14"/>'
                )
            y += BAR
        parts.append(_text("who", 20, y + 13, "references"))
        parts += [
            _text("count", column[moment] + 4, y + 13, str(count))
            for moment, count in _references(bars)
        ]
        parts.append("</g>")
        y += BAR
    if left_out > 0:
        parts.append(_text("who", 8, y + 15, f"{left_out} more blocks"))
    return "\n".join([*parts, "</svg>"])


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _place(bar: _Bar, column: Mapping[int, int]) -> int:
    """Where the text of a bar begins: in the bar, or after it if the bar is too
    short."""
    begin, end = column[bar.begin], column[bar.end]
    fits = LETTER * len(bar.text) + 8 <= end - begin
    return begin + 5 if fits else max(end, begin + 6) + (10 if bar.died else 4)


def _bars(block: Memory, story: Story) -> list[_Bar]:
    where = f"{block.address:#x}" if block.address else "handle"
    bars = [_bar(block.owner, where, "own", block.made, block.freed)]
    for opening in block.openings:
        text = f"{opening.address:#x}" if opening.address else "import"
        if len(opening.opens) > 1:
            text += f" opened {len(opening.opens)} times"
        last = None if opening.open else opening.closes[-1]
        bars.append(_bar(opening.process, text, "open", opening.opens[0], last))
    bars += [
        _bar(handle.process, "descriptor", "open", handle.made, handle.closed)
        for handle in block.exports
        if handle.descriptor
    ]
    bars += [
        _bar(x.process, f"{x.address:#x}", "mapped", x.made, x.unmapped)
        for x in story.mappings
        if x.chunk.memory is block
    ]
    return bars


def _bar(
    process: Process, text: str, style: str, first: Entry, last: Entry | None
) -> _Bar:
    begin = when(first)
    gone = last is None or not _call_name(last)  # the use ended with its process
    end = process.ended if last is None else when(last)
    told = f"from {_call_name(first)} to {process.how if gone else _call_name(last)}"
    died = gone and bool(process.signal)
    return _Bar(process, text, style, begin, max(begin, end), died, told)


def _call_name(entry: Entry | None) -> str:
    if isinstance(entry, Event):
        return "close" if entry.what == "close" else ""
    return entry.name if entry else ""


def _references(bars: list[_Bar]) -> list[tuple[int, int]]:
    """The number of bars after each moment at which it changes."""
    changes: dict[int, int] = {}
    for bar in bars:
        changes[bar.begin] = changes.get(bar.begin, 0) + 1
        changes[bar.end] = changes.get(bar.end, 0) - 1
    counts = []
    total = 0
    for moment in sorted(changes):
        total += changes[moment]
        counts.append((moment, total))
    return counts


def _svg(
    style: str, width: int, height: int, title: str, told: str, role: str = "img"
) -> str:
    return (
        f'<svg class="{style}" xmlns="http://www.w3.org/2000/svg" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}" role="{role}">'
        f"<title>{escape(title)}</title><desc>{escape(told)}</desc>"
    )


def _box(style: str, x: int, y: int, width: int, height: int) -> str:
    return (
        f'<rect class="{style}" x="{x - width // 2}" y="{y - height // 2}" '
        f'width="{width}" height="{height}" rx="5"/>'
    )


def _text(style: str, x: int, y: int, text: str) -> str:
    return f'<text class="{style}" x="{x}" y="{y}">{escape(text)}</text>'


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"
