"""Tests pages in a real browser, and tests that the browser sees faults of a page."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import markupsafe
import pytest
from selenium.webdriver.common.keys import Keys

from browser import PHONE, Browser, Page
from conftest import PROBE, Build
from ipclab import pages, results
from ipclab import report as ipclab_report
from ipclab.mutants import matrix, trials
from ipclab.report import page as report_page
from ipclab.trace import pictures

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
    assert browser.open(written(tmp_path, "")).errors == []  # of this page only


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
    assert page.scroll_width == 980  # the width of a page without a viewport
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


# --- the pages of ipclab ----------------------------------------------------------

HOSTILE = "<img src=x onerror=\"console.error('planted')\">"
STORY = f"""
hostile = {HOSTILE!r}
record(
    outcome="violates",
    reason="the data is wrong" + hostile,
    notes=[hostile],
    failures=[dict(role=hostile, step="handle", call="cudaIpcOpen", expected="a",
                   seen="b", message=hostile, file="a.cu", line=7)],
    roles=[dict(name=hostile, pid=7, ended="killed by SIGSEGV", last_step=None,
                last_call=None, output=hostile)],
    timeline=[dict(t_us=i, role=role, kind=kind, text=text)
              for i, (role, kind, text) in enumerate([
                  (hostile, "call", "cudaMalloc(&memory, bytes)"),
                  ("importer", "wait", hostile), ("importer", "failure", hostile)])],
    outcomes=[dict(table=hostile, input=hostile, outcome="crash", code="SIGSEGV")],
)
sys.exit(1)
"""
MODEL = {**PROBE, "backend": "model"}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"dark": True},
    {"width": PHONE},
    {"width": 820},
    {"printed": True},
]


def faults(browser: Browser, path: Path) -> list[str]:
    """Everything that is wrong with a page on every screen and on paper."""
    found: list[str] = []
    for settings in SETTINGS:
        page = browser.open(path, **settings)
        found += page.errors + page.broken_links + page.too_wide
    return found


def report(build: Build) -> Path:
    """The page of a run: a violation, a deviation, a test that does not apply here, and
    a lesson of another chapter.
    """
    build.probe({**PROBE, "driver": "580.5"})
    build.conformance(STORY)
    build.conformance(
        "violates(reason='another code')",
        name="Suite.Second",
        row="LMEM-02",
    )
    build.conformance(
        "record(outcome='not applicable', reason='no second GPU here')",
        name="Other.Absent",
        row="LIM-01",
    )
    build.sample("pass", lesson="30_vmm_fd")
    build.deviation(requirement="LMEM-02", test="Suite.Second")
    return build.run().folder / "report.html"


def kills(folder: Path) -> Path:
    """A kill matrix with every result, in a results folder."""
    results = list(trials.MEANING)
    rows = [f"LMEM-{i:02}" for i in range(len(results))]

    def cell(row: str, result: str) -> dict[str, Any]:
        return {
            "row": row,
            "result": result,
            "test": None,
            "verdict": "violates",
            "reason": HOSTILE,
        }

    def fault(name: str, result: str, **changes: Any) -> dict[str, Any]:
        return {
            "name": name,
            "kind": "named",
            "function": "cudaFree",
            "operator": None,
            "what": f"is wrong {HOSTILE}",
            "profile": None,
            "result": result,
            "wrong": result in trials.WRONG,
            "note": HOSTILE,
            "why": "",
            "left": 0,
            "tests": 1,
            "fired": 1,
            "cells": [],
            **changes,
        }

    document = {
        "version": matrix.VERSION,
        "suite": "conformance",
        "backend": "model",
        "machine": f"a machine {HOSTILE}",
        "made": "2027-01-01T00:00:00+00:00",
        "seconds": 1.5,
        "digest": "0",
        "partial": "only those that were named",
        "problems": [HOSTILE],
        "unsound": [
            {"ctest": "a", "profile": None, "verdict": "hung", "reason": HOSTILE}
        ],
        "baseline": 3,
        "unproved": ["LMEM-77"],
        "rows": [
            {"id": x, "statement": HOSTILE, "kind": "MUST", "lesson": f"{i % 2}0_x"}
            for i, x in enumerate(rows)
        ],
        "faults": [
            fault(
                f"fault-{i}",
                result,
                cells=[cell(rows[i], result)]
                + [cell(rows[0], trials.KILLED)] * (i == 1),
            )
            for i, result in enumerate(results)
        ]
        + [
            fault(
                f"cudaFree{i % 3}.way-{i}",
                result,
                kind="operator",
                function=f"cudaFree{i % 3}",
                operator=f"way-{i}",
            )
            for i, result in enumerate(results)
        ],
    }
    folder.mkdir(exist_ok=True)
    (folder / matrix.NAME).write_text(json.dumps(document))
    read = matrix.read(folder)
    assert read is not None
    (folder / matrix.PAGE).write_text(matrix.page(read))
    return folder / matrix.PAGE


def comparison(build: Build) -> Path:
    """The page of two runs that differ."""
    second = f"second = os.path.exists({str(build.root / 'second')!r})\n"
    build.conformance(f"{second}exec({STORY!r} if second else 'record()')")
    build.conformance("record()", name="Suite.Same")
    for name in ("old", "new"):
        build.ipclab("run", "--build", "build", "--results", name)
        (build.root / "second").touch()
    build.ipclab("compare", "old", "new", "--html", "out.html")
    return build.root / "out.html"


PAGES: dict[str, Callable[[Build], Path]] = {
    "report": report,
    "mutants": lambda build: kills(build.root / "kills"),
    "compare": comparison,
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_sound(browser: Browser, build: Build, name: str) -> None:
    path = PAGES[name](build)
    assert faults(browser, path) == []
    assert (
        browser.open(path).run("return performance.getEntriesByType('resource')") == []
    )


@pytest.mark.parametrize(
    ("planted", "seen"),
    [
        ('<a href="#gone">x</a>', "#gone"),
        ("<script>console.error('planted')</script>", "planted"),
        ("<div id='planted' style='width: 400px'>x</div>", "planted"),
    ],
)
def test_a_planted_fault_is_seen(
    browser: Browser, build: Build, planted: str, seen: str
) -> None:
    path = report(build)
    path.write_text(path.read_text().replace("<main>", f"<main>{planted}"))
    found = faults(browser, path)
    assert found
    assert all(seen in fault for fault in found)


def test_an_unescaped_role_name_is_seen(
    browser: Browser, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "escape", str)
    assert any("planted" in fault for fault in faults(browser, report(build)))


def test_unescaped_text_is_seen(browser: Browser, build: Build) -> None:
    path = report(build)
    page = path.read_text()
    assert str(markupsafe.escape(HOSTILE)) in page
    path.write_text(page.replace(str(markupsafe.escape(HOSTILE)), HOSTILE))
    assert any("planted" in fault for fault in faults(browser, path))


def test_a_failure_tells_its_story_unfolded(browser: Browser, build: Build) -> None:
    page = browser.open(report(build))
    assert page.text.count(HOSTILE) >= 6
    assert "cudaMalloc(&memory, bytes)" in page.run(
        "return document.querySelector('#failing ~ * details[open] svg').textContent"
    )
    assert "Chapter 3: Virtual memory management handles" in page.text
    assert "Source: the guide, LMEM-02" in page.text
    for text in ("580.0 to 580.9", "seen on two machines", "platform", "2999-12-31"):
        assert text in page.text


def test_a_reason_tells_no_macro_and_many_problems_are_folded(
    browser: Browser, build: Build
) -> None:
    macro = "Value of: ::ipclab::gives((f()), {})\n  Actual: false (f() gives X)"
    reason = f"expected Y, saw X: {macro}\nExpected: true"
    build.conformance(f"violates(reason={reason!r})", name="Suite.Gives", row="LMEM-02")
    folder = build.run().folder
    seen = results.read(folder)
    seen.run["problems"] = [f"Gone.Test{number}" for number in range(3)]
    (folder / "report.html").write_text(report_page(seen.run, seen.records, None))
    page = browser.open(folder / "report.html")
    assert "expected Y, saw X" in page.text and "gives" not in page.text
    assert "3 problems of the suite itself" in page.text
    assert "Gone.Test2" not in page.text and "Gone.Test2" in page.html


def test_a_run_in_which_all_fails_stays_small(browser: Browser, build: Build) -> None:
    """The first failures are unfolded. The picture of any other failure is unpacked
    when a reader opens the failure.
    """
    many = 3 * ipclab_report.AT_ONCE
    for number in range(many):
        build.conformance(STORY, name=f"Suite.N{number:02}")
    path = build.run("-j", "4").folder / "report.html"
    page = browser.open(path)
    drawn = "return document.querySelectorAll('details.more svg').length"
    assert page.run(drawn) == ipclab_report.AT_ONCE
    assert f"{many - ipclab_report.AT_ONCE} more" in page.text
    closed = "document.querySelector('details.more:not([open])')"
    page.run(f"{closed}.open = true")
    for _ in range(100):
        if page.run(drawn) > ipclab_report.AT_ONCE:
            break
        time.sleep(0.05)
    assert page.run(drawn) == ipclab_report.AT_ONCE + 1
    assert page.errors == []


# --- the filter -------------------------------------------------------------------


def shown(page: Page) -> list[str]:
    """The rows that a reader sees; the page must state their number."""
    rows: list[str] = page.run(
        "return [...document.querySelectorAll('tr[data-state]')]"
        ".filter((row) => !row.closest('[hidden]')).map((row) => row.id)"
    )
    told = page.run("return document.querySelector('output').value")
    assert told == f"{len(rows)} of 4 shown"
    return [row.removeprefix("conformance.01_legacy_memory.") for row in rows]


def test_the_filter_takes_words_by_keyboard(browser: Browser, build: Build) -> None:
    page = browser.open(report(build))
    assert len(shown(page)) == 4
    page.press("/", "second gpu")
    assert shown(page) == ["Other.Absent"]
    assert "30_vmm_fd" not in page.text
    page.press(Keys.ESCAPE)
    assert len(shown(page)) == 4
    page.press("no such words")
    assert shown(page) == []
    page.press(Keys.ENTER)  # sends nothing anywhere
    assert shown(page) == []
    assert page.errors == []


def test_the_address_keeps_what_was_looked_for(browser: Browser, build: Build) -> None:
    path = report(build)
    page = browser.open(path)
    page.press("/", "second gpu")
    page.press(Keys.TAB)
    assert shown(page) == ["Other.Absent"]
    kept = page.run("return location.href")
    assert "second" in kept
    assert shown(browser.open(kept)) == ["Other.Absent"]


def test_a_report_says_what_made_it_and_what_its_short_names_mean(
    browser: Browser, build: Build
) -> None:
    path = report(build)
    page = browser.open(path)
    for told in ("digest of run.json", "digest of records.jsonl", "the exporter, the"):
        assert told in page.text
    for name in pages.ABBREVIATIONS:
        assert name in page.text
    assert re.search(r"\d{4}-\d\d-\d\d, \d\d:\d\d UTC, in \d+ min", page.text)
    assert re.search(r"ipclab \d", page.text)


def test_what_was_found_is_in_sight(browser: Browser, build: Build) -> None:
    page = browser.open(f"{report(build).as_uri()}#machine", height=400)
    page.press("/", "second gpu")
    assert shown(page) == ["Other.Absent"]
    top, bottom, bar = page.run(
        "const row = document.querySelector('tr[data-state]:not([hidden])');"
        "const bar = document.querySelector('.filter');"
        "const place = row.getBoundingClientRect();"
        "return [place.top, place.bottom, bar.getBoundingClientRect().bottom]"
    )
    assert bar <= top < bottom <= 400


def test_the_filter_takes_verdicts_by_keyboard(browser: Browser, build: Build) -> None:
    page = browser.open(report(build))
    page.press(Keys.TAB, " ")  # violates
    assert shown(page) == ["Suite.Name"]
    page.press(Keys.TAB, Keys.TAB, Keys.ENTER)  # past deviates: not applicable
    assert shown(page) == ["Other.Absent", "Suite.Name"]
    page.press(Keys.SPACE)
    assert shown(page) == ["Suite.Name"]
    page.press(Keys.ESCAPE)
    assert len(shown(page)) == 4


def test_an_address_leads_to_its_row(browser: Browser, build: Build) -> None:
    path = report(build)
    page = browser.open(f"{path.as_uri()}#LMEM-02")
    at = (
        "return document.getElementById('conformance.01_legacy_memory.Suite.Second')"
        ".getBoundingClientRect().top"
    )
    page.press("/", "guide, lim")  # hides the row
    assert shown(page) == ["Other.Absent"]
    page.run("location.hash = ''")
    page.run("location.hash = 'LMEM-02'")
    page.run("return new Promise(requestAnimationFrame)")
    assert len(shown(page)) == 4
    assert 0 <= page.run(at) < 800


# --- light, dark, paper -----------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
def test_dark_is_dark_and_paper_is_white(
    browser: Browser, build: Build, name: str
) -> None:
    path = PAGES[name](build)

    def light(**settings: Any) -> list[int]:
        colours = browser.open(path, **settings).run(
            "const style = getComputedStyle(document.body);"
            "return [style.backgroundColor, style.color]"
            ".map((colour) => colour.match(/[0-9]+/g).slice(0, 3)"
            ".reduce((sum, part) => sum + Number(part) / 3, 0))"
        )
        return [int(colour) for colour in colours]

    paper, ink = light()
    assert (paper, ink < 60) == (255, True)
    paper, ink = light(dark=True)
    assert paper < 40
    assert ink > 200
    assert light(dark=True, printed=True) == [255, 0]


def printed(browser: Browser, path: Path, folder: Path) -> list[str]:
    """The text of each page of paper."""
    browser.open(path).pdf(folder / "out.pdf")
    text = subprocess.run(
        ["pdftotext", folder / "out.pdf", "-"], capture_output=True, check=True
    )
    return text.stdout.decode().split("\f")[:-1]


def test_every_sheet_of_a_model_run_says_so(
    browser: Browser, build: Build, tmp_path: Path
) -> None:
    build.probe(MODEL)
    for number in range(25):
        build.conformance("record()", name=f"Suite.N{number}")
    sheets = printed(browser, build.run().folder / "report.html", tmp_path)
    assert len(sheets) > 1
    assert all(pages.ON_MODEL in sheet for sheet in sheets)


def test_no_sheet_of_a_gpu_run_speaks_of_the_model(
    browser: Browser, build: Build, tmp_path: Path
) -> None:
    sheets = printed(browser, report(build), tmp_path)
    assert sheets
    assert not any("model" in sheet for sheet in sheets)


# --- the kill matrix --------------------------------------------------------------


def test_the_matrix_says_all_without_colour(browser: Browser, tmp_path: Path) -> None:
    page = browser.open(kills(tmp_path / "kills"))
    assert "not the whole matrix: only those that were named" in page.text
    assert "no fault is noticed by LMEM-77" in page.text
    for result, meaning in trials.MEANING.items():
        assert f" {result}" in page.text
        assert meaning in page.text
    marks = page.run(
        "return [...document.querySelectorAll('svg[role=img] .mark')].map((mark) => {"
        "const style = getComputedStyle(mark);"
        "const filled = style.fill === style.stroke;"
        "return [mark.textContent, mark.getAttribute('d') + filled]})"
    )
    assert len(marks) == 2 * len(trials.MEANING) + 1  # rows and operators
    assert f"fault-4, LMEM-04: {trials.SURVIVED}" in [title for title, _ in marks]
    looks = {title.partition(": ")[2]: look for title, look in marks}
    assert len(set(looks.values())) == len(trials.MEANING)


def test_a_name_of_the_picture_leads_to_its_fault(
    browser: Browser, tmp_path: Path
) -> None:
    page = browser.open(kills(tmp_path / "kills"), height=300)
    page.run("document.querySelector('svg a[href$=\"fault-fault-5\"]').focus()")
    page.press(Keys.ENTER)
    row = page.run(
        "const row = document.querySelector('tr:target');"
        "return [row.textContent, row.getBoundingClientRect().top]"
    )
    assert "fault-5" in row[0]
    assert 0 <= row[1] < 300


def test_the_report_has_the_matrix_that_lies_beside_it(
    browser: Browser, build: Build
) -> None:
    path = report(build)
    assert "Kill matrix" not in browser.open(path).text
    kills(path.parent)
    before = len(shown(browser.open(path)))
    assert build.ipclab("report", "out").returncode == 0
    page = browser.open(path)
    assert "Kill matrix" in page.text
    assert len(shown(page)) == before  # the filter does not count lines of the matrix
    assert faults(browser, path) == []
