"""The results folder: whole files by rename, records line by line.

A reader, or the next run after a power cut, never takes half of something for
all of it.
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
from pathlib import Path
from typing import Any

from ipclab import records
from ipclab.errors import HarnessError, UsageError


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

    def __init__(self, folder: Path) -> None:
        """Makes the folder. UsageError if it already holds something."""
        self.folder = folder
        self.lines = folder / "records.jsonl"
        self._seal, self._bytes, self._count = hashlib.sha256(), 0, 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise UsageError(f"{folder}: holds results already; name another")
            self.lines.touch()
        except OSError as error:
            raise UsageError(f"{folder}: {error.strerror}") from None

    def write(self, name: str, text: str) -> None:
        """Write a whole file of this folder."""
        write(self.folder / name, text)

    def append(self, record: records.Record) -> None:
        """Add one record; what could be written of a failed one is cut off again."""
        data = append(self.lines, record)
        self._seal.update(data)
        self._bytes += len(data)
        self._count += 1

    @property
    def seal(self) -> dict[str, Any]:
        """What records.jsonl must be (as `manifest.of_records`).

        Of what was appended, not of what the file holds now.
        """
        return {
            "count": self._count,
            "bytes": self._bytes,
            "sha256": self._seal.hexdigest(),
        }

    def link_latest(self) -> None:
        """Let results/latest lead to this folder."""
        draft = self.folder.with_name(f".latest.{os.getpid()}")
        try:
            draft.symlink_to(self.folder.name)
            draft.replace(self.folder.with_name("latest"))
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise _cannot(self.folder.with_name("latest"), error) from None


def append(path: Path, line: dict[str, Any]) -> bytes:
    """Add one JSON line to a file and return its bytes.

    What could be written of a failed one is cut off again. HarnessError.
    """
    data = (json.dumps(line, ensure_ascii=False) + "\n").encode()
    try:
        with path.open("ab", buffering=0) as stream:
            end = stream.tell()
            try:
                rest = memoryview(data)
                while rest:  # after a short write the next one says why
                    rest = rest[stream.write(rest) :]
                os.fsync(stream.fileno())
            except OSError:
                with contextlib.suppress(OSError):
                    stream.truncate(end)
                raise
    except OSError as error:
        raise _cannot(path, error) from None
    return data


def write(path: Path, text: str) -> None:
    """Write a whole file: a temporary one, fsync, rename. HarnessError if it fails."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        with draft.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
        _keep_names(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise _cannot(path, error) from None


def read(folder: Path) -> tuple[dict[str, Any], list[records.Record], str | None]:
    """run.json, the records, and what is wrong with the records, if anything.

    Raises UsageError if this is no results folder.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    path = folder / "run.json"
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; no results here") from None
    except ValueError:
        raise UsageError(f"{path}: is no JSON") from None
    for field, kind in (
        ("state", str),
        ("fingerprint", dict),
        ("requirements", dict),
        ("settings", dict),
        ("problems", list),
    ):
        if not isinstance(run, dict) or not isinstance(run.get(field), kind):
            raise UsageError(f"{path}: has no good '{field}'")
    found, wrong = records.parse_lines(read_lines(folder))
    return run, found, wrong and f"records.jsonl: {wrong}"


def read_lines(folder: Path) -> bytes:
    """The bytes of records.jsonl, or of records.jsonl.gz as it was before gzip.

    Raises UsageError if there is neither, or both.
    """
    plain, packed = folder / "records.jsonl", folder / "records.jsonl.gz"
    if plain.exists() and packed.exists():
        raise UsageError(f"{folder}: records.jsonl and records.jsonl.gz; remove one")
    path = packed if packed.exists() else plain
    try:
        return (
            gzip.decompress(path.read_bytes()) if path == packed else path.read_bytes()
        )
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise UsageError(f"{path}: is no whole gzip file") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


def _keep_names(folder: Path) -> None:
    """After a power cut the folder shall not have the old file again.

    Where a file system cannot promise that, the old file is a good one, too.
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
