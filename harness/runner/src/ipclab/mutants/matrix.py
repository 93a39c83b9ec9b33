"""The kill matrix (which test notices which fault) as document, table and picture."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ipclab import pages, reader, schema
from ipclab.errors import UsageError
from ipclab.mutants.faults import OPERATOR
from ipclab.mutants.trials import (  # the words of the results
    DENIED,
    ELSEWHERE,
    EQUIVALENT,
    FLAGGED,
    KILLED,
    MEANING,
    NOT_EQUIVALENT,
    NOT_RUN,
    NOTICED,
    OPEN,
    PASSED,
    SEEN,
    SURVIVED,
    UNFIRED,
    UNJUDGED,
    UNNOTICED,
)

VERSION = 2
NAMES = {"conformance": "mutants.json", "sample": "lessons.json"}  # in a results folder
JOURNALS = {"conformance": "faults.jsonl", "sample": "lessons.jsonl"}
NAME, PAGE = NAMES["conformance"], "mutants.html"
SCHEMA: schema.Schema = json.loads(
    (Path(__file__).parent / "matrix.schema.json").read_text(encoding="utf-8")
)

Document = dict[str, Any]  # checked against SCHEMA


def read(folder: Path) -> Document | None:
    """The matrix of a results folder; None if there is no matrix. UsageError if it
    cannot be read or is not valid.
    """
    path = folder / NAME
    if not path.exists():
        return None
    hint = "; remove it or make it again"
    document: Document = reader.document(path, SCHEMA, "matrix", hint)
    if wrong := _wrong(document):
        raise UsageError(f"{path}: {wrong}{hint}")
    return document


def page(document: Document) -> str:
    """mutants.html, or lessons.html, as text."""
    on_model = pages.ON_MODEL if document["backend"] == "model" else None
    return pages.render("mutants.html.j2", on_model=on_model, **view(document))


def view(document: Document) -> dict[str, Any]:
    """What a template needs to show the matrix."""
    return {
        "matrix": document,
        "blocks": blocks(document),
        "grid": Grid(document),
        "meaning": MEANING,
        "found": counts(document),
        "told": told(document),
        "mark": lambda result: Markup(_legend(result)),
    }


def counts(document: Document) -> dict[str, int]:
    """The number of faults for each result that occurs, in the order of MEANING."""
    found = Counter(x["result"] for x in document["faults"])
    return {result: found[result] for result in MEANING if found[result]}


def left(document: Document) -> int:
    """How many faults still have to run, without those that cannot run here."""
    return sum(x["result"] == NOT_RUN and not x["note"] for x in document["faults"])


def failed(document: Document) -> bool:
    """Whether a fault, a row, a test or a list of faults makes the command fail."""
    return bool(
        document["problems"]
        or document["unsound"]
        or document["unproved"]
        or any(fault["wrong"] for fault in document["faults"])
    )


def told(document: Document) -> list[tuple[str, str]]:
    """The matrix in a few lines, each with its style: counts, then names."""
    found = counts(document)
    number = len(document["faults"])
    lines = [
        (f"{number} faults: {', '.join(f'{n} {x}' for x, n in found.items())}", "bold")
    ]
    if document["suite"] == "sample":
        lines += [(line, "") for line in _of_lessons(document)]
    for result in found:
        some = [x for x in document["faults"] if x["result"] == result and x["wrong"]]
        lines += [
            (f"{result}: {x['name']}: {x['what']}{_bracketed(x['note'])}", "red")
            for x in some
        ]
    if document["unproved"]:
        rows = ", ".join(document["unproved"])
        lines.append((f"no fault is noticed by {rows}: never seen to fail", "red"))
    lines += [
        (
            f"left out, as it fails without a fault: {x['ctest']}"
            f"{_bracketed(x['profile'])}: {x['verdict']}: {x['reason']}",
            "red",
        )
        for x in document["unsound"]
    ]
    lines += [(x, "red") for x in document["problems"]]
    if document["partial"]:
        lines.append((f"NOT the whole matrix: {document['partial']}", "yellow"))
    return lines


def _of_lessons(document: Document) -> list[str]:
    """One line for each lesson: how many faults took effect in the lesson, and how many
    of them it noticed.
    """
    cells: dict[str, list[dict[str, Any]]] = {}
    for fault in document["faults"]:
        if not fault["name"].startswith("ok-"):
            for cell in fault["cells"]:
                cells.setdefault(cell["row"], []).append(cell)
    lines = []
    for lesson in sorted(cells):
        effects = (*NOTICED, SURVIVED, UNNOTICED)
        took = [x for x in cells[lesson] if x["result"] in effects]
        central = [x for x in cells[lesson] if x["central"]]
        seen = sum(x["result"] == KILLED for x in took)
        main = sum(x["result"] == KILLED for x in central)
        lines.append(
            f"{lesson}: notices {seen} of {len(took)} that take effect in it"
            + (f", {main} of its {len(central)} central ones" if central else "")
        )
    return lines


def _bracketed(text: str | None) -> str:
    return f" ({text})" if text else ""


@dataclass(frozen=True)
class Block:
    """One chapter: its rows are columns, and the faults that concern them are lines."""

    title: str
    rows: list[dict[str, Any]]
    lines: list[tuple[dict[str, Any], dict[str, str]]]  # fault; row: result

    @property
    def picture(self) -> Markup:
        """The block as an SVG element."""
        return Markup(_svg(self))

    @property
    def counts(self) -> dict[str, int]:
        """The number of cells for each result that occurs."""
        found = Counter(x for _, cells in self.lines for x in cells.values())
        return {result: found[result] for result in MEANING if found[result]}


class Grid:
    """The operators: each way to be wrong is a column, each function a line."""

    def __init__(self, document: Document) -> None:
        some = [x for x in document["faults"] if x["kind"] == OPERATOR]
        self.lines: dict[str, dict[str, dict[str, Any]]] = {}
        for fault in sorted(some, key=lambda x: x["name"]):
            line = self.lines.setdefault(fault["function"], {})
            line[fault["operator"]] = fault
        number = Counter(x["operator"] for x in some)
        self.operators = [name for name, _ in number.most_common()]

    @property
    def picture(self) -> Markup:
        """The grid as an SVG element."""
        return Markup(_grid_svg(self))


def blocks(document: Document) -> list[Block]:
    """All faults except operators, by chapter, so that each picture is narrow and
    almost full.

    A fault of two chapters is in both, each time with that chapter's rows. Faults are
    sorted by their first row, so that gaps in the diagonal are easy to see.
    """
    some = [x for x in document["faults"] if x["kind"] != OPERATOR]
    named = {cell["row"] for fault in some for cell in fault["cells"]}
    by_chapter = pages.grouped(
        (pages.chapter(row["lesson"]), row)
        for row in sorted(document["rows"], key=lambda row: row["lesson"] or "?")
        if row["id"] in named
    )
    return [_block(title, rows, some) for title, rows in by_chapter.items()]


def _block(title: str, rows: list[dict[str, Any]], some: list[dict[str, Any]]) -> Block:
    place = {row["id"]: index for index, row in enumerate(rows)}
    lines = []
    for fault in some:
        cells = {
            x["row"]: _told(fault, x["result"])
            for x in fault["cells"]
            if x["row"] in place
        }
        if cells:
            lines.append((fault, cells))
    lines.sort(key=lambda line: min(place[row] for row in line[1]))
    return Block(title, rows, lines)


def _told(fault: dict[str, Any], result: str) -> str:
    """The result of a cell. A legal answer that no test noticed has passed."""
    legal = fault["result"] == PASSED and result == SURVIVED
    return PASSED if legal else result


# --- the picture --------------------------------------------------------------

CELL, LINE, TOP = 14, 15, 66  # pixels
CHARACTER = 6.7  # width of one character in the font of the labels

# Shapes in the middle of a cell. Two results with the same shape differ in the fill
# (style.css).
_CIRCLE = "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z"
_SQUARE = "M-5 -5h10v10h-10z"
_CROSS = "M-3 -3l6 6M3 -3l-6 6"
_DASH = "M-5 0h10"
SHAPES = {
    KILLED: _SQUARE,
    DENIED: _SQUARE + "M-3 0h6",
    PASSED: _CIRCLE,
    EQUIVALENT: "M0 -5l5 5l-5 5l-5 -5z",
    SURVIVED: _SQUARE + _CROSS,
    UNFIRED: _DASH + _CROSS,
    UNJUDGED: "M0 -6l6 11h-12zM0 -2v3M0 3v1",
    FLAGGED: _CIRCLE + _CROSS,
    NOT_EQUIVALENT: "M0 -5l5 5l-5 5l-5 -5z" + _CROSS,
    OPEN: _SQUARE,
    SEEN: _CIRCLE,
    ELSEWHERE: _DASH,
    UNNOTICED: "M-2 0a2 2 0 1 0 4 0a2 2 0 1 0 -4 0z",
    NOT_RUN: "M-1 -1h2v2h-2z",
}


def _svg(block: Block) -> str:
    left = 14 + CHARACTER * max(len(fault["name"]) for fault, _ in block.lines)
    x = {row["id"]: left + CELL * i + CELL / 2 for i, row in enumerate(block.rows)}
    width = left + CELL * len(block.rows) + 34  # room for the last label
    height = TOP + LINE * len(block.lines) + 4
    parts = [
        f'<svg class="matrix" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" xmlns="http://www.w3.org/2000/svg">'
        f"<title>Kill matrix, {escape(block.title)}</title>"
    ]
    for row in block.rows:
        at = x[row["id"]]
        parts.append(
            _grid(at, TOP, at, height - 4)
            + f'<text transform="translate({at + 3:g} {TOP - 6}) rotate(-60)">'
            f"<title>{escape(row['statement'])}</title>{escape(row['id'])}</text>"
        )
    for index, (fault, cells) in enumerate(block.lines):
        y = TOP + LINE * index + LINE / 2
        parts.append(_grid(left, y, width - 34, y) + _name(fault, left - 6, y + 4))
        parts += [
            _mark(result, x[row], y, f"{fault['name']}, {row}: {result}")
            for row, result in cells.items()
        ]
    return "".join([*parts, "</svg>"])


def _grid_svg(grid: Grid) -> str:
    top = 20 + CHARACTER * 0.9 * max(map(len, grid.operators), default=0)
    left = 14 + CHARACTER * max(map(len, grid.lines), default=0)
    x = {name: left + CELL * i + CELL / 2 for i, name in enumerate(grid.operators)}
    width = left + CELL * len(x) + top * 0.6
    height = top + LINE * len(grid.lines) + 4
    parts = [
        f'<svg class="matrix" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" xmlns="http://www.w3.org/2000/svg">'
        "<title>Kill matrix, operators</title>"
    ]
    for name, at in x.items():
        parts.append(
            _grid(at, top, at, height - 4)
            + f'<text transform="translate({at + 3:g} {top - 6:g}) rotate(-60)">'
            f"{escape(name)}</text>"
        )
    for index, (function, line) in enumerate(grid.lines.items()):
        y = top + LINE * index + LINE / 2
        parts.append(
            _grid(left, y, left + CELL * len(x), y)
            + f'<text class="mutant" x="{left - 6:g}" y="{y + 4:g}">'
            f"{escape(function)}</text>"
        )
        parts += [
            f'<a href="#fault-{escape(fault["name"])}">'
            + _mark(fault["result"], x[name], y, f"{fault['name']}: {fault['result']}")
            + "</a>"
            for name, fault in line.items()
        ]
    return "".join([*parts, "</svg>"])


def _name(fault: dict[str, Any], x: float, y: float) -> str:
    return (
        f'<a href="#fault-{escape(fault["name"])}">'
        f'<text class="mutant" x="{x:g}" y="{y:g}">'
        f"<title>{escape(fault['what'])}</title>{escape(fault['name'])}</text></a>"
    )


def _grid(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path class="grid" d="M{x1:g} {y1:g}L{x2:g} {y2:g}"/>'


def _mark(result: str, x: float, y: float, title: str) -> str:
    kind = result.replace(" ", "-")
    return (
        f'<path class="mark {kind}" transform="translate({x:g} {y:g})" '
        f'd="{SHAPES[result]}"><title>{escape(title)}</title></path>'
    )


def _legend(result: str) -> str:
    return (
        '<svg class="matrix" width="16" height="16" aria-hidden="true" '
        f'xmlns="http://www.w3.org/2000/svg">{_mark(result, 8, 8, result)}</svg>'
    )


def _wrong(document: Document) -> str | None:
    known = {row["id"] for row in document["rows"]}
    for fault in document["faults"]:
        for cell in fault["cells"]:
            if cell["row"] not in known:
                return f"matrix.rows: {cell['row']} is missing"
    return None
