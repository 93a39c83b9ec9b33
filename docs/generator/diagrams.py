"""The pictures of a lesson: its sequence and its memory, drawn from its trace.

A step of the sequence has the number of the line that makes the step, if this line is
known. So docs/theme/steps.js can show both together.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape

from generator import align, traces
from generator.align import Place
from ipclab.trace import pictures
from ipclab.trace.sequence import Step

MOST_STEPS = 48
BEFORE, AFTER = 5, 10  # numbers of steps that are drawn before and after a death

LEGEND = (
    '<p class="legend"><b>Memory.</b> Time runs to the right. A block is memory that '
    "processes share. Each bar is a process that has the block, from the call that "
    "gets it to the call that gives it back; the first bar is the owner. A bar "
    'has the address of the block in that process. "References" counts the bars '
    "at a moment. The red line is the step that is shown.</p>"
)
AROUND = 3  # number of lines before and after the line of a step; as in steps.js


def figure(
    lesson: traces.Lesson, source: traces.Sources, links: Mapping[str, str]
) -> str:
    """Both pictures with their caption, as HTML; without shared memory, only the
    sequence. `source` is the source of the lesson, `links` has the reference of each
    call.
    """
    steps, where = located(lesson, source)
    since = next((x.at for x in steps if x.kind != "more"), 0)
    names = {
        memory.number: f"block {i}"
        for i, memory in enumerate(pictures.shared(lesson.story, since), 1)
    }
    title = f"Sequence of lesson {lesson.folder}"
    drawn = _drawn(steps, where)
    most = len(drawn)
    shown = [step for step, _ in drawn]
    left_out = steps[steps.index(shown[-1]) + 1 :]
    told = pictures.sequence([*shown, *left_out], lesson.names, title, links, most)
    for i, (step, place) in enumerate(drawn):
        told = told.replace(
            f'data-step="{i}"',
            f'data-step="{i}" {_attributes(step, place, names)}',
            1,
        )
    parts = [_scrolling(told, title)]
    if names:
        title = f"Memory of lesson {lesson.folder}"
        picture = pictures.memory(lesson.story, title, since, names)
        parts += [_scrolling(picture, title), LEGEND]
    told = _around([place for _, place in drawn], source.program)
    lanes = {x for step in shown for x in (step.who, step.to) if x}
    return (
        f'<figure class="sequence steps lanes-{len(lanes)}">'
        f"{_stack(shown, lesson.names)}{''.join(parts)}{told}"
        f"<figcaption>Drawn from a trace of this lesson: {escape(lesson.machine)}."
        "</figcaption></figure>\n"
    )


def located(
    lesson: traces.Lesson, source: traces.Sources
) -> tuple[list[Step], list[Place]]:
    """The steps, and the place of each step in the program, from the first step on that
    does not only ask what the machine can do.
    """
    steps = traces.steps(lesson, source.text)
    where = align.places(steps, source.program, source.headers, lesson.names[0])
    named = [
        replace(step, text=place.name or step.text)
        for step, place in zip(steps, where, strict=True)
    ]
    asks = (place.helper.startswith("require") for place in where)
    first = sum(1 for _ in itertools.takewhile(bool, asks))
    return named[first:], list(where[first:])


def _drawn(steps: Sequence[Step], where: Sequence[Place]) -> list[tuple[Step, Place]]:
    """The steps that are drawn: the first MOST_STEPS steps, steps around each death,
    and steps around the last step of the process that died. Where steps are left
    out before a drawn step, an extra step says how many.
    """
    wanted = set(range(MOST_STEPS))
    for i, step in enumerate(steps):
        if step.kind == "death":  # recorded later, by another process
            own = [j for j in range(i) if step.who in (steps[j].who, steps[j].to)]
            for at in (*own[-1:], i):
                wanted |= set(range(at - BEFORE, at + AFTER + 1))
    drawn: list[tuple[Step, Place]] = []
    last = -1
    for i in sorted(wanted & set(range(len(steps)))):
        left_out = i - last - 1
        if left_out > 0:
            gap = Step("", "more", f"… {left_out} steps later", steps[i].at)
            drawn.append((gap, Place(None)))
        drawn.append((steps[i], where[i]))
        last = i
    return drawn


def _attributes(step: Step, place: Place, names: Mapping[int, str]) -> str:
    """Data for steps.js: moment, memory, lines by process, the step in words."""
    lines = [(step.who, place.line), (step.to, place.other)]
    told = " ".join(
        f"{re.sub(r'[ _]?[0-9]+$', '', who)}:{line}"
        for who, line in lines
        if who and line
    )
    name = names.get(step.handle, "")
    sentence = f"{step.sentence}: {name}" if name else step.sentence
    return (
        f'data-at="{step.at}" data-lines="{escape(told)}" '
        f'data-told="{escape(sentence)}"'
        + (f' data-memory="{step.handle}"' if name else "")
    )


def _around(where: Sequence[Place], program: str) -> str:
    """The lines of the program that make the steps, for steps.js, because the page
    shows only parts of the program."""
    text = program.splitlines()
    numbers = {x for place in where for x in (place.line, place.other) if x}
    wanted = {x + i for x in numbers for i in range(-AROUND, AROUND + 1)}
    lines = "".join(
        f'<span class="line" data-line="{x}">{escape(text[x - 1])}</span>\n'
        for x in sorted(wanted)
        if 0 < x <= len(text)
    )
    return f"<template><pre>{lines}</pre></template>"


def _stack(steps: Sequence[Step], names: Sequence[str]) -> str:
    """The same steps as a list for a narrow screen: the processes one below the other,
    a message with an arrow and the name of the other side."""
    items, before = [], ""
    used = {x for step in steps for x in (step.who, step.to)}
    lanes = [name for name in names if name in used]
    for step in steps:
        who = f"<b>{escape(step.who)}</b> " if step.who and step.who != before else ""
        before = step.who or before
        text = escape(f"{step.text}, {step.detail}" if step.detail else step.text)
        if step.to and step.to != step.who:
            text = f"\N{RIGHTWARDS ARROW} <b>{escape(step.to)}</b>: {text}"
        if step.times > 1:
            text += f" \N{MULTIPLICATION SIGN}{step.times}"
        lane = lanes.index(step.who) if step.who else 0
        items.append(f'<li class="{step.kind} lane-{lane}">{who}{text}</li>')
    return f'<ol class="stack" tabindex="0" aria-label="Steps">{"".join(items)}</ol>'


def _scrolling(picture: str, title: str) -> str:
    return (
        f'<div class="sequence-scroll" tabindex="0" role="group" '
        f'aria-label="{escape(title)}">{picture}</div>'
    )
