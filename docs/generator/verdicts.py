"""What recorded machines answered: one page, with a section for each machine.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from generator import machines
from generator.chapters import CHAPTERS, page_of
from generator.recorded import Run, suites
from generator.rules import link_to
from generator.text import plain, table
from ipclab import records, summary
from ipclab.mutants import matrix
from ipclab.mutants.trials import MEANING

TOLD = ("violates", "deviates", "lifted", "flaky", "crashed", "hung", "broken")
WORDS = """@section results_verdicts What a verdict means

| verdict | meaning | the run fails |
| --- | --- | --- |
| conforms | the test saw what the sentence says | no |
| violates | the test saw something else | yes |
| deviates | the test saw something else, and evidence is recorded for this driver | \
no; yes with `--strict` |
| lifted | a documented limitation is no longer there | no |
| observed | undocumented or undefined behaviour; the run records it and fails only \
for harm that the rule names | no |
| not applicable | the machine lacks what the rule needs; the report says what | no |
| crashed, hung | a role died or ran out of time | yes |
| broken | the harness could not judge | yes |
| flaky | repeated runs disagree | yes |

"""
LONGEST = 240  # characters of a reason; the record has the rest


def page(runs: list[Run], today: Collection[str]) -> str:
    """The page; `runs` are runs on drivers, not on the model. `today` has the names of
    the catalogue's rows: a run may judge rows that the catalogue no longer has."""
    text = (
        "/**\n@page results Results\n"
        "@brief What recorded machines answered, side by side.\n\n"
        "A verdict belongs to one test. Lessons are not counted, because they judge "
        "nothing. @ref rules has the same verdicts, rule by rule; "
        "@ref results_verdicts explains each word. Machines are compared only with "
        "machines that have the same number of GPUs and ran programs of the same "
        "CUDA Toolkit.\n\n"
    )
    if not runs:
        return text + (
            "No machine is recorded yet. @ref contributing says how to record one.\n"
            f"{WORDS}*/\n"
        )
    for of in suites(runs):
        text += f"@section {suite_label(of[0])} {suite_title(of[0])}\n\n"
        text += _side_by_side(of, today)
        text += "".join(section(run, today) for run in of)
    return f"{text}{WORDS}*/\n"


def suite_title(run: Run) -> str:
    """The suite that a machine ran, in words."""
    count = run.suite[1]
    number = {1: "One GPU", 2: "Two GPUs"}.get(count, f"{count} GPUs")
    return f"{number}, programs of {run.toolkit}"


def suite_label(run: Run) -> str:
    """The anchor of a suite."""
    return "results_suite_{}_{}".format(*run.suite)


def _rule(name: str, today: Collection[str]) -> str:
    """A link to a rule; only its name if it has no page."""
    return link_to(name) if name in today else f"{name} (no rule today)"


def _side_by_side(runs: list[Run], today: Collection[str]) -> str:
    """The machines of one suite: counts, then the tests with different answers, then
    the same answers that are not the documented ones."""
    counts = [records.counts(summary.tests(run.rows)) for run in runs]
    used = [x for x in records.ORDER if any(x in one for one in counts)]
    suite = suite_label(runs[0])
    names = [f'@ref {label(run)} "{run.gpu}"' for run in runs]
    listed = [
        [name, *(str(one.get(x, 0)) for x in used), files(run)]
        for name, one, run in zip(names, counts, runs, strict=True)
    ]
    text = table(["machine", *used, "to download"], listed)
    by_run = [{row.ctest: row for row in summary.tests(run.rows)} for run in runs]
    tests = list(dict.fromkeys(name for one in by_run for name in one))
    lines_of: dict[bool, list[list[str]]] = {True: [], False: []}
    for name in tests:
        seen = [one.get(name) for one in by_run]
        known = next(x for x in seen if x is not None)
        differ = len({x.shown for x in seen if x is not None}) > 1
        if not differ and known.verdict not in TOLD:
            continue
        cells = [_verdict(x) for x in seen]
        row = [_rule(known.record["requirement"], today), _test(known)]
        lines_of[differ].append(
            [*row, *cells] if differ else [*row, cells[0], _seen(known)]
        )
    if len(runs) > 1:
        text += f"@subsection {suite}_differ Where they differ\n\n"
        pages = ", ".join(
            f'<a href="machines/{one.name}-{other.name}.html">{one.name} and '
            f"{other.name}</a>"
            for one, other in machines.pairs(runs)
        )
        text += f"Compared test by test, with their environments: {pages}.\n\n"
        if any(len(one) < len(tests) for one in by_run):
            recorded = ", ".join(
                f"{run.name} {len(one)}" for run, one in zip(runs, by_run, strict=True)
            )
            text += (
                "Not every machine was recorded with the same tests. Tests of each "
                f"machine: {recorded}. A test that only one machine has is not "
                "compared.\n\n"
            )
        if lines_of[True]:
            text += table(["rule", "test", *(x.gpu for x in runs)], lines_of[True])
        else:
            text += "In every test they answered in the same way.\n\n"
    text += (
        f"@subsection {suite}_told Where the answer is not the documented one\n\n"
        + (
            "In these tests all machines answered in the same way.\n\n"
            if len(runs) > 1
            else ""
        )
        + table(["rule", "test", "verdict", "what was seen"], lines_of[False])
    )
    return text


def _verdict(row: records.Row | None) -> str:
    if row is None:
        return "no such test"
    return f'<span class="verdict {row.verdict.replace(" ", "-")}">{row.shown}</span>'


def label(run: Run) -> str:
    """The anchor of a machine."""
    return "results_" + "".join(c if c.isalnum() else "_" for c in run.name)


def files(run: Run) -> str:
    """Links to the other pages about a machine."""
    found = {"report.html": "report", "rows.csv": "CSV", "run.json": "JSON"}
    if run.kills:
        found["mutants.html"] = "kill matrix"
    return ", ".join(
        f'<a href="machines/{run.name}/{file}">{name}</a>'
        for file, name in found.items()
    )


def section(run: Run, today: Collection[str]) -> str:
    """One machine: counts for each chapter, and what the machine cannot show."""
    found = summary.tests(run.rows)
    used = records.counts(found)
    by_chapter: dict[str, Counter[str]] = {}
    for test in found:
        chapter = CHAPTERS[test.record["lesson"][0]]
        by_chapter.setdefault(chapter, Counter())[test.verdict] += 1
    counts = [
        [chapter, *(str(seen[verdict] or "") for verdict in used)]
        for chapter, seen in by_chapter.items()
    ]
    counts.append(["**all**", *(f"**{count}**" for count in used.values())])
    unjudged: dict[str, dict[str, None]] = {}
    for test in found:
        if test.verdict == "not applicable":
            row = _rule(test.record["requirement"], today)
            unjudged.setdefault(plain(test.reason), {})[row] = None
    missing = table(
        ["what is missing", "rules"],
        ([reason, ", ".join(rows)] for reason, rows in unjudged.items()),
    )
    about = run.about["fingerprint"]
    return (
        f"@subsection {label(run)} {run.gpu}\n\n"
        f"{plain(about['os'])}, kernel {plain(about['kernel'])}, recorded on "
        f"{run.about['started'][:10]}, folder `docs/results/{run.name}`.\n\n"
        + table(["chapter", *used], counts)
        + (f"What this machine cannot show:\n\n{missing}" if unjudged else "")
        + (
            _kill_matrix(run.kills, today)
            if run.kills
            else "No kill matrix of this machine is recorded. So this site does not "
            "show which faults the suite notices on this driver.\n\n"
        )
    )


def _kill_matrix(kills: matrix.Document, today: Collection[str]) -> str:
    """The counts of the faults by result, and the faults that were not noticed."""
    part = kills["partial"]
    missed = [
        [f"`{fault['name']}`", plain(fault["what"]), fault["result"]]
        for fault in kills["faults"]
        if fault["wrong"]
    ]
    never = ", ".join(_rule(row, today) for row in kills["unproved"])
    return (
        f"Is the suite able to fail here? {len(kills['faults'])} faults were put in "
        f"front of this driver, one at a time, on {kills['made'][:10]}:\n\n"
        + (f"This is not the whole matrix: {plain(part)}.\n\n" if part else "")
        + table(
            ["result", "faults", "what that means"],
            (
                [result, str(number), MEANING[result]]
                for result, number in matrix.counts(kills).items()
            ),
        )
        + (
            "Not noticed:\n\n" + table(["fault", "what it does", "result"], missed)
            if missed
            else ""
        )
        + (f"No fault made these rules fail here: {never}.\n\n" if never else "")
    )


def _test(test: records.Row) -> str:
    """The name of a test, and a link to its lesson."""
    name = test.record["test"].split(".")[1]
    lesson = test.record["lesson"]
    return f'`{name}` @ref {page_of(lesson)} "lesson\N{NO-BREAK SPACE}{lesson[:2]}"'


def _seen(test: records.Row) -> str:
    """The evidence of the recorded deviation; without a deviation, the beginning of the
    record's reason."""
    if test.verdict == "deviates":
        return plain(test.record["deviation"]["evidence"])
    reason = " ".join(test.reason.split())
    return plain(reason if len(reason) <= LONGEST else reason[: LONGEST - 1] + "…")
