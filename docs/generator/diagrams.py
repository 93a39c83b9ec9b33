"""The pictures of a lesson: its sequence and its memory, drawn from its trace.

Each step of the sequence says which line of the program makes it, so that
docs/theme/steps.js can show both together.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape

from generator import align, traces
from generator.align import Place
from ipclab.trace import pictures
from ipclab.trace.sequence import Step

MOST_STEPS = 48
AFTER_DEATH = 10


def figure(
    lesson: traces.Lesson, program: str, common: str, links: Mapping[str, str]
) -> str:
    """Both pictures with their caption, as HTML.

    `program` and `common` are what the lesson is written with, `links` has the
    reference of a call.
    """
    steps, where = located(lesson, program, common)
    title = f"Sequence of lesson {lesson.folder}"
    most = _shown(steps)
    told = pictures.sequence(steps, lesson.names, title, links, most)
    for i, (step, place) in enumerate(zip(steps[:most], where, strict=False)):
        told = told.replace(
            f'data-step="{i}"', f'data-step="{i}" {_attributes(step, place)}', 1
        )
    parts = [_scrolling(told, title)]
    since = next((x.at for x in steps if x.kind != "more"), 0)
    if any(memory.shared for memory in lesson.story.memories):
        title = f"Memory of lesson {lesson.folder}"
        picture = pictures.memory(lesson.story, title, since)
        parts.append(_scrolling(picture, title))
    return (
        f'<figure class="sequence steps">{"".join(parts)}'
        f"<figcaption>Drawn from a trace of this lesson: {escape(lesson.machine)}."
        "</figcaption></figure>\n"
    )


def located(
    lesson: traces.Lesson, program: str, common: str
) -> tuple[list[Step], list[Place]]:
    """The steps, and the place of each in the program.

    What a helper of samples/common asks the machine first is one step.
    """
    steps = traces.steps(lesson, program + common)
    where = align.places(steps[: 2 * MOST_STEPS], program, common, lesson.names[0])
    kept, places = _folded(steps, where)
    return [*kept, *steps[len(where) :]], places


def _shown(steps: Sequence[Step]) -> int:
    """How many steps are drawn: so many, and on to a death with what follows it."""
    near = enumerate(steps[: 2 * MOST_STEPS - AFTER_DEATH])
    deaths = [i + AFTER_DEATH for i, step in near if step.kind == "death"]
    return max([MOST_STEPS, *deaths])


def _folded(
    steps: Sequence[Step], where: Sequence[Place]
) -> tuple[list[Step], list[Place]]:
    kept: list[Step] = []
    places: list[Place] = []
    asking = True
    for step, place in zip(steps, where, strict=False):
        asking = asking and place.helper.startswith("require")
        if not asking:
            kept.append(step)
            places.append(place)
        elif not places or places[-1].line != place.line:
            text = f"{place.helper}(): asks the machine"
            kept.append(replace(step, kind="more", text=text, detail="", times=1))
            places.append(place)
    return kept, places


def _attributes(step: Step, place: Place) -> str:
    """Data for steps.js: moment, lines by process, the step in words."""
    lines = [(step.who, place.line), (step.to, place.other)]
    told = " ".join(
        f"{re.sub(r'[ _]?[0-9]+$', '', who)}:{line}"
        for who, line in lines
        if who and line
    )
    return (
        f'data-at="{step.at}" data-lines="{escape(told)}" '
        f'data-told="{escape(step.sentence)}"'
    )


def _scrolling(picture: str, title: str) -> str:
    return (
        f'<div class="sequence-scroll" tabindex="0" role="group" '
        f'aria-label="{escape(title)}">{picture}</div>'
    )
