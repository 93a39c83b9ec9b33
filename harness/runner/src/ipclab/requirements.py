"""The catalogue of rows: what the suite holds a driver to.

A row lives in the room of its tests, conformance/NN_topic/rows.json, with one paragraph
for each TEST. conformance/catalogue.json has what all rooms share: groups, kinds,
sources. This module reads the rooms, or one file with all rows, which `ipclab rules
--json` writes (requirements.json).
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from ipclab import reader, schema
from ipclab.errors import HarnessError, UsageError

Row = dict[str, Any]
ROOM = "rows.json"  # in each conformance/NN_topic
SHARED = "catalogue.json"  # in conformance
DERIVED = "DERIVED"  # a row that follows from other rows and is judged like them
VERSION = re.compile(r"\d+\.\d+")  # a version of CUDA


def read(path: Path) -> dict[str, Row]:
    """The rows by id, of the folder conformance/ or of one file with all rows.

    Raises HarnessError if the catalogue is missing or wrong.
    """
    rows = document(path)["rows"]
    known = {row["id"]: row for row in rows}
    if len(known) < len(rows):
        twice = next(x["id"] for x in rows if known[x["id"]] is not x)
        raise HarnessError(f"{path}: {twice} stands twice")
    for row in rows:
        if wrong := _wrong(row, known):
            raise HarnessError(f"{path}: {wrong}")
    return known


def document(path: Path) -> dict[str, Any]:
    """The whole catalogue: `rows`, and what the rooms share.

    The rows of the folder conformance/ are in the order of their groups and numbers;
    each has `lessons`: the lesson of its room, and further ones. Raises HarnessError
    if a file is missing or is no catalogue.
    """
    if not path.is_dir():
        return _read(path, _ROWS)
    shared = _read(path / SHARED, _SHARED)
    rows = [row for room in sorted(path.glob(f"*/{ROOM}")) for row in _rows_of(room)]
    groups = list(shared["groups"])

    def place(row: Row) -> tuple[int, str, int]:
        group, _, number = row["id"].partition("-")
        at = groups.index(group) if group in groups else len(groups)
        return at, group, int(number)

    return shared | {"rows": sorted(rows, key=place)}


def text(path: Path) -> str:
    """The whole catalogue as one JSON text. It is the same for the same rooms."""
    return json.dumps(document(path), indent=1, ensure_ascii=False) + "\n"


def digest(path: Path) -> str | None:
    """The SHA-256 of the catalogue as one text, or of a file; None if there is none."""
    try:
        whole = text(path).encode() if path.is_dir() else path.read_bytes()
    except (OSError, HarnessError):
        return None
    return hashlib.sha256(whole).hexdigest()


def paragraphs(row: Row) -> dict[str, str]:
    """What each test of a row does and judges, by `Suite.Name`.

    A test in another room stands in the row as `NN_topic/Suite.Name`.
    """
    return {
        name.rpartition("/")[2]: told for name, told in row.get("tests", {}).items()
    }


def _rows_of(room: Path) -> list[Row]:
    return [
        {**row, "lessons": [room.parent.name, *row.get("further_lessons", [])]}
        for row in _read(room, _ROOM)["rows"]
    ]


def _wrong(row: Row, known: dict[str, Row]) -> str | None:
    """What is wrong with a row; None if nothing is."""
    name, origins = row["id"], row.get("follows_from", [])
    if (row["kind"] == DERIVED) != bool(origins):
        return (
            f"{name}: a row of kind {DERIVED} needs 'follows_from', "
            "the rows that it follows from; no other row may have it"
        )
    if "code" in row and (row["kind"], row["code"]) != ("ERROR", "documented"):
        return f"{name}: 'code' is 'documented', in rows of kind ERROR only"
    for field in ("since", "until"):
        if field in row and not VERSION.fullmatch(str(row[field])):
            return (
                f"{name}: '{field}' is a version of CUDA such as 13.5, not {row[field]}"
            )
    for origin in origins:
        if origin not in known or origin == name:
            return f"{name} follows from {origin}: no such row"
    return None


def _read(path: Path, of: schema.Schema) -> dict[str, Any]:
    try:
        return reader.document(path, of)
    except UsageError as error:
        raise HarnessError(str(error)) from None


_TEXT: schema.Schema = {"type": "string", "minLength": 1}
_TEXTS: schema.Schema = {"type": "object", "additionalProperties": _TEXT}
_NAMES: schema.Schema = {"type": "array", "items": _TEXT}
_PLAIN = ("statement", "kind", "code", "source", "since", "until")
_ROW: schema.Schema = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": r"^[A-Z]+-[0-9]+$"},
        "follows_from": _NAMES,
        "further_lessons": _NAMES,  # besides that of its room
        "tests": _TEXTS,
        **dict.fromkeys(_PLAIN, _TEXT),
    },
    "required": ["id", "statement", "kind"],
}


def _rows(row: schema.Schema) -> schema.Schema:
    return {
        "type": "object",
        "properties": {"rows": {"type": "array", "items": row}},
        "required": ["rows"],
    }


_ROWS = _rows(_ROW)
_ROOM = _rows(
    _ROW | {"additionalProperties": False, "required": [*_ROW["required"], "tests"]}
)
_SHARED: schema.Schema = {
    "type": "object",
    "properties": {"groups": _TEXTS, "kinds": _TEXTS, "sources": _TEXTS},
    "required": ["groups"],
}
