"""Which faults there are, and who must notice them (harness/faults, harness/model).

The library in front of the driver prints its own list of faults.
Its declarations also name rows and profiles. harness/faults/faults.json has what is no
property of a fault: where it cannot take effect, equivalents, what runs first.
The few faults inside the model are in harness/model/choices.json.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipclab import ctest, declarations, schema
from ipclab.errors import HarnessError, UsageError

LIBRARY = Path("faults/libipclab_faults.so")  # in the build folder
LISTER = Path("faults/ipclab_faults")
DECISIONS = Path("harness/faults/faults.json")  # in the source tree
OF_MODEL = Path("harness/model/choices.json")
# Kinds of faults: a named one, a systematic one (an operator on a function), and one
# inside the model.
NAMED, OPERATOR, MODEL = "named", "operator", "hook"
LEGAL = "legal"  # no kind of its own: the legal answers (ok-…) of `everywhere`
# A lesson runs with the faults that faults.json lists for it (CENTRAL), or also with
# all faults of the functions that it calls, without the operators (EVERY).
CENTRAL, EVERY = "central", "all"

_LISTED: schema.Schema = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "kind": {"enum": [NAMED, OPERATOR]},
        "function": {"type": "string", "minLength": 1},
        "operator": {"type": "string", "minLength": 1},
        "rows": {"type": "array", "items": {"type": "string", "minLength": 1}},
        "profile": {"type": "string", "minLength": 1},
        "what": {"type": "string", "minLength": 1},
        "gpus": {"type": "integer", "minimum": 1},
        "file": {"type": "string", "minLength": 1},
    },
    "required": ["name", "kind", "function", "rows", "what", "gpus", "file"],
    "additionalProperties": False,
}
_TEXT: schema.Schema = {"type": "string", "minLength": 1}
_TEXTS: schema.Schema = {"type": "array", "items": _TEXT}
_SOMEWHERE: schema.Schema = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "fault": _TEXT,
            "where": {"enum": ["cuda", "model"]},
            "why": _TEXT,
        },
        "required": ["fault", "where", "why"],
        "additionalProperties": False,
    },
}
_DECIDED: schema.Schema = {
    "type": "object",
    "properties": {
        "about": {"type": "string"},
        "equivalent": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"fault": _TEXT, "why": _TEXT},
                "required": ["fault", "why"],
                "additionalProperties": False,
            },
        },
        "expected_unfired": _SOMEWHERE,
        "same_as_driver": _SOMEWHERE,
        "first": {"type": "object", "additionalProperties": _TEXTS},
        "lessons": {"type": "object", "additionalProperties": _TEXTS},
        "everywhere": _TEXTS,
    },
    "required": [
        "equivalent",
        "expected_unfired",
        "same_as_driver",
        "first",
        "lessons",
        "everywhere",
    ],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Fault:
    """One way in which a driver can be wrong, or (ok-…) different but right."""

    name: str
    kind: str  # NAMED, OPERATOR or MODEL
    function: str  # canonical: the runtime's name if both APIs have the call
    operator: str | None
    what: str
    gpus: int = 1  # how many GPUs the machine must have
    rows: tuple[str, ...] = ()  # all of these must notice the fault; operator: none
    profile: str | None = None  # which machine the model imitates for the fault
    file: str = ""  # the source file, in the source tree; empty: inside the model

    @property
    def allowed(self) -> bool:
        """Whether the fault is another legal answer, which no test may flag."""
        return self.name.startswith("ok-")

    @property
    def environment(self) -> dict[str, str]:
        """The variable that selects the fault."""
        return {"IPCLAB_CHOICE" if self.kind == MODEL else "IPCLAB_FAULT": self.name}


@dataclass(frozen=True)
class Catalogue:
    """All faults, and what was decided about them."""

    library: Path
    source: Path  # the source tree
    faults: tuple[Fault, ...]  # sorted by name
    equivalent: Mapping[str, str]  # name: why no documented row forbids it
    unfired: Mapping[tuple[str, str], str]  # (name, backend): why it cannot fire
    same: Mapping[tuple[str, str], str]  # (name, backend): why it changes nothing
    first: Mapping[
        str, tuple[str, ...]
    ]  # operator: rows that are most likely to notice it
    lessons: Mapping[str, tuple[str, ...]]  # lesson: faults that it must notice
    everywhere: tuple[str, ...]  # legal answers that no test at all may flag
    problems: tuple[str, ...]  # where faults.json and the library's list disagree


def read(build: Path, source: Path | None = None) -> Catalogue:
    """All faults of a build, with the decisions of its source tree or of `source`.

    UsageError if the library is not built, HarnessError if a list is malformed.
    """
    library = (build / LIBRARY).resolve()
    if not library.is_file():
        raise UsageError(
            f"{library}: no faults here; build them with: cmake --build {build}"
        )
    source = source or ctest.source_folder(build)
    decided = _decided(source / DECISIONS)
    faults = [
        Fault(
            x["name"],
            x["kind"],
            x["function"],
            x.get("operator"),
            x["what"],
            x["gpus"],
            tuple(x["rows"]),
            x.get("profile"),
            x["file"],
        )
        for x in _listed(build / LISTER)
    ]
    names = {x.name for x in faults}
    faults += [x for x in of_model(source) if x.name not in names]
    there = {x.name for x in faults}
    return Catalogue(
        library=library,
        source=source,
        faults=tuple(sorted(faults, key=lambda x: x.name)),
        equivalent={x["fault"]: x["why"] for x in decided["equivalent"]},
        unfired=_somewhere(decided["expected_unfired"]),
        same=_somewhere(decided["same_as_driver"]),
        first={name: tuple(x) for name, x in decided["first"].items()},
        lessons={name: tuple(x) for name, x in decided["lessons"].items()},
        everywhere=tuple(decided["everywhere"]),
        problems=(
            *(
                f"{x.file}: {x.name} names no rows"
                for x in faults
                if x.kind == NAMED and not x.rows
            ),
            *(
                f"faults.json: there is no fault {name}"
                for name in dict.fromkeys(_mentioned(decided))
                if name not in there
            ),
            *(
                f"faults.json: there is no operator {name}"
                for name in decided["first"]
                if name not in {x.operator for x in faults}
            ),
        ),
    )


def known(build: Path) -> tuple[Fault, ...]:
    """The faults of a build. Without a fault library, these are only the faults
    inside the model.
    """
    if (build / LIBRARY).is_file():
        return read(build).faults
    return tuple(of_model(ctest.source_folder(build)))


def of_rows(build: Path, source: Path) -> tuple[Fault, ...]:
    """The faults with the rows that must notice them, also without a fault library in
    the build.
    """
    if (build / LIBRARY).is_file() and (build / LISTER).is_file():
        return read(build, source).faults
    return (
        *(
            Fault(x.name, NAMED, "", None, x.what, rows=x.rows)
            for x in declarations.declared(declarations.texts(source))
        ),
        *of_model(source),
    )


def of_model(source: Path) -> list[Fault]:
    """The faults that only the model can show; none if `source` has no list of them."""
    path = source / OF_MODEL
    if not path.exists():
        return []
    try:
        return [
            Fault(
                x["name"],
                MODEL,
                x["entry"],
                None,
                x["what"],
                rows=tuple(x["rows"]),
                profile=x.get("profile"),
            )
            for x in json.loads(path.read_text(encoding="utf-8"))
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HarnessError(f"{path}: {error}") from None


def _listed(program: Path) -> list[dict[str, Any]]:
    """The faults that the library itself lists."""
    try:
        done = subprocess.run(
            [program.resolve()], capture_output=True, text=True, timeout=60
        )
        entries = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HarnessError(f"{program}: {error}") from None
    except ValueError:
        raise HarnessError(f"{program}: printed no JSON") from None
    if not isinstance(entries, list):
        raise HarnessError(f"{program}: its output is not a JSON list")
    for entry in entries:
        if wrong := schema.error(entry, _LISTED, "fault"):
            raise HarnessError(f"{program}: {wrong}")
    names = [entry["name"] for entry in entries]
    for name in names:
        if names.count(name) > 1:
            raise HarnessError(f"{program}: {name} is in its list twice")
    return entries


def _decided(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HarnessError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise HarnessError(f"{path}: is not JSON: {error}") from None
    if wrong := schema.error(document, _DECIDED, "faults.json"):
        raise HarnessError(f"{path}: {wrong}")
    return document


def _somewhere(entries: list[dict[str, str]]) -> dict[tuple[str, str], str]:
    return {(x["fault"], x["where"]): x["why"] for x in entries}


def _mentioned(decided: dict[str, Any]) -> Sequence[str]:
    return [
        *(x["fault"] for x in decided["equivalent"]),
        *(x["fault"] for x in decided["expected_unfired"]),
        *(x["fault"] for x in decided["same_as_driver"]),
        *(name for names in decided["lessons"].values() for name in names),
        *decided["everywhere"],
    ]
