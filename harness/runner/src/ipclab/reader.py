"""Reads files that come from outside: results, records, traces, and files that a
person names. No other module opens such a file.

A file may be damaged or written to do harm. This module accepts regular files only, up
to a size, and JSON up to a depth, with numbers that a machine has and with whole
characters. Each error is a UsageError of one line. A document of another form is also
an error here: the caller names its schema.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ipclab import schema
from ipclab.errors import UsageError

MIB = 2**20
# The largest document that ipclab writes is a kill matrix with 2.3 MB. A document in
# memory takes up to 24 times its size.
DOCUMENT = 6 * MIB
# A whole suite with three attempts has 30 MB of records, and its longest line has
# 100 KB. Python needs up to 14 times the size of a line. MEMORY limits what the lines
# of one file take, as `_weight` estimates it; IPCLAB_MEMORY sets it.
LINE = 4 * MIB
MOST_LINES = 10**6
TOTAL = 512 * MIB
MEMORY = int(os.environ.get("IPCLAB_MEMORY") or 224) * MIB
DEPTH = 32
DIGITS = 20  # of the largest number of 64 bits
BLOCK = 256 * 1024
_ESCAPED_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
_HALF = re.compile(r"[\ud800-\udfff]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def parse(text: bytes) -> Any:
    """The value of a JSON text; ValueError, with a few words, if it has none."""
    try:
        value = _DECODER.decode(text.decode("utf-8"))
        half = _ESCAPED_HALF.search(text) and _HALF.search(
            json.dumps(value, ensure_ascii=False)
        )
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except json.JSONDecodeError:
        raise ValueError("is not JSON") from None
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    if half:
        raise ValueError("has half a character (a lone surrogate)")
    return value


def document(
    path: Path, of: schema.Schema, name: str = "", hint: str = ""
) -> dict[str, Any]:
    """The JSON object in a file, which keeps to a schema.

    `name` begins the message about a wrong field (default: the file's name). `hint`
    ends every message about what the file holds.
    """
    text = data(path)
    try:
        value = parse(text)
        if _deep(value):
            raise ValueError("is nested too deeply")
        if not isinstance(value, dict):
            raise ValueError("is not an object")
        if wrong := schema.error(value, of, name or path.name):
            raise ValueError(wrong)
    except ValueError as error:
        raise UsageError(f"{path}: {error}{hint}") from None
    return value


def text(path: Path, most: int = DOCUMENT) -> str:
    """A file of UTF-8."""
    try:
        return data(path, most).decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is not UTF-8") from None


def data(path: Path, most: int = DOCUMENT) -> bytes:
    """The bytes of a file."""
    with _opened(path, most) as stream:
        found = stream.read(most + 1)
    if len(found) > most:  # it has grown since
        raise _too_large(path)
    return found


def digest(path: Path, most: int) -> str:
    """The SHA-256 of a file."""
    found = hashlib.sha256()
    with _opened(path, most) as stream:
        while block := stream.read(BLOCK):
            found.update(block)
    return found.hexdigest()


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


class Lines:
    """The lines of a file, perhaps packed by gzip, and their seal."""

    def __init__(self, path: Path, memory: int | None = MEMORY) -> None:
        """`memory`: what the values of all lines may take; None for own files."""
        self.path = path
        self.seal = Seal()
        self._memory = memory

    def __iter__(self) -> Iterator[bytes]:
        """The lines, each with its newline; the last line may have none."""
        rest: list[bytes] = []
        count = held = weight = 0
        for block in self._blocks():
            *whole, last = block.split(b"\n")
            for part in whole:
                line = b"".join([*rest, part, b"\n"])
                rest, held = [], 0
                count += 1
                weight += _weight(line)
                if self._memory is not None:
                    if len(line) > LINE or count > MOST_LINES:
                        raise _too_large(self.path)
                    if weight > self._memory:
                        raise UsageError(
                            f"{self.path}: takes too much memory; IPCLAB_MEMORY=MB "
                            "raises the limit"
                        )
                yield line
            # A trace may end with megabytes of zeros: space that was never used.
            rest.append(last if last.strip(b"\0") else last[:1])
            held += len(rest[-1])
            if self._memory is not None and held > LINE:
                raise _too_large(self.path)
        if held:
            yield b"".join(rest)

    def drain(self) -> dict[str, Any]:
        """The seal of the whole file; no line is kept."""
        for _ in self._blocks():
            pass
        return self.seal.document

    def _blocks(self) -> Iterator[bytes]:
        self.seal = Seal()
        most = TOTAL if self._memory is not None else 2**62
        with _opened(self.path, most) as stream:
            blocks: Iterator[bytes] = iter(lambda: stream.read(BLOCK), b"")
            if self.path.suffix == ".gz":
                blocks = _unpacked(self.path, blocks)
            for block in blocks:
                self.seal.add(block)
                if self.seal.bytes > most:
                    raise _too_large(self.path)
                yield block


def packed_or_not(path: Path) -> Path:
    """This file, or the file of the same name with .gz; UsageError if both exist."""
    packed = path.with_name(f"{path.name}.gz")
    try:
        there = [x for x in (path, packed) if x.exists()]
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    if len(there) == 2:
        raise UsageError(f"{path.parent}: {path.name} and {packed.name}; remove one")
    return there[0] if there else path


def plain(text: str, keep: str = "") -> str:
    """Text of a file for a terminal: what would control the terminal, or is no
    character, is replaced, except the characters of `keep`.
    """
    return _CONTROL.sub(
        lambda found: found[0] if found[0] in keep else "\N{REPLACEMENT CHARACTER}",
        text,
    )


@contextlib.contextmanager
def _opened(path: Path, most: int) -> Iterator[BinaryIO]:
    try:
        # O_NONBLOCK: a FIFO without a writer must not stop us.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise UsageError(f"{path}: is not a regular file")
            if status.st_size > most:
                raise _too_large(path)
            yield stream
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:  # a name with a zero byte
        raise UsageError(f"{path!r}: {error}") from None


def _unpacked(path: Path, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The bytes of one gzip member. The module gzip would read a long header byte by
    byte, for minutes.
    """
    unpack = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        for block in blocks:
            while block and not unpack.eof:
                if made := unpack.decompress(block, BLOCK):
                    yield made
                block = unpack.unconsumed_tail
        wrong = not unpack.eof or bool(unpack.unused_data)
    except zlib.error:
        wrong = True
    if wrong:
        raise UsageError(f"{path}: is not a complete gzip file")


def _weight(line: bytes) -> int:
    """About the memory that the values of a line take, in bytes."""
    return len(line) + 28 * line.count(b'"') + 16 * line.count(b"{")


def _deep(value: Any) -> bool:
    """Whether a value is nested more deeply than any document of ipclab."""
    level = [[value]]
    for _ in range(DEPTH):
        level = [
            list(x.values()) if isinstance(x, dict) else x
            for parts in level
            for x in parts
            if isinstance(x, dict | list)
        ]
    return bool(level)


def _too_large(path: Path) -> UsageError:
    return UsageError(f"{path}: is larger than any such file of ipclab")


def _number(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        if len(text) > DIGITS + (kind is float) * DIGITS:
            raise ValueError("has a number that is too long")
        value = kind(text)
        if not math.isfinite(value):
            raise ValueError("has a number that is too large")
        return value

    return convert


def _no_number(text: str) -> Any:
    raise ValueError(f"has {text}, which is no number")


_DECODER = json.JSONDecoder(
    parse_int=_number(int), parse_float=_number(float), parse_constant=_no_number
)
