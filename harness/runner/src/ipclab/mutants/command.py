"""`ipclab mutants`: does the suite notice a driver that is wrong in one place?

A library in front of the driver (NVIDIA's or the model) breaks one behaviour at a time
(harness/faults). A test of each row of a named fault must notice the fault. A fault
that is an operator must be noticed by at least one test that reaches the operator's
function. No test may flag another legal answer (ok-…).
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import datetime
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ipclab import probe, results, schedule
from ipclab.ctest import Case
from ipclab.errors import UsageError
from ipclab.mutants import digests, faults, matrix, report, trials, twin
from ipclab.mutants.faults import CENTRAL
from ipclab.mutants.journal import Journal
from ipclab.mutants.plan import (
    CONFORMANCE,
    LESSONS,
    Job,
    Machines,
    Plan,
    Request,
    choose,
)
from ipclab.mutants.planting import EVERYBODY_PASSES, Bench
from ipclab.mutants.trials import Baseline, Trial
from ipclab.terminal import Counted

# The driver creates one context after the other, so contexts take most of the time on a
# GPU. More than half of a context's time goes into its queues for kernels and copies.
FEW_QUEUES = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "4",
    "CUDA_DEVICE_MAX_COPY_CONNECTIONS": "1",
}
# Tests of these lessons hold one stream while many others must go on. Streams that
# share a queue wait for one another, so these tests keep the driver's own numbers.
NEED_QUEUES = (
    "10_event_handle",
    "11_event_ping_pong",
    "12_event_refusals",
    "13_device_flags",
)
STOPPED = 3  # exit code


def run(out: Console, request: Request) -> int:
    """Run the faults; keep and show the matrix.

    Returns 0 if each fault was noticed and each judged row was seen to fail, and 1 if
    not. Returns 3 if the command was stopped before its end; then `--resume` continues.
    Raises UsageError and HarnessError.
    """
    if request.twin:
        chosen, _ = choose(faults.read(request.build), "model", request)
        return twin.run(
            out,
            request.build,
            request.twin,
            chosen,
            request.jobs,
            request.results,
            request.tests,
            request.seconds,
        )
    began = time.monotonic()
    campaign = Campaign(out, request)
    try:
        complete = campaign.work(began)
        document = report.document(campaign.plan)
    finally:
        campaign.close()
    name = matrix.NAMES[campaign.plan.suite]
    results.write(campaign.folder / name, json.dumps(document, indent=1) + "\n")
    page = campaign.folder / name.replace(".json", ".html")
    results.write(page, matrix.page(document))
    report.show(out, document)
    out.print(Text(str(page)), soft_wrap=True)
    if not complete:
        left = matrix.left(document)
        lessons = f"--lessons {request.lessons} " if request.lessons else ""
        out.print(
            Text(
                f"stopped: {left} of {len(document['faults'])} faults are left; "
                f"continue with: ipclab mutants {lessons}--resume {campaign.folder}",
                style="yellow",
            ),
            soft_wrap=True,
        )
        return STOPPED
    return 1 if matrix.failed(document) else 0


class Campaign:
    """The work of one command."""

    def __init__(self, out: Console, request: Request) -> None:
        self._out = out
        self._request = request
        self._catalogue = faults.read(request.build)
        begun = self._begun(request)
        self._machines = Machines(
            request.build, str(begun.head["backend"]) if begun else request.backend
        )
        self._temporary = Path(tempfile.mkdtemp(prefix="ipclab-faults-"))
        self._temporary.chmod(EVERYBODY_PASSES)
        try:
            journal = self._journal(request, begun)
            self.plan = Plan(request, self._catalogue, self._machines, journal)
            self._bench = Bench(
                self._catalogue.library, self._temporary, self.plan.backend
            )
        except BaseException:
            self.close()
            raise

    def _begun(self, request: Request) -> Journal | None:
        """The journal of the work that continues; None if the work begins."""
        if not request.resume:
            return None
        assert request.results is not None
        self.folder = request.results
        suite = LESSONS if request.lessons else CONFORMANCE
        return Journal.resume(self.folder / matrix.JOURNALS[suite])

    def _journal(self, request: Request, begun: Journal | None) -> Journal:
        """The journal of this work, with the results that are still right."""
        suite = LESSONS if request.lessons else CONFORMANCE
        sound = self._machines.of(None)
        backend = str(sound.probe["backend"])
        if backend == "none":
            raise UsageError("no GPU here: leave out --backend cuda for the model")
        digest, tests, all_faults = digests.of(self._catalogue, sound, suite)
        chosen, partial = choose(self._catalogue, backend, request)
        now = {
            "backend": backend,
            "machine": probe.first_line(sound.probe),
            "digest": digest,
        }
        if begun:
            self._same(begun.head, now)
            names = [x.name for x in chosen]
            if begun.head["partial"]:
                names = [x for x in begun.head["faults"] if x in all_faults]
            again = begun.keep(tests, {x: all_faults[x] for x in names})
            if any(again):
                self._say(
                    f"{len(again[0])} tests and {len(again[1])} faults are not the "
                    "same any more; their results are dropped, and they run again"
                )
            return begun
        self.folder = _folder(request.results)
        return Journal.begin(
            self.folder / matrix.JOURNALS[suite],
            {
                "made": _now(),
                "suite": suite,
                "lessons": request.lessons,
                **now,
                "tests": tests,
                "partial": partial,
                "faults": {x.name: all_faults[x.name] for x in chosen},
            },
        )

    def _same(self, head: dict[str, Any], now: dict[str, str]) -> None:
        """Raise UsageError unless the work that was begun can continue here."""
        if head["digest"] != now["digest"]:
            raise UsageError(
                f"{self.folder}: was begun with another build (the faults, or what all "
                "tests share, differ); start again without --resume, or make the "
                "earlier build again"
            )
        if head["machine"] != now["machine"]:
            raise UsageError(
                f"{self.folder}: was begun on {head['machine']}; this is "
                f"{now['machine']}"
            )
        if (asked := head["lessons"]) != self._request.lessons:
            raise UsageError(f"{self.folder}: was begun with --lessons {asked}")

    def close(self) -> None:
        """End the runs, and remove the temporary files."""
        self._machines.close()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def work(self, began: float) -> bool:
        """Run baseline, faults and proofs; return False if a signal or the time limit
        ended the work.
        """
        seconds = self._request.seconds
        deadline = None if seconds is None else began + seconds
        sound = self.plan.without_baseline()
        self._say(str(self.plan.journal.head["machine"]))
        self._say(
            f"{len(self.plan.chosen)} faults; {len(sound)} tests without a fault first"
        )
        if self._request.lessons == CENTRAL:
            named = {case.lesson for case in self.plan.cases(None)}
            if idle := sorted(str(x) for x in named - self._catalogue.lessons.keys()):
                self._say(f"no central fault in faults.json for {', '.join(idle)}")
        if not self._run(sound, lambda _job: True, deadline):
            return False
        for known_bad in report.unsound(self.plan):
            self._say(
                f"left out: {known_bad['ctest']}: {known_bad['verdict']}: "
                f"{known_bad['reason']}"
            )
        self.plan.unsettled = dict.fromkeys(self.plan.chosen)
        jobs = self.plan.next()
        faults_left = len({job.fault for job in jobs})
        self._say(f"{faults_left} faults are not settled: {len(jobs)} tests next")
        if not self._run(jobs, self.plan.wanted, deadline, more=self.plan.next):
            return False
        if again := self.plan.again(report.missed(self.plan)):
            self._say(
                f"{len({job.fault for job in again})} faults were not noticed: "
                f"{len(again)} tests run once more, one at a time"
            )
            if not self._run(again, self.plan.wanted, deadline, at_once=1):
                return False
        whole = self.plan.suite == CONFORMANCE and not self.plan.journal.head["partial"]
        if not whole or not (proofs := self.plan.proofs()):
            return True
        self._say(
            f"{len(self.plan.unproved())} rows have failed under no fault yet: "
            "further tries"
        )

        unproved = set(self.plan.unproved())

        def still_unproved(job: Job) -> bool:
            return job.case.requirement in unproved

        def proved(job: Job, trial: Trial) -> None:
            if trial.effect in trials.NOTICED:
                unproved.discard(str(job.case.requirement))

        return self._run(proofs, still_unproved, deadline, proved)

    def _run(
        self,
        jobs: Sequence[Job],
        wanted: Callable[[Job], bool],
        deadline: float | None,
        told: Callable[[Job, Trial], None] = lambda _job, _trial: None,
        more: Callable[[], Sequence[Job]] = lambda: (),
        at_once: int | None = None,
    ) -> bool:
        if not jobs:
            return True
        apart = self.plan.backend == "model"  # each test has its own machine
        uuids = [] if apart else self._machines.uuids(None)
        at_once = at_once or self._request.jobs
        shown = Counted(self._out, len(jobs))

        def still_wanted(job: Job) -> bool:
            if not (yes := wanted(job)):
                shown.dropped()
            return yes

        def further() -> Sequence[Job]:
            found = more()
            shown.more(len(found))
            return found

        def finished(job: Job, entry: Baseline | Trial) -> None:
            self.plan.add(job, entry)
            if isinstance(entry, Baseline):
                shown.finished("")
                return
            told(job, entry)
            number = sum(row is None for _, row in self.plan.noticed)
            shown.finished(f"{number} noticed")

        with shown:
            return schedule.run(
                jobs,
                at_once,
                schedule.Allocator(uuids, at_once, apart),
                self._execute,
                self.plan.running.add,
                finished,
                still_wanted,
                deadline,
                further,
            )

    def _execute(
        self, job: Job, visible: str | None, exclusive: bool
    ) -> Baseline | Trial:
        """Run one test. Each call runs in its own thread."""
        fault, case = job.fault, job.case
        limit = None
        if fault is not None:
            sound = self.plan.sound[job.profile][case.name]
            limit = trials.limit(fault, case, sound.seconds)
        seen = self._bench.see(
            self._machines.of(job.profile),
            case,
            fault,
            limit,
            visible,
            exclusive,
            self._queues(case),
        )
        if fault is None:
            return Baseline(
                job.profile,
                case.name,
                seen.verdict,
                seen.reason,
                seen.seconds,
                seen.reached,
            )
        covered = seen.verdict == "deviates"
        return Trial(
            fault=fault.name,
            profile=job.profile,
            ctest=case.name,
            verdict=seen.verdict,
            reason=seen.reason,
            fired=seen.fired,
            where=seen.where,
            deviation=seen.record["requirement"] if covered else None,
            seconds=seen.seconds,
        )

    def _queues(self, case: Case) -> dict[str, str]:
        """How many queues the contexts of a test have; empty: as many as the driver
        wants, or as the user has set.
        """
        few = (
            self.plan.backend == "cuda"
            and self.plan.suite == CONFORMANCE
            and case.lesson not in NEED_QUEUES
            and not FEW_QUEUES.keys() & os.environ.keys()
        )
        return FEW_QUEUES if few else {}

    def _say(self, line: str) -> None:
        self._out.print(Text(line), soft_wrap=True)


def _folder(wanted: Path | None) -> Path:
    """Make the folder for the matrix; UsageError if it cannot be made."""
    folder = wanted or results.default_folder("-mutants")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}") from None
    return folder


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
