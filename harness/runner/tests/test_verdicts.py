"""For each verdict, a program that gets this verdict."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import datetime
import json
import os
import re
import xml.etree.ElementTree as xml
from pathlib import Path

import psutil
import pytest

from conftest import FAILURE, PROBE, Build
from ipclab import ctest, deviations, failures, requirements, results, summary


@pytest.mark.parametrize(
    ("row", "program", "verdict", "code"),
    [
        ("LMEM-01", "record()", "conforms", 0),
        ("LMEM-02", "record()", "conforms", 0),
        ("LMEM-01", "record(outcome='violates'); sys.exit(1)", "violates", 1),
        ("LIM-01", "record()", "conforms", 0),
        ("LIM-01", "record(outcome='lifted', reason='it worked')", "lifted", 0),
        ("LMEM-01", "record(outcome='lifted')", "broken", 1),
        ("OBS-01", "record(notes=['seen'])", "observed", 1),  # judged nothing
        ("UND-01", "record()", "observed", 1),
        ("OBS-01", "record(outcome='violates'); sys.exit(1)", "violates", 1),
        ("LMEM-01", "record(outcome='not applicable')", "not applicable", 1),
        ("LMEM-01", "record(outcome='crashed'); sys.exit(1)", "crashed", 1),
        ("LMEM-01", "record(outcome='hung'); sys.exit(1)", "hung", 1),
        ("LMEM-01", "record(outcome='broken'); sys.exit(1)", "broken", 1),
    ],
)
def test_conformance(
    build: Build, row: str, program: str, verdict: str, code: int
) -> None:
    build.conformance(program, row=row)
    outcome = build.run()
    assert (outcome.only["verdict"], outcome.code) == (verdict, code), outcome.text
    assert outcome.only["requirement"] == row
    assert outcome.json["counts"] == {verdict: 1}
    last = outcome.text.splitlines()[-1]
    assert f"1 test: 1 {summary.WORDS[verdict][0]}." in last
    assert last.startswith("FAILS: " if code else "PASSES: ") or "judged" in last


@pytest.mark.parametrize(
    ("program", "verdict", "reason"),
    [
        ("pass", "conforms", ""),
        ("print('SKIP: only one GPU'); sys.exit(77)", "not applicable", "only one GPU"),
        ("sys.exit(77)", "broken", "exit 77 without a line 'SKIP: <reason>'"),
        ("print('  -> cudaErrorX (1): x'); sys.exit(1)", "violates", "-> cudaErrorX"),
        (
            "print('exporter reads: 0 wrong\\nimporter reads: 12 wrong\\nfrees it');"
            "sys.exit(1)",
            "violates",
            "exit 1: importer reads: 12 wrong",
        ),
        ("sys.exit(5)", "violates", "exit 5"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "crashed", "killed by SIGSEGV"),
    ],
)
def test_sample(build: Build, program: str, verdict: str, reason: str) -> None:
    build.sample(program)
    record = build.run().only
    assert record["verdict"] == verdict
    assert reason in record["reason"]
    assert (record["suite"], record["kind"], record["requirement"]) == (
        "sample",
        None,
        None,
    )


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("pass", "wrote no record (exit 0)"),
        ("sys.exit(1)", "wrote no record (exit 1)"),
        ("os.kill(os.getpid(), 11)", "wrote no record (killed by SIGSEGV)"),
        ("record(); os.kill(os.getpid(), 11)", "killed by SIGSEGV after its record"),
        ("record(); sys.exit(1)", "says 'conforms', but the program ended with exit 1"),
        ("record(); record()", "wrote 2 records"),
        ("record(test='Suite.Other')", "of another test: Suite.Other"),
        ("record(requirement='LMEM-02')", "names row LMEM-02"),
        ("record(outcome='fine')", "record.outcome"),
        ("record(extra=1)", "record.extra"),
        ("record(duration_ms='long')", "record.duration_ms"),
        ("record(roles=[{'name': 'exporter'}])", "record.roles[0].pid"),
        (
            "open(os.environ['IPCLAB_RECORD'], 'w').write(json.dumps(LINE)[:40])",
            "cut off",
        ),
        ("open(os.environ['IPCLAB_RECORD'], 'w').write('what\\n')", "not JSON"),
        ("open(os.environ['IPCLAB_RECORD'], 'wb').write(b'\\xff\\n')", "not UTF-8"),
    ],
)
def test_broken(build: Build, program: str, reason: str) -> None:
    build.conformance(program)
    outcome = build.run()
    assert (outcome.only["verdict"], outcome.code) == ("broken", 1)
    assert reason in outcome.only["reason"]


def test_time_limit_of_a_conformance_test_is_broken(build: Build) -> None:
    build.conformance("record(); time.sleep(60)", timeout=0.5)
    record = build.run().only
    assert record["verdict"] == "broken"
    assert "time limit, 0.5 s" in record["reason"]


def test_sample_that_ignores_sigterm_is_hung_and_gone(build: Build) -> None:
    build.sample(
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print(os.getpid(), flush=True)
        time.sleep(60)
        """,
        timeout=3,
    )
    record = build.run().only
    assert record["verdict"] == "hung"
    assert not psutil.pid_exists(int(record["roles"][0]["output"]))


@pytest.mark.parametrize(
    "option",
    ["", "process_group=0", "start_new_session=True"],
    ids=["group", "own-group", "own-session"],
)
def test_process_left_behind_is_named_and_gone(build: Build, option: str) -> None:
    build.conformance(
        f"""
        left = subprocess.Popen(["sleep", "61"], {option})
        record(notes=[str(left.pid)])
        """
    )
    outcome = build.run()
    assert (outcome.only["verdict"], outcome.code) == ("broken", 1)
    pid = outcome.only["notes"][0]
    assert outcome.only["reason"] == f"left behind: sleep ({pid})"
    assert not psutil.pid_exists(int(pid))


def test_flood_of_output_is_capped_and_keeps_both_ends(build: Build) -> None:
    build.sample(
        "print('first'); print('x' * (8 << 20)); print('SKIP: last'); sys.exit(77)"
    )
    record = build.run().only
    output = record["roles"][0]["output"]
    assert output.startswith("first")
    assert "bytes left out" in output
    assert len(output) < 200_000
    assert record["reason"] == "last"


def test_output_that_is_no_text(build: Build) -> None:
    build.sample(r"os.write(1, b'\xff\0<b>\x1b[31m'); sys.exit(1)")
    outcome = build.run()
    assert outcome.only["verdict"] == "violates"
    assert (outcome.folder / "junit.xml").exists()
    xml.parse(outcome.folder / "junit.xml")


def test_program_that_is_not_there(build: Build) -> None:
    gone = build.root / "gone"
    gone.write_text("#!/bin/sh\n")
    gone.chmod(0o755)
    build.sample(f"import os; os.unlink({str(gone)!r})")  # runs first
    build.raw(
        f"add_test(sample.02_gone {gone})\n"
        "set_tests_properties(sample.02_gone PROPERTIES "
        'LABELS "sample;02_gone;gpu1" TIMEOUT 5)\n'
    )
    outcome = build.run()
    [record] = (x for x in outcome.records if x["ctest"] == "sample.02_gone")
    assert record["verdict"] == "broken"
    assert "is it built?" in record["reason"]


def test_unknown_row_fails_the_run(build: Build) -> None:
    build.conformance("record()", row="NEW-01")
    outcome = build.run()
    assert (outcome.only["verdict"], outcome.code) == ("broken", 1)
    assert outcome.only["reason"] == "NEW-01 is no row of the catalogue"


def test_conformance_test_without_a_row_is_broken(build: Build) -> None:
    build.conformance("record()", row=None)
    assert build.run().only["verdict"] == "broken"


def test_environment_of_a_test(build: Build) -> None:
    build.conformance(
        """
        document = json.load(open(os.environ["IPCLAB_CAPABILITIES"]))
        names = ["IPCLAB_SEED", "IPCLAB_EXCLUSIVE", "CUDA_VISIBLE_DEVICES"]
        record(notes=[document["backend"], *(str(os.environ.get(x)) for x in names)])
        """
    )
    assert build.run("--seed", "7").only["notes"] == ["cuda", "7", "1", "None"]


@pytest.mark.parametrize("options, value", [((), "None"), (("--delays",), "1")])
def test_delays_are_asked_for(
    build: Build, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], value: str
) -> None:
    monkeypatch.setenv("IPCLAB_DELAYS", "of the shell")
    build.conformance("record(notes=[str(os.environ.get('IPCLAB_DELAYS'))])")
    assert build.run(*options).only["notes"] == [value]


def test_nothing_of_a_run_stays_in_tmp(build: Build, tmp_path: Path) -> None:
    build.conformance("record(notes=[os.environ['IPCLAB_RECORD']])")
    assert not Path(build.run().only["notes"][0]).parent.exists()


def test_files_of_a_killed_test_do_not_stay(build: Build, tmp_path: Path) -> None:
    build.conformance(
        """
        import tempfile
        _, path = tempfile.mkstemp()
        print("left", path, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    outcome = build.run()
    assert outcome.only["verdict"] == "broken"
    path = re.search(r"left (\S+)", json.dumps(outcome.only))
    assert path and not Path(path[1]).exists()


# --- deviations ---------------------------------------------------------------


def test_deviation_is_shown_and_fails_only_if_strict(build: Build) -> None:
    build.conformance("violates()")
    build.deviation()
    outcome = build.run()
    assert (outcome.only["verdict"], outcome.code) == ("deviates", 0)
    assert outcome.only["deviation"]["evidence"] == "seen on two machines"
    assert build.ipclab("run", "--build", "build", "--strict").returncode == 1


def test_a_row_may_have_two_entries(build: Build) -> None:
    """The page tells them apart, and shows how much harm each of them does."""
    for name in ("A", "B"):
        build.conformance(
            f"record(test='Suite.{name}', outcome='violates', failures=[FAILURE])\n"
            "sys.exit(1)",
            name=f"Suite.{name}",
        )
        build.deviation(test=f"Suite.{name}", severity="hidden wait")
    outcome = build.run()
    assert "known deviations of this driver: hidden wait: LMEM-01\n" in outcome.text
    page = (outcome.folder / "report.html").read_text()
    ids = re.findall(r' id="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert {"deviation-Suite.A", "deviation-Suite.B"} <= set(ids)
    assert 'href="#deviation-Suite.A">Deviation</a>, hidden wait: seen' in page


def test_a_failing_test_says_what_it_rests_on_and_where_it_was_checked(
    build: Build,
) -> None:
    build.conformance("violates()", row="LMEM-02")
    outcome = build.run()
    expected = "inferred: the call must be refused, but no sentence names the code"
    assert f"  expected answer: {expected}; checked at a_test.cu:7\n" in outcome.text
    assert "no recorded GPU" not in outcome.text
    page = (outcome.folder / "report.html").read_text()
    assert f"Expected answer: {expected}. Checked at <code>a_test.cu:7</code>." in page


def test_a_failing_test_says_that_no_gpu_has_judged_its_row(build: Build) -> None:
    build.rows({"ZZZZ-99": "MUST"})
    build.conformance("violates()", row="ZZZZ-99")
    assert "; no recorded GPU has judged this row yet\n" in build.run().text


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"kind": "ERROR", "code": "documented"}, "documented: a sentence names"),
        ({"kind": "ERROR"}, "inferred: the call must be refused"),
        ({"kind": "DERIVED", "follows_from": ["A-1", "A-2"]}, "inferred from A-1, A-2"),
        ({"kind": "MUST"}, "documented: a sentence promises it"),
    ],
)
def test_what_an_expected_answer_rests_on(row: dict[str, str], told: str) -> None:
    assert deviations.basis(row).startswith(told)


@pytest.mark.parametrize(
    "changes",
    [
        {"gpus": ["B200"]},
        {"vendor": "model"},
        {"driver": {"from": "1.0", "to": "2.0"}},
        {"requirement": "LMEM-02"},
        {"test": "Suite.Other"},
        {"expires": "2020-01-01"},
    ],
)
def test_deviation_of_something_else_excuses_nothing(
    build: Build, changes: dict[str, object]
) -> None:
    build.conformance("violates()")
    build.deviation(**changes)
    outcome = build.run()
    assert (outcome.only["verdict"], outcome.code) == ("violates", 1)


@pytest.mark.parametrize(
    ("program", "unknown"),
    [
        ("violates(seen='cudaErrorUnknown')", "cudaErrorUnknown"),
        ("violates(call='cudaFree(data)')", "cudaFree(data)"),
        ("violates(step='a pipe')", "a pipe"),
        (
            "record(outcome='violates', failures=[FAILURE, {**FAILURE, 'seen': None, "
            "'message': 'Expected: (a) < (b), actual: 2 vs 1'}]); sys.exit(1)",
            "(a) < (b): 2 vs 1",
        ),
    ],
    ids=["code", "call", "step", "second failure"],
)
def test_a_deviation_excuses_what_was_measured_only(
    build: Build, program: str, unknown: str
) -> None:
    build.conformance(program)
    build.deviation()
    outcome = build.run()
    assert (outcome.only["verdict"], outcome.code) == ("violates", 1)
    assert "deviations.json does not know: " in outcome.only["reason"]
    assert unknown in outcome.only["reason"]


@pytest.mark.parametrize("outcome", ["crashed", "hung", "broken"])
def test_a_deviation_excuses_no_crash(build: Build, outcome: str) -> None:
    build.conformance(f"record(outcome='{outcome}', failures=[FAILURE]); sys.exit(1)")
    build.deviation()
    done = build.run()
    assert (done.only["verdict"], done.code) == (outcome, 1)


def test_a_violation_without_a_failure_is_none_that_was_measured(build: Build) -> None:
    build.conformance("record(outcome='violates', reason='?'); sys.exit(1)")
    build.deviation()
    assert build.run().only["verdict"] == "violates"


def test_a_deviation_may_list_several_checks_and_steps(build: Build) -> None:
    build.conformance(
        """
        other = {**FAILURE, "seen": None, "step": "a pipe",
                 "message": "Value of: usable\\n  Actual: false\\nExpected: true\\n"}
        record(outcome="violates", failures=[FAILURE, other]); sys.exit(1)
        """
    )
    build.deviation(
        failures=[
            {"check": FAILURE["call"], "seen": ["cudaErrorUnknown", "cudaSuccess"]},
            {"check": "usable", "seen": ["false"], "steps": ["a socket", "a pipe"]},
        ]
    )
    assert build.run().only["verdict"] == "deviates"


@pytest.mark.parametrize("other", ["not applicable", "conforms"])
def test_a_deviation_may_be_of_a_test_that_cannot_run_here(
    build: Build, other: str
) -> None:
    build.conformance(f"record(outcome='{other}', reason='one GPU')")
    build.conformance("record()", name="Suite.Other")
    build.deviation()
    outcome = build.run()
    assert outcome.code == (1 if other == "conforms" else 0), outcome.text


def test_a_deviation_holds_for_its_test_not_for_others_of_the_row(build: Build) -> None:
    build.conformance("violates()")
    build.conformance("violates()", name="Suite.Other")
    build.deviation()
    outcome = build.run()
    assert outcome.code == 1
    verdicts = {x["test"]: x["verdict"] for x in outcome.records}
    assert verdicts == {"Suite.Name": "deviates", "Suite.Other": "violates"}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, "LMEM-01 conforms after all (Suite.Name)"),
        ({"requirement": "GONE-01"}, "GONE-01 is no row of the catalogue"),
        ({"expires": "2020-01-01"}, "LMEM-01 expired on 2020-01-01; ask platform"),
        ({"test": "Suite.Gone"}, "LMEM-01: CTest's list has no test Suite.Gone"),
        ({"requirement": "LMEM-02"}, "LMEM-02: Suite.Name is a test of LMEM-01"),
    ],
)
def test_stale_deviation_fails_the_run(
    build: Build, changes: dict[str, object], problem: str
) -> None:
    build.conformance("record()")
    build.deviation(**changes)
    outcome = build.run()
    assert (outcome.only["verdict"], outcome.code) == ("conforms", 1)
    assert problem in outcome.text
    assert any(problem in x for x in outcome.json["problems"])


@pytest.mark.parametrize(
    ("test", "arguments", "code"),
    [
        ("NotBuilt.Name", ["-k", "Suite"], 0),
        ("NotBuilt.Name", [], 1),
        ("Suite.Gone", ["-k", "Suite"], 1),
    ],
)
def test_for_a_part_of_the_run_a_part_of_the_suite_is_enough(
    build: Build, test: str, arguments: list[str], code: int
) -> None:
    build.conformance("record()")
    build.deviation(test=test)
    outcome = build.run(*arguments)
    assert outcome.code == code
    problem = f"LMEM-01: CTest's list has no test {test}"
    assert (problem in outcome.text) == (code == 1)


@pytest.mark.parametrize("row", ["OBS-01", "UND-01"])
def test_what_is_never_judged_has_no_deviation(build: Build, row: str) -> None:
    build.conformance("violates()", row=row)
    build.deviation(requirement=row)
    outcome = build.run()
    assert outcome.code == 1
    assert f"{row} is of kind " in outcome.text
    assert "which has no deviations" in outcome.text


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"gpus": []}, "LMEM-01: name the drivers and GPUs that were measured"),
        ({"driver": None}, "LMEM-01: name the drivers and GPUs that were measured"),
        ({"failures": []}, "LMEM-01: name the checks that failed and what they saw"),
        ({"failures": [{"check": "x"}]}, "deviations[0].failures[0].seen: is missing"),
        ({"gpu": "H200"}, "deviations[0].gpu: there is no such field"),
    ],
)
def test_an_entry_says_what_was_measured(
    build: Build, changes: dict[str, object], wrong: str
) -> None:
    build.conformance("record()")
    build.deviation(**changes)
    outcome = build.run()
    assert outcome.code == 3
    assert wrong in outcome.text


@pytest.mark.parametrize(
    ("driver", "applies"),
    [
        ("580.65.06", True),
        ("580.0", True),
        ("580.1000", False),
        ("579.99", False),
        ("1000.1", False),
        (None, False),
    ],
)
def test_deviation_of_a_range_of_drivers(
    build: Build, driver: str | None, applies: bool
) -> None:
    build.conformance("violates()")
    build.deviation(driver={"from": "580.0", "to": "580.999"}, expires="2026-06-30")
    path = build.source / "conformance" / "deviations.json"
    [entry] = deviations.read_deviations(path)
    cases = ctest.read(build.folder)
    [case] = [x for x in cases if x.suite == "conformance"]
    last_day = datetime.date(2026, 6, 30)
    here = deviations.Deviations([entry], "cuda", driver, ["NVIDIA H200 NVL"], last_day)
    assert here.entry_for(case.test, case.requirement) == (entry if applies else None)
    rows = {case.test: case.requirement}
    assert here.problems({"LMEM-01": "MUST"}, rows) == []


@pytest.mark.parametrize(
    ("runtime", "applies"), [(13050, True), (13000, False), (None, False)]
)
def test_deviation_of_one_runtime(
    build: Build, runtime: int | None, applies: bool
) -> None:
    build.conformance("violates()")
    build.deviation(runtime="13.5", expires="2026-06-30")
    path = build.source / "conformance" / "deviations.json"
    [entry] = deviations.read_deviations(path)
    [case] = [x for x in ctest.read(build.folder) if x.suite == "conformance"]
    day = datetime.date(2026, 6, 30)
    driver = entry["driver"]["from"]
    here = deviations.Deviations([entry], "cuda", driver, ["NVIDIA H200"], day, runtime)
    assert here.entry_for(case.test, case.requirement) == (entry if applies else None)


@pytest.mark.parametrize(
    ("message", "check", "seen"),
    [
        (
            "Expected equality of these values:\n  used(pool)\n    Which is: 8\n"
            "  kNone\n    Which is: 0\nafter the free\n",
            "used(pool) == kNone",
            "8 vs 0",
        ),
        (
            "Expected equality of these values:\n  count\n    Which is: 8\n  3\n",
            "count == 3",
            "8 vs 3",
        ),
        (  # a message may end without a line end
            "Expected equality of these values:\n  used\n    Which is: 8\n"
            "  now\n    Which is: 0",
            "used == now",
            "8 vs 0",
        ),
        ("Value of: a(b)\n  Actual: false\nExpected: true\n", "a(b)", "false"),
        ("Expected: (a) >= (b), actual: 0 vs 33", "(a) >= (b)", "0 vs 33"),
        ('Expected: (a) != (b), actual: "\\x1" vs "\\x1"', "(a) != (b)", failures.SAME),
        ("Failed\nthe importer died\n", "the importer died", failures.FAILED),
        ("no message of GoogleTest\nmore", "no message of GoogleTest", failures.FAILED),
    ],
)
def test_the_signature_of_a_failure(message: str, check: str, seen: str) -> None:
    failure = {**FAILURE, "expected": None, "seen": None, "message": message}
    found = failures.signature(failure)
    assert (found.check, found.seen, found.step) == (check, seen, None)


def test_every_recorded_deviation_is_known_by_deviations_json() -> None:
    """An entry excuses what was measured, so it names each deviation of the recorded
    runs. A new entry may have no recorded run yet. A test that is gone since the run,
    because the documentation does not carry its check, needs no entry. Neither does a
    row that has become a PRECONDITION: its answer is no longer judged.
    """
    top = Path(__file__).resolve().parents[3]
    entries = deviations.read_deviations(top / "conformance/deviations.json")
    # Since the run a test may have moved to another suite; its row and its name stay.
    by_test = {
        (entry["requirement"], entry["test"].partition(".")[2]): entry
        for entry in entries
    }
    rows = requirements.read(top / "conformance")
    sources = [x.read_text() for x in (top / "conformance").glob("*/*.cu")]
    sources += [x.read_text() for x in (top / "conformance").glob("*/*.cc")]
    tests = set(re.findall(r"^TEST\(\w+, (\w+)\)", "".join(sources), re.MULTILINE))
    known = 0
    for folder in sorted((top / "docs/results").glob("*/")):
        for record in results.read(folder).records:
            name = record["test"].partition(".")[2]
            row = record["requirement"]
            if record["verdict"] == "deviates" and (row, name) in by_test:
                entry = by_test[row, name]
                assert deviations.unknown_failure(entry, record) is None
                known += 1
            elif (
                record["verdict"] == "deviates"
                and rows.get(row, {}).get("kind") != deviations.PRECONDITION
            ):
                # The test belongs to another row now, or was split.
                split = [entry for (of, _), entry in by_test.items() if of == row]
                assert row in rows
                assert (
                    name not in tests
                    or name in {test for _, test in by_test}
                    or any(deviations.unknown_failure(x, record) is None for x in split)
                )
    assert known


def test_a_derived_row_is_judged(build: Build) -> None:
    build.rows({"LMEM-01": "MUST", "DER-01": "DERIVED"})
    build.conformance("violates()", row="DER-01")
    outcome = build.run()
    assert outcome.code == 3
    assert "DER-01: a row of kind DERIVED needs 'follows_from'" in outcome.text
    document = json.loads(build.room.read_text())
    document["rows"][1]["follows_from"] = ["LMEM-09"]
    build.room.write_text(json.dumps(document))
    assert "DER-01 follows from LMEM-09: no such row" in build.run().text
    document["rows"][1]["follows_from"] = ["LMEM-01"]
    build.room.write_text(json.dumps(document))
    outcome = build.run()
    assert (outcome.only["verdict"], outcome.code) == ("violates", 1)
    assert outcome.only["kind"] == "DERIVED"
    assert outcome.json["requirements"]["DER-01"]["follows_from"] == ["LMEM-01"]
    assert "DER-01 DERIVED" in outcome.text
    page = (outcome.folder / "report.html").read_text()
    assert "Follows from LMEM-01." in page


# --- repetition and requirement lists -------------------------------------------

EVERY_OTHER = """
seen = "{folder}/seen"
count = len(open(seen).read()) if os.path.exists(seen) else 0
open(seen, "a").write("x")
if count % 2:
    record(outcome="violates", reason="zeros")
    sys.exit(1)
record()
"""


def test_repeated_disagreement_is_flaky(build: Build, tmp_path: Path) -> None:
    build.conformance(EVERY_OTHER.format(folder=tmp_path))
    outcome = build.run("--repeat", "5")
    assert outcome.code == 1
    assert [x["attempt"] for x in outcome.records] == [1, 2, 3, 4, 5]
    assert "flaky (2 of 5)" in outcome.text
    assert "1 test: 1 is flaky." in outcome.text.splitlines()[-1]
    assert outcome.json["counts"] == {"flaky": 1}
    assert "flaky (2 of 5)" in (outcome.folder / "report.html").read_text()


def test_repeated_agreement_is_one_row(build: Build) -> None:
    build.conformance("record()")
    outcome = build.run("--repeat", "3")
    assert (outcome.code, len(outcome.records)) == (0, 3)
    assert outcome.text.splitlines()[-1].endswith("1 test: 1 conforms.")


def test_required_rows(build: Build, tmp_path: Path) -> None:
    build.conformance("record()")
    build.conformance("record(outcome='not applicable')", "Suite.Two", "LMEM-02")
    needed = tmp_path / "needed"
    needed.write_text("LMEM-01  # the first\n\n")
    assert build.run("--require", str(needed)).code == 0
    needed.write_text("LMEM-02\n")
    again = build.ipclab("run", "--build", "build", "--require", str(needed))
    assert again.returncode == 1
    assert "LMEM-02 had to be judged here and was not" in again.stdout


# --- selection ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["-k", "LMEM-01"], {"One"}),
        (["-k", "lmem-02"], {"Two"}),
        (["-k", "01_legacy_memory"], {"One", "Two"}),
        (["-k", "sample"], {"02_other"}),
        (["-k", "Suite.One or 02_other"], {"One", "02_other"}),
        (["-k", "not sample"], {"One", "Two"}),
        (["--gpus", "1"], {"One", "02_other"}),
    ],
)
def test_selection(build: Build, arguments: list[str], names: set[str]) -> None:
    build.conformance("record()", "Suite.One", "LMEM-01")
    build.conformance("record()", "Suite.Two", "LMEM-02", gpus=2)
    build.sample("pass", "02_other")
    outcome = build.run(*arguments)
    assert {x["test"].removeprefix("Suite.") for x in outcome.records} == names
    assert outcome.json["filtered"] is True


@pytest.mark.parametrize(
    ("arguments", "code"), [(["-k", "nothing_at_all"], 1), (["-k", "and and"], 2)]
)
def test_selection_of_nothing_is_not_green(
    build: Build, arguments: list[str], code: int
) -> None:
    build.conformance("record()")
    outcome = build.run(*arguments)
    assert outcome.code == code
    assert "Traceback" not in outcome.text
    assert code == 2 or "judged nothing" in outcome.text


def test_junit_says_row_and_verdict(build: Build) -> None:
    build.conformance("record()", "Suite.One", "LMEM-01")
    build.conformance("violates()", "Suite.Two", "LMEM-02")
    build.sample("print('SKIP: no'); sys.exit(77)")
    tree = xml.parse(build.run().folder / "junit.xml")
    found = {}
    for case in tree.iter("testcase"):
        said = {x.get("name"): x.get("value") for x in case.iter("property")}
        found[case.get("name")] = (
            said["requirement"],
            said["verdict"],
            [x.tag for x in case if x.tag != "properties"],
        )
    assert found == {
        "Suite.One": ("LMEM-01", "conforms", []),
        "Suite.Two": ("LMEM-02", "violates", ["failure"]),
        "01_legacy_memory": ("", "not applicable", ["skipped"]),
    }


def test_fingerprint_and_capabilities_are_in_run_json(build: Build) -> None:
    build.conformance("record()")
    outcome = build.run()
    fingerprint = outcome.json["fingerprint"]
    assert outcome.only["fingerprint"] == fingerprint["id"]
    assert [gpu["uuid"] for gpu in fingerprint["gpus"]] == ["GPU-0", "GPU-1"]
    assert json.dumps(outcome.json["probe"]["capabilities"][1]["reason"])
    assert fingerprint["limits"]["nofile"]


def test_the_drivers_own_names_are_removed(build: Build) -> None:
    build.sample(
        "open(f'/dev/shm/cuda.shm.{os.geteuid()}.{os.getpid():x}.1', 'w').close()"
    )
    record = build.run().only
    assert record["verdict"] == "conforms"
    pid = record["roles"][0]["pid"]
    assert not list(Path("/dev/shm").glob(f"cuda.shm.{os.geteuid()}.{pid:x}.*"))


def test_the_drivers_names_of_further_processes_are_removed(build: Build) -> None:
    mine = Path(f"/dev/shm/cuda.shm.{os.geteuid()}.{os.getpid():x}.ipclab")
    build.sample(
        "import subprocess, time\n"
        "name = f'/dev/shm/cuda.shm.{os.geteuid()}.%x.1'\n"
        f"open({str(mine)!r}, 'w').close()\n"
        "if len(sys.argv) == 1:\n"
        "    child = subprocess.run([sys.executable, __file__, 'again'])\n"
        "    sys.exit(child.returncode)\n"
        "open(name % os.getpid(), 'w').close()\n"
        "print('child', os.getpid())\n"
        "time.sleep(2)  # longer than a busy machine needs to look\n"
    )
    try:
        record = build.run().only
        assert record["verdict"] == "conforms"
        pid = int(record["roles"][0]["output"].split()[1])
        assert not list(Path("/dev/shm").glob(f"cuda.shm.{os.geteuid()}.{pid:x}.*"))
        assert mine.exists(), "of a process that is not the sample's"
    finally:
        mine.unlink(missing_ok=True)


def test_the_probe_tells_the_driver(build: Build) -> None:
    build.probe({**PROBE, "driver": "580.159.04"})
    build.sample("pass")
    outcome = build.run()
    assert "driver 580.159.04 (CUDA" in outcome.text.splitlines()[0]
    assert outcome.json["fingerprint"]["driver"] == "580.159.04"
