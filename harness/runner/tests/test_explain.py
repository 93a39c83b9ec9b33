"""The dictionary of errors is complete, agrees with CUDA's headers, and finds an error
by any of its names."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import io
import json
import os
import re
import resource
import subprocess
import sys
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
PAGES = TOP / "docs" / "pages"


DEVIATIONS = json.loads((TOP / "conformance/deviations.json").read_text())["deviations"]


def proofs(row: str) -> str:
    """The texts that name a row's codes: its sentence, source, tests and deviations."""
    texts = [ROWS[row]["statement"], ROWS[row]["source"]]
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
        if entry.since and entry.number not in by_number:
            continue  # these headers are older than the code
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
        said = say(entry.number).decode()
        if entry.since and said == "unrecognized error code":
            continue  # this runtime is older than the code
        assert entry.says == said, entry.code


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.code)
def test_an_entry_is_whole_and_leads_somewhere(entry: Entry) -> None:
    assert all((entry.appears, entry.cause, entry.do))
    assert entry.checks or entry.lessons or entry.rows
    assert set(entry.rows) <= set(ROWS)
    for lesson in entry.lessons:
        assert (TOP / "samples" / lesson).is_dir()
    for row in entry.rows:
        assert any(re.search(rf"\b{x}\b", proofs(row)) for x in entry.names), row


def test_all_pains_are_answered() -> None:
    assert len(PAINS) > 40
    codes = {entry.code for entry in ENTRIES}
    for pain in PAINS:
        assert pain.words, pain.what
        assert all(x == x.lower().strip() for x in pain.words), pain.what
        assert pain.cause, pain.what
        assert pain.do, pain.what
        assert pain.checks or pain.lessons, pain.what
        assert set(pain.errors) <= codes
        for lesson in pain.lessons:
            assert (TOP / "samples" / lesson).is_dir()
        assert pain.pages, pain.what
        for page in pain.pages:
            assert (PAGES / f"{page}.dox").is_file()


def messages(page: str) -> list[str]:
    """The messages in the section "What you see" of a page about a pain."""
    text = (PAGES / f"{page}.dox").read_text()
    seen = re.search(rf"@section {page}_see .*?\n\n(.*?)\n\n@section", text, re.DOTALL)
    assert seen, page
    return re.findall(r"^- `+(.*?)`+$", seen[1], re.MULTILINE)


SEEN = [(x.stem, y) for x in sorted(PAGES.glob("pain_*.dox")) for y in messages(x.stem)]


def test_each_page_about_a_pain_has_messages() -> None:
    assert {page for page, _ in SEEN} == {y for x in PAINS for y in x.pages}
    assert len(SEEN) > 40


@pytest.mark.parametrize(("page", "message"), SEEN)
def test_a_message_leads_to_its_page(
    page: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first answer to each message is one that the page has, too."""
    best = explain.find(message).pains[0]
    assert page in best.pages, best.what
    assert explain.run(message.split(), columns=100) == 0
    assert f"{best.pages[0]}.html" in capsys.readouterr().out


# What people paste, and a word of the title that answers it first.
PASTED = [
    ("RuntimeError: CUDA error: invalid argument", "1 ", "expandable segments"),
    ("CUDA error: invalid device context", "201 ", ""),
    ("NOT_PERMITTED", "800 ", ""),
    ("InvalidDevice", "101 ", ""),
    ("PEER_ACCESS", "217 ", ""),
    ("operation not permitted", "800 ", "pidfd_getfd"),
    ("RuntimeError: pidfd_getfd: Operation not permitted", "", "pidfd_getfd"),
    ("cudaIpcOpenMemHandle", "201 ", ""),
    ("cuIpcOpenMemHandle_v2", "201 ", ""),
    ("docker", "", "containers"),
    ("why does it hang", "", "a hang"),
    ("slow", "", "slow"),
    ("--disable-custom-all-reduce", "", "peers:"),
    (
        "NCCL WARN Cuda failure 217 'peer access is not supported between these two "
        "devices'",
        "217 ",
        "peers:",
    ),
    (
        "cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorInvalidValue: "
        "invalid argument",
        "1 ",
        "other frameworks",
    ),
    (
        "UCX  ERROR cuIpcOpenMemHandle(&addr) failed: invalid device context",
        "201 ",
        "in the process that exported it",
    ),
    ("[201] Call to cuIpcOpenMemHandle results in CUDA_ERROR_X", "201 ", ""),
    ("Custom allreduce is disabled: P2P test failed.", "", "peers:"),
    ("OSError: [Errno 24] Too many open files", "", "descriptors"),
    ("received 0 items of ancdata", "", "descriptors"),
    ("Producer process has been terminated before", "", "the exporter ends"),
    ("Cannot re-initialize CUDA in forked subprocess", "", "after fork"),
    ("cudaMallocHost", "", "pinned host memory"),
    ("managed memory", "", "managed memory"),
    ("UCX_CUDA_IPC_CACHE=n", "", "an old import in a cache"),
    ("NCCL_CUMEM_HOST_ENABLE", "", "NUMA"),
    ("freed-while-open", "freed-while-open", ""),
    # The lines that the programs of twelve public reports print.
    ("kernel fill failed: 1 invalid argument", "1 ", "an error that surfaces later"),
    ("importer: cudaSetDevice(1): 101 invalid device ordinal", "101 ", "VISIBLE"),
    ("the client is dead; free memory grew by 0 MiB", "", "memory stays allocated"),
    (
        "700 an illegal memory access was encountered",
        "700 ",
        "an old import in a cache",
    ),
    ("frame 4096: 2 out of memory, with 130000 MiB free", "2 ", "events for ever"),
    ("cuIpcGetMemHandle: 201 invalid device context", "201 ", "a thread without"),
    ("rank 0: buffer 2 of the peer: 1 invalid argument", "1 ", "one buffer less"),
    ("node 1: invalid device ordinal -> /dev/shm", "101 ", "NUMA"),
    ("cuMemAddressReserve of 157 GiB: 2 out of memory", "2 ", "no addresses left"),
    ("still in cudaStreamSynchronize after 10 seconds", "", "a hang"),
    ("at exit: cudaGetDevice 4, device -1", "4 ", "a static destructor"),
    # Lines of public reports for which an earlier version had another answer, or none.
    ("failed to open ipc mem handle (Element already exists)", "", "opened twice"),
    ("mbind: Operation not permitted", "800 ", "NUMA"),
    ("cuMemCreate failed: operation not permitted", "800 ", "fabric handles"),
    ("the tensor is zero in the other process", "", "zeros or old data"),
    ("DataLoader worker is killed by signal: Bus error.", "", "/dev/shm is too small"),
    ("RuntimeError: No CUDA GPUs are available", "", "CUDA_VISIBLE_DEVICES"),
    ("Worker proc VllmWorker-1 died unexpectedly", "", "vLLM and SGLang"),
    ("the memory stays allocated after the worker was killed", "", "stays allocated"),
]


@pytest.mark.parametrize(("pasted", "code", "title"), PASTED)
def test_what_people_paste_is_explained(
    pasted: str, code: str, title: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain.run(pasted.split(), columns=100) == 0
    told = capsys.readouterr().out.splitlines()
    assert max(map(len, told)) <= 100
    assert len(told) < 80, "more than a screen"
    if code:
        assert any(x.startswith(code) for x in told)
    titles = [y for x, y in zip(["", *told], told, strict=False) if not x]
    if title:
        assert any(title in x for x in titles), titles


# What people paste, and how the first answer begins.
FIRST = [
    ("pidfd_getfd: Operation not permitted", "pidfd_getfd or"),
    ("cudaErrorInvalidDevice: invalid device ordinal", "101 "),
    ("cuMemCreate CUDA_ERROR_INVALID_DEVICE host numa", "101 "),
    ("cudaErrorPeerAccessUnsupported: peer access is not supported", "217 "),
    ("RuntimeError: cudaMemPool export: invalid argument", "cudaIpcGetMemHandle"),
    ("stale data from a shared tensor after reallocation", "an old import"),
    ("MSG_CTRUNC", "descriptors:"),
    ("unable to open shared memory object: Too many open files", "descriptors:"),
    ("kernel hangs with P2P, ACS is enabled", "peers:"),
    ("custom all reduce hangs on a PCIe machine", "peers:"),
    ("SIGSEGV in cudaMemcpy with a pointer of another process", "an address"),
    ("does cudaIpc work across machines", "another machine"),
    ("NVML shows memory of a killed process", "memory stays"),
    ("the second process sees wrong values after cudaMemcpyAsync", "the importer"),
]


@pytest.mark.parametrize(("pasted", "begin"), FIRST)
def test_the_first_answer_is_the_right_one(
    pasted: str, begin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain.run(pasted.split(), columns=100) == 0
    assert capsys.readouterr().out.startswith(begin)


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("cuMemImportFromShareableHandle", 1),
        ("cuMemExportToShareableHandle", 1),
        ("cuMemMap", 1),
        ("cuMemAddressReserve", 2),
        ("cuMemCreate", 101),
        ("cuMemCreate", 801),
    ],
)
def test_a_code_says_when_this_call_returns_it(call: str, number: int) -> None:
    entry = next(x for x in ENTRIES if x.number == number)
    assert any(call in x.partition(":")[0] for x in entry.appears)


def test_the_words_of_a_log_come_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = "INFO all well\nNCCL WARN Cuda failure 'invalid device ordinal'\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(log))
    assert explain.run(["-"]) == 0
    assert capsys.readouterr().out.startswith("101 ")


def test_explained_as_json(build: Build) -> None:
    done = build.ipclab("explain", "cuda", "error:", "invalid", "argument", "--json")
    found = json.loads(done.stdout)
    assert [x["number"] for x in found["errors"]] == [1]
    assert "expandable_segments" in found["pains"][0]["words"]
    assert len(json.loads(build.ipclab("explain", "--json").stdout)["pains"]) == len(
        PAINS
    )


def test_an_answer_takes_less_than_two_seconds_and_no_package() -> None:
    source = TOP / "harness" / "runner" / "src"
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-m", "ipclab", "explain", "hang", "docker"],
        env={"PYTHONPATH": str(source), "COLUMNS": "60"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert max(map(len, done.stdout.splitlines())) <= 60
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert used.ru_utime + used.ru_stime - began.ru_utime - began.ru_stime < 2


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
    assert all(" ".join(pain.what.split()[:2]) in text for pain in PAINS)


def all_at(columns: int, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of `ipclab explain` on a terminal with this number of columns."""
    assert explain.run((), columns=columns) == 0
    return capsys.readouterr().out.splitlines()


def test_a_small_terminal_has_room_for_all_entries(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In an earlier version a column was one letter wide: the list had 2745 lines."""
    lines = all_at(80, capsys)
    assert max(map(len, lines)) <= 80
    assert len(lines) < 400
    assert len(all_at(140, capsys)) < 250


def test_a_table_without_room_is_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(explain, "WIDE", 10)
    assert max(map(len, all_at(80, capsys))) > 80


def test_no_line_ends_with_spaces(capsys: pytest.CaptureFixture[str]) -> None:
    for columns in (80, 160):
        assert all(line == line.rstrip() for line in all_at(columns, capsys))


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("cudaErrorInvaldDevice", "; near: cudaErrorInvalidDevice"),
        ("expandible_segments", "; near: expandable_segments"),
        ("12345", ""),
    ],
)
def test_a_code_that_is_not_there(build: Build, name: str, near: str) -> None:
    done = build.ipclab("explain", name)
    assert (done.returncode, done.stdout.count("\n")) == (2, 1)
    assert done.stdout.startswith(f"ipclab: nothing is known about '{name}'{near}")
    assert done.stdout.endswith("; `ipclab explain` lists everything\n")
