"""The results folder: records are added line by line, other files appear by a rename.

So a reader never finds a part of such a file, not even after a power cut. Only the last
line of the records may be cut off.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import datetime
import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from ipclab import records, schema
from ipclab.errors import HarnessError, UsageError

# The records of a whole suite with three attempts have 10 MiB, their longest line has
# 100 KiB.
LARGEST = 256 * 2**20  # bytes
LONGEST_LINE = 16 * 2**20
MOST_LINES = 10**6


def default_folder(what: str = "") -> Path:
    """results/<UTC timestamp><what>, a name that is not taken yet."""
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    folder, number = Path("results") / f"{stamp}{what}", 1
    while folder.exists():
        number += 1
        folder = Path("results") / f"{stamp}{what}-{number}"
    return folder


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
        self._seal = Seal()
        if resume:
            self._seal.add(whole_lines(self.lines))
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise UsageError(
                    f"{folder}: holds results already; name another folder"
                )
            self.lines.touch()
        except OSError as error:
            raise UsageError(f"{folder}: {error.strerror}") from None

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


def whole_lines(path: Path) -> bytes:
    """The bytes of a file of lines; an incomplete last line is removed from the file.

    Raises UsageError if the file cannot be read or changed.
    """
    try:
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            with path.open("r+b") as stream:
                stream.truncate(len(whole))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; nothing to resume") from None
    return whole


def append(path: Path, line: dict[str, Any]) -> bytes:
    """Add one JSON line to a file and return the bytes of the line.

    If that fails, removes the part that was written and raises HarnessError.
    """
    data = _line(line)
    try:
        with path.open("ab", buffering=0) as stream:
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


def write(path: Path, text: str) -> None:
    """Write a whole file: write a temporary file, call fsync, rename the file.

    Raises HarnessError if one of these fails.
    """
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.unlink(missing_ok=True)  # "x" does not follow an existing link
        with draft.open("x", encoding="utf-8") as stream:
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


def read(folder: Path) -> Contents:
    """A results folder; it may come from another machine.

    Raises UsageError if this is not a results folder of this version.
    """
    if wrong := schema.error(_run(folder), schema.RUN, "run.json"):
        raise UsageError(
            f"{folder}: {wrong}; was it made by another version of ipclab?"
        )
    return read_unchecked(folder)


def read_unchecked(folder: Path) -> Contents:
    """The contents of a results folder without a check of run.json, for callers that
    make this check themselves.
    """
    run = _run(folder)
    with opened(folder) as stream:
        found, wrong = records.parse_lines(stream.lines())
        stream.finish()
    wrong = wrong and f"records.jsonl: {wrong}"
    return Contents(run, found, wrong, stream.seal.document)


def _run(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    path = folder / "run.json"
    try:
        if path.stat().st_size > LARGEST:
            raise UsageError(f"{path}: larger than any result of ipclab")
        run = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror}; the results cannot be read"
        ) from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path}: is not JSON") from None
    if not isinstance(run, dict):
        raise UsageError(f"{path}: is not an object")
    return run


def read_lines(folder: Path) -> tuple[list[bytes], dict[str, Any]]:
    """The lines of records.jsonl and their seal; the content of the lines is not
    checked.

    Raises UsageError if there is no such file, or if it is larger than that of any run.
    """
    with opened(folder) as stream:
        lines = list(stream.lines())
    return lines, stream.seal.document


class Seal:
    """The digest, the size and the number of lines that are added one by one."""

    def __init__(self) -> None:
        self._digest, self.bytes, self._count = hashlib.sha256(), 0, 0

    def add(self, data: bytes) -> None:
        """Add bytes to the digest."""
        self._digest.update(data)
        self.bytes += len(data)
        self._count += data.count(b"\n")

    @property
    def document(self) -> dict[str, Any]:
        """The value of `manifest.records` in run.json."""
        return {
            "count": self._count,
            "bytes": self.bytes,
            "sha256": self._digest.hexdigest(),
        }


class _Stream:
    """records.jsonl, unpacked; UsageError if it is larger than that of any run."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self.path = path
        self.seal = Seal()
        self._stream = stream

    def lines(self) -> Iterator[bytes]:
        """The lines, each with its newline."""
        count = 0
        while line := self._stream.readline(LONGEST_LINE + 1):
            count += 1
            if len(line) > LONGEST_LINE or count > MOST_LINES:
                raise self._too_large()
            self._add(line)
            yield line

    def finish(self) -> None:
        """Read the rest, only for the seal."""
        while data := self._stream.read(2**20):
            self._add(data)

    def _add(self, data: bytes) -> None:
        self.seal.add(data)
        if self.seal.bytes > LARGEST:
            raise self._too_large()

    def _too_large(self) -> UsageError:
        return UsageError(f"{self.path}: larger than any result of ipclab")


@contextlib.contextmanager
def opened(folder: Path, name: str = "records.jsonl") -> Iterator[_Stream]:
    """Open the file `name`, or `name`.gz as unpacked bytes.

    Raises UsageError if neither file or both files exist, or if a file is damaged.
    """
    plain, packed = folder / name, folder / f"{name}.gz"
    if plain.exists() and packed.exists():
        raise UsageError(f"{folder}: {plain.name} and {packed.name}; remove one")
    path = packed if packed.exists() else plain
    try:
        with path.open("rb") as stream:
            if path == plain:
                yield _Stream(path, stream)
            else:
                with gzip.open(stream) as unpacked:
                    yield _Stream(path, cast(BinaryIO, unpacked))
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise UsageError(f"{path}: is not a complete gzip file") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None


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
