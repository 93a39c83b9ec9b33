"""Known differences of a driver from the catalogue (conformance/deviations.json).

An entry excuses what was measured and nothing else: it names the test, each check that
failed, what that check saw, and the drivers and GPUs on which it was measured. If the
same test fails in any other way, the verdict is `violates`.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipclab import failures, reader, requirements, schema
from ipclab.errors import HarnessError, UsageError

Entry = dict[str, Any]
UNJUDGED_KINDS = ("OBSERVE", "UNDEF", "ADVICE")
NAME = "deviations.json"  # begins each message about an entry
PRECONDITION = "PRECONDITION"  # the caller's duty: only harm to others is judged
# What the documentation says about the answer that a test expects, by kind of the row.
BASIS = {
    "MUST": "documented: a sentence promises it",
    "ERROR": "inferred: the call must be refused, but no sentence names the code",
    PRECONDITION: "not promised: the caller must not do this; only harm is judged",
    requirements.DERIVED: "inferred from other rows",
    "LIMIT": "documented: a sentence describes this limit",
    "OBSERVE": "not documented: recorded, not judged",
    "UNDEF": "documented as undefined: recorded, not judged",
    "ADVICE": "documented as advice to programs: recorded, not judged",
}
SEVERITIES = (  # of an entry, the worst first
    "crash",
    "wrong data or disclosure",
    "hidden wait",
    "wrong number",
    "wrong code",
)
VENDORS = {"cuda": "nvidia", "model": "model"}  # the vendor of each backend


def basis(row: Entry) -> str:
    """What the documentation says about the answer that a row's tests expect."""
    if row.get("code") == "documented":
        return "documented: a sentence names the code"
    if origins := row.get("follows_from"):
        return f"inferred from {', '.join(origins)}"
    return BASIS.get(row["kind"], "unknown")


def does_not_hold(row: Entry, driver: str | None) -> str | None:
    """Why a row does not apply to a driver of this version of CUDA, such as 13.0; None
    if it applies.

    A row that is new in a toolkit has `since`; a row that a toolkit removed has
    `until`. If a driver does not report its version, all rows apply.
    """
    if driver is None:
        return None
    since, until = row.get("since"), row.get("until")
    if since and _version(driver) < _version(since):
        return f"documented since CUDA {since}; the driver is of CUDA {driver}"
    if until and _version(until) < _version(driver):
        return f"documented until CUDA {until}; the driver is of CUDA {driver}"
    return None


def read_deviations(path: Path) -> list[Entry]:
    """The entries; none if there is no file; HarnessError if one is malformed."""
    if not path.exists():
        return []
    entries = _read(path)
    for index, entry in enumerate(entries):
        where = f"deviations[{index}]"
        if wrong := schema.error(entry, schema.DEVIATION, where) or _unmeasured(entry):
            raise HarnessError(f"{path}: {wrong}")
        try:
            datetime.date.fromisoformat(entry["expires"])
        except ValueError:
            raise HarnessError(
                f"{path}: {where}.expires: {entry['expires']} is not a date"
            ) from None
    tests = [entry["test"] for entry in entries]
    for test in tests:
        if tests.count(test) > 1:
            raise HarnessError(f"{path}: {test} has two entries; make them one")
    return entries


def excuses(entry: Entry, line: dict[str, Any]) -> bool:
    """Whether an entry names every failure in the record of a test; False if the record
    has no failure.

    An entry for records of version 1 excuses its whole row.
    """
    if "failures" not in entry:
        return True
    return bool(line["failures"]) and unknown_failure(entry, line) is None


def unknown_failure(entry: Entry, line: dict[str, Any]) -> failures.Signature | None:
    """The first failure in the record of a test that an entry does not name; None if it
    names all of them.
    """
    for failure in line["failures"]:
        found = failures.signature(failure)
        if not any(
            known["check"] == found.check
            and found.seen in known["seen"]
            and found.step in known.get("steps", [None])
            for known in entry["failures"]
        ):
            return found
    return None


@dataclass(frozen=True)
class Deviations:
    """The entries that apply today on this machine."""

    entries: list[Entry]
    backend: str
    driver: str | None  # version of the kernel module, such as 580.65.06
    gpus: list[str]  # the names of the GPUs
    today: datetime.date
    runtime: int | None = None  # as cudaRuntimeGetVersion gives it: 13050

    def entry_for(self, test: str | None, row: str | None) -> Entry | None:
        """The entry that applies to a test of a row here and has not expired; None: no
        such entry.
        """
        for entry in self.applicable:
            if (entry["test"], entry["requirement"]) == (test, row):
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

    def problems(
        self,
        kinds: Mapping[str, str],
        rows: Mapping[str, str | None],
        in_part: bool = False,
    ) -> list[str]:
        """What is wrong with the entries, one line for each problem. Each problem fails
        the run.

        `kinds` are the kinds of the catalogue's rows, `rows` the row of each
        conformance test. `in_part` says that less than the suite runs, so a part of
        the suite need not be built.
        """
        built = {_suite(test) for test in rows}
        return [
            f"{NAME}: {wrong}"
            for entry in self.entries
            if not (in_part and _suite(entry["test"]) not in built)
            and (wrong := self._wrong(entry, kinds, rows))
        ]

    def _wrong(
        self, entry: Entry, kinds: Mapping[str, str], rows: Mapping[str, str | None]
    ) -> str | None:
        row, test = entry["requirement"], entry["test"]
        if row not in kinds:
            return f"{row} is no row of the catalogue"
        if kinds[row] in UNJUDGED_KINDS:
            return f"{row} is of kind {kinds[row]}, which has no deviations"
        if test not in rows:
            return f"{row}: CTest's list has no test {test}"
        if rows[test] != row:
            return f"{row}: {test} is a test of {rows[test]}"
        if expired(entry, str(self.today)):
            return f"{row} expired on {entry['expires']}; ask {entry['owner']}"
        return None

    def _applies(self, entry: Entry) -> bool:
        if VENDORS.get(self.backend) != entry["vendor"]:
            return False
        if (wanted := entry.get("runtime")) and (
            self.runtime is None
            or wanted != f"{self.runtime // 1000}.{self.runtime % 1000 // 10}"
        ):
            return False
        return measured_on(entry, self.driver, self.gpus)


def measured_on(entry: Entry, driver: str | None, gpus: Iterable[str]) -> bool:
    """Whether an entry's drivers and GPUs include this driver and one of these GPUs."""
    if entry["gpus"] and not any(x in y for x in entry["gpus"] for y in gpus):
        return False
    span = entry["driver"]
    if span is None:
        return True
    return driver is not None and (
        _version(span["from"]) <= _version(driver) <= _version(span["to"])
    )


def _suite(test: str) -> str:
    """The suite of GoogleTest that has a test, such as Suite of Suite.Name."""
    return test.partition(".")[0]


def expired(entry: Entry, day: str) -> bool:
    """Whether an entry was expired on that day, such as 2027-06-30."""
    return bool(entry["expires"] < day)


def _unmeasured(entry: Entry) -> str | None:
    """A message if an entry lacks facts that only a measurement gives."""
    if entry["vendor"] == "nvidia" and (entry["driver"] is None or not entry["gpus"]):
        return f"{entry['requirement']}: name the drivers and GPUs that were measured"
    if not entry["failures"]:
        return f"{entry['requirement']}: name the checks that failed and what they saw"
    if "severity" not in entry:  # records of older runs have none
        return f"{entry['requirement']}: has no 'severity'"
    return None


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"[0-9]+", text))


def _read(path: Path) -> list[Any]:
    try:
        rows: list[Any] = reader.document(path, _LIST)["deviations"]
    except UsageError as error:
        raise HarnessError(str(error)) from None
    return rows


_LIST: schema.Schema = {
    "type": "object",
    "properties": {"deviations": {"type": "array", "items": {"type": "object"}}},
    "required": ["deviations"],
}
