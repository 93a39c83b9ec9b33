"""The page of CUDA calls: the lessons, the rules and the reference of each call.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

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
    taught: dict[str, list[str]] = {}
    for lesson in lessons:
        folder = lesson["lesson"]
        source = (top / "samples" / folder / f"{folder[3:]}.cu").read_text()
        for name in dict.fromkeys(links.NAME.findall(source)):
            taught.setdefault(name, []).append(folder)
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
        text += f"@section call_{name} {name}\n\n" + _section(name, taught, ruled)
    return text + "*/\n"


def _section(
    name: str, taught: Mapping[str, list[str]], ruled: Mapping[str, list[str]]
) -> str:
    rules = [link_to(x) for x in ruled[name]]
    more = f" and {len(rules) - MOST} more" if len(rules) > MOST else ""
    return facts(
        [
            ("Lessons", ", ".join(f"@ref {page_of(x)}" for x in taught.get(name, []))),
            ("Rules", ", ".join(rules[:MOST]) + more),
            ("Reference", name),
        ]
    )
