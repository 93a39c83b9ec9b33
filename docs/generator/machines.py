"""What a reader can download for each recorded machine: report, CSV, JSON.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import csv
import io
import itertools
import json
from pathlib import Path

from generator.recorded import Run, suites
from ipclab import compare, report
from ipclab.mutants import matrix

COLUMNS = ("test", "rule", "kind", "lesson", "verdict", "reason")


def write(runs: list[Run], folder: Path) -> None:
    """Write a folder for each machine, and a page for each two that ran one suite."""
    for run in runs:
        into = folder / "machines" / run.name
        into.mkdir(parents=True, exist_ok=True)
        (into / "report.html").write_text(
            report.page(run.about, run.records, None, run.kills)
        )
        (into / "rows.csv").write_text(rows_csv(run))
        (into / "run.json").write_text(json.dumps(run.about, indent=1) + "\n")
        if run.kills:
            (into / "mutants.html").write_text(matrix.page(run.kills))
    for one, other in pairs(runs):
        found = compare.difference((one.about, one.rows), (other.about, other.rows))
        documents = {one.name: one.about, other.name: other.about}
        page = compare.page(documents, found)
        (folder / "machines" / f"{one.name}-{other.name}.html").write_text(page)


def pairs(runs: list[Run]) -> list[tuple[Run, Run]]:
    """Each two runs of one suite."""
    return [x for of in suites(runs) for x in itertools.combinations(of, 2)]


def rows_csv(run: Run) -> str:
    """A line for each test and lesson."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(COLUMNS)
    for row in run.rows:
        about = row.record
        lines.writerow(
            [
                about["test"],
                about["requirement"] or "",
                about["kind"] or "",
                about["lesson"],
                row.shown,
                " ".join(row.reason.split()),
            ]
        )
    return text.getvalue()
