"""The result of a run as a text and in counts, for terminal and page."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ipclab import packed, pages, records
from ipclab.records import Row

# The words after a count: singular and plural.
WORDS = {
    "conforms": ("conforms", "conform"),
    "violates": ("violates its rule", "violate their rules"),
    "deviates": ("deviates in a known way", "deviate in a known way"),
    "lifted": ("shows a limit that is gone", "show a limit that is gone"),
    "observed": ("is observed only", "are observed only"),
    "not applicable": ("does not apply here", "do not apply here"),
    "crashed": ("crashed", "crashed"),
    "hung": ("hung", "hung"),
    "flaky": ("is flaky", "are flaky"),
    "broken": ("could not be judged", "could not be judged"),
}
WORKS = ("works", "work")  # a lesson that conforms


@dataclass(frozen=True)
class State:
    """What the headline says about a run besides its rows."""

    state: str  # of run.json: running, finished, interrupted, broken
    selected: int  # tests and lessons that were to run
    problems: Sequence[str]
    strict: bool
    on_model: bool
    filtered: bool


def tests(table: Iterable[Row]) -> list[Row]:
    """The rows that judge a rule."""
    return [row for row in table if row.record["suite"] != "sample"]


def lessons(table: Iterable[Row]) -> list[Row]:
    """The rows that are lessons. A lesson works or fails, and judges no rule."""
    return [row for row in table if row.record["suite"] == "sample"]


def headline(table: Sequence[Row], run: State) -> str:
    """The text that says the result of a run, and why."""
    counted = told(table)
    where = " On the reference model: this says nothing about a driver."
    end = (where if run.on_model else "") + (
        " A part of the suite only." if run.filtered else ""
    )
    if run.state != "finished":
        missing = run.selected - len(table)
        of = f"{missing} of {run.selected} have no verdict"
        return f"NOT FINISHED ({run.state}): {of}. {counted}"
    failing = [row for row in table if records.fails(row.verdict, run.strict)]
    if failing:
        return f"FAILS: {len(failing)} of {len(table)}. {counted}{end}"
    if run.problems:
        return f"FAILS: {run.problems[0]}. {counted}{end}"
    return f"PASSES: nothing fails. {counted}{end}"


def told(table: Sequence[Row]) -> str:
    """Tests and lessons separately, such as
    `3 tests: 2 conform, 1 hung. 4 lesson runs: 4 work.`

    A lesson may be run in several ways, so its runs are counted.
    """
    parts = {
        "test": (tests(table), WORDS),
        "lesson run": (lessons(table), {**WORDS, "conforms": WORKS}),
    }
    said = [
        f"{_number(len(found), what)}: "
        + ", ".join(f"{n} {words[x][n != 1]}" for x, n in records.counts(found).items())
        + "."
        for what, (found, words) in parts.items()
        if found
    ]
    return " ".join(said) or "No test was run."


def chapters(table: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows by the title of their chapter."""
    return pages.grouped((pages.chapter(x.record["lesson"]), x) for x in table)


def next_step(row: Row) -> str:
    """What to type to learn more about a row that did not pass."""
    test = row.record["test"]
    again = f"{packed.command()} run -v -k {test.partition('.')[2] or test}"
    rule = row.record["requirement"]
    return f"{packed.command()} rules {rule}; {again}" if rule else again


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
