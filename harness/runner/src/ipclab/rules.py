"""`ipclab rules`: the catalogue's rows, and what proves each of them."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ipclab import catalogue as documented
from ipclab import ctest, deviations, faults, records, results
from ipclab.ctest import Case
from ipclab.deviations import Entry
from ipclab.errors import UsageError
from ipclab.faults import Fault
from ipclab.terminal import COLOURS

LATEST = Path("results/latest")


def run(out: Console, build: Path, name: str | None, folder: Path | None) -> int:
    """Print all rows, or explain one row. The verdicts come from the results in
    `folder`.

    Without a folder they come from results/latest, if there is such a run. Raises
    UsageError if there is no such row.
    """
    source = ctest.source_folder(build)
    rows, sentences = (
        source / "conformance" / name
        for name in ("requirements.json", "sentences.json")
    )
    catalogue = deviations.read_requirements(rows)
    cases = ctest.read(build)
    wrong = faults.known(build)
    verdicts = _verdicts(folder)
    if name is None:
        _list(out, catalogue, cases, wrong, verdicts)
        return 0
    if name.upper() not in catalogue:
        raise UsageError(f"no row '{name}'; `ipclab rules` lists them")
    row = catalogue[name.upper()]
    cited = documented.cited(documented.read(sentences, catalogue))
    _explain(out, row, cited.get(row["id"], []), cases, wrong, verdicts)
    return 0


def _verdicts(folder: Path | None) -> dict[str, str]:
    """The verdict of each test of a run, as shown, by CTest's name; empty without a
    run.
    """
    if folder is None and not LATEST.is_dir():
        return {}
    found = results.read(folder or LATEST).records
    return {row.ctest: row.shown for row in records.rows(found)}


def _list(
    out: Console,
    catalogue: dict[str, Entry],
    cases: list[Case],
    wrong: Sequence[Fault],
    verdicts: dict[str, str],
) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("row", "kind", "tests", "faults", "last", "statement"):
        table.add_column(column, overflow="fold", no_wrap=column != "statement")
    for name, row in catalogue.items():
        tests = [case.name for case in cases if case.requirement == name]
        last = list(dict.fromkeys(verdicts[x] for x in tests if x in verdicts))
        table.add_row(
            name,
            row["kind"],
            str(len(tests)),
            str(sum(name in fault.rows for fault in wrong)),
            Text(", ".join(last), style=COLOURS.get(last[0], "") if last else ""),
            row["statement"],
        )
    out.print(table)


def _explain(
    out: Console,
    row: Entry,
    cited: list[documented.Entry],
    cases: list[Case],
    wrong: Sequence[Fault],
    verdicts: dict[str, str],
) -> None:
    name = row["id"]
    lines = [(f"{name}  {row['kind']}", row["statement"])]
    lines += [
        (field, str(row[field]))
        for field in ("source", "since", "until", "scenario", "check")
        if row.get(field)
    ]
    lines += [("sentence", f"{x.topic}: {x.says}") for x in cited]
    lines += [("follows from", origin) for origin in row.get("follows_from", [])]
    lines += [("lesson", lesson) for lesson in row.get("lessons", [])]
    lines += [
        ("test", f"{case.name}  {verdicts.get(case.name, 'not in the last run')}")
        for case in cases
        if case.requirement == name
    ]
    lines += [
        ("fault", f"{fault.name}: {fault.what}")
        for fault in wrong
        if name in fault.rows
    ]
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    before = ""
    for label, text in lines:
        table.add_row(label if label != before else "", Text(text))
        before = label
    out.print(table)
