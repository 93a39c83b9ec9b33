"""The page of a trace in a browser: with keys, on a phone, for a big program."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from traced import PROGRAMS, ROOT, trace

from ipclab.trace import files, page
from ipclab.trace.story import replay

sys.path.append(str(ROOT / "harness" / "runner" / "tests"))
from browser import PHONE, Browser

CALLS = [
    ["cuMemAlloc", "dptr", "bytesize"],
    ["cuIpcGetMemHandle", "pHandle", "dptr"],
    ["cuIpcOpenMemHandle", "pdptr", "handle", "Flags"],
    ["cuLaunchKernel", "kernel", "blocks", "threads", "stream", "pointers"],
    ["cuMemsetD8", "dstDevice", "uc", "N"],
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a program with a finding, a refusal and messages."""
    folder = tmp_path_factory.mktemp("trace") / "one"
    trace(folder, [PROGRAMS, "closed-too-often", "wrong"])
    return folder / "trace.html"


def write(folder: Path, process: int, lines: list[list[object]]) -> None:
    """Write a file as the recorder writes it."""
    head = [
        {"what": "process", "format": 1, "process": process, "parent": 1, "began": 0,
         "forked": False, "command": [f"program{process}"]},
        {"what": "calls", "first": 0, "calls": CALLS},
        {"what": "kernel", "t": 0, "number": 1, "name": "_Z3addPii"},
    ]  # fmt: skip
    text = "".join(json.dumps(line) + "\n" for line in [*head, *lines])
    (folder / f"{process}-0.trace").write_text(text)


def test_it_works_by_keyboard(browser: Browser, shown: Path) -> None:
    opened = browser.open(shown)
    told = "return document.getElementById('told').value"
    every = opened.run(told)
    opened.press("/", "closed-too-often")
    assert opened.run(told).startswith("1 of ")
    opened.press("\ue00c")  # Escape
    assert opened.run(told) == every
    assert not opened.errors


@pytest.mark.parametrize("width", [PHONE, 1100])
def test_it_fits_the_screen(browser: Browser, shown: Path, width: int) -> None:
    opened = browser.open(shown, width=width)
    assert not opened.too_wide
    assert not opened.errors
    assert "closed-too-often LMEM-11" in opened.text


def test_it_chooses_process_memory_and_time(browser: Browser, shown: Path) -> None:
    opened = browser.open(shown)
    count = (
        "const set = (name, value) => {"
        " document.getElementById(name).value = value;"
        " document.getElementById('choices').dispatchEvent(new Event('input')); };"
        "document.getElementById('choices').reset(); set(arguments[0], arguments[1]);"
        "return document.querySelectorAll('#steps > li[data-t]:not([hidden])').length"
    )
    every = opened.run(count, "words", "")
    for name, value in (("process", "1"), ("memory", "1"), ("to", "0.001")):
        assert opened.run(count, name, value) < every, name


def test_a_big_program_stays_usable(browser: Browser, tmp_path: Path) -> None:
    """Steps of processes that take turns are not folded: the page has the first and
    the last uses."""
    handle = "ab" * 64
    first: list[list[object]] = [
        [1, 1, 0, 1, 0, 0, 0x7F0000000000, 4 << 20],
        [3, 1, 0, 1, 1, 0, handle, 0x7F0000000000],
    ]
    second: list[list[object]] = [[5, 1, 0, 1, 2, 0, 0x7E0000000000, handle, 1]]
    for i in range(20_000):
        at = 10 + 10 * i
        call: list[object] = [at, 1, 0, 1, 3, 0, 1, 1, 1, 0, [0x7F0000000000]]
        if i % 7 in (0, 3, i % 5):
            call = [at, 1, 0, 1, 4, 0, 0x7F0000000000, 0, 4]
        first.append(call)
        second.append([at + 5, 1, 0, 1, 3, 0, 1, 1, 1, 0, [0x7E0000000000]])
    write(tmp_path, 1, first)
    write(tmp_path, 2, second)
    story = replay(files.read(tmp_path))
    assert not story.unmatched
    page.write(tmp_path, story, story.findings)
    opened = browser.open(tmp_path / "trace.html")
    steps = opened.run("return document.querySelectorAll('#steps > li').length")
    assert 100 < steps <= page.MOST + 1
    assert "20002, 1002 concern IPC" in opened.text
    assert not opened.errors
