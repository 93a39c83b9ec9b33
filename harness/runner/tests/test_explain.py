"""The dictionary of errors is complete, agrees with CUDA's headers, and finds an error
by any of its names."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import json
import os
import re
from pathlib import Path

import pytest

from conftest import Build
from ipclab import explain, requirements
from ipclab.explain import Entry

TOP = Path(__file__).resolve().parents[3]
INCLUDE = Path(os.environ.get("IPCLAB_CUDA_INCLUDE", "/usr/local/cuda/include"))
ENTRIES = explain.read()
ROWS = requirements.read(TOP / "conformance")
CODE = re.compile(r"\b(?:cudaError[A-Z]\w+|CUDA_ERROR_[A-Z_]+)\b")
PAINS = explain.pains()


DEVIATIONS = json.loads((TOP / "conformance/deviations.json").read_text())["deviations"]


def proofs(row: str) -> str:
    """The texts that name a row's codes: its sentence, tests and deviations."""
    texts = [ROWS[row]["statement"]]
    texts += [x["evidence"] for x in DEVIATIONS if x["requirement"] == row]
    for lesson in ROWS[row]["lessons"]:
        for path in (TOP / "conformance" / lesson).glob("*.cu"):
            head, *tests = re.split(r"^TEST", path.read_text(), flags=re.MULTILINE)
            mine = [x for x in tests if f'covers("{row}")' in x]
            helpers = [x.partition("\n}\n")[2] for x in tests]  # after a test
            texts += [head, *helpers, *mine] if mine else []
    return "\n".join(texts)


def in_headers() -> dict[str, int]:
    """Each code of both APIs with its number."""
    text = "".join(
        (INCLUDE / name).read_text() for name in ("driver_types.h", "cuda.h")
    )
    found = re.findall(r"\b(cudaError\w+|CUDA_ERROR_\w+)\s*=\s*(\d+)", text)
    return {name: int(number) for name, number in found}


def missing(text: str) -> set[str]:
    """The codes that a text names and that the dictionary lacks."""
    known = {name for entry in ENTRIES for name in entry.names}
    return set(CODE.findall(text)) - known


def test_every_code_that_a_test_names_is_in_it() -> None:
    assert missing("cudaErrorLaunchTimeout, not cudaErrorUnknown") == {
        "cudaErrorLaunchTimeout"
    }
    sources = [*(TOP / "conformance").glob("*/*.cu"), *(TOP / "samples").glob("*/*.cu")]
    assert len(sources) > 50
    assert not missing("\n".join(x.read_text() for x in sources))


def test_names_and_numbers_are_those_of_the_headers() -> None:
    codes = in_headers()
    by_number: dict[int, list[str]] = {}
    for name, number in codes.items():
        by_number.setdefault(number, []).append(name)
    for entry in ENTRIES:
        assert sorted(entry.names) == sorted(by_number[entry.number]), entry.code
    numbers = [entry.number for entry in ENTRIES]
    assert numbers == sorted(set(numbers))


def test_what_cuda_says_is_what_the_runtime_returns() -> None:
    library = next(
        path
        for folder in ("lib64", "lib")
        for path in (INCLUDE.parent / folder, INCLUDE.resolve().parent / folder)
        if (path / "libcudart.so.13").exists()
    )
    say = ctypes.CDLL(str(library / "libcudart.so.13")).cudaGetErrorString
    say.restype = ctypes.c_char_p
    for entry in ENTRIES:
        assert entry.says == say(entry.number).decode(), entry.code


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.code)
def test_an_entry_is_whole_and_leads_somewhere(entry: Entry) -> None:
    assert all((entry.appears, entry.cause, entry.do))
    assert entry.checks or entry.lessons or entry.rows
    assert set(entry.rows) <= set(ROWS)
    for lesson in entry.lessons:
        assert (TOP / "samples" / lesson).is_dir()
    for row in entry.rows:
        assert any(re.search(rf"\b{x}\b", proofs(row)) for x in entry.names), row


def test_all_twenty_pains_are_answered() -> None:
    assert [entry["pain"] for entry in PAINS] == list(range(1, 21))
    codes = {entry.code for entry in ENTRIES}
    for entry in PAINS:
        assert entry["checks"] or entry["lessons"], entry["what"]
        assert set(entry["errors"]) <= codes
        for lesson in entry["lessons"]:
            assert (TOP / "samples" / lesson).is_dir()


@pytest.mark.parametrize(
    "name",
    [
        "400",
        "cudaErrorInvalidResourceHandle",
        "cuda_error_invalid_handle",
        "Invalid resource handle",
    ],
)
def test_an_entry_by_each_of_its_names(build: Build, name: str) -> None:
    done = build.ipclab("explain", name)
    assert done.returncode == 0
    first, *rest = done.stdout.splitlines()
    assert first.split() == [
        "400",
        "cudaErrorInvalidResourceHandle",
        "=",
        "CUDA_ERROR_INVALID_HANDLE",
    ]
    text = " ".join(" ".join(rest).split())
    for part in ("the exporter has ended", "Keep the exporter alive", "LEVT-03"):
        assert part in text


def test_a_code_that_one_interface_alone_has(build: Build) -> None:
    first = build.ipclab("explain", "35").stdout.splitlines()[0]
    assert first.split() == ["35", "cudaErrorInsufficientDriver"]


def test_all_entries_without_a_name(build: Build) -> None:
    done = build.ipclab("explain")
    assert done.returncode == 0
    assert all(f"{entry.number} " in done.stdout for entry in ENTRIES)
    text = " ".join(done.stdout.split())
    assert all(" ".join(pain["what"].split()[:2]) in text for pain in PAINS)


def all_at(columns: int, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of `ipclab explain` on a terminal with this number of columns."""
    assert explain.run(None, columns) == 0
    return capsys.readouterr().out.splitlines()


def test_a_small_terminal_has_room_for_all_entries(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In an earlier version a column was one letter wide: the list had 2745 lines."""
    lines = all_at(80, capsys)
    assert max(map(len, lines)) <= 80
    assert len(lines) < 250
    assert len(all_at(140, capsys)) < 150


def test_a_table_without_room_is_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(explain, "WIDE", 10)
    assert max(map(len, all_at(80, capsys))) > 80


def test_no_line_ends_with_spaces(capsys: pytest.CaptureFixture[str]) -> None:
    for columns in (80, 160):
        assert all(line == line.rstrip() for line in all_at(columns, capsys))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "InvalidDevice",
            "no error 'InvalidDevice' in the dictionary; "
            "like cudaErrorInvalidDevice? `ipclab explain` lists them",
        ),
        ("12345", "no error '12345' in the dictionary; `ipclab explain` lists them"),
    ],
)
def test_a_code_that_is_not_there(build: Build, name: str, told: str) -> None:
    done = build.ipclab("explain", name)
    assert (done.returncode, done.stdout) == (2, f"ipclab: {told}\n")
