"""What sharing costs, from the files docs/results/*/sharing.jsonl of lesson 73.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from generator.text import plain, table

Figure = dict[str, Any]


def part(results: Path) -> str:
    """Tables and bars of each machine that has figures; a sentence if there is none."""
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
        text += f"@htmlonly\n{bars(title, speeds)}\n@endhtmlonly\n\n"
    several = gpus > 1
    ways = [
        [
            plain(figure["way"]),
            *([str(figure["gpu"])] if several else []),
            f"{figure['mib']} MiB",
            *(
                f"{figure[name]:.4g} {unit}" if name in figure else ""
                for name, unit in (
                    ("open_us", "us"),
                    ("close_us", "us"),
                    ("gb_per_s", "GB/s"),
                )
            ),
        ]
        for figure in figures
        if "gb_per_s" in figure
    ]
    messages = [
        [plain(figure["way"]), f"{figure['round_us']:.4g} us"]
        for figure in figures
        if "round_us" in figure
    ]
    head = ["way", *(["GPU"] if several else []), "size", "open", "close", "read"]
    text += table(head, ways)
    if messages:
        text += "\n\n" + table(['way to say "done"', "there and back"], messages)
    return text


def bars(title: str, figures: list[Figure]) -> str:
    """A bar for each figure; its length is its percentage of the largest figure."""
    longest = max(figure["gb_per_s"] for figure in figures)
    rows = "".join(
        f'<tr><th scope="row">{html.escape(figure["way"])}</th>'
        f'<td><i style="width: {100 * figure["gb_per_s"] / longest:.1f}%"></i></td>'
        f"<td>{figure['gb_per_s']:.4g}</td></tr>"
        for figure in figures
    )
    return (
        f'<figure class="bars"><figcaption>{html.escape(title)}</figcaption>'
        f"<table>{rows}</table></figure>"
    )
