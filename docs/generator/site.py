"""Makes the book from what Doxygen wrote.

    python -m generator.site --lessons lessons.json --version 0.1 GENERATED HTML

Each page gets the menu, links to the previous and next page, and entries in the index
that the search reads. Files that no page needs are removed.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from generator import (
    calls,
    dictionary,
    frame,
    lesson_page,
    links,
    navigation,
    printed,
    search,
    web,
)
from generator.chapters import minutes_of, page_of
from ipclab import findings

TOP = Path(__file__).resolve().parents[2]
THEME = TOP / "docs/theme"
ASSETS = ("ipclab.css", "ipclab.js", "search.js", "steps.js", "icon.svg", "preview.png")
# Pages of Doxygen that only repeat the menu.
LISTS = re.compile(r"dir_|pages$|modules$|.*-members$|files$|globals|functions")
CRASH = "segfault SIGSEGV"  # what people call a segmentation fault
LESSON = re.compile(r"lesson_(\d\d)$")


def main() -> None:
    """Rewrite a folder of Doxygen's pages."""
    parser = argparse.ArgumentParser(prog="generator.site")
    parser.add_argument("--lessons", type=Path, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("generated", type=Path)
    parser.add_argument("html", type=Path)
    args = parser.parse_args()
    lessons = json.loads(args.lessons.read_text())
    make(lessons, args.version, args.generated, args.html)


def make(
    lessons: list[dict[str, Any]], version: str, generated: Path, html: Path
) -> None:
    """Frame all pages of `html`; `generated` has the tag file and files to copy."""
    known = links.references(generated / "cuda.tag")
    raw = {path.stem: path.read_text() for path in sorted(html.glob("*.html"))}
    found = {
        name: page
        for name, text in raw.items()
        if not LISTS.match(name) and (page := frame.taken(name, text, known))
    }
    order = {page_of(x["lesson"]): x for x in lessons}
    for name, lesson in order.items():
        page = lesson_page.completed(found[name], lesson)
        listed = found["lessons"]
        listed.body = listed.body.replace(minutes_of(name), str(page.minutes))
    book = navigation.book({x: page.title for x, page in found.items()}, lessons)
    template = _environment().get_template("page.html.j2")
    shutil.rmtree(html)
    html.mkdir()
    where = web.place(TOP / "docs/site.json")
    for page in found.values():
        page.body = _live(page.body, found)
        text = framed(template, book, page, version, where)
        (html / page.file).write_text(text)
    lost = web.not_found()
    text = web.from_everywhere(framed(template, book, lost, version, where), where)
    (html / lost.file).write_text(text)
    (html / web.FEED).write_text(web.feed(where, findings.read(TOP)))
    if where.address:
        names = [page.file for page in found.values()]
        (html / "sitemap.xml").write_text(web.site_map(where, names))
    (html / "book.html").write_text(printed.page(book, found, version))
    keywords = json.loads((TOP / "docs/search.json").read_text())["pages"]
    for place, said in dictionary.words().items():
        keywords[place] = f"{said} {keywords.get(place, '')}"
    for call, folder in calls.lesson_of(TOP, lessons).items():
        keywords[page_of(folder)] = f"{keywords.get(page_of(folder), '')} {call}"
    for finding in findings.read(TOP):
        if finding.severity == "crash":
            keywords[f"finding_{finding.number:02}"] = CRASH
    (html / "index.js").write_text(search.index(book, found, keywords))
    for asset in ASSETS:
        shutil.copy(THEME / asset, html)
    shutil.copytree(generated / "files", html, dirs_exist_ok=True)


def framed(
    template: jinja2.Template,
    book: navigation.Book,
    page: frame.Page,
    version: str,
    where: web.Place,
) -> str:
    """The whole file of a page."""
    part = book.part_of(page.name)
    group = book.under.get(page.name)
    crumbs: list[tuple[str, str]] = []
    if page.name != "index":
        if part is not None and part.title != book.label(page.name):
            title = f"{part.number} {part.title}".strip()
            crumbs.append((title, "lessons" if part.number else ""))
        if group:
            crumbs.append((book.label(group), group))
        crumbs.append((book.label(page.name), ""))
    before, after = book.around(page.name)
    number = LESSON.match(page.name)
    at = book.lessons.index(page.name) + 1 if page.name in book.lessons else 0
    shown: dict[str, Any] = {
        **vars(page),
        "title": page.title,
        "number": number[1] if number else "",
        "kind": "lesson" if number else page.name.partition("_")[0],
        "description": web.description(page.body),
    }
    return template.render(
        book=book,
        page=shown,
        current=group or page.name,
        here=part,
        sections=[] if group else [x for x in page.headings if x.level == 2],
        crumbs=crumbs,
        progress=(at, len(book.lessons)) if at else None,
        before=before,
        after=after,
        version=version,
        where=where,
        feed=web.FEED,
    )


def _live(body: str, found: dict[str, frame.Page]) -> str:
    """The body in which links to pages that do not exist are only text."""

    def kept(link: re.Match[str]) -> str:
        return link[0] if link[1] in found else link[2]

    return re.sub(
        r'<a class="el(?:Ref)?" href="([\w]+)\.html[^"]*"[^>]*>(.*?)</a>',
        kept,
        body,
        flags=re.S,
    )


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(THEME),
        autoescape=jinja2.select_autoescape(default=True, default_for_string=True),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = lambda text: markupsafe.Markup(
        frame.breakable(str(markupsafe.escape(text)))
    )
    environment.filters["file"] = lambda name: f"{name}.html"
    return environment


if __name__ == "__main__":
    main()
