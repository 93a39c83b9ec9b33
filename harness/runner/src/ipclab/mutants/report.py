"""What `ipclab mutants` found: the kill matrix as a document, and what is printed."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable
from typing import Any

from rich.console import Console
from rich.text import Text

from ipclab import manifest, records, results
from ipclab.deviations import UNJUDGED_KINDS
from ipclab.errors import UsageError
from ipclab.mutants import matrix, trials
from ipclab.mutants.faults import OPERATOR, Fault
from ipclab.mutants.plan import CONFORMANCE, LESSONS, Plan


def document(plan: Plan) -> matrix.Document:
    """What mutants.json, or lessons.json, holds (matrix.schema.json)."""
    head = plan.journal.head
    lessons: dict[str, str | None] = {}
    for profile in [None, *plan.sound]:
        for case in plan.cases(profile):
            lessons.setdefault(trials.subject(case), case.lesson)
    open_ = {job.profile for job in plan.without_baseline()}
    found = [of_fault(plan, fault, open_) for fault in plan.chosen]
    named = {cell["row"] for fault in found for cell in fault["cells"]}
    order = [x for x in plan.rows if x in named]
    order += sorted(named - plan.rows.keys())
    whole = not head["partial"] and not matrix.left({"faults": found})
    return {
        "version": matrix.VERSION,
        "suite": plan.suite,
        "backend": plan.backend,
        "machine": head["machine"],
        "made": head["made"],
        "seconds": round(
            sum(x.seconds for x in plan.journal.baseline)
            + sum(x.seconds for x in plan.journal.trials),
            1,
        ),
        "digest": manifest.of_document(
            {x: head[x] for x in ("digest", "tests", "faults")}
        ),
        "partial": head["partial"],
        "problems": [*plan.catalogue.problems, *_differs(plan)],
        "unsound": unsound(plan),
        "baseline": len(plan.journal.baseline),
        "unproved": plan.unproved() if whole and plan.suite == CONFORMANCE else [],
        "rows": [
            {
                "id": name,
                "statement": plan.rows.get(name, {}).get("statement", ""),
                "kind": plan.rows.get(name, {}).get("kind"),
                "lesson": lessons.get(name)
                or next(iter(plan.rows.get(name, {}).get("lessons", [])), None),
            }
            for name in order
        ],
        "faults": found,
    }


def of_fault(
    plan: Plan, fault: Fault, unknown: Container[str | None]
) -> dict[str, Any]:
    """The result of one fault.

    `unknown` are the profiles whose baseline is not complete. A fault with such a
    profile has no result yet.
    """
    planned = plan.planned(fault)
    # Proofs are additional tests of an operator; their results count.
    extra = [
        case
        for case in plan.cases(plan.profile(fault))
        if fault.kind == OPERATOR
        and (fault.name, case.name) in plan.done
        and case not in planned
    ]
    met = {
        case.name: plan.done[fault.name, case.name]
        for case in (*planned, *extra)
        if (fault.name, case.name) in plan.done
    }
    missing = plan.missing(fault)
    found = trials.outcome(
        fault,
        [*planned, *extra],
        met,
        _rows_without(plan, fault),
        {x for x, row in plan.rows.items() if row["kind"] in UNJUDGED_KINDS},
        plan.suite == LESSONS,
    )
    if plan.suite == LESSONS:
        central = {
            lesson
            for lesson, names in plan.catalogue.lessons.items()
            if fault.name in names
        }
        found = trials.of_lessons(fault, found, central)
    else:
        found = trials.decided(fault, found, plan.catalogue, plan.backend)
    if missing or plan.profile(fault) in unknown:
        found = {**found, "result": trials.NOT_RUN, "note": missing, "wrong": False}
    return {
        "name": fault.name,
        "kind": fault.kind,
        "function": fault.function,
        "operator": fault.operator,
        "what": fault.what,
        "profile": plan.profile(fault),
        **found,
    }


def missed(plan: Plan) -> list[Fault]:
    """The named faults that a test must notice, and none of its row has."""
    return [
        fault
        for fault in plan.chosen
        if fault.kind != OPERATOR
        and not fault.allowed
        and of_fault(plan, fault, ())["wrong"]
    ]


def unsound(plan: Plan) -> list[dict[str, Any]]:
    """The tests that were left out because they fail without a fault."""
    return [
        {
            "ctest": x.ctest,
            "profile": x.profile,
            "verdict": x.verdict,
            "reason": x.reason,
        }
        for x in plan.journal.baseline
        if x.verdict in records.FAILING
    ]


def show(out: Console, document: matrix.Document) -> None:
    """Print the counts, then a line for each thing that fails the command."""
    for line, style in matrix.told(document):
        out.print(Text(line, style=style), soft_wrap=True)


def _rows_without(plan: Plan, fault: Fault) -> dict[str, str]:
    """The rows that have to notice a fault and have no usable test here. ELSEWHERE:
    the row has tests, but none works here. OPEN: it has no test.
    """
    profile = plan.profile(fault)
    tested: dict[str, list[str]] = defaultdict(list)
    for case in plan.cases(profile):
        tested[trials.subject(case)].append(case.name)
    sound = plan.sound[profile]
    wanted: Iterable[str] = fault.rows
    if plan.suite == LESSONS:
        lists = plan.catalogue.lessons
        wanted = [lesson for lesson in lists if fault.name in lists[lesson]]
    return {
        row: trials.ELSEWHERE if tested.get(row) else trials.OPEN
        for row in wanted
        if not any(x in sound and sound[x].usable for x in tested.get(row, ()))
        and not any(x not in sound for x in tested.get(row, ()))
    }


def _differs(plan: Plan) -> list[str]:
    """The tests that have another verdict in the run of --baseline, which was made
    without the library; one line for each test.
    """
    if (folder := plan.request.baseline) is None:
        return []
    there = results.read(folder)
    document = there.run
    if there.wrong or document["state"] != "finished":
        raise UsageError(f"{folder}: {there.wrong or 'the run is not finished'}")
    if document["backend"] != plan.backend:
        raise UsageError(f"{folder}: a run on {document['backend']}")
    profile = document["settings"].get("profile")
    verdicts = {row.ctest: row.shown for row in records.rows(there.records)}
    return [
        f"{x.ctest}: {x.verdict} with the library, "
        f"{verdicts.get(x.ctest, 'not recorded')} in {folder}"
        for x in plan.journal.baseline
        if x.profile == profile and verdicts.get(x.ctest) != x.verdict
    ]
