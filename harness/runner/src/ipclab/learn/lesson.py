"""The page of a lesson as Markdown for a terminal, where no site was built."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

from ipclab import requirements
from ipclab.learn.exercises import AS, LEVELS, Exercise

REFERENCE = re.compile(r'@ref (\w+)(?: "([^"]*)")?')
# Commands of Doxygen with the Markdown for them; other commands have no text.
WORDS = (
    (re.compile(r"^@page \w+ (.*)"), r"# \1"),
    (re.compile(r"^@section \w+ (.*)"), r"## \1"),
    (re.compile(r"^@brief (.*)"), r"\1"),
    (re.compile(r"^@b (.*)"), r"**\1**"),
    (re.compile(r"^@(?:note|warning) (.*)"), r"**Note:** \1"),
    (re.compile(r"^@answer$"), "*Answer:*"),
)
SNIPPET = re.compile(r"^@snippet (\S+) (.+)$")
INCLUDE = re.compile(r"^@include (\S+)$")
RULE = re.compile(r"^@includedoc rule_([A-Z]+-\d+)\.md$")
CHANGES = re.compile(r"^@includedoc lesson_\d\d_try\.md$")


def markdown(source: Path, name: str, known: Iterable[Exercise]) -> str | None:
    """The text of the lesson with its code, its output and its exercises; None if
    `source`, which may be that of a packed suite, has no text of the lesson.
    """
    folder = source / "samples" / name
    try:
        text = (folder / f"{name[3:]}.dox").read_text(encoding="utf-8")
    except OSError:
        return None
    rules = requirements.read(source / "conformance")
    told = "\n".join(_lines(text, folder, rules))
    told = re.sub("</?b>", "**", told)
    told = REFERENCE.sub(lambda x: x[2] or x[1].replace("_", " "), told)
    # A section without text had only a part of the site, such as a list of its tests.
    told = re.sub(r"^## [^\n]*\n+(?=## |\Z)", "", told, flags=re.MULTILINE)
    own = [x for x in known if x.lesson == name]
    if own:
        told += "\n## Exercises\n\n" + "".join(
            f"- `{AS} next {x.number}` {x.title} ({LEVELS[x.level]}, "
            f"{x.minutes} minutes)\n"
            for x in own
        )
    return told


def _lines(
    text: str, folder: Path, rules: dict[str, requirements.Row]
) -> Iterator[str]:
    for line in text.splitlines():
        if found := SNIPPET.match(line):
            yield from _code("cpp", _snippet(folder, found[1], found[2]))
        elif found := INCLUDE.match(line):
            yield from _code("text", (folder / found[1]).read_text(encoding="utf-8"))
        elif found := RULE.match(line):
            yield f"> {rules[found[1]]['statement']} ({found[1]})"
        elif CHANGES.match(line):
            yield from _changes(folder)
        elif line.startswith("@"):
            yield next((x.sub(y, line) for x, y in WORDS if x.match(line)), "")
        elif line not in ("/**", "*/"):
            yield line


def _code(language: str, text: str) -> list[str]:
    return [f"```{language}", text.rstrip("\n"), "```"]


def _snippet(folder: Path, program: str, name: str) -> str:
    """The part of a program, of the lesson or of all lessons, between two lines with
    this mark.
    """
    places = (folder / program, folder.parent / "common" / program)
    text = next(x for x in places if x.is_file()).read_text(encoding="utf-8")
    part = re.split(rf"^ *(?://|# )! \[{re.escape(name)}\]\n", text, flags=re.MULTILINE)
    return textwrap.dedent(part[1])


def _changes(folder: Path) -> Iterator[str]:
    changes = json.loads((folder / f"{folder.name[3:]}.try.json").read_text())
    for number, change in enumerate(changes, 1):
        yield f"{number}. {change['change']} *What should happen:* {change['happens']}"
