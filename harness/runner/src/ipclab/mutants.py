"""`ipclab mutants`: does the suite notice a driver that is wrong in one place?

The reference model loses one documented behaviour at a time. Every row that
speaks of it must fail; a conforming variant (`ok-...`) must not be flagged.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from ipclab import ctest, deviations, matrix, records, results
from ipclab.changes import Changes
from ipclab.ctest import Case
from ipclab.errors import HarnessError, UsageError
from ipclab.matrix import (
    ELSEWHERE,
    FLAGGED,
    KILLED,
    NOT_RUN,
    OPEN,
    PASSED,
    SEEN,
    SURVIVED,
    UNJUDGED,
)
from ipclab.run import Run, Settings

# Kinds of rows that a driver can violate. A LIMIT conforms or is lifted.
JUDGED = ("MUST", "ERROR")


@dataclass(frozen=True)
class Request:
    """What a person asked for."""

    build: Path
    names: tuple[str, ...] = ()  # empty: all
    jobs: int = 1
    results: Path | None = None  # None: a new folder under results/
    changed: str | None = None  # only what differs from this commit concerns


@dataclass(frozen=True)
class Mutant:
    """One entry of harness/model/mutants.json."""

    name: str
    entry: str  # the function that is wrong
    what: str
    rows: tuple[str, ...]
    profile: str | None

    @property
    def conforming(self) -> bool:
        """Whether it is a variant that no row may flag."""
        return self.name.startswith("ok-")


@dataclass(frozen=True)
class Choice:
    """Which mutants are run."""

    everything: list[Mutant]
    chosen: list[Mutant]
    partial: str | None  # why the others were left out; None: there are none


def run(out: Console, request: Request) -> int:
    """Run the mutants, print the matrix; 0 if each was told from a sound driver.

    What was chosen may be a part of them; then the last line says so.
    """
    source = ctest.source_folder(request.build)
    choice = _choose(read(source), request, source)
    folder = _folder(request.results)
    began = time.monotonic()
    runs = {
        profile: Run(Settings(build=request.build, backend="model", profile=profile))
        for profile in dict.fromkeys([None, *(x.profile for x in choice.chosen)])
    }
    try:
        found = _matrix(out, choice.chosen, runs, request.jobs)
    finally:
        for each in runs.values():
            each.close("finished")
    unproved = [] if request.names else _unproved(runs[None], choice, found)
    document = _document(choice, found, runs[None], unproved, time.monotonic() - began)
    _show(out, choice.chosen, found)
    if unproved:
        out.print(
            Text(f"no mutant is killed by {', '.join(unproved)}", style="bold red"),
            soft_wrap=True,
        )
    results.write(folder / matrix.NAME, json.dumps(document, indent=1) + "\n")
    results.write(folder / matrix.PAGE, matrix.page(document))
    out.print(Text(str(folder / matrix.PAGE)), soft_wrap=True)
    if choice.partial:
        out.print(
            Text(
                f"NOT the whole matrix: {choice.partial}; {len(choice.chosen)} of "
                f"{len(choice.everything)} mutants",
                style="yellow",
            ),
            soft_wrap=True,
        )
    wrong = any(x in matrix.WRONG for row in found.values() for x in row.values())
    return 1 if wrong or unproved else 0


def read(source: Path) -> list[Mutant]:
    """The mutants of the source tree; HarnessError if the file is not good."""
    path = source / "harness" / "model" / "mutants.json"
    try:
        return [
            Mutant(x["name"], x["entry"], x["what"], tuple(x["rows"]), x.get("profile"))
            for x in json.loads(path.read_text(encoding="utf-8"))
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HarnessError(f"{path}: {error}") from None


def select(mutants: list[Mutant], names: Sequence[str]) -> list[Mutant]:
    """Those of these names, or all; UsageError on an unknown name."""
    known = {mutant.name: mutant for mutant in mutants}
    for name in names:
        if name not in known:
            raise UsageError(f"no mutant '{name}'; see harness/model/mutants.json")
    return [known[name] for name in names] if names else mutants


def cell(mutant: Mutant, verdicts: Sequence[str]) -> str:
    """What the verdicts of a row's tests say of a mutant."""
    if not verdicts:
        return OPEN
    failing = [verdict for verdict in verdicts if verdict in records.FAILING]
    if any(verdict != "broken" for verdict in failing):
        return FLAGGED if mutant.conforming else KILLED
    if failing:
        return UNJUDGED
    if "not applicable" in verdicts:  # perhaps the one that would notice
        return ELSEWHERE
    if mutant.conforming:
        return PASSED
    return SEEN if "observed" in verdicts else SURVIVED


def _choose(everything: list[Mutant], request: Request, source: Path) -> Choice:
    if request.names:
        chosen = select(everything, request.names)
        partial = (
            "only those that were named" if len(chosen) < len(everything) else None
        )
        return Choice(everything, chosen, partial)
    if request.changed is None:
        return Choice(everything, everything, None)
    cases = ctest.read(request.build)
    catalogue = deviations.read_requirements(
        source / "conformance" / "requirements.json"
    )

    def rows_of(lesson: str) -> set[str]:
        tested = {x.requirement for x in cases if x.lesson == lesson and x.requirement}
        return tested | {
            name for name, row in catalogue.items() if lesson in row.get("lessons", [])
        }

    changed = Changes(source, request.changed)
    names = changed.concerned({x.name: set(x.rows) for x in everything}, rows_of)
    chosen = [mutant for mutant in everything if mutant.name in names]
    partial = (
        f"only those that the {len(changed.files)} files changed since "
        f"{request.changed} concern"
    )
    return Choice(
        everything, chosen, partial if len(chosen) < len(everything) else None
    )


def _folder(wanted: Path | None) -> Path:
    """Where the matrix goes; UsageError if it cannot, or would replace another."""
    folder = wanted or results.default_folder("-mutants")
    if (folder / matrix.NAME).exists():
        raise UsageError(f"{folder}: holds a kill matrix already; name another")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}") from None
    return folder


def _unproved(run: Run, choice: Choice, found: dict[str, dict[str, str]]) -> list[str]:
    """Judged rows that have a test which has never been seen to fail.

    A row one of whose mutants was left out may be proved by that one.
    """
    tested = {case.requirement for case in run.cases}
    left_out = {
        row
        for mutant in choice.everything
        if mutant.name not in found
        for row in mutant.rows
    }
    killed = {row for rows in found.values() for row, x in rows.items() if x == KILLED}
    return [
        row
        for row, entry in run.catalogue.items()
        if entry["kind"] in JUDGED and row in tested - killed - left_out
    ]


def _document(
    choice: Choice,
    found: dict[str, dict[str, str]],
    run: Run,
    unproved: list[str],
    seconds: float,
) -> matrix.Document:
    """What mutants.json holds (matrix.schema.json)."""
    lessons = {case.requirement: case.lesson for case in reversed(run.cases)}
    named = {row for mutant in choice.everything for row in mutant.rows}
    rows = [x for x in run.catalogue if x in named]
    rows += sorted(named - run.catalogue.keys())
    return {
        "version": 1,
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "partial": choice.partial,
        "unproved": unproved,
        "rows": [
            {
                "id": name,
                "statement": run.catalogue.get(name, {}).get("statement", ""),
                "kind": run.catalogue.get(name, {}).get("kind"),
                "lesson": lessons.get(name)
                or next(iter(run.catalogue.get(name, {}).get("lessons", [])), None),
            }
            for name in rows
        ],
        "mutants": [
            {
                "name": mutant.name,
                "entry": mutant.entry,
                "what": mutant.what,
                "profile": mutant.profile,
                "results": [
                    {"row": row, "result": found.get(mutant.name, {}).get(row, NOT_RUN)}
                    for row in mutant.rows
                ],
            }
            for mutant in choice.everything
        ],
    }


def _matrix(
    out: Console,
    chosen: list[Mutant],
    runs: dict[str | None, Run],
    jobs: int,
) -> dict[str, dict[str, str]]:
    """Mutant, row: what came of it. The sound model goes first."""
    wanted: list[tuple[Mutant | None, str | None, str, Case]] = []
    sound = {(m.profile, row) for m in chosen for row in m.rows}
    for mutant in [None, *chosen]:
        pairs = (
            sorted(sound, key=str)
            if mutant is None
            else [(mutant.profile, row) for row in mutant.rows]
        )
        wanted += [
            (mutant, profile, row, case)
            for profile, row in pairs
            for case in runs[profile].cases
            if case.requirement == row
        ]

    verdicts: dict[tuple[str | None, str], list[str]] = {}
    with (
        Progress(console=out, transient=True, disable=not out.is_terminal) as bar,
        ThreadPoolExecutor(jobs) as pool,
    ):
        task = bar.add_task("mutants", total=len(wanted))

        def one(job: tuple[Mutant | None, str | None, str, Case]) -> str:
            mutant, profile, _, case = job
            name = mutant.name if mutant else None
            record = runs[profile].execute(case, 1, None, False, name)
            bar.advance(task)
            return str(record["verdict"])

        beside = [job for job in wanted if not job[3].alone]
        wanted = beside + [job for job in wanted if job[3].alone]
        verdict_of = chain(pool.map(one, beside), map(one, wanted[len(beside) :]))
        for (mutant, profile, row, case), verdict in zip(
            wanted, verdict_of, strict=True
        ):
            if mutant is None and verdict in records.FAILING:
                raise HarnessError(
                    f"{case.name} {verdict} on the sound model"
                    f"{f' (profile {profile})' if profile else ''}: mend that first"
                )
            name = mutant.name if mutant else None
            verdicts.setdefault((name, row), []).append(verdict)
    return {
        mutant.name: {
            row: cell(mutant, verdicts.get((mutant.name, row), []))
            for row in mutant.rows
        }
        for mutant in chosen
    }


def _show(out: Console, chosen: list[Mutant], found: dict[str, dict[str, str]]) -> None:
    colours = {
        KILLED: "green",
        PASSED: "green",
        SURVIVED: "bold red",
        FLAGGED: "bold red",
        OPEN: "dim",
        SEEN: "dim",
        ELSEWHERE: "dim",
        UNJUDGED: "bold red",
    }
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("mutant", "what it does", "rows"):
        table.add_column(name, overflow="fold", no_wrap=name == "mutant")
    for mutant in chosen:
        told = Text()
        for row, result in found[mutant.name].items():
            told.append(f"{', ' if told else ''}{row} ")
            told.append(result, style=colours[result])
        table.add_row(mutant.name, mutant.what, told)
    out.print(table)
    out.print()
    cells = [x for row in found.values() for x in row.values()]
    counts = {name: cells.count(name) for name in colours}
    told_counts = ", ".join(f"{n} {name}" for name, n in counts.items() if n)
    out.print(Text(f"{len(chosen)} mutants: {told_counts}"), soft_wrap=True)
