"""What `ipclab mutants` runs: the chosen faults, and the next tests for each."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from ipclab import schedule
from ipclab.ctest import Case
from ipclab.errors import UsageError
from ipclab.mutants import changed, faults, matrix, trials
from ipclab.mutants.faults import (
    CENTRAL,
    EVERY,
    LEGAL,
    MODEL,
    NAMED,
    OPERATOR,
    Fault,
)
from ipclab.mutants.journal import Journal
from ipclab.mutants.trials import Baseline, Experience, Trial
from ipclab.requirements import Row
from ipclab.run import Run, Settings

CONFORMANCE, LESSONS = "conformance", "sample"
# If no fault has made a row fail, there are up to this many further trials: a test of
# the row with an operator.
PROOFS = 60
# A change of the whole suite concerns all faults; this many of them run, then.
MOST_OF_CHANGE = 200


# What the choice of a kind leaves.
ONLY = {
    OPERATOR: "only the operators",
    NAMED: "no operators",
    LEGAL: "only legal answers, with all tests that meet them",
}


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
    # OPERATOR: only operators; NAMED: no operators; LEGAL: only the legal answers of
    # `everywhere`, with all tests that call their function; None: all
    kind: str | None = None
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


def choose(
    catalogue: faults.Catalogue, backend: str, request: Request
) -> tuple[list[Fault], str | None]:
    """The requested faults, and why the others were left out; None if none were.

    UsageError on an unknown name or function, or if nothing is left.
    """
    there = [x for x in catalogue.faults if backend == "model" or x.kind != MODEL]
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
        and (
            x.name in catalogue.everywhere
            if request.kind == LEGAL
            else request.kind is None
            or (x.kind == OPERATOR) == (request.kind == OPERATOR)
        )
    ]
    why = []
    if request.names:
        why.append("only those that were named")
    if request.functions:
        why.append(f"only those of {', '.join(request.functions)}")
    if request.kind:
        why.append(ONLY[request.kind])
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


class Machines:
    """The runs on the sound driver, one for each profile of the model."""

    def __init__(self, build: Path, backend: str) -> None:
        self._build = build
        self._backend = backend
        self._runs: dict[str | None, Run] = {}

    def of(self, profile: str | None) -> Run:
        """The run of a profile; None: the default machine, or a driver."""
        if profile not in self._runs:
            self._runs[profile] = Run(
                Settings(build=self._build, backend=self._backend, profile=profile),
                self._runs[None].everything if None in self._runs else None,
            )
        return self._runs[profile]

    def uuids(self, profile: str | None) -> list[str]:
        """The GPUs of a machine."""
        return [str(gpu["uuid"]) for gpu in self.of(profile).probe["gpus"]]

    def close(self) -> None:
        """End the runs."""
        for each in self._runs.values():
            each.close("finished")


class Plan:
    """What is known so far, and which tests come next."""

    def __init__(
        self,
        request: Request,
        catalogue: faults.Catalogue,
        machines: Machines,
        journal: Journal,
    ) -> None:
        """`journal` has what earlier calls have found."""
        self.request = request
        self.catalogue = catalogue
        self.machines = machines
        self.journal = journal
        self.suite = str(journal.head["suite"])
        self.backend = str(journal.head["backend"])
        self._legal = ONLY[LEGAL] in (journal.head["partial"] or "")
        sound = machines.of(None)
        self.rows: dict[str, Row] = sound.catalogue
        by_name = {x.name: x for x in catalogue.faults}
        self.chosen = [by_name[name] for name in journal.head["faults"]]
        self.done: dict[tuple[str, str], Trial] = {
            (x.fault, x.ctest): x for x in journal.trials
        }
        self.sound: dict[str | None, dict[str, Baseline]] = defaultdict(dict)
        for known in journal.baseline:
            self.sound[known.profile][known.ctest] = known
        self.noticed: set[tuple[str, str | None]] = set()  # trials.settled()
        self.running: set[Job] = set()
        self.unsettled: dict[Fault, None] = {}  # in their order
        self._cases: dict[str | None, list[Case]] = {}
        self._plans: dict[tuple[str, int], list[Case]] = {}
        self._row_of = {x.name: trials.subject(x) for x in sound.everything}
        self._experience = Experience(
            _tests_of(request.like, self.suite), catalogue.first
        )
        for trial in journal.trials:
            self._note(by_name[trial.fault], trial)

    def add(self, job: Job, entry: Baseline | Trial) -> None:
        """Remember the result of a job that has ended."""
        self.running.discard(job)
        self.journal.add(entry)
        if isinstance(entry, Baseline):
            self.sound[job.profile][job.case.name] = entry
            return
        assert job.fault is not None
        self.done[entry.fault, entry.ctest] = entry
        self._note(job.fault, entry)

    def profile(self, fault: Fault) -> str | None:
        """Which machine the model imitates for a fault; None: the default machine, or a
        driver.
        """
        if self.backend != "model":
            return None
        return fault.profile or ("two-gpus" if fault.gpus > 1 else None)

    def missing(self, fault: Fault) -> str:
        """What this machine lacks for a fault; "" if it lacks nothing."""
        there = len(self.machines.of(self.profile(fault)).probe["gpus"])
        return f"needs {fault.gpus} GPUs" if there < fault.gpus else ""

    def cases(self, profile: str | None) -> list[Case]:
        """The tests of the chosen suite that a profile has."""
        if profile not in self._cases:
            self._cases[profile] = [
                x for x in self.machines.of(profile).cases if x.suite == self.suite
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
                if self.request.lessons == CENTRAL:
                    fits = self._central(fault, case)
                elif self._concerns_all(fault) or self.suite == LESSONS:
                    fits = case.gpus >= fault.gpus
                else:
                    fits = case.requirement in fault.rows
                if fits:
                    wanted.setdefault((profile, case.name), Job(None, profile, case))
        return sorted(wanted.values(), key=self._first)

    def without_baseline(self) -> list[Job]:
        """The tests that still have to run without a fault."""
        known = {(x.profile, x.ctest) for x in self.journal.baseline}
        return [x for x in self.concerned() if (x.profile, x.case.name) not in known]

    def planned(self, fault: Fault) -> list[Case]:
        """The tests with which a fault has to run, as far as the baseline is known."""
        key = fault.name, len(self.journal.baseline)
        if key not in self._plans:
            self._plans[key] = self._plan(fault)
        return self._plans[key]

    def _plan(self, fault: Fault) -> list[Case]:
        if self.missing(fault):
            return []
        profile = self.profile(fault)
        sound, cases = self.sound[profile], self.cases(profile)
        if self.suite == LESSONS:
            return [
                case
                for case in cases
                if (known := sound.get(case.name))
                and known.usable
                and (
                    self._central(fault, case)
                    or (
                        self.request.lessons == EVERY
                        and fault.function in known.functions
                    )
                )
            ]
        if self._concerns_all(fault):
            return trials.candidates(fault, cases, sound)
        return [
            case
            for row in fault.rows
            for case in cases
            if case.requirement == row
            and (known := sound.get(case.name))
            and known.usable
        ]

    def _concerns_all(self, fault: Fault) -> bool:
        """Whether the fault runs with all tests that call its function."""
        return fault.kind == OPERATOR or self._legal

    def _central(self, fault: Fault, case: Case) -> bool:
        return fault.name in self.catalogue.lessons.get(case.lesson or "", ())

    def next(self) -> list[Job]:
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
        for fault in list(self.unsettled):
            profile = self.profile(fault)
            left: dict[str | None, list[Case]] = defaultdict(list)
            tried: Counter[str | None] = Counter()
            for case in self.planned(fault):
                row = None if fault.kind == OPERATOR else trials.subject(case)
                if (fault.name, case.name) in self.done:
                    tried[row] += 1
                elif self.wanted(Job(fault, profile, case)):
                    left[row].append(case)
            if not left:
                del self.unsettled[fault]
            for row, cases in left.items():
                if any(Job(fault, profile, case) in self.running for case in cases):
                    continue
                ordered = self._experience.order(
                    fault, cases, self.sound[profile], self.rows
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
        return schedule.first(job.case, len(self.machines.uuids(job.profile)))

    def again(self, missed: list[Fault]) -> list[Job]:
        """The tests that did not notice a fault of `missed` and have run only once,
        beside others.

        On a busy machine a wrong driver can look right, because wrong steps come late
        enough to do no harm, or can stop a test before its fault takes effect.
        """
        if self.request.jobs == 1:
            return []
        runs = Counter((x.fault, x.ctest) for x in self.journal.trials)
        return [
            job
            for fault in missed
            for case in self.planned(fault)
            if runs[fault.name, case.name] == 1
            and self.done[fault.name, case.name].effect not in trials.NOTICED
            for job in [Job(fault, self.profile(fault), case)]
            if self.wanted(job)
        ]

    def proofs(self) -> list[Job]:
        """Jobs with operators, for the rows that no fault has made fail yet."""
        reached = Counter(
            function
            for known in self.sound[None].values()
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
                and (known := self.sound[None].get(case.name))
                and known.usable
                for x in operators
                if x.function in known.functions
            ]
            pairs.sort(key=lambda pair: (pair[:2], pair[2].name))
            jobs += [
                (rank, Job(fault, None, case))
                for rank, (_, _, fault, case) in enumerate(pairs[:PROOFS])
                if (fault.name, case.name) not in self.done
            ]
        jobs.sort(key=lambda job: (job[0], self._first(job[1])))
        return [job for _, job in jobs]

    def unproved(self) -> list[str]:
        """Judged rows whose tests work here and have never failed under a fault."""
        subjects = {
            case.name: case.requirement
            for profile in self.sound
            for case in self.cases(profile)
        }
        proved = {
            subjects.get(x.ctest)
            for x in self.journal.trials
            if x.effect in trials.NOTICED and not x.fault.startswith("ok-")
        }
        judged = {
            subjects.get(known.ctest) for known in self.journal.baseline if known.usable
        }
        return [
            row
            for row, entry in self.rows.items()
            if entry["kind"] in trials.JUDGED_KINDS and row in judged - proved
        ]

    def wanted(self, job: Job) -> bool:
        """Whether the result of the job is still needed."""
        return (
            job.fault is None
            or self.suite == LESSONS
            or not trials.settled(job.fault, self.noticed, trials.subject(job.case))
        )

    def _note(self, fault: Fault, trial: Trial) -> None:
        """Remember what a trial has shown."""
        if trial.effect in trials.NOTICED:
            self.noticed |= {
                (trial.fault, None),
                (trial.fault, self._row_of[trial.ctest]),
            }
            self._experience.noticed(fault, trial.ctest)


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
