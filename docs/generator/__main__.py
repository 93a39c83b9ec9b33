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

from ipclab.errors import UsageError

from generator import cuda_tags, diagrams, lessons, recorded, rules, theme

TOP = Path(__file__).resolve().parents[2]
MANUALS = "https://docs.nvidia.com/cuda"


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
    except (recorded.Missing, UsageError) as error:
        print(f"generator: {error}", file=sys.stderr)
        return 1
    return 0


def write(lesson_list: Path, cuda: Path, folders: list[Path], output: Path) -> None:
    """Make all parts and pages from the build, the headers and the records."""
    catalogue = json.loads((TOP / "conformance/requirements.json").read_text())
    known = json.loads(lesson_list.read_text())
    runs = recorded.runs(folders)
    links = {
        name: f"{MANUALS}/{function.page}#{function.anchor}"
        for name, function in cuda_tags.functions(cuda).items()
    }
    traces = [trace for run in runs for trace in run.traces()]
    traces += recorded.kept(TOP / "docs/traces.jsonl")
    parts = lessons.parts(TOP, known, catalogue)
    for lesson in known:
        trace = recorded.trace(traces, lesson["lesson"], lesson["drawn_from"])
        name = f"{lessons.page_of(lesson['lesson'])}.svg"
        parts[name] = diagrams.figure(trace, links)
    pages = {"lessons.dox": lessons.page(known), **rules.pages(catalogue)}
    for folder, files in (("parts", parts), ("pages", pages)):
        (output / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (output / folder / name).write_text(text)
    (output / "cuda.tag").write_text(cuda_tags.tag_file(cuda))
    header = output / "header.html"
    header.write_text(theme.header(header.read_text()))


if __name__ == "__main__":
    sys.exit(main())
