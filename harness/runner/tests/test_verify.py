"""`ipclab qualify` and `ipclab verify`: the conditions for a submitted run."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import copy
import gzip
import hashlib
import json
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import PROBE, Build
from ipclab import explore, fingerprint, manifest, reader

Document = dict[str, Any]
Edit = Callable[[Document, list[Document]], None]

A = "conformance.01_legacy_memory.Suite.A"
B = "conformance.01_legacy_memory.Suite.B"
ENTRY = {
    "requirement": "LMEM-01",
    "vendor": "nvidia",
    "driver": None,
    "gpu": None,
    "evidence": "seen",
    "owner": "platform",
    "expires": "2020-01-31",
}
OTHER = {"requirement": "X", "expires": "3000-01-01"}


def suite(build: Build) -> None:
    """Two rows with a test each, and a lesson."""
    build.rows({"LMEM-01": "MUST", "LMEM-02": "ERROR"})
    build.conformance("record()", "Suite.A", "LMEM-01")
    build.conformance("record()", "Suite.B", "LMEM-02")
    build.sample("print('lesson')")


def _seal(data: bytes) -> dict[str, Any]:
    """What run.json says of a records.jsonl with this content."""
    seal = reader.Seal()
    seal.add(data)
    return seal.document


def qualify(build: Build, *arguments: str) -> tuple[int, str]:
    """Run `ipclab qualify` with the results in `out`; return exit code and output."""
    done = build.ipclab("qualify", "--build", "build", "--results", "out", *arguments)
    return done.returncode, done.stdout


def verify(build: Build, *arguments: str) -> tuple[int, list[str]]:
    """`ipclab verify out`: its exit code and its complaints."""
    done = build.ipclab("verify", "out", *arguments)
    lines = done.stdout.splitlines()
    wrong = [line.removeprefix("not verified: ") for line in lines]
    verified = [line for line in lines if line.startswith("verified: ")]
    assert len(verified) == (done.returncode == 0), lines
    return done.returncode, [] if verified else wrong


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """One qualified run for all tests that edit a copy of it."""
    build = Build(tmp_path_factory.mktemp("good"))
    suite(build)
    code, said = qualify(build)
    assert code == 0, said
    told = "verified: 3 tests, 9 records, 2 x NVIDIA H200, driver "
    assert said.splitlines()[-1].startswith(told)
    assert said.splitlines()[-1].endswith(": 3 conforms")
    return build


@pytest.fixture
def handed_in(good: Build, tmp_path: Path) -> Build:
    """The good run's results, in a tree without its build."""
    shutil.copytree(good.root / "out", tmp_path / "out")
    return Build(tmp_path)


def rewrite(folder: Path, change: Edit, seal: bool) -> None:
    """Edit run.json and the records. With `seal`, compute all digests again."""
    path, lines = folder / "run.json", folder / "records.jsonl"
    run = json.loads(path.read_text())
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    change(run, records)
    data = "".join(json.dumps(record) + "\n" for record in records).encode()
    lines.write_bytes(data)
    if seal:
        run["manifest"]["records"] = _seal(data)
        run = manifest.sealed(run)
    path.write_text(json.dumps(run))


def of(records: list[Document], name: str, attempt: int) -> Document:
    """The record of an attempt."""
    [found] = [x for x in records if (x["ctest"], x["attempt"]) == (name, attempt)]
    return found


MATRIX: Document = {
    "version": 2,
    "suite": "conformance",
    "backend": "cuda",
    "machine": "",
    "made": "2026-11-22T00:00:00+00:00",
    "seconds": 1.0,
    "digest": "0" * 64,
    "partial": None,
    "problems": [],
    "unsound": [],
    "baseline": 1,
    "unproved": [],
    "rows": [{"id": "LMEM-01", "statement": "", "kind": "MUST", "lesson": None}],
    "faults": [
        {
            "name": "cudaFree.noop",
            "kind": "operator",
            "function": "cudaFree",
            "operator": "noop",
            "what": "does nothing",
            "profile": None,
            "result": "killed",
            "note": "",
            "why": "",
            "wrong": False,
            "left": 0,
            "tests": 1,
            "fired": 1,
            "cells": [
                {
                    "row": "LMEM-01",
                    "result": "killed",
                    "test": A,
                    "verdict": "violates",
                    "reason": "zeros",
                }
            ],
        }
    ],
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"machine": "a toaster"}, "mutants.json: made on a toaster, the run on"),
        ({"backend": "model"}, "mutants.json: made on model, the run on cuda"),
        ({"partial": "no operators"}, "mutants.json: not whole: no operators"),
    ],
)
def test_a_recorded_machine_has_its_kill_matrix(
    handed_in: Build, change: Document, said: str | None
) -> None:
    """A folder like those in docs/results/, with packed records and a kill matrix:
    `verify` checks the matrix, and `report` shows it.
    """
    folder = handed_in.root / "out"
    machine = json.loads((folder / "run.json").read_text())["machine"]
    document = {**MATRIX, "machine": machine, **change}
    (folder / "mutants.json").write_text(json.dumps(document))
    lines = folder / "records.jsonl"
    with gzip.open(folder / "records.jsonl.gz", "wb") as packed:
        packed.write(lines.read_bytes())
    lines.unlink()
    code, wrong = verify(handed_in)
    assert code == (said is not None)
    assert [x.startswith(said) for x in wrong if said] == ([True] if said else [])
    assert handed_in.ipclab("report", "out").returncode == 0
    page = (folder / "report.html").read_text()
    assert "Kill matrix" in page and "cudaFree.noop: killed" in page


def test_a_kill_matrix_of_which_a_part_is_left(handed_in: Build) -> None:
    folder = handed_in.root / "out"
    document = copy.deepcopy(MATRIX)
    document["machine"] = json.loads((folder / "run.json").read_text())["machine"]
    document["faults"][0] |= {"result": "not run", "cells": []}
    (folder / "mutants.json").write_text(json.dumps(document))
    assert verify(handed_in) == (1, ["mutants.json: not whole: 1 faults not run"])


def test_the_copy_is_good(handed_in: Build) -> None:
    assert verify(handed_in) == (0, [])
    rewrite(handed_in.root / "out", lambda _run, _records: None, seal=True)
    assert verify(handed_in) == (0, [])


def edited(_run: Document, records: list[Document]) -> None:
    of(records, A, 2)["reason"] = "a better one"


def removed(_run: Document, records: list[Document]) -> None:
    records.remove(of(records, A, 2))


def doubled(_run: Document, records: list[Document]) -> None:
    records.append(copy.deepcopy(of(records, A, 2)))


def foreign(_run: Document, records: list[Document]) -> None:
    of(records, A, 2)["fingerprint"] = "0123456789ab"


@pytest.mark.parametrize("change", [edited, removed, doubled, foreign])
def test_changed_records_have_another_digest(handed_in: Build, change: Edit) -> None:
    rewrite(handed_in.root / "out", change, seal=False)
    code, wrong = verify(handed_in)
    assert code == 1
    assert wrong[0].startswith("records.jsonl: was edited or damaged after the run")


def test_one_byte_is_noticed(handed_in: Build) -> None:
    path = handed_in.root / "out/records.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"seed": 1', b'"seed": 2', 1))
    code, [wrong] = verify(handed_in)
    assert code == 1
    assert wrong.startswith("records.jsonl: was edited or damaged")


def test_the_seal_is_of_what_was_appended(good: Build) -> None:
    path = good.root / "out/records.jsonl"
    run = json.loads((good.root / "out/run.json").read_text())
    assert run["manifest"]["records"] == _seal(path.read_bytes())


@pytest.mark.parametrize(
    "change", [{"state": "interrupted"}, {"problems": ["no"]}, {"exit_code": 1}]
)
def test_an_edited_document_is_noticed(handed_in: Build, change: Document) -> None:
    path = handed_in.root / "out/run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    code, [wrong] = verify(handed_in)
    assert code == 1
    assert wrong.startswith("run.json")


def settings(**changes: Any) -> Edit:
    def change(run: Document, _records: list[Document]) -> None:
        run["settings"].update(changes)

    return change


def document(**changes: Any) -> Edit:
    def change(run: Document, _records: list[Document]) -> None:
        run.update(changes)

    return change


def searched(verdict: str, broken: str | None = None) -> Edit:
    """A search with random programs that found something, and what the run says."""
    failure = {
        "verdict": verdict,
        "row": "LMEM-01",
        **dict.fromkeys(("operation", "check", "seen", "wanted"), "x"),
    }
    found: dict[str, Any] = {
        **dict.fromkeys(("seed", "explorers", "seconds", "programs", "steps"), 1),
        **{"pairs": {}, "known": [], "failures": [failure], "broken": broken},
    }
    return document(explored=found, problems=explore.problems(found))


def record(name: str, number: int, **changes: Any) -> Edit:
    def change(_run: Document, records: list[Document]) -> None:
        of(records, name, number).update(changes)

    return change


def disappeared(run: Document, records: list[Document]) -> None:
    """Remove a test with its records; only its row remains."""
    records[:] = [x for x in records if x["ctest"] != B]
    del run["manifest"]["tests"][B]
    run["counts"] = {"conforms": 2}


def unsealed(run: Document, _records: list[Document]) -> None:
    run["fingerprint"]["cpus"] = 1000


def mutated(run: Document, records: list[Document]) -> None:
    run["fingerprint"]["variables"] = {"IPCLAB_CHOICE": "any"}
    run["fingerprint"]["id"] = fingerprint.identity(run["fingerprint"])
    for each in records:
        each["fingerprint"] = run["fingerprint"]["id"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (removed, [f"{A}: no record of attempt 2"]),
        (doubled, [f"{A}: attempt 2 is recorded 2 times"]),
        (
            record(A, 3, attempt=4),
            [f"{A}: attempt 4 of 3", f"{A}: no record of attempt 3"],
        ),
        (
            record(A, 3, ctest="sample.99_none"),
            [
                "sample.99_none: a record of a test that is not in the run's list",
                f"{A}: no record of attempt 3",
                "run.json: counts {'conforms': 3}, the records give {'conforms': 4}",
            ],
        ),
        (disappeared, ["LMEM-02: a row without a test"]),
        (
            record(A, 1, requirement="LMEM-02"),
            [f"{A}, attempt 1: has row LMEM-02, its test LMEM-01"],
        ),
        (
            record(A, 1, kind="LIMIT"),
            [f"{A}, attempt 1: LMEM-01 is not LIMIT in this catalogue"],
        ),
        (
            record(A, 1, verdict="lifted"),
            [
                f"{A}, attempt 1: says 'lifted', but its outcome 'conforms' means "
                "'conforms'",
                f"{A}: flaky (1 of 3): 2 x conforms, 1 x lifted",
                "run.json: counts {'conforms': 3}, the records give "
                "{'conforms': 2, 'flaky': 1}",
            ],
        ),
        (
            record(A, 1, deviation=ENTRY),
            [f"{A}, attempt 1: its deviation had expired on 2020-01-31"],
        ),
        (
            record(
                A, 1, deviation={**ENTRY, "requirement": "X", "expires": "2999-01-01"}
            ),
            [f"{A}, attempt 1: its deviation is of X"],
        ),
        (unsealed, ["run.json: the fingerprint was edited: its id does not match"]),
        (
            mutated,
            ["made with a fault planted on purpose: IPCLAB_CHOICE was set"],
        ),
        (
            settings(repeat=1, seed=7),
            [
                "not a run of `ipclab qualify`: repeat is 1, not 3",
                "not a run of `ipclab qualify`: seed is 7, not 1",
            ],
        ),
        (
            settings(requirements="my.json"),
            ["not a run of `ipclab qualify`: requirements is 'my.json', not None"],
        ),
        (document(filtered=True), ["the run was filtered: a part of the suite only"]),
        (document(problems=["oh"]), ["the run itself reports: oh"]),
        (
            searched("violates", broken="no oracle"),
            ["the run itself reports: random programs: no oracle"],
        ),
        (
            searched("flaky (1 of 3)"),
            ["the run itself reports: random programs: flaky (1 of 3) LMEM-01: x"],
        ),
        (
            document(counts={}),
            ["run.json: counts {}, the records give {'conforms': 3}"],
        ),
        (
            document(state="running"),
            ["the run is running, not finished: 9 records of 3 of 3 tests"],
        ),
    ],
)
def test_each_rule_is_held_behind_the_digests(
    handed_in: Build, change: Edit, says: list[str]
) -> None:
    """Contradictions are found even if all digests were computed again."""
    rewrite(handed_in.root / "out", change, seal=True)
    code, wrong = verify(handed_in)
    assert code == 1
    assert len(wrong) == len(says), wrong
    assert all(x.startswith(y) for x, y in zip(wrong, says, strict=True)), wrong


def test_what_a_random_program_has_shown_again_is_a_result(handed_in: Build) -> None:
    rewrite(handed_in.root / "out", searched("violates"), seal=True)
    assert verify(handed_in) == (0, [])


def test_a_record_of_another_machine(handed_in: Build) -> None:
    rewrite(handed_in.root / "out", foreign, seal=True)
    code, [wrong] = verify(handed_in)
    assert code == 1
    assert wrong.startswith("1 records of another machine (cuda, fingerprint 01234567")
    assert wrong.endswith(f"first {A}, attempt 2")


@pytest.mark.parametrize("other", [{"version": 2}, {"manifest": {}}])
def test_a_run_of_another_ipclab_cannot_be_verified(
    handed_in: Build, other: Document
) -> None:
    path = handed_in.root / "out/run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | other))
    done = handed_in.ipclab("verify", "out")
    assert done.returncode == 2
    [line] = done.stdout.splitlines()
    assert line.endswith("; was it made by another version of ipclab?")


def test_packed_records_are_read(handed_in: Build) -> None:
    folder = handed_in.root / "out"
    data = (folder / "records.jsonl").read_bytes()
    packed = folder / "records.jsonl.gz"
    packed.write_bytes(gzip.compress(data))
    done = handed_in.ipclab("verify", "out")
    assert (done.returncode, "remove one" in done.stdout) == (2, True)
    (folder / "records.jsonl").unlink()
    assert verify(handed_in) == (0, [])
    assert handed_in.ipclab("report", "out").returncode == 0
    assert handed_in.ipclab("compare", "out", "out").returncode == 0
    for bad in (packed.read_bytes()[:-20], b"no gzip"):
        packed.write_bytes(bad)
        done = handed_in.ipclab("verify", "out")
        assert (done.returncode, done.stdout) == (
            2,
            "ipclab: out/records.jsonl.gz: is not a complete gzip file\n",
        )


def test_what_cannot_be_read_is_said_in_one_line(handed_in: Build) -> None:
    (handed_in.root / "out/records.jsonl").unlink()
    done = handed_in.ipclab("verify", "out")
    assert done.returncode == 2
    assert done.stdout == "ipclab: out/records.jsonl: No such file or directory\n"
    done = handed_in.ipclab("verify", "nowhere")
    assert (done.returncode, done.stdout) == (2, "ipclab: nowhere: no such folder\n")


def test_a_build_is_held_to_the_run(good: Build) -> None:
    assert verify(good, "--build", "build") == (0, [])
    program = good.folder / f"{A}.py"
    catalogue = good.room
    listing = good.folder / "CTestTestfile.cmake"
    before = {x: x.read_text() for x in (program, catalogue, listing)}
    try:
        program.write_text(before[program] + "# changed\n")
        assert verify(good, "--build", "build") == (
            1,
            [f"{A}.py: is not the program that ran"],
        )
        program.unlink()
        assert verify(good, "--build", "build") == (
            1,
            [f"{A}.py: is not the program that ran"],
        )
        program.write_text(before[program])
        catalogue.write_text(before[catalogue].replace("The sentence", "Another"))
        assert verify(good, "--build", "build") == (
            1,
            ["requirements.json: is not the one of the run"],
        )
        catalogue.write_text(before[catalogue])
        listing.write_text(before[listing].replace(f"({B} ", f"({B}2 "))
        assert verify(good, "--build", "build") == (
            1,
            [
                f"{B}2: in the build's list, not in the run's",
                f"{B}: in the run's list, not in the build's",
            ],
        )
    finally:
        for path, text in before.items():
            path.write_text(text)


def test_qualify_takes_no_filter(build: Build) -> None:
    suite(build)
    for option in (["-k", "A"], ["--gpus", "1"], ["--repeat", "1"], ["--seed", "2"]):
        code, said = qualify(build, *option)
        assert code == 2
        assert "unrecognized arguments" in said
    assert not (build.root / "out").exists()


def test_a_filtered_run_is_not_verified(build: Build) -> None:
    suite(build)
    build.run("--repeat", "3", "-k", "Suite.A")
    code, wrong = verify(build)
    assert code == 1
    assert wrong[0] == "not a run of `ipclab qualify`: expression is 'Suite.A', not ''"
    assert "the run was filtered: a part of the suite only" in wrong
    assert f"{B}: no record of attempt 1, 2, 3" in wrong


def test_a_run_with_delays_is_not_verified(build: Build) -> None:
    suite(build)
    build.run("--repeat", "3", "--delays")
    assert verify(build) == (
        1,
        ["not a run of `ipclab qualify`: its roles paused at random (--delays)"],
    )


@pytest.mark.parametrize("fault", ["", "some-fault"])
def test_a_report_says_that_a_fault_was_planted(
    build: Build, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    suite(build)
    if fault:
        monkeypatch.setenv("IPCLAB_FAULT", fault)
    ended = build.run()
    page = (ended.folder / "report.html").read_text()
    said = "Made with a fault planted on purpose: IPCLAB_FAULT=some-fault."
    assert (said in page) == bool(fault), ended


def test_a_row_without_a_test_does_not_qualify(build: Build) -> None:
    suite(build)
    build.rows({"LMEM-01": "MUST", "LMEM-02": "ERROR", "LMEM-99": "MUST"})
    code, said = qualify(build)
    assert code == 1
    assert said.splitlines()[-1] == "not verified: LMEM-99: a row without a test"


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("sys.exit(0)", f"{A}: broken: the program wrote no record (exit 0)"),
        (
            "odd = not os.path.exists(__file__ + 'x')\n"
            "open(__file__ + 'x', 'w')\n"
            "record(outcome='violates' if odd else 'conforms')",
            f"{A}: flaky (1 of 3): 2 x conforms, 1 x violates",
        ),
    ],
)
def test_what_the_harness_cannot_judge_does_not_qualify(
    build: Build, program: str, says: str
) -> None:
    build.rows({"LMEM-01": "MUST"})
    build.conformance(program, "Suite.A")
    code, said = qualify(build)
    assert code == 1
    assert f"not verified: {says}" in said.splitlines()


def test_a_violation_is_a_result(build: Build) -> None:
    build.rows({"LMEM-01": "MUST"})
    build.conformance("violates(reason='zeros')")
    code, said = qualify(build)
    assert code == 1
    last = said.splitlines()[-1]
    assert last.startswith("verified: 1 tests, 3 records, ")
    assert last.endswith(": 1 violates; the run failed nevertheless")
    assert verify(build) == (0, [])


def test_an_expired_deviation_does_not_qualify(build: Build) -> None:
    suite(build)
    build.deviation(test="Suite.A", expires="2020-01-31")
    code, said = qualify(build)
    assert code == 1
    assert said.splitlines()[-1] == (
        "not verified: the run itself reports: deviations.json: "
        "LMEM-01 expired on 2020-01-31; ask platform"
    )


def test_a_program_is_read_once(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    suite(build)
    digest, read = hashlib.file_digest, []

    def counted(stream: Any, name: str) -> Any:
        read.append(stream.name)
        return digest(stream, name)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    assert qualify(build, "-j", "2")[0] == 0
    assert read
    assert sorted(read) == sorted(set(read))


def test_a_program_must_not_change_during_the_run(build: Build) -> None:
    suite(build)
    build.conformance(
        "open(__file__, 'a').write('# more\\n'); record()", "Suite.C", "LMEM-01"
    )
    code, said = qualify(build)
    assert code == 1
    changed = "conformance.01_legacy_memory.Suite.C.py changed during the run"
    assert f"not verified: the run itself reports: {changed}" in said.splitlines()


def test_the_models_libraries_are_programs(build: Build) -> None:
    suite(build)
    (build.folder / "model").mkdir()
    (build.folder / "model/libcudart.so.13").write_text("a model")
    build.probe({**PROBE, "backend": "model"})
    code, said = qualify(build)
    assert code == 0, said
    run = json.loads((build.root / "out/run.json").read_text())
    assert sorted(run["manifest"]["programs"]) == [
        f"{A}.py",
        f"{B}.py",
        "model/libcudart.so.13",
        "probe.py",
        "sample.01_legacy_memory.py",
    ]
    (build.folder / "model/libcudart.so.13").write_text("another model")
    assert verify(build, "--build", "build") == (
        1,
        ["model/libcudart.so.13: is not the program that ran"],
    )


# --- results that somebody else made ---------------------------------------------


def test_a_bomb_is_refused_before_it_fills_the_memory(
    handed_in: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is refused because of its unpacked size, even if it is small on disk."""
    monkeypatch.setattr(reader, "TOTAL", 10 * 2**20)
    folder = handed_in.root / "out"
    (folder / "records.jsonl").unlink()
    packed = folder / "records.jsonl.gz"
    with gzip.open(packed, "wb") as stream:
        for _ in range(30):
            stream.write(b"\n" * 2**20)
    assert packed.stat().st_size < 100_000
    tracemalloc.start()
    for command in (("verify", "out"), ("report", "out")):
        done = handed_in.ipclab(*command)
        assert done.returncode == 2
        assert "is larger than any such file of ipclab" in done.stdout
    assert tracemalloc.get_traced_memory()[1] < 60 * 2**20
    tracemalloc.stop()


def test_a_line_without_end_is_refused(
    handed_in: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "LINE", 2**16)
    path = handed_in.root / "out/records.jsonl"
    path.write_bytes(b"x" * 2**17)
    done = handed_in.ipclab("verify", "out")
    assert done.returncode == 2
    assert "is larger than any such file of ipclab" in done.stdout


def test_a_report_goes_through_no_link(handed_in: Build) -> None:
    folder = handed_in.root / "out"
    mine = handed_in.root / "mine"
    mine.write_text("my own\n")
    for name in ("report.html", ".report.html.draft"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(mine)
    assert handed_in.ipclab("report", "out").returncode == 0
    assert mine.read_text() == "my own\n"
    assert not (folder / "report.html").is_symlink()


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda run: run.pop("machine"), "run.json.machine: is missing"),
        (
            lambda run: run["fingerprint"]["gpus"].append("a GPU"),
            'run.json.fingerprint.gpus[2]: "a GPU" is not of type object',
        ),
        (
            lambda run: run["fingerprint"]["gpus"][0].update(memory_bytes="many"),
            "run.json.fingerprint.gpus[0].memory_bytes",
        ),
        (lambda run: run["settings"].pop("repeat"), "run.json.settings.repeat"),
        (
            lambda run: run["manifest"]["data"].update({"../../etc/passwd": None}),
            "run.json.manifest.data.../../etc/passwd: there is no such field",
        ),
    ],
)
@pytest.mark.parametrize("command", ["report", "compare", "verify"])
def test_a_run_of_another_shape_is_one_clear_error(
    handed_in: Build, damage: Callable[[Document], Any], said: str, command: str
) -> None:
    path = handed_in.root / "out/run.json"
    run = json.loads(path.read_text())
    damage(run)
    path.write_text(json.dumps(run))
    done = handed_in.ipclab(command, "out", *["out"] * (command == "compare"))
    assert done.returncode == 2
    assert said in done.stdout
    assert "Traceback" not in done.stdout
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize("command", ["report", "verify"])
def test_deep_json_is_no_json(handed_in: Build, command: str) -> None:
    folder = handed_in.root / "out"
    text = (folder / "records.jsonl").read_text()
    (folder / "records.jsonl").write_text(f"{DEEP}\n{text}")
    done = handed_in.ipclab(command, "out")
    assert "line 1 is nested too deeply" in done.stdout
    (folder / "run.json").write_text(DEEP)
    done = handed_in.ipclab(command, "out")
    assert done.returncode == 2
    assert "is nested too deeply" in done.stdout
