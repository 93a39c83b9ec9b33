"""One run of the suite: its settings, its results, its exit code."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import datetime
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ipclab import (
    __version__,
    backend,
    ctest,
    deviations,
    expect,
    explore,
    fingerprint,
    hold,
    manifest,
    model,
    probe,
    reader,
    records,
    requirements,
    results,
    supervise,
)
from ipclab.ctest import Case
from ipclab.errors import HarnessError, UsageError
from ipclab.records import Record, Row
from ipclab.results import Results


@dataclass(frozen=True)
class Settings:
    """What a person requested."""

    build: Path
    results: Path | None = None  # None: keep nothing
    resume: bool = False  # continue the run in `results`, which was stopped
    expression: str = ""
    jobs: int = 1
    gpus: int | None = None
    repeat: int = 1
    seed: int = 1
    strict: bool = False
    require: Path | None = None
    requirements: Path | None = None  # instead of the rooms of the source tree
    deviations: Path | None = None
    backend: str = "auto"  # one of model.BACKENDS
    profile: str | None = None  # which machine the model imitates
    expect: Path | None = None  # what this machine must be able to do
    apart: bool = False  # no test shares its processes with others
    delays: bool = False  # roles pause at random


@dataclass(frozen=True)
class Planted:
    """How a test runs with the library in front of the driver: with a fault, or with
    the census.
    """

    environment: Mapping[str, str]
    seconds: float | None = None  # time limit in seconds; None: that of CTest's list


class Run:
    """The state of a run. Only `execute` and `execute_together` may be called from
    several threads.
    """

    def __init__(
        self, settings: Settings, everything: Sequence[Case] | None = None
    ) -> None:
        """Read the list, ask the probe, open the results.

        `everything` is CTest's list if the caller has already read it. Raises
        UsageError and HarnessError.
        """
        self.settings = settings
        everything = everything or ctest.read(settings.build)
        self.everything = everything  # CTest's list
        self.cases = [
            case
            for case in everything
            if case.suite in ("sample", "conformance")
            and (settings.gpus is None or case.gpus <= settings.gpus)
        ]
        # With -k, the plugin knows the selection. The caller of mutants selects, too.
        whole = settings.results is not None and not settings.expression
        if whole and (wrong := ctest.incomplete(settings.build, self.cases)):
            raise UsageError(wrong)
        rows, entries = _data_files(settings)
        self._data = rows, entries
        self.catalogue = requirements.read(rows)
        expected = expect.read(settings.expect) if settings.expect else None
        self.required = _read_required(settings.require, set(self.catalogue))
        chosen = backend.choose(
            settings.build, everything, settings.backend, settings.profile
        )
        self.probe = chosen.probe
        self.environment = chosen.environment
        self.findings = expect.findings(expected, self.probe) if expected else []
        probes = [case for case in everything if case.suite == "probe"]
        self._holder = (
            hold.Holder(probes[0], self.environment)
            if self.probe["backend"] == "cuda"
            else None
        )
        self.start_ms = self._holder.start_ms() if self._holder else None
        held = self._holder is not None and self._holder.holds
        self.fingerprint = fingerprint.of_machine(self.probe, held_open=held)
        self.deviations = deviations.Deviations(
            deviations.read_deviations(entries),
            self.probe["backend"],
            probe.driver(self.probe),
            [str(gpu["name"]) for gpu in self.probe["gpus"]],
            datetime.datetime.now(datetime.UTC).date(),
            self.fingerprint["runtime_version"],
        )
        self.state = "running"
        self.records: list[Record] = []
        self.selected = len(self.cases)
        self.explored: explore.Document | None = None  # what random programs found
        self.error: str | None = None  # why the harness could not continue
        self._exchanged: list[str] = []  # messages about files that changed in the run
        self._programs = [*self.cases, *probes]
        self._began_with = self._inputs() if settings.results else {}
        self._started = _now()
        self._temporary = tempfile.TemporaryDirectory(prefix="ipclab-")
        self._capabilities = Path(self._temporary.name) / "capabilities.json"
        try:
            self._capabilities.write_text(json.dumps(self.probe), encoding="utf-8")
            self.results = self._opened()
            self.save()
        except BaseException:
            self._release()
            raise

    def _opened(self) -> Results | None:
        """The results folder. If an earlier run continues, its records count."""
        self.results = None
        folder, resume = self.settings.results, self.settings.resume
        if folder is None:
            return None
        if resume and (
            wrong := _cannot_continue(results.read_run(folder), self.document())
        ):
            raise UsageError(f"{folder}: {wrong}; start again without --resume")
        opened = Results(folder, resume)
        if resume:
            contents = results.read(folder, memory=None)
            if contents.wrong:
                raise UsageError(f"{folder}: {contents.wrong}")
            self.records = contents.records
            self.explored = contents.run.get("explored")
            self._started = contents.run["started"]
        return opened

    def _release(self) -> None:
        self._temporary.cleanup()
        if self._holder:
            self._holder.close()

    def execute(
        self,
        case: Case,
        attempt: int,
        visible: str | None,
        exclusive: bool,
        planted: Planted | None = None,
    ) -> Record:
        """Run one test once, judge it and return its record.

        A test whose row does not apply to this driver is not started. `visible` is
        CUDA_VISIBLE_DEVICES of the test; with None the variable stays as it is.
        """
        row = self.catalogue.get(case.requirement or "", {})
        if why := deviations.does_not_hold(row, probe.cuda(self.probe)):
            line = records.not_judged(case, why, self.settings.seed)
            return self.judge(case, attempt, line)
        limit = planted.seconds if planted else None
        started = self._start(
            case.command,
            limit or case.timeout,
            case.folder,
            visible,
            exclusive,
            planted,
        )
        if isinstance(started, str):
            line = records.not_started(case, started, self.settings.seed)
        else:
            ended, written = started
            line = records.of_test(case, ended, written, self.settings.seed, limit)
        return self.judge(case, attempt, line)

    def execute_together(
        self,
        cases: Sequence[Case],
        attempt: int,
        visible: str | None,
        exclusive: bool,
    ) -> list[Record]:
        """Start a program once for several of its tests; return a record for each.

        If the program ended before it reached all tests, the other tests run
        separately. `visible` has the same meaning as in `execute`.
        """
        here = probe.cuda(self.probe)
        rows = {case: self.catalogue.get(case.requirement or "", {}) for case in cases}
        held = [
            case for case in cases if not deviations.does_not_hold(rows[case], here)
        ]
        lines: dict[Case, Record] = {}
        if len(held) > 1:
            started = self._start(
                ctest.together(held),
                sum(case.timeout for case in held),
                held[0].folder,
                visible,
                exclusive,
                None,
            )
            if not isinstance(started, str):
                lines = records.of_tests(held, *started, self.settings.seed)
        return [
            self.judge(case, attempt, lines[case])
            if case in lines
            else self.execute(case, attempt, visible, exclusive)
            for case in cases
        ]

    def _start(
        self,
        command: Sequence[str],
        seconds: float,
        where: str,
        visible: str | None,
        exclusive: bool,
        planted: Planted | None,
    ) -> tuple[supervise.Ended, bytes] | str:
        """How a program of tests ended, and the bytes of its records; or a text that
        says why the program did not start.
        """
        folder = tempfile.mkdtemp(dir=self._temporary.name)
        path = Path(folder) / "record.jsonl"
        environment = {
            **os.environ,
            **self.environment,
            "IPCLAB_RECORD": str(path),
            "IPCLAB_CAPABILITIES": str(self._capabilities),
            "IPCLAB_SEED": str(self.settings.seed),
            "TMPDIR": folder,  # a killed process leaves its files: they go with it
        }
        environment.pop("IPCLAB_EXCLUSIVE", None)
        environment.pop("IPCLAB_DELAYS", None)
        if self.settings.delays:
            environment["IPCLAB_DELAYS"] = "1"
        if exclusive:
            environment["IPCLAB_EXCLUSIVE"] = "1"
            if self.on_model and self.settings.jobs > 1:
                environment[model.MACHINE] = folder
        if visible is not None:
            environment["CUDA_VISIBLE_DEVICES"] = visible
        for name in fingerprint.PLANTED if planted else ():
            environment.pop(name, None)
        environment.update(planted.environment if planted else {})
        try:
            ended = supervise.run(
                command, timeout=seconds, folder=where, environment=environment
            )
            return ended, path.read_bytes() if path.exists() else b""
        except (OSError, IndexError) as error:
            return str(error)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def judge(self, case: Case, attempt: int, line: Record) -> Record:
        """Make the run's record from the line of one test."""
        row = self.catalogue.get(case.requirement or "")
        kind = row["kind"] if row else None
        entry = self.deviations.entry_for(case.test, case.requirement)
        verdict, reason = records.verdict(line, kind, entry)
        if case.suite == "conformance" and row is None and verdict != "broken":
            verdict = "broken"
            reason = (
                f"{case.requirement} is no row of the catalogue"
                if case.requirement
                else "judges no row: CTest's list gives no requirement"
            )
        return {
            "version": 2,
            "ctest": case.name,
            "suite": case.suite,
            "lesson": case.lesson,
            "kind": kind,
            "verdict": verdict,
            "backend": self.probe["backend"],
            "fingerprint": self.fingerprint["id"],
            "deviation": entry if verdict in ("deviates", "conforms") else None,
            "attempt": attempt,
            **line,
            "reason": reason,
        }

    def add(self, record: Record) -> None:
        """Keep a record; write it to disk first."""
        if self.results:
            self.results.append(record)
        self.records.append(record)

    @property
    def rows(self) -> list[Row]:
        """The results of the tests that have a record so far."""
        return records.rows(self.records)

    @property
    def on_model(self) -> bool:
        """Whether the reference model answers. If several tests run at once on the
        model, a test that must run alone has its own simulated machine, so no other
        test waits for it.
        """
        return bool(self.probe["backend"] == "model")

    @property
    def filtered(self) -> bool:
        """Whether less than the whole suite was requested."""
        return bool(self.settings.expression) or self.settings.gpus is not None

    @property
    def problems(self) -> list[str]:
        """What fails the run besides the verdicts of its tests."""
        kinds = {name: row["kind"] for name, row in self.catalogue.items()}
        tests = {
            x.test: x.requirement for x in self.everything if x.suite == "conformance"
        }
        found = [
            *self.findings,
            *self.deviations.problems(kinds, tests, self.filtered),
        ]
        if self.error:
            found.append(self.error)
        table = self.rows
        found += records.excused_in_vain(table)
        judged = {
            row.record["requirement"] for row in table if row.verdict in records.JUDGED
        }
        found += [
            f"{name} had to be judged here and was not"
            for name in self.required
            if name not in judged
        ]
        found += self._exchanged
        if self.explored:
            found += explore.problems(self.explored)
        if self.settings.backend == "cuda" and self.probe["backend"] == "none":
            found.append(f"no working driver: {probe.first_line(self.probe)}")
        if self.state != "running" and not any(
            row.verdict in records.JUDGED + records.FAILING for row in table
        ):
            found.append(
                "this run judged nothing: a run without a verdict is not green"
            )
        return found

    @property
    def exit_code(self) -> int:
        """0: nothing fails the run; 1: something does; 3: broken or interrupted."""
        if self.error or self.state in ("interrupted", "broken"):
            return 3
        strict = self.settings.strict
        failed = any(records.fails(row.verdict, strict) for row in self.rows)
        return 1 if failed or self.problems else 0

    def close(self, state: str) -> None:
        """End the run as `finished`, `interrupted` or `broken`."""
        self.state = "broken" if self.error else state
        self._release()
        try:
            if self.results:
                self._compare_inputs()
            self.save()
        except HarnessError as error:
            self.error = self.error or str(error)
            self.state = "broken"

    def _compare_inputs(self) -> None:
        now = self._inputs()
        self._exchanged = [
            f"{name} changed during the run"
            for part, before in self._began_with.items()
            for name in before
            if now[part].get(name) != before[name]
        ]

    def save(self) -> None:
        """Write run.json, if results are kept."""
        if self.results:
            document = manifest.sealed(self.document())
            self.results.write("run.json", json.dumps(document, indent=1) + "\n")

    def document(self) -> dict[str, Any]:
        """What run.json holds, without its own digest."""
        over = self.state != "running"
        settings = {
            name: str(value) if isinstance(value, Path) else value
            for name, value in asdict(self.settings).items()
        }
        return {
            "version": 1,
            "state": self.state,
            "started": self._started,
            "finished": _now() if over else None,
            "backend": self.probe["backend"],
            "machine": probe.first_line(self.probe),
            "settings": settings,
            "filtered": self.filtered,
            "selected": self.selected,
            "counts": records.counts(self.rows),
            "problems": self.problems,
            "exit_code": self.exit_code if over else None,
            **({"explored": self.explored} if self.explored else {}),
            "fingerprint": self.fingerprint,
            "probe": self.probe,
            "requirements": {
                name: {
                    "statement": row["statement"],
                    "kind": row["kind"],
                    "source": row.get("source"),
                    **(
                        {
                            x: row[x]
                            for x in ("follows_from", "since", "until", "code")
                            if x in row
                        }
                    ),
                }
                for name, row in self.catalogue.items()
            },
            "deviations": self.deviations.applicable,
            "manifest": {
                "tool": __version__,
                "tests": {case.name: case.requirement for case in self.cases},
                **self._began_with,
                "records": self.results.seal if self.results and over else None,
            },
        }

    def _inputs(self) -> dict[str, dict[str, str | None]]:
        """The digests of the programs, of the catalogue and of deviations.json."""
        return {
            "programs": manifest.of_programs(
                self.settings.build, self._programs, self.probe["backend"]
            ),
            "data": manifest.of_data(*self._data),
        }


def _cannot_continue(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """Why the run `now` is another run than the stopped run; None if it is the same."""
    if before["state"] == "finished":
        return "this run is finished"
    for name, value in now["settings"].items():
        was = before["settings"].get(name)
        if name not in ("build", "jobs", "results", "resume") and was != value:
            return f"was begun with {name} = {was!r}, not {value!r}"
    if before["fingerprint"]["id"] != now["fingerprint"]["id"]:
        return (
            "was begun on another machine, or with another driver, other limits or "
            "other variables"
        )
    parts = ("programs", "data", "tests")
    if any(before["manifest"].get(x) != now["manifest"][x] for x in parts):
        return "was begun with other programs or another catalogue"
    return None


def _data_files(settings: Settings) -> tuple[Path, Path]:
    """The paths of the catalogue, a folder or a file, and of deviations.json."""
    rows, entries = settings.requirements, settings.deviations
    if rows is None or entries is None:
        source = ctest.source_folder(settings.build) / "conformance"
        rows = rows or source
        entries = entries or source / "deviations.json"
    return rows, entries


def _read_required(path: Path | None, known: set[str]) -> list[str]:
    """The ids of the rows that must be judged here; none without a file. The file has
    one id on each line; `#` begins a comment.
    """
    if path is None:
        return []
    lines = reader.text(path).splitlines()
    names = [name for line in lines if (name := line.partition("#")[0].strip())]
    for name in names:
        if name not in known:
            raise UsageError(f"{path}: {name} is no row of the catalogue")
    return names


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
