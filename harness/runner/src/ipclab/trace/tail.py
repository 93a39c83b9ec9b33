"""Reads the files of a trace while processes write them."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from ipclab.trace import files
from ipclab.trace.files import Entry, Process

BLOCK = 256 * 1024  # bytes that are read at once
WAITING = 100_000  # lines of a file that wait to be read, at most
WHOLE = 200  # the last lines of a batch: no line of them is left out
# Calls that are left out if there are too many: they change nothing that is held.
FREQUENT = (
    "cuLaunch",
    "cuGraphLaunch",
    "cuMemcpy",
    "cuMemset",
    "cuStreamQuery",
    "cuEventQuery",
)


class Tail:
    """One file: its lines, in the order in which they appear."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.left_out = 0  # launches, copies and queries
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._offset = 0
        self._made = files.Lines(path)
        self._lines: deque[bytes] = deque()
        self._frequent: frozenset[bytes] = frozenset()

    @property
    def process(self) -> Process | None:
        """The process; None as long as its first line is not there."""
        return self._made.process

    @property
    def behind(self) -> int:
        """About how many lines are in the file that entries() has not returned."""
        left = os.fstat(self._file).st_size - self._offset - (1 << 20)
        return len(self._lines) + max(0, left) // 64  # a line has about 64 bytes

    def load(self) -> int:
        """Read what is new; return how many lines wait."""
        while len(self._lines) < WAITING:
            data = os.pread(self._file, BLOCK, self._offset)
            # A line whose first byte is zero is being written. After a process was
            # killed, such a line stays, and the lines after it are its last ones.
            end = 0 if data[:1] == b"\0" else data.find(b"\n\0") + 1
            if end == 0 and data[:1] != b"\0":
                end = data.rfind(b"\n") + 1
            if end == 0:
                break
            self._offset += end
            self._lines.extend(data[: end - 1].split(b"\n"))
        return len(self._lines)

    def entries(self, most: int) -> list[Entry]:
        """The next entries. If more than `most` lines wait, frequent calls are left
        out, and then at most `most` entries are returned.
        """
        lines: Iterable[bytes] = self._lines
        if len(self._lines) > most:
            lines = self._thinned(most)
        found = []
        for line in lines:
            if entry := self._made.entry(line):
                found.append(entry)
        if lines is self._lines:
            self._lines.clear()
        return found

    def _thinned(self, most: int) -> list[bytes]:
        if not self._frequent:  # the file declares its calls first
            self._frequent = self._made.numbers(FREQUENT)
        kept: list[bytes] = []
        while self._lines and len(kept) < most:
            line = self._lines.popleft()
            if (
                len(self._lines) >= WHOLE
                and line[:1] == b"["
                and line.split(b",", 5)[4] in self._frequent
            ):
                self.left_out += 1
            else:
                kept.append(line)
        return kept

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
