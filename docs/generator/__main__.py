"""Writes what Doxygen includes: python -m generator --lessons lessons.json OUTPUT.

OUTPUT/parts has pieces that pages include, OUTPUT/pages whole pages.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from generator import lessons, rules

TOP = Path(__file__).resolve().parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(prog="generator")
    parser.add_argument("--lessons", type=Path, required=True)
    parser.add_argument("output", type=Path)
    args = parser.parse_args()
    catalogue = json.loads((TOP / "conformance/requirements.json").read_text())
    known = json.loads(args.lessons.read_text())
    parts = lessons.parts(TOP, known, catalogue)
    pages = {"lessons.dox": lessons.page(known), **rules.pages(catalogue)}
    for folder, files in (("parts", parts), ("pages", pages)):
        (args.output / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (args.output / folder / name).write_text(text)


if __name__ == "__main__":
    main()
