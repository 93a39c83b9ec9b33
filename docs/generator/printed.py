"""The whole book on one page: for paper, and for `ci/docs --pdf`.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape

from generator.frame import Page
from generator.navigation import Book

LINK = re.compile(r'href="(?:(\w+)\.html)?(?:#([^"]*))?"')
# Not needed on paper: pages about the work on the project, with its headers.
LEFT_OUT = ("Work on it",)
OPENING = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>ipclab: the book</title>
<link rel="icon" href="icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="ipclab.css">
<style>
@page { size: A4; margin: 16mm 14mm; }
section.page { break-before: page; }
</style>
</head>
<body class="whole">
<main>
"""


def page(book: Book, pages: Mapping[str, Page], version: str) -> str:
    """The file; each page is a section, and links lead to places inside it."""
    parts = [part for part in book.parts if part.title not in LEFT_OUT]
    names = [name for part in parts for name in part.pages]
    contents = []
    for part in parts:
        title = escape(f"{part.number} {part.title}".strip())
        listed = "".join(
            f'<li><a href="#{name}">{escape(book.label(name))}</a></li>\n'
            for name in part.pages
        )
        contents.append(f"<li>{title}<ul>\n{listed}</ul></li>\n")
    sections = "".join(
        _section(pages[name], _title(book, pages[name]), set(names)) for name in names
    )
    return (
        f"{OPENING}<h1>CUDA IPC, lesson by lesson</h1>\n<p>ipclab {escape(version)}. "
        '<a href="index.html">To the pages</a></p>\n<nav aria-label="Contents">\n'
        f"<ul>\n{''.join(contents)}</ul>\n</nav>\n{sections}</main>\n</body>\n</html>\n"
    )


def _title(book: Book, page: Page) -> str:
    """The title with the lesson's number, which other pages use as its name."""
    number = page.name.removeprefix("lesson_") if page.name in book.lessons else ""
    return f"{number} {page.title}".strip()


def _section(page: Page, title: str, inside: Iterable[str]) -> str:
    body = re.sub(r'\bid="([^"]+)"', rf'id="{page.name}--\1"', page.body)
    body = LINK.sub(lambda link: _led(link, page.name, inside), body)
    body = body.replace("<details>", "<details open>")
    # Each heading goes one level down, because the title of the book is the first.
    body = re.sub(r"<(/?)h([2-5])\b", lambda x: f"<{x[1]}h{int(x[2]) + 1}", body)
    return (
        f'<section class="page" id="{page.name}">\n<h2>{escape(title)}</h2>\n'
        f"{body}\n</section>\n"
    )


def _led(link: re.Match[str], own: str, inside: Iterable[str]) -> str:
    page, fragment = link[1] or own, link[2]
    if page not in inside:
        return link[0]
    return f'href="#{page}--{fragment}"' if fragment else f'href="#{page}"'
