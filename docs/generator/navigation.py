"""The order of the book: what the menu shows, and what comes before and after.

A page without a place is in the part "More", so that no page is lost.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from generator.chapters import by_chapter, page_of
from generator.rules import GROUPS

# The pages of the parts of the book whose pages do not come from a list.
BEGIN = ("index", "five", "choose", "cheat", "drawings", "glossary")
FAILS = (
    "pains",
    "pain_pytorch",
    "pain_vllm",
    "pain_nccl",
    "pain_ucx",
    "pain_jax",
    "pain_ray",
    "pain_containers",
    "pain_wsl_jetson",
    "pain_hang",
)
TOOLS = ("trace", "doctor", "explore")
SENTENCES = ("coverage", "coverage_sentences", "coverage_guides")
WORKSHOP = (
    "workshop",
    "path_two_hours",
    "path_one_day",
    "path_two_days",
    "path_self_study",
)
# The headers of lessons, the headers of tests, the Python package.
LESSON_WORDS, TEST_WORDS = "group__lesson__words", "group__test__words"
REFERENCE = ("runner", "errors", "calls", LESSON_WORDS, TEST_WORDS, "python_api")
WORK = ("contributing", "security", "errata", "changes")
# Pages of one header or class: the pages of their group link to them, not the menu.
DETAIL = re.compile(r"(?:class|struct|namespace|union)|.*_8h$")
# What Doxygen adds to the name of a class.
ADDED = re.compile(r" (?:Class|Struct|Union|Namespace|File) Reference$")
SHARED_HEADERS = Path(__file__).resolve().parents[2] / "samples/common"


@dataclass
class Part:
    """A part of the menu that opens and closes."""

    title: str
    pages: list[str] = field(default_factory=list)
    number: str = ""  # of a chapter


@dataclass
class Book:
    """All parts, and the titles of their pages."""

    parts: list[Part]
    titles: Mapping[str, str]
    lessons: list[str]  # pages
    under: dict[str, str]  # page of a rule, finding or class -> page of its group

    @property
    def order(self) -> list[str]:
        """Every page of the menu once, in the order in which to read."""
        return [page for part in self.parts for page in part.pages]

    def part_of(self, page: str) -> Part | None:
        """The place of a page, also of a page that is in no menu."""
        page = self.under.get(page, page)
        return next((x for x in self.parts if page in x.pages), None)

    def around(self, page: str) -> tuple[str, str]:
        """The page before and the page after, for a rule within its group. Empty at the
        ends, and for a page without a place.
        """
        group = self.under.get(page)
        order = (
            [x for x, y in self.under.items() if y == group] if group else self.order
        )
        if page not in order:
            return "", ""
        at = order.index(page)
        before = order[at - 1] if at else ""
        return before, order[at + 1] if at + 1 < len(order) else ""

    def label(self, page: str) -> str:
        """The text in the menu: for a lesson its number and the start of its title,
        for a rule its id.
        """
        title = self.titles.get(page, page)
        if page in self.lessons:
            return f"{page.removeprefix('lesson_')} {title.partition(':')[0]}"
        if DETAIL.match(page):
            return ADDED.sub("", title)
        if page in self.under:
            return title.partition(":")[0]
        return title.removesuffix(": rules")


def book(titles: Mapping[str, str], lessons: list[dict[str, Any]]) -> Book:
    """The menu for the existing pages; `titles` has the title of each."""
    known = set(titles)
    parts = [Part("Begin", _there(BEGIN, known))]
    parts.append(Part("My program fails", _there(FAILS, known)))
    for title, members in by_chapter(lessons).items():
        number = members[0]["lesson"][0]
        pages = [page_of(x["lesson"]) for x in members]
        parts.append(Part(title, _there(pages, known), number))
    parts.append(Part("Workshop", _there(WORKSHOP, known)))
    parts.append(Part("Tools", _there(TOOLS, known)))
    groups = [f"rules_{group}" for group in GROUPS]
    parts.append(Part("Rules", _there(["rules", *groups, *SENTENCES], known)))
    results = [x for x in titles if x.startswith("result")]
    results.sort(key=lambda x: (x != "results", x))
    parts.append(Part("Results", _there(["findings", *results], known)))
    placed = {page for part in parts for page in part.pages} | {*WORK, *REFERENCE}
    under = {page: _group(page) for page in titles if _group(page)}
    rest = [
        page
        for page in titles
        if page not in placed and page not in under and page != "lessons"
    ]
    parts.append(Part("More", rest))
    parts.append(Part("Reference", _there(REFERENCE, known)))
    parts.append(Part("Work on it", _there(WORK, known)))
    lesson_pages = [page_of(x["lesson"]) for x in lessons]
    if "lessons" in known:
        parts[0].pages.append("lessons")
    return Book([x for x in parts if x.pages], titles, lesson_pages, under)


def _there(pages: Iterable[str], known: set[str]) -> list[str]:
    return [page for page in pages if page in known]


def _group(page: str) -> str:
    """The page above the page of a rule, a finding, a header or a class; empty for
    other pages."""
    if page.startswith("rule_") and page.count("_") == 2:
        return f"rules_{page.split('_')[1]}"
    if page.endswith("_8h"):
        header = page.rpartition("_2")[2].removesuffix("_8h")
        return LESSON_WORDS if (SHARED_HEADERS / f"{header}.h").exists() else TEST_WORDS
    if DETAIL.match(page):
        return TEST_WORDS if "ipclab" in page else LESSON_WORDS
    return "findings" if page.startswith("finding_") else ""
