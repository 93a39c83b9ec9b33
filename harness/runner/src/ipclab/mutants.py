"""`ipclab mutants`: does the suite notice a driver that is wrong in one place?

The reference model loses one documented behaviour at a time. Every row that
speaks of it must fail; a conforming variant (`ok-...`) must not be flagged.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from ipclab import ctest, records
from ipclab.ctest import Case
from ipclab.errors import HarnessError, UsageError
from ipclab.run import Run, Settings

KILLED, SURVIVED, PASSED, FLAGGED, OPEN, SEEN, ELSEWHERE, UNJUDGED = (
    "killed",  # the row failed: the mutant was noticed
    "survived",  # the row passed although its behaviour is gone
    "passed",  # an ok-* variant, as it must
    "flagged",  # an ok-* variant failed a row
    "open",  # the row has no test yet
    "observed",  # the row is only written down, nothing could fail
    "not applicable",  # a test of the row cannot run on the model
    "broken",  # the harness could not judge: that is no kill
)
WRONG = (SURVIVED, FLAGGED, UNJUDGED)
# Kinds of rows that a driver can violate. A LIMIT conforms or is lifted.
JUDGED = ("MUST", "ERROR")


@dataclass(frozen=True)
class Request:
    """What a person asked for."""

    build: Path
    names: tuple[str, ...] = ()  # empty: all
    jobs: int = 1
    matrix: Path | None = None


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


def run(out: Console, request: Request) -> int:
    """Run the mutants, print the matrix; 0 if each was told from a sound driver."""
    chosen = select(read(ctest.source_folder(request.build)), request.names)
    runs = {
        profile: Run(Settings(build=request.build, backend="model", profile=profile))
        for profile in dict.fromkeys(mutant.profile for mutant in chosen)
    }
    try:
        matrix = _matrix(out, chosen, runs, request.jobs)
    finally:
        for each in runs.values():
            each.close("finished")
    if request.matrix is not None:
        _write(request.matrix, chosen, matrix)
    _show(out, chosen, matrix)
    wrong = sum(x in WRONG for row in matrix.values() for x in row.values())
    unproved = [] if request.names else _unproved(next(iter(runs.values())), matrix)
    if unproved:
        out.print(
            Text(f"no mutant is killed by {', '.join(unproved)}", style="bold red"),
            soft_wrap=True,
        )
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


def _unproved(run: Run, matrix: dict[str, dict[str, str]]) -> list[str]:
    """Judged rows that have a test which has never been seen to fail."""
    tested = {case.requirement for case in run.cases}
    killed = {
        row for rows in matrix.values() for row, cell in rows.items() if cell == KILLED
    }
    return [
        row
        for row, entry in run.catalogue.items()
        if entry["kind"] in JUDGED and row in tested and row not in killed
    ]


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


def _show(
    out: Console, chosen: list[Mutant], matrix: dict[str, dict[str, str]]
) -> None:
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
        for row, result in matrix[mutant.name].items():
            told.append(f"{', ' if told else ''}{row} ")
            told.append(result, style=colours[result])
        table.add_row(mutant.name, mutant.what, told)
    out.print(table)
    out.print()
    found = [x for row in matrix.values() for x in row.values()]
    counts = {name: found.count(name) for name in colours}
    told_counts = ", ".join(f"{n} {name}" for name, n in counts.items() if n)
    out.print(Text(f"{len(chosen)} mutants: {told_counts}"), soft_wrap=True)


def _write(path: Path, chosen: list[Mutant], matrix: dict[str, Any]) -> None:
    document = [{**asdict(m), "results": matrix[m.name]} for m in chosen]
    try:
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise HarnessError(f"{path}: {error.strerror}") from None
