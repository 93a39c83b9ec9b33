"""Which rows a recorded GPU has judged (conformance/judged.json).

A row that only the reference model has judged says nothing about a driver, so each
list of rows tells the two apart. The file is written from docs/results by
`ipclab catalogue INCLUDE --runs docs/results/*/ --write`, because reading those records
takes longer than showing a row.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

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


def on_model_only(row: Mapping[str, Any], judged: frozenset[str]) -> bool:
    """Whether a row is judged, and no recorded GPU has judged it."""
    return row["kind"] not in UNJUDGED_KINDS and row["id"] not in judged


def of_runs(folders: Iterable[Path]) -> list[str]:
    """The rows that these runs judged on GPUs, sorted.

    Each of `folders` has the results of a run. Raises UsageError if one has none.
    """
    from ipclab import records, results  # not for `ipclab rules`, which must be quick

    found: set[str] = set()
    for folder in folders:
        contents = results.read(folder)
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
    document = {"about": ABOUT, "judged": of_runs(folders)}
    path = conformance / NAME
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
