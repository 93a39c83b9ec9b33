"""Links every CUDA call that a page names to NVIDIA's reference.

With the tag file Doxygen links only text that looks like a call, `name(`. But pages say
`cudaMalloc`, and lessons call the driver API as `DRIVER(cuMemMap)(…)`. So this module
processes the pages again, with the same tag file.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import re
import xml.etree.ElementTree
from collections.abc import Mapping
from pathlib import Path

from generator.cuda_tags import MANUALS_AT

NAME = re.compile(r"\bcu(?:da)?[A-Z]\w+")
TAG = re.compile(r"(<!--.*?-->|<[^>]+>)", re.DOTALL)
TITLE = '<div class="title">'
# The contents of these elements are left unchanged.
CLOSED = {"a", "head", "script", "style", "svg", "h1", "h2", "h3", "h4"}


def references(tag_file: Path) -> dict[str, str]:
    """Name of a function -> address of its reference."""
    root = xml.etree.ElementTree.parse(tag_file).getroot()
    return {
        member.findtext("name", ""): f"{MANUALS_AT}/{member.findtext('anchorfile')}"
        f"#{member.findtext('anchor')}"
        for member in root.iter("member")
    }


def linked(page: str, known: Mapping[str, str]) -> str:
    """A page of HTML in which each known name in the text is a link."""
    inside: list[str] = []
    pieces = []
    for piece in TAG.split(page):
        if match := re.match(r"<(/?)(\w+)", piece):
            name = match[2].lower()
            if piece == TITLE or (
                name in CLOSED and not match[1] and not piece.endswith("/>")
            ):
                inside.append(name)
            elif name in inside and match[1]:
                inside.remove(name)
        elif not inside:
            piece = NAME.sub(lambda m: _link(m[0], known), piece)
        pieces.append(piece)
    return "".join(pieces)


def _link(name: str, known: Mapping[str, str]) -> str:
    return f'<a class="el" href="{known[name]}">{name}</a>' if name in known else name
