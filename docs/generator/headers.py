"""Where CUDA's headers document a function: lines of a file -> its name.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

FILES = {"RT": "cuda_runtime_api.h", "DRV": "cuda.h"}
PLACE = re.compile(r"\b(RT|DRV):((?:\d+(?:-\d+)?(?:, )?)+)")
DECLARED = re.compile(r"^\s*(?:extern|CUresult CUDAAPI).*?\b(cu(?:da)?[A-Z]\w+)\s*\(")


class Headers:
    """The headers of a toolkit; `include` is their folder."""

    def __init__(self, include: Path) -> None:
        self._include = include

    def documented(self, source: str) -> list[str]:
        """The functions whose documentation a row's source names."""
        found: dict[str, None] = {}
        for file, places in PLACE.findall(source):
            for place in places.strip(", ").split(", "):
                first, _, last = place.partition("-")
                found |= dict.fromkeys(self._at(file, int(first), int(last or first)))
        return list(found)

    def _at(self, file: str, first: int, last: int) -> list[str]:
        lines = self._lines(file)
        names = [
            x[1] for line in lines[first - 1 : last] if (x := DECLARED.match(line))
        ]
        if names:
            return names
        for line in lines[last:]:  # a comment: what it is about follows it
            if match := DECLARED.match(line):
                return [match[1]]
            if line.startswith(("typedef", "#define", "}")):
                return []
        return []

    @functools.cache  # noqa: B019
    def _lines(self, file: str) -> list[str]:
        return (self._include / FILES[file]).read_text().splitlines()
