"""`ipclab compare --fidelity`: does the model answer as a recorded driver did?"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from conftest import PROBE, Build

BAD = "violates(reason='zeros')"
ABSENT = "record(outcome='not applicable', reason='needs 2 GPUs')"


def run(build: Build, name: str) -> None:
    """Make a run with its results in the folder `name`."""
    done = build.ipclab("run", "--build", "build", "--results", name)
    assert (build.root / name / "report.html").exists(), done.stdout


def on_both(build: Build, driver: str, model: str, row: str = "LMEM-01") -> None:
    """Make a run on a driver and a run on the model. One test runs the program `driver`
    in the first run and the program `model` in the second run.
    """
    switch = build.root / "model.switch"
    build.conformance(
        f"model = os.path.exists({str(switch)!r})\n"
        f"exec({model!r} if model else {driver!r})",
        "Suite.Odd",
        row,
    )
    build.conformance("record()", "Suite.Same", "LMEM-02")
    run(build, "driver")
    switch.touch()
    build.probe({**PROBE, "backend": "model"})
    run(build, "model")


def compare(
    build: Build, *options: str
) -> tuple[subprocess.CompletedProcess[str], list[Any]]:
    """Run the command; return how it ended, and its list of changes."""
    done = build.ipclab(
        "compare", "driver", "model", "--fidelity", "--json", "f.json", *options
    )
    path = build.root / "f.json"
    return done, json.loads(path.read_text())["changes"] if path.exists() else []


@pytest.mark.parametrize(
    ("driver", "model", "row", "what", "reason", "code"),
    [
        ("record()", BAD, "LMEM-01", "unexplained", "model: zeros", 1),
        (BAD, "record()", "LMEM-01", "unexplained", "driver: zeros", 1),
        (
            "record()",
            "record(outcome='lifted', reason='it works')",
            "LIM-01",
            "unexplained",
            "model: it works",
            1,
        ),
        ("record()", ABSENT, "LMEM-01", "one side only", "needs 2 GPUs", 0),
        (ABSENT, "record()", "LMEM-01", "one side only", "needs 2 GPUs", 0),
        (ABSENT, BAD, "LMEM-01", "unexplained", "needs 2 GPUs; model: zeros", 1),
        (ABSENT, "record()", "OBS-01", "one side only", "needs 2 GPUs", 0),
    ],
)
def test_a_difference_has_its_name(
    build: Build, driver: str, model: str, row: str, what: str, reason: str, code: int
) -> None:
    on_both(build, driver, model, row)
    done, [change] = compare(build)
    assert done.returncode == code, done.stdout
    assert (change["what"], change["requirement"]) == (what, row)
    assert reason in change["reason"]
    assert done.stdout.splitlines()[-1] == f"1 {what}, 1 same verdict"


def test_equal_answers_are_no_difference(build: Build) -> None:
    on_both(build, "record(duration_ms=9e5)", "record()")
    done, changes = compare(build)
    assert (done.returncode, changes) == (0, [])
    assert done.stdout.splitlines()[0].startswith("driver: ")
    assert done.stdout.splitlines()[-1] == "2 same verdict"


def test_what_is_only_observed_may_differ_and_is_told(build: Build) -> None:
    on_both(build, "record(notes=['A'])", "record(notes=['B'])", "OBS-01")
    done, [change] = compare(build)
    assert done.returncode == 0
    assert (change["what"], change["reason"]) == ("answers", "driver: A | model: B")


def test_a_known_deviation_explains(build: Build) -> None:
    build.deviation(test="Suite.Odd")
    on_both(build, BAD, "record()")
    done, [change] = compare(build)
    assert done.returncode == 0
    assert (change["what"], change["before"]) == ("explained", "deviates")
    assert change["reason"] == "seen on two machines"


def test_a_deviation_excuses_no_fault_of_the_model(build: Build) -> None:
    build.deviation(test="Suite.Odd")
    on_both(build, BAD, BAD)
    done, [change] = compare(build)
    assert done.returncode == 1
    assert (change["what"], change["after"]) == ("unexplained", "violates")


def test_a_limit_that_the_driver_lifted_explains_itself(build: Build) -> None:
    on_both(build, "record(outcome='lifted', reason='works')", "record()", "LIM-01")
    done, [change] = compare(build)
    assert (done.returncode, change["what"]) == (0, "explained")
    assert change["reason"] == "works"


@pytest.mark.parametrize(
    ("row", "code", "what"),
    [("LMEM-01", 0, "not recorded"), ("LMEM-02", 1, "DISAPPEARED")],
)
def test_tests_of_one_side(build: Build, row: str, code: int, what: str) -> None:
    """A test may be removed from the suite only if its row has other tests."""
    on_both(build, "record()", "record()")

    def renamed(text: str) -> str:
        return text.replace("Suite.Odd", "Suite.New").replace("LMEM-01", row)

    listing = build.folder / "CTestTestfile.cmake"
    listing.write_text(renamed(listing.read_text()))
    old = build.folder / "conformance.01_legacy_memory.Suite.Odd.py"
    new = old.with_name(old.name.replace("Odd", "New"))
    new.write_text(renamed(old.read_text()))
    (build.root / "model").rename(build.root / "before")
    run(build, "model")
    done, changes = compare(build)
    assert done.returncode == code
    assert [x["what"] for x in changes] == [what, "not recorded"]


def test_many_tests_that_nobody_recorded_are_counted(build: Build) -> None:
    on_both(build, "record()", "record()")
    (build.root / "model").rename(build.root / "before")
    for number in range(6):
        build.conformance("record()", f"Suite.Recent{number}", "LMEM-02")
    run(build, "model")
    done, changes = compare(build)
    assert len(changes) == 6
    assert "not recorded, 6 tests, which --html or --json lists" in done.stdout
    assert "Recent3" not in done.stdout


def reworded(build: Build, **row: str) -> None:
    """Change the words of a row in the model's run."""
    path = build.root / "model/run.json"
    document = json.loads(path.read_text())
    document["requirements"]["LMEM-01"].update(row)
    path.write_text(json.dumps(document))


def test_another_sentence_is_compared_by_request(build: Build) -> None:
    on_both(build, BAD, "record()")
    reworded(build, statement="The new one.")
    done, [change] = compare(build)
    assert done.returncode == 0
    assert (change["what"], change["reason"]) == (
        "not recorded",
        "its sentence was different then",
    )
    done, [change] = compare(build, "--any-catalogue")
    assert done.returncode == 1
    assert change["what"] == "unexplained"


def test_another_kind_is_never_compared(build: Build) -> None:
    on_both(build, BAD, "record()")
    reworded(build, kind="OBSERVE")
    done, [change] = compare(build, "--any-catalogue")
    assert done.returncode == 0
    assert (change["what"], change["reason"]) == (
        "not recorded",
        "its kind was different then",
    )


def test_either_order_and_no_other_pair(build: Build) -> None:
    on_both(build, "record()", "record()")
    done = build.ipclab("compare", "model", "driver", "--fidelity")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].startswith("driver: ")
    done = build.ipclab("compare", "model", "model", "--fidelity")
    assert done.returncode == 2
    assert "one on the reference model, not model and model" in done.stdout


def test_nothing_compared_is_not_green(build: Build) -> None:
    build.conformance(ABSENT)
    run(build, "driver")
    build.probe({**PROBE, "backend": "model"})
    run(build, "model")
    done, _ = compare(build)
    assert done.returncode == 2
    assert "no test was judged in both runs" in done.stdout


def test_the_page_names_driver_and_model(build: Build) -> None:
    on_both(build, "record()", BAD)
    arguments = ["compare", "driver", "model", "--fidelity", "--html", "out.html"]
    assert build.ipclab(*arguments).returncode == 1
    page = (build.root / "out.html").read_text()
    assert "<th>driver</th><th>model</th>" in page
    assert '<td class="verdict unexplained">unexplained</td>' in page
    assert page.count("One of the two runs was made on the reference model") == 2


def test_a_driver_recorded_before_rows_had_sources_is_compared(build: Build) -> None:
    on_both(build, "record()", BAD)
    path = build.root / "driver/run.json"
    document = json.loads(path.read_text())
    for row in document["requirements"].values():
        del row["source"]
    path.write_text(json.dumps(document))
    _, [change] = compare(build)
    assert change["what"] == "unexplained"  # and not "not recorded"
