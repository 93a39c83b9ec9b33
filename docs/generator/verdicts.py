"""What recorded machines answered: a page for all, a section each.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

from collections import Counter

from generator.chapters import CHAPTERS, page_of
from generator.recorded import Run
from generator.rules import departure, link_to
from generator.text import lines, plain, table
from ipclab import matrix, records
from ipclab.trials import MEANING

TOLD = ("violates", "deviates", "lifted", "flaky", "crashed", "hung", "broken")
LONGEST = 240  # characters of a reason; the record has the rest


def page(runs: list[Run]) -> str:
    """The page; `runs` are those of drivers."""
    text = (
        "/**\n@page results Results\n"
        "@brief What recorded machines answered, verdict by verdict.\n\n"
        "A verdict is of one test; @ref rules shows them row by row. "
        "@ref start_verdicts says what each word means.\n\n"
    )
    if not runs:
        text += (
            "No machine is recorded yet. @ref contributing says how to record one.\n"
        )
    return text + "".join(section(run) for run in runs) + "*/\n"


def section(run: Run) -> str:
    """One machine: counts by chapter, and each test that a reader should know of."""
    found = [x for x in records.rows(run.records) if x.record["suite"] != "sample"]
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
    told = [
        [
            link_to(test.record["requirement"]),
            test.shown,
            lines([_seen(test), _test(test)]),
        ]
        for test in found
        if test.verdict in TOLD
    ]
    unjudged: dict[str, dict[str, None]] = {}
    for test in found:
        if test.verdict == "not applicable":
            row = link_to(test.record["requirement"])
            unjudged.setdefault(plain(test.reason), {})[row] = None
    missing = table(
        ["what is missing", "rows"],
        ([reason, ", ".join(rows)] for reason, rows in unjudged.items()),
    )
    about = run.about["fingerprint"]
    label = "results_" + "".join(c if c.isalnum() else "_" for c in run.name)
    return (
        f"@section {label} {run.machine}\n\n"
        f"{plain(about['os'])}, kernel {plain(about['kernel'])}, recorded on "
        f"{run.about['started'][:10]}, folder `docs/results/{run.name}`.\n\n"
        + table(["chapter", *used], counts)
        + "Where the answer is not the documented one, or a limit is gone:\n\n"
        + table(["row", "verdict", "what was seen"], told)
        + (f"What this machine cannot show:\n\n{missing}" if unjudged else "")
        + (_kill_matrix(run.kills) if run.kills else "")
    )


def _kill_matrix(kills: matrix.Document) -> str:
    """Which faults the suite noticed here, and by name those that it did not."""
    missed = [
        [f"`{fault['name']}`", plain(fault["what"]), fault["result"]]
        for fault in kills["faults"]
        if fault["wrong"]
    ]
    never = ", ".join(link_to(row) for row in kills["unproved"])
    return (
        f"Is the suite able to fail here? {len(kills['faults'])} faults were put in "
        f"front of this driver, one at a time, on {kills['made'][:10]}:\n\n"
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
    """Its name and its lesson, as a link."""
    name = test.record["test"].split(".")[1]
    return f"`{name}` of @ref {page_of(test.record['lesson'])}"


def _seen(test: records.Row) -> str:
    """In the words of deviations.json as it was then, or else of the record."""
    if test.verdict == "deviates":
        return departure(test.record["deviation"])
    reason = " ".join(test.reason.split())
    return plain(reason if len(reason) <= LONGEST else reason[: LONGEST - 1] + "…")
