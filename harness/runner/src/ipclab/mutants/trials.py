"""Makes the result of each fault from the behaviour of the tests under this fault.

This module reads and writes no files.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ipclab.ctest import Case
from ipclab.deviations import UNJUDGED_KINDS
from ipclab.mutants.faults import OPERATOR, Catalogue, Fault

KILLED, DENIED, SURVIVED, UNFIRED, UNJUDGED = (
    "killed",
    "denied",
    "survived",
    "never fired",
    "unjudged",
)
EQUIVALENT, NOT_EQUIVALENT, PASSED, FLAGGED, NOT_RUN = (
    "equivalent",
    "not equivalent",
    "passed",
    "flagged",
    "not run",
)
# Results of a row under a fault that is not an operator. A fault itself can only have
# SEEN of these.
OPEN, SEEN, ELSEWHERE = "no test", "observed", "not applicable"
NO_TEST_HERE = "this machine cannot run the tests of its rows"
UNNOTICED = "not noticed"  # by a lesson that does not have to notice the fault
MEANING = {  # in the order in which they are counted
    KILLED: "a test failed: the fault was noticed",
    DENIED: "a test that passes without the fault said 'not applicable' with it: this "
    "also counts as noticed",
    PASSED: "another legal answer (ok-…): no test may fail, and none did",
    EQUIVALENT: "no documented row forbids the fault; faults.json says why",
    SURVIVED: "the fault took effect, but no test failed",
    UNFIRED: "the fault took effect in no test, so no test could notice it",
    UNJUDGED: "the harness could not judge, so the fault does not count as noticed",
    FLAGGED: "another legal answer failed a test",
    NOT_EQUIVALENT: "faults.json calls it equivalent, and a test noticed it",
    OPEN: "the row has no test",
    SEEN: "the row is only observed, never judged, so no test could fail",
    ELSEWHERE: "this machine cannot run the row's tests",
    UNNOTICED: "the fault took effect in the lesson, but the lesson checks something "
    "else",
    NOT_RUN: "left out, or not finished: there is no result",
}
WRONG = (SURVIVED, UNFIRED, UNJUDGED, FLAGGED, NOT_EQUIVALENT)
WRONG_OF_LESSONS = (SURVIVED, UNJUDGED, FLAGGED)
NOTICED = (KILLED, DENIED)
SLOW_SECONDS = 10  # a test that took as long starts early
# Kinds of rows that a driver can violate. A LIMIT conforms or is lifted.
JUDGED_KINDS = ("MUST", "ERROR", "DERIVED")

SOUND = ("conforms", "lifted", "observed", "deviates")  # usable as a baseline
# Under a fault a test may take SLOWER times as long as without a fault, and
# MORE_SECONDS. This limit is short, because a hang is a kill.
SLOWER, MORE_SECONDS = 10, 10.0


@dataclass(frozen=True)
class Baseline:
    """One test with the library loaded and no fault."""

    profile: str | None
    ctest: str
    verdict: str
    reason: str
    seconds: float
    functions: frozenset[str]  # functions that it reached, by their canonical names

    @property
    def usable(self) -> bool:
        """Whether the test can show a fault: its verdict is that of a sound driver."""
        return self.verdict in SOUND


@dataclass(frozen=True)
class Trial:
    """One test under one fault."""

    fault: str
    profile: str | None
    ctest: str
    verdict: str
    reason: str  # one line
    fired: bool | None  # None for a fault inside the model, which does not report this
    where: str | None  # the function in which the fault first took effect
    deviation: str | None  # row whose entry of deviations.json covers what failed
    seconds: float

    @property
    def effect(self) -> str:
        """The result of this trial: KILLED, DENIED, UNJUDGED, SURVIVED or UNFIRED."""
        if self.verdict == "broken":
            return UNJUDGED
        fired = self.fired is not False
        if self.verdict in ("violates", "crashed", "hung"):
            return KILLED if fired else UNJUDGED
        if self.verdict == "not applicable":
            return DENIED if fired else UNJUDGED
        return SURVIVED if fired else UNFIRED


def limit(fault: Fault, case: Case, seconds: float) -> float:
    """How long a test may take under a fault if it took `seconds` without a fault:
    never longer than its limit in CTest's list. Another legal answer may be slow, so
    with such an answer the test gets this whole limit.
    """
    if fault.allowed:
        return case.timeout
    return min(case.timeout, SLOWER * seconds + MORE_SECONDS)


def subject(case: Case) -> str:
    """The row of a test, or the lesson of a sample."""
    return str(case.requirement or case.lesson)


def speaks_of(row: Mapping[str, Any], function: str) -> bool:
    """Whether a row of the catalogue names a function, with the name of either API."""
    told = [str(row.get(field, "")) for field in ("statement", "source")]
    words = "\n".join([*told, *row.get("tests", {}).values()])
    return _name(function).search(words) is not None


@functools.cache
def _name(function: str) -> re.Pattern[str]:
    """A pattern for a function's name: without a prefix, or with that of either API."""
    topic = re.sub("^cu(da)?", "", function)
    return re.compile(rf"\b(cu|cuda)?{topic}\b")


def candidates(
    fault: Fault, cases: Iterable[Case], baseline: Mapping[str, Baseline]
) -> list[Case]:
    """The tests that reach the function of a fault."""
    return [
        case
        for case in cases
        if case.gpus >= fault.gpus
        and (known := baseline.get(case.name))
        and known.usable
        and fault.function in known.functions
    ]


class Experience:
    """Which tests have noticed which faults.

    This decides with which test a fault runs next.
    """

    def __init__(
        self,
        before: Mapping[str, Mapping[str, float]],
        first: Mapping[str, Container[str]],
    ) -> None:
        """`before` maps a fault to the tests that noticed it in an earlier matrix, with
        the seconds that each of them took. `first` maps an operator to the rows whose
        tests run first.
        """
        self._before = before
        self._first = first
        self._alike: Counter[tuple[str, str]] = Counter()

    def noticed(self, fault: Fault, test: str) -> None:
        """A test has noticed a fault."""
        if fault.kind == OPERATOR:
            self._alike[fault.operator or "", test] += 1
            self._alike[fault.function, test] += 1

    def is_slow(self, fault: Fault, test: str) -> bool:
        """Whether a test took long to notice a fault before."""
        return self._before.get(fault.name, {}).get(test, 0) >= SLOW_SECONDS

    def order(
        self,
        fault: Fault,
        cases: Iterable[Case],
        baseline: Mapping[str, Baseline],
        catalogue: Mapping[str, Mapping[str, Any]],
    ) -> list[Case]:
        """The tests; those that will most probably notice the fault are first.

        First come the tests that noticed the fault before. Then come the tests of the
        rows that faults.json puts first, then those of rows that name the function, and
        among these the tests that noticed most faults with the same operator or
        function. Among equal tests, those that must run alone come last. Among the
        rest, tests of rows that are only observed come last, then slow tests.
        """
        return sorted(
            cases,
            key=lambda case: (
                case.name not in self._before.get(fault.name, ()),
                case.requirement not in self._first.get(fault.operator or "", ()),
                not speaks_of(
                    catalogue.get(case.requirement or "", {}), fault.function
                ),
                -self._alike[fault.operator or "", case.name]
                - self._alike[fault.function, case.name],
                case.alone,
                catalogue.get(case.requirement or "", {}).get("kind") in UNJUDGED_KINDS,
                baseline[case.name].seconds,
                case.name,
            ),
        )


def settled(fault: Fault, noticed: Container[tuple[str, str | None]], row: str) -> bool:
    """Whether a fault needs no more tests of a row.

    `noticed` has the pairs (fault, row) and (fault, None). An operator has to be
    noticed once. A named fault has to be noticed by a test of each of its rows. A legal
    answer runs with all tests.
    """
    if fault.allowed:
        return False
    return (fault.name, None if fault.kind == OPERATOR else row) in noticed


def outcome(
    fault: Fault,
    planned: Sequence[Case],
    trials: Mapping[str, Trial],
    rows: Mapping[str, str],
    written_down: Container[str] = (),
    every_row: bool = False,
) -> dict[str, Any]:
    """The result of one fault, as mutants.json has it.

    `planned` are the tests that the fault should run with, `trials` the results of
    those that have run, by name. `rows` are the cells of rows without a usable test:
    OPEN or ELSEWHERE. `written_down` are the rows that are never judged. With
    `every_row` a fault runs with all tests, and all rows are listed. Otherwise an
    operator lists only the rows that noticed it or that could not be judged.
    """
    met = [(case, trials[case.name]) for case in planned if case.name in trials]
    effects = [trial.effect for _, trial in met]
    noticed = any(x in NOTICED for x in effects)
    pairs = {
        (fault.name, row)
        for case, trial in met
        if trial.effect in NOTICED
        for row in (subject(case), None)
    }
    left = sum(
        case.name not in trials
        and (every_row or not settled(fault, pairs, subject(case)))
        for case in planned
    )
    cells = _cells(fault, met, rows, written_down, every_row or fault.kind != OPERATOR)
    elsewhere = bool(rows) and set(rows.values()) == {ELSEWHERE} and not planned
    if left or elsewhere:
        result = NOT_RUN
    elif fault.kind == OPERATOR:
        result = _worst(effects) if not noticed else _kill(effects)
    else:
        judged = [x["result"] for x in cells if x["result"] not in (OPEN, ELSEWHERE)]
        result = _of_rows([x for x in judged if x != SEEN] or judged)
    hidden = sorted({t.deviation for _, t in met if t.deviation and _took(t)})
    return {
        "result": result,
        "left": left,
        "tests": len(met),
        "fired": sum(_took(trial) for _, trial in met),
        "note": NO_TEST_HERE if elsewhere else _note(result, cells, hidden),
        "cells": cells,
    }


def _cells(
    fault: Fault,
    met: Iterable[tuple[Case, Trial]],
    rows: Mapping[str, str],
    written_down: Container[str],
    every_row: bool,
) -> list[dict[str, Any]]:
    """The result of each row that is listed."""
    by_row: dict[str, list[tuple[Case, Trial]]] = {}
    for case, trial in met:
        by_row.setdefault(subject(case), []).append((case, trial))
    cells: list[dict[str, Any]] = []
    for row, tests in by_row.items():
        result = _row_result([trial.effect for _, trial in tests])
        if not every_row and result not in (*NOTICED, UNJUDGED):
            continue
        # A test that an entry of deviations.json excuses says most.
        tests.sort(key=lambda x: (x[1].effect != result, x[1].deviation is None))
        told = tests[0]
        if result == SURVIVED and row in written_down:
            result = SEEN
        cells.append(
            {
                "row": row,
                "result": result,
                "test": told[0].name,
                "verdict": told[1].verdict,
                "reason": told[1].reason,
            }
        )
    cells += [
        {"row": row, "result": result, "test": None, "verdict": None, "reason": ""}
        for row, result in rows.items()
    ]
    order = {row: index for index, row in enumerate(fault.rows)}
    return sorted(cells, key=lambda cell: order.get(str(cell["row"]), len(order)))


def _row_result(effects: Sequence[str]) -> str:
    return _kill(effects) if set(effects) & set(NOTICED) else _worst(effects)


def _kill(effects: Sequence[str]) -> str:
    return KILLED if KILLED in effects else DENIED


def _worst(effects: Sequence[str]) -> str:
    """The worst result among the tests that did not notice the fault."""
    for effect in (UNJUDGED, SURVIVED):
        if effect in effects:
            return effect
    return UNFIRED


def _of_rows(results: Sequence[str]) -> str:
    """The result if each row has to notice the fault."""
    if not results or set(results) == {UNFIRED}:
        return UNFIRED
    if UNJUDGED in results:
        return UNJUDGED
    if {SURVIVED, UNFIRED} & set(results):
        return SURVIVED
    return SEEN if set(results) == {SEEN} else _kill(results)


def _took(trial: Trial) -> bool:
    return trial.effect != UNFIRED and trial.fired is not False


def _note(
    result: str, cells: Sequence[Mapping[str, Any]], hidden: Sequence[str]
) -> str:
    if result == SURVIVED:
        missed = [
            f"{x['row']} {x['result']}"
            for x in cells
            if x["result"] in (SURVIVED, UNFIRED)
        ]
        told = [f"not noticed by {', '.join(missed)}"] if missed else []
        told += [f"hidden by deviation {row}" for row in hidden]
        return "; ".join(told)
    if result == UNJUDGED:
        return next(
            (f"{x['test']}: {x['reason']}" for x in cells if x["result"] == UNJUDGED),
            "",
        )
    return ""


def decided(
    fault: Fault, found: dict[str, Any], catalogue: Catalogue, backend: str
) -> dict[str, Any]:
    """Apply faults.json to the outcome: equivalents, unfired faults, faults that change
    nothing here; and judge legal answers.
    """
    result, note = found["result"], found["note"]
    why = ""
    unexpected = False
    if result != NOT_RUN and fault.allowed:
        if result in NOTICED or any(x["result"] in NOTICED for x in found["cells"]):
            result = FLAGGED
            note = next(
                f"{x['row']}: {x['verdict']}: {x['reason']}"
                for x in found["cells"]
                if x["result"] in NOTICED
            )
        elif result in (SURVIVED, SEEN):
            result, note = PASSED, ""
    elif result != NOT_RUN and fault.name in catalogue.equivalent:
        why = catalogue.equivalent[fault.name]
        if result in NOTICED:
            result = NOT_EQUIVALENT
        elif result in (SURVIVED, UNFIRED):
            result = EQUIVALENT
    if result == UNFIRED:
        why = catalogue.unfired.get((fault.name, backend), "")
    elif result != NOT_RUN and (fault.name, backend) in catalogue.unfired:
        note = "faults.json says that it never fires here, but it did"
        unexpected = True
    elif result == SURVIVED and any(x["verdict"] == "deviates" for x in found["cells"]):
        why = catalogue.same.get((fault.name, backend), "")
    excused = bool(why) and result in (UNFIRED, SURVIVED)
    wrong = unexpected or (result in WRONG and not excused)
    return {**found, "result": result, "note": note, "why": why, "wrong": wrong}


def of_lessons(
    fault: Fault, found: dict[str, Any], central: Container[str]
) -> dict[str, Any]:
    """The outcome for lessons: only the lessons in `central` have to notice the fault.
    A lesson has noticed a fault if its own check fails, or if the lesson crashes or
    hangs. A skip does not count.
    """
    cells = [
        {
            **cell,
            "central": cell["row"] in central,
            "result": UNNOTICED
            if cell["result"] == SURVIVED and cell["row"] not in central
            else cell["result"],
        }
        for cell in found["cells"]
    ]
    results = [cell["result"] for cell in cells]
    missed = [
        f"{x['row']} ({x['result']})"
        for x in cells
        if x["central"] and x["result"] not in (KILLED, ELSEWHERE)
    ]
    noticed = [x for x in cells if x["result"] == KILLED]
    result, note = found["result"], ""
    if result == NOT_RUN:
        note = found["note"]
    else:
        if fault.allowed:
            result = FLAGGED if noticed else PASSED if found["fired"] else UNFIRED
            note = ", ".join(f"{x['row']}: {x['reason']}" for x in noticed)
        elif missed:
            result, note = SURVIVED, f"must be noticed by {', '.join(missed)}"
        elif UNJUDGED in results and not noticed:
            result, note = UNJUDGED, found["note"]
        else:
            order = (KILLED, DENIED, UNNOTICED, UNFIRED)
            result = next(x for x in order if x in results or x == UNFIRED)
    wrong = result in WRONG_OF_LESSONS
    return {
        **found,
        "result": result,
        "note": note,
        "why": "",
        "cells": cells,
        "wrong": wrong,
    }
