"""The pages and slides of the workshop, from the exercises and their paths.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

import jinja2
from markupsafe import Markup

from generator import drawings, frame
from generator.chapters import page_of
from generator.text import plain, table
from ipclab.learn import exercises, paths
from ipclab.learn.exercises import KINDS, LEVELS, Exercise
from ipclab.learn.paths import Way

SNIPPET = re.compile(r"//! \[(\w+)\]\n(.*?)//! \[\1\]", re.S)


def parts(top: Path) -> dict[str, str]:
    """File name -> table, for Doxygen's \\includedoc."""
    known = exercises.read(top)
    return {
        "exercises.md": _exercises(known),
        "paths.md": table(
            ["path", "time", "exercises", "slides"],
            (
                [
                    f'@ref path_{way.name} "{plain(way.title)}"',
                    _time(way.minutes),
                    str(sum(len(step.exercises) for step in way.steps)),
                    f'<a href="slides_{way.name}.html">slides</a>',
                ]
                for way in paths.read(top, known)
            ),
        ),
    }


def links(known: Iterable[Exercise], lesson: str) -> str:
    """Links to the exercises of a lesson, in the list of all exercises."""
    return ", ".join(
        f'<a href="workshop.html#exercise_{x.number}">{x.number} {plain(x.title)}</a>'
        for x in known
        if x.lesson == lesson
    )


def pages(top: Path) -> dict[str, str]:
    """File name -> page, one for each path: times, what to show, questions to ask."""
    ways = paths.read(top, exercises.read(top))
    return {f"path_{way.name}.dox": _page(way) for way in ways}


def slides(top: Path, pictures: Mapping[str, str]) -> dict[str, str]:
    """File name -> slides of a path, in one file that needs no other file.

    `pictures` has the SVG of a lesson under lesson_NN.svg.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(top / "docs/theme"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = _marked
    environment.filters["words"] = _words
    template = environment.get_template("slides.html.j2")
    drawn = drawings.read(top)
    found = {}
    for way in paths.read(top, exercises.read(top)):
        lessons = {x.block.lesson for x in way.steps if x.block.lesson}
        found[f"slides_{way.name}.html"] = template.render(
            way=way,
            time=_time(way.minutes),
            kinds=KINDS,
            code={x: _code(top, x) for x in lessons},
            ideas={x: _ideas(top, x, drawn) for x in lessons},
            pictures={x: Markup(pictures[f"{page_of(x)}.svg"]) for x in lessons},
            style=(top / "docs/theme/ipclab.css").read_text(encoding="utf-8"),
        )
    return found


def _words(text: str) -> Markup:
    """Text; words in backticks are commands or names."""
    told = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
    return Markup(frame.breakable(told))


def _exercises(known: Iterable[Exercise]) -> str:
    return table(
        [
            *("", "exercise", "what to do", "level", "minutes", "lesson"),
            "where it was seen",
        ],
        (
            [
                f'@htmlonly<span id="exercise_{exercise.number}"></span>@endhtmlonly'
                f"{exercise.number}",
                plain(exercise.title),
                plain(KINDS[exercise.kind]),
                LEVELS[exercise.level],
                str(exercise.minutes),
                f'@ref {page_of(exercise.lesson)} "{exercise.lesson[:2]}"',
                plain(exercise.seen),
            ]
            for exercise in known
        ),
    )


def _page(way: Way) -> str:
    text = (
        f"/**\n@page path_{way.name} Workshop: {plain(way.title)}\n"
        f"@brief {plain(way.who)}\n\n{plain(way.who)} {_time(way.minutes)} without the "
        f'breaks; <a href="slides_{way.name}.html">slides</a>. '
        f"Everybody starts with `ci/learn --path {way.name}`.\n\n"
    )
    clock, rows = 0, []
    for step in way.steps:
        rows.append(
            [
                _clock(clock),
                str(step.minutes),
                plain(step.block.title),
                ", ".join(x.number for x in step.exercises),
            ]
        )
        clock += step.minutes
    text += table(["begin", "minutes", "what", "exercises"], rows)
    for step in way.steps:
        block = step.block
        text += f"@section path_{way.name}_{block.name} {plain(block.title)}\n\n"
        told = f"{step.minutes} minutes"
        if block.lesson:
            told += f", @ref {page_of(block.lesson)}"
        text += f"{told}\n\n**Show**\n\n"
        text += "".join(f"- {plain(line)}\n" for line in block.show) + "\n"
        text += f"**Let them do**\n\n{plain(block.do)}\n\n"
        if step.exercises:
            rows = [
                [x.number, plain(x.title), plain(KINDS[x.kind]), str(x.minutes)]
                for x in step.exercises
            ]
            text += table(["", "exercise", "what to do", "minutes"], rows)
        text += f"**Where people stumble**\n\n{plain(block.stumble)}\n\n"
        text += "**Ask**\n\n"
        for question, answer in block.ask:
            text += f"- *{plain(question)}* {plain(answer)}\n"
        text += "\n"
    return text + "*/\n"


def _time(minutes: int) -> str:
    hours, rest = divmod(minutes, 60)
    told = f"{hours} hour{'s' * (hours != 1)}" if hours else ""
    return f"{told} {rest} minutes".strip() if rest else told


def _clock(minutes: int) -> str:
    return f"{minutes // 60}:{minutes % 60:02}"


def _code(top: Path, lesson: str) -> list[tuple[str, str]]:
    """The roles of a lesson: name and source, as on its page. If the lesson has no
    roles, its first two parts."""
    topic = lesson.partition("_")[2]
    source = (top / "samples" / lesson / f"{topic}.cu").read_text(encoding="utf-8")
    found = SNIPPET.findall(source)
    roles = [(name, text) for name, text in found if name in ("exporter", "importer")]
    return roles or found[:2]


def _ideas(top: Path, lesson: str, drawn: Mapping[str, str]) -> list[Markup]:
    """The drawings of a lesson's page."""
    page = top / "samples" / lesson / f"{lesson.partition('_')[2]}.dox"
    names = drawings.INCLUDED.findall(page.read_text(encoding="utf-8"))
    return [Markup(drawn[x]) for x in names if x in drawn]


def _marked(text: str) -> Markup:
    """Code with its comments marked."""
    lines = []
    for line in text.rstrip().splitlines():
        code, slashes, comment = line.partition("//")
        marked = escape(code)
        if slashes:
            marked += f"<i>{escape(slashes + comment)}</i>"
        lines.append(marked)
    return Markup("\n".join(lines))
