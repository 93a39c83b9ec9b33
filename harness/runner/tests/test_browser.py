"""Pages in a real browser; and that the browser sees what is wrong with one."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from pathlib import Path

import pytest

from browser import PHONE, Browser

HEAD = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>t</title>'
    '<link rel="icon" href="data:,">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
)


def written(folder: Path, body: str, head: str = HEAD, name: str = "a.html") -> Path:
    path = folder / name
    path.write_text(head + body)
    return path


# --- the browser itself sees planted faults ---------------------------------------


def test_a_good_page_has_no_fault(browser: Browser, tmp_path: Path) -> None:
    written(tmp_path, '<p id="there">', name="b c.html")
    body = '<h2 id="x">x</h2><a href="#x">x</a><a href="b%20c.html#there">y</a>'
    page = browser.open(written(tmp_path, body), PHONE)
    assert (page.errors, page.broken_links, page.too_wide) == ([], [], [])
    assert page.scroll_width == PHONE
    assert page.text.startswith("x")


@pytest.mark.parametrize(
    "link",
    [
        '<a href="#gone">x</a>',
        '<a href="gone.html">x</a>',
        '<a href="b.html#gone">x</a>',
        '<img alt="" src="gone.png">',
    ],
)
def test_a_broken_link_is_seen(browser: Browser, tmp_path: Path, link: str) -> None:
    written(tmp_path, '<p id="there">', name="b.html")
    page = browser.open(written(tmp_path, link))
    assert len(page.broken_links) == 1
    assert "gone" in page.broken_links[0]


@pytest.mark.parametrize(
    "body",
    [
        "<script>console.error('planted')</script>",
        "<script>throw new Error('planted')</script>",
        "<script src='planted.js'></script>",
        "<img alt='' src='https://planted.example/a.png'>",
    ],
)
def test_a_console_error_is_seen(browser: Browser, tmp_path: Path, body: str) -> None:
    page = browser.open(written(tmp_path, body))
    assert any("planted" in error for error in page.errors)
    assert browser.open(written(tmp_path, "")).errors == []  # it was that page's


def test_a_page_wider_than_the_phone_is_seen(browser: Browser, tmp_path: Path) -> None:
    wide = '<div id="wide" style="width: 361px; height: 1px"></div>'
    page = browser.open(written(tmp_path, wide + "<p>text</p>"), PHONE)
    assert page.scroll_width > PHONE
    [element] = page.too_wide
    assert 'id="wide"' in element
    boxed = f'<div style="overflow-x: auto">{wide}</div>'
    assert browser.open(written(tmp_path, boxed), PHONE).too_wide == []


def test_a_page_that_ignores_phones_is_seen(browser: Browser, tmp_path: Path) -> None:
    page = browser.open(written(tmp_path, "<p>text", "<!doctype html>"), PHONE)
    assert page.scroll_width == 980  # what a phone takes for a page of old
    assert page.too_wide


def test_dark_and_print_reach_the_style(browser: Browser, tmp_path: Path) -> None:
    body = "<p>x</p>"
    style = (
        "<style>p { color: red } @media (prefers-color-scheme: dark) "
        "{ p { color: lime } } @media print { p { color: blue } }</style>"
    )
    path = written(tmp_path, style + body)
    colour = "return getComputedStyle(document.querySelector('p')).color"
    assert browser.open(path).run(colour) == "rgb(255, 0, 0)"
    assert browser.open(path, dark=True).run(colour) == "rgb(0, 255, 0)"
    assert browser.open(path, printed=True).run(colour) == "rgb(0, 0, 255)"
    assert browser.open(path).run(colour) == "rgb(255, 0, 0)"


def test_no_browser_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RuntimeError, match="run ci/setup --test"):
        Browser()
