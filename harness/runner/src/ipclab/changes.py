"""Which mutants a change concerns, from git's list of changed files.

The rules are few and lean to the safe side: a file that no rule knows concerns
every mutant.

- lesson NN (`samples/NN_topic`, `conformance/NN_topic`): the mutants of its rows;
- `mutants.json`, `requirements.json`: those whose entry, or whose row, is another;
- a source of the model: the mutants that it names, or named; all if it names none;
- text, tests of the harness and of the model: none.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ipclab.errors import HarnessError, UsageError

# Nothing that a conformance program, the model or the runner is made of.
NO_PROGRAM = (
    "*.md",
    "*.dox",
    "*.out",
    "docs/*",
    "LICENSE",
    ".gitignore",
    "harness/*/tests/*",
    "harness/trace/*",
    "harness/runner/src/ipclab/trace/*",
    "harness/model/*bench/*",
    "conformance/peers.json",
)
LESSON = re.compile(r"(?:samples|conformance)/([0-9][0-9]_\w+)/")
MUTANTS = "harness/model/mutants.json"
REQUIREMENTS = "conformance/requirements.json"
MODEL = "harness/model/"
QUOTED = re.compile(r'"([a-z0-9-]+)"')


def named(*sources: str) -> set[str]:
    """What may be the name of a mutant in C++."""
    return {name for text in sources for name in QUOTED.findall(text)}


class Changes:
    """What differs between a commit and the working tree."""

    def __init__(self, source: Path, base: str) -> None:
        """Asks git. `base` is where the branch left it: its merge base counts.

        UsageError on a name that git does not know, or no repository.
        """
        self._source = source
        self._base = self._git(f"{base}: ", "merge-base", base, "HEAD").strip()
        tracked = self._git("", "diff", "--name-only", "-z", "--no-renames", self._base)
        new = self._git("", "ls-files", "-z", "--others", "--exclude-standard")
        self.files = sorted({x for x in (tracked + new).split("\0") if x})

    def concerned(
        self, mutants: dict[str, set[str]], rows_of: Callable[[str], set[str]]
    ) -> set[str]:
        """The names of the mutants that the changed files concern.

        `mutants` are the rows of each by name, `rows_of` tells a lesson's rows.
        """
        found: set[str] = set()
        for file in self.files:
            rule = self._rule(file, set(mutants), rows_of)
            if rule is None:
                return set(mutants)
            names, rows = rule
            found |= {x for x, its in mutants.items() if x in names or its & rows}
        return found

    def _rule(
        self, file: str, known: set[str], rows_of: Callable[[str], set[str]]
    ) -> tuple[set[str], set[str]] | None:
        """Mutants and rows that a file concerns; None: it may concern any."""
        if any(fnmatch(file, pattern) for pattern in NO_PROGRAM):
            return set(), set()
        if lesson := LESSON.match(file):
            return set(), rows_of(lesson[1])
        if file == MUTANTS:
            return self._entries(file, "name", lambda x: x), set()
        if file == REQUIREMENTS:
            return set(), self._entries(file, "id", lambda x: x["rows"])
        if file.startswith(MODEL):
            texts = self._before(file), self._now(file)
            names = known & named(*texts)
            return (names, set()) if names else None
        return None

    def _entries(self, file: str, key: str, rows: Callable[[Any], Any]) -> set[str]:
        """The keys of a JSON file's entries that are new or not as they were."""
        try:
            before, now = (
                {x[key]: x for x in rows(json.loads(text))} if text else {}
                for text in (self._before(file), self._now(file))
            )
        except (ValueError, KeyError, TypeError) as error:
            raise HarnessError(f"{file}: {error}") from None
        return {x for x in before | now if before.get(x) != now.get(x)}

    def _before(self, file: str) -> str:
        listed = self._git("", "ls-tree", "--name-only", self._base, "--", file)
        return self._git("", "show", f"{self._base}:{file}") if listed else ""

    def _now(self, file: str) -> str:
        path = self._source / file
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def _git(self, about: str, *arguments: str) -> str:
        try:
            done = subprocess.run(
                ["git", "-C", str(self._source), *arguments],
                capture_output=True,
                text=True,
                timeout=60,
            )
        except FileNotFoundError:
            raise UsageError("--changed needs git; install it") from None
        if done.returncode != 0:
            said = (done.stderr.strip() or "no common commit").splitlines()[0]
            raise UsageError(f"--changed: {about}{said}")
        return done.stdout
