"""What a reader sees of the site, in a real browser; each fault is planted once.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from browser import PHONE, Browser, Page
from conftest import Site
from generator.chapters import page_of

Lessons = list[dict[str, Any]]

TREE = """
return [...document.querySelectorAll("#nav-tree-contents a")].map(
  (a) => (a.getAttribute("href") || "").split("#")[0]);
"""
# Of each text and box of the diagram: its colour, and whether it has a size.
PICTURE = """
const svg = document.querySelector("figure.sequence svg");
if (!svg) return null;
const text = getComputedStyle(svg.querySelector("text.head"));
const page = getComputedStyle(document.querySelector("figure.sequence"));
const rgb = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number);
const paper = (() => {
  for (let at = svg; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if (!/, 0\\)$|transparent/.test(colour)) return rgb(colour);
  }
  return [255, 255, 255];
})();
const box = svg.getBoundingClientRect();
return {width: box.width, height: box.height, ink: rgb(text.fill), paper,
        notes: svg.querySelectorAll("rect.call").length};
"""
CUT = """
return [...document.querySelectorAll("figure.sequence rect.call + text")]
  .filter((text) => text.getBBox().width > text.previousSibling.getBBox().width)
  .map((text) => text.textContent);
"""
# The pane that Doxygen puts pages into scrolls by itself, so the window does not
# show that a page is too wide.
TOO_WIDE = """
const pane = document.getElementById("doc-content");
if (pane.scrollWidth <= pane.clientWidth) return [];
const scrolls = (at) => {
  for (at = at.parentElement; at !== pane; at = at.parentElement)
    if (getComputedStyle(at).overflowX !== "visible") return true;
  return false;
};
const right = pane.getBoundingClientRect().right;
return [`the page is ${pane.scrollWidth} pixels wide`,
  ...[...pane.querySelectorAll("*")].filter((element) =>
    element.getBoundingClientRect().right > right + 1 && !scrolls(element))
    .map((element) => element.outerHTML.slice(0, 120)).slice(0, 5)];
"""
TYPE = """
const box = document.getElementById("MSearchField");
searchBox.OnSearchFieldFocus(true);
box.value = arguments[0];
searchBox.Search();
"""
HITS = """
const frame = document.getElementById("MSearchResults").contentDocument;
if (!frame) return [];
return [...frame.querySelectorAll(".SRResult")]
  .filter((hit) => hit.style.display !== "none" && hit.offsetParent !== null)
  .map((hit) => (hit.querySelector("a") || {}).innerText);
"""


def in_tree(page: Page) -> list[str]:
    """The pages that the tree on the left leads to; it is there a moment later."""
    for _ in range(50):
        found = [str(x) for x in page.run(TREE)]
        if any(x.startswith("lesson_") for x in found):
            return found
        time.sleep(0.1)
    return found


def missing_in_tree(browser: Browser, site: Site, lessons: Lessons) -> list[str]:
    """Lessons that the tree lacks, or that stand in another order."""
    page = browser.open(site.folder / "lesson_01.html")
    found = [x for x in in_tree(page) if x.startswith("lesson_")]
    wanted = [f"{page_of(x['lesson'])}.html" for x in lessons]
    return [] if found == wanted else [f"{found} instead of {wanted}"]


def faults(browser: Browser, path: Path, width: int) -> list[str]:
    """Console errors, and boxes wider than the screen."""
    page = browser.open(path, width=width)
    found = [*page.errors, *page.too_wide, *page.run(TOO_WIDE)]
    return [f"{path.name} at {width} pixels: {fault}" for fault in found]


def contrast(seen: dict[str, Any]) -> int:
    """How far ink and paper are apart, of 765."""
    pairs = zip(seen["ink"], seen["paper"], strict=True)
    return int(sum(abs(a - b) for a, b in pairs))


def hits(page: Page, text: str) -> list[str]:
    """What the search offers for a text."""
    page.run(TYPE, text)
    found: list[str] = []
    for _ in range(40):
        time.sleep(0.1)
        found = [str(x) for x in page.run(HITS)]
        if found:
            break
    return found


def test_the_tree_holds_every_lesson_in_order(
    browser: Browser, site: Site, lessons: Lessons
) -> None:
    assert not missing_in_tree(browser, site, lessons)


def test_no_page_has_a_fault_on_a_phone(browser: Browser, site: Site) -> None:
    found = [fault for page in site.pages for fault in faults(browser, page, PHONE)]
    assert not found, "\n".join(found)


def test_no_lesson_has_a_fault_on_a_desk(
    browser: Browser, site: Site, lessons: Lessons
) -> None:
    pages = [site.folder / f"{page_of(x['lesson'])}.html" for x in lessons]
    found = [fault for page in pages for fault in faults(browser, page, 1280)]
    assert not found, "\n".join(found)


def test_a_diagram_is_there_by_day_by_night_and_on_paper(
    browser: Browser, site: Site, lessons: Lessons
) -> None:
    for lesson in lessons:
        path = site.folder / f"{page_of(lesson['lesson'])}.html"
        for view in ({}, {"dark": True}, {"printed": True, "dark": True}):
            page = browser.open(path, **view)
            seen = page.run(PICTURE)
            assert seen, f"{path.name}: no diagram"
            if "printed" in view:
                seen["paper"] = [255, 255, 255]
            assert seen["width"] > 200 and seen["height"] > 100, path.name
            assert seen["notes"] > 1, path.name
            assert contrast(seen) > 300, f"{path.name} {view}: {seen}"
            assert not page.run(CUT), f"{path.name}: text wider than its box"


def test_the_toggle_changes_the_colours_of_a_diagram(
    browser: Browser, site: Site
) -> None:
    page = browser.open(site.folder / "lesson_01.html")
    before = page.run(PICTURE)["ink"]
    page.run("document.querySelector('doxygen-awesome-dark-mode-toggle').click()")
    assert page.run(PICTURE)["ink"] != before
    page.run("localStorage.clear()")


def test_the_search_finds_each_lesson_by_its_key_word(
    browser: Browser,
    site: Site,
    lessons: Lessons,
    serve: Callable[[Site], str],
) -> None:
    page = browser.open(f"{serve(site)}/index.html")
    for lesson in lessons:
        title = lesson["title"]
        key = title.partition(":")[0]
        assert title in hits(page, key), f"searched for {key!r}: {hits(page, key)}"
    assert not page.errors
    assert not hits(page, "no such thing")


def test_the_map_leads_to_every_lesson(
    browser: Browser, site: Site, lessons: Lessons
) -> None:
    page = browser.open(site.folder / "index.html")
    leads = page.run(
        "return [...document.querySelectorAll('figure.map a')]"
        ".map((a) => a.href.baseVal)"
    )
    assert sorted(leads) == [f"{page_of(x['lesson'])}.html" for x in lessons]


# --- planted faults ---------------------------------------------------------


def test_a_lesson_out_of_the_tree_is_noticed(
    browser: Browser, copy: Site, lessons: Lessons
) -> None:
    copy.change("lessons.js", '"lesson_05.html"', '"lesson_06.html"')
    assert missing_in_tree(browser, copy, lessons)


@pytest.mark.parametrize(
    ("planted", "told"),
    [
        ("<script>no_such_function()</script>", "no_such_function"),
        ('<div style="width: 2000px">x</div>', "2000px"),
    ],
)
def test_a_fault_of_a_page_is_noticed(
    browser: Browser, copy: Site, planted: str, told: str
) -> None:
    copy.change("lesson_01.html", '<div class="textblock">', f"{planted}<div>")
    found = faults(browser, copy.folder / "lesson_01.html", PHONE)
    assert found and told in "".join(found)


def test_a_diagram_without_colours_of_the_night_is_noticed(
    browser: Browser, copy: Site
) -> None:
    copy.change("ipclab.css", "fill: var(--page-foreground-color)", "fill: #000")
    page = browser.open(copy.folder / "lesson_01.html", dark=True)
    assert contrast(page.run(PICTURE)) < 300


def test_a_missing_diagram_is_noticed(browser: Browser, copy: Site) -> None:
    copy.change("lesson_01.html", '<figure class="sequence">', "<figure>")
    assert browser.open(copy.folder / "lesson_01.html").run(PICTURE) is None


def test_a_text_that_leaves_its_box_is_noticed(browser: Browser, copy: Site) -> None:
    copy.change("lesson_01.html", ">cudaMalloc</text>", f">{'c' * 60}</text>")
    assert browser.open(copy.folder / "lesson_01.html").run(CUT) == ["c" * 60]


def test_a_lesson_that_the_search_lacks_is_noticed(
    browser: Browser, copy: Site, serve: Callable[[Site], str]
) -> None:
    for file in (copy.folder / "search").glob("*.js"):
        file.write_text(file.read_text().replace("Legacy memory", "Nothing"))
    page = browser.open(f"{serve(copy)}/index.html")
    assert not [
        x for x in hits(page, "Legacy memory") if x.startswith("Legacy memory:")
    ]
