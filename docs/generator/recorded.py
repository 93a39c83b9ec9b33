"""The runs that the site shows: those of docs/results/, and others given to ci/docs.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipclab import results
from ipclab.mutants import matrix
from ipclab.records import FAILING, JUDGED, Record, Row, rows

TOP = Path(__file__).resolve().parents[2]


class Missing(Exception):
    """The site lacks something that it needs; the text says what to do."""


@dataclass(frozen=True)
class Run:
    """One folder of `ipclab run`."""

    name: str  # of the folder
    about: dict[str, Any]  # run.json
    records: list[Record]
    kills: matrix.Document | None = None  # its kill matrix, if there is one

    @functools.cached_property
    def rows(self) -> list[Row]:
        """A row for each test and lesson."""
        return rows(self.records)

    @functools.cached_property
    def kills_of(self) -> dict[str, dict[str, str]]:
        """For each row, the result of each fault in the tests of the row."""
        found: dict[str, dict[str, str]] = {}
        for fault in (self.kills or {"faults": []})["faults"]:
            for cell in fault["cells"]:
                found.setdefault(cell["row"], {}).setdefault(
                    fault["name"], str(cell["result"])
                )
        return found

    @functools.cached_property
    def judged(self) -> dict[str, set[str]]:
        """For each row that the run could judge, the verdicts of its tests."""
        found: dict[str, set[str]] = {}
        for test in self.rows:
            if test.verdict in (*JUDGED, *FAILING):
                found.setdefault(test.record["requirement"] or "", set()).add(
                    test.verdict
                )
        return found

    @property
    def real(self) -> bool:
        """Says whether the run used a driver, not the reference model."""
        return bool(self.about["backend"] == "cuda")

    @property
    def machine(self) -> str:
        """The name of the machine for captions."""
        return str(self.about["machine"]).split(";")[0]


def runs(folders: Iterable[Path]) -> list[Run]:
    """The runs in these folders: runs on drivers first, otherwise in the given order.

    Raises Missing if a folder cannot be read completely, or if its kill matrix was made
    with another backend.
    """
    found = []
    for folder in folders:
        contents = results.read(folder)
        if contents.wrong:
            raise Missing(
                f"{folder}: {contents.wrong}; record it again with ipclab run"
            )
        kills = matrix.read(folder)
        if kills and kills["backend"] != contents.run["backend"]:
            raise Missing(
                f"{folder}/{matrix.NAME}: was made with --backend {kills['backend']}, "
                f"the run with {contents.run['backend']}; make it again"
            )
        found.append(Run(folder.name, contents.run, contents.records, kills))
    return sorted(found, key=lambda run: not run.real)


def recorded_folders() -> list[Path]:
    """The results folders in docs/results/."""
    return sorted(file.parent for file in TOP.glob("docs/results/*/run.json"))
