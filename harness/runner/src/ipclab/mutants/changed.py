"""Which faults concern what changed in the source tree since a revision of git.

CI runs these faults, and a fixed sample of the others; ci/nightly runs all.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from ipclab import declarations, requirements
from ipclab.errors import UsageError
from ipclab.mutants import faults
from ipclab.mutants.faults import Fault

_ROOM = re.compile(r"conformance/[^/]+/rows\.json")
_COVERS = re.compile(r'\bcovers\("([A-Z0-9-]+)"\)')


def concerned(
    source: Path, revision: str, known: Sequence[Fault], most: int
) -> tuple[list[Fault], int]:
    """At most `most` of the faults that concern a change, and how many concern one.

    A fault concerns a change if its declaration or what this uses, one of its rows, or
    a test file with one of its rows changed; an operator also if its file changed.
    UsageError if `source` is no checkout of git or has no such revision.
    """
    changed = set(_git(source, "diff", "--name-only", revision, "--").split())
    rows = {
        row
        for name in changed
        if name.startswith("conformance/") and (source / name).suffix == ".cu"
        if (source / name).is_file()
        for row in _COVERS.findall((source / name).read_text(encoding="utf-8"))
    }
    rows |= _differing(source, revision, filter(_ROOM.fullmatch, changed))
    declared = set()
    if any(map(declarations.has, changed)):
        now = declarations.digests(declarations.texts(source))
        paths = _git(source, "ls-tree", "-r", "--name-only", revision).splitlines()
        before = declarations.digests(
            {
                x: _git(source, "show", f"{revision}:{x}")
                for x in paths
                if declarations.has(x)
            }
        )
        declared = {x for x in now if now[x] != before.get(x)}
    found = [
        fault
        for fault in known
        if rows.intersection(fault.rows)
        or fault.name in declared
        or (fault.kind == faults.OPERATOR and fault.file in changed)
    ]
    return sample(found, most), len(found)


def sample(known: Sequence[Fault], number: int) -> list[Fault]:
    """`number` of the faults: always the same ones, whatever faults come or go."""

    def place(fault: Fault) -> bytes:
        return hashlib.sha256(fault.name.encode()).digest()

    return sorted(sorted(known, key=place)[:number], key=lambda x: x.name)


def _differing(source: Path, revision: str, rooms: Iterable[str]) -> set[str]:
    """The rows in these files that are new or differ from the revision. A row that
    only moved to another file does not differ.
    """
    now: dict[str, requirements.Row] = {}
    before: dict[str, requirements.Row] = {}
    for path in rooms:
        if (source / path).is_file():
            now |= _by_id((source / path).read_text(encoding="utf-8"))
        with contextlib.suppress(UsageError, ValueError):  # no such file there
            before |= _by_id(_git(source, "show", f"{revision}:{path}"))
    return {name for name, row in now.items() if before.get(name) != row}


def _by_id(text: str) -> dict[str, requirements.Row]:
    return {row["id"]: row for row in json.loads(text)["rows"]}


def _git(source: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", source, *arguments], capture_output=True, text=True, timeout=60
    )
    if done.returncode:
        raise UsageError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout
