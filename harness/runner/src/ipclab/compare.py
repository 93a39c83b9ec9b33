"""`ipclab compare OLD NEW`: what two runs say differently, test by test."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ipclab import pages, records, results
from ipclab.errors import HarnessError, UsageError
from ipclab.records import Row

REGRESSED, DISAPPEARED, FIXED, CHANGED, NEW, EXPLAINED, SLOWER = (
    "regressed",
    "DISAPPEARED",
    "fixed",
    "changed",
    "new",
    "explained",
    "timing",
)
MEANING = {  # in the order in which they are shown
    REGRESSED: "passed, fails now",
    DISAPPEARED: "was there, is not",
    FIXED: "failed, passes now",
    CHANGED: "another verdict, on the same side",
    NEW: "was not there",
    EXPLAINED: "one of the two is a deviation that deviations.json knows",
    SLOWER: "same verdict, another duration",
}
WORSE = (REGRESSED, DISAPPEARED)
COLOURS = {
    REGRESSED: "bold red",
    DISAPPEARED: "bold red",
    FIXED: "green",
    CHANGED: "yellow",
    NEW: "cyan",
    EXPLAINED: "dim",
    SLOWER: "dim",
}
# Durations below this, in milliseconds, and ratios below that are noise.
LONG, RATIO = 500.0, 2.0
# Differ between any two processes and mean nothing to CUDA.
UNIMPORTANT = ("id", "namespaces")


@dataclass(frozen=True)
class Change:
    """What became of one test."""

    test: str
    requirement: str | None
    what: str  # one of the words above
    before: str | None  # the verdict as shown; None: not there
    after: str | None
    reason: str


@dataclass(frozen=True)
class Difference:
    """What two runs say differently."""

    changes: list[Change]
    environment: dict[str, tuple[Any, Any]]  # fact of the fingerprint: old, new
    same: int  # tests with the same verdict

    @property
    def worse(self) -> bool:
        """Whether something regressed or disappeared."""
        return any(change.what in WORSE for change in self.changes)


@dataclass(frozen=True)
class Request:
    """What a person asked for besides the terminal."""

    json: Path | None = None
    html: Path | None = None
    any_catalogue: bool = False


def run(out: Console, old: Path, new: Path, request: Request) -> int:
    """Compare two results folders; 1 if something regressed or disappeared.

    UsageError where a comparison would mislead: a run that has not finished,
    one of a part of the suite, records that are not whole, rows whose sentence
    has changed (unless `request.any_catalogue`).
    """
    before, after = _read(old), _read(new)
    if not request.any_catalogue:
        _same_catalogue(before[0], after[0])
    found = difference(before, after)
    if request.json is not None:
        _write(request.json, json.dumps(asdict(found), indent=1) + "\n")
    if request.html is not None:
        _write(request.html, page(before[0], after[0], found))
    _show(out, before[0], after[0], found)
    return 1 if found.worse else 0


def page(old: dict[str, Any], new: dict[str, Any], found: Difference) -> str:
    """What differs, as a page; `old` and `new` are the documents of the runs."""
    return pages.render(
        "compare.html.j2",
        runs={"old": old, "new": new},
        on_model="model" in (old.get("backend"), new.get("backend")),
        statements={
            name: row["statement"]
            for document in (old, new)
            for name, row in document["requirements"].items()
        },
        changes=found.changes,
        environment=found.environment,
        same=found.same,
        counts=_counts(found),
        meaning=MEANING,
    )


def _counts(found: Difference) -> dict[str, int]:
    """How many tests each word tells of, without those of none."""
    number = Counter(change.what for change in found.changes)
    return {what: number[what] for what in MEANING if number[what]}


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise HarnessError(f"{path}: {error.strerror}") from None


def difference(
    old: tuple[dict[str, Any], list[Row]], new: tuple[dict[str, Any], list[Row]]
) -> Difference:
    """What the rows and the machines of two runs have in common, and what not."""
    before = {row.ctest: row for row in old[1]}
    after = {row.ctest: row for row in new[1]}
    changes = [
        change
        for name in before | after
        if (change := _change(name, before.get(name), after.get(name)))
    ]
    order = list(MEANING)
    changes.sort(key=lambda change: (order.index(change.what), change.test))
    same = sum(
        before[name].verdict == after[name].verdict
        for name in before.keys() & after.keys()
    )
    machines = old[0]["fingerprint"], new[0]["fingerprint"]
    return Difference(changes, dict(_environment(*machines)), same)


def _change(name: str, before: Row | None, after: Row | None) -> Change | None:
    row = after or before
    assert row is not None
    if before is None:
        what = NEW
    elif after is None:
        what = DISAPPEARED
    elif before.shown == after.shown:
        long, short = sorted((_duration(before), _duration(after)), reverse=True)
        if long < LONG or long < RATIO * short:
            return None
        return Change(
            name,
            row.record["requirement"],
            SLOWER,
            before.shown,
            after.shown,
            f"{_duration(before) / 1000:.1f} s, now {_duration(after) / 1000:.1f} s",
        )
    else:
        what = _verdict_change(before.verdict, after.verdict)
    return Change(
        name,
        row.record["requirement"],
        what,
        before.shown if before else None,
        after.shown if after else None,
        row.reason or "; ".join(row.record["notes"]),
    )


def _verdict_change(before: str, after: str) -> str:
    failed, fails = (verdict in records.FAILING for verdict in (before, after))
    if failed != fails:
        return REGRESSED if fails else FIXED
    return EXPLAINED if "deviates" in (before, after) else CHANGED


def _duration(row: Row) -> float:
    """Milliseconds of the fastest attempt: the one that was disturbed least."""
    return min(float(attempt["duration_ms"]) for attempt in row.attempts)


def _environment(
    old: dict[str, Any], new: dict[str, Any]
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for name in old | new:
        pair = old.get(name), new.get(name)
        if name not in UNIMPORTANT and pair[0] != pair[1]:
            yield name, pair


def _read(folder: Path) -> tuple[dict[str, Any], list[Row]]:
    document, found, wrong = results.read(folder)
    if wrong:
        raise UsageError(f"{folder}: {wrong}; compare whole results only")
    if document["state"] != "finished":
        raise UsageError(
            f"{folder}: the run is {document['state']}; compare finished runs only"
        )
    if document.get("filtered"):
        raise UsageError(f"{folder}: a part of the suite only; compare whole runs only")
    return document, records.rows(found)


def _same_catalogue(old: dict[str, Any], new: dict[str, Any]) -> None:
    before, after = old["requirements"], new["requirements"]
    other = [
        name
        for name in before
        if name in after
        and any(before[name][x] != after[name][x] for x in ("statement", "kind"))
    ]
    if other:
        raise UsageError(
            f"the catalogues differ: {', '.join(other)} say something else; "
            "--any-catalogue compares all the same"
        )


def _show(
    out: Console, old: dict[str, Any], new: dict[str, Any], found: Difference
) -> None:
    for label, document in (("old", old), ("new", new)):
        line = f"{label}: {document['started']}  {document.get('machine', '')}"
        out.print(Text(line), soft_wrap=True)
    if found.changes:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("", "row", "test", "old", "new", "reason"):
            table.add_column(name, overflow="fold", no_wrap=name in ("", "row"))
        for change in found.changes:
            table.add_row(
                Text(change.what, style=COLOURS[change.what]),
                change.requirement or "lesson",
                change.test,
                change.before or "",
                change.after or "",
                Text(change.reason.partition("\n")[0]),
            )
        out.print()
        out.print(table)
        out.print()
    for name, (before, after) in found.environment.items():
        line = f"environment: {name.replace('_', ' ')}: {before} -> {after}"
        out.print(Text(line), soft_wrap=True)
    told = [f"{number} {what}" for what, number in _counts(found).items()]
    out.print(Text(", ".join([*told, f"{found.same} same verdict"])), soft_wrap=True)
