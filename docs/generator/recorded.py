"""The runs in docs/results/, and the traces of them that diagrams are drawn from.

A lesson that no recorded machine could run, or that is too new for that, is
drawn from docs/traces.jsonl: `ci/docs --keep FOLDER...` keeps the traces of other
runs there, for those lessons alone.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ipclab import matrix, results
from ipclab.errors import UsageError

TOP = Path(__file__).resolve().parents[2]
PASSED = ("conforms", "observed", "lifted")
ENTRY = ("t_us", "role", "kind", "text", "from", "bytes")


class Missing(Exception):
    """The site needs something that is not there; says what to do."""


@dataclass(frozen=True)
class Trace:
    """What the roles of one passing test did."""

    lesson: str
    test: str
    machine: str
    roles: list[str]
    timeline: list[dict[str, Any]]


@dataclass(frozen=True)
class Run:
    """One folder of `ipclab run`."""

    name: str  # of the folder
    about: dict[str, Any]  # run.json
    records: list[dict[str, Any]]
    kills: matrix.Document | None = None  # its kill matrix, where it was made

    @property
    def real(self) -> bool:
        """Was it a driver, not the reference model?"""
        return bool(self.about["backend"] == "cuda")

    @property
    def machine(self) -> str:
        """What a caption says."""
        return str(self.about["machine"]).split(";")[0]

    def traces(self) -> Iterator[Trace]:
        """Of each test that passed and has something to draw."""
        for record in self.records:
            roles = [role["name"] for role in record["roles"]]
            if record["verdict"] in PASSED and record["timeline"]:
                yield Trace(
                    record["lesson"],
                    record["test"],
                    self.machine,
                    roles,
                    record["timeline"],
                )


def runs(folders: Iterable[Path]) -> list[Run]:
    """All folders, drivers before the model, otherwise in the order given.

    Raises Missing if one cannot be read completely.
    """
    found = []
    for folder in folders:
        contents = results.read(folder)
        if contents.wrong:
            raise Missing(
                f"{folder}: {contents.wrong}; record it again with ipclab run"
            )
        kills = matrix.read(folder)
        found.append(Run(folder.name, contents.run, contents.records, kills))
    return sorted(found, key=lambda run: not run.real)


def recorded_folders() -> list[Path]:
    """Those of docs/results/."""
    return sorted(file.parent for file in TOP.glob("docs/results/*/run.json"))


def traces(folders: Iterable[Path]) -> list[Trace]:
    """Of each test of these folders that passed; drivers first. Raises Missing."""
    return [trace for run in runs(folders) for trace in run.traces()]


def kept(file: Path) -> list[Trace]:
    """The traces of docs/traces.jsonl."""
    return [Trace(**json.loads(line)) for line in file.read_text().splitlines()]


def trace(traces: Iterable[Trace], lesson: str, test: str) -> Trace:
    """The trace to draw for a lesson: of `test`, or, if that is empty, of the
    lesson's first test with two roles.

    Raises Missing if there is none.
    """
    for found in traces:
        if found.lesson == lesson and (
            found.test == test or (not test and len(found.roles) > 1)
        ):
            return found
    raise Missing(
        f"{lesson}: no recorded run of {test or 'a test with two roles'} that passed: "
        f"record one (ci/ipclab run --build build/dev -k {lesson} --results FOLDER) "
        "and keep its trace: ci/docs --keep FOLDER"
    )


def keep(
    file: Path,
    lessons: Iterable[dict[str, Any]],
    recorded: list[Trace],
    found: list[Trace],
) -> None:
    """Write docs/traces.jsonl anew, with a line for each lesson that `recorded`
    does not show: a trace of `found`, or else the one that was there.

    Raises Missing, and leaves the file as it is, if a lesson has none of them.
    """
    known = [*recorded, *found, *(kept(file) if file.exists() else ())]
    lines = []
    for lesson in lessons:
        shown = trace(known, lesson["lesson"], lesson["drawn_from"])
        if shown in recorded:
            continue
        line = asdict(shown)
        line["timeline"] = [
            {name: entry[name] for name in ENTRY if name in entry}
            for entry in line["timeline"]
        ]
        lines.append(json.dumps(line) + "\n")
    file.write_text("".join(lines))


def main() -> None:
    """Keep the traces of some results folders."""
    parser = argparse.ArgumentParser(prog="generator.recorded")
    parser.add_argument("--lessons", type=Path, required=True)
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    args = parser.parse_args()
    lessons = json.loads(args.lessons.read_text())
    keep(args.into, lessons, traces(recorded_folders()), traces(args.folders))


if __name__ == "__main__":
    try:
        main()
    except (Missing, UsageError) as error:
        sys.exit(f"generator: {error}")
