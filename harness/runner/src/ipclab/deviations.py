"""Where a named driver departs from the catalogue (conformance/deviations.json)."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import datetime
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipclab import schema
from ipclab.errors import HarnessError

Entry = dict[str, Any]
VENDORS = {"cuda": "nvidia", "model": "model"}  # by backend


def read_requirements(path: Path) -> dict[str, Entry]:
    """The rows of the catalogue by id; HarnessError if it cannot be read."""
    rows = _read(path, "rows")
    for row in rows:
        for field in ("id", "statement", "kind"):
            if not isinstance(row, dict) or not isinstance(row.get(field), str):
                raise HarnessError(f"{path}: a row has no '{field}'")
    return {row["id"]: row for row in rows}


def read_deviations(path: Path) -> list[Entry]:
    """The entries; none if there is no file; HarnessError if one is malformed."""
    if not path.exists():
        return []
    entries = _read(path, "deviations")
    for index, entry in enumerate(entries):
        if wrong := schema.error(entry, schema.DEVIATION, f"deviations[{index}]"):
            raise HarnessError(f"{path}: {wrong}")
        try:
            datetime.date.fromisoformat(entry["expires"])
        except ValueError:
            raise HarnessError(
                f"{path}: deviations[{index}].expires: {entry['expires']} is no date"
            ) from None
    return entries


@dataclass(frozen=True)
class Deviations:
    """The entries as they stand today, on this machine."""

    entries: list[Entry]
    backend: str
    driver: str | None  # version of the kernel module, such as 580.65.06
    gpus: list[str]  # names
    today: datetime.date

    def entry_for(self, requirement: str | None) -> Entry | None:
        """The entry that applies to a row here, unless it has expired."""
        for entry in self.applicable:
            if entry["requirement"] == requirement:
                return entry
        return None

    @property
    def applicable(self) -> list[Entry]:
        """The entries that apply here and have not expired."""
        return [
            x
            for x in self.entries
            if self._applies(x) and not expired(x, str(self.today))
        ]

    def problems(self, known: set[str]) -> list[str]:
        """Unknown names and expired entries: each fails the run."""
        found = []
        for entry in self.entries:
            name = entry["requirement"]
            if name not in known:
                found.append(f"deviations.json: {name} is no row of requirements.json")
            elif expired(entry, str(self.today)):
                found.append(
                    f"deviations.json: {name} expired on {entry['expires']}; "
                    f"ask {entry['owner']}"
                )
        return found

    def _applies(self, entry: Entry) -> bool:
        if VENDORS.get(self.backend) != entry["vendor"]:
            return False
        if entry["gpu"] is not None and not any(entry["gpu"] in x for x in self.gpus):
            return False
        span = entry["driver"]
        if span is None:
            return True
        return self.driver is not None and (
            _version(span["from"]) <= _version(self.driver) <= _version(span["to"])
        )


def expired(entry: Entry, day: str) -> bool:
    """Whether an entry no longer held on that day, such as 2027-06-30."""
    return bool(entry["expires"] < day)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"[0-9]+", text))


def _read(path: Path, key: str) -> list[Any]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))[key]
    except OSError as error:
        raise HarnessError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise HarnessError(f"{path}: is no JSON object with '{key}'") from None
    if not isinstance(rows, list):
        raise HarnessError(f"{path}: '{key}' is no list")
    return rows
