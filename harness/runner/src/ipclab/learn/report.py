"""`ipclab learn --report`: the progress of a class, from its progress files."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ipclab.errors import HarnessError, UsageError
from ipclab.learn import progress
from ipclab.learn.exercises import Exercise
from ipclab.learn.progress import State

MANY = 5  # after this many runs without success a student may need help


def run(out: Console, folder: Path, known: Sequence[Exercise]) -> int:
    """Print the progress of all files below `folder`, by person and by exercise.

    The name of a person is the path of the file's folder below `folder`. Raises
    UsageError if there is no file. If a file is damaged, its error is printed, the
    other files are still read, and the exit code is 1.
    """
    class_: dict[str, dict[str, State]] = {}
    damaged = []
    for path in _files(folder):
        name = str(path.parent.relative_to(folder))
        name = path.resolve().parent.name if name == "." else name
        try:
            class_[name] = progress.read(path)
        except HarnessError as error:
            damaged.append(str(error))
    if not class_ and not damaged:
        raise UsageError(f"{folder}: no {progress.FILE} in it or below")
    out.print(people(class_, known))
    out.print()
    out.print(exercises(class_, known))
    for line in damaged:
        out.print(line, style="red", markup=False)
    return 1 if damaged else 0


def people(class_: dict[str, dict[str, State]], known: Sequence[Exercise]) -> Table:
    """A line for each person: the progress, and the present exercise."""
    table = Table(box=None, pad_edge=False)
    for head in ("who", "passed", "hints", "shown", "now at", "runs there", "last"):
        table.add_column(head)
    for name in sorted(class_):
        states = class_[name]
        here = [x for x in known if (s := states.get(x.name)) and s.passed is None]
        state = states[here[0].name] if here else None
        table.add_row(
            _plain(name),
            f"{sum(x.passed is not None for x in states.values())} of {len(known)}",
            str(sum(x.hints for x in states.values())),
            str(sum(x.shown for x in states.values())),
            here[0].name if here else "-",
            str(state.runs) if state else "",
            _plain((state.last or "") if state else ""),
            style="yellow" if state and state.runs >= MANY else "",
        )
    return table


def exercises(class_: dict[str, dict[str, State]], known: Sequence[Exercise]) -> Table:
    """A line for each exercise that somebody has begun. The lines show which exercises
    are hard for the class.
    """
    table = Table(box=None, pad_edge=False)
    for head in ("exercise", "begun", "passed", "runs each", "hints each"):
        table.add_column(head)
    for exercise in known:
        states = [s for x in class_.values() if (s := x.get(exercise.name))]
        if not states:
            continue
        number = len(states)
        table.add_row(
            f"{exercise.number} {exercise.title}",
            str(number),
            str(sum(x.passed is not None for x in states)),
            f"{sum(x.runs for x in states) / number:.1f}",
            f"{sum(x.hints for x in states) / number:.1f}",
        )
    return table


def _plain(text: str) -> str:
    """A text from a student's file, on one line, so that each person has one line."""
    return escape("".join(x if x.isprintable() else "?" for x in text)[:60])


def _files(folder: Path) -> list[Path]:
    """All progress files in and below `folder`; hidden folders are left out."""
    found = []
    for top, folders, names in os.walk(folder):
        if progress.FILE in names:
            found.append(Path(top, progress.FILE))
        folders[:] = sorted(x for x in folders if not x.startswith("."))
    return found
