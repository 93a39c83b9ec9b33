"""Tables as plain lines, for the commands that need Python and no package."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

PIPE = 160  # columns of a pipe or a file, as in terminal.py
LEAST = 20  # columns that the last cell gets even on a small terminal
GAP = "  "


def width() -> int:
    """The number of columns of standard output; COLUMNS overrides it."""
    return shutil.get_terminal_size((PIPE, 24)).columns


def bold(text: str) -> str:
    """The text, in bold if standard output is a terminal that can show it."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if plain or not text.strip() or not sys.stdout.isatty():
        return text
    return f"\033[1m{text}\033[0m"


def table(
    rows: Sequence[Sequence[str]], columns: int, head: Sequence[str] = ()
) -> list[str]:
    """The lines of a table of `columns` columns of text; only the last cell of a row is
    wrapped. With `head` the first line is bold; without it the first cells are.
    """
    every = [head, *rows] if head else list(rows)
    if not every:
        return []
    fixed = [
        max(map(len, cells)) for cells in zip(*(x[:-1] for x in every), strict=True)
    ]
    left = sum(fixed) + len(GAP) * len(fixed)
    room = max(columns - left, LEAST)
    lines = []
    for row in every:
        cells = [f"{cell:{size}}" for cell, size in zip(row[:-1], fixed, strict=True)]
        first, *rest = wrap(row[-1], room)
        if row is head:
            lines.append(bold(GAP.join([*cells, first]).rstrip()))
        else:
            cells = cells if head else [bold(cells[0]), *cells[1:]]
            lines.append(GAP.join([*cells, first]).rstrip())
        lines += [" " * left + line for line in rest]
    return lines


def wrap(text: str, columns: int) -> list[str]:
    """The text in lines of at most this length; at least one line."""
    return textwrap.wrap(text, columns, break_on_hyphens=False) or [""]
