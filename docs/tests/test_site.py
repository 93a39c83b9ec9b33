"""What a reader sees on the site, in a real browser. Planted faults must be noticed.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import html
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from browser import PHONE, Browser, Page
from conftest import TOP, Site
from generator import frame
from generator.chapters import page_of
from ipclab import explain

Lessons = list[dict[str, Any]]
# What newcomers ask, the pages with the answer, and a pattern in these pages.
QUESTIONS = json.loads((Path(__file__).parent / "questions.json").read_text())
WIDTHS = (1440, 1280, 820, PHONE)

MENU = """
return [...document.querySelectorAll("#menu a")].map(
  (a) => a.getAttribute("href").split("#")[0]);
"""
TYPE = """
const box = document.getElementById("search");
document.getElementById("hits").hidden = true;
box.value = arguments[0];
box.dispatchEvent(new Event("input"));
"""
HITS = """
return [...document.querySelectorAll("#hits a")].map((a) => a.getAttribute("href"));
"""
# Steps of a picture that do not show the code of each line that they name.
STEPS_WITHOUT_CODE = """
const next = document.querySelector("[aria-label='One step on']");
const without = [];
for (const step of document.querySelectorAll("figure.steps .step")) {
  const shown = document.querySelectorAll("figure.steps .lines pre .now").length;
  const said = (step.dataset.lines || "").split(" ").filter(Boolean).length;
  if (shown !== said) without.push(step.dataset.told);
  next.click();
}
return without;
"""
# For each panel of code: the distance of each line from the margin.
PANELS = """
return [...document.querySelectorAll("figure.steps .lines pre")].map((pre) =>
  [...pre.children].map((x) => x.textContent).filter((x) => x.trim())
    .map((x) => x.search(/\\S/)));
"""
NAME_OF_MEMORY = """
return document.querySelector("svg.memory text.block").getBoundingClientRect().left;
"""
# Elements so narrow that a word is broken into single letters.
CLIPPED = """
const kinds = "main td, main th, main p, main li, main h1, main h2";
return [...document.querySelectorAll(kinds)]
  .map((element) => [element, element.getBoundingClientRect()])
  .filter(([element, box]) => box.width > 0 && box.width < 34 && box.height > 60 &&
    element.innerText.split(/\\s+/).some((word) => word.length >= 4))
  .map(([element, box]) => `${box.width} pixels for: ${element.innerText.slice(0, 60)}`)
  .slice(0, 5);
"""
# Words that are broken inside, although each has a place to break; declarations of
# the C++ reference are left out.
BROKEN = """
const found = [];
const kinds = "main :is(td, th, li, p, h1, h2, h3), #menu a, nav a";
for (const element of document.querySelectorAll(kinds)) {
  const style = getComputedStyle(element);
  const apart = element.closest("pre, svg, .memberdecls, .memproto");
  if (apart || !element.getClientRects().length) continue;
  const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode;
    for (const word of text.data.matchAll(/[\\p{L}\\d_]{4,}/gu)) {
      const range = document.createRange();
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      const tops = [...range.getClientRects()].filter((x) => x.width > 0)
        .map((x) => Math.round(x.top));
      if (Math.max(...tops) - Math.min(...tops) > 4) found.push(word[0]);
    }
  }
}
return [...new Set(found)].slice(0, 8);
"""
# The size of the diagram, the colours of its text and of the paper, and the number of
# its boxes.
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
# Texts of the map that a line crosses.
CROSSED = """
const texts = [...document.querySelectorAll("figure.map .node text")]
  .map((text) => [text.textContent, text.getBBox()]);
const crossed = new Set();
for (const line of document.querySelectorAll("figure.map .edge path")) {
  for (let at = 0; at <= line.getTotalLength(); at += 2) {
    const {x, y} = line.getPointAtLength(at);
    for (const [text, box] of texts)
      if (x > box.x && x < box.x + box.width && y > box.y && y < box.y + box.height)
        crossed.add(text);
  }
}
return [...crossed];
"""
# What the buttons of programs copy to the clipboard.
COPIED = """
const copied = [];
Object.defineProperty(navigator, "clipboard",
  {value: {writeText: async (text) => copied.push(text)}});
for (const button of document.querySelectorAll("main div.code > .copy-button"))
  button.click();
return copied;
"""
CUT = """
return [...document.querySelectorAll("figure.sequence svg:not(.memory) rect + text")]
  .filter((text) => text.getBBox().width > text.previousElementSibling.getBBox().width)
  .map((text) => text.textContent);
"""


def in_menu(page: Page) -> list[str]:
    """The pages that the menu leads to, in its order."""
    return [str(x) for x in page.run(MENU) if x]


def missing_in_menu(browser: Browser, site: Site, lessons: Lessons) -> list[str]:
    """Lessons that are missing in the menu or are in the wrong order."""
    page = browser.open(site.folder / "index.html")
    found = [x for x in in_menu(page) if x.startswith("lesson_")]
    wanted = [f"{page_of(x['lesson'])}.html" for x in lessons]
    return [] if found == wanted else [f"{found} instead of {wanted}"]


def faults(
    browser: Browser, path: Path, widths: Sequence[int], dark: bool = False
) -> list[str]:
    """Console errors, and at each width boxes wider than the screen, columns too narrow
    for a word, words that break inside. The page is loaded at the first width.
    """
    page = browser.open(path, width=widths[0], dark=dark)
    found = [f"{path.name}: {error}" for error in page.errors]
    for width in widths:
        page.show(width, dark=dark)
        wrong = [*page.too_wide, *page.run(CLIPPED), *page.run(BROKEN)]
        found += [f"{path.name} at {width} pixels: {fault}" for fault in wrong]
    return found


def contrast(seen: dict[str, Any]) -> int:
    """The difference between the colours of ink and paper, at most 765."""
    pairs = zip(seen["ink"], seen["paper"], strict=True)
    return int(sum(abs(a - b) for a, b in pairs))


def hits(page: Page, text: str) -> list[str]:
    """The addresses that the search offers for a text, best first."""
    page.run("document.getElementById('search').focus()")
    for _ in range(200):
        page.run(TYPE, text)
        if page.run("return !document.getElementById('hits').hidden"):
            break
        time.sleep(0.05)
    return [str(x) for x in page.run(HITS)]


def test_the_menu_holds_every_lesson_in_order(
    browser: Browser, site: Site, lessons: Lessons
) -> None:
    assert not missing_in_menu(browser, site, lessons)


def test_every_page_is_in_the_menu_or_below_one_that_is(
    browser: Browser, site: Site
) -> None:
    menu = set(in_menu(browser.open(site.folder / "index.html")))
    below = ("rule_", "finding_", "class", "struct", "namespace")
    for path in site.pages:
        if path.name == "404.html":
            continue  # a server shows it for wrong addresses
        if not path.name.startswith(below) and not path.stem.endswith("_8h"):
            assert path.name in menu, path.name


def test_no_page_has_a_fault_on_a_phone(browser: Browser, site: Site) -> None:
    pages = site.some + site.slides[:1]
    found = [x for page in pages for x in faults(browser, page, [PHONE])]
    assert not found, "\n".join(found)


def test_no_page_has_a_fault_in_the_dark(browser: Browser, site: Site) -> None:
    found = [x for path in site.some for x in faults(browser, path, WIDTHS, dark=True)]
    assert not found, "\n".join(found)


def test_a_lesson_leads_to_the_one_before_and_the_one_after(
    site: Site, lessons: Lessons
) -> None:
    names = [page_of(x["lesson"]) for x in lessons]
    for before, name, after in zip(names, names[1:], names[2:], strict=False):
        page = site.text(f"{name}.html")
        assert f'rel="prev" href="{before}.html"' in page
        assert f'rel="next" href="{after}.html"' in page


def test_the_menu_of_a_phone_opens_and_leads(browser: Browser, site: Site) -> None:
    page = browser.open(site.folder / "lesson_01.html", width=PHONE)
    shown = "return getComputedStyle(document.getElementById('menu')).display"
    button = "document.getElementById('menu-button')"
    assert page.run(shown) == "none"
    page.run(f"{button}.click()")
    assert page.run(shown) == "block"
    assert page.run(f"return {button}.getAttribute('aria-expanded')") == "true"
    on_page = "return document.querySelector('#menu .sections').innerText"
    assert "What goes wrong" in page.run(on_page)


def test_a_diagram_is_there_by_day_by_night_and_on_paper(
    browser: Browser, site: Site, lessons: Lessons
) -> None:
    for lesson in lessons:
        path = site.folder / f"{page_of(lesson['lesson'])}.html"
        page = browser.open(path)
        for view in ({}, {"dark": True}, {"printed": True, "dark": True}):
            page.show(**view)
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
    page.run("document.getElementById('theme-button').click()")
    assert page.run(PICTURE)["ink"] != before
    page.run("localStorage.clear()")


def test_the_search_finds_each_lesson_by_its_key_word(
    browser: Browser, site: Site, lessons: Lessons
) -> None:
    """The site is opened from a folder, without a server."""
    page = browser.open(site.folder / "index.html")
    for lesson in lessons:
        key = lesson["title"].partition(":")[0]
        found = [x.partition("#")[0] for x in hits(page, key)]
        assert f"{page_of(lesson['lesson'])}.html" in found[:3], (key, found)
    assert not page.errors
    assert not hits(page, "xqzwv")


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("201", "errors.html#error_cudaErrorDeviceUninitialized"),
        ("LMEM-08", "rule_LMEM_08.html"),
        ("cudaErrorMapBufferObjectFailed", "errors.html#error_cudaErrorMapB"),
        ("cudaIpcOpenMemHandel", "calls.html#call_cudaIpcOpenMemHandle"),
        ("cudaIpcOpenMemHandle", "calls.html#call_cudaIpcOpenMemHandle"),
        ("doctor", "doctor.html"),
        ("granularity", "glossary.html"),
        ("what is a granule", "glossary.html"),
        ("invalid device context", "errors.html#error_cudaErrorDeviceUninit"),
        ("error 999", "errors.html#error_cudaErrorUnknown"),
        ("segfault", "errors.html#error_cudaErrorIllegalAddress"),
        ("unified memory", "lesson_20.html"),
        ("numpy", "lesson_71.html"),
        ("python", "lesson_71.html"),
        ("bandwidth", "lesson_73.html"),
        ("performance", "lesson_73.html"),
        ("latency", "lesson_73.html"),
        ("double free", "lesson_03.html"),
        ("two users", "lesson_75.html"),
        ("cuda ipc event", "lesson_10.html"),
        ("debug", "trace.html"),
        ("ROCm", "glossary.html"),
        ("cupy", "pain_jax.html"),
        ("kubernets", "pain_containers.html"),
        ("MIG", "glossary.html"),
        ("fork", "five.html"),
        ("spawn", "five.html"),
        ("leak", "lesson_32.html"),
        ("stale", "lesson_02.html"),
        ("docker", "pain_containers.html"),
        ("container", "lesson_61.html"),
        ("crash", "lesson_6"),
        ("cudaError", "errors.html"),
        ("jetson", "pain_wsl_jetson.html"),
        ("cudaIpcOpenMemHandle returns 201", "errors.html#error_cudaErrorDeviceUninit"),
        ("ring buffer", "lesson_74.html"),
        ("copy between two gpus", "lesson_07.html"),
        ("measure time with an ipc event", "lesson_12.html"),
        ("segfault in cudaMemPoolDestroy", "finding_0"),
        ("fault injection", "runner.html#runner_mutants"),
        ("vulnerability", "security.html"),
        ("add a new rule", "contributing.html"),
        ("verdict", "results.html"),
        ("install", "index.html"),
        ("exporter", "glossary.html"),
        ("importer", "glossary.html"),
        ("offset", "lesson_02.html"),
        ("timeout", "pain_hang.html"),
        ("stale handle", "lesson_02.html"),
        ("mps", "lesson_64.html"),
        ("broker", "lesson_65.html"),
        ("teacher", "workshop.html"),
        ("license", "index.html"),
        ("who has to free the memory", "cheat.html"),
        ("kill -9 importer", "lesson_62.html"),
        ("cudaMemPoolExportToShareableHandle example", "lesson_50.html"),
    ],
)
def test_the_search_leads_to_what_was_typed(
    browser: Browser, site: Site, typed: str, first: str
) -> None:
    found = hits(browser.open(site.folder / "lesson_01.html"), typed)
    assert found and found[0].startswith(first), found


@pytest.fixture(scope="module")
def answers(browser: Browser, site: Site) -> dict[str, list[str]]:
    """What the search offers for each question, typed one after the other."""
    page = browser.open(site.folder / "index.html")
    return {case["asked"]: hits(page, case["asked"]) for case in QUESTIONS}


@pytest.mark.parametrize("case", QUESTIONS, ids=lambda case: str(case["asked"]))
def test_a_question_of_a_newcomer_is_answered_by_the_first_hit(
    site: Site, case: dict[str, Any], answers: dict[str, list[str]]
) -> None:
    found = answers[case["asked"]]
    assert found, "nothing found"
    first = found[0].partition("#")[0]
    assert first.removesuffix(".html") in case["pages"], found
    page = site.text(first)
    read = html.unescape(re.sub("<[^>]*>", "", page[page.index("<main") :]))
    assert re.search(case["answer"], read)


def test_a_hit_has_a_line_of_context_with_the_word_marked(
    browser: Browser, site: Site
) -> None:
    page = browser.open(site.folder / "index.html")
    assert hits(page, "granularity")
    marked = page.run("return document.querySelector('#hits .context mark').innerText")
    assert marked.lower().startswith("granularit")


def test_the_copy_button_takes_the_program_as_it_is(
    browser: Browser, site: Site, lessons: Lessons
) -> None:
    source = (TOP / "samples/06_contexts_and_apis/contexts_and_apis.cu").read_text()
    page = browser.open(site.folder / "lesson_06.html")
    [first, *_] = page.run(COPIED)
    assert "cuIpcGetMemHandle" in first and first in source
    assert not page.run("return document.querySelectorAll('a .copy-button').length")


def test_the_commands_of_a_lesson_can_be_copied_with_its_source_named(
    browser: Browser, site: Site, lessons: Lessons
) -> None:
    """A command is copied as it is typed, also where the page breaks it."""
    commands = (
        "return [...document.querySelectorAll('main .facts .copy-button')].map("
        "(x) => [x.parentElement.dataset.copy, getComputedStyle(x).opacity])"
    )
    for lesson in lessons[:: len(lessons) // 5]:
        path = f"samples/{lesson['lesson']}/{lesson['lesson'][3:]}.cu"
        page = browser.open(site.folder / f"{page_of(lesson['lesson'])}.html")
        [[run, _], [build, seen]] = page.run(commands)
        assert run == f"ci/ipclab sample {lesson['lesson'][:2]}"
        assert build.startswith("nvcc ") and build.endswith(path), build
        assert seen == "1"
        assert path in page.text
        link = f"main .facts a[href='{Path(path).name}'][download]"
        assert page.run(f'return document.querySelector("{link}") !== null')
        copy = site.folder / Path(path).name
        assert copy.read_text() == (TOP / path).read_text()


def test_paper_has_the_answers(browser: Browser, site: Site) -> None:
    page = browser.open(site.folder / "lesson_01.html", printed=True)
    folded = "return document.querySelectorAll('main details:not([open])').length"
    assert page.run(folded)
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert not page.run(folded)
    kept = "getComputedStyle(document.querySelector('main h2')).breakAfter"
    assert page.run(f"return {kept}") == "avoid"


def test_the_menu_has_numbers_and_the_way_on_has_names(
    browser: Browser, site: Site, lessons: Lessons
) -> None:
    page = browser.open(site.folder / "lesson_01.html")
    menu = page.run("return document.getElementById('menu').textContent")
    for lesson in lessons:
        name = lesson["title"].partition(":")[0]
        assert f"{lesson['lesson'][:2]} {name}" in menu
    before, after = page.run(
        "return [...document.querySelectorAll('.around a')].map((x) => x.innerText)"
    )
    assert "00 Query support" in before and "02 Handle identity" in after
    assert "Lesson 2 of" in page.text


def test_a_tablet_has_no_menu_beside_the_text(browser: Browser, site: Site) -> None:
    page = browser.open(site.folder / "index.html", width=820)
    wide = "return document.querySelector('main').getBoundingClientRect().width"
    assert page.run(wide) > 800


def test_every_code_is_in_the_index_of_errors(browser: Browser, site: Site) -> None:
    page = browser.open(site.folder / "errors.html")
    index = page.run(
        "return [...document.querySelectorAll('main .table a')]"
        ".map((x) => x.getAttribute('href'))"
    )
    for entry in explain.read():
        assert f"errors.html#error_{entry.code}" in index or (
            f"#error_{entry.code}" in index
        )
        assert page.run(
            "return document.getElementById(arguments[0]) !== null",
            f"error_{entry.code}",
        )


def test_the_choice_is_right_where_it_was_wrong(site: Site) -> None:
    """Checks cells of the table that were once wrong."""
    page = frame.text_of(site.text("choose.html"))
    for told in (
        "Linux; the header also names Windows and advises against it, PLAT-01",
        "within a process its stream; between processes an event, POOL-12",
        "not documented in the header; keep the memory until all importers have",
    ):
        assert told in page


def test_the_map_leads_to_every_lesson(
    browser: Browser, site: Site, lessons: Lessons
) -> None:
    page = browser.open(site.folder / "index.html")
    leads = page.run(
        "return [...document.querySelectorAll('figure.map a')]"
        ".map((a) => a.href.baseVal)"
    )
    assert sorted(leads) == [f"{page_of(x['lesson'])}.html" for x in lessons]


def test_no_line_of_the_map_goes_through_text(browser: Browser, site: Site) -> None:
    page = browser.open(site.folder / "index.html", width=1440)
    lines = "return document.querySelectorAll('figure.map .edge path').length"
    assert page.run(lines) >= 5
    assert not page.run(CROSSED)


def test_a_phone_has_the_map_as_a_list(
    browser: Browser, site: Site, lessons: Lessons
) -> None:
    page = browser.open(site.folder / "index.html", width=PHONE)
    shown = page.run("return document.querySelector('figure.map + ul').innerText")
    assert all(f"{x['lesson'][:2]} {x['title']}" in shown for x in lessons)
    assert "after 13, 30, 50, 62" in shown


# --- planted faults ---------------------------------------------------------


def test_a_line_through_text_is_noticed(browser: Browser, site: Site) -> None:
    page = browser.open(site.folder / "index.html", width=1440)
    moved = """
    const text = document.querySelector("figure.map .node text").getBBox();
    const line = document.querySelector("figure.map .edge path");
    line.setAttribute("d", `M${text.x - 50},${text.y + 5}h400`);
    """
    page.run(moved)
    assert "Legacy memory handles" in page.run(CROSSED)


def test_a_lesson_out_of_the_menu_is_noticed(
    browser: Browser, copy: Site, lessons: Lessons
) -> None:
    copy.change("index.html", 'href="lesson_05.html"', 'href="lesson_06.html"')
    assert missing_in_menu(browser, copy, lessons)


@pytest.mark.parametrize(
    ("planted", "told"),
    [
        ("<script>no_such_function()</script>", "no_such_function"),
        ('<div style="width: 2000px">x</div>', "2000px"),
        ('<p style="width: 20px; word-break: break-all">letters</p>', "letters"),
        ('<p style="width: 90px">cudaIpcOpenMemHandle</p>', "cudaIpcOpenMemHandle"),
    ],
)
def test_a_fault_of_a_page_is_noticed(
    browser: Browser, copy: Site, planted: str, told: str
) -> None:
    copy.change("lesson_01.html", "<h1>", f"{planted}<h1>")
    found = faults(browser, copy.folder / "lesson_01.html", WIDTHS)
    at = ["1.html: "] if "script" in planted else [f"at {x} pixels" for x in WIDTHS]
    for where in at:
        assert any(where in x and told in x for x in found), found


def test_a_diagram_without_colours_of_the_night_is_noticed(
    browser: Browser, copy: Site
) -> None:
    copy.change("ipclab.css", "fill: var(--ink)", "fill: #000")
    page = browser.open(copy.folder / "lesson_01.html", dark=True)
    assert contrast(page.run(PICTURE)) < 300


def test_a_missing_diagram_is_noticed(browser: Browser, copy: Site) -> None:
    copy.change("lesson_01.html", '<figure class="sequence steps lanes-2">', "<figure>")
    assert browser.open(copy.folder / "lesson_01.html").run(PICTURE) is None


def test_a_text_that_leaves_its_box_is_noticed(browser: Browser, copy: Site) -> None:
    copy.change("lesson_01.html", ">cudaMalloc</text>", f">{'c' * 60}</text>")
    assert browser.open(copy.folder / "lesson_01.html").run(CUT) == ["c" * 60]


def test_a_lesson_that_the_search_lacks_is_noticed(
    browser: Browser, copy: Site
) -> None:
    file = copy.folder / "index.js"
    kept = [x for x in file.read_text().splitlines() if '["lesson_01' not in x]
    file.write_text("\n".join(kept))
    found = hits(browser.open(copy.folder / "index.html"), "Legacy memory")
    assert "lesson_01.html" not in [x.partition("#")[0] for x in found]


def test_every_step_of_a_lesson_shows_its_code(
    browser: Browser, site: Site, lessons: Lessons
) -> None:
    """A step shows its code even if the page does not show that part of the program."""
    for lesson in lessons:
        page = browser.open(site.folder / f"{page_of(lesson['lesson'])}.html")
        without = page.run(STEPS_WITHOUT_CODE)
        assert not without, (lesson["lesson"], without)


def test_code_beside_a_picture_begins_at_the_margin(
    browser: Browser, site: Site
) -> None:
    """The panel is narrow: blanks at the start of all its lines are left out."""
    page = browser.open(site.folder / "lesson_01.html")
    for _ in range(12):
        shown = page.run(PANELS)
        assert all(min(margins) == 0 for margins in shown), shown
        page.run("document.querySelector('[aria-label=\"One step on\"]').click()")


def test_a_step_marks_its_memory(browser: Browser, site: Site) -> None:
    page = browser.open(site.folder / "lesson_70.html")
    marked = "return document.querySelectorAll('svg.memory .group.now').length"
    told = "return document.querySelector('.steps .told').textContent"
    seen = set()
    for _ in range(20):
        named = re.search(r": block \d+$", page.run(told)) is not None
        assert page.run(marked) == named, page.run(told)
        seen.add(named)
        page.run("document.querySelector('[aria-label=\"One step on\"]').click()")
    assert seen == {False, True}


def test_the_names_of_memory_stay_in_sight(browser: Browser, site: Site) -> None:
    page = browser.open(site.folder / "lesson_74.html", PHONE)
    page.run("document.querySelectorAll('.sequence-scroll')[1].scrollTo(500, 0)")
    left = 0.0
    for _ in range(100):
        left = page.run(NAME_OF_MEMORY)
        if left >= 0:
            break
        time.sleep(0.05)
    assert 0 <= left < PHONE


@pytest.mark.parametrize("page", ["results.html", "rules.html", "lesson_01.html"])
def test_the_way_to_a_page_names_nothing_twice(site: Site, page: str) -> None:
    [crumbs] = re.findall(r'<nav class="crumbs".*?</nav>', site.text(page), re.DOTALL)
    names = re.findall(r">\s*([^<>\s][^<>]*?)\s*</(?:a|li)>", crumbs)
    assert len(names) > 1 and len(set(names)) == len(names), names
