"""The slides and pages of the workshop.

SPDX-License-Identifier: Apache-2.0
"""

import html
import re
from pathlib import Path

import pytest

from generator import drawings, workshop
from ipclab.learn import exercises, paths

TOP = Path(__file__).resolve().parents[2]
KNOWN = exercises.read(TOP)
WAYS = paths.read(TOP, KNOWN)
NUMBERS = {x.lesson[:2] for x in KNOWN} | {
    step.block.lesson[:2] for way in WAYS for step in way.steps if step.block.lesson
}
PICTURES = {f"lesson_{x}.svg": f"<p><svg>picture {x}</svg></p>" for x in NUMBERS}
DRAWN = drawings.read(TOP)
SLIDES = workshop.slides(TOP, PICTURES)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: str(way.name))
def test_slides_have_every_step(way: paths.Way) -> None:
    text = SLIDES[f"slides_{way.name}.html"]
    for step in way.steps:
        assert html.escape(step.block.title, quote=False) in text
        for exercise in step.exercises:
            # The first line of the task is on a slide.
            assert html.escape(exercise.task.splitlines()[0], quote=False) in text
        if step.block.lesson:
            assert f"picture {step.block.lesson[:2]}" in text
            for drawing in workshop._ideas(TOP, step.block.lesson, DRAWN):
                assert str(drawing) in text
    assert text.count('class="slide"') == text.count("</section>")


def test_the_slides_of_a_day_show_drawings() -> None:
    assert SLIDES["slides_one_day.html"].count('class="drawing"') >= 3


@pytest.mark.parametrize("name", SLIDES)
def test_slides_need_no_other_file(name: str) -> None:
    assert not re.search(r"<(script|link|img|iframe)\b|@import", SLIDES[name])


@pytest.mark.parametrize("way", WAYS, ids=lambda way: str(way.name))
def test_a_page_tells_a_teacher_all(way: paths.Way) -> None:
    page = workshop.pages(TOP)[f"path_{way.name}.dox"]
    assert page.count("@section") == len(way.steps)
    for word in ("Show", "Let them do", "Where people stumble", "Ask"):
        assert page.count(f"**{word}**") == len(way.steps)


def test_the_list_has_every_exercise() -> None:
    table = workshop.parts(TOP)["exercises.md"]
    for exercise in KNOWN:
        assert f'id="exercise_{exercise.number}"' in table
