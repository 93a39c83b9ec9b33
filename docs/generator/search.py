"""The index that search.js reads: an entry for each section of each page.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from generator.frame import Page, text_of
from generator.navigation import Book

HEADING = re.compile(r'<h[2-6] id="([^"]+)">.*?</h[2-6]>', re.DOTALL)
UNREAD = re.compile(
    r"<(svg|script|style|button|template)\b.*?</\1>|<desc>.*?</desc>"
    r'|<ol class="stack".*?</ol>',
    re.DOTALL,
)
MOST = 6000  # characters of one section
# If two pages have the same words, the page with the greater weight comes first.
WEIGHT = {
    "lesson": 1.3,
    "index": 1.3,
    "errors": 1.3,
    "five": 1.3,
    "choose": 1.2,
    "cheat": 1.2,
    "glossary": 1.1,
    "calls": 1.1,
    "doctor": 1.2,
    "trace": 0.9,
    "workshop": 0.9,
    "explore": 0.9,
    "pain": 1.0,
    "pains": 1.1,
    "finding": 1.1,
    "findings": 1.1,
    "rule": 0.65,
    "rules": 0.5,
    "results": 1.0,
    "changes": 0.2,
    "contributing": 0.7,
    "errata": 0.5,
}
OTHER = 0.6
# Sections that name many things, or ask a question that another section answers.
ASIDE, LESS = ("_code", "_out", "_proof", "_test", "_predict", "_points"), 0.6
# A page about a product: its title is what people type, and its sections are also
# sections of other such pages.
NAMED, SHARED = 1.4, 0.7
APART = (
    "errors",
    "calls",
    "glossary",
    "runner",
    "results",
    "changes",
)  # pages of many things
WHOLE = ("rule", "finding", "class", "struct")  # pages about one thing
TERM = re.compile(r'<tr><th scope="row">(.*?)</th><td>(.*?)</td>', re.DOTALL)


def index(book: Book, pages: Mapping[str, Page], keywords: Mapping[str, str]) -> str:
    """The text of index.js.

    The index is a script, because a page that is opened as a file may not read other
    files.
    `keywords` has other words that people search for, by `page` or `page#section`.
    """
    entries = []
    for page in pages.values():
        kind = page.name.partition("_")[0]
        weight = WEIGHT.get(page.name, WEIGHT.get(kind, OTHER))
        titles = {heading.anchor: heading.text for heading in page.headings}
        whole = kind in WHOLE
        for anchor, html in [("", page.body)] if whole else sections(page.body):
            read = UNREAD.sub(" ", html.replace("<wbr>", ""))
            text = text_of(read.replace("<", " <"))[:MOST]
            if not anchor or text:
                address = page.file + (f"#{anchor}" if anchor else "")
                words = keywords.get(address.replace(".html", ""), "")
                heading = titles.get(anchor, "")
                label = _shown(book, page)
                less = LESS if anchor.endswith(ASIDE) else 1
                if kind == "pain":
                    less = SHARED if anchor else NAMED
                worth = [round(weight * less, 2), int(kind in APART)]
                entries.append([address, label, heading, words, text, *worth])
                for term, meaning in TERM.findall(html) if kind == "glossary" else []:
                    said = [text_of(term), "", text_of(meaning)]
                    entries.append([address, label, *said, *worth])
    lines = ",\n".join(json.dumps(x, ensure_ascii=False) for x in entries)
    return f"ipclabIndex = [\n{lines}\n];\n"


def sections(body: str) -> list[tuple[str, str]]:
    """Anchor and HTML of the text before the first heading and after each heading."""
    found, start, anchor = [], 0, ""
    for heading in HEADING.finditer(body):
        found.append((anchor, body[start : heading.start()]))
        start, anchor = heading.end(), heading[1]
    return [*found, (anchor, body[start:])]


def _shown(book: Book, page: Page) -> str:
    if page.name in book.lessons:
        return f"{page.name.removeprefix('lesson_')} {page.title}"
    return page.title
