"""The pictures of a lesson: its sequence and its memory, drawn from its trace.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from generator import traces
from ipclab.trace import pictures

MOST_STEPS = 48


def figure(lesson: traces.Lesson, source: str, links: Mapping[str, str]) -> str:
    """Both pictures with their caption, as HTML.

    `source` is what the lesson is written with, `links` has the reference of a call.
    """
    drawn = traces.steps(lesson, source)
    title = f"Sequence of lesson {lesson.folder}"
    told = pictures.sequence(drawn, lesson.names, title, links, MOST_STEPS)
    parts = [_scrolling(told, title)]
    if any(memory.shared for memory in lesson.story.memories):
        title = f"Memory of lesson {lesson.folder}"
        parts.append(_scrolling(pictures.memory(lesson.story, title), title))
    return (
        f'<figure class="sequence">{"".join(parts)}'
        f"<figcaption>Drawn from a trace of this lesson: {escape(lesson.machine)}."
        "</figcaption></figure>\n"
    )


def _scrolling(picture: str, title: str) -> str:
    return (
        f'<div class="sequence-scroll" tabindex="0" role="group" '
        f'aria-label="{escape(title)}">{picture}</div>'
    )
