"""The page of CUDA calls: the lessons, the rules and the reference of each call.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from generator import links
from generator.chapters import page_of
from generator.rules import link_to
from generator.text import facts

MOST = 12  # number of rules that are listed for one call


def page(
    top: Path,
    lessons: list[dict[str, Any]],
    rows: list[dict[str, Any]],
    references: Mapping[str, str],
) -> str:
    """A section for each call that a rule is about.

    `rows` are the rows of the catalogue. Only functions in `references` get a section.
    """
    called = taught(top, lessons)
    ruled: dict[str, list[str]] = {}
    for row in rows:
        named = links.NAME.findall(row["statement"])
        for name in dict.fromkeys([*links.NAME.findall(row["source"]), *named]):
            ruled.setdefault(name, []).append(row["id"])
    text = (
        "/**\n@page calls Calls of CUDA\n"
        "@brief Where each call is taught, and which rules are about it.\n\n"
    )
    for name in sorted(set(ruled) & set(references), key=str.lower):
        text += f"@section call_{name} {name}\n\n" + _section(name, called, ruled)
    return text + "*/\n"


def taught(top: Path, lessons: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Function -> folders of the lessons that call it, in the order of the lessons."""
    found: dict[str, list[str]] = {}
    for lesson in lessons:
        folder = lesson["lesson"]
        source = (top / "samples" / folder / f"{folder[3:]}.cu").read_text()
        for name in dict.fromkeys(links.NAME.findall(source)):
            found.setdefault(name, []).append(folder)
    return found


def lesson_of(top: Path, lessons: list[dict[str, Any]]) -> dict[str, str]:
    """Function -> folder of the first lesson that calls it and has a rule about it."""
    ruled = {
        (path.parent.name, name)
        for path in (top / "conformance").glob("*/rows.json")
        for row in json.loads(path.read_text())["rows"]
        for name in links.NAME.findall(row["source"])
    }
    return {
        name: own[0]
        for name, folders in taught(top, lessons).items()
        if (own := [x for x in folders if (x, name) in ruled])
    }


def _section(
    name: str, called: Mapping[str, list[str]], ruled: Mapping[str, list[str]]
) -> str:
    rules = [link_to(x) for x in ruled[name]]
    more = f" and {len(rules) - MOST} more" if len(rules) > MOST else ""
    return facts(
        [
            ("Lessons", ", ".join(f"@ref {page_of(x)}" for x in called.get(name, []))),
            ("Rules", ", ".join(rules[:MOST]) + more),
            ("Reference", name),
        ]
    )
