"""`ipclab explain`: what an error code means when processes share memory."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipclab import lines
from ipclab.errors import UsageError

FILE = Path(__file__).parent / "errors.json"
PAINS = Path(__file__).parent / "pains.json"
WIDE = 120  # with this many columns there is room for the table of all codes


@dataclass(frozen=True)
class Entry:
    """One error code; the fields are those of errors.json."""

    code: str  # the runtime's name
    driver: str | None  # the driver's name of the same number
    number: int
    says: str  # cudaGetErrorString
    appears: list[str]
    cause: str
    do: str
    checks: list[str]  # of `ipclab doctor`
    lessons: list[str]
    rows: list[str]

    @property
    def names(self) -> list[str]:
        """The runtime's name, and the driver's name if the driver has this code."""
        return [self.code, *([self.driver] if self.driver else [])]


def read() -> list[Entry]:
    """The dictionary, sorted by number."""
    entries = json.loads(FILE.read_text(encoding="utf-8"))["errors"]
    return [Entry(**entry) for entry in entries]


def pains() -> list[dict[str, Any]]:
    """The most frequent complaints, and where each complaint is answered."""
    entries: list[dict[str, Any]] = json.loads(PAINS.read_text(encoding="utf-8"))[
        "pains"
    ]
    return entries


def find(name: str) -> Entry:
    """The entry of an error's name, number or text, in upper or lower case; UsageError
    if there is none.
    """
    known = {
        name.lower(): entry
        for entry in read()
        for name in (*entry.names, str(entry.number), entry.says)
    }
    if name.lower() in known:
        return known[name.lower()]
    close = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"like {known[close[0]].code}? " if close else ""
    raise UsageError(
        f"no error '{name}' in the dictionary; {hint}`ipclab explain` lists them"
    )


def run(name: str | None, columns: int | None = None) -> int:
    """Print one entry, or all codes and the frequent complaints, in lines of at most
    `columns` columns (default: as wide as standard output).
    """
    columns = columns or lines.width()
    print("\n".join(_list(columns) if name is None else _entry(find(name), columns)))
    return 0


def _list(columns: int) -> list[str]:
    told = []
    if columns >= WIDE:
        rows = [(f"{x.number:6}", x.code, x.driver or "-", x.cause) for x in read()]
        told = lines.table(rows, columns, ("number", "runtime", "driver", "cause"))
    else:  # a small terminal has no room for four columns
        for entry in read():
            told += _block(f"{entry.number} {entry.code}", entry.cause, columns)
    told.append("")
    for pain in pains():
        where = ", ".join([*pain["checks"], *pain["lessons"], *pain["errors"]])
        told += _block(pain["what"], where, columns)
    return told


def _block(title: str, text: str, columns: int) -> list[str]:
    """A title, and under it a text that is indented."""
    return [
        *(lines.bold(line) for line in lines.wrap(title, columns)),
        *(f"  {line}" for line in lines.wrap(text, columns - 2)),
    ]


def _entry(entry: Entry, columns: int) -> list[str]:
    rows = [(str(entry.number), " = ".join(entry.names))]
    for label, texts in (
        ("says", [entry.says]),
        ("appears", entry.appears),
        ("cause", [entry.cause]),
        ("do", [entry.do]),
        ("doctor", [", ".join(entry.checks)]),
        ("lessons", [", ".join(entry.lessons)]),
        ("rows", [", ".join(entry.rows)]),
    ):
        found = [text for text in texts if text]
        rows += [("" if index else label, text) for index, text in enumerate(found)]
    return lines.table(rows, columns)
