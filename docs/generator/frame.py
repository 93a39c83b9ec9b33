"""Takes a page out of Doxygen's frame and turns it into a page of a book.

The frame of Doxygen's HTML differs between versions, but the contents do not. So only
the title and the contents are used. Headings, tables, code and links get a form that
works on a phone, with a screen reader and on paper.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape, unescape

from generator import links

TITLE = re.compile(r'<div class="title">(.*?)</div>', re.DOTALL)
INSIDE = re.compile(r'<div class="contents">(.*)</div><!-- contents -->', re.DOTALL)
ANCHOR = re.compile(r'<a class="anchor" id="([^"]+)"></a>\s*')
HEADING = re.compile(r"<h([1-6])([^>]*)>(.*?)</h\1>", re.DOTALL)
FRAGMENT = re.compile(r'<div class="fragment">(.*?)</div><!-- fragment -->', re.DOTALL)
LINE = re.compile(r'<div class="line">(.*?)</div>\n?')
TIP = re.compile(r'<div class="ttc".*?</div></div>\n?', re.DOTALL)
TABLE = re.compile(
    r'<table class="(?:markdownTable|doxtable)">(.*?)</table>', re.DOTALL
)
HEAD = re.compile(r'<tr class="markdownTableHead">\s*(.*?)</tr>\s*', re.DOTALL)
CELL = re.compile(r"<(t[hd])[^>]*>(.*?)\s*(?=<t[hd]|</t[dhr]>|$)", re.DOTALL)
SHORT_CODE = re.compile(r"<code>.*?</code>", re.DOTALL)
TAG = re.compile(r"<[^>]+>")
# Names so long that a narrow column has to break them, and where they may break.
LONG_NAME = re.compile(r"[\w/.:]{16,}")
SEAM = re.compile(
    r"(?<=\w/)(?=\w)|(?<=\w::)(?=\w)|(?<=\w{3}\.)(?=\w{4})"
    r"|(?<=\w{6})(?:(?<=[a-z0-9])(?=[A-Z])|(?<=_))(?=\w{4})"
)
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]{1,15}(?![\w-])")
AS_IT_IS = {"pre", "svg", "template", "script", "style"}
WORDY = 28  # characters of a cell
# Empty paragraphs, which are removed.
EMPTY = re.compile(r"<p>\s*</p>\n?")


@dataclass
class Heading:
    """A heading of a page below its title."""

    level: int  # 2 and more
    anchor: str
    text: str


@dataclass
class Page:
    """A page of the book without its frame."""

    name: str  # lesson_01
    title: str  # as text
    body: str  # HTML
    headings: list[Heading] = field(default_factory=list)
    minutes: int = 0  # of a lesson

    @property
    def file(self) -> str:
        """The address in links to the page."""
        return f"{self.name}.html"


def taken(name: str, html: str, known: Mapping[str, str]) -> Page | None:
    """The page of one file of Doxygen; None if the file has no contents.

    `known` has the reference of each function of CUDA.
    """
    inside, title = INSIDE.search(html), TITLE.search(html)
    if inside is None or title is None:
        return None
    page = Page(name, text_of(re.sub(r"<div.*", "", title[1], flags=re.S)), inside[1])
    body = re.sub(r"<img [^>]*>(?:&#160;)?", "", page.body.replace("<p >", "<p>"))
    # Undoes what Doxygen does with two hyphens in code and with blocks in paragraphs.
    body = SHORT_CODE.sub(lambda x: x[0].replace("&ndash;", "--"), body)
    body = body.replace('<pre class="change"', '</p><pre class="change"')
    body = re.sub(r"</details>\s*(?=<b>)", "</details>\n<p>", body)
    body = body.replace("</details></p>", "</details>")
    body = re.sub(r"<(/?)blockquote\b[^>]*>", _rule, body)
    body = FRAGMENT.sub(_code, body)
    body = TABLE.sub(_table, body)
    body = body.replace('<div class="memitem">', '<div class="memitem" tabindex="0">')
    page.body = EMPTY.sub("", links.linked(body, known))
    _headings(page)
    page.body = breakable(page.body)
    return page


def breakable(html: str) -> str:
    """HTML whose long names break between their words, not inside a word, and whose
    options of commands do not break after a hyphen.

    >>> breakable("<b>CUDA_ERROR_INVALID_VALUE</b>")
    '<b>CUDA_ERROR_<wbr>INVALID_<wbr>VALUE</b>'
    """
    inside: list[str] = []
    pieces = []
    for piece in links.TAG.split(html):
        if match := re.match(r"<(/?)(\w+)", piece):
            if match[2] in AS_IT_IS and not piece.endswith("/>"):
                if match[1]:
                    inside.remove(match[2])
                else:
                    inside.append(match[2])
        elif not inside:
            piece = LONG_NAME.sub(lambda x: SEAM.sub("<wbr>", x[0]), piece)
            piece = OPTION.sub(r'<span class="option">\g<0></span>', piece)
        pieces.append(piece)
    return "".join(pieces)


def _rule(tag: re.Match[str]) -> str:
    """A <div> for a <blockquote>: a rule is our wording and must not look quoted."""
    return "</div>" if tag[1] else '<div class="rule">'


def text_of(html: str) -> str:
    """HTML as one line of text."""
    return " ".join(unescape(TAG.sub("", html)).split())


def _code(fragment: re.Match[str]) -> str:
    """A program as <pre> with a <span> for each line; ipclab.js adds a copy button."""
    inner = TIP.sub("", fragment[1])
    found = LINE.findall(inner)
    if not found:  # a shell line of Markdown
        found = inner.strip("\n").splitlines()
    margin = min((_blank(x) for x in found if x.strip()), default=0)
    lines = "\n".join(
        f'<span class="line">{line[margin:].rstrip()}</span>' for line in found
    )
    return (
        '<div class="code"><pre tabindex="0" role="group" aria-label="Code">'
        f"<code>{lines}</code></pre></div>"
    )


def _blank(line: str) -> int:
    """The number of spaces at the beginning of a line."""
    return len(line) - len(line.lstrip(" "))


def _table(table: re.Match[str]) -> str:
    """A table that may be wider than the screen, or facts if its head is empty."""
    inner = table[1]
    head = HEAD.search(inner)
    cells = CELL.findall(head[1]) if head else []
    if head and not any(text_of(cell) for _, cell in cells):
        rows = [
            [cell for _, cell in CELL.findall(row)]
            for row in re.findall(r"<tr[^>]*>(.*?)</tr>", inner[head.end() :], re.S)
        ]
        told = "".join(
            f'<tr><th scope="row">{re.sub("</?b>", "", row[0]).strip()}</th>'
            f"<td>{row[1].strip()}</td></tr>\n"
            for row in rows
        )
        return f'<table class="facts"><tbody>\n{told}</tbody></table>'
    count = len(cells)
    stacked = ""
    if count >= 3 and _has_sentences(inner):
        stacked = " stacked"
        inner = _labelled(inner, [text_of(cell) for _, cell in cells])
    inner = re.sub(r'\s*class="markdownTable\w*"', "", inner)
    inner = re.sub(r"<th(?: [^>]*)?>", '<th scope="col">', inner)
    inner = re.sub(r'<th scope="col">\s*</th>', "<td></td>", inner)  # a corner
    # If a first cell is bold, this cell is the head of its row.
    inner = re.sub(
        r"<tr>\s*<td>\s*<b>(.*?)</b>\s*</td>", r'<tr><th scope="row">\1</th>', inner
    )
    return (
        f'<div class="table columns-{count}{stacked}" tabindex="0" role="group" '
        f'aria-label="Table"><table>{inner}</table></div>'
    )


def _has_sentences(inner: str) -> bool:
    """Whether a cell of a table has more than a few words: on a phone such a table is
    a stack of cells, one below the other."""
    return any(len(text_of(cell)) > WORDY for _, cell in CELL.findall(inner))


def _labelled(inner: str, heads: list[str]) -> str:
    """The rows of a table with the name of its column in each cell but the first."""

    def row(found: re.Match[str]) -> str:
        labels = iter(["", *(x if x.endswith("?") else f"{x}:" for x in heads[1:])])
        return re.sub(
            "<td[^>]*>",
            lambda cell: (
                f'<td data-head="{escape(label)}">'
                if (label := next(labels, ""))
                else cell[0]
            ),
            found[0],
        )

    return re.sub(r"<tr[^>]*>.*?</tr>", row, inner, flags=re.DOTALL)


def _headings(page: Page) -> None:
    """Gives each heading a level (without gaps), an anchor and a link."""
    open_levels: list[int] = []
    used: set[str] = set(re.findall(r'id="([^"]+)"', page.body))

    def renumbered(heading: re.Match[str]) -> str:
        own, attributes, inner = int(heading[1]), heading[2], heading[3]
        while open_levels and open_levels[-1] >= own:
            open_levels.pop()
        open_levels.append(own)
        level = min(1 + len(open_levels), 6)
        anchor = ANCHOR.search(inner)
        inner = ANCHOR.sub("", inner).strip()
        inner = re.sub(r'<span class="permalink">.*?</span>', "", inner)
        text = text_of(inner)
        if anchor:
            name = anchor[1]
        elif given := re.search(r'id="([^"]+)"', attributes):
            name = given[1]
        else:
            name = base = re.sub(r"\W+", "-", text.lower()).strip("-") or "part"
            number = 2
            while name in used:
                name, number = f"{base}-{number}", number + 1
            used.add(name)
        page.headings.append(Heading(level, name, text))
        return (
            f'<h{level} id="{name}">{inner}<a class="here" href="#{name}" '
            f'aria-label="Link to: {escape(text)}"></a></h{level}>'
        )

    page.body = HEADING.sub(renumbered, page.body)
