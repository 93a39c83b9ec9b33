"""Pages have the form that readers expect. Planted faults must be noticed.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from html_files import Names, Unlinked, dead_links

from conftest import TOP, Site
from generator import documents, frame, links, python_api, rules, symptoms, text
from generator.chapters import page_of
from generator.lessons import build_line, whole_lines
from ipclab import checks, explain

Lessons = list[dict[str, Any]]
WALKTHROUGHS = sorted((TOP / "samples").glob("[0-9]*/*.dox"))
CHANGES = sorted((TOP / "samples").glob("[0-9]*/*.try.json"))
TYPED = [
    *WALKTHROUGHS,
    *(TOP / "docs/pages").glob("*.dox"),
    *(TOP / "docs").glob("*.md"),
]
SECTIONS = (
    *("learn", "picture", "code", "predict", "out", "why"),
    *("wrong", "points", "try", "proof"),
)
ANSWERED = re.compile(
    r"^\*\*\d+\.\*\* (.*?\?)\n\n@answer\n\n(.*?)\n\n@end_answer",
    re.MULTILINE | re.DOTALL,
)
COMMAND = re.compile(r"[@\\](code|verbatim|dot|msc|startuml)\b")


def typed_code(page: str) -> list[str]:
    """Code that is written in a page and longer than a shell line.

    Code blocks have to come from programs that are tested, by @snippet and
    @include.
    """
    found = [match[0] for match in COMMAND.finditer(page)]
    fenced: list[str] | None = None
    indented: list[str] = []
    before = ""
    for line in [*page.splitlines(), ""]:
        if re.match(r"\s*(```[^`]*|~~~.*)$", line):
            if fenced is not None and len(fenced) > 1 and not is_shell(fenced):
                found.append("\n".join(fenced))
            fenced = [] if fenced is None else None
        elif fenced is not None:
            fenced.append(line)
        elif line.startswith("    ") and (indented or not before.strip()):
            indented.append(line)
        else:
            if len(indented) > 1 and not is_list(indented):
                found.append("\n".join(indented))
            indented = []
        before = line
    return found


def is_shell(lines: list[str]) -> bool:
    """Says whether each line is a command that begins with `ci/` or `python3`."""
    return all(line.strip().startswith(("ci/", "python3 ")) for line in lines)


def is_list(lines: list[str]) -> bool:
    """Says whether the indented lines belong to an item of a list and are not code."""
    return bool(re.match(r"\s+([-*]|\d+\.) ", lines[0]))


def unlinked(site: Site, known: dict[str, str], page: str) -> list[str]:
    """Functions that a page names without a link to their reference."""
    return Unlinked(site.text(page), known).found


def unknown(page: str, headers: str) -> list[str]:
    """Names that look like names of CUDA but are not in its headers: misspelt names."""
    return [x for x in links.NAME.findall(page) if not re.search(rf"\b{x}\b", headers)]


@pytest.fixture(scope="module")
def headers() -> str:
    """The headers of the toolkit, and our own headers for newer functions."""
    nvcc = shutil.which("nvcc")
    assert nvcc, "no nvcc in PATH"
    include = Path(nvcc).resolve().parents[1] / "include"
    names = ("cuda.h", "cuda_runtime_api.h", "driver_types.h", "cuda_runtime.h")
    newer = (TOP / "harness/toolkit/newer.h").read_text()
    return newer + "".join((include / name).read_text() for name in names)


@pytest.mark.parametrize("page", WALKTHROUGHS, ids=lambda x: x.parent.name)
def test_a_lesson_can_be_built_alone_by_one_line(page: Path) -> None:
    line = build_line(TOP, page.parent.name)
    assert "\n" not in line and "//" not in line
    assert f" samples/{page.parent.name}/{page.stem}.cu" in line


def test_no_link_is_dead(site: Site) -> None:
    found = dead_links(site.folder)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", TYPED, ids=lambda path: path.name)
def test_code_comes_from_tested_programs(path: Path) -> None:
    assert not typed_code(path.read_text())


@pytest.mark.parametrize("path", WALKTHROUGHS, ids=lambda path: path.parent.name)
def test_a_walkthrough_has_its_sections_in_order(path: Path) -> None:
    page = page_of(path.parent.name)
    found = re.findall(rf"@section {page}_(\w+)", path.read_text())
    assert [x for x in found if x in SECTIONS] == list(SECTIONS)


def section(page: str, name: str) -> str:
    """The text of one section of a walkthrough."""
    pattern = rf"^@section lesson_\d\d_{name} .*?\n(.*?)^@section"
    found = re.search(pattern, page, re.M | re.S)
    return found[1] if found else ""


def unanswered(page: str) -> list[str]:
    """What is wrong with the questions and the key points of a walkthrough."""
    asked, points = section(page, "predict"), section(page, "points")
    faults = []
    if len(re.findall(r"^- ", points, re.M)) != 3:
        faults.append("not three key points")
    rest = ANSWERED.sub("", asked).strip()
    if len(ANSWERED.findall(asked)) < 2 or rest:
        faults.append(f"not two questions with their answers; left over: {rest}")
    return faults


@pytest.mark.parametrize("path", WALKTHROUGHS, ids=lambda path: path.parent.name)
def test_a_walkthrough_asks_before_it_tells_and_ends_in_three_points(
    path: Path,
) -> None:
    assert not unanswered(path.read_text())


def test_answers_are_folded_until_somebody_wants_them(
    site: Site, lessons: Lessons
) -> None:
    for lesson in lessons:
        page = site.text(f"{page_of(lesson['lesson'])}.html")
        asked = re.search(r'<h2 id="\w+_predict">(.*?)<h2 ', page, re.S)
        assert asked and asked[1].count("<summary>Answer</summary>") >= 2, lesson
        assert len(re.findall(r"<details>\s*<summary>Answer", asked[1])) >= 2


@pytest.mark.parametrize("path", WALKTHROUGHS, ids=lambda path: path.parent.name)
def test_a_walkthrough_takes_code_and_output_from_its_program(path: Path) -> None:
    page, topic = path.read_text(), path.stem
    assert f"@snippet {topic}.cu " in page
    assert f"@include {topic}.out" in page
    assert re.search(r"@includedoc rule_[A-Z]+-\d+\.md", page), "no documented sentence"


def test_a_lesson_has_one_title(lessons: Lessons) -> None:
    for lesson in lessons:
        name = lesson["lesson"]
        page = (TOP / "samples" / name / f"{name[3:]}.dox").read_text()
        assert f"@page {page_of(name)} {lesson['title']}\n" in page


def test_every_call_that_a_lesson_names_is_linked(
    site: Site, lessons: Lessons, references: dict[str, str]
) -> None:
    for lesson in lessons:
        page = f"{page_of(lesson['lesson'])}.html"
        assert not unlinked(site, references, page), page
        assert set(references.values()) & set(Names(site.text(page)).addresses), page


@pytest.mark.parametrize("path", WALKTHROUGHS, ids=lambda path: path.parent.name)
def test_a_name_of_cuda_is_one(path: Path, headers: str) -> None:
    assert not unknown(path.read_text(), headers)


def test_links_lead_into_the_reference(references: dict[str, str]) -> None:
    assert references["cudaIpcOpenMemHandle"].startswith(
        "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__DEVICE.html#"
    )


def test_every_page_names_the_tests_that_prove_it(site: Site, lessons: Lessons) -> None:
    for lesson in lessons:
        page = site.text(f"{page_of(lesson['lesson'])}.html")
        _, _, proof = page.partition(f'id="{page_of(lesson["lesson"])}_proof"')
        assert re.search(r"<code>\w+\.\w+</code>", proof), lesson["lesson"]


def test_every_rule_has_its_section_and_its_tests(site: Site) -> None:
    sources = "".join(x.read_text() for x in (TOP / "conformance").glob("*/*_test.cu"))
    found = rules.tests(TOP / "conformance")
    assert sum(map(len, found.values())) == len(re.findall(r"^TEST\(", sources, re.M))
    for row, tests in found.items():
        file = f"rule_{row.replace('-', '_')}.html"
        assert f'href="{file}"' in site.text(f"rules_{row.split('-')[0]}.html")
        page = site.text(file)
        assert all(f"<code>{test}</code>" in page for test in tests)


def test_the_rules_tell_what_is_left_out(site: Site) -> None:
    assert "cuMulticastCreate</a>" in site.text("rules.html")


def test_documents_are_there_to_their_end(site: Site) -> None:
    for file, page in documents.PAGES.items():
        source = (TOP / "docs" / file).read_text()
        titles = re.findall(r"^##+ (.*)$", source, re.M)
        shown = site.text(f"{page}.html")
        assert all(re.search(rf">\s*{re.escape(x)}\s*<", shown) for x in titles), file
        assert re.findall(r"\w+", source)[-1] in shown.partition("contents -->")[0]


@pytest.mark.parametrize(
    ("html", "made"),
    [
        (
            "<b>CUDA_ERROR_INVALID_VALUE</b>",
            "<b>CUDA_ERROR_<wbr>INVALID_<wbr>VALUE</b>",
        ),
        ("samples/01_a/topic.cu", "samples/<wbr>01_a/<wbr>topic.cu"),
        ("<a href='CUDA_ERROR_INVALID_VALUE'>x</a>", ""),
        ("<pre>CUDA_ERROR_INVALID_VALUE</pre>", ""),
        ("cudaMalloc_Async_x", "cudaMalloc_<wbr>Async_x"),  # no part of three letters
        ("cudaMalloc", ""),
    ],
)
def test_a_long_name_breaks_between_its_words(html: str, made: str) -> None:
    assert frame.breakable(html) == (made or html)


@pytest.mark.parametrize("path", CHANGES, ids=lambda path: path.parent.name)
def test_a_change_is_shown_in_whole_lines(path: Path) -> None:
    program = path.with_suffix("").with_suffix(".cu").read_text()
    before = program.splitlines()
    for change in json.loads(path.read_text()):
        old, new = whole_lines(program, change["replace"], change["by"])
        assert old != new
        assert all(line in before for line in old), old


def test_a_change_inside_a_line_shows_the_line() -> None:
    program = "int a;\nint b = 1;\n"
    assert whole_lines(program, "1;", "2;") == (["int b = 1;"], ["int b = 2;"])


def test_no_cell_of_a_table_of_the_doctor_is_empty() -> None:
    for name, told in symptoms.parts({"01_legacy_memory"}).items():
        if not name.startswith("doctor_"):
            continue
        cells = [row.split(" | ") for row in told.strip().splitlines()[2:]]
        if name == "doctor_checks.md":
            assert len(cells) == len(checks.CHECKS)
            assert len({row[1] for row in cells}) == len(cells), "the same answer"
            assert all(row[1].rstrip(" |").endswith("?") for row in cells)
        assert all(x.strip(" |") for row in cells for x in row[:2]), told


def test_each_cause_says_what_to_do(site: Site) -> None:
    parts = symptoms.parts({"01_legacy_memory"})
    pages = {x.stem for x in (TOP / "docs/pages").glob("pain_*.dox")}
    assert {f"{page}_causes.md" for page in pages} == set(parts) - {
        "doctor_checks.md",
        "doctor_symptoms.md",
    }
    for page in pages:
        shown = (site.folder / f"{page}.html").read_text()
        section = shown.partition(f'id="{page}_causes"')[2].partition("<h2")[0]
        _, *causes = section.split("<h3")
        pains = [x for x in explain.pains() if page in x.pages]
        assert len(causes) == len(pains) > 1, page
        assert all("<b>What to do.</b>" in x for x in causes), page


# --- planted faults ---------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("- A handle orders", "A handle orders", "not three"),
        ("@answer\n\nPerhaps.", "Perhaps.", "not two questions"),
        ("address. Are the two addresses equal?", "address.", "not two questions"),
    ],
)
def test_a_question_without_an_answer_is_noticed(old: str, new: str, told: str) -> None:
    page = (TOP / "samples/01_legacy_memory/legacy_memory.dox").read_text()
    assert old in page
    assert told in "".join(unanswered(page.replace(old, new)))


@pytest.mark.parametrize(
    "planted",
    [
        "@code\nx\n@endcode",
        "\\verbatim x \\endverbatim",
        "```\nint x;\nint y;\n```",
        "~~~{.cpp}\nint x;\nint y;\n~~~",
        "Text:\n\n    int x;\n    int y;\n",
    ],
)
def test_typed_code_is_noticed(planted: str) -> None:
    assert typed_code(f"A page.\n\n{planted}\n\nMore.")


@pytest.mark.parametrize(
    "allowed",
    [
        "```\nci/ipclab sample 01\n```",
        "```\nci/ipclab sample 01\nci/ipclab sample 02\n```",
        "Text:\n\n    ci/test\n",
        "``` ci/test ```\n\nand\n\n``` ci/docs ```\n",
        "1. An item:\n\n    - with items\n    - of its own\n",
        "@snippet x.cu exporter",
    ],
)
def test_a_shell_line_is_allowed(allowed: str) -> None:
    assert not typed_code(f"A page.\n\n{allowed}\n\nMore.")


def test_a_dead_link_is_noticed(copy: Site) -> None:
    planted = {
        '<a href="nowhere.html">x</a>': "lesson_01.html: nowhere.html",
        '<img src="no.png"/>': "lesson_01.html: no.png",
        '<a href="#nothing">x</a>': "lesson_01.html: #nothing",
        '<a href="lesson_02.html#nothing">x</a>': "lesson_01.html: lesson_02.html#",
    }
    copy.change("lesson_01.html", '<div class="textblock">', "".join(planted))
    found = dead_links(copy.folder)
    for told in planted.values():
        assert [x for x in found if x.startswith(told)]


def test_a_call_without_a_link_is_noticed(
    copy: Site, references: dict[str, str]
) -> None:
    copy.change("lesson_01.html", '<div class="textblock">', "<p>cudaHostAlloc</p>")
    assert unlinked(copy, references, "lesson_01.html") == ["cudaHostAlloc"]


def test_a_misspelt_name_is_noticed() -> None:
    assert unknown("cudaFree and cudFreeAsync", "cudaFree(x)") == []
    assert unknown("cudaFree and cudaIpcOpenHandle", "cudaFree(x)") == [
        "cudaIpcOpenHandle"
    ]


def test_only_text_is_linked() -> None:
    known = {"cudaFree": "https://x/y"}
    link = '<a class="el" href="https://x/y">cudaFree</a>'
    assert links.linked("<p>cudaFree()</p>", known) == f"<p>{link}()</p>"
    for untouched in (
        '<a href="z">cudaFree</a>',
        "<h1>cudaFree</h1>",
        '<div class="title">cudaFree</div>',
        "<script>cudaFree</script>",
        '<p title="cudaFree">x</p>',
        "<p>cudaFreeHost</p>",
    ):
        assert links.linked(untouched, known) == untouched


def test_words_of_data_are_no_markup() -> None:
    assert text.plain("a|b <c> LMEM-*/x") == "a\\|b &lt;c&gt; LMEM-\\*&zwnj;/x"


def test_sources_are_told_in_full() -> None:
    told = text.spelled("cudaFree; PG 4.15, PG11 F.1")
    assert told == "cudaFree; Programming Guide 4.15, Programming Guide 11 F.1"
    assert text.spelled("JPG and PG12") == "JPG and PG12"


def test_names_are_found() -> None:
    names = Names('<p id="a"><a href="b.html#c" name="d">x</a></p>')
    assert names.addresses == ["b.html#c"] and names.fragments == {"a", "d"}


def test_a_dead_link_of_the_search_is_noticed(copy: Site) -> None:
    copy.change("index.js", '["lesson_05.html"', '["lesson_5.html"')
    assert dead_links(copy.folder) == ["index.js: lesson_5.html"]


TABLE = (
    '<table class="markdownTable">\n<tr class="markdownTableHead">\n<th>you see</th>'
    "<th>so</th><th>really?</th></tr>\n<tr><td>{}</td><td>b</td><td>c</td></tr></table>"
)


def test_a_table_with_sentences_names_the_column_of_each_cell() -> None:
    wordy = frame.TABLE.sub(frame._table, TABLE.format("word " * 8))
    assert 'class="table columns-3 stacked"' in wordy
    assert '<td data-head="so:">b</td><td data-head="really?">c</td>' in wordy
    short = frame.TABLE.sub(frame._table, TABLE.format("a"))
    assert 'class="table columns-3"' in short and "data-head" not in short


def test_code_begins_at_the_margin() -> None:
    lines = '<div class="line">  if (a)</div>\n<div class="line">    b();</div>\n'
    html = f'<div class="fragment">{lines}</div><!-- fragment -->'
    shown = frame.FRAGMENT.sub(frame._code, html)
    assert '<span class="line">if (a)</span>\n<span class="line">  b();</span>' in shown


def test_the_example_of_the_python_package_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(TOP)
    exec(python_api.EXAMPLE, {})
    first, *deviating = capsys.readouterr().out.splitlines()
    assert first.startswith("NVIDIA H200") and "'conforms': " in first
    assert deviating


def test_the_python_package_is_shown_with_types_and_docstrings() -> None:
    page = python_api.page()
    assert "read(folder: Path" in page and "A results folder; it may come from" in page
    assert "class Row(" in page
