"""What a person sees during a run: the first line, the progress, the table."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Self

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ipclab import (
    expect,
    failures,
    hardware,
    packed,
    pages,
    probe,
    reader,
    records,
    summary,
)
from ipclab.deviations import (
    PRECONDITION,
    SEVERITIES,
    UNJUDGED_KINDS,
    Entry,
    basis,
)
from ipclab.records import Record, Row
from ipclab.requirements import DERIVED
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


MANY = 20  # with more results than this, each chapter gets its own line
MOST_TOLD = 3  # failing tests that are printed in full; more would not fit a screen


class Output(Console):
    """A console that leaves a closed pipe to `cli.main`, and shows no text of a file
    as a command for the terminal.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of rich, without control characters in their text."""
        for part in super().render(renderable, options):
            text = part.text if part.control else reader.plain(part.text, keep="\n\t")
            yield Segment(text, part.style, part.control)

    def on_broken_pipe(self) -> None:
        """Raise the error again: rich would end the process with exit code 1."""
        raise BrokenPipeError


def console() -> Console:
    """Standard output; a pipe or a file gets lines of 160 columns."""
    plain = Output(highlight=False)
    return plain if plain.is_terminal else Output(highlight=False, width=160)


class Live:
    """Progress: a bar on a terminal. Elsewhere, standard error gets a line for each
    test, and standard output stays short."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._aside = Console(stderr=True, highlight=False)
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
        """`total` attempts will be made."""
        self._total = total
        self._bar.update(self._task, total=total)
        self._bar.start()

    def started(self, name: str) -> None:
        """The program of a test, or of several tests, has started."""
        self._running.append(name)
        self._describe()

    def finished(self, name: str, made: list[Record]) -> None:
        """The test or tests that `started` named have ended and were judged."""
        self._running.remove(name)
        for record in made:
            self._judged(record)
        self._describe()

    def _judged(self, record: Record) -> None:
        self._done += 1
        self._bar.advance(self._task)
        verdict = record["verdict"]
        if not self._out.is_terminal:
            count = f"[{self._done:{len(str(self._total))}}/{self._total}]"
            self._aside.print(
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
    """Progress of many small jobs: a bar on a terminal, a few lines elsewhere."""

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
        """One job is done."""
        self._done += 1
        self._bar.update(self._task, advance=1, description=told)
        if not self._out.is_terminal and time.monotonic() - self._said > self.EVERY:
            self._said = time.monotonic()
            left = self._total - self._done - self._dropped
            line = f"{self._done} tests done, at most {left} left"
            self._out.print(Text(f"{line}, {told}" if told else line), soft_wrap=True)

    def more(self, jobs: int) -> None:
        """There are further jobs."""
        self._total += jobs
        self._bar.update(self._task, total=self._total)

    def dropped(self) -> None:
        """One job is no longer needed."""
        self._dropped += 1
        self._bar.update(self._task, advance=1)


def first_line(out: Console, run: Run) -> None:
    """Print the backend, and how the machine differs from what was expected."""
    out.print(Text(probe.first_line(run.probe)), soft_wrap=True)
    if run.records:
        line = f"continues: {len(run.records)} records are there already"
        out.print(Text(line), soft_wrap=True)
    for finding in run.findings:
        out.print(Text(finding, style="bold red"), soft_wrap=True)
    # On the model a disagreement is expected, because the profile defines it.
    if run.settings.expect is None and run.probe["backend"] != "model":
        for name, how in expect.disagreements(run.probe).items():
            line = f"{name}: attribute and attempt disagree: {how}; see "
            line += f"`{packed.command()} doctor`"
            out.print(Text(line, style="yellow"), soft_wrap=True)


def final(out: Console, run: Run, verbose: bool = False) -> None:
    """Print one screen: a line for each chapter, what a reader must know, the result.

    With `verbose`, all rows come first, as a table.
    """
    order = run.rows
    if verbose and order:
        _every_row(out, order)
    if len(order) > MANY:
        out.print()
        _by_chapter(out, order)
        if verbose:
            _slowest(out, [attempt for row in order for attempt in row.attempts])
    _worth_knowing(out, order, run.settings.strict, run.catalogue)
    for problem in run.problems:
        out.print(Text(problem, style="bold red"), soft_wrap=True)
    if run.start_ms is not None:
        _processes(out, run.records, run.start_ms)
    if run.results:
        out.print(Text(f"results: {run.results.folder}"), soft_wrap=True)
        if run.state == "interrupted":
            line = (
                "to continue: the same command with --resume "
                f"{run.results.folder} and no other option"
            )
            out.print(Text(line), soft_wrap=True)
        out.print(Text(f"page: {run.results.folder / 'report.html'}"), soft_wrap=True)
    state = summary.State(
        run.state,
        run.selected,
        run.problems,
        run.settings.strict,
        run.probe.get("backend") == "model",
        run.filtered,
    )
    line = summary.headline(order, state)
    style = "bold green" if line.startswith("PASSES") else "bold red"
    out.print(Text(line, style=style), soft_wrap=True)


def _processes(out: Console, made: list[Record], start_ms: float) -> None:
    """Print how many processes were started for the roles, how many lessons ran, and
    how long the start of a process with CUDA takes here.
    """
    roles = [role for record in made for role in record["roles"]]
    started = sum(not role.get("shared") for role in roles)
    lessons = sum(record["suite"] == "sample" for record in made)
    told = f"processes: {started} for {len(roles)} roles, {lessons} lessons"
    told = f"{told}; one takes {start_ms:.0f} ms"
    out.print(Text(f"{told} to start on this machine"), soft_wrap=True)


def _by_chapter(out: Console, order: list[Row]) -> None:
    """A line for each chapter with its counts; zero counts are left out."""
    used = records.counts(order)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    for verdict in used:
        head = verdict.replace("not applicable", "n/a")
        table.add_column(Text(head, style=COLOURS[verdict]), justify="right")
    for title, rows in summary.chapters(order).items():
        counts = records.counts(rows)
        name = title.removeprefix("Chapter ").replace(": ", " ", 1)
        name = name.replace("Virtual memory management handles", "VMM handles")
        table.add_row(name, *(str(counts.get(x, "")) for x in used))
    out.print(table)


def _worth_knowing(
    out: Console, order: list[Row], strict: bool, catalogue: Mapping[str, Entry]
) -> None:
    """Print the first failing tests in full, and the rows with a known deviation."""
    failing = [row for row in order if records.fails(row.verdict, strict)]
    deviating = [row for row in order if row.verdict == "deviates" and not strict]
    if failing or deviating:
        out.print()
    for row in failing[:MOST_TOLD]:
        line = Text(f"{row.shown} ", style=COLOURS[row.verdict])
        line.append(f"{_row_name(row.record)} {row.record['test']}", style="default")
        out.print(line, soft_wrap=True)
        reason = _short(row.reason, min(200, 2 * out.width - 6))  # two lines
        out.print(Text(f"  {reason}", style="default"), soft_wrap=True)
        for told in _about(row.record, catalogue, out.width - 8):
            out.print(Text(f"  {told}", "dim"), soft_wrap=True)
        out.print(Text(f"  next: {summary.next_step(row)}", "dim"), soft_wrap=True)
    if len(failing) > MOST_TOLD:
        out.print(f"and {len(failing) - MOST_TOLD} more that fail: see the page, or -v")
    if deviating:
        by_harm = pages.grouped((_severity(row), row) for row in deviating)
        worst = (x for x in (*SEVERITIES, "") if x in by_harm)
        known = "; ".join(
            f"{harm or 'of unknown severity'}: "
            + ", ".join(dict.fromkeys(x.record["requirement"] for x in by_harm[harm]))
            for harm in worst
        )
        known = f"known deviations of this driver: {known}"
        out.print(Text(known, style=COLOURS["deviates"]))
        why = f"  why: {packed.command()} rules ROW, or the page"
        out.print(Text(why, style="dim"))


def _about(record: Record, catalogue: Mapping[str, Entry], room: int) -> Iterator[str]:
    """What a driver's engineer asks about a failing test: the sentence, whether it is
    documented, and where it was checked.
    """
    where = records.place(record)
    checked = f"checked at {where}" if where else ""
    if row := catalogue.get(record["requirement"] or ""):
        yield f"rule: {_short(row['statement'], min(200, room))}"
        checked = f"expected answer: {basis(row)}{'; ' if where else ''}{checked}"
        name, judged = str(record["requirement"]), hardware.known()
        if hardware.on_model_only(name, row["kind"], judged):
            checked += "; no recorded GPU has judged this row yet"
    if checked:
        yield checked


def _severity(row: Row) -> str:
    """The harm of a known deviation; empty if the run did not record it."""
    return str(row.record["deviation"].get("severity", ""))


def _every_row(out: Console, order: list[Row]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("lesson", "row", "test", "verdict", "reason"):
        table.add_column(name, overflow="fold", no_wrap=name in ("row", "verdict"))
    lesson = before = ""
    for row in order:
        record = row.record
        reason = _short(row.reason or "; ".join(record["notes"]))
        table.add_row(
            record["lesson"] if record["lesson"] != lesson else "",
            _row_name(record),
            Text(record["test"].partition(".")[2]),  # the name of a lesson has no dot
            Text(row.shown, style=COLOURS[row.verdict]),
            Text("″" if reason and reason == before else reason),  # the same reason
        )
        lesson, before = record["lesson"], reason
    out.print()
    out.print(table)
    out.print()


def _row_name(record: Record) -> str:
    """The row, with its kind if the row is derived, judges only harm or is not judged;
    `sample` for a lesson.
    """
    if record["kind"] in (DERIVED, PRECONDITION, *UNJUDGED_KINDS):
        return f"{record['requirement']} {record['kind']}"
    return str(record["requirement"] or record["suite"])


def _slowest(out: Console, attempts: list[Record]) -> None:
    attempts.sort(key=lambda record: -record["duration_ms"])
    told = ", ".join(
        f"{record['ctest']} {record['duration_ms'] / 1000:.1f} s"
        for record in attempts[:10]
    )
    out.print(Text(f"slowest: {told}"), soft_wrap=True)


def _short(reason: str, most: int = 200) -> str:
    line = failures.readable(reason).partition("\n")[0]
    return line if len(line) <= most else line[: most - 3] + "..."
