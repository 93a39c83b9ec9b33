"""The visible text has no remains of markup; each kind is planted at least once.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import itertools
import re
from html.parser import HTMLParser

import pytest

from conftest import Site

# Remains in text and in code. If `--` became a dash, the command fails.
ANYWHERE = {
    "a block of Doxygen": r"\[block\]",
    "an entity": r"&(?:lt|gt|amp|quot|zwnj|ndash|#\d+);",
    "a dash for two hyphens": r"(?<!\w)[\u2013\u2014]\w",
    "a tag": r"</?(?:br|b|p|div|span|code|details)\b[^>]*>",
}
IN_PROSE = {
    "a command of Doxygen": r"(?<![\w.])[@\\](?:ref|b|c|p|e|brief|page|section|subpage|"
    r"snippet|include\w*|htmlonly|endhtmlonly|htmlinclude)\b",
    "asterisks": r"\*\*\w|\w\*\*",
    "a backtick": r"`",
    "a half of bold": r"\n[A-Za-z ]*\w\*[\s:,.]",
    "doubled quotes": r"\"\"|''|\u201c\u201c",
    "a link of Markdown": r"\]\(\w",
}


class Rendered(HTMLParser):
    """The text of a page; text of programs is kept separately."""

    UNSEEN = ("script", "style", "title", "desc")
    DECLARED = re.compile(r"mem|param")  # classes of Doxygen for declarations

    def __init__(self, html: str) -> None:
        super().__init__()
        self.prose: list[str] = []
        self.code: list[str] = []
        self._open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes where an element begins whose text is no prose."""
        declared = self.DECLARED.match(dict(attrs).get("class") or "")
        if tag in ("pre", "code", *self.UNSEEN) or (tag == "td" and declared):
            self._open.append(tag)
        elif tag in ("p", "td", "th", "li", "br", "div", "h1", "h2", "h3"):
            self.prose.append("\n")

    def handle_endtag(self, tag: str) -> None:
        """Notes where such an element ends."""
        if self._open and self._open[-1] == tag:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        """Keeps a piece of text."""
        if set(self._open) & set(self.UNSEEN):
            return
        (self.code if self._open else self.prose).append(data)


def remains(html: str) -> list[str]:
    """The remains of markup, with the text around them."""
    page = Rendered(html)
    texts = {"".join(page.prose): {**ANYWHERE, **IN_PROSE}, "".join(page.code): {}}
    found = []
    for text, kinds in texts.items():
        for what, pattern in (kinds or CODE).items():
            for match in re.finditer(pattern, text):
                around = text[max(0, match.start() - 30) : match.end() + 30]
                found.append(f"{what}: {' '.join(around.split())}")
    return found


CODE = {k: v for k, v in ANYWHERE.items() if k not in ("a tag", "an entity")}


def test_no_page_has_remains_of_markup(site: Site) -> None:
    pages = sorted(site.folder.glob("*.html"))  # also the slides
    found = [f"{x.name}: {y}" for x in pages for y in remains(x.read_text())]
    assert not found, "\n".join(found)


def test_places_in_cudas_headers_lead_to_no_file_of_ours(site: Site) -> None:
    """cuda.h:123 is a line of NVIDIA's header; harness/scenario also has a cuda.h."""
    for path in site.pages:
        assert not wrong_headers(path.read_text()), path.name


def wrong_headers(html: str) -> list[str]:
    """Links to files of this project on the name of a header with a line number."""
    return re.findall(r'<a [^>]*href="\w+_8h\.html[^>]*>\w+\.h</a>:\d+', html)


def test_every_table_has_one_head_and_headings_are_in_order(site: Site) -> None:
    for path in site.pages:
        levels = [int(x) for x in re.findall(r"<h([1-6])\b", path.read_text())]
        assert levels.count(1) == 1 and levels[0] == 1, path.name
        skipped = [b for a, b in itertools.pairwise(levels) if b > a + 1]
        assert not skipped, f"{path.name}: {levels}"


# --- planted faults ---------------------------------------------------------


@pytest.mark.parametrize(
    "planted",
    [
        "<p>What happens[block]</p>",
        "<p>run docker \u2013ipc=host</p>",
        "<code>docker \u2013pid=host</code>",
        "<pre>nvidia-smi \u2013query</pre>",
        "<p>see @ref lesson_01</p>",
        "<p>the \\c word</p>",
        "<p>a **b**</p>",
        "<td>`code`</td>",
        "<p>one* two</p>",
        '<p>he said ""no""</p>',
        "<p>one&lt;br&gt;two</p>",
        "<p>a &amp;zwnj; b</p>",
        "<p>[text](page.md)</p>",
    ],
)
def test_a_remain_is_noticed(planted: str) -> None:
    assert remains(planted)


@pytest.mark.parametrize(
    "allowed",
    [
        "<p>2001\u20132003, one \u2013 two</p>",
        '<pre>x = "";  a ** b; @ref</pre>',
        "<p>a@b.c, 3 * 4, don't</p>",
    ],
)
def test_what_is_no_markup_is_allowed(allowed: str) -> None:
    assert not remains(allowed)


def test_a_wrong_header_is_noticed() -> None:
    planted = '<a class="el" href="cuda_8h.html">cuda.h</a>:9376'
    assert wrong_headers(planted)
    assert not wrong_headers(planted.removesuffix(":9376"))
