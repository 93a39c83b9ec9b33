"""A student's folder: copies of the exercises, and the progress.

    01_first_handle/exercise.cu   the copy that the student changes
    progress.json                 for each exercise: when it passed, its runs and hints
    compile_flags.txt             for an editor that uses clangd
    .work/                        programs; may be deleted at any time

Nothing outside the folder is written, except temporary folders. So several people on
one host, each with their own folder, do not disturb each other.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ipclab import reader, schema
from ipclab.errors import HarnessError, UsageError
from ipclab.learn.exercises import SOURCE, Exercise

FILE = "progress.json"
FORMAT = 1
DEFAULT = Path("~/ipclab-exercises")
_STATE: schema.Schema = {
    "type": "object",
    "properties": {
        "begun": {"type": "string"},
        "passed": {"type": ["string", "null"]},
        "runs": {"type": "integer", "minimum": 0},
        "hints": {"type": "integer", "minimum": 0},
        "shown": {"type": "boolean"},
        "digest": {"type": ["string", "null"]},
        "last": {"type": ["string", "null"]},
        "handed": {"type": ["string", "null"]},
    },
    "required": ["begun", "passed", "runs", "hints", "shown", "digest", "last"],
    "additionalProperties": False,
}
_FILE: schema.Schema = {
    "type": "object",
    "properties": {
        "format": {"const": FORMAT},
        "path": {"type": "string"},
        "exercises": {"type": "object", "additionalProperties": _STATE},
    },
    "required": ["format", "exercises"],
    "additionalProperties": False,
}


def now() -> str:
    """The current time as text: UTC, whole seconds."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


@dataclass
class State:
    """What a student has done with one exercise."""

    begun: str = field(default_factory=now)
    passed: str | None = None  # when it first passed
    runs: int = 0  # until the exercise passed
    hints: int = 0  # hints that were shown
    shown: bool = False  # whether a solution was shown before it passed
    digest: str | None = None  # digest of the source that passed last
    last: str | None = None  # the kind of the last complaint
    handed: str | None = None  # digest of what was handed out


class Folder:
    """A student's folder; created if it does not exist."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError if the folder cannot be used."""
        self.path = path.expanduser().resolve()
        if any((x / "conformance/catalogue.json").is_file() for x in _up(self.path)):
            raise UsageError(
                f"{self.path} lies in the repository: name another folder with --folder"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{self.path}: {error.strerror}") from None

    @property
    def work(self) -> Path:
        """The folder for programs."""
        return self.path / ".work"

    def source(self, exercise: Exercise) -> Path:
        """The student's copy. The exercise is handed out if there is no copy yet."""
        path = self.path / exercise.name / SOURCE
        if not path.is_file():
            self._hand_out(path, exercise)
        return path

    def upgrade(self, exercise: Exercise) -> str:
        """Handle an exercise that has changed since it was handed out. If the student
        has not changed the copy, the copy is replaced; otherwise it stays. Returns a
        message for the student; it is empty if there is nothing new.
        """
        path = self.path / exercise.name / SOURCE
        state = self.read().get(exercise.name)
        if state is None or state.handed is None or not path.is_file():
            return ""
        if state.handed == _digest(exercise.source.encode()):
            return ""
        if digest(path) == state.handed:
            self._hand_out(path, exercise)
            return "There is a new version of the exercise, and your copy has it now."
        return (
            "There is a new version of the exercise. Your copy stays as it is; a reset "
            "hands out the new version and keeps yours beside it."
        )

    def has(self, exercise: Exercise) -> bool:
        """Whether the exercise was handed out."""
        return (self.path / exercise.name / SOURCE).is_file()

    def reset(self, exercise: Exercise) -> Path | None:
        """Hand out an exercise again.

        If the student has changed the old copy, it is kept. Returns where it is kept,
        or None.
        """
        path = self.path / exercise.name / SOURCE
        kept = None
        if path.is_file() and path.read_text(encoding="utf-8") != exercise.source:
            free = (path.with_name(f"{SOURCE}.{x}") for x in itertools.count(1))
            kept = next(x for x in free if not x.exists())
            path.replace(kept)
        self._hand_out(path, exercise)
        return kept

    def _hand_out(self, path: Path, exercise: Exercise) -> None:
        _write(path, exercise.source)
        with self.change(exercise) as state:
            state.handed = _digest(exercise.source.encode())

    def read(self) -> dict[str, State]:
        """The state of each exercise that was begun.

        Raises HarnessError if the file is damaged. A damaged file is never overwritten.
        """
        return read(self.path / FILE)

    @property
    def way(self) -> str | None:
        """The path that the student has chosen; None: no path was chosen."""
        document = _document(self.path / FILE)
        return document.get("path") if document else None

    def choose(self, way: str) -> None:
        """Use this path from now on."""
        with self._locked():
            self._save(self.read(), way)

    @contextlib.contextmanager
    def change(self, exercise: Exercise) -> Iterator[State]:
        """Change the state of one exercise; other commands wait until it is saved."""
        with self._locked():
            states = self.read()
            state = states.setdefault(exercise.name, State())
            yield state
            self._save(states, self.way)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        path = self.path / ".lock"
        try:
            lock = path.open("w")
        except OSError as error:
            raise HarnessError(f"{path}: {error.strerror}") from None
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _save(self, states: dict[str, State], way: str | None) -> None:
        document: dict[str, Any] = {"format": FORMAT}
        if way is not None:
            document["path"] = way
        document["exercises"] = {name: asdict(states[name]) for name in sorted(states)}
        _write(self.path / FILE, json.dumps(document, indent=1) + "\n")

    def flags(self, options: list[str]) -> None:
        """Write the compiler's options for an editor."""
        text = "\n".join(options) + "\n"
        path = self.path / "compile_flags.txt"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            _write(path, text)


def read(path: Path) -> dict[str, State]:
    """The states in a progress file; empty if there is no file. Raises HarnessError if
    it is damaged.
    """
    document = _document(path)
    if document is None:
        return {}
    return {name: State(**x) for name, x in document["exercises"].items()}


def _document(path: Path) -> dict[str, Any] | None:
    """The contents of a progress file, checked against the schema; None if there is no
    file.
    """
    if not path.exists() and not path.is_symlink():
        return None
    try:
        return reader.document(path, _FILE, FILE, "; move it away to begin again")
    except UsageError as error:
        raise HarnessError(str(error)) from None


def digest(path: Path) -> str:
    """The digest of a source file, to recognise the source that passed."""
    return _digest(path.read_bytes())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _up(path: Path) -> list[Path]:
    return [path, *path.parents]


def _write(path: Path, text: str) -> None:
    """Replace the file as a whole: a crash or a full disk does not damage it."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise HarnessError(f"{path}: {error.strerror}") from None
