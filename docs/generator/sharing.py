"""What sharing costs, from docs/results/*/sharing.jsonl, as lesson 73 wrote it.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from generator.text import plain, table

Figure = dict[str, Any]

BAR = 22  # height of a bar, in pixels
WIDTH = 420  # of the longest bar


def part(results: Path) -> str:
    """Tables and bars of each machine that has figures, or that there is none."""
    files = sorted(results.glob("*/sharing.jsonl"))
    if not files:
        return "No machine has recorded its figures yet."
    return "\n\n".join(machine(read(file)) for file in files)


def read(file: Path) -> list[Figure]:
    """The figures, in the order in which they were measured."""
    lines = file.read_text().splitlines()
    return [json.loads(line) for line in lines if line]


def machine(figures: list[Figure]) -> str:
    """One machine: speeds as bars, the other figures as a table."""
    first = figures[0]
    gpus = 1 + max(figure["gpu"] for figure in figures)
    said = "" if gpus == 1 else f", memory of {gpus} GPUs read by GPU 0"
    text = f"**{plain(first['device'])}**{said}, medians of {first['rounds']}.\n\n"
    for gpu in range(gpus):
        largest = max(x["mib"] for x in figures if x["gpu"] == gpu)
        speeds = [
            x
            for x in figures
            if "gb_per_s" in x
            and (
                (x["gpu"] == gpu and x["mib"] == largest)
                or (gpu == 0 and "open_us" not in x)
            )
        ]
        title = f"Reading memory of GPU {gpu} by GPU 0, GB/s"
        text += f"@htmlonly[block]\n{bars(title, speeds)}\n@endhtmlonly\n\n"
    rows = [
        [
            plain(figure["way"]),
            str(figure["gpu"]),
            f"{figure['mib']} MiB" if figure["mib"] else "",
            *(
                f"{figure[name]:.4g} {unit}" if name in figure else ""
                for name, unit in COLUMNS
            ),
        ]
        for figure in figures
    ]
    return text + table(
        ["way", "GPU", "size", "open", "close", "read", "there and back"], rows
    )


COLUMNS = (
    ("open_us", "us"),
    ("close_us", "us"),
    ("gb_per_s", "GB/s"),
    ("round_us", "us"),
)


def bars(title: str, figures: list[Figure]) -> str:
    """A bar for each figure, as inline SVG."""
    longest = max(figure["gb_per_s"] for figure in figures)
    height = BAR * len(figures)
    drawn = ""
    for i, figure in enumerate(figures):
        value = figure["gb_per_s"]
        length = max(1.0, WIDTH * value / longest)
        middle = BAR * i + BAR * 0.68
        drawn += (
            f'<text x="170" y="{middle:.0f}" text-anchor="end">'
            f"{html.escape(figure['way'])}</text>"
            f'<rect x="178" y="{BAR * i + 3}" width="{length:.1f}" '
            f'height="{BAR - 6}"/>'
            f'<text x="{182 + length:.0f}" y="{middle:.0f}">{value:.4g}</text>'
        )
    return (
        f'<figure class="bars"><svg role="img" aria-label="{html.escape(title)}" '
        f'width="{WIDTH + 260}" height="{height}" '
        f'viewBox="0 0 {WIDTH + 260} {height}">{drawn}</svg>'
        f"<figcaption>{html.escape(title)}</figcaption></figure>"
    )
