"""The figures of lesson 73, as tables and bars.

SPDX-License-Identifier: Apache-2.0
"""

import json
import re
from pathlib import Path

from generator import sharing

OPENED = {"open_us": 30.0, "close_us": 7.0}
COMMON = {"device": "NVIDIA <H200>", "cuda": 13000, "rounds": 21}
FIGURES = [
    {"way": "legacy handle", "gpu": 0, "mib": 2, "gb_per_s": 800.0, **OPENED},
    {"way": "legacy handle", "gpu": 0, "mib": 512, "gb_per_s": 4000.0, **OPENED},
    {"way": "legacy handle", "gpu": 1, "mib": 512, "gb_per_s": 400.0, **OPENED},
    {"way": "copy through a socket", "gpu": 0, "mib": 32, "gb_per_s": 2.0},
    {"way": "message", "gpu": 0, "mib": 0, "round_us": 14.0},
]


def recorded(folder: Path) -> str:
    (folder / "one").mkdir()
    lines = [json.dumps({**COMMON, **figure}) for figure in FIGURES]
    (folder / "one/sharing.jsonl").write_text("\n".join(lines) + "\n")
    return sharing.part(folder)


def test_without_a_recorded_machine_the_page_says_so(tmp_path: Path) -> None:
    assert sharing.part(tmp_path) == "No machine has recorded its figures yet."


def test_each_gpu_has_its_bars_of_the_largest_size(tmp_path: Path) -> None:
    text = recorded(tmp_path)
    first, second = re.findall(r"<figure.*?</figure>", text)
    assert ">4000<" in first and ">2<" in first and ">800<" not in first
    assert ">400<" in second and "socket" not in second


def test_a_bar_is_as_long_as_its_speed(tmp_path: Path) -> None:
    first, second = re.findall(r"<figure.*?</figure>", recorded(tmp_path))
    assert re.findall(r'"width: ([\d.]+)%"', first) == ["100.0", "0.1"]
    assert re.findall(r'"width: ([\d.]+)%"', second) == ["100.0"]


def test_every_figure_is_in_the_table(tmp_path: Path) -> None:
    text = recorded(tmp_path)
    assert "30 us" in text and "14 us" in text and "800 GB/s" in text
    assert "&lt;H200&gt;" in text
    assert "| legacy handle | 1 | 512 MiB |" in text


def test_one_gpu_needs_no_column(tmp_path: Path) -> None:
    one = [{**COMMON, **figure} for figure in FIGURES if figure["gpu"] == 0]
    text = sharing.machine(one)
    assert "| legacy handle | 512 MiB |" in text and "| message | 14 us |" in text
