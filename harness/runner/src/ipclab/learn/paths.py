"""The paths through the exercises (samples/exercises/paths.toml)."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ipclab import schema
from ipclab.errors import HarnessError
from ipclab.learn.exercises import Exercise, find

FILE = Path("samples/exercises/paths.toml")

_TEXT: schema.Schema = {"type": "string", "minLength": 1}
_TEXTS: schema.Schema = {"type": "array", "items": _TEXT}
_FILE: schema.Schema = {
    "type": "object",
    "properties": {
        "block": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "properties": {
                    "title": _TEXT,
                    "lesson": _TEXT,
                    "show": _TEXTS,
                    "do": _TEXT,
                    "stumble": _TEXT,
                    "ask": {"type": "array", "items": _TEXTS},
                },
                "required": ["title", "show", "do", "stumble", "ask"],
                "additionalProperties": False,
            },
        },
        "path": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": _TEXT,
                    "title": _TEXT,
                    "minutes": {"type": "integer", "minimum": 1},
                    "who": _TEXT,
                    "steps": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {
                                "block": _TEXT,
                                "minutes": {"type": "integer", "minimum": 1},
                                "exercises": _TEXTS,
                            },
                            "required": ["block", "minutes"],
                            "additionalProperties": False,
                        },
                    },
                },
                "required": ["name", "title", "minutes", "who", "steps"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["block", "path"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Block:
    """One subject, as a teacher presents it."""

    name: str
    title: str
    lesson: str | None  # the lesson whose code and picture are shown
    show: tuple[str, ...]
    do: str
    stumble: str
    ask: tuple[tuple[str, str], ...]  # question and answer


@dataclass(frozen=True)
class Step:
    """A block in a path: its minutes and its exercises."""

    block: Block
    minutes: int
    exercises: tuple[Exercise, ...]


@dataclass(frozen=True)
class Way:
    """A path through the blocks."""

    name: str
    title: str
    minutes: int
    who: str
    steps: tuple[Step, ...]


def read(source: Path, known: Sequence[Exercise]) -> list[Way]:
    """All paths of a source tree.

    Raises HarnessError if the file is malformed, if the minutes of the steps do not add
    up to the minutes of the path, if the exercises of a step take longer than the step,
    if an exercise comes before an exercise that it needs, or if a step names an unknown
    block. Raises UsageError for an unknown exercise.
    """
    path = source / FILE
    try:
        facts = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise HarnessError(f"{path}: {error}") from None
    if wrong := schema.error(facts, _FILE, FILE.name):
        raise HarnessError(f"{path}: {wrong}")
    blocks = {
        name: Block(
            name,
            x["title"],
            x.get("lesson"),
            tuple(x["show"]),
            x["do"],
            x["stumble"],
            tuple((question, answer) for question, answer in x["ask"]),
        )
        for name, x in facts["block"].items()
    }
    found = []
    for x in facts["path"]:
        steps = []
        for y in x["steps"]:
            if y["block"] not in blocks:
                raise HarnessError(f"{path}: {x['name']}: no block {y['block']}")
            exercises = tuple(find(known, name) for name in y.get("exercises", ()))
            if sum(e.minutes for e in exercises) > y["minutes"]:
                raise HarnessError(
                    f"{path}: {x['name']}: the exercises of {y['block']} need more "
                    f"than {y['minutes']} minutes"
                )
            steps.append(Step(blocks[y["block"]], y["minutes"], exercises))
        total = sum(step.minutes for step in steps)
        if total != x["minutes"]:
            raise HarnessError(f"{path}: {x['name']}: its steps take {total} minutes")
        _check_order(path, x["name"], [e for step in steps for e in step.exercises])
        found.append(Way(x["name"], x["title"], total, x["who"], tuple(steps)))
    return found


def _check_order(path: Path, name: str, order: Sequence[Exercise]) -> None:
    """Raise HarnessError if an exercise comes before an exercise that it needs."""
    places = {exercise.number: place for place, exercise in enumerate(order)}
    for exercise in order:
        for needed in exercise.after:
            if places.get(needed, -1) > places[exercise.number]:
                raise HarnessError(
                    f"{path}: {name}: {exercise.number} comes before {needed}, whose "
                    "subject it needs"
                )
