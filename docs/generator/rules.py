"""The rules: a page for each group, and a page for each row of the catalogue.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from generator.chapters import page_of
from generator.recorded import Run
from generator.text import facts, lines, plain, spelled, table
from ipclab import deviations, hardware, requirements
from ipclab.catalogue import Entry
from ipclab.mutants import matrix, trials
from ipclab.mutants.faults import Fault
from ipclab.rules import read_tests

Row = dict[str, Any]
NOT_COVERED = """@section rules_not_covered What is left out

No test and no lesson makes a multicast object: a mistake in such a program can put GPUs
of other people on the same links out of service. So two things that the documentation
says about sharing are not covered:

- a multicast object may be exported and imported like other handles, by its handle
  types (CUmulticastObjectProp, see cuMulticastCreate);
- an object that can be shared, or that was imported, accepts only memory that can be
  shared (cuMulticastBindMem and cuMulticastBindAddr).

@subpage coverage shows for each documented sentence what covers it, or why nothing
does.

"""
ABOUT = (
    "A rule states a sentence of the documentation, or a conclusion from such "
    "sentences, in our words and short enough to be tested. The source of a rule says "
    "where to read the original. "
    "Rules of the kinds OBSERVE and UNDEF describe behaviour that the documentation "
    "does not promise. Tests of these rules record what happens. These tests fail only "
    "if something happens that their paragraph names, such as a crash or wrong "
    "values in another process."
)
# The text between the name of a rule and its source.
ORIGINS = {
    "MUST": "our wording of",
    "ERROR": "our wording of",
    "PRECONDITION": "our wording of",
    "LIMIT": "our wording of",
    "ADVICE": "our wording of",
    "DERIVED": "our conclusion from",
    "OBSERVE": "not promised by the documentation; see",
    "UNDEF": "documented as undefined, our wording of",
}
ON_MODEL = (
    "No recorded machine has judged this rule: so far it is "
    f"{hardware.ON_MODEL}, which says nothing about a driver.\n\n"
)
LONGEST_TITLE = 70
# A title that is cut does not end with one of these words.
DANGLING = re.compile(
    r"a|an|and|are|as|at|be|by|can|do|for|from|has|have|if|in|into|is|it|its|may|must|"
    r"never|no|not|of|on|one|only|or|same|shall|so|than|that|the|their|them|then|this|"
    r"to|was|were|when|where|which|while|who|whose|will|with|without"
)
TOP = Path(__file__).resolve().parents[2]
# The title of each group of rows, in their order.
GROUPS: dict[str, str] = requirements.document(TOP / "conformance")["groups"]


@dataclass(frozen=True)
class Evidence:
    """What is known about the rows besides the catalogue itself."""

    lessons: set[str]  # existing lessons; a row may name a lesson that is planned
    tests: dict[str, list[str]]  # row -> names of its tests
    faults: list[Fault]  # faults that may make a row fail
    deviations: list[Row]  # deviations.json
    runs: list[Run]  # of drivers
    sentences: dict[str, list[Entry]] = field(default_factory=dict)  # of each row
    places: dict[str, str] = field(default_factory=dict)  # test or fault -> source


def tests(conformance: Path) -> dict[str, list[str]]:
    """Row -> `Suite.Name` of its tests, read from the sources in conformance/."""
    found: dict[str, list[str]] = {}
    for test, row in read_tests(conformance):
        found.setdefault(row, []).append(test.split(".", 2)[2])
    return found


def label(row: Row) -> str:
    """The anchor of a row: Doxygen's labels have no hyphen."""
    return f"rule_{row['id'].replace('-', '_')}"


def link(row: Row) -> str:
    """A reference to a row, shown as its name."""
    return link_to(row["id"])


def link_to(name: str) -> str:
    """A reference to the row of this name."""
    return f'@ref rule_{name.replace("-", "_")} "{name}"'


def pages(catalogue: dict[str, Any], evidence: Evidence) -> dict[str, str]:
    """File name -> page: all groups, a page for each group, a page for each row."""
    by_group: dict[str, list[Row]] = {}
    for row in catalogue["rows"]:
        by_group.setdefault(row["id"].split("-")[0], []).append(row)
    listed = "\n".join(
        f"- @subpage rules_{group}, {len(rows)} rules"
        for group, rows in by_group.items()
    )
    kinds = Counter(row["kind"] for row in catalogue["rows"])
    kind_table = table(
        ("kind", "what it is", "rules"),
        ([x, plain(told), str(kinds[x])] for x, told in catalogue["kinds"].items()),
    )
    sources = facts((name, plain(text)) for name, text in catalogue["sources"].items())
    made = {
        "rules.dox": "/**\n@page rules Rules\n"
        "@brief What the documentation says about sharing, rule by rule: its source, "
        "its tests and what they saw.\n\n"
        f"{ABOUT}\n\n{listed}\n\n@section rules_kinds Kinds of rules\n\n{kind_table}"
        f"@section rules_sources Where a rule comes from\n\n{sources}"
        f"{plain(catalogue['notation'])}\n\n"
        '<a href="requirements.json">requirements.json</a> has all rules, with the '
        f"paragraph of each test.\n\n{NOT_COVERED}*/\n"
    }
    for group, rows in by_group.items():
        made[f"rules_{group}.dox"] = group_page(group, rows, evidence)
        for row in rows:
            name = f"{label(row)}.dox"
            made[name] = rule_page(row, catalogue["kinds"], evidence)
    return made


def group_page(group: str, rows: list[Row], evidence: Evidence) -> str:
    """All rows of a group with what the machines answered."""
    lines_of = [
        [
            f"**{link(row)}**",
            plain(row["statement"])
            + (f" ({hardware.ON_MODEL})" if on_model_only(row, evidence.runs) else ""),
            row["kind"],
            answers(evidence.runs, row["id"]),
        ]
        for row in rows
    ]
    head = ["rule", "what it says", "kind", "recorded machines"]
    return (
        f"/**\n@page rules_{group} {GROUPS.get(group, group)}: rules\n"
        f"@brief {len(rows)} rules; @ref rules says what the kinds mean\n\n"
        f"{table(head, lines_of)}*/\n"
    )


def rule_page(row: Row, kinds: dict[str, str], evidence: Evidence) -> str:
    """One row with everything that is known about it."""
    name = row["id"]
    lessons = [x for x in row["lessons"] if x in evidence.lessons]
    faults = [x for x in evidence.faults if name in x.rows]
    told = facts(
        [
            ("Kind", f"{row['kind']}: {plain(kinds[row['kind']])}"),
            ("Source", plain(spelled(row["source"]))),
            ("Documented", _documented(evidence.sentences.get(name, []))),
            ("Since", f"CUDA {row['since']}" if "since" in row else ""),
            ("Until", f"CUDA {row['until']}" if "until" in row else ""),
            ("Follows from", ", ".join(map(link_to, row.get("follows_from", [])))),
            ("Lessons", ", ".join(f"@ref {page_of(x)}" for x in lessons)),
        ]
    )
    page = label(row)
    text = (
        f"/**\n@page {page} {name}: {summary(row)}\n\n"
        f"> {plain(row['statement'])}\n>\n> {origin(row)}\n\n{told}"
        f"@section {page}_test How it is tested\n\n"
    )
    text += facts([("Expected answer", plain(deviations.basis(row)))])
    paragraphs = requirements.paragraphs(row)
    for test in evidence.tests.get(name, []):
        text += (
            f"{_source(test, evidence.places)}\n\n{plain(paragraphs.get(test, ''))}\n\n"
        )
    if evidence.runs:
        text += f"@section {page}_answers What recorded machines answered\n\n"
        text += ON_MODEL if on_model_only(row, evidence.runs) else ""
        text += facts((run.machine, coloured(run, name)) for run in evidence.runs)
    known = dict.fromkeys(
        departure(entry)
        for entry in evidence.deviations
        if entry["requirement"] == name
    )
    if known:
        text += f"@section {page}_departure Known departures\n\n"
        text += "\n".join(f"- {entry}" for entry in known) + "\n\n"
    noticed = _noticed(name, faults, evidence.runs, evidence.places)
    if noticed:
        text += f"@section {page}_faults Faults that its tests notice\n\n{noticed}"
    return text + "*/\n"


def _source(name: str, places: dict[str, str]) -> str:
    """The name of a test or a fault, linked to its source if the site has it."""
    if name not in places:
        return f"`{name}`"
    return f'<a href="{places[name]}"><code>{name}</code></a>'


def on_model_only(row: Row, runs: list[Run]) -> bool:
    """Whether a row is judged, and no recorded machine has judged it."""
    return row["kind"] not in deviations.UNJUDGED_KINDS and not any(
        row["id"] in run.judged for run in runs
    )


def _noticed(
    row: str, faults: list[Fault], runs: list[Run], places: dict[str, str]
) -> str:
    """The faults that a test of the row has to notice, and the kill matrices of
    recorded machines; empty if there are none."""
    shown = [run for run in runs if run.kills]
    text = ""
    if faults:
        text = (
            "Each of these faults breaks what the rule says, so a test of the rule "
            "must fail. `ipclab mutants` runs the tests with one fault at a time.\n\n"
        )
        text += table(
            ("fault", "what it breaks", *(run.machine for run in shown)),
            (
                [
                    _source(x.name, places),
                    plain(x.what),
                    *(y.kills_of.get(row, {}).get(x.name, "not run") for y in shown),
                ]
                for x in faults
            ),
        )
        if not shown:
            text += "No recorded machine has a kill matrix yet.\n\n"
    for run in shown:
        results = run.kills_of.get(row, {}).values()
        seen = sum(x in trials.NOTICED for x in results)
        text += (
            f"- On {run.machine} the tests of this rule noticed {seen or 'no'} "
            f"fault{'s' * (seen != 1)}: "
            f'<a href="machines/{run.name}/{matrix.PAGE}">kill matrix</a>.\n'
        )
    return text + "\n" * bool(shown)


def origin(row: Row) -> str:
    """Says that the words of a rule are ours, and what its source is."""
    source = plain(spelled(row["source"])).removeprefix("consequence of ")
    return f"{link(row)}, {ORIGINS[row['kind']]}: {source}"


def summary(row: Row) -> str:
    """The beginning of a statement, as a title; it may be cut."""
    text = re.sub(r" \([^)]*\)", "", row["statement"])
    first = re.split(r"[:;,.](?: |$)", text)[0]
    if len(first) > LONGEST_TITLE:
        words = first[:LONGEST_TITLE].split(" ")[:-1]
        while len(words) > 1 and DANGLING.fullmatch(words[-1].lower()):
            words.pop()
        first = " ".join(words) + "…"
    return plain(first)


def _documented(sentences: list[Entry]) -> str:
    """Links to the functions and types whose sentences a row is based on."""
    topics = dict.fromkeys(x.topic for x in sentences)
    return lines(f'@ref coverage_{x} "{x}"' for x in topics)


def verdict(run: Run, row: str) -> str:
    """The verdicts of a row's tests on a machine, with counts if they differ; empty if
    no test of the row ran there."""
    seen = Counter(test.shown for test in run.rows if test.record["requirement"] == row)
    if len(seen) == 1:
        return next(iter(seen))
    return ", ".join(f"{count} {shown}" for shown, count in seen.items())


def answers(runs: list[Run], row: str) -> str:
    """The different answers of the machines, and how many machines gave each."""
    seen = Counter(coloured(run, row) for run in runs)
    if len(seen) <= 1:
        return next(iter(seen), "")
    return lines(f"{shown} {count}" for shown, count in seen.most_common())


def coloured(run: Run, row: str) -> str:
    """The verdicts in the colour of the first that is not the documented one; a dash if
    no test of the row ran there."""
    shown = verdict(run, row)
    if not shown:
        return "–"  # noqa: RUF001
    found = [re.sub(r"^\d+ ", "", x).split(" (")[0] for x in shown.split(", ")]
    style = next((x for x in found if x != "conforms"), "conforms").replace(" ", "-")
    return f'<span class="verdict {style}">{shown}</span>'


def where(entry: Row) -> str:
    """The drivers and GPUs of an entry of deviations.json."""
    driver = entry["driver"]
    if not driver:
        return "any driver"
    gpus = " and ".join(entry.get("gpus", []))
    end = f" on {gpus}" if gpus else ""
    if driver["from"] == driver["to"]:
        return f"driver {driver['from']}{end}"
    return f"drivers {driver['from']} to {driver['to']}{end}"


def departure(entry: Row) -> str:
    """An entry of deviations.json in words."""
    finding = (
        f"@ref finding_{entry['finding']:02}, {entry['severity']}. "
        if "finding" in entry
        else ""
    )
    return (
        f"{finding}{plain(entry['evidence'])} (Known for {where(entry)}; to be looked "
        f"at again by {entry['expires']}.)"
    )
