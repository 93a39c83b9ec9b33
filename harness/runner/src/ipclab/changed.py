"""Which faults concern what changed in the source tree since a revision of git.

CI runs these faults, and a fixed sample of the others; ci/nightly runs all.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ipclab import declarations, faults
from ipclab.errors import UsageError
from ipclab.faults import Fault

ROWS = "conformance/requirements.json"
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
    if ROWS in changed:
        rows |= _differing(source, revision, ROWS, "rows", "id")
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


def _differing(
    source: Path, revision: str, path: str, table: str, key: str
) -> set[str]:
    """The keys of the table's entries that are new or differ from the revision."""
    now = json.loads((source / path).read_text(encoding="utf-8"))
    try:
        old: dict[str, Any] = json.loads(_git(source, "show", f"{revision}:{path}"))
    except (UsageError, ValueError):  # the revision has no such file
        old = {}
    before = {entry[key]: entry for entry in old.get(table, ())}
    return {entry[key] for entry in now[table] if before.get(entry[key]) != entry}


def _git(source: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", source, *arguments], capture_output=True, text=True, timeout=60
    )
    if done.returncode:
        raise UsageError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout
