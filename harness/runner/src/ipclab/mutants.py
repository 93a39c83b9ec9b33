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
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ipclab import (
    changed,
    ctest,
    declarations,
    faults,
    manifest,
    matrix,
    packed,
    probe,
    records,
    results,
    schedule,
    trials,
    twin,
)
from ipclab.ctest import Case
from ipclab.deviations import UNJUDGED_KINDS
from ipclab.errors import UsageError
from ipclab.faults import CENTRAL, EVERY, HOOK, OPERATOR, Fault
from ipclab.journal import Journal
from ipclab.planting import EVERYBODY_PASSES, Bench
from ipclab.run import Run, Settings
from ipclab.terminal import Counted
from ipclab.trials import Baseline, Trial

CONFORMANCE, LESSONS = "conformance", "sample"
ON_MODEL = ("model", "trace")  # folders of harness/ that no test on a GPU uses
# If no fault has made a row fail, there are up to this many further trials: a test of
# the row with an operator.
PROOFS = 60
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
# A change of the whole suite concerns all faults; this many of them run, then.
MOST_OF_CHANGE = 200
STOPPED = 3  # exit code


@dataclass(frozen=True)
class Request:
    """What a person requested."""

    build: Path
    backend: str = "model"
    jobs: int = 1
    results: Path | None = None  # None: a new folder under results/
    resume: bool = False  # continue in `results`
    names: tuple[str, ...] = ()  # empty: all
    functions: tuple[str, ...] = ()  # only faults of these functions; empty: all
    kind: str | None = None  # OPERATOR: only operators; NAMED: no operators; None: all
    shard: tuple[int, int] | None = None  # only part K of N parts
    changed: str | None = None  # only what concerns a change since this revision
    sample: int | None = None  # and this many of the other faults, always the same ones
    lessons: str | None = None  # run the samples instead of the suite: CENTRAL or EVERY
    seconds: float | None = None  # stop after this time
    baseline: Path | None = None  # a run without the library, to compare with
    like: Path | None = (
        None  # an earlier matrix: tests that noticed a fault there run first
    )
    twin: Path | None = None  # instead: compare with this earlier library of faults
    tests: int | None = None  # with `twin`: at most this many tests for a fault


@dataclass(frozen=True)
class Job:
    """One test under one fault; without a fault, `fault` is None."""

    fault: Fault | None
    profile: str | None
    case: Case


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
        document = campaign.document()
    finally:
        campaign.close()
    name = matrix.NAMES[campaign.suite]
    results.write(campaign.folder / name, json.dumps(document, indent=1) + "\n")
    page = campaign.folder / name.replace(".json", ".html")
    results.write(page, matrix.page(document))
    _show(out, document)
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


def choose(
    catalogue: faults.Catalogue, backend: str, request: Request
) -> tuple[list[Fault], str | None]:
    """The requested faults, and why the others were left out; None if none were.

    UsageError on an unknown name or function, or if nothing is left.
    """
    there = [x for x in catalogue.faults if backend == "model" or x.kind != HOOK]
    if request.lessons:
        central = {name for names in catalogue.lessons.values() for name in names}
        every = request.lessons == EVERY
        there = [
            x for x in there if x.name in central or (every and x.kind != OPERATOR)
        ]
    known = {x.name for x in catalogue.faults}
    functions = {x.function for x in catalogue.faults}
    for name in request.names:
        if name not in known:
            raise UsageError(f"no fault '{name}'; `ipclab_faults` lists them")
    for name in request.functions:
        if name not in functions:
            raise UsageError(f"no fault of '{name}'; `ipclab_faults` lists them")
    chosen = [
        x
        for x in there
        if (not request.names or x.name in request.names)
        and (not request.functions or x.function in request.functions)
        and (request.kind is None or (x.kind == OPERATOR) == (request.kind == OPERATOR))
    ]
    why = []
    if request.names:
        why.append("only those that were named")
    if request.functions:
        why.append(f"only those of {', '.join(request.functions)}")
    if request.kind:
        why.append("only the operators" if request.kind == OPERATOR else "no operators")
    if request.changed or request.sample:
        of_change, number = (
            changed.concerned(catalogue.source, request.changed, chosen, MOST_OF_CHANGE)
            if request.changed
            else ([], 0)
        )
        others = [x for x in chosen if x not in of_change]
        more = changed.sample(others, request.sample or 0)
        chosen = sorted([*of_change, *more], key=lambda x: x.name)
        if request.changed:
            why.append(f"{len(of_change)} of {number} that concern a change")
        why.append(f"a fixed sample of {len(more)} others")
    if request.shard:
        part, count = request.shard
        chosen = chosen[part - 1 :: count]
        why.append(f"only part {part} of {count}")
    if not chosen:
        raise UsageError("no fault fits all of these options")
    return chosen, ", ".join(why) or None if len(chosen) < len(there) else None


class Campaign:
    """The work of one command: what is done and what remains."""

    def __init__(self, out: Console, request: Request) -> None:
        self._out = out
        self._request = request
        self.catalogue = faults.read(request.build)
        self._runs: dict[str | None, Run] = {}
        self._temporary = Path(tempfile.mkdtemp(prefix="ipclab-faults-"))
        self._temporary.chmod(EVERYBODY_PASSES)
        try:
            self._open(request)
        except BaseException:
            self.close()
            raise

    def _open(self, request: Request) -> None:
        suite = LESSONS if request.lessons else CONFORMANCE
        wanted = request.backend
        if request.resume:
            assert request.results is not None
            self.folder = request.results
            self._journal = Journal.resume(self.folder / matrix.JOURNALS[suite])
            wanted = str(self._journal.head["backend"])
        sound = self.machine(None, wanted)
        backend = str(sound.probe["backend"])
        if backend == "none":
            raise UsageError("no GPU here: leave out --backend cuda for the model")
        digest, tests, all_faults = self._digests(sound, suite, backend)
        chosen, partial = choose(self.catalogue, backend, request)
        now = {
            "backend": backend,
            "machine": probe.first_line(sound.probe),
            "digest": digest,
        }
        if request.resume:
            self._same(now)
            asked = self._journal.head["lessons"]
            if asked != request.lessons:
                raise UsageError(f"{self.folder}: was begun with --lessons {asked}")
            names = [x.name for x in chosen]
            if self._journal.head["partial"]:
                begun = self._journal.head["faults"]
                names = [x for x in begun if x in all_faults]
            again = self._journal.keep(tests, {x: all_faults[x] for x in names})
            if any(again):
                self._say(
                    f"{len(again[0])} tests and {len(again[1])} faults are not the "
                    "same any more; their results are dropped, and they run again"
                )
        else:
            self.folder = _folder(request.results)
            self._journal = Journal.begin(
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
        self.suite = str(self._journal.head["suite"])
        self.backend = backend
        self._bench = Bench(self.catalogue.library, self._temporary, backend)
        by_name = {x.name: x for x in self.catalogue.faults}
        self.chosen = [by_name[name] for name in self._journal.head["faults"]]
        self.rows = sound.catalogue
        self._done: dict[tuple[str, str], Trial] = {
            (x.fault, x.ctest): x for x in self._journal.trials
        }
        self._sound: dict[str | None, dict[str, Baseline]] = defaultdict(dict)
        for known in self._journal.baseline:
            self._sound[known.profile][known.ctest] = known
        self._cases: dict[str | None, list[Case]] = {}
        self._plans: dict[tuple[str, int], list[Case]] = {}
        self._row_of = {x.name: trials.subject(x) for x in sound.everything}
        self._noticed: set[tuple[str, str | None]] = set()  # trials.settled()
        self._unsettled: dict[Fault, None] = {}  # in their order
        self._running: set[Job] = set()
        self._experience = trials.Experience(
            _tests_of(request.like, self.suite), self.catalogue.first
        )
        for trial in self._journal.trials:
            self._note(by_name[trial.fault], trial)

    def _same(self, now: dict[str, str]) -> None:
        """Raise UsageError unless the work that was begun can continue here."""
        head = self._journal.head
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

    def close(self) -> None:
        """End the runs, and remove the temporary files."""
        for each in self._runs.values():
            each.close("finished")
        shutil.rmtree(self._temporary, ignore_errors=True)

    # --- what is to be done --------------------------------------------------

    def machine(self, profile: str | None, backend: str | None = None) -> Run:
        """The run on the sound driver of a profile; each profile has one run."""
        if profile not in self._runs:
            self._runs[profile] = Run(
                Settings(
                    build=self._request.build,
                    backend=backend or self.backend,
                    profile=profile,
                ),
                self._runs[None].everything if None in self._runs else None,
            )
        return self._runs[profile]

    def profile(self, fault: Fault) -> str | None:
        """Which machine the model imitates for a fault; None: the default machine, or a
        driver.
        """
        if self.backend != "model":
            return None
        return fault.profile or ("two-gpus" if fault.gpus > 1 else None)

    def _uuids(self, profile: str | None) -> list[str]:
        """The GPUs of a machine."""
        return [str(gpu["uuid"]) for gpu in self.machine(profile).probe["gpus"]]

    def missing(self, fault: Fault) -> str:
        """What this machine lacks for a fault; "" if it lacks nothing."""
        there = len(self.machine(self.profile(fault)).probe["gpus"])
        return f"needs {fault.gpus} GPUs" if there < fault.gpus else ""

    def cases(self, profile: str | None) -> list[Case]:
        """The tests of the chosen suite that a profile has."""
        if profile not in self._cases:
            self._cases[profile] = [
                x for x in self.machine(profile).cases if x.suite == self.suite
            ]
        return self._cases[profile]

    def concerned(self) -> list[Job]:
        """The tests that may run with a chosen fault, once for each profile, as jobs
        without a fault.
        """
        wanted: dict[tuple[str | None, str], Job] = {}
        for fault in self.chosen:
            if self.missing(fault):
                continue
            profile = self.profile(fault)
            for case in self.cases(profile):
                if self._request.lessons == CENTRAL:
                    fits = self._central(fault, case)
                elif fault.kind == OPERATOR or self.suite == LESSONS:
                    fits = case.gpus >= fault.gpus
                else:
                    fits = case.requirement in fault.rows
                if fits:
                    wanted.setdefault((profile, case.name), Job(None, profile, case))
        return sorted(wanted.values(), key=self._first)

    def planned(self, fault: Fault) -> list[Case]:
        """The tests with which a fault has to run, as far as the baseline is known."""
        key = fault.name, len(self._journal.baseline)
        if key not in self._plans:
            self._plans[key] = self._plan(fault)
        return self._plans[key]

    def _plan(self, fault: Fault) -> list[Case]:
        if self.missing(fault):
            return []
        profile = self.profile(fault)
        sound, cases = self._sound[profile], self.cases(profile)
        if self.suite == LESSONS:
            return [
                case
                for case in cases
                if (known := sound.get(case.name))
                and known.usable
                and (
                    self._central(fault, case)
                    or (
                        self._request.lessons == EVERY
                        and fault.function in known.functions
                    )
                )
            ]
        if fault.kind == OPERATOR:
            return trials.candidates(fault, cases, sound)
        return [
            case
            for row in fault.rows
            for case in cases
            if case.requirement == row
            and (known := sound.get(case.name))
            and known.usable
        ]

    def _central(self, fault: Fault, case: Case) -> bool:
        return fault.name in self.catalogue.lessons.get(case.lesson or "", ())

    def _jobs(self) -> list[Job]:
        """The next tests for each fault that needs more: one of every row, and later as
        many of a row as have run.

        An operator has no rows, so it gets as many of all tests that reach its
        function. A row of which a test is running has to wait for its result, because
        the results so far decide the order of the remaining tests.
        """

        def mixed(job: Job) -> float:
            # Many neighbours in the alphabet make tests wait. If they are mixed with
            # others, the waits and the work overlap. A test that took long starts in
            # the first half, so that the others end beside it.
            assert job.fault is not None
            place = zlib.crc32(f"{job.fault.name} {job.case.name}".encode())
            return place / (
                2 if self._experience.is_slow(job.fault, job.case.name) else 1
            )

        ranked = []
        for fault in list(self._unsettled):
            profile = self.profile(fault)
            left: dict[str | None, list[Case]] = defaultdict(list)
            tried: Counter[str | None] = Counter()
            for case in self.planned(fault):
                row = None if fault.kind == OPERATOR else trials.subject(case)
                if (fault.name, case.name) in self._done:
                    tried[row] += 1
                elif self._wanted(Job(fault, profile, case)):
                    left[row].append(case)
            if not left:
                del self._unsettled[fault]
            for row, cases in left.items():
                if any(Job(fault, profile, case) in self._running for case in cases):
                    continue
                ordered = self._experience.order(
                    fault, cases, self._sound[profile], self.rows
                )
                if fault.allowed:
                    ranks = dict.fromkeys(ordered, 0)  # no result spares another test
                else:
                    ranks = {x: i for i, x in enumerate(ordered[: max(tried[row], 1)])}
                ranked += [
                    (rank, self._first(job), mixed(job), job)
                    for case, rank in ranks.items()
                    for job in [Job(fault, profile, case)]
                ]
        ranked.sort(key=lambda entry: entry[:3])
        return [entry[3] for entry in ranked]

    def _first(self, job: Job) -> tuple[bool, bool]:
        """The place of a job in an order; the smallest is the first."""
        return schedule.first(job.case, len(self._uuids(job.profile)))

    def _again(self) -> list[Job]:
        """The tests that did not notice a named fault that they must notice, and have
        run only once, beside others.

        On a busy machine a wrong driver can look right, because wrong steps come late
        enough to do no harm, or can stop a test before its fault takes effect.
        """
        if self._request.jobs == 1:
            return []
        runs = Counter((x.fault, x.ctest) for x in self._journal.trials)
        missed = [
            fault
            for fault in self.chosen
            if fault.kind != OPERATOR
            and not fault.allowed
            and self._of_fault(fault, ())["wrong"]
        ]
        return [
            job
            for fault in missed
            for case in self.planned(fault)
            if runs[fault.name, case.name] == 1
            and self._done[fault.name, case.name].effect not in trials.NOTICED
            for job in [Job(fault, self.profile(fault), case)]
            if self._wanted(job)
        ]

    def _proofs(self) -> list[Job]:
        """Jobs with operators, for the rows that no fault has made fail yet."""
        reached = Counter(
            function
            for known in self._sound[None].values()
            for function in known.functions
        )
        operators = [
            x for x in self.chosen if x.kind == OPERATOR and self.profile(x) is None
        ]
        jobs = []
        for row in self.unproved():
            entry = self.rows[row]
            pairs = [
                (not trials.speaks_of(entry, x.function), reached[x.function], x, case)
                for case in self.cases(None)
                if case.requirement == row
                and (known := self._sound[None].get(case.name))
                and known.usable
                for x in operators
                if x.function in known.functions
            ]
            pairs.sort(key=lambda pair: (pair[:2], pair[2].name))
            jobs += [
                (rank, Job(fault, None, case))
                for rank, (_, _, fault, case) in enumerate(pairs[:PROOFS])
                if (fault.name, case.name) not in self._done
            ]
        jobs.sort(key=lambda job: (job[0], self._first(job[1])))
        return [job for _, job in jobs]

    def unproved(self) -> list[str]:
        """Judged rows whose tests work here and have never failed under a fault."""
        subjects = {
            case.name: case.requirement
            for profile in self._sound
            for case in self.cases(profile)
        }
        proved = {
            subjects.get(x.ctest)
            for x in self._journal.trials
            if x.effect in trials.NOTICED and not x.fault.startswith("ok-")
        }
        judged = {
            subjects.get(known.ctest)
            for known in self._journal.baseline
            if known.usable
        }
        return [
            row
            for row, entry in self.rows.items()
            if entry["kind"] in trials.JUDGED_KINDS and row in judged - proved
        ]

    # --- the work ------------------------------------------------------------

    def work(self, began: float) -> bool:
        """Run baseline, faults and proofs; return False if a signal or the time limit
        ended the work.
        """
        seconds = self._request.seconds
        deadline = None if seconds is None else began + seconds
        sound = self._without_baseline()
        self._say(str(self._journal.head["machine"]))
        self._say(
            f"{len(self.chosen)} faults; {len(sound)} tests without a fault first"
        )
        if self._request.lessons == CENTRAL:
            named = {case.lesson for case in self.cases(None)}
            if idle := sorted(str(x) for x in named - self.catalogue.lessons.keys()):
                self._say(f"no central fault in faults.json for {', '.join(idle)}")
        if not self._run(sound, lambda _job: True, deadline):
            return False
        for known_bad in self._unsound():
            self._say(
                f"left out: {known_bad['ctest']}: {known_bad['verdict']}: "
                f"{known_bad['reason']}"
            )
        self._unsettled = dict.fromkeys(self.chosen)
        jobs = self._jobs()
        faults_left = len({job.fault for job in jobs})
        self._say(f"{faults_left} faults are not settled: {len(jobs)} tests next")
        if not self._run(jobs, self._wanted, deadline, more=self._jobs):
            return False
        if again := self._again():
            self._say(
                f"{len({job.fault for job in again})} faults were not noticed: "
                f"{len(again)} tests run once more, one at a time"
            )
            if not self._run(again, self._wanted, deadline, at_once=1):
                return False
        whole = self.suite == CONFORMANCE and not self._journal.head["partial"]
        if not whole or not (proofs := self._proofs()):
            return True
        self._say(
            f"{len(self.unproved())} rows have failed under no fault yet: further tries"
        )

        unproved = set(self.unproved())

        def still_unproved(job: Job) -> bool:
            return job.case.requirement in unproved

        def proved(job: Job, trial: Trial) -> None:
            if trial.effect in trials.NOTICED:
                unproved.discard(str(job.case.requirement))

        return self._run(proofs, still_unproved, deadline, proved)

    def _without_baseline(self) -> list[Job]:
        """The tests that still have to run without a fault."""
        known = {(x.profile, x.ctest) for x in self._journal.baseline}
        return [x for x in self.concerned() if (x.profile, x.case.name) not in known]

    def _wanted(self, job: Job) -> bool:
        """Whether the result of the job is still needed."""
        return (
            job.fault is None
            or self.suite == LESSONS
            or not trials.settled(job.fault, self._noticed, trials.subject(job.case))
        )

    def _note(self, fault: Fault, trial: Trial) -> None:
        """Remember what a trial has shown."""
        if trial.effect in trials.NOTICED:
            self._noticed |= {
                (trial.fault, None),
                (trial.fault, self._row_of[trial.ctest]),
            }
            self._experience.noticed(fault, trial.ctest)

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
        apart = self.backend == "model"  # each test has its own machine
        uuids = [] if apart else self._uuids(None)
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
            self._running.discard(job)
            self._journal.add(entry)
            if isinstance(entry, Baseline):
                self._sound[job.profile][job.case.name] = entry
                shown.finished("")
                return
            assert job.fault is not None
            self._done[entry.fault, entry.ctest] = entry
            self._note(job.fault, entry)
            told(job, entry)
            number = sum(row is None for _, row in self._noticed)
            shown.finished(f"{number} noticed")

        with shown:
            return schedule.run(
                jobs,
                at_once,
                schedule.Allocator(uuids, at_once, apart),
                self._execute,
                self._running.add,
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
            sound = self._sound[job.profile][case.name]
            limit = trials.limit(fault, case, sound.seconds)
        seen = self._bench.see(
            self.machine(job.profile),
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
            self.backend == "cuda"
            and self.suite == CONFORMANCE
            and case.lesson not in NEED_QUEUES
            and not FEW_QUEUES.keys() & os.environ.keys()
        )
        return FEW_QUEUES if few else {}

    # --- the results ---------------------------------------------------------

    def document(self) -> matrix.Document:
        """What mutants.json, or lessons.json, holds (matrix.schema.json)."""
        head = self._journal.head
        lessons: dict[str, str | None] = {}
        for profile in [None, *self._sound]:
            for case in self.cases(profile):
                lessons.setdefault(trials.subject(case), case.lesson)
        open_ = {job.profile for job in self._without_baseline()}
        found = [self._of_fault(fault, open_) for fault in self.chosen]
        named = {cell["row"] for fault in found for cell in fault["cells"]}
        order = [x for x in self.rows if x in named]
        order += sorted(named - self.rows.keys())
        whole = not head["partial"] and not matrix.left({"faults": found})
        return {
            "version": matrix.VERSION,
            "suite": self.suite,
            "backend": self.backend,
            "machine": head["machine"],
            "made": head["made"],
            "seconds": round(
                sum(x.seconds for x in self._journal.baseline)
                + sum(x.seconds for x in self._journal.trials),
                1,
            ),
            "digest": manifest.of_document(
                {x: head[x] for x in ("digest", "tests", "faults")}
            ),
            "partial": head["partial"],
            "problems": [*self.catalogue.problems, *self._differs()],
            "unsound": self._unsound(),
            "baseline": len(self._journal.baseline),
            "unproved": self.unproved() if whole and self.suite == CONFORMANCE else [],
            "rows": [
                {
                    "id": name,
                    "statement": self.rows.get(name, {}).get("statement", ""),
                    "kind": self.rows.get(name, {}).get("kind"),
                    "lesson": lessons.get(name)
                    or next(iter(self.rows.get(name, {}).get("lessons", [])), None),
                }
                for name in order
            ],
            "faults": found,
        }

    def _of_fault(self, fault: Fault, unknown: Container[str | None]) -> dict[str, Any]:
        """The result of one fault.

        `unknown` are the profiles whose baseline is not complete. A fault with such a
        profile has no result yet.
        """
        planned = self.planned(fault)
        # Proofs are additional tests of an operator; their results count.
        extra = [
            case
            for case in self.cases(self.profile(fault))
            if fault.kind == OPERATOR
            and (fault.name, case.name) in self._done
            and case not in planned
        ]
        met = {
            case.name: self._done[fault.name, case.name]
            for case in (*planned, *extra)
            if (fault.name, case.name) in self._done
        }
        missing = self.missing(fault)
        found = trials.outcome(
            fault,
            [*planned, *extra],
            met,
            self._rows_without(fault),
            {x for x, row in self.rows.items() if row["kind"] in UNJUDGED_KINDS},
            self.suite == LESSONS,
        )
        if self.suite == LESSONS:
            central = {
                lesson
                for lesson, names in self.catalogue.lessons.items()
                if fault.name in names
            }
            found = trials.of_lessons(fault, found, central)
        else:
            found = trials.decided(fault, found, self.catalogue, self.backend)
        if missing or self.profile(fault) in unknown:
            found = {**found, "result": trials.NOT_RUN, "note": missing, "wrong": False}
        return {
            "name": fault.name,
            "kind": fault.kind,
            "function": fault.function,
            "operator": fault.operator,
            "what": fault.what,
            "profile": self.profile(fault),
            **found,
        }

    def _rows_without(self, fault: Fault) -> dict[str, str]:
        """The rows that have to notice a fault and have no usable test here. ELSEWHERE:
        the row has tests, but none works here. OPEN: it has no test.
        """
        profile = self.profile(fault)
        tested: dict[str, list[str]] = defaultdict(list)
        for case in self.cases(profile):
            tested[trials.subject(case)].append(case.name)
        sound = self._sound[profile]
        wanted: Iterable[str] = fault.rows
        if self.suite == LESSONS:
            lists = self.catalogue.lessons
            wanted = [lesson for lesson in lists if fault.name in lists[lesson]]
        return {
            row: trials.ELSEWHERE if tested.get(row) else trials.OPEN
            for row in wanted
            if not any(x in sound and sound[x].usable for x in tested.get(row, ()))
            and not any(x not in sound for x in tested.get(row, ()))
        }

    def _unsound(self) -> list[dict[str, Any]]:
        """The tests that were left out because they fail without a fault."""
        return [
            {
                "ctest": x.ctest,
                "profile": x.profile,
                "verdict": x.verdict,
                "reason": x.reason,
            }
            for x in self._journal.baseline
            if x.verdict in records.FAILING
        ]

    def _differs(self) -> list[str]:
        """The tests that have another verdict in the run of --baseline, which was made
        without the library; one line for each test.
        """
        if (folder := self._request.baseline) is None:
            return []
        there = results.read(folder)
        document = there.run
        if there.wrong or document["state"] != "finished":
            raise UsageError(f"{folder}: {there.wrong or 'the run is not finished'}")
        if document["backend"] != self.backend:
            raise UsageError(f"{folder}: a run on {document['backend']}")
        profile = document["settings"].get("profile")
        verdicts = {row.ctest: row.shown for row in records.rows(there.records)}
        return [
            f"{x.ctest}: {x.verdict} with the library, "
            f"{verdicts.get(x.ctest, 'not recorded')} in {folder}"
            for x in self._journal.baseline
            if x.profile == profile and verdicts.get(x.ctest) != x.verdict
        ]

    def _digests(
        self, sound: Run, suite: str, backend: str
    ) -> tuple[str, dict[str, str], dict[str, str]]:
        """What decides the results under a fault: the digest of everything that all
        tests and faults share, and for each test of a suite and each fault the digest
        of what is its own.

        They cover the sources and not the programs: the programs may be built again
        before --resume, and two builds of the same sources differ. The sources of the
        model and of the recorder decide nothing on a GPU. Of faults.json the digests
        cover only what changes a test's result, not what the result means.
        """
        source = ctest.source_folder(self._request.build)
        sources = packed.sources(self._request.build) or manifest.of_sources(source)
        shared: dict[str, str | None] = {}
        of_folder: dict[str, dict[str, str | None]] = defaultdict(dict)
        for name, digest in sources.items():
            top, folder, *rest = Path(name).parts
            if top == manifest.DECLARED or declarations.has(name):
                continue  # see `of_fault`
            if top in ("conformance", "samples") and rest and folder[0].isdigit():
                of_folder[folder][name] = digest
            elif "tests" not in rest and (backend == "model" or folder not in ON_MODEL):
                shared[name] = digest
        common = {
            "sources": shared,
            "hooks": manifest.of_file(source / faults.HOOKS),
        }
        of_fault = {
            x.name: manifest.of_document(
                {
                    "fault": [x.kind, x.function, x.operator, x.gpus, x.profile],
                    "source": sources.get(
                        f"{manifest.DECLARED}/{x.name}", sources.get(x.file)
                    ),
                }
            )
            for x in self.catalogue.faults
        }
        tests = {
            case.name: manifest.of_document(
                {
                    "test": [*case.command[1:], case.timeout, case.gpus, case.alone],
                    "sources": of_folder[case.lesson or ""],
                    "kind": sound.catalogue.get(case.requirement or "", {}).get("kind"),
                    "deviations": [
                        x for x in sound.deviations.entries if x["test"] == case.test
                    ],
                }
            )
            for case in sound.everything
            if case.suite == suite
        }
        return manifest.of_document(common), tests, of_fault

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


def _tests_of(folder: Path | None, suite: str) -> dict[str, dict[str, float]]:
    """For each fault, the tests that noticed it in the matrix of a folder, which may be
    incomplete, and how many seconds each of them took. Empty without a folder.

    UsageError if the folder has no matrix.
    """
    found: dict[str, dict[str, float]] = {}
    if folder is not None:
        for trial in Journal.read(folder, matrix.JOURNALS[suite]).trials:
            if trial.effect in trials.NOTICED:
                found.setdefault(trial.fault, {})[trial.ctest] = trial.seconds
    return found


def _show(out: Console, document: matrix.Document) -> None:
    """Print the counts, then a line for each thing that fails the command."""
    for line, style in matrix.told(document):
        out.print(Text(line, style=style), soft_wrap=True)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
