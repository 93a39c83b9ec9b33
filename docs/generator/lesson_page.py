"""Completes a lesson's page: line numbers, minutes, commands to copy, and a download.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import re
from html import escape, unescape
from pathlib import Path
from typing import Any

from generator.frame import Page, text_of

TOP = Path(__file__).resolve().parents[2]
CODE = re.compile(r"<code>((?:<span class=\"line\">.*?</span>\n?)+)</code>", re.DOTALL)
LINE = re.compile(
    r'<span class="line">(.*?)</span>(?=\n<span class="line">|$)', re.DOTALL
)
# A command to copy, in the facts at the top.
COMMAND = re.compile(
    r'(<th scope="row">(?:You run|Build alone)</th>\s*<td>)<code>(.*?)</code>',
    re.DOTALL,
)
# The path of the program, in the facts at the top.
SOURCE = re.compile(
    r'(<th scope="row">Source</th>\s*<td>)(<code>.*?</code>)', re.DOTALL
)
# Stands for the number of minutes until the page is complete.
MINUTES = "IPCLAB_MINUTES"
# What no reader reads word by word.
UNREAD = re.compile(
    r'<(svg|pre|template)\b.*?</\1>|<ol class="stack".*?</ol>', re.DOTALL
)
# Words and lines that a reader reads in a minute; minutes for all changes to try.
WORDS, LINES, EXERCISES = 160, 12, 6


def completed(page: Page, lesson: dict[str, Any]) -> Page:
    """Changes the page: adds line numbers, minutes, commands to copy and a download."""
    name = lesson["lesson"]
    path = source(name)
    program = (TOP / path).read_text().splitlines()
    shown = [line.strip() for line in program]
    page.body = CODE.sub(lambda code: _numbered(code, shown), page.body)
    page.body = COMMAND.sub(_copied, page.body)
    page.body = SOURCE.sub(rf'\1<a href="{path.name}" download>\2</a>', page.body)
    page.minutes = minutes(page.body, len(program))
    page.body = page.body.replace(MINUTES, str(page.minutes))
    return page


def source(lesson: str) -> Path:
    """The program of a lesson, in the source tree; the site has a copy of the file."""
    return Path("samples", lesson, f"{lesson[3:]}.cu")


def minutes(body: str, lines: int) -> int:
    """Minutes for the page with its changes: a multiple of five, at least five."""
    words = len(text_of(UNREAD.sub("", body)).split())
    return 5 * max(1, round((words / WORDS + lines / LINES + EXERCISES) / 5))


def _copied(command: re.Match[str]) -> str:
    """The command with the text for a button that copies it."""
    text = escape(text_of(command[2]))
    return (
        f'{command[1]}<span class="command" data-copy="{text}">'
        f"<code>{command[2]}</code></span>"
    )


def _numbered(code: re.Match[str], program: list[str]) -> str:
    """Code with line numbers; unchanged if it is one line or not in the program."""
    lines = LINE.findall(code[1])
    texts = [_plain(line) for line in lines]
    start = next(
        (
            i
            for i in range(len(program) - len(texts) + 1)
            if program[i : i + len(texts)] == texts
        ),
        None,
    )
    if start is None or len(texts) < 2:
        return code[0]
    told = "\n".join(
        f'<span class="line" data-line="{start + i}">{line}</span>'
        for i, line in enumerate(lines, 1)
    )
    return f"<code>{told}</code>"


def _plain(line: str) -> str:
    return unescape(re.sub(r"<[^>]+>", "", line)).replace("\xa0", " ").strip()
