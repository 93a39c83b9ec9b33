"""Writes what Doxygen includes.

    python -m generator --lessons lessons.json --cuda INCLUDE
                        [--results FOLDER]... OUTPUT

OUTPUT/parts has pieces that pages include. OUTPUT/pages has whole pages, and
OUTPUT/files has files that the site copies.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from generator import (
    calls,
    chapters,
    costs,
    coverage,
    cuda_tags,
    diagrams,
    dictionary,
    documents,
    drawings,
    findings,
    front,
    lesson_page,
    lessons,
    links,
    machines,
    python_api,
    recorded,
    rules,
    sharing,
    sources,
    symptoms,
    traces,
    verdicts,
    workshop,
)
from generator.chapters import page_of
from ipclab import catalogue as documented
from ipclab import findings as known_findings
from ipclab import requirements
from ipclab.errors import HarnessError, UsageError
from ipclab.mutants import faults

TOP = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="generator")
    parser.add_argument("--lessons", type=Path, required=True)
    parser.add_argument(
        "--cuda", type=Path, required=True, help="CUDA's include folder"
    )
    parser.add_argument("--results", type=Path, action="append", default=[])
    parser.add_argument(
        "--with-security",
        action="store_true",
        help="also show programs that are matters of security (docs/SECURITY.md)",
    )
    parser.add_argument("output", type=Path)
    args = parser.parse_args()
    try:
        write(args.lessons, args.cuda, args.results, args.output, args.with_security)
    except (recorded.Missing, traces.Missing, HarnessError, UsageError) as error:
        print(f"generator: {error}", file=sys.stderr)
        return 1
    return 0


def write(
    lesson_list: Path,
    cuda: Path,
    folders: list[Path],
    output: Path,
    with_security: bool = False,
) -> None:
    """Make all parts and pages from the build, the headers and the records."""
    catalogue = requirements.document(TOP / "conformance")
    by_id = {row["id"]: row for row in catalogue["rows"]}
    ledger = documented.read(TOP / "conformance/sentences.json", by_id)
    known = json.loads(lesson_list.read_text())
    runs = recorded.runs(folders)
    tag_file = output / "cuda.tag"
    tag_file.write_text(cuda_tags.tag_file(cuda))
    references = links.references(tag_file)
    breaking = [x for x in faults.known(lesson_list.parent) if not x.allowed]
    evidence = rules.Evidence(
        {lesson["lesson"] for lesson in known},
        rules.tests(TOP / "conformance"),
        breaking,
        json.loads((TOP / "conformance/deviations.json").read_text())["deviations"],
        [run for run in runs if run.real],
        documented.cited(ledger),
        sources.places(TOP / "conformance", breaking),
    )
    found = known_findings.read(TOP)
    shown = findings.parts(found, with_security)
    drawn = drawings.read(TOP)
    parts = {
        **shown,
        **lessons.parts(TOP, known, catalogue, evidence.tests),
        "costs.md": costs.part(
            json.loads((TOP / "docs/results/costs.json").read_text())
        ),
        "sharing.md": sharing.part(TOP / "docs/results"),
        "trace_rules.md": documents.trace_rules(),
        **symptoms.parts(evidence.lessons),
        **workshop.parts(TOP),
        **drawings.parts(drawn),
        "front.html": front.figures(TOP, len(known), len(found)),
        "map.svg": chapters.picture(known),
        "choose.svg": chapters.inline_svg(
            (TOP / "docs/pages/choose.dot").read_text(), "choose", "Which way to share"
        ),
    }
    for lesson in known:
        folder = lesson["lesson"]
        try:
            lesson_trace = traces.read(folder)
            picture = diagrams.figure(lesson_trace, traces.sources(folder), references)
        except (
            traces.Missing
        ) as error:  # a test fails because of this; the other pages are complete
            print(f"generator: {error}", file=sys.stderr)
            picture = "<p>No trace of this lesson is recorded yet.</p>\n"
        parts[f"{page_of(folder)}.svg"] = picture
    pages = {
        "lessons.dox": chapters.page(known, lessons.briefs(TOP, known)),
        "results.dox": verdicts.page(
            evidence.runs, {row["id"] for row in catalogue["rows"]}
        ),
        "errors.dox": dictionary.page(),
        "calls.dox": calls.page(TOP, known, catalogue["rows"], references),
        "runner.dox": documents.runner(),
        "python_api.dox": python_api.page(),
        "drawings.dox": drawings.page(TOP, drawn),
        **rules.pages(catalogue, evidence),
        **findings.pages(found, catalogue, evidence, shown),
        **coverage.pages(ledger),
        **documents.pages(TOP / "docs"),
        **workshop.pages(TOP),
    }
    (output / "files").mkdir(parents=True, exist_ok=True)
    machines.write(evidence.runs, output / "files")
    files = workshop.slides(TOP, parts)
    files["requirements.json"] = requirements.text(TOP / "conformance")
    files["LICENSE.txt"] = (TOP / "LICENSE").read_text()
    for lesson in known:
        source = TOP / lesson_page.source(lesson["lesson"])
        files[source.name] = source.read_text()
    proofs = sources.pages(TOP / "conformance")
    for folder, made in (
        ("parts", parts),
        ("pages", pages),
        ("files", files),
        (f"files/{sources.FOLDER}", proofs),
        (f"files/{drawings.FOLDER}", drawings.files(TOP, drawn)),
    ):
        (output / folder).mkdir(parents=True, exist_ok=True)
        for name, text in made.items():
            (output / folder / name).write_text(text)


if __name__ == "__main__":
    sys.exit(main())
