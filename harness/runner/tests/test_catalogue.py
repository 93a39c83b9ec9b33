"""Each documented sentence is found in the headers, and is covered or explained."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import functools
import io
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from conftest import Build
from ipclab import catalogue, documentation, hardware, requirements
from ipclab.catalogue import Finding, Ledger
from ipclab.documentation import Documentation
from ipclab.errors import HarnessError, UsageError

TOP = Path(__file__).parents[3]
FILE = TOP / "conformance" / "sentences.json"
ROWS = requirements.read(TOP / "conformance")
# The least share of the judgeable sentences that rows must judge or observe.
LEAST = {"13.0": 0.95, "13.5": 0.9}


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    return catalogue.read(FILE, ROWS)


@pytest.fixture(scope="module", params=["IPCLAB_CUDA_INCLUDE", "IPCLAB_NEWEST_INCLUDE"])
def headers(request: pytest.FixtureRequest) -> Documentation:
    """The headers of the build's toolkit, and of the newest toolkit, which
    ci/setup --test installs.
    """
    return documentation.read(Path(os.environ[request.param]))


def test_every_citation_is_found(ledger: Ledger, headers: Documentation) -> None:
    assert headers.toolkit in ledger.read
    assert catalogue.compare(ledger, headers) == []


def test_most_sentences_are_covered(ledger: Ledger) -> None:
    for toolkit, least in LEAST.items():
        found = catalogue.counts(catalogue.coverage(ledger, toolkit))
        assert catalogue.share(found) >= least, f"CUDA {toolkit}: {found}"


def test_a_source_that_names_a_function_cites_a_sentence_of_it(ledger: Ledger) -> None:
    cited = {
        (entry.topic, row)
        for entries in ledger.entries.values()
        for entry in entries
        for row in entry.rows
    }
    for name, row in ROWS.items():
        if SILENT.search(row["source"]) or row["kind"] == requirements.DERIVED:
            continue
        told = re.sub(r"\(.*?\)", "", row["source"])  # without remarks
        for topic in re.findall(r"\bcu(?:da)?[A-Z]\w+", told):
            if topic in ledger.entries:
                assert (topic, name) in cited, f"{name}: {topic}"


# A source with one of these words says that the documentation is silent, or mentions a
# function without a citation.
SILENT = re.compile(r"\b(none|no|absence|lacks|cross references|report on|drivers)\b")


def test_a_row_of_kind_observe_asks_a_question() -> None:
    for name, row in ROWS.items():
        if row["kind"] == "OBSERVE":
            assert "?" in row["statement"], name


def test_a_test_of_a_limit_says_if_the_limit_is_gone() -> None:
    texts = [x.read_text() for x in (TOP / "conformance").glob("*/*_test.cu")]
    for name, row in ROWS.items():
        if row["kind"] == "LIMIT":
            found = [x for x in texts if f'covers("{name}")' in x]
            assert any("lifted(" in x for x in found), name


def test_no_source_is_a_line_of_a_header() -> None:
    for name, row in ROWS.items():
        assert not re.search(r"\b(RT|DRV|TY):|\.h:\d", row["source"]), name


def test_a_row_holds_since_its_sentences_do(ledger: Ledger) -> None:
    cited = catalogue.cited(ledger)
    for name, row in ROWS.items():
        for field, pick in (("since", min), ("until", max)):
            if field in row:
                told = [getattr(entry, field) for entry in cited.get(name, [])]
                told += [ROWS[x].get(field) for x in row.get("follows_from", [])]
                assert None not in told, f"{name}: a sentence has no {field}"
                assert pick(told) == row[field], name


def test_quotations_are_short_and_know_their_sentence(ledger: Ledger) -> None:
    for entries in ledger.entries.values():
        digests = [entry.digest for entry in entries]
        assert len(set(digests)) == len(digests), entries[0].topic
        for entry in entries:
            assert len(entry.says.split()) <= documentation.WORDS + 2, entry


def test_every_reason_is_used(ledger: Ledger) -> None:
    used = {x.why_not for entries in ledger.entries.values() for x in entries}
    used |= {x.why_not for guide in ledger.guides for x in guide.claims}
    assert set(ledger.reasons) == used - {None}


def test_the_rows_that_gpus_judged_are_those_of_the_records() -> None:
    folders = sorted(x.parent for x in (TOP / "docs" / "results").glob("*/run.json"))
    remedy = "run: ci/ipclab catalogue INCLUDE --runs docs/results/*/ --write"
    assert hardware.read(FILE.parent) == set(hardware.of_runs(folders)), remedy


@pytest.mark.parametrize("text", ["{", "[]", '{"judged": [1]}'])
def test_a_wrong_list_of_judged_rows_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / hardware.NAME).write_text(text)
    with pytest.raises(HarnessError, match=hardware.NAME):
        hardware.read(tmp_path)


def test_a_row_is_judged_on_hardware_or_on_the_model_only(ledger: Ledger) -> None:
    entry = catalogue.Entry(OPEN, "A.", "01234567", None, None, ("LMEM-01",), None)
    assert ledger.cover(entry) == catalogue.JUDGED
    assert ledger.cover(replace(entry, rows=("ENDP-01",))) == catalogue.ON_MODEL
    assert ledger.cover(replace(entry, rows=("LMEM-42",))) == catalogue.OBSERVED
    uncounted = replace(entry, why_not="results")  # its rows rest on a code of it
    assert ledger.cover(uncounted) == catalogue.NO_CLAIM


# --- planted changes ---------------------------------------------------------

CLOSE = "Decrements the reference count of the memory returnd by"
GONE = """ * Any resources used to enable peer access will be freed if this is the
 * last mapping using them.
"""
HANDLE = "will return a unique handle for the\n * new memory."
UNIQUE = " * If a region of memory is freed with ::cudaFree"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the headers that a test may change."""
    for name in documentation.HEADERS:
        shutil.copy(Path(os.environ["IPCLAB_CUDA_INCLUDE"]) / name, tmp_path)
    return tmp_path


def planted(folder: Path, old: str, new: str) -> Path:
    """Change the header of the runtime."""
    header = folder / "cuda_runtime_api.h"
    text = header.read_text()
    assert text.count(old) == 1, f"{text.count(old)} times: {old}"
    header.write_text(text.replace(old, new))
    return folder


@functools.cache
def unchanged() -> Documentation:
    return documentation.read(Path(os.environ["IPCLAB_CUDA_INCLUDE"]))


def compared(ledger: Ledger, include: Path) -> list[Finding]:
    return catalogue.compare(ledger, documentation.read(include), unchanged())


def test_an_altered_sentence_is_told_old_beside_new(
    ledger: Ledger, copied: Path
) -> None:
    planted(copied, CLOSE, "Sets to zero the reference count of the memory that is of")
    (found,) = compared(ledger, copied)
    assert (found.what, found.topic) == ("changed", "cudaIpcCloseMemHandle")
    assert {"LMEM-09", "LMEM-10"} <= set(found.rows)
    assert found.old.startswith(CLOSE)
    assert found.new.startswith("Sets to zero the reference count")


def test_a_removed_sentence_is_told(ledger: Ledger, copied: Path) -> None:
    planted(copied, GONE, "")
    (found,) = compared(ledger, copied)
    assert (found.what, found.topic) == ("gone", "cudaIpcCloseMemHandle")
    assert "LMEM-34" in found.rows


def test_an_added_sentence_is_told(ledger: Ledger, copied: Path) -> None:
    planted(copied, UNIQUE, " * A handle lasts for a day.\n *\n" + UNIQUE)
    (found,) = compared(ledger, copied)
    assert (found.what, found.topic) == ("new", "cudaIpcGetMemHandle")
    assert found.new == "A handle lasts for a day."


def test_a_sentence_under_another_function_is_told(
    ledger: Ledger, copied: Path
) -> None:
    planted(copied, GONE, "")
    planted(copied, UNIQUE, GONE + " *\n" + UNIQUE)
    moved, new = sorted(compared(ledger, copied), key=lambda x: x.what)
    assert (moved.what, moved.new) == ("moved", "now under cudaIpcGetMemHandle")
    assert new.what == "new"


def test_a_line_may_move_and_break_elsewhere(ledger: Ledger, copied: Path) -> None:
    planted(
        copied, CLOSE, "Decrements the\n *   reference count of the memory returnd by"
    )
    planted(copied, UNIQUE, " *\n *\n" + UNIQUE)
    assert compared(ledger, copied) == []


def wording(text: str) -> str:
    """A change of blanks, line ends and links, but not of words."""
    text = text.replace(
        UNIQUE, "\t*\tIf  a region   of memory\tis freed with cudaFree "
    )
    return text.replace("\n", " \r\n")


def test_blanks_line_ends_and_links_are_no_change(ledger: Ledger, copied: Path) -> None:
    header = copied / "cuda_runtime_api.h"
    changed = wording(header.read_text())
    assert "If  a region" in changed
    header.write_bytes(changed.encode())
    assert compared(ledger, copied) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (HANDLE, HANDLE.replace("return", "not return")),
        (HANDLE, HANDLE.replace(".", "")),
        (UNIQUE, UNIQUE.replace("region", "region,")),
    ],
)
def test_one_word_or_one_sign_is_a_change(
    ledger: Ledger, copied: Path, old: str, new: str
) -> None:
    planted(copied, old, new)
    (found,) = compared(ledger, copied)
    assert (found.what, found.topic) == ("changed", "cudaIpcGetMemHandle")
    assert "LMEM-06" in found.rows


@pytest.mark.parametrize(
    "before",
    [f"{HANDLE} ", f"{HANDLE}\n *\n * \\note ", f"{HANDLE}\n *\n * \\par Life\n * "],
    ids=["in a line", "in a note", "under a title"],
)
def test_an_added_sentence_is_told_wherever_it_is(
    ledger: Ledger, copied: Path, before: str
) -> None:
    planted(copied, HANDLE, f"{before}A handle lasts for a day.")
    (found,) = compared(ledger, copied)
    assert (found.what, found.new) == ("new", "A handle lasts for a day.")


def test_a_sentence_that_is_another_one_is_gone_and_new(
    ledger: Ledger, copied: Path
) -> None:
    planted(copied, "\\brief Destroys an event object", "\\brief Kills it")
    assert [x.what for x in compared(ledger, copied)] == ["gone", "new"]


def test_a_renamed_function_has_taken_its_sentences_along(
    ledger: Ledger, copied: Path
) -> None:
    old = "CUDARTAPI cudaIpcGetMemHandle("
    planted(copied, old, old.replace("Mem", "Memory"))
    found = [x for x in compared(ledger, copied) if x.topic == "cudaIpcGetMemHandle"]
    assert {(x.what, x.new) for x in found} == {
        ("moved", "now under cudaIpcGetMemoryHandle")
    }


def test_a_new_function_is_told(ledger: Ledger, copied: Path) -> None:
    header = copied / "cuda_runtime_api.h"
    added = (
        "/**\n * \\brief Shares all\n *\n * Exports everything.\n */\n"
        "extern __host__ cudaError_t CUDARTAPI cudaIpcGetAll(void *handle);\n"
    )
    header.write_text(header.read_text() + added)
    assert [x.new for x in compared(ledger, copied)] == [
        "Shares all",
        "Exports everything.",
    ]


def test_the_command_tells_and_fails(copied: Path) -> None:
    told = io.StringIO()
    out = Console(file=told, width=200)
    include = Path(os.environ["IPCLAB_CUDA_INCLUDE"])
    assert catalogue.run(out, TOP, include, None, every=False) == 0
    planted(copied, CLOSE, "Doubles the reference count of the memory that is of")
    assert catalogue.run(out, TOP, copied, None, every=True) == 1
    text = told.getvalue()
    assert "changed  cudaIpcCloseMemHandle  LIFE-01, LMEM-09" in text
    assert re.search(r"old: Decrements the reference count .*…", text)
    assert re.search(r"judged +Decrements the reference count .* \[.*LMEM-09", text)


OPEN = "cudaIpcOpenMemHandle"


@pytest.mark.parametrize(
    ("called", "outcome", "missed"),
    [
        (OPEN, "conforms", []),
        ("cuIpcOpenMemHandle", "conforms", [OPEN]),
        (OPEN, "not applicable", [OPEN]),
    ],
)
def test_a_row_covers_the_functions_that_its_tests_call(
    ledger: Ledger,
    build: Build,
    called: str,
    outcome: str,
    missed: list[str],
) -> None:
    build.conformance(
        f"record(outcome={outcome!r}, reason='none', functions=[{called!r}])"
    )
    build.ipclab("run", "--build", "build", "--results", "seen")
    entry = catalogue.Entry(OPEN, "A.", "01234567", None, None, ("LMEM-01",), None)
    kind = replace(entry, topic="cudaMemPoolAttr")  # no function: nothing calls it
    one = replace(ledger, entries={OPEN: [entry], kind.topic: [kind]})
    made = catalogue.calls([build.root / "seen"])
    assert [x.topic for x in catalogue.uncalled(one, unchanged(), made)] == missed


def test_the_command_tells_what_no_test_called(build: Build) -> None:
    build.conformance("record(functions=[])")
    build.ipclab("run", "--build", "build", "--results", "seen")
    told = io.StringIO()
    out = Console(file=told, width=200)
    include = Path(os.environ["IPCLAB_CUDA_INCLUDE"])
    seen = build.root / "seen"
    assert catalogue.run(out, TOP, include, None, every=False, runs=[seen]) == 1
    assert re.search(r"not called  cuIpcOpenMemHandle  .*LMEM-08", told.getvalue())
    with pytest.raises(UsageError, match="no such folder"):
        catalogue.calls([build.root / "nowhere"])
    build.conformance("record()")
    build.ipclab("run", "--build", "build", "--results", "old")
    with pytest.raises(UsageError, match="do not name the functions"):
        catalogue.calls([build.root / "old"])


def test_headers_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name the include folder"):
        documentation.read(tmp_path)


def cut(text: str) -> bytes:
    return text[: len(text) // 2].encode()


@pytest.mark.parametrize(
    ("name", "damage", "wrong"),
    [
        ("cuda.h", cut, "a part of the header is missing"),
        ("cuda_runtime_api.h", cut, "a part of the header is missing"),
        ("driver_types.h", cut, "a part of the header is missing"),
        ("driver_types.h", lambda _: b"", "a part of the header is missing"),
        ("driver_types.h", lambda _: bytes(range(256)), "is not text"),
        (
            "cuda.h",
            lambda text: re.sub(r"(define CUDA_VERSION ).*", r"\1MANY", text).encode(),
            "does not define CUDA_VERSION",
        ),
        (
            "cuda_runtime_api.h",
            lambda text: re.sub(
                r"(define CUDART_VERSION ).*", r"\g<1>9010", text
            ).encode(),
            "cuda_runtime_api.h of 9.1",
        ),
    ],
)
def test_a_damaged_header_is_refused(
    copied: Path, name: str, damage: Callable[[str], bytes], wrong: str
) -> None:
    header = copied / name
    header.write_bytes(damage(header.read_text()))
    with pytest.raises(UsageError, match=wrong) as told:
        documentation.read(copied)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("kind", ["folder", "pipe", "loop"])
def test_a_header_that_cannot_be_read_is_refused(copied: Path, kind: str) -> None:
    header = copied / "cuda.h"
    header.unlink()
    if kind == "folder":
        header.mkdir()
    elif kind == "pipe":
        os.mkfifo(header)
    else:
        header.symlink_to(header)
    with pytest.raises(UsageError, match=r"cuda\.h: .*name the include folder"):
        documentation.read(copied)


@pytest.mark.parametrize(
    ("entry", "wrong"),
    [
        ({"says": "A.", "digest": "0"}, "does not match"),
        ({"says": "A.", "digest": "01234567"}, "either 'rows' or 'why_not'"),
        ({"says": "A.", "digest": "01234567", "rows": ["X-01"]}, "is no row"),
        ({"says": "A.", "digest": "01234567", "why_not": "rain"}, "'reasons'"),
    ],
)
def test_a_wrong_entry_is_refused(
    tmp_path: Path, entry: dict[str, object], wrong: str
) -> None:
    document = json.loads(FILE.read_text())
    document["sentences"]["cudaFree"] = [entry]
    file = tmp_path / "sentences.json"
    file.write_text(json.dumps(document))
    with pytest.raises(HarnessError, match=wrong):
        catalogue.read(file, ROWS)


# --- rows that hold for some versions ----------------------------------------


@pytest.mark.parametrize(
    ("span", "reason"),
    [
        ({"since": "13.5"}, "documented since CUDA 13.5; the driver is of CUDA 13.0"),
        ({"until": "12.9"}, "documented until CUDA 12.9; the driver is of CUDA 13.0"),
        ({"since": "13.0", "until": "13.0"}, None),
    ],
)
def test_a_row_is_judged_where_it_holds(
    build: Build, span: dict[str, str], reason: str | None
) -> None:
    document = json.loads(build.room.read_text())
    document["rows"][0].update(span)
    build.room.write_text(json.dumps(document))
    build.conformance("record(outcome='violates')" if reason else "record()")
    build.ipclab("run", "--build", "build", "--results", "seen")
    record = json.loads((build.root / "seen/records.jsonl").read_text())
    assert record["verdict"] == ("not applicable" if reason else "conforms")
    assert record["reason"] == (reason or "")


def test_a_version_that_is_none_is_refused(tmp_path: Path) -> None:
    row = {"id": "LMEM-01", "statement": "It is so.", "kind": "MUST", "since": "13"}
    file = tmp_path / "requirements.json"
    file.write_text(json.dumps({"rows": [row]}))
    with pytest.raises(HarnessError, match="'since' is a version of CUDA"):
        requirements.read(file)
