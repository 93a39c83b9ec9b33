"""The results folder: records are added line by line, other files appear by a rename.

So a reader never finds a part of such a file, not even after a power cut. Only the last
line of the records may be cut off.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipclab import reader, records, schema
from ipclab.errors import HarnessError, UsageError


def default_folder(what: str = "", top: str = "results") -> Path:
    """A new name: results/<UTC time>-<host>-<process id><what>.

    Two nodes that share a folder, or two processes, never get the same name. Whoever
    makes the folder makes it exclusively.
    """
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    host = re.sub(r"[^A-Za-z0-9.-]", "_", platform.node()) or "host"
    folder, number = Path(top) / f"{stamp}-{host}-{os.getpid()}{what}", 1
    while folder.exists():
        number += 1
        folder = Path(top) / f"{stamp}-{host}-{os.getpid()}{what}-{number}"
    return folder


def make_folder(folder: Path, hint: str = "name another folder") -> None:
    """Make an empty folder that only its owner may read, because results have names,
    addresses and paths of a machine.

    A folder that exists keeps its mode. Raises UsageError if the folder is not empty or
    cannot be made.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"{folder}: is not empty; {hint}")
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}") from None


class Results:
    """The folder of one run, open for writing."""

    def __init__(self, folder: Path, resume: bool = False) -> None:
        """Make the folder. With `resume`, open the folder of a run that was stopped,
        and remove an incomplete last line of its records.

        Raises UsageError if the new folder cannot be made or is not empty, or if the
        records of the old folder cannot be read.
        """
        self.folder = folder
        self.lines = folder / "records.jsonl"
        self._seal = reader.Seal()
        if resume:
            self._seal.add(b"".join(whole_lines(self.lines)))
            return
        make_folder(folder)
        try:
            # Of two runs that begin with the same folder, one makes this file.
            os.close(os.open(self.lines, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except OSError as error:
            raise UsageError(f"{self.lines}: {error.strerror}") from None

    def write(self, name: str, text: str) -> None:
        """Write a whole file of this folder."""
        write(self.folder / name, text)

    def append(self, record: records.Record) -> None:
        """Add one record.

        If that fails, removes the part that was written and raises HarnessError.
        """
        data = append(self.lines, record)
        self._seal.add(data)

    def write_records(self, found: list[records.Record]) -> None:
        """Write all records of a new folder in one step."""
        data = b"".join(_line(record) for record in found)
        write(self.lines, data.decode())
        self._seal.add(data)

    @property
    def seal(self) -> dict[str, Any]:
        """The seal of the records that were appended; the file itself is not read."""
        return self._seal.document

    def link_latest(self) -> None:
        """Let the link `latest` beside this folder point to this folder."""
        draft = self.folder.with_name(f".latest.{os.getpid()}")
        try:
            draft.symlink_to(self.folder.name)
            draft.replace(self.folder.with_name("latest"))
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise _cannot(self.folder.with_name("latest"), error) from None


def whole_lines(path: Path) -> list[bytes]:
    """The lines of our own file; an incomplete last line is removed from the file.

    Raises UsageError if the file cannot be read or changed.
    """
    try:
        lines = list(reader.Lines(path, memory=None))
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
            os.truncate(path, sum(map(len, lines)))
    except UsageError as error:
        raise UsageError(f"{error}; nothing to resume") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; nothing to resume") from None
    return lines


def append(path: Path, line: dict[str, Any]) -> bytes:
    """Add one JSON line to a file and return the bytes of the line.

    If that fails, removes the part that was written and raises HarnessError.
    """
    data = _line(line)
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "ab", buffering=0) as stream:
            end = stream.tell()
            try:
                rest = memoryview(data)
                while rest:  # after a short write the next write fails with the reason
                    rest = rest[stream.write(rest) :]
                os.fsync(stream.fileno())
            except OSError:
                with contextlib.suppress(OSError):
                    stream.truncate(end)
                raise
    except OSError as error:
        raise _cannot(path, error) from None
    return data


def _line(line: dict[str, Any]) -> bytes:
    return (json.dumps(line, ensure_ascii=False) + "\n").encode()


def write_into(path: Path, text: str) -> None:
    """Write a file that a person has named, such as a page or /dev/stdout. If it is
    new, only its owner may read it.

    Raises HarnessError if that fails.
    """
    try:
        how = os.O_CREAT | os.O_TRUNC | os.O_WRONLY
        with os.fdopen(os.open(path, how, 0o600), "w", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise HarnessError(f"{path}: {error.strerror}") from None


def write(path: Path, text: str) -> None:
    """Write a whole file that only its owner may read: write a temporary file, call
    fsync, rename the file.

    Raises HarnessError if one of these fails.
    """
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.unlink(missing_ok=True)
        # O_EXCL does not follow an existing link.
        descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
        _keep_names(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise _cannot(path, error) from None


@dataclass(frozen=True)
class Contents:
    """What a results folder holds."""

    run: dict[str, Any]  # run.json
    records: list[records.Record]  # the valid records
    wrong: str | None  # what is wrong with the records, if anything
    seal: dict[str, Any]  # of records.jsonl, as in `Results.seal`


def read(
    folder: Path, memory: int | None = reader.MEMORY, timelines: bool = True
) -> Contents:
    """A results folder; it may come from another machine. `memory` limits what the
    records may take; None: the run is our own. Without `timelines` the records have
    none.

    Raises UsageError if this is not a results folder of this version.
    """
    run = read_run(folder)
    lines = record_lines(folder, memory=memory)
    found, wrong = records.parse_lines(lines, timelines)
    seal = lines.drain() if wrong else lines.seal.document
    return Contents(run, found, wrong and f"records.jsonl: {wrong}", seal)


def read_run(folder: Path) -> dict[str, Any]:
    """run.json of a results folder; UsageError if it cannot be read or is not valid."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    hint = "; was it made by another version of ipclab?"
    return reader.document(folder / "run.json", schema.RUN, hint=hint)


def record_lines(
    folder: Path, name: str = "records.jsonl", memory: int | None = reader.MEMORY
) -> reader.Lines:
    """The lines of the file `name`, or of `name`.gz."""
    return reader.Lines(reader.packed_or_not(folder / name), memory)


def _keep_names(folder: Path) -> None:
    """Make sure that a power cut does not bring back the old file.

    Some file systems cannot promise this. On such a file system the old file may come
    back; the old file is also valid.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cannot(path: Path, error: OSError) -> HarnessError:
    return HarnessError(
        f"{path}: {error.strerror or error}; nothing half-written is kept"
    )
