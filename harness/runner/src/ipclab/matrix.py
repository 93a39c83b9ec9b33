"""The kill matrix: which row notices which mutant, as a document and a picture."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ipclab import pages, schema
from ipclab.errors import UsageError

KILLED, SURVIVED, PASSED, FLAGGED, OPEN, SEEN, ELSEWHERE, UNJUDGED, NOT_RUN = (
    "killed",
    "survived",
    "passed",
    "flagged",
    "open",
    "observed",
    "not applicable",
    "broken",
    "not run",
)
MEANING = {  # in the order in which they are counted
    KILLED: "the row failed: the mutant was noticed",
    PASSED: "a conforming variant (ok-…) passed the row, as it must",
    SURVIVED: "the row passed although its behaviour is gone",
    FLAGGED: "a conforming variant failed the row",
    OPEN: "the row has no test yet",
    SEEN: "the row is only written down: nothing could fail",
    ELSEWHERE: "a test of the row cannot run on the model",
    UNJUDGED: "the harness could not judge: that is no kill",
    NOT_RUN: "left out this time: says nothing",
}
WRONG = (SURVIVED, FLAGGED, UNJUDGED)

NAME, PAGE = "mutants.json", "mutants.html"  # in a results folder
SCHEMA: schema.Schema = json.loads(
    (Path(__file__).parent / "matrix.schema.json").read_text(encoding="utf-8")
)

Document = dict[str, Any]  # held to SCHEMA


def read(folder: Path) -> Document | None:
    """The matrix of a results folder, None if it has none; UsageError if damaged."""
    path = folder / NAME
    try:
        document: Document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"{path}: is no JSON; remove it or make it again") from None
    if wrong := _wrong(document):
        raise UsageError(f"{path}: {wrong}; remove it or make it again")
    return document


def page(document: Document) -> str:
    """mutants.html as text."""
    return pages.render("mutants.html.j2", on_model=pages.ON_MODEL, **view(document))


def view(document: Document) -> dict[str, Any]:
    """What a template needs to show the matrix."""
    return {
        "matrix": document,
        "blocks": blocks(document),
        "meaning": MEANING,
        "found": counts(document),
        "wrong": WRONG,
        "mark": lambda result: Markup(_legend(result)),
    }


def counts(document: Document) -> dict[str, int]:
    """How many cells have each result that occurs, in the order of MEANING."""
    found = Counter(x["result"] for m in document["mutants"] for x in m["results"])
    return {result: found[result] for result in MEANING if found[result]}


@dataclass(frozen=True)
class Block:
    """One chapter: its rows across, the mutants that concern them downwards."""

    title: str
    rows: list[dict[str, Any]]
    lines: list[tuple[dict[str, Any], dict[str, str]]]  # mutant; row: result

    @property
    def picture(self) -> Markup:
        """The block as an SVG element."""
        return Markup(_svg(self))

    @property
    def counts(self) -> dict[str, int]:
        """How many cells have each result that occurs."""
        found = Counter(x for _, cells in self.lines for x in cells.values())
        return {result: found[result] for result in MEANING if found[result]}


def blocks(document: Document) -> list[Block]:
    """The matrix by chapter, so that it is narrow and hardly empty.

    A mutant of two chapters is in both, each time with that chapter's rows.
    Sorted by its first row the picture is a staircase: what is missing is seen.
    """
    named = {x["row"] for m in document["mutants"] for x in m["results"]}
    by_chapter = pages.grouped(
        (pages.chapter(row["lesson"]), row)
        for row in sorted(document["rows"], key=lambda row: row["lesson"] or "?")
        if row["id"] in named
    )
    return [_block(title, rows, document) for title, rows in by_chapter.items()]


def _block(title: str, rows: list[dict[str, Any]], document: Document) -> Block:
    place = {row["id"]: index for index, row in enumerate(rows)}
    lines = []
    for mutant in document["mutants"]:
        cells = {x["row"]: x["result"] for x in mutant["results"] if x["row"] in place}
        if cells:
            lines.append((mutant, cells))
    lines.sort(key=lambda line: min(place[row] for row in line[1]))
    return Block(title, rows, lines)


# --- the picture --------------------------------------------------------------

CELL, LINE, TOP = 14, 15, 66  # pixels
CHARACTER = 6.7  # width of one in the font of the labels

# Shapes about the middle of a cell: no result is told by its colour alone.
_CIRCLE = "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z"
_SQUARE = "M-5 -5h10v10h-10z"
_CROSS = "M-3 -3l6 6M3 -3l-6 6"
SHAPES = {
    KILLED: _SQUARE,
    PASSED: _CIRCLE,
    SURVIVED: _SQUARE + _CROSS,
    FLAGGED: _CIRCLE + _CROSS,
    OPEN: _SQUARE,
    SEEN: _CIRCLE,
    ELSEWHERE: "M-5 0h10",
    UNJUDGED: "M0 -6l6 11h-12zM0 -2v3M0 3v1",
    NOT_RUN: "M-1 -1h2v2h-2z",
}


def _svg(block: Block) -> str:
    left = 14 + CHARACTER * max(len(mutant["name"]) for mutant, _ in block.lines)
    x = {row["id"]: left + CELL * i + CELL / 2 for i, row in enumerate(block.rows)}
    width = left + CELL * len(block.rows) + 34  # the last label leans over
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
    for index, (mutant, cells) in enumerate(block.lines):
        y = TOP + LINE * index + LINE / 2
        parts.append(
            _grid(left, y, width - 34, y)
            + f'<a href="#mutant-{escape(mutant["name"])}">'
            f'<text class="mutant" x="{left - 6:g}" y="{y + 4:g}">'
            f"<title>{escape(mutant['what'])}</title>{escape(mutant['name'])}</text></a>"
        )
        parts += [
            _mark(result, x[row], y, f"{mutant['name']}, {row}: {result}")
            for row, result in cells.items()
        ]
    return "".join([*parts, "</svg>"])


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


def _wrong(document: Any) -> str | None:
    if wrong := schema.error(document, SCHEMA, "matrix"):
        return wrong
    known = {row["id"] for row in document["rows"]}
    for mutant in document["mutants"]:
        for cell in mutant["results"]:
            if cell["row"] not in known:
                return f"matrix.rows: {cell['row']} is missing"
    return None
