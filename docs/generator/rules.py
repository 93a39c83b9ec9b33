"""The rules: a page a group, a section a row of the catalogue.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generator.chapters import page_of
from generator.recorded import Run
from generator.text import facts, lines, plain, spelled
from ipclab import records
from ipclab.faults import Fault

Row = dict[str, Any]
NOT_COVERED = """@section rules_not_covered What is left out

No test and no lesson makes a multicast object: where others share the links between
the GPUs, a program that uses one wrongly can put their GPUs out of service. So two
things that the documentation says about sharing are not covered:

- a multicast object may be exported and imported as other handles are, by its handle
  types (cuda.h:4362-4366, see cuMulticastCreate);
- one that can be shared, and an imported one, takes only memory that can be shared
  (cuda.h:13919-13920, see cuMulticastBindMem and cuMulticastBindAddr).

"""
GROUPS = {
    "LMEM": "Legacy memory handles",
    "LEVT": "Legacy event handles",
    "FLAG": "Words that GPU work waits for",
    "MNGD": "Managed and other memory",
    "SUBA": "Sub-allocation",
    "VMM": "Virtual memory management",
    "FABR": "Fabric handles",
    "SOMA": "Stream-ordered allocator",
    "POOL": "IPC pools",
    "IMPL": "Imported pools",
    "LIFE": "Lifetime",
    "PLAT": "Platform",
    "TENS": "Tensors of PyTorch",
    "COST": "What sharing takes",
    "RANK": "Ranks of one node",
    "SERV": "Servers and clients",
}
TEST = re.compile(r'^TEST\((\w+), (\w+)\) \{\s*covers\("([A-Z]+-\d+)"\);', re.MULTILINE)


@dataclass(frozen=True)
class Evidence:
    """What is known of the rows besides the catalogue itself."""

    lessons: set[str]  # that there are; the catalogue plans more
    tests: dict[str, list[str]]  # row -> what its tests are called
    faults: list[Fault]  # what may make a row fail
    deviations: list[Row]  # deviations.json
    runs: list[Run]  # of drivers


def tests(conformance: Path) -> dict[str, list[str]]:
    """Row -> `Suite.Name` of its tests, read from the sources of the mirrors."""
    found: dict[str, list[str]] = {}
    for source in sorted(conformance.glob("[0-9]*/*_test.cu")):
        for suite, name, row in TEST.findall(source.read_text()):
            found.setdefault(row, []).append(f"{suite}.{name}")
    return found


def label(row: Row) -> str:
    """The anchor of a row: Doxygen's labels have no hyphen."""
    return f"rule_{row['id'].replace('-', '_')}"


def link(row: Row) -> str:
    """A reference to a row, shown as its name."""
    return link_to(row["id"])


def link_to(name: str) -> str:
    """The same for its name alone."""
    return f'@ref rule_{name.replace("-", "_")} "{name}"'


def pages(catalogue: dict[str, Any], evidence: Evidence) -> dict[str, str]:
    """File name -> page."""
    by_group: dict[str, list[Row]] = {}
    for row in catalogue["rows"]:
        by_group.setdefault(row["id"].split("-")[0], []).append(row)
    listed = "\n".join(
        f"- @subpage rules_{group}, {len(rows)} rows"
        for group, rows in by_group.items()
    )
    sources = facts((name, plain(text)) for name, text in catalogue["sources"].items())
    made = {
        "rules.dox": "/**\n@page rules Rules\n"
        "@brief Each documented sentence, its source, its tests and what they saw.\n\n"
        f"{listed}\n\nWhere a sentence stands:\n\n{sources}"
        f"{plain(catalogue['notation'])}\n\n{NOT_COVERED}*/\n"
    }
    for group, rows in by_group.items():
        text = f"/**\n@page rules_{group} {GROUPS[group]}: rules\n\n"
        for row in rows:
            text += section(row, catalogue["kinds"], evidence)
        made[f"rules_{group}.dox"] = text + "*/\n"
    return made


def section(row: Row, kinds: dict[str, str], evidence: Evidence) -> str:
    """One row with all that is known of it."""
    name = row["id"]
    lessons = [x for x in row["lessons"] if x in evidence.lessons]
    faults = [x for x in evidence.faults if name in x.rows]
    rows = [
        ("Kind", f"{row['kind']}: {plain(kinds[row['kind']])}"),
        ("Source", plain(spelled(row["source"]))),
        ("Follows from", ", ".join(link_to(x) for x in row.get("follows_from", []))),
        ("Scenario", plain(row.get("scenario", ""))),
        ("Check", plain(row.get("check", ""))),
        ("Lessons", ", ".join(f"@ref {page_of(x)}" for x in lessons)),
        ("Tests", lines(f"`{x}`" for x in evidence.tests.get(name, []))),
        (
            "Seen to fail by",
            lines(f"`{x.name}`: {plain(x.what)}" for x in faults),
        ),
        *((run.machine, verdict(run, name)) for run in evidence.runs),
        *(
            ("Known departure", text)
            for text in dict.fromkeys(
                departure(entry)
                for entry in evidence.deviations
                if entry["requirement"] == name
            )
        ),
    ]
    sentence = plain(spelled(row["statement"]))
    return f"@section {label(row)} {name}\n\n> {sentence}\n\n{facts(rows)}"


def verdict(run: Run, row: str) -> str:
    """What a machine's tests of a row said: their verdicts, counted if they differ."""
    seen = Counter(
        test.shown
        for test in records.rows(run.records)
        if test.record["requirement"] == row
    )
    if len(seen) == 1:
        return next(iter(seen))
    return ", ".join(f"{count} {shown}" for shown, count in seen.items())


def departure(entry: Row) -> str:
    """An entry of deviations.json in words."""
    driver = entry["driver"]
    if not driver:
        where = "any driver"
    elif driver["from"] == driver["to"]:
        where = f"driver {driver['from']}"
    else:
        where = f"drivers {driver['from']} to {driver['to']}"
    return f"{plain(entry['evidence'])} ({where}, until {entry['expires']})"
