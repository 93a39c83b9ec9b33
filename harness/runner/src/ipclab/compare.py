"""`ipclab compare OLD NEW`: how the results of two runs differ, test by test.

With `--fidelity` one of the runs is on the reference model. Then the command shows
where the model answers differently from the driver, and whether something explains each
difference.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ipclab import pages, records, results
from ipclab.errors import UsageError
from ipclab.failures import readable
from ipclab.records import Row

REGRESSED, DISAPPEARED, FIXED, CHANGED, ANSWERS, NEW, EXPLAINED, SLOWER = (
    "regressed",
    "DISAPPEARED",
    "fixed",
    "changed",
    "answers",
    "new",
    "explained",
    "timing",
)
# Words for the comparison of a driver with the model.
UNEXPLAINED, NOT_HERE, RECENT = (
    "unexplained",
    "one side only",
    "not recorded",
)
MEANING = {  # in the order in which they are shown
    REGRESSED: "passed and fails now",
    DISAPPEARED: "was there and is missing now",
    FIXED: "failed and passes now",
    CHANGED: "another verdict, but it fails or passes as before",
    ANSWERS: "same verdict, but another answer, and the documentation allows both",
    NEW: "was not in the older run",
    EXPLAINED: "deviations.json knows one of the answers, or the driver lifted a limit",
    SLOWER: "same verdict, another duration",
    UNEXPLAINED: "two answers, and nothing explains the difference",
    NOT_HERE: "one of the two machines lacks what the row needs",
    RECENT: "the test is new or was removed, or its row's sentence or kind has changed",
}
SPOKEN = {
    ANSWERS: "with another answer",
    SLOWER: "with another duration",
    CHANGED: "with another verdict that fails or passes as before",
}
WORSE = (REGRESSED, DISAPPEARED, UNEXPLAINED)
COLOURS = {
    REGRESSED: "bold red",
    DISAPPEARED: "bold red",
    FIXED: "green",
    CHANGED: "yellow",
    ANSWERS: "yellow",
    NEW: "cyan",
    EXPLAINED: "dim",
    SLOWER: "dim",
    UNEXPLAINED: "bold red",
    NOT_HERE: "dim",
    RECENT: "cyan",
}
# Durations (in milliseconds) and ratios below these are noise.
LONG, RATIO = 500.0, 2.0
# These facts can differ between two runs without a change of the machine.
UNIMPORTANT = ("id", "namespaces")
# These can differ between any two runs: numbers in notes, and the name of a file that a
# driver leaves.
NUMBER = re.compile(r"0x[0-9a-f]+|\d+")
LEFT_BEHIND = "/dev/shm/"
# If there are more of one of these kinds, the terminal prints only their number.
COUNTED, MOST_COUNTED = (SLOWER, NOT_HERE, RECENT), 5
MOST_ANSWERS = 3  # printed for one side of one test; the records have the rest


@dataclass(frozen=True)
class Change:
    """What has changed for one test."""

    test: str
    requirement: str | None
    what: str  # one of the words above
    before: str | None  # the verdict as shown; None: not there
    after: str | None
    reason: str


Read = tuple[dict[str, Any], list[Row]]  # run.json, and a row for each test
Judge = Callable[[str, Row | None, Row | None], Change | None]


@dataclass(frozen=True)
class Difference:
    """How two runs differ."""

    changes: list[Change]
    environment: dict[str, tuple[Any, Any]]  # fact of the fingerprint: old, new
    same: int  # tests with the same verdict

    @property
    def worse(self) -> bool:
        """Whether something regressed or disappeared."""
        return any(change.what in WORSE for change in self.changes)


@dataclass(frozen=True)
class Request:
    """What a person requested in addition to the terminal."""

    json: Path | None = None
    html: Path | None = None
    any_catalogue: bool = False
    fidelity: bool = False  # a driver and the model


def run(out: Console, old: Path, new: Path, request: Request) -> int:
    """Compare two results folders; return 1 if something regressed or disappeared.

    With `request.fidelity`, returns 1 if the model differs and nothing explains it.
    Raises UsageError if a comparison would mislead: a run has not finished, is only a
    part of the suite, or has incomplete records; or a row has another sentence or kind
    now (unless `request.any_catalogue` or `request.fidelity`).
    """
    before, after = read(old), read(new)
    labels = ("old", "new")
    if request.fidelity:
        labels = ("driver", "model")
        before, after = _driver_and_model(before, after)
        judge = _fidelity(before[0], after[0], request.any_catalogue)
        found = difference(before, after, judge)
        found = replace(found, environment={})  # their machines cannot be compared
    else:
        if not request.any_catalogue:
            _same_catalogue(before[0], after[0])
        found = difference(before, after)
    if request.json is not None:
        results.write_into(request.json, json.dumps(asdict(found), indent=1) + "\n")
    if request.html is not None:
        runs = dict(zip(labels, (before[0], after[0]), strict=True))
        results.write_into(request.html, page(runs, found))
    _show(out, labels, (before[0], after[0]), found)
    return 1 if found.worse else 0


def page(runs: dict[str, dict[str, Any]], found: Difference) -> str:
    """What differs, as a page; `runs` are the two documents by their labels."""
    return pages.render(
        "compare.html.j2",
        runs=runs,
        moments=pages.moments,
        on_model=(None, pages.HALF_ON_MODEL, pages.ON_MODEL)[
            sum(run.get("backend") == "model" for run in runs.values())
        ],
        statements={
            name: row["statement"]
            for document in runs.values()
            for name, row in document["requirements"].items()
        },
        headline=headline(found),
        worse=any(x.what in WORSE for x in found.changes),
        abbreviations=pages.ABBREVIATIONS,
        changes=found.changes,
        environment=found.environment,
        same=found.same,
        counts=_counts(found),
        meaning=MEANING,
    )


def headline(found: Difference) -> str:
    """A few sentences that compare the second run with the first run."""
    counts = _counts(found)
    told = ", ".join(
        f"{number} {SPOKEN.get(what, what)}" for what, number in counts.items()
    )
    worse = ", ".join(f"{counts[x]} {x}" for x in WORSE if x in counts)
    first = f"WORSE: {worse}." if worse else "NOT WORSE: no test regressed or is gone."
    number = found.same + sum(x.before != x.after for x in found.changes)
    return f"{first} {found.same} of {number} tests have the same verdict" + (
        f". Differences: {told}." if told else "."
    )


def _counts(found: Difference) -> dict[str, int]:
    """The number of tests for each word, without words that have none."""
    number = Counter(change.what for change in found.changes)
    return {what: number[what] for what in MEANING if number[what]}


def difference(old: Read, new: Read, judge: Judge | None = None) -> Difference:
    """How the rows and the machines of two runs differ. `judge` returns what has
    changed for one test, or None if nothing has.
    """
    judge = judge or _change
    before = {row.ctest: row for row in old[1]}
    after = {row.ctest: row for row in new[1]}
    changes = [
        change
        for name in before | after
        if (change := judge(name, before.get(name), after.get(name)))
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
        if told := _answered(("old", before), ("new", after)):
            return _as_change(ANSWERS, before, after, told)
        long, short = sorted((_duration(before), _duration(after)), reverse=True)
        if long < LONG or long < RATIO * short:
            return None
        told = f"{_duration(before) / 1000:.1f} s, now {_duration(after) / 1000:.1f} s"
        return _as_change(SLOWER, before, after, told)
    else:
        what = _verdict_change(before.verdict, after.verdict)
    return _as_change(what, before, after, _why(row))


def by_verdict(name: str, before: Row | None, after: Row | None) -> Change | None:
    """A judge for `difference` that compares only verdicts, not answers or times."""
    same = before is not None and after is not None and before.shown == after.shown
    return None if same else _change(name, before, after)


def _as_change(what: str, before: Row | None, after: Row | None, reason: str) -> Change:
    row = after or before
    assert row is not None
    return Change(
        row.ctest,
        row.record["requirement"],
        what,
        before.shown if before else None,
        after.shown if after else None,
        reason,
    )


def _why(row: Row) -> str:
    return row.reason or "; ".join(row.record["notes"])


def _verdict_change(before: str, after: str) -> str:
    failed, fails = (verdict in records.FAILING for verdict in (before, after))
    if failed != fails:
        return REGRESSED if fails else FIXED
    return EXPLAINED if "deviates" in (before, after) else CHANGED


def _driver_and_model(one: Read, other: Read) -> tuple[Read, Read]:
    """The driver's run, then the model's; UsageError unless they can be compared."""
    by_backend = {str(run[0].get("backend")): run for run in (one, other)}
    if by_backend.keys() != {"cuda", "model"}:
        raise UsageError(
            "--fidelity needs a run on a GPU and one on the reference model, not "
            + " and ".join(str(run[0].get("backend")) for run in (one, other))
        )
    driver, model = by_backend["cuda"], by_backend["model"]
    judged = [
        {row.ctest for row in run[1] if row.verdict in records.JUDGED}
        for run in (driver, model)
    ]
    if judged[0].isdisjoint(judged[1]):
        raise UsageError("no test was judged in both runs: nothing is compared")
    return driver, model


def _gone(row: Row, run: dict[str, Any]) -> tuple[str, str]:
    """The word for a test of which the model's run has no record, and the reason.

    A test may be removed from the suite if its row has other tests or was also removed.
    """
    name = row.record["requirement"]
    tests: dict[str, str | None] = run["manifest"]["tests"]
    if row.ctest in tests:
        return DISAPPEARED, "the list of tests has it, but the model's run does not"
    if name not in run["requirements"]:
        return RECENT, "its row was removed from the catalogue"
    if name in tests.values():
        return RECENT, "other tests judge its row now"
    return DISAPPEARED, "no test judges its row any more"


def _fidelity(
    driver: dict[str, Any], model: dict[str, Any], any_catalogue: bool
) -> Judge:
    """A judge that compares what a driver and the model say about one test, and says
    whether something explains the difference.

    An entry of deviations.json explains a difference. A limit that the driver has
    lifted also explains a difference, because the model follows the documentation. A
    difference with a verdict that fails a run has no explanation. If the kind of a row
    has changed, its verdicts are not compared. If its sentence has changed, its
    verdicts are compared only with `any_catalogue`.
    """

    def judge(_name: str, there: Row | None, here: Row | None) -> Change | None:
        if there is not None and here is None:
            what, why = _gone(there, model)
            return _as_change(what, there, here, why)
        if there is None or here is None:
            return _as_change(RECENT, there, here, "")
        row = there.record["requirement"]
        then, now = _sentence(driver, row), _sentence(model, row)
        if then and now and then[1] != now[1]:
            return _as_change(RECENT, there, here, "its kind was different then")
        if then != now and not any_catalogue:
            return _as_change(RECENT, there, here, "its sentence was different then")
        if there.verdict == here.verdict:
            told = _answered(("driver", there), ("model", here))
            return _as_change(ANSWERS, there, here, told) if told else None
        verdicts = {there.verdict, here.verdict}
        if verdicts & set(records.FAILING):
            return _as_change(UNEXPLAINED, there, here, _both(there, here))
        if "not applicable" in verdicts:
            lacking = there if there.verdict == "not applicable" else here
            return _as_change(NOT_HERE, there, here, lacking.reason)
        for side in (there, here):
            if side.verdict == "deviates" and (entry := side.record["deviation"]):
                return _as_change(EXPLAINED, there, here, entry["evidence"])
        if (there.verdict, here.verdict) == ("lifted", "conforms"):
            return _as_change(EXPLAINED, there, here, there.reason)
        return _as_change(UNEXPLAINED, there, here, _both(there, here))

    return judge


def _both(there: Row, here: Row) -> str:
    return "; ".join(
        f"{who}: {why}"
        for who, why in (("driver", _why(there)), ("model", _why(here)))
        if why
    )


def _answered(*sides: tuple[str, Row]) -> str:
    """What one side always noted and the other side never noted; "" if there is
    nothing.
    """
    attempts = [[_answers(x) for x in row.attempts] for _, row in sides]
    told = []
    for (who, _), own, others in zip(sides, attempts, attempts[::-1], strict=True):
        always = [x for x in own[0] if all(x in attempt for attempt in own)]
        alone = [own[0][x] for x in always if not any(x in y for y in others)]
        if alone:
            more = f" and {n} more" if (n := len(alone) - MOST_ANSWERS) > 0 else ""
            told.append(f"{who}: {'; '.join(alone[:MOST_ANSWERS])}{more}")
    return " | ".join(told)


def _answers(record: records.Record) -> dict[str, str]:
    """The notes and the table lines of a record, by what is compared: a note without
    its numbers, a table line as it is.
    """
    notes = [note for note in record["notes"] if LEFT_BEHIND not in note]
    return {
        **{NUMBER.sub("#", note): note for note in notes},
        **{
            text: text
            for x in record.get("outcomes", ())
            for text in [f"{x['table']}, {x['input']}: {x['code']}"]
        },
    }


def _duration(row: Row) -> float:
    """Milliseconds of the fastest attempt: other work disturbed this attempt least."""
    return min(float(attempt["duration_ms"]) for attempt in row.attempts)


def _environment(
    old: dict[str, Any], new: dict[str, Any]
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for name in old | new:
        pair = old.get(name), new.get(name)
        if name not in UNIMPORTANT and pair[0] != pair[1]:
            yield name, pair


def read(folder: Path) -> Read:
    """A whole, finished, unfiltered run; UsageError for any other."""
    contents = results.read(folder, timelines=False)
    document, found, wrong = contents.run, contents.records, contents.wrong
    if wrong:
        raise UsageError(f"{folder}: {wrong}; compare whole results only")
    if document["state"] != "finished":
        raise UsageError(
            f"{folder}: the run is {document['state']}; compare finished runs only"
        )
    if document.get("filtered"):
        raise UsageError(f"{folder}: a part of the suite only; compare whole runs only")
    return document, records.rows(found)


def _sentence(run: dict[str, Any], name: str | None) -> tuple[str, str] | None:
    """The sentence and the kind of a row in a run; None if the run has no such row."""
    row = run["requirements"].get(name)
    return row and (row["statement"], row["kind"])


def _same_catalogue(old: dict[str, Any], new: dict[str, Any]) -> None:
    before, after = old["requirements"], new["requirements"]
    other = [
        name
        for name in before
        if name in after and _sentence(old, name) != _sentence(new, name)
    ]
    if other:
        raise UsageError(
            f"the catalogues differ: {', '.join(other)} say something else; "
            "--any-catalogue compares nevertheless"
        )


def _show(
    out: Console,
    labels: tuple[str, str],
    runs: tuple[dict[str, Any], dict[str, Any]],
    found: Difference,
) -> None:
    for label, document in zip(labels, runs, strict=True):
        line = f"{label}: {document['started']}  {document.get('machine', '')}"
        out.print(Text(line), soft_wrap=True)
    counts = Counter(change.what for change in found.changes)
    counted = {x: counts[x] for x in COUNTED if counts[x] > MOST_COUNTED}
    for change in found.changes:
        if change.what in counted:
            continue
        told_of = Text(change.what, style=COLOURS[change.what])
        name = change.requirement or "lesson"
        was, now = (x or "not there" for x in (change.before, change.after))
        verdicts = was if was == now else f"{was} -> {now}"
        told_of.append(f" {name} {verdicts} {change.test}", style="default")
        out.print(told_of, soft_wrap=True)
        if reason := readable(change.reason).partition("\n")[0]:
            out.print(Text(f"  {reason}"), soft_wrap=True)
    for what, number in counted.items():
        line = f"{what}, {number} tests, which --html or --json lists: {MEANING[what]}"
        out.print(Text(line), soft_wrap=True)
    for name, pair in found.environment.items():
        for line_of in _told_apart(name.replace("_", " "), *pair):
            out.print(Text(f"environment: {line_of}"), soft_wrap=True)
    told = [f"{number} {what}" for what, number in _counts(found).items()]
    out.print(Text(", ".join([*told, f"{found.same} same verdict"])), soft_wrap=True)


def _told_apart(name: str, before: Any, after: Any) -> Iterator[str]:
    """One line for each part that differs; a table is compared entry by entry."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before | after:
            pair = before.get(key), after.get(key)
            if pair[0] != pair[1]:
                yield from _told_apart(f"{name}, {key.replace('_', ' ')}", *pair)
        return
    yield f"{name}: {_value(before)} -> {_value(after)}"


def _value(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "; ".join(map(_value, value)) or "none"
    if isinstance(value, dict):
        return str(value.get("name") or ", ".join(f"{k} {v}" for k, v in value.items()))
    return str(value)
