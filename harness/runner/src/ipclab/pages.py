"""What all pages share: templates, style, chapters."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import functools
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import jinja2

from ipclab.failures import readable

T = TypeVar("T")

CHAPTERS = {  # by the tens of a lesson's number
    "0": "Legacy memory handles",
    "1": "Legacy event handles",
    "2": "What must not be shared",
    "3": "Virtual memory management handles",
    "4": "The stream-ordered allocator",
    "5": "IPC pools",
    "6": "Lifetime and platform",
    "7": "Patterns",
}
# The meaning of the short names in the catalogue and in the older catalogues of
# recorded runs.
ABBREVIATIONS = {
    "E, I": "the exporter, the importer",
    "RT, DRV, TY": "lines of cuda_runtime_api.h, cuda.h, driver_types.h of CUDA 13.0",
    "PG, PG11": "sections of the CUDA Programming Guides of CUDA 13 and of CUDA 11",
    "2P1G": "two processes and one GPU",
}
ON_MODEL = "Made on the reference model: it says nothing about a driver."
HALF_ON_MODEL = "One of the two runs was made on the reference model."


def render(template: str, **values: Any) -> str:
    """A page as text that needs no other file; all values are escaped."""
    return _environment().get_template(template).render(**values)


def moments(started: str, finished: str | None) -> str:
    """When a run was made, and how long it took.

    >>> moments("2026-11-23T05:32:48+00:00", "2026-11-23T05:36:23+00:00")
    '2026-11-23, 05:32 UTC, in 3 min 35 s'
    """
    begin = datetime.fromisoformat(started)
    told = f"{begin.astimezone(UTC):%Y-%m-%d, %H:%M} UTC"
    if not finished:
        return told
    seconds = round((datetime.fromisoformat(finished) - begin).total_seconds())
    return f"{told}, in {seconds // 60} min {seconds % 60} s"


def chapter(lesson: str | None) -> str:
    """The title of the chapter that a lesson's folder belongs to."""
    number = (lesson or "?")[0]
    return f"Chapter {number}: {CHAPTERS.get(number, 'without a name')}"


def grouped(items: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    """The values that belong to each key; keys and values keep their order."""
    groups: dict[str, list[T]] = {}
    for key, value in items:
        groups.setdefault(key, []).append(value)
    return groups


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["readable"] = lambda text: readable(str(text))
    environment.filters["slug"] = lambda text: str(text).replace(" ", "-")
    return environment
