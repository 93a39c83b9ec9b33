"""The findings: a page for each, and a page about all of them.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from generator.recorded import Run
from generator.rules import GROUPS, Evidence, link_to, on_model_only, where
from generator.text import facts, lines, plain, table
from ipclab import summary
from ipclab.findings import Finding

DEPARTED = ("deviates", "violates", "crashed", "hung")
TOOLKIT = "13.0"  # whose documentation the quoted sentences are from
MARKED = (
    "A part of this finding is a matter of security. This page says only what the "
    "documentation already warns of: what a handle of freed memory opens is not "
    "defined, and a process that has a handle can open the memory. The program and its "
    "output are in no release until the vendor has been told: see @ref security."
)
CLAIMS = """- A finding says what the named drivers did on the named GPUs, and how
  often. It says nothing about other drivers: there, run
  `ci/ipclab findings --run --all`.
- A finding says that the answer contradicts a sentence. It does not say why the driver
  gives this answer. Where the sentence may be at fault, the page says so.
- Nothing here was tested on Windows, on Tegra, under a hypervisor, with MIG or with a
  multicast object.
- The reference model shows none of the faults, because it follows the documentation.
  Its answers are no evidence about a driver.
"""


def label(finding: Finding) -> str:
    """The name of its page."""
    return f"finding_{finding.number:02}"


def parts(found: Iterable[Finding], with_security: bool) -> dict[str, str]:
    """File name -> what its page includes: the program and its recorded output."""
    made = {}
    for finding in found:
        if finding.security and not with_security:
            continue
        for ending in ("cu", "out"):
            if finding.file(ending).exists():
                made[f"{label(finding)}.{ending}"] = finding.file(ending).read_text()
    return made


def pages(
    found: list[Finding],
    catalogue: dict[str, Any],
    evidence: Evidence,
    included: Iterable[str],
) -> dict[str, str]:
    """File name -> page; `included` has the names of `parts`."""
    rows = [
        [
            f"{x.number:02}",
            f'@ref {label(x)} "{plain(x.about["title"])}"',
            x.severity,
            ", ".join(map(link_to, x.rows)),
        ]
        for x in found
    ]
    text = (
        "/**\n@page findings Findings\n"
        "@brief Where a real driver contradicts its documentation, with a program of "
        "at most 40 lines for each finding.\n\n"
        "The list begins with the findings that do most harm. "
        "`ci/ipclab findings` lists those of this machine's driver; "
        "`ci/ipclab findings --run` runs their programs.\n\n"
        + table(["", "finding", "severity", "rules"], rows)
        + "@section findings_lifted Documented limits that are gone\n\n"
        + _lifted(evidence.runs)
        + "@section findings_errata Errors in the documentation\n\n"
        "@ref errata lists lines of published listings that do not compile or do not "
        "work, each with a form that does.\n\n"
        "@section findings_right What was tested and is right\n\n"
        + _right(catalogue["rows"], evidence.runs)
        + "@section findings_claims What is not claimed\n\n"
        + CLAIMS
        + _unjudged(catalogue["rows"], evidence.runs)
        + "*/\n"
    )
    names = set(included)
    return {
        "findings.dox": text,
        **{f"{label(x)}.dox": page(x, evidence.runs, names) for x in found},
    }


def page(finding: Finding, runs: list[Run], included: set[str]) -> str:
    """One finding with everything that is known about it."""
    name, about = label(finding), finding.about
    program, output = f"{name}.cu", f"{name}.out"
    hidden = finding.security and program not in included
    measured = [
        plain(x["evidence"])
        for x in finding.entries
        if not (hidden and x.get("security"))
    ]
    told = facts(
        [
            ("Severity", finding.severity),
            ("Who is hit", plain(about["hit"])),
            ("Workaround", plain(about["workaround"])),
            ("Seen on", lines(dict.fromkeys(map(where, finding.entries)))),
            ("Needs", "two GPUs" if about["gpus"] > 1 else "one GPU"),
            ("Rules", ", ".join(map(link_to, finding.rows))),
            ("Reported", plain(about["reported"] or "not yet")),
            (
                "Public reports",
                lines(f"[{plain(x['says'])}]({x['url']})" for x in about["links"]),
            ),
        ]
    )
    sentence = about["sentence"]
    text = (
        f"/**\n@page {name} Finding {finding.number:02}: {plain(about['title'])}\n\n"
        f"> {plain(sentence['says'])}\n>\n"
        f"> {plain(sentence['topic'])}, CUDA {TOOLKIT}\n\n"
        + (f"{plain(about['note'])}\n\n" if "note" in about else "")
        + f"{told}@section {name}_seen What was measured\n\n"
        + "".join(f"- {x}\n" for x in dict.fromkeys(measured))
        + "\n"
        + _counted(finding, runs)
        + f"@section {name}_program The program\n\n"
    )
    if hidden:
        return f"{text}{MARKED}\n\n*/\n"
    text += (
        f"`ci/ipclab findings --run {finding.number}` runs it. It exits with 1 if the "
        f"driver shows the fault, and with 0 if it does what is documented.\n\n"
        f"@include {program}\n\n"
    )
    if output in included:
        text += f"On a recorded machine it printed:\n\n@verbinclude {output}\n\n"
    else:
        text += "Its output on a recorded machine is not recorded yet.\n\n"
    return text + "*/\n"


def _counted(finding: Finding, runs: list[Run]) -> str:
    """How many of the recorded attempts of each test showed it, for each machine."""
    rows = []
    for entry in finding.entries:
        cells = []
        for run in runs:
            seen = [x for x in run.records if x["test"] == entry["test"]]
            departed = sum(x["verdict"] in DEPARTED for x in seen)
            cells.append(f"{departed} of {len(seen)}" if seen else "–")  # noqa: RUF001
        rows.append([f"`{entry['test']}`", link_to(entry["requirement"]), *cells])
    if not runs:
        return ""
    return "Recorded runs of the tests that show it:\n\n" + table(
        ["test", "rule", *(run.machine for run in runs)], rows
    )


def _lifted(runs: list[Run]) -> str:
    """The rows of which a recorded machine no longer has the limit."""
    found: dict[str, dict[str, str]] = {}
    for run in runs:
        for test in summary.tests(run.rows):
            if test.verdict == "lifted":
                seen = found.setdefault(test.record["requirement"], {})
                seen[run.machine] = test.reason
    if not found:
        return "No recorded machine shows one.\n\n"
    return table(
        ["rule", "what was seen", "machines"],
        (
            [
                link_to(row),
                plain(next(iter(seen.values()))),
                f"all {len(runs)}" if len(seen) == len(runs) else lines(seen),
            ]
            for row, seen in found.items()
        ),
    )


def _right(rows: list[dict[str, Any]], runs: list[Run]) -> str:
    counts: dict[str, list[int]] = {}
    for row in rows:
        seen = set().union(*(run.judged.get(row["id"], set()) for run in runs))
        count = counts.setdefault(row["id"].split("-")[0], [0, 0])
        count[0] += seen == {"conforms"}
        count[1] += bool(seen)
    total = [sum(x) for x in zip(*counts.values(), strict=True)]
    return (
        f"Of {total[1]} rules that a recorded machine could judge, {total[0]} hold in "
        "every test, on every machine and in every attempt.\n\n"
        + table(
            ["rules", "hold everywhere", "judged"],
            (
                [f'@ref rules_{x} "{GROUPS.get(x, x)}"', str(held), str(judged)]
                for x, (held, judged) in counts.items()
                if judged
            ),
        )
    )


def _unjudged(rows: list[dict[str, Any]], runs: list[Run]) -> str:
    """The rows that only the reference model has judged so far."""
    names = [x["id"] for x in rows if on_model_only(x, runs)]
    if not names:
        return "\n"
    return (
        f"- No recorded machine has judged these {len(names)} rules: "
        f"{', '.join(map(link_to, names))}.\n\n"
    )
