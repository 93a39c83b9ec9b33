"""The exercises of samples/exercises: the handed-out files and their descriptions.

A folder NN_topic has `exercise.cu`, which is handed out and begins with its task, and
`exercise.toml`: hints, check, solutions and wrong solutions. All solutions are changes
of `exercise.cu`, so that there is only one source.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipclab import ctest, schema
from ipclab.errors import HarnessError, UsageError

AS = os.environ.get("IPCLAB_LEARN", "ipclab learn")  # as the student types it
SOURCE = "exercise.cu"
FACTS = "exercise.toml"
NAME = re.compile(r"[0-9][0-9]_[a-z0-9_]+")
KINDS = {
    "fill": "fill the gap",
    "mend": "mend the bug",
    "predict": "predict, then run",
    "find": "find the fault of the driver",
    "project": "a project",
}

LEVELS = {1: "easy", 2: "medium", 3: "hard"}

_TEXT: schema.Schema = {"type": "string", "minLength": 1}
_TEXTS: schema.Schema = {"type": "array", "items": _TEXT}
_VARIANT: schema.Schema = {
    "type": "object",
    "properties": {
        "what": _TEXT,
        "says": _TEXT,
        "change": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"replace": _TEXT, "by": {"type": "string"}},
                "required": ["replace", "by"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["what", "change"],
    "additionalProperties": False,
}
_FACTS: schema.Schema = {
    "type": "object",
    "properties": {
        "title": _TEXT,
        "lesson": _TEXT,
        "kind": {"enum": list(KINDS)},
        "after": _TEXTS,
        "minutes": {"type": "integer", "minimum": 1},
        "level": {"enum": list(LEVELS)},
        "learned": _TEXT,
        "seen": _TEXT,
        "hints": _TEXTS,
        "check": {
            "type": "object",
            "properties": {
                "profile": _TEXT,
                "calls": {
                    "type": "object",
                    "additionalProperties": {"type": "integer"},
                },
                "at_most": {
                    "type": "object",
                    "additionalProperties": {"type": "integer"},
                },
                "order": _TEXTS,
                "faults": _TEXTS,
                "legal": _TEXTS,
                "ignore": _TEXTS,
            },
            "additionalProperties": False,
        },
        "handed_out": {
            "type": "object",
            "properties": {"fails": _TEXT, "says": _TEXT},
            "required": ["fails", "says"],
            "additionalProperties": False,
        },
        "solution": {"type": "array", "items": _VARIANT},
        "wrong": {"type": "array", "items": _VARIANT},
    },
    "required": [
        *("title", "lesson", "kind", "minutes", "level", "learned"),
        "hints",
        *("check", "handed_out", "solution", "wrong"),
    ],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Check:
    """What a solution has to do besides exiting with 0."""

    calls: dict[str, int]  # driver calls, and how often each must succeed at least
    at_most: dict[str, int]  # driver calls, and how often each may succeed at most
    order: tuple[str, ...]  # driver calls that must succeed, one after the other
    faults: tuple[str, ...]  # faults of harness/faults; the program must notice each
    legal: tuple[str, ...]  # ok-… faults; with each the program must exit with 0
    ignore: tuple[str, ...]  # rules of the trace that are not checked here
    profile: str | None  # with a profile the exercise always runs on the model


@dataclass(frozen=True)
class Variant:
    """A solution or a wrong solution: changes of the file that is handed out."""

    what: str  # in a sentence
    says: str  # pattern of the answer to a wrong solution
    changes: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Exercise:
    """One exercise as the repository has it."""

    name: str  # 01_first_handle
    folder: Path
    title: str
    lesson: str
    kind: str  # of KINDS
    after: tuple[str, ...]  # numbers of exercises that come earlier on any path
    minutes: int
    level: int  # of LEVELS
    learned: str  # what to remember, in a sentence
    seen: str  # where this bug was seen, in a sentence; may be empty
    hints: tuple[str, ...]
    check: Check
    fails: str  # pattern of the kind of complaint about the handed-out file
    says: str  # pattern of the text of that complaint
    solutions: tuple[Variant, ...]
    wrong: tuple[Variant, ...]

    @property
    def number(self) -> str:
        """01 of 01_first_handle."""
        return self.name[:2]

    @property
    def source(self) -> str:
        """The file that is handed out."""
        try:
            return (self.folder / SOURCE).read_text(encoding="utf-8")
        except OSError as error:
            raise HarnessError(f"{error.filename}: {error.strerror}") from None

    @property
    def task(self) -> str:
        """The comment at the beginning of the file, without slashes and licence."""
        lines = []
        for line in self.source.splitlines():
            if not line.startswith("//"):
                break
            if "SPDX-License-Identifier" not in line:
                lines.append(line.removeprefix("//").removeprefix(" "))
        return "\n".join(lines).strip()

    def changed(self, variant: Variant) -> str:
        """The source of a variant.

        Raises HarnessError unless each text to replace occurs exactly once.
        """
        text = self.source
        for old, new in variant.changes:
            if text.count(old) != 1:
                raise HarnessError(
                    f"{self.name}: '{variant.what}' replaces a text that is there "
                    f"{text.count(old)} times: {old.strip().splitlines()[0]}"
                )
            text = text.replace(old, new)
        return text

    def difference(self, variant: Variant) -> str:
        """What a variant changes, as a unified diff without its head."""
        lines = difflib.unified_diff(
            self.source.splitlines(), self.changed(variant).splitlines(), lineterm=""
        )
        return "\n".join(list(lines)[2:])


def read(source: Path) -> list[Exercise]:
    """All exercises of a source tree, in order.

    Raises HarnessError if there are none, or if one is malformed.
    """
    folder = source / "samples/exercises"
    found = [
        _exercise(path)
        for path in sorted(folder.glob("*"))
        if NAME.fullmatch(path.name) and (path / FACTS).is_file()
    ]
    if not found:
        raise HarnessError(f"{folder}: no exercises here; they need the source tree")
    return found


def of_build(build: Path) -> list[Exercise]:
    """All exercises of the source tree that a build was made from."""
    return read(ctest.source_folder(build))


def find(known: Sequence[Exercise], wanted: str) -> Exercise:
    """The exercise called 01, 1, 01_first_handle or first_handle.

    Raises UsageError if there is none.
    """
    for exercise in known:
        number, _, topic = exercise.name.partition("_")
        if wanted in (exercise.name, topic) or (
            wanted.isdecimal() and int(wanted) == int(number)
        ):
            return exercise
    raise UsageError(f"no exercise '{wanted}'; `{AS} list` shows all")


def _exercise(folder: Path) -> Exercise:
    path = folder / FACTS
    try:
        facts = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise HarnessError(f"{path}: {error}") from None
    if wrong := schema.error(facts, _FACTS, "exercise"):
        raise HarnessError(f"{path}: {wrong}")
    check = facts["check"]
    return Exercise(
        name=folder.name,
        folder=folder,
        title=facts["title"],
        lesson=facts["lesson"],
        kind=facts["kind"],
        after=tuple(facts.get("after", ())),
        minutes=facts["minutes"],
        level=facts["level"],
        learned=facts["learned"],
        seen=facts.get("seen", ""),
        hints=tuple(" ".join(hint.split()) for hint in facts["hints"]),
        check=Check(
            calls=dict(check.get("calls", {})),
            at_most=dict(check.get("at_most", {})),
            order=tuple(check.get("order", ())),
            faults=tuple(check.get("faults", ())),
            legal=tuple(check.get("legal", ())),
            ignore=tuple(check.get("ignore", ())),
            profile=check.get("profile"),
        ),
        fails=facts["handed_out"]["fails"],
        says=facts["handed_out"]["says"],
        solutions=tuple(map(_variant, facts["solution"])),
        wrong=tuple(map(_variant, facts["wrong"])),
    )


def _variant(facts: dict[str, Any]) -> Variant:
    return Variant(
        what=facts["what"],
        says=facts.get("says", ""),
        changes=tuple((x["replace"], x["by"]) for x in facts["change"]),
    )
