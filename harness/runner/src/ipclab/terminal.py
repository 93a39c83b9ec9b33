"""What a person sees of a run: the first line, the progress, the table."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from ipclab import expect, probe, records
from ipclab.deviations import DERIVED, UNJUDGED_KINDS
from ipclab.records import Record
from ipclab.run import Run

COLOURS = {
    "conforms": "green",
    "violates": "bold red",
    "deviates": "yellow",
    "lifted": "cyan",
    "observed": "blue",
    "not applicable": "dim",
    "crashed": "bold red",
    "hung": "bold red",
    "flaky": "bold magenta",
    "broken": "bold magenta",
}


MANY = 20  # tests, from which on it is worth knowing which are slow


class Output(Console):
    """A console that lets `cli.main` decide what a closed pipe means."""

    def on_broken_pipe(self) -> None:
        """Without this, rich ends the process with exit code 1."""
        raise BrokenPipeError


def console() -> Console:
    """Standard output; a pipe or a file gets lines of 160 columns."""
    plain = Output(highlight=False)
    return plain if plain.is_terminal else Output(highlight=False, width=160)


class Live:
    """Progress: a bar on a terminal, a line for each test elsewhere."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._running: list[str] = []
        self._done = self._total = 0
        self._bar = Progress(
            MofNCompleteColumn(),
            BarColumn(bar_width=30),
            TextColumn("{task.description}", markup=False),
            console=out,
            transient=True,
            disable=not out.is_terminal,
        )
        self._task = self._bar.add_task("", total=None)

    def begin(self, total: int) -> None:
        """So many attempts will be made."""
        self._total = total
        self._bar.update(self._task, total=total)
        self._bar.start()

    def started(self, name: str) -> None:
        """A test has started."""
        self._running.append(name)
        self._describe()

    def finished(self, record: Record) -> None:
        """A test has been judged."""
        self._done += 1
        self._running.remove(record["ctest"])
        self._bar.advance(self._task)
        self._describe()
        verdict = record["verdict"]
        if not self._out.is_terminal:
            count = f"[{self._done:{len(str(self._total))}}/{self._total}]"
            self._out.print(
                Text(f"{count} {record['ctest']}: {verdict}"), soft_wrap=True
            )
        elif verdict in records.FAILING:
            line = Text(f"{verdict}: ", style=COLOURS[verdict])
            line.append(record["ctest"], style="default")
            self._out.print(line)

    def end(self) -> None:
        """Nothing runs any more."""
        self._bar.stop()

    def _describe(self) -> None:
        self._bar.update(self._task, description="  ".join(self._running))


class Counted:
    """Progress of many small things: a bar on a terminal, now and then a line."""

    EVERY = 15.0  # seconds

    def __init__(self, out: Console, total: int) -> None:
        self._out = out
        self._total = total
        self._done = self._dropped = 0
        self._said = time.monotonic()
        self._bar = Progress(
            MofNCompleteColumn(),
            BarColumn(bar_width=30),
            TextColumn("{task.description}", markup=False),
            TimeRemainingColumn(),
            console=out,
            transient=True,
            disable=not out.is_terminal,
        )
        self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bar.stop()

    def finished(self, told: str) -> None:
        """One is done."""
        self._done += 1
        self._bar.update(self._task, advance=1, description=told)
        if not self._out.is_terminal and time.monotonic() - self._said > self.EVERY:
            self._said = time.monotonic()
            left = self._total - self._done - self._dropped
            line = f"{self._done} tests done, at most {left} left"
            self._out.print(Text(f"{line}, {told}" if told else line), soft_wrap=True)

    def dropped(self) -> None:
        """One does not have to be done any more."""
        self._dropped += 1
        self._bar.update(self._task, advance=1)


def first_line(out: Console, run: Run) -> None:
    """Which backend it is, and where the machine is not what was expected."""
    out.print(Text(probe.first_line(run.probe)), soft_wrap=True)
    for finding in run.findings:
        out.print(Text(finding, style="bold red"), soft_wrap=True)
    if run.settings.expect is None:
        for name, how in expect.disagreements(run.probe).items():
            line = f"{name}: attribute and attempt disagree: {how} (see --expect)"
            out.print(Text(line, style="yellow"), soft_wrap=True)


def final(out: Console, run: Run) -> None:
    """The table, what else fails the run, and the counts."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("lesson", "row", "test", "verdict", "reason"):
        table.add_column(name, overflow="fold", no_wrap=name in ("row", "verdict"))
    lesson = before = ""
    order = run.rows
    for row in order:
        record = row.record
        reason = _short(row.reason or "; ".join(record["notes"]))
        table.add_row(
            record["lesson"] if record["lesson"] != lesson else "",
            _row_name(record),
            Text(record["test"].partition(".")[2]),  # a lesson's name has no dot
            Text(row.shown, style=COLOURS[row.verdict]),
            Text("″" if reason and reason == before else reason),  # as above
        )
        lesson, before = record["lesson"], reason
    if order:
        out.print()
        out.print(table)
        out.print()
    for problem in run.problems:
        out.print(Text(problem, style="bold red"), soft_wrap=True)
    if run.state == "interrupted":
        missing = run.selected - len(order)
        out.print(
            Text(f"interrupted: {missing} of {run.selected} tests have no verdict"),
            soft_wrap=True,
        )
    if run.results:
        out.print(Text(f"results: {run.results.folder}"), soft_wrap=True)
    if len(order) > MANY:
        _slowest(out, [attempt for row in order for attempt in row.attempts])
    if run.start_ms is not None:
        roles = sum(len(record.get("roles") or []) for record in run.records)
        lessons = sum(record["suite"] == "sample" for record in run.records)
        out.print(
            Text(
                f"processes: {roles} roles and {lessons} lessons; to start one took "
                f"{run.start_ms:.0f} ms, one at a time"
            ),
            soft_wrap=True,
        )
    found = records.counts(order)
    told = ", ".join(f"{count} {verdict}" for verdict, count in found.items())
    out.print(Text(told or "no test was run"), soft_wrap=True)


def _row_name(record: Record) -> str:
    """The row, and its kind where that is not simply a documented sentence."""
    if record["kind"] in (DERIVED, *UNJUDGED_KINDS):
        return f"{record['requirement']} {record['kind']}"
    return str(record["requirement"] or record["suite"])


def _slowest(out: Console, attempts: list[Record]) -> None:
    attempts.sort(key=lambda record: -record["duration_ms"])
    told = ", ".join(
        f"{record['ctest']} {record['duration_ms'] / 1000:.1f} s"
        for record in attempts[:10]
    )
    out.print(Text(f"slowest: {told}"), soft_wrap=True)


def _short(reason: str) -> str:
    line = reason.splitlines()[0] if reason else ""
    return line if len(line) <= 200 else line[:197] + "..."
