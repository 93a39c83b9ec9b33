"""Writes what Doxygen includes.

    python -m generator --lessons lessons.json --cuda INCLUDE
                        [--results FOLDER]... OUTPUT

OUTPUT/parts has pieces that pages include, OUTPUT/pages whole pages. OUTPUT has
Doxygen's own header.html already; the theme's scripts are added to it.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from generator import (
    chapters,
    costs,
    cuda_tags,
    diagrams,
    dictionary,
    documents,
    lessons,
    links,
    recorded,
    rules,
    sharing,
    theme,
    verdicts,
)
from generator.chapters import page_of
from ipclab import faults
from ipclab.errors import HarnessError, UsageError

TOP = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="generator")
    parser.add_argument("--lessons", type=Path, required=True)
    parser.add_argument(
        "--cuda", type=Path, required=True, help="CUDA's include folder"
    )
    parser.add_argument("--results", type=Path, action="append", default=[])
    parser.add_argument("output", type=Path)
    args = parser.parse_args()
    try:
        write(args.lessons, args.cuda, args.results, args.output)
    except (recorded.Missing, HarnessError, UsageError) as error:
        print(f"generator: {error}", file=sys.stderr)
        return 1
    return 0


def write(lesson_list: Path, cuda: Path, folders: list[Path], output: Path) -> None:
    """Make all parts and pages from the build, the headers and the records."""
    catalogue = json.loads((TOP / "conformance/requirements.json").read_text())
    known = json.loads(lesson_list.read_text())
    runs = recorded.runs(folders)
    tag_file = output / "cuda.tag"
    tag_file.write_text(cuda_tags.tag_file(cuda))
    references = links.references(tag_file)
    traces = [trace for run in runs for trace in run.traces()]
    traces += recorded.kept(TOP / "docs/traces.jsonl")
    evidence = rules.Evidence(
        {lesson["lesson"] for lesson in known},
        rules.tests(TOP / "conformance"),
        [x for x in faults.known(lesson_list.parent) if not x.allowed],
        json.loads((TOP / "conformance/deviations.json").read_text())["deviations"],
        [run for run in runs if run.real],
    )
    parts = {
        **lessons.parts(TOP, known, catalogue, evidence.tests),
        "costs.md": costs.part(
            json.loads((TOP / "docs/results/costs.json").read_text())
        ),
        "sharing.md": sharing.part(TOP / "docs/results"),
        "trace_rules.md": documents.trace_rules(),
        "map.svg": chapters.picture(known),
        "choose.svg": chapters.inline_svg(
            (TOP / "docs/pages/choose.dot").read_text(), "choose", "Which way to share"
        ),
    }
    for lesson in known:
        trace = recorded.trace(traces, lesson["lesson"], lesson["drawn_from"])
        name = f"{page_of(lesson['lesson'])}.svg"
        parts[name] = diagrams.figure(trace, references)
    pages = {
        "lessons.dox": chapters.page(known),
        "results.dox": verdicts.page(evidence.runs),
        "errors.dox": dictionary.page(),
        "runner.dox": documents.runner(),
        **rules.pages(catalogue, evidence),
        **documents.pages(TOP / "docs"),
    }
    for folder, files in (("parts", parts), ("pages", pages)):
        (output / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (output / folder / name).write_text(text)
    header = output / "header.html"
    header.write_text(theme.header(header.read_text()))


if __name__ == "__main__":
    sys.exit(main())
