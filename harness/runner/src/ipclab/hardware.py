"""Which rows a recorded GPU has judged (conformance/judged.json).

A row that only the reference model has judged says nothing about a driver, so each
list of rows tells the two apart. The file is written from docs/results by
`ipclab catalogue INCLUDE --runs docs/results/*/ --write`, because reading those records
takes longer than showing a row.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from pathlib import Path

from ipclab import packed
from ipclab.deviations import UNJUDGED_KINDS
from ipclab.errors import HarnessError, UsageError

NAME = "judged.json"
ABOUT = (
    "The rows that a recorded GPU has judged. Written by `ipclab catalogue INCLUDE "
    "--runs docs/results/*/ --write`."
)
ON_MODEL = "judged on the reference model only"


def read(conformance: Path) -> frozenset[str]:
    """The rows of judged.json; empty if the folder has no such file.

    Raises HarnessError if the file is wrong.
    """
    path = conformance / NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError) as error:
        raise HarnessError(f"{path}: cannot be read ({error})") from None
    rows = document.get("judged") if isinstance(document, dict) else None
    if not isinstance(rows, list) or not all(isinstance(x, str) for x in rows):
        raise HarnessError(f"{path}: has no list 'judged'")
    return frozenset(rows)


def known() -> frozenset[str]:
    """The rows of this command's judged.json: of its source tree, or of the wheel."""
    source = packed.source(packed.SUITE) or packed.TREE
    return read(source / "conformance")


def on_model_only(name: str, kind: str, judged: frozenset[str]) -> bool:
    """Whether a row of this kind is judged, and no recorded GPU has judged it."""
    return kind not in UNJUDGED_KINDS and name not in judged


def of_runs(folders: Iterable[Path]) -> list[str]:
    """The rows that these runs judged on GPUs, sorted.

    Each of `folders` has the results of a run. Raises UsageError if one has none.
    """
    from ipclab import records, results  # not for `ipclab rules`, which must be quick

    found: set[str] = set()
    for folder in folders:
        contents = results.read(folder, timelines=False)
        if contents.wrong:
            raise UsageError(f"{folder}: {contents.wrong}")
        found.update(
            record["requirement"]
            for record in contents.records
            if record["requirement"]
            and record["backend"] == "cuda"
            and record["verdict"] in (*records.JUDGED, *records.FAILING)
            and record["verdict"] != "broken"
        )
    return sorted(found)


def write(conformance: Path, folders: Iterable[Path]) -> None:
    """Write judged.json from the results of runs.

    Raises UsageError if a folder has no results.
    """
    rows = textwrap.fill(", ".join(map(json.dumps, of_runs(folders))), 110)
    text = f'{{\n "about": {json.dumps(ABOUT)},\n "judged": [\n{rows}\n ]\n}}\n'
    (conformance / NAME).write_text(text, encoding="utf-8")
