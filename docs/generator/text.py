"""Turns text from data into text for Doxygen.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import re
from collections.abc import Iterable

SPECIAL = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "\\|", "*": "\\*"}
COMMANDS = "\\@#%"


# Short forms in the sources of the catalogue that a reader needs in full.
SHORT = {
    r"\bPG\b": "Programming Guide",
    r"\bPG11\b": "Programming Guide 11",
}


def spelled(text: str) -> str:
    """A source of the catalogue without its short names."""
    for short, words in SHORT.items():
        text = re.sub(short, words, text)
    return text


def plain(text: str) -> str:
    """Text in which no character is markup; names of functions still become links."""
    for character in COMMANDS:
        text = text.replace(character, "\\" + character)
    for character, entity in SPECIAL.items():
        text = text.replace(character, entity)
    text = text.replace("*/", "*&zwnj;/")  # pages are comments of C
    text = commands(text)
    return " ".join(text.split())


def commands(text: str) -> str:
    """Markdown in which the options of commands stay unchanged: no dash for `--`."""
    return text.replace("--", "\\--")


def lines(texts: Iterable[str]) -> str:
    """Lines of one cell. Doxygen prints a <br> directly after a word as text."""
    return " <br>".join(texts)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of cells that are marked up; frame.py hides a head of empty cells."""
    columns = list(head)
    cells = [columns, ["---"] * len(columns), *rows]
    return "".join("| " + " | ".join(row) + " |\n" for row in cells) + "\n"


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and values; a pair without a value is left out."""
    return table(("", ""), ((f"**{name}**", value) for name, value in rows if value))
