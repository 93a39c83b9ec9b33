"""`ipclab mutants --twin OLD`: do faults behave as in an earlier library of faults?

Each fault runs in its old and in its new form with all tests of its folder, on the
model. Compared are verdict, whether the fault took effect, step and call. This is the
proof of every change of a fault's form. It is no proof that the form says what the
sentence says: a fault that became narrower can behave the same in all tests.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ipclab import ctest, declarations, manifest, results, schedule
from ipclab.ctest import Case
from ipclab.errors import UsageError
from ipclab.mutants import faults, trials
from ipclab.mutants.faults import Fault
from ipclab.mutants.planting import EVERYBODY_PASSES, Bench, Seen
from ipclab.run import Run, Settings
from ipclab.terminal import Counted

KEPT = "twin.jsonl"  # results, in the results folder; further calls use them again
OLD, NEW = "old", "new"
# A test that differs runs so many more times with each form, alone. Only if no result
# of one form is a result of the other form, the forms differ.
REPEATS = 3


@dataclass(frozen=True)
class Result:
    """What one test saw of one form of a fault."""

    verdict: str
    fired: bool
    step: str | None
    call: str | None

    def __str__(self) -> str:
        where = ", ".join(x for x in (self.step, self.call) if x)
        effect = "" if self.fired else ", never fired"
        return f"{self.verdict}{effect}" + (f" ({where})" if where else "")


@dataclass(frozen=True)
class Job:
    """One test under one form of a fault; without a fault, `fault` is None."""

    fault: Fault | None
    form: str
    profile: str | None
    case: Case
    number: int = 0  # counts further runs


def run(
    out: Console,
    build: Path,
    old: Path,
    chosen: Iterable[Fault],
    jobs: int,
    folder: Path | None,
    tests: int | None,
    seconds: float | None,
) -> int:
    """Compare the chosen faults with their old forms; print differences and counts.

    `old` is the old library. With `tests`, a fault runs with the tests of its rows, and
    then with others of its folder, at most so many in all. Returns 0 if no fault
    differs, 1 if one does, 3 if it was stopped before its end. Raises UsageError and
    HarnessError.
    """
    if not old.is_file():
        raise UsageError(f"{old}: no library of faults here")
    folder = folder or results.default_folder("-twin")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ipclab-twin-") as temporary:
        Path(temporary).chmod(EVERYBODY_PASSES)
        there = _Twins(out, build, old.resolve(), Path(temporary), folder)
        try:
            return there.work([*chosen], jobs, tests, seconds)
        finally:
            there.close()


class _Twins:
    """The work of one command."""

    def __init__(
        self, out: Console, build: Path, old: Path, temporary: Path, folder: Path
    ) -> None:
        self._out = out
        self._build = build
        new = (build / faults.LIBRARY).resolve()
        self._benches = {}
        self._libraries = {}
        # Copies, because the library may be built again meanwhile.
        for form, library in ((OLD, old), (NEW, new)):
            copy = temporary / form / library.name
            copy.parent.mkdir()
            shutil.copy(library, copy)
            self._benches[form] = Bench(copy, temporary, "model")
            self._libraries[form] = manifest.of_file(copy)
        # A fault's new form has to run again only if its declaration has changed.
        source = ctest.source_folder(build)
        self._declared = declarations.digests(declarations.texts(source))
        self._runs: dict[str | None, Run] = {}
        self._path = folder / KEPT
        self._known: dict[str, Result] = {}
        self._baseline: dict[tuple[str | None, str], tuple[bool, float]] = {}
        self._read()

    def close(self) -> None:
        """End the runs."""
        for each in self._runs.values():
            each.close("finished")

    def work(
        self,
        chosen: list[Fault],
        at_once: int,
        tests: int | None,
        seconds: float | None,
    ) -> int:
        """Run what is not known yet, then tell the differences."""
        deadline = None if seconds is None else time.monotonic() + seconds
        pairs = [
            (fault, case)
            for fault in chosen
            if fault.kind != faults.MODEL and not self._lacks(fault)
            for case in self._cases(fault)[:tests]
        ]
        first = dict.fromkeys((_profile(fault), case) for fault, case in pairs)
        complete = self._run(
            [
                Job(None, NEW, *x)
                for x in first
                if (x[0], x[1].name) not in self._baseline
            ],
            at_once,
            deadline,
        )
        pairs = [
            pair
            for pair in pairs
            if self._baseline.get((_profile(pair[0]), pair[1].name), (False, 0))[0]
        ]
        complete = complete and self._run(
            [
                Job(fault, form, _profile(fault), case)
                for fault, case in pairs
                for form in (OLD, NEW)
            ],
            at_once,
            deadline,
        )
        differ = [pair for pair in pairs if not self._same(*pair, 0)]
        for number in range(1, REPEATS + 1):
            open_ = [pair for pair in differ if not self._same(*pair, number - 1)]
            complete = complete and self._run(
                [
                    Job(fault, form, _profile(fault), case, number)
                    for fault, case in open_
                    for form in (OLD, NEW)
                ],
                1,
                deadline,
            )
        return self._tell(pairs, differ, complete)

    def _tell(
        self,
        pairs: list[tuple[Fault, Case]],
        differ: list[tuple[Fault, Case]],
        complete: bool,
    ) -> int:
        bad = [pair for pair in differ if not self._same(*pair, REPEATS)]
        for fault, case in bad:
            old, new = (self._seen(fault, case, form, REPEATS) for form in (OLD, NEW))
            self._say(
                f"{fault.name}: {case.name}: was {_told(old)}; is {_told(new)}", "red"
            )
        names = {fault.name for fault, _ in pairs}
        done = sum(
            all(self._seen(fault, case, form, 0) for form in (OLD, NEW))
            for fault, case in pairs
        )
        fired = sum(
            any(x.fired for x in self._seen(fault, case, NEW, 0))
            for fault, case in pairs
        )
        self._say(
            f"{len(names)} faults, {done} of {len(pairs)} pairs of test and fault: the "
            f"fault took effect in {fired}; {len(bad)} differ, of "
            f"{len({fault.name for fault, _ in bad})} faults; {len(differ) - len(bad)} "
            f"differed at first"
        )
        if not complete:
            self._say("stopped before the end", "yellow")
            return 3
        return 1 if bad else 0

    def _run(self, jobs: list[Job], at_once: int, deadline: float | None) -> bool:
        jobs = [x for x in jobs if x.fault is None or self._key(x) not in self._known]
        jobs.sort(key=lambda job: (job.number, not job.case.alone))
        if not jobs:
            return True
        shown = Counted(self._out, len(jobs))

        def finished(job: Job, seen: Seen) -> None:
            if job.fault is None:
                place = job.profile, job.case.name
                usable = seen.verdict in trials.SOUND
                self._baseline[place] = usable, seen.seconds
                entry = {"profile": place[0], "ctest": place[1], "usable": usable}
                self._keep(
                    {**entry, "seconds": seen.seconds, "new": self._libraries[NEW]}
                )
            else:
                record = seen.record
                result = Result(
                    seen.verdict, bool(seen.fired), record["step"], record["call"]
                )
                self._known[self._key(job)] = result
                self._keep({"key": self._key(job), **asdict(result)})
            shown.finished("")

        with shown:
            return schedule.run(
                jobs,
                at_once,
                schedule.Allocator([], at_once, True),
                self._execute,
                lambda _job: None,
                finished,
                deadline=deadline,
            )

    def _execute(self, job: Job, visible: str | None, exclusive: bool) -> Seen:
        """Run one test. Each call runs in its own thread."""
        limit = None
        if job.fault is not None and job.number == 0:  # later on, a hang is a hang
            _, seconds = self._baseline[job.profile, job.case.name]
            limit = trials.limit(job.fault, job.case, seconds)
        machine = self._machine(job.profile)
        bench = self._benches[job.form]
        return bench.see(machine, job.case, job.fault, limit, visible, exclusive, {})

    def _machine(self, profile: str | None) -> Run:
        if profile not in self._runs:
            self._runs[profile] = Run(
                Settings(build=self._build, backend="model", profile=profile)
            )
        return self._runs[profile]

    def _lacks(self, fault: Fault) -> bool:
        return len(self._machine(_profile(fault)).probe["gpus"]) < fault.gpus

    def _cases(self, fault: Fault) -> list[Case]:
        """The tests of the fault's rows, then those of the folder of its first row."""
        there = [
            case
            for case in self._machine(_profile(fault)).cases
            if case.suite == "conformance"
        ]
        own = [x for row in fault.rows for x in there if x.requirement == row]
        others = [x for x in there if own and x.lesson == own[0].lesson]
        # Which tests come first does not depend on their alphabet.
        others.sort(
            key=lambda x: hashlib.sha256(f"{fault.name} {x.name}".encode()).digest()
        )
        return [*dict.fromkeys([*own, *others])]

    def _same(self, fault: Fault, case: Case, number: int) -> bool:
        """Is there a result that both forms have had, up to this run?"""
        old, new = (self._seen(fault, case, form, number) for form in (OLD, NEW))
        return bool(old & new) or not (old and new)

    def _seen(self, fault: Fault, case: Case, form: str, number: int) -> set[Result]:
        keys = (
            self._key(Job(fault, form, _profile(fault), case, x))
            for x in range(number + 1)
        )
        return {self._known[x] for x in keys if x in self._known}

    def _key(self, job: Job) -> str:
        assert job.fault is not None
        form = self._libraries[job.form]
        if job.form == NEW:
            form = self._declared.get(job.fault.name, form)
        return f"{job.form} {form} {job.fault.name} {job.case.name} {job.number}"

    def _read(self) -> None:
        for line in self._path.read_text().splitlines() if self._path.exists() else ():
            entry = json.loads(line)
            if "key" in entry:
                key = entry.pop("key")
                self._known[key] = Result(**entry)
            else:
                place = entry["profile"], entry["ctest"]
                self._baseline[place] = entry["usable"], entry["seconds"]

    def _keep(self, entry: dict[str, object]) -> None:
        results.append(self._path, entry)

    def _say(self, line: str, style: str = "") -> None:
        self._out.print(Text(line, style=style), soft_wrap=True)


def _profile(fault: Fault) -> str | None:
    return fault.profile or ("two-gpus" if fault.gpus > 1 else None)


def _told(found: set[Result]) -> str:
    return " or ".join(sorted(str(x) for x in found))
