"""`ipclab rules`: the catalogue's rows, and what proves each of them.

The command needs Python and no package, and no build: it reads the tests of a source
tree from their sources. A packed suite has a list of its tests.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ipclab import catalogue as documented
from ipclab import ctest, hardware, lines, packed, records, requirements, results
from ipclab.errors import UsageError
from ipclab.mutants import faults
from ipclab.mutants.faults import Fault
from ipclab.requirements import Row

LATEST = Path("results/latest")
TEST = re.compile(r'^TEST\((\w+), (\w+)\) \{\s*covers\("([A-Z]+-\d+)"\);', re.MULTILINE)
# What a reader of a row looks for in the sources: a test or a fault.
PLACE = re.compile(r'^TEST\((\w+), (\w+)\)|^  fault\(\s*"([^"]+)"', re.MULTILINE)


def run(
    build: Path | None, name: str | None, folder: Path | None, as_json: bool = False
) -> int:
    """Print all rows, or explain one row. The verdicts come from the results in
    `folder`. With `as_json`, print the whole catalogue as one JSON document
    (requirements.json).

    The rows are those of `build`; without it, those of the source tree of this command,
    or of the suite of the wheel. Without a folder the verdicts come from
    results/latest, if there is such a run. Raises UsageError if there is no such row.
    """
    chosen = build or packed.default_build()
    source = packed.source(chosen) or (
        ctest.source_folder(chosen) if build else packed.TREE
    )
    rooms = source / "conformance"
    if as_json:
        if name is not None:
            raise UsageError(f"--json prints all rows: leave out {name}")
        print(requirements.text(rooms), end="")
        return 0
    catalogue = requirements.read(rooms)
    tests = _of_packed(chosen) or dict(read_tests(rooms))
    wrong = faults.of_rows(chosen, source)
    verdicts = _verdicts(folder)
    judged = hardware.read(rooms)
    columns = lines.width()
    if name is None:
        told = _list(columns, catalogue, tests, wrong, verdicts, judged)
    elif (row := catalogue.get(name.upper())) is not None:
        cited = documented.cited(documented.read(rooms / "sentences.json", catalogue))
        sentences_of = cited.get(row["id"], [])
        places = read_places(rooms)
        told = _explain(
            columns, row, sentences_of, tests, wrong, verdicts, judged, places
        )
    else:
        raise UsageError(f"no row '{name}'; `ipclab rules` lists them")
    print("\n".join(told))
    return 0


def read_tests(conformance: Path) -> Iterator[tuple[str, str]]:
    """CTest's name and the row of each test, read from the sources in conformance/."""
    for source in sorted(conformance.glob("[0-9]*/*_test.cu")):
        prefix = f"conformance.{source.parent.name}"
        for suite, name, row in TEST.findall(source.read_text(encoding="utf-8")):
            yield f"{prefix}.{suite}.{name}", row


def read_places(conformance: Path) -> dict[str, str]:
    """File and line of each test (Suite.Name) and of each named fault, for example
    conformance/01_legacy_memory/faults.cc:97; empty where there are no sources.
    """
    places = {}
    for source in sorted(conformance.glob("[0-9]*/*.c[cu]")):
        text = source.read_text(encoding="utf-8")
        file = source.relative_to(conformance.parent)
        for found in PLACE.finditer(text):
            name = found[3] or f"{found[1]}.{found[2]}"
            places[name] = f"{file}:{text.count(chr(10), 0, found.start()) + 1}"
    return places


def _of_packed(suite: Path) -> dict[str, str]:
    """The same of a packed suite; empty for another folder."""
    if packed.source(suite) is None:
        return {}
    return {x.name: x.requirement for x in ctest.read(suite) if x.requirement}


def _verdicts(folder: Path | None) -> dict[str, str]:
    """The verdict of each test of a run, as shown, by CTest's name; empty without a
    run.
    """
    if folder is None and not LATEST.is_dir():
        return {}
    found = results.read(folder or LATEST, timelines=False).records
    return {row.ctest: row.shown for row in records.rows(found)}


def _list(
    columns: int,
    catalogue: dict[str, Row],
    tests: Mapping[str, str],
    wrong: Sequence[Fault],
    verdicts: dict[str, str],
    judged: frozenset[str],
) -> list[str]:
    rows = []
    for name, row in catalogue.items():
        mine = [test for test, covered in tests.items() if covered == name]
        last = dict.fromkeys(verdicts[x] for x in mine if x in verdicts)
        noticed = sum(name in fault.rows for fault in wrong)
        cells = (name, row["kind"], f"{len(mine):5}", f"{noticed:6}", ", ".join(last))
        unseen = hardware.on_model_only(name, row["kind"], judged)
        seen = f" ({hardware.ON_MODEL})" if unseen else ""
        rows.append((*cells, row["statement"] + seen))
    head = ("row", "kind", "tests", "faults", "last", "statement")
    return lines.table(rows, columns, head)


def _explain(
    columns: int,
    row: Row,
    cited: list[documented.Entry],
    tests: Mapping[str, str],
    wrong: Sequence[Fault],
    verdicts: dict[str, str],
    judged: frozenset[str],
    places: Mapping[str, str],
) -> list[str]:
    name = row["id"]
    told = [(f"{name}  {row['kind']}", str(row["statement"]))]
    told += [
        (field, str(row[field]))
        for field in ("source", "since", "until")
        if row.get(field)
    ]
    if hardware.on_model_only(name, row["kind"], judged):
        told += [("evidence", f"{hardware.ON_MODEL}: no recorded GPU has judged it")]
    told += [("sentence", f"{x.topic}: {x.says}") for x in cited]
    told += [("follows from", origin) for origin in row.get("follows_from", [])]
    told += [("lesson", lesson) for lesson in row.get("lessons", [])]
    paragraphs = requirements.paragraphs(row)
    for test in (x for x, covered in tests.items() if covered == name):
        verdict = verdicts.get(test, "not in the last run")
        short = test.split(".", 2)[2]
        told.append(("test", f"{test}  {verdict}"))
        told += [("test", places[short])] if short in places else []
        told.append(("test", paragraphs.get(short, "")))
    for fault in (x for x in wrong if name in x.rows):
        # Only the library of a build knows what a fault does.
        told.append(("fault", ": ".join(filter(None, (fault.name, fault.what)))))
        told += [("fault", places[fault.name])] if fault.name in places else []
    before = ""
    rows = []
    for label, text in told:
        rows.append((label if label != before else "", text))
        before = label
    return lines.table(rows, columns)
