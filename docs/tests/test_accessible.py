"""Checks pages of every kind against WCAG AA with axe-core, and plants five faults.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from browser import PHONE, Browser
from conftest import TOP, Site

AXE = TOP / ".venv/axe/axe_playwright_python/axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
COLOURS = ["color-contrast", "link-in-text-block"]  # all that the dark mode can break
RUN = """
return axe.run(document, {
  runOnly: arguments[0],
  resultTypes: ["violations"],
}).then((result) => result.violations.flatMap((one) => one.nodes.slice(0, 3).map(
  (node) => `${one.id}: ${node.target}: ${node.any.concat(node.all, node.none)
    .map((x) => x.message).join("; ").slice(0, 160)}`)));
"""
# Tables, their rows and lines of code are alike, and axe-core needs minutes for
# thousands of them.
SHORTEN = """
for (const [parts, most] of [[".table", 20], ["tr", 150], ["div.line", 150]])
  [...document.querySelectorAll(parts)].slice(most).forEach((one) => one.remove());
"""


@pytest.fixture(scope="session")
def axe() -> str:
    """The checker, a script."""
    assert AXE.exists(), "no axe-core: run ci/setup --test"
    return AXE.read_text()


def violations(
    browser: Browser, axe: str, path: Path, width: int = 1280, dark: bool = False
) -> list[str]:
    """What axe-core finds wrong with a page (all of it with IPCLAB_NIGHTLY=1)."""
    page = browser.open(path, width=width, dark=dark)
    if os.environ.get("IPCLAB_NIGHTLY") != "1":
        page.run(SHORTEN)
    page.run(axe)
    return [f"{path.name}: {x}" for x in page.run(RUN, COLOURS if dark else RULES)]


def whole(site: Site) -> list[Path]:
    """The tested pages without book.html, and one file of slides."""
    pages = [path for path in site.some if path.name != "book.html"]
    return pages + site.slides[:1]


def test_no_page_keeps_anybody_out(browser: Browser, axe: str, site: Site) -> None:
    found = [x for path in whole(site) for x in violations(browser, axe, path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(("width", "dark"), [(1280, True), (PHONE, False)])
def test_no_page_does_in_the_dark_or_on_a_phone(
    browser: Browser, axe: str, site: Site, width: int, dark: bool
) -> None:
    # axe-core is slow, and all pages have one style: half of them in the dark, the
    # others on a phone.
    pages = whole(site)
    if os.environ.get("IPCLAB_NIGHTLY") != "1":
        pages = pages[int(dark) :: 2]
    found = [x for p in pages for x in violations(browser, axe, p, width, dark)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("planted", "told"),
    [
        ('<p style="color: #aaa; background: #fff">pale</p>', "color-contrast"),
        ('<img src="icon.svg">', "image-alt"),
        ("<h5>a heading too deep</h5>", "heading-order"),
        ('<button type="button"></button>', "button-name"),
        ('<a href="index.html"></a>', "link-name"),
    ],
)
def test_a_fault_is_noticed(
    browser: Browser, axe: str, copy: Site, planted: str, told: str
) -> None:
    copy.change("glossary.html", "</h1>", f"</h1>{planted}")
    found = violations(browser, axe, copy.folder / "glossary.html")
    assert any(told in x for x in found), found
    assert not violations(browser, axe, copy.folder / "choose.html")


def test_pale_text_in_the_dark_is_noticed(
    browser: Browser, axe: str, copy: Site
) -> None:
    pale = "@media (prefers-color-scheme: dark) { .pale { color: #333 } }"
    planted = f'<style>{pale}</style><p class="pale" style="background: #222">pale</p>'
    copy.change("glossary.html", "</h1>", f"</h1>{planted}")
    found = violations(browser, axe, copy.folder / "glossary.html", dark=True)
    assert any("color-contrast" in x for x in found), found
