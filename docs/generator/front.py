"""The figures of the front page, from the records of the repository.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import re
from pathlib import Path

from generator import sharing
from generator.recorded import Missing

MACHINE = "h200-580.159"  # of docs/results, for the speed of imported memory
# A line of the table of lesson 72: size, time of the lesson, time of NCCL, ratio.
RATIO = re.compile(r"^\| (\d+) (KiB|MiB) \| [\d.]+ \| [\d.]+ \| ([\d.]+) \|", re.M)
LARGEST = 1024  # KiB: the lesson uses one kernel for all arrays up to this size


def figures(top: Path, lessons: int, findings: int) -> str:
    """Four figures with their links, as HTML.

    Raises Missing if a record that they come from has no such figure.
    """
    lowest, highest = all_reduce(
        (top / "samples/72_all_reduce/all_reduce.dox").read_text()
    )
    opened, own = bandwidth(top / "docs/results" / MACHINE / "sharing.jsonl")
    told = (
        (
            "lesson_72.html#lesson_72_figures",
            f"{lowest} to {highest}",
            "of NCCL's time for a sum of up to 1 MiB, measured on two H200s: a lesson, "
            "without a library",
        ),
        (
            "lesson_73.html#lesson_73_figures",
            f"{opened:.0f} GB/s",
            "is the speed at which a kernel reads memory of another process; memory of "
            f"its own: {own:.0f} GB/s, measured on one H200",
        ),
        (
            "findings.html",
            str(findings),
            "findings: a real driver contradicts its documentation, each shown by a "
            "program of at most 40 lines",
        ),
        (
            "index.html#start_run",
            "0 GPUs",
            f"needed: all {lessons} lessons run on a laptop, on a model of the driver",
        ),
    )
    items = "".join(
        f'<li><a href="{place}"><b>{figure}</b> {text}</a></li>\n'
        for place, figure, text in told
    )
    return f'<ul class="cards figures">\n{items}</ul>\n'


def all_reduce(page: str) -> tuple[str, str]:
    """The smallest and the largest ratio to NCCL's time, of arrays up to LARGEST."""
    ratios = [
        ratio
        for size, unit, ratio in RATIO.findall(page)
        if int(size) * (1024 if unit == "MiB" else 1) <= LARGEST
    ]
    if not ratios:
        raise Missing("lesson 72: no table of ratios to NCCL's time")
    return min(ratios, key=float), max(ratios, key=float)


def bandwidth(file: Path) -> tuple[float, float]:
    """GB/s of an opened handle and of memory of its own, for the largest size."""
    found = {
        x["way"]: x["gb_per_s"]
        for x in sorted(sharing.read(file), key=lambda x: x["mib"])
        if "gb_per_s" in x and x["gpu"] == 0
    }
    if not {"legacy handle", "memory of its own"} <= set(found):
        raise Missing(f"{file}: no speed of a legacy handle and of memory of its own")
    return found["legacy handle"], found["memory of its own"]
