"""The runs that the site shows: those of docs/results/, and others given to ci/docs.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import functools
import itertools
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
    def suite(self) -> tuple[int, int]:
        """The CUDA of the programs (12040 is CUDA 12.4) and the number of GPUs. Only
        runs of one suite may be compared side by side."""
        about = self.about["fingerprint"]
        return int(about["runtime_version"]), len(about["gpus"])

    @property
    def toolkit(self) -> str:
        """The version of CUDA that the programs were built with."""
        version = self.suite[0]
        return f"CUDA {version // 1000}.{version % 1000 // 10}"

    @property
    def gpu(self) -> str:
        """GPUs and driver: the name of the machine in the captions of its suite."""
        return str(self.about["machine"]).split(";")[0].partition(" (CUDA")[0]

    @property
    def machine(self) -> str:
        """The name of the machine for captions, with the toolkit of its programs."""
        return f"{self.gpu}, {self.toolkit}"


def runs(folders: Iterable[Path]) -> list[Run]:
    """The runs in these folders: runs on drivers first, then suite by suite: the newest
    toolkit and the fewest GPUs first.

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
    return sorted(found, key=lambda x: (not x.real, -x.suite[0], x.suite[1]))


def suites(found: Iterable[Run]) -> list[list[Run]]:
    """The runs of each suite."""
    return [list(of) for _, of in itertools.groupby(found, key=lambda run: run.suite)]


def recorded_folders() -> list[Path]:
    """The results folders in docs/results/."""
    return sorted(file.parent for file in TOP.glob("docs/results/*/run.json"))
