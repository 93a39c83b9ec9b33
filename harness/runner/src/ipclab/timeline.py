"""Draw what the roles of one test did: a lane for each role, time downwards."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from html import escape
from typing import Any

LANE, LEFT, ROW, TOP = 300, 180, 34, 62  # pixels
MOST = 200  # entries that are drawn
CHARACTERS, HEAD = 38, 18  # characters that fit into a lane, and into the box above it

Entry = dict[str, Any]


def svg(entries: list[Entry], title: str) -> str:
    """The picture as an SVG element; empty text if nothing was recorded.

    Colours are classes, so that the page can be light or dark.
    """
    shown = sorted(entries, key=lambda e: int(e["t_us"]))
    # A 'receive' draws the whole arrow; its 'send' would draw it again.
    received = {(e.get("from"), e["text"]) for e in shown if e["kind"] == "receive"}
    shown = [
        e
        for e in shown
        if not (e["kind"] == "send" and (e["role"], e["text"]) in received)
    ]
    if not shown:
        return ""
    left_out = len(shown) - MOST
    shown = shown[:MOST]
    lanes = list(
        dict.fromkeys(n for e in shown for n in (e.get("from"), e["role"]) if n)
    )
    x = {name: LEFT + 60 + LANE * i for i, name in enumerate(lanes)}
    width = LEFT + 120 + LANE * (len(lanes) - 1) + 90
    height = TOP + ROW * (len(shown) + (left_out > 0)) + 8
    parts = [
        f'<svg class="timeline" viewBox="0 0 {width} {height}" width="{width}" '
        f'role="img" xmlns="http://www.w3.org/2000/svg"><title>{escape(title)}</title>'
    ]
    for name in lanes:
        parts.append(
            f'<line class="lane" x1="{x[name]}" y1="36" x2="{x[name]}" y2="{height}"/>'
            f'<rect class="head" x="{x[name] - 70}" y="8" width="140" height="28" '
            f'rx="6"/>'
            f'<text class="name" x="{x[name]}" y="27"><title>{escape(name)}</title>'
            f"{escape(_cut(name, HEAD))}</text>"
        )
    first = int(shown[0]["t_us"])
    for index, entry in enumerate(shown):
        y = TOP + ROW * index
        after = (int(entry["t_us"]) - first) / 1000
        parts.append(f'<text class="time" x="8" y="{y + 4}">{after:.1f} ms</text>')
        parts.append(_entry(entry, x, y))
    if left_out > 0:
        y = TOP + ROW * len(shown)
        parts.append(f'<text class="time" x="8" y="{y}">{left_out} more</text>')
    return "".join([*parts, "</svg>"])


def _entry(entry: Entry, x: dict[str, int], y: int) -> str:
    here = x[entry["role"]]
    kind, text = entry["kind"], str(entry["text"])
    source = entry.get("from")
    if kind == "receive" and source and source != entry["role"]:
        return _arrow(x[source], here, y, text, entry.get("bytes"))
    label = {"wait": f"waits for {text}", "send": f"sends {text}", "end": text}.get(
        kind, text
    )
    if kind == "receive":
        label = f"receives {text}"
    if kind in ("call", "failure"):
        return (
            f'<rect class="{kind}" x="{here - 142}" y="{y - 13}" width="284" '
            f'height="25" rx="4"/><text class="code" x="{here}" y="{y + 4}">'
            f"<title>{escape(text)}</title>{escape(_cut(label))}</text>"
        )
    return (
        f'<text class="{escape(kind)}" x="{here}" y="{y + 4}">'
        f"{escape(_cut(label))}</text>"
    )


def _arrow(start: int, end: int, y: int, text: str, size: Any) -> str:
    way = 1 if end > start else -1
    note = f"{text} ({size} bytes)" if size else text
    return (
        f'<path class="arrow" d="M{start + 4 * way} {y}H{end - 10 * way}"/>'
        f'<path class="tip" d="M{end - 2 * way} {y}l{-9 * way} -5v10z"/>'
        f'<text class="step" x="{(start + end) // 2}" y="{y - 5}">{escape(note)}</text>'
    )


def _cut(text: str, most: int = CHARACTERS) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
