"""pytest plugin: collects CTest's list, runs it supervised, reports verdicts.

`ipclab run` uses it; so does `python3 -m pytest -p ipclab.plugin --ctest-build DIR`.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from ipclab import ctest, records, schedule
from ipclab.ctest import Case
from ipclab.errors import HarnessError, UsageError
from ipclab.records import Record, Row
from ipclab.run import Run, Settings

# Tests in one start; not all, so that jobs stay balanced. On a driver a start takes
# longer than on the model.
MOST_TOGETHER = 24
MOST_TOGETHER_ON_MODEL = 6


@dataclass(frozen=True)
class Attempt:
    """One attempt at one test, or at several tests that share processes."""

    cases: tuple[Case, ...]
    number: int

    @property
    def case(self) -> Case:
        """The first of the tests; all of them need equally many GPUs."""
        return self.cases[0]


class View(Protocol):
    """An observer of the run, for example the display of the progress."""

    def begin(self, total: int) -> None:
        """`total` attempts will be made."""

    def started(self, name: str) -> None:
        """The program of a test, or of several tests, has started."""

    def finished(self, name: str, made: list[Record]) -> None:
        """The tests of `started` have ended and were judged."""

    def end(self) -> None:
        """The run is over."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the plugin if it is used without `ipclab run`."""
    group = parser.getgroup("ipclab", "CUDA IPC samples and conformance")
    group.addoption("--ctest-build", metavar="DIR", help="run CTest's list of DIR")
    group.addoption("--ctest-jobs", metavar="N", type=int, default=1)
    group.addoption("--ctest-repeat", metavar="N", type=int, default=1)
    group.addoption("--ctest-results", metavar="DIR", help="keep records in DIR")


def pytest_configure(config: pytest.Config) -> None:
    """Without --ctest-build the plugin does nothing."""
    build = config.getoption("--ctest-build", None)
    if build is None:
        return
    results = config.getoption("--ctest-results")
    try:
        run = Run(
            Settings(
                build=Path(build),
                results=Path(results) if results else None,
                expression=config.getoption("-k") or "",
                jobs=config.getoption("--ctest-jobs"),
                repeat=config.getoption("--ctest-repeat"),
            )
        )
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None
    except HarnessError as error:
        pytest.exit(str(error), returncode=3)
    config.pluginmanager.register(Plugin(run, None), "ipclab.session")


class CTestItem(pytest.Item):
    """One test of CTest's list. The plugin's loop runs the test, not pytest's loop."""

    def __init__(self, *, case: Case, **rest: Any) -> None:
        super().__init__(**rest)
        self.case = case

    def runtest(self) -> None:
        """Never called: see Plugin.pytest_runtestloop."""
        raise NotImplementedError

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The location of the test for pytest."""
        return self.path, None, self.case.name


class Plugin:
    """The hooks of one run."""

    def __init__(self, run: Run, view: View | None) -> None:
        self.run = run
        self.view = view
        self._items: dict[str, CTestItem] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        """Collect CTest's list instead of files."""
        for label in sorted({x for case in self.run.cases for x in case.labels}):
            session.config.addinivalue_line("markers", f"{label}: label of CTest")
        session.items = [_item(session, case) for case in self.run.cases]
        session.config.hook.pytest_collection_modifyitems(
            session=session, config=session.config, items=session.items
        )
        session.config.hook.pytest_collection_finish(session=session)
        session.testscollected = len(session.items)
        self.run.selected = len(session.items)
        selected = [x.case for x in session.items if isinstance(x, CTestItem)]
        if wrong := ctest.incomplete(self.run.settings.build, selected):
            self.run.error = wrong
            pytest.exit(wrong, returncode=2)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Make all attempts at all tests, several at once if requested."""
        run, view = self.run, self.view
        if session.config.option.collectonly:
            return True
        items = [item for item in session.items if isinstance(item, CTestItem)]
        self._items = {item.case.name: item for item in items}
        most = MOST_TOGETHER_ON_MODEL if run.on_model else MOST_TOGETHER
        starts = _starts([x.case for x in items], 1 if run.settings.apart else most)
        if run.settings.jobs > 1:
            starts.reverse()  # tests of the last chapters have the most processes
        # The jobs are in the order of attempts. So a repeated test runs beside other
        # tests each time.
        done = {(x["ctest"], x["attempt"]) for x in run.records}
        left = [
            (attempt, tuple(x for x in cases if (x.name, attempt) not in done))
            for attempt in range(1, run.settings.repeat + 1)
            for cases in starts
        ]
        jobs = [Attempt(cases, attempt) for attempt, cases in left if cases]
        # Among tests of equal needs the starts with many tests come first, so no long
        # start remains at the end.
        uuids = [str(gpu["uuid"]) for gpu in run.probe["gpus"]]
        jobs.sort(
            key=lambda job: (schedule.first(job.case, len(uuids)), -len(job.cases))
        )
        for row in run.rows:  # of the run that this one continues
            if len(row.attempts) == run.settings.repeat:
                self._report(self._items[row.record["ctest"]], row)
        if view:
            view.begin(sum(len(job.cases) for job in jobs))
        try:
            complete = schedule.run(
                jobs,
                run.settings.jobs,
                schedule.Allocator(uuids, run.settings.jobs, apart=run.on_model),
                lambda job, visible, exclusive: run.execute_together(
                    job.cases, job.number, visible, exclusive
                ),
                lambda job: view.started(_name(job)) if view else None,
                self._finished,
            )
        except HarnessError as error:
            run.error = str(error)
            pytest.exit(str(error), returncode=3)
        except BrokenPipeError:  # nobody reads the output any more
            complete = False
        finally:
            if view:
                view.end()
        if not complete:
            run.state = "interrupted"
            raise KeyboardInterrupt
        return True

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Close the run; the session gets the exit code of the run."""
        if session.config.option.collectonly:
            self.run.close("interrupted")
            return
        stopped = self.run.state == "interrupted" or session.exitstatus in (
            pytest.ExitCode.INTERRUPTED,
            pytest.ExitCode.INTERNAL_ERROR,
        )
        self.run.close("interrupted" if stopped else "finished")
        session.exitstatus = self.run.exit_code

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print what fails the run besides the verdicts of its tests."""
        for problem in self.run.problems:
            terminalreporter.write_line(f"ipclab: {problem}", red=True)

    def _finished(self, job: Attempt, made: list[Record]) -> None:
        for record in made:
            self.run.add(record)
            name = record["ctest"]
            attempts = [x for x in self.run.records if x["ctest"] == name]
            if len(attempts) == self.run.settings.repeat:
                self._report(self._items[name], records.rows(attempts)[0])
        if self.view:
            self.view.finished(_name(job), made)

    def _report(self, item: CTestItem, row: Row) -> None:
        """Report one test to pytest, and through pytest to JUnit."""
        failed = records.fails(row.verdict, self.run.settings.strict)
        skipped = row.verdict == "not applicable"
        outcome = "failed" if failed else "skipped" if skipped else "passed"
        text = f"{row.shown}: {row.reason}"
        for role in row.record["roles"] if failed else []:
            text += f"\n--- {role['name']}: {role['ended']}\n{role['output']}"
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for when in ("setup", "call", "teardown"):
            call = when == "call"
            report = pytest.TestReport(
                nodeid=item.nodeid,
                location=item.location,
                keywords={},
                outcome=outcome if call else "passed",  # type: ignore[arg-type]
                longrepr=_longrepr(outcome, text, item) if call else None,
                when=when,
                duration=sum(x["duration_ms"] for x in row.attempts) / 1000
                if call
                else 0.0,
                user_properties=[
                    ("requirement", row.record["requirement"] or ""),
                    ("verdict", row.shown),
                ],
            )
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _name(job: Attempt) -> str:
    """The text that is shown while the job runs."""
    more = len(job.cases) - 1
    return f"{job.case.name} and {more} more" if more else job.case.name


def _starts(cases: Sequence[Case], most: int) -> list[tuple[Case, ...]]:
    """Which tests run in one start of their program, at most `most`, ordered by the
    first test of each group.
    """
    starts: dict[tuple[object, ...], list[Case]] = {}
    for number, case in enumerate(cases):
        like = (
            ctest.without_filter(case),
            case.folder,
            case.visible_gpus,
            case.alone,
        )
        starts.setdefault(like if case.shared else (number,), []).append(case)
    return [
        tuple(group[at : at + most])
        for group in starts.values()
        for at in range(0, len(group), most)
    ]


def _item(session: pytest.Session, case: Case) -> CTestItem:
    item: CTestItem = CTestItem.from_parent(
        session,
        name=case.name,
        nodeid=f"{case.name.removesuffix(case.test).rstrip('.')}::{case.test}",
        case=case,
    )
    for label in case.labels:
        item.add_marker(label)
    return item


def _longrepr(outcome: str, text: str, item: CTestItem) -> Any:
    if outcome == "skipped":
        return (str(item.path), 0, text)
    return text if outcome == "failed" else None
