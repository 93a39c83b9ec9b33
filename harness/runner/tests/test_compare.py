"""How two runs differ, and when a comparison is refused."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from conftest import Build

BAD = "violates(reason='zeros')"


def run(build: Build, name: str, *arguments: str) -> Path:
    """Make a run with its results in the folder `name`."""
    build.ipclab("run", "--build", "build", "--results", name, *arguments)
    return build.root / name


def compare(build: Build, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `ipclab compare old new`."""
    return build.ipclab("compare", "old", "new", *arguments)


def edit(path: Path, change: dict[str, Any]) -> None:
    """Replace fields of a JSON document."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))


def two_runs(build: Build, before: str, after: str) -> None:
    """Run one test twice; its program is different in the second run."""
    switch = f"new = os.path.exists({str(build.root / 'switch')!r})\n"
    row = "dict(table='t', input='i', outcome='documented refusal', code={!r})"
    tables = f"OPENS = {row.format('A')}\nFAILS = {row.format('B')}\n"
    body = f"{switch}{tables}exec({after!r} if new else {before!r})"
    build.conformance(body)
    build.conformance("record()", name="Suite.Same")
    run(build, "old")
    (build.root / "switch").touch()
    run(build, "new")


@pytest.mark.parametrize(
    ("before", "after", "what", "code"),
    [
        ("record()", BAD, "regressed", 1),
        (BAD, "record()", "fixed", 0),
        ("record()", "record(outcome='not applicable', reason='no')", "changed", 0),
        (BAD, "record(outcome='crashed'); sys.exit(1)", "changed", 0),
        ("record()", "record(duration_ms=9e5)", "timing", 0),
        ("record(notes=['it opens'])", "record(notes=['it fails'])", "answers", 0),
        ("record(notes=['x'])", "record(notes=['x', 'y'])", "answers", 0),
        ("record(outcomes=[OPENS])", "record(outcomes=[FAILS])", "answers", 0),
    ],
)
def test_a_change_has_its_name(
    build: Build, before: str, after: str, what: str, code: int
) -> None:
    two_runs(build, before, after)
    done = compare(build, "--json", "out.json")
    assert done.returncode == code, done.stdout
    (change,) = json.loads((build.root / "out.json").read_text())["changes"]
    assert (change["what"], change["requirement"]) == (what, "LMEM-01")
    same = 2 if what in ("timing", "answers") else 1
    assert done.stdout.splitlines()[-1] == f"1 {what}, {same} same verdict"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("record()", "record()"),
        ("record(notes=['at 0x7f, 12 ms'])", "record(notes=['at 0xa0, 9 ms'])"),
        ("record(notes=['a', 'b'])", "record(notes=['b', 'a'])"),
        ("record()", "record(notes=['the driver left /dev/shm/x'])"),
    ],
)
def test_equal_runs_differ_in_nothing(build: Build, before: str, after: str) -> None:
    two_runs(build, before, after)
    done = compare(build)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "2 same verdict"


def test_what_attempts_of_one_run_answer_differently_is_no_change(build: Build) -> None:
    count = build.root / "count"
    body = (
        f"n = os.path.getsize({str(count)!r})\n"
        f"open({str(count)!r}, 'a').write('x')\n"
        "record(notes=['always', 'even' if n % 2 else 'odd'])"
    )
    count.touch()
    build.conformance(body)
    run(build, "old", "--repeat", "2")
    run(build, "new")
    done = compare(build)
    assert done.stdout.splitlines()[-1] == "1 same verdict"


def test_new_and_disappeared(build: Build) -> None:
    build.conformance("record()", name="Suite.Gone")
    run(build, "old")
    tests = build.folder / "CTestTestfile.cmake"
    tests.write_text(tests.read_text().replace("Suite.Gone", "Suite.New"))
    script = build.folder / "conformance.01_legacy_memory.Suite.Gone.py"
    script.write_text(script.read_text().replace("Gone", "New"))
    script.rename(script.with_name(script.name.replace("Gone", "New")))
    build.ipclab("run", "--build", "build", "--results", "new")
    done = compare(build)
    assert done.returncode == 1
    assert "1 DISAPPEARED, 1 new, 0 same verdict" in done.stdout


def test_a_known_deviation_explains_a_difference(build: Build) -> None:
    two_runs(build, "record()", BAD)
    build.deviation()
    run(build, "newer")
    done = build.ipclab("compare", "old", "newer")
    assert done.returncode == 0
    assert "1 explained, 1 same verdict" in done.stdout


def test_the_environment_is_told(build: Build) -> None:
    two_runs(build, "record()", "record()")
    path = build.root / "new/run.json"
    fingerprint = {**json.loads(path.read_text())["fingerprint"], "driver": "999.1"}
    edit(path, {"fingerprint": fingerprint})
    done = compare(build)
    assert done.returncode == 0
    assert "environment: driver: " in done.stdout
    assert "-> 999.1" in done.stdout


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"state": "interrupted"}, "the run is interrupted"),
        ({"state": "running"}, "the run is running"),
        ({"filtered": True}, "a part of the suite only"),
        (
            {"requirements": {"LMEM-01": {"statement": "other", "kind": "MUST"}}},
            "the catalogues differ: LMEM-01",
        ),
    ],
)
def test_what_would_mislead_is_refused(
    build: Build, change: dict[str, Any], why: str
) -> None:
    two_runs(build, "record()", "record()")
    edit(build.root / "new/run.json", change)
    done = compare(build)
    assert done.returncode == 2
    assert why in done.stderr + done.stdout


def test_cut_records_are_refused(build: Build) -> None:
    two_runs(build, "record()", "record()")
    path = build.root / "new/records.jsonl"
    path.write_bytes(path.read_bytes()[:-10])
    done = compare(build)
    assert done.returncode == 2
    assert "the last line is cut off" in done.stderr + done.stdout


def test_another_catalogue_by_request(build: Build) -> None:
    two_runs(build, "record()", "record()")
    rows = {"LMEM-01": {"statement": "other", "kind": "MUST"}}
    edit(build.root / "new/run.json", {"requirements": rows})
    assert compare(build, "--any-catalogue").returncode == 0


def test_the_page_says_what_the_terminal_says(build: Build) -> None:
    two_runs(build, "record()", BAD)
    done = compare(build, "--html", "out.html", "--json", "out.json")
    assert done.returncode == 1
    page = (build.root / "out.html").read_text()
    document = json.loads((build.root / "out.json").read_text())
    (change,) = document["changes"]
    for text in (
        change["test"],
        change["reason"],
        '<td class="verdict regressed">regressed</td>',
        "The sentence of LMEM-01.",
        f"WORSE: 1 regressed. {document['same']} of",
        "Differences: 1 regressed.",
        '<th scope="row">E, I</th><td>the exporter, the importer</td>',
    ):
        assert text in page
    assert not re.search(r'(src|href)="(?!#)', page)  # self-contained
    assert "reference model" not in page


def test_a_page_of_equal_runs_says_so_in_one_sentence(build: Build) -> None:
    two_runs(build, BAD, BAD)
    assert compare(build, "--html", "out.html").returncode == 0
    page = (build.root / "out.html").read_text()
    assert "NOT WORSE: no test regressed or is gone." in page
    assert "tests have the same verdict." in page and "Short names" not in page


def test_a_test_is_counted_once(build: Build) -> None:
    """A test with another answer has the same verdict, so it is not counted again."""
    two_runs(build, "record(notes=['it opens'])", "record(notes=['it fails'])")
    assert compare(build, "--html", "out.html").returncode == 0
    page = (build.root / "out.html").read_text()
    assert "2 of 2 tests have the same verdict. Differences: 1 with another" in page


def test_a_reason_has_no_text_of_a_macro(build: Build) -> None:
    reason = (
        "expected 2, saw 3: Value of: reads(a)\\n"
        "  Actual: false (3 words are wrong)\\nExpected: true"
    )
    two_runs(build, "record()", f"violates(reason='{reason}')")
    done = compare(build, "--html", "out.html")
    page = (build.root / "out.html").read_text()
    for told in (done.stdout, page):
        assert "expected 2, saw 3: 3 words are wrong" in told
        assert "Value of" not in told and "Actual" not in told


@pytest.mark.parametrize(
    ("runs", "text"),
    [
        (["old"], "One of the two runs was made on the reference model"),
        (["old", "new"], "Made on the reference model"),
    ],
)
def test_a_page_of_a_model_run_says_so(
    build: Build, runs: list[str], text: str
) -> None:
    two_runs(build, "record()", "record()")
    for name in runs:
        edit(build.root / name / "run.json", {"backend": "model"})
    assert compare(build, "--html", "out.html").returncode == 0
    page = (build.root / "out.html").read_text()
    assert page.count(text) == 2  # once for the screen, once for paper
    assert "no test changed" in page


def test_a_page_that_cannot_be_written_is_told(build: Build) -> None:
    two_runs(build, "record()", "record()")
    done = compare(build, "--html", "none/out.html")
    assert done.returncode == 3
    assert "none/out.html: No such file" in done.stdout


def test_a_run_of_before_rows_had_sources_is_compared(build: Build) -> None:
    two_runs(build, "record()", "record()")
    run = json.loads((build.root / "old/run.json").read_text())
    for row in run["requirements"].values():
        del row["source"]
    edit(build.root / "old/run.json", run)
    assert compare(build).returncode == 0
    assert build.ipclab("report", "old").returncode == 0
