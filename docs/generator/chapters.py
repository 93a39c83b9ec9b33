"""The chapters, and the map of lessons that the front page shows.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from generator.recorded import Missing

Lesson = dict[str, Any]

# First digit of a lesson's number -> title of the chapter.
CHAPTERS = {
    "0": "Legacy memory handles",
    "1": "Legacy event handles",
    "2": "What must not be shared",
    "3": "Virtual memory management",
    "4": "The stream-ordered allocator",
    "5": "IPC pools",
    "6": "Lifetime and platform",
    "7": "Patterns",
}
TOOLKIT = (13, 0)  # the CUDA Toolkit of ci/constraints.txt


def needs_newer_toolkit(lesson: Mapping[str, Any]) -> bool:
    """Can the toolkit that ci/setup installs not build the lesson?"""
    return tuple(map(int, (lesson["toolkit"] or "0").split("."))) > TOOLKIT


def page_of(lesson: str) -> str:
    """01_legacy_memory -> lesson_01."""
    return f"lesson_{lesson[:2]}"


def by_chapter(lessons: Iterable[Lesson]) -> dict[str, list[Lesson]]:
    """Title of the chapter -> its lessons; chapters without lessons are left out."""
    found: dict[str, list[Lesson]] = {}
    for lesson in lessons:
        found.setdefault(CHAPTERS[lesson["lesson"][0]], []).append(lesson)
    return found


def page(lessons: list[Lesson], briefs: Mapping[str, str]) -> str:
    """The page of all lessons, in order; `briefs` has what each lesson shows."""
    text = (
        "/**\n@page lessons Lessons\n@brief In the order in which to read them.\n\n"
        "A lesson has the level *first* if at most two lessons come before it, one "
        "after the other; *further* if three do; *advanced* if more do.\n"
    )
    levels = depths(lessons)
    for title, members in by_chapter(lessons).items():
        text += f"\n<h2>{title}</h2>\n\n"
        text += "".join(
            _item(x, briefs[x["lesson"]], levels[x["lesson"]]) for x in members
        )
    return text + "*/\n"


def _item(lesson: Lesson, brief: str, depth: int) -> str:
    page = page_of(lesson["lesson"])
    gpus = f"{lesson['gpus']} GPU{'s' * (lesson['gpus'] > 1)}"
    level = "first" if depth < 3 else "further" if depth < 4 else "advanced"
    return (
        f"- {lesson['lesson'][:2]} @subpage {page} <br>\n  {brief} "
        f'<span class="soft">{minutes_of(page)} minutes, {level}, {gpus}</span>\n'
    )


def minutes_of(page: str) -> str:
    """Stands for the minutes of a lesson until its page is complete."""
    return page.replace("lesson", "MINUTES")


def depths(lessons: Iterable[Lesson]) -> dict[str, int]:
    """Lesson -> length of the longest chain of lessons that it builds on.

    >>> lesson = {"lesson": "02_c", "builds_on": ["00_a", "01_b"]}
    >>> depths([{"lesson": "01_b", "builds_on": ["00_a"]}, lesson])
    {'01_b': 1, '02_c': 2}
    """
    found: dict[str, int] = {}
    for lesson in sorted(lessons, key=lambda x: x["lesson"]):
        before = (1 + found.get(x, 0) for x in lesson["builds_on"])
        found[lesson["lesson"]] = max(before, default=0)
    return found


def picture(lessons: list[Lesson]) -> str:
    """The map as inline SVG: a box for each chapter with its lessons, and an arrow to
    each chapter that builds on it. The lessons that a lesson builds on are listed
    beside it, because lines between them would cross.

    A list follows the map; on a phone the style sheet shows the list instead. Raises
    Missing if Graphviz cannot draw the map.
    """
    items = ""
    for title, members in by_chapter(lessons).items():
        listed = "".join(
            f'<li><a href="{page_of(x["lesson"])}.html">{x["lesson"][:2]} '
            f"{escape(x['title'])}</a>{escape(_after(x, ', '))}</li>\n"
            for x in members
        )
        items += f"<li>{escape(title)}\n<ul>\n{listed}</ul></li>\n"
    drawn = inline_svg(_graph(lessons), "map", "Map of the lessons")
    return f"{drawn}<ul>\n{items}</ul>\n"


def _after(lesson: Lesson, between: str = "") -> str:
    numbers = ", ".join(x[:2] for x in lesson["builds_on"])
    return f"{between}after {numbers}" if numbers else ""


def _graph(lessons: list[Lesson]) -> str:
    lines = [
        "digraph lessons {",
        "rankdir=LR; ranksep=0.45; nodesep=0.3; edge [arrowsize=0.7];",
        'node [shape=plain, fontname="DejaVu Sans", fontsize=12];',
    ]
    for title, members in by_chapter(lessons).items():
        number = members[0]["lesson"][0]
        rows = f'<tr><td align="left" colspan="2"><b>{escape(title)}</b></td></tr>'
        for lesson in members:
            name = lesson["lesson"]
            topic = f"{name[:2]} {lesson['title'].partition(':')[0]}"
            after = _after(lesson)
            small = f'<font point-size="10">{after}&#160;</font>' if after else ""
            rows += (
                f'<tr><td align="left" href="{page_of(name)}.html" '
                f'title="{escape(lesson["title"])}">{escape(topic)}</td>'
                f'<td align="right">{small}</td></tr>'
            )
        lines.append(
            f'{number} [label=<<table border="1" cellborder="0" cellspacing="0" '
            f'cellpadding="4" style="rounded">{rows}</table>>];'
        )
    lines += [f"{x} -> {y};" for x, y in sorted(steps_between(lessons))]
    return "\n".join([*lines, "}"])


def steps_between(lessons: Iterable[Lesson]) -> set[tuple[str, str]]:
    """Pairs of chapters: the second chapter builds on the first chapter. A pair that
    follows from other pairs is left out.

    >>> lesson = {"lesson": "10_b", "builds_on": ["01_a"]}
    >>> steps_between([lesson, {"lesson": "20_c", "builds_on": ["01_a", "10_b"]}])
    {('0', '1'), ('1', '2')}
    """
    direct: dict[str, set[str]] = {}
    for lesson in lessons:
        own = lesson["lesson"][0]
        before = {x[0] for x in lesson["builds_on"]} - {own}
        direct.setdefault(own, set()).update(before)
    reached: dict[str, set[str]] = {}
    for chapter in sorted(direct):  # builds on smaller numbers only
        near = direct[chapter]
        reached[chapter] = near.union(*(reached.get(x, set()) for x in near))
    return {
        (before, chapter)
        for chapter, near in direct.items()
        for before in near
        if not any(before in reached.get(x, set()) for x in near - {before})
    }


def inline_svg(graph: str, style: str, title: str) -> str:
    """A graph in dot's language as SVG for a page; the style sheet has the colours.

    `style` is the class of the picture. Raises Missing if Graphviz cannot draw the
    graph.
    """
    try:
        drawn = subprocess.run(
            ["dot", "-Tsvg"], input=graph, capture_output=True, text=True, timeout=60
        )
    except OSError as error:
        raise Missing(f"dot: {error.strerror}; run ci/setup --test") from None
    if drawn.returncode:
        raise Missing(f"dot cannot draw the {title}: {drawn.stderr.strip()}")
    svg = drawn.stdout[drawn.stdout.index("<svg") :]
    svg = re.sub(r' (fill|stroke)="[^"]*"', "", svg)
    svg = re.sub(r'(width|height)="(\d+)pt"', r'\1="\2"', svg)
    svg = re.sub(r"<!--.*?-->\n?|<title>.*?</title>\n?", "", svg, flags=re.DOTALL)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(title)}" ', 1)
    return (
        f'<figure class="graph {style}"><div class="sequence-scroll" tabindex="0" '
        f'role="group" aria-label="{escape(title)}">\n{svg}</div></figure>\n'
    )
