"""`ipclab explain`: what an error code means when processes share memory."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ipclab.errors import UsageError

FILE = Path(__file__).parent / "errors.json"
PAINS = Path(__file__).parent / "pains.json"


WIDE = 120  # with this many columns there is room for the tables


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


def run(out: Console, name: str | None) -> int:
    """Print one entry, or all codes and the frequent complaints."""
    if name is None:
        _list(out)
    else:
        _explain(out, find(name))
    return 0


def _list(out: Console) -> None:
    if out.width < WIDE:
        _narrow(out)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("number", justify="right")
    for column in ("runtime", "driver", "cause"):
        table.add_column(column, overflow="fold", no_wrap=column != "cause")
    for entry in read():
        table.add_row(str(entry.number), entry.code, entry.driver or "-", entry.cause)
    out.print(table)
    out.print()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("symptom", "doctor", "lessons", "errors"):
        table.add_column(column, overflow="fold")
    for pain in pains():
        parts = (", ".join(pain[x]) for x in ("checks", "lessons", "errors"))
        table.add_row(pain["what"], *parts)
    out.print(table)


def _narrow(out: Console) -> None:
    """The same list for a small terminal, which has no room for four columns."""
    for entry in read():
        out.print(Text.assemble((f"{entry.number} {entry.code}", "bold")))
        out.print(Padding(Text(entry.cause), (0, 0, 0, 2)))
    out.print()
    for pain in pains():
        out.print(Text(pain["what"], "bold"))
        told = ", ".join([*pain["checks"], *pain["lessons"], *pain["errors"]])
        out.print(Padding(Text(told), (0, 0, 0, 2)))


def _explain(out: Console, entry: Entry) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(str(entry.number), Text(" = ".join(entry.names)))
    for label, texts in (
        ("says", [entry.says]),
        ("appears", entry.appears),
        ("cause", [entry.cause]),
        ("do", [entry.do]),
        ("doctor", [", ".join(entry.checks)]),
        ("lessons", [", ".join(entry.lessons)]),
        ("rows", [", ".join(entry.rows)]),
    ):
        for index, text in enumerate(x for x in texts if x):
            table.add_row("" if index else label, Text(text))
    out.print(table)
