"""The results of `ipclab mutants` so far: one line for each test, on disk at once.

If the command was stopped or killed, `--resume` continues with this file.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ipclab import reader, results, schema
from ipclab.errors import UsageError
from ipclab.mutants.trials import Baseline, Trial

VERSION = 4
_TEXT: schema.Schema = {"type": "string"}
_MAYBE: schema.Schema = {"type": ["string", "null"]}
_COMMON: dict[str, schema.Schema] = {
    "line": {"enum": ["baseline", "trial"]},
    "profile": _MAYBE,
    "ctest": {"type": "string", "minLength": 1},
    "verdict": {"type": "string", "minLength": 1},
    "reason": _TEXT,
    "seconds": {"type": "number", "minimum": 0},
}
_OF_TRIALS: dict[str, schema.Schema] = {
    "fault": {"type": "string", "minLength": 1},
    "fired": {"type": ["boolean", "null"]},
    "where": _MAYBE,
    "deviation": _MAYBE,
}
_OF_BASELINE: dict[str, schema.Schema] = {
    "functions": {"type": "array", "items": _TEXT},
}
SCHEMAS: dict[str, schema.Schema] = {
    "begin": {
        "type": "object",
        "properties": {
            "line": {"const": "begin"},
            "version": {"const": VERSION},
            "made": _TEXT,
            "suite": {"enum": ["conformance", "sample"]},
            "lessons": {"enum": ["central", "all", None]},
            "backend": {"enum": ["cuda", "model"]},
            "machine": _TEXT,
            "digest": _TEXT,  # of what all tests share
            "tests": {"type": "object", "additionalProperties": _TEXT},
            "partial": _MAYBE,
            "faults": {"type": "object", "additionalProperties": _TEXT},
        },
        "required": [
            "line",
            "version",
            "made",
            "suite",
            "lessons",
            "backend",
            "machine",
            "digest",
            "tests",
            "partial",
            "faults",
        ],
        "additionalProperties": False,
    },
    "baseline": {
        "type": "object",
        "properties": {**_COMMON, **_OF_BASELINE},
        "required": [*_COMMON, *_OF_BASELINE],
        "additionalProperties": False,
    },
    "trial": {
        "type": "object",
        "properties": {**_COMMON, **_OF_TRIALS},
        "required": [*_COMMON, *_OF_TRIALS],
        "additionalProperties": False,
    },
}


class Journal:
    """The file of one matrix, open for writing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head: dict[str, Any] = {}
        self.baseline: list[Baseline] = []
        self.trials: list[Trial] = []

    @classmethod
    def begin(cls, path: Path, head: dict[str, Any]) -> Journal:
        """A new file; UsageError if the file exists."""
        if path.exists():
            raise UsageError(
                f"{path}: holds a matrix already; --resume {path.parent} continues "
                "it, --results names another folder"
            )
        journal = cls(path)
        journal.head = {"line": "begin", "version": VERSION, **head}
        results.append(path, journal.head)
        return journal

    @classmethod
    def resume(cls, path: Path) -> Journal:
        """Read the existing file; an incomplete last line is removed from it.

        UsageError if there is no such file, or if it is not the file of a matrix.
        """
        return cls._of(path, results.whole_lines(path))

    @classmethod
    def read(cls, folder: Path, name: str) -> Journal:
        """Read the file of an earlier matrix, packed (`name`.gz) or not; the matrix may
        be incomplete.

        UsageError if there is no such file, or if it is not the file of a matrix.
        """
        lines = [x for x in results.record_lines(folder, name) if x.endswith(b"\n")]
        return cls._of(folder / name, lines)

    @classmethod
    def _of(cls, path: Path, lines: Sequence[bytes]) -> Journal:
        journal = cls(path)
        for number, entry in enumerate(_entries(path, lines), 1):
            kind = entry.get("line") if isinstance(entry, dict) else None
            if kind not in SCHEMAS or (kind == "begin") != (number == 1):
                raise UsageError(f"{path}: line {number} is not a line of a matrix")
            if wrong := schema.error(entry, SCHEMAS[kind], f"line {number}"):
                raise UsageError(f"{path}: {wrong}")
            rest = {name: value for name, value in entry.items() if name != "line"}
            if kind == "begin":
                journal.head = entry
            elif kind == "baseline":
                functions = frozenset(rest.pop("functions"))
                journal.baseline.append(Baseline(**rest, functions=functions))
            else:
                journal.trials.append(Trial(**rest))
        if not journal.head:
            raise UsageError(f"{path}: is empty")
        return journal

    def keep(
        self, tests: dict[str, str], faults: dict[str, str]
    ) -> tuple[set[str], set[str]]:
        """Keep only the results of tests and faults that are still the same, and return
        the names of the other tests and of the other faults.

        `tests` and `faults` have the digest of each as it is now. The file is written
        again only if one of them has changed, is new or is gone.
        """
        tests_changed = _differ(self.head["tests"], tests)
        faults_changed = _differ(self.head["faults"], faults)
        if not tests_changed and not faults_changed:
            return set(), set()
        self.head = {**self.head, "tests": tests, "faults": faults}
        self.baseline = [x for x in self.baseline if x.ctest not in tests_changed]
        self.trials = [
            x
            for x in self.trials
            if x.ctest not in tests_changed and x.fault not in faults_changed
        ]
        lines = [self.head, *map(_line, self.baseline), *map(_line, self.trials)]
        text = "".join(json.dumps(x, ensure_ascii=False) + "\n" for x in lines)
        results.write(self.path, text)
        return tests_changed, faults_changed

    def add(self, entry: Baseline | Trial) -> None:
        """Keep one result. The result is on disk before other code uses it."""
        results.append(self.path, _line(entry))
        if isinstance(entry, Baseline):
            self.baseline.append(entry)
        else:
            self.trials.append(entry)


def _differ(before: dict[str, str], now: dict[str, str]) -> set[str]:
    """What has changed, is new or is gone."""
    return {x for x in before.keys() | now.keys() if before.get(x) != now.get(x)}


def _line(entry: Baseline | Trial) -> dict[str, Any]:
    line = asdict(entry)
    if isinstance(entry, Baseline):
        return {"line": "baseline", **line, "functions": sorted(entry.functions)}
    return {"line": "trial", **line}


def _entries(path: Path, lines: Sequence[bytes]) -> Iterator[Any]:
    for number, text in enumerate(lines, 1):
        try:
            yield reader.parse(text)
        except ValueError as error:
            raise UsageError(f"{path}: line {number} {error}") from None
