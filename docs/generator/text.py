"""Text from data as Doxygen reads it.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

from collections.abc import Iterable

SPECIAL = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "\\|", "*": "\\*"}
COMMANDS = "\\@#%"


def plain(text: str) -> str:
    """Words that are no markup; names of functions still become links."""
    for character in COMMANDS:
        text = text.replace(character, "\\" + character)
    for character, entity in SPECIAL.items():
        text = text.replace(character, entity)
    text = text.replace("*/", "*&zwnj;/")  # pages are comments of C
    return " ".join(text.split())


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table whose cells are marked up already; a head of empty cells is not shown."""
    columns = list(head)
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines) + "\n"


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and values; a pair without a value is left out."""
    return table(("", ""), ((f"**{name}**", value) for name, value in rows if value))
