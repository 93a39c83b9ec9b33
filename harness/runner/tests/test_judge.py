"""`ipclab judge`: a finished run is judged with another deviations.json."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from conftest import Build


def judge(build: Build, run: str = "out", into: str = "judged") -> tuple[int, str]:
    """`ipclab judge` with the entries of the tree; the exit code and the output."""
    entries = (build.source / "conformance/deviations.json").relative_to(build.root)
    done = build.ipclab("judge", run, str(entries), "--results", into)
    return done.returncode, done.stdout


def read(build: Build, folder: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """run.json and the records of a results folder."""
    path = build.root / folder
    lines = (path / "records.jsonl").read_text().splitlines()
    run: dict[str, Any] = json.loads((path / "run.json").read_text())
    return run, [json.loads(line) for line in lines]


def no_entries(build: Build) -> None:
    """Write a deviations.json without entries."""
    path = build.source / "conformance" / "deviations.json"
    path.write_text('{"deviations": []}')


def qualified(build: Build, program: str = "violates()") -> None:
    """A run of `ipclab qualify` in `out`, with no entry of deviations.json."""
    build.rows({"LMEM-01": "MUST"})
    build.conformance(program)
    no_entries(build)
    build.ipclab("qualify", "--build", "build", "--results", "out")


def test_an_entry_that_was_written_after_the_run_excuses_its_failure(
    build: Build,
) -> None:
    qualified(build)
    before, records = read(build, "out")
    assert {x["verdict"] for x in records} == {"violates"}
    assert before["exit_code"] == 1
    build.deviation()
    code, said = judge(build)
    assert code == 0
    assert said.splitlines() == [
        "conformance.01_legacy_memory.Suite.Name: 3 x violates, now deviates",
        "judged: 1 deviates",
    ]
    after, judged = read(build, "judged")
    assert {x["deviation"]["evidence"] for x in judged} == {"seen on two machines"}
    assert after["judged"]["digest"] == before["digest"]
    assert (after["counts"], after["exit_code"]) == ({"deviates": 1}, 0)
    assert read(build, "out") == (before, records)
    done = build.ipclab("verify", "judged", "--build", "build")
    assert done.returncode == 0, done.stdout
    assert f"; judged again on {after['judged']['at'][:10]}" in done.stdout
    assert build.ipclab("verify", "out", "--build", "build").returncode == 1


def test_without_its_entry_a_failure_violates_again(build: Build) -> None:
    qualified(build)
    build.deviation()
    judge(build)
    no_entries(build)
    code, said = judge(build, "judged", "again")
    assert code == 1
    assert "3 x deviates, now violates" in said
    same = {"verdict", "reason", "deviation", "outcome", "failures"}
    for was, now in zip(read(build, "out")[1], read(build, "again")[1], strict=True):
        assert {x: was[x] for x in same} == {x: now[x] for x in same}


def test_an_entry_that_names_another_failure_is_told_and_forgotten(
    build: Build,
) -> None:
    qualified(build, "violates(reason='the reason')")
    build.deviation(failures=[{"check": "cudaFree(data)", "seen": ["cudaSuccess"]}])
    code, _ = judge(build)
    assert code == 1
    for record in read(build, "judged")[1]:
        assert record["verdict"] == "violates"
        assert record["reason"].startswith("deviations.json does not know: ")
        assert record["reason"].endswith("; the first failure: the reason")
    build.deviation()
    judge(build, "judged", "again")
    assert {x["reason"] for x in read(build, "again")[1]} == {"the reason"}


@pytest.mark.parametrize(
    "changes",
    [
        {"gpus": ["B200"]},
        {"driver": {"from": "1.0", "to": "2.0"}},
        {"vendor": "model"},
        {"expires": "2020-01-01"},
    ],
    ids=["GPU", "driver", "vendor", "expired"],
)
def test_an_entry_of_another_machine_or_day_changes_no_verdict(
    build: Build, changes: dict[str, object]
) -> None:
    qualified(build)
    build.deviation(**changes)
    code, said = judge(build)
    assert code == 1
    assert ", now " not in said
    assert read(build, "judged")[1] == read(build, "out")[1]


def test_an_entry_of_a_test_that_conforms_fails_the_run(build: Build) -> None:
    qualified(build, "record()")
    assert read(build, "out")[0]["exit_code"] == 0
    build.deviation()
    code, said = judge(build)
    wrong = "deviations.json: LMEM-01 conforms after all (Suite.Name)"
    assert code == 1
    assert said.splitlines()[-1] == wrong
    assert read(build, "judged")[0]["problems"] == [wrong]
    no_entries(build)
    assert judge(build, "judged", "again")[0] == 0
    assert read(build, "again")[0]["problems"] == []


def test_what_the_harness_could_not_judge_stays_broken(build: Build) -> None:
    qualified(build, "record(outcome='lifted')")
    build.deviation()
    judge(build)
    assert {x["verdict"] for x in read(build, "judged")[1]} == {"broken"}


def test_a_strict_run_still_fails(build: Build) -> None:
    build.conformance("violates()")
    no_entries(build)
    build.run("--strict")
    build.deviation()
    assert judge(build)[0] == 1
    assert read(build, "judged")[1][0]["verdict"] == "deviates"


def test_an_edited_or_unfinished_run_is_not_judged(build: Build) -> None:
    qualified(build)
    build.deviation()
    shutil.copytree(build.root / "out", build.root / "kept")
    lines, document = (
        build.root / "out" / name for name in ("records.jsonl", "run.json")
    )
    kept = document.read_text()
    lines.write_bytes(lines.read_bytes().replace(b"violates", b"conforms"))
    code, said = judge(build)
    assert code == 2
    assert "records.jsonl: was edited or damaged after the run" in said
    assert "only a finished run can be judged again" in said
    document.write_text(kept.replace('"seed": 1', '"seed": 2'))
    assert "run.json: was edited after the run" in judge(build)[1]
    document.write_text(kept.replace('"finished",', '"interrupted",'))
    assert "the run is interrupted, not finished" in judge(build)[1]
    assert not (build.root / "judged").exists()
    code, said = judge(build, "out", "kept")
    assert code == 2
    code, said = judge(build, "kept", "kept")
    assert (code, "is not empty" in said) == (2, True)


def test_a_file_that_changed_during_the_run_is_not_forgotten(build: Build) -> None:
    change = "open('source/conformance/deviations.json', 'a').write(' ')"
    qualified(build, f"import os; os.chdir({str(build.root)!r}); {change}; record()")
    assert judge(build)[0] == 1
    wrong = "deviations.json changed during the run"
    assert read(build, "judged")[0]["problems"] == [wrong]


def test_wrong_entries_are_one_clear_error(build: Build) -> None:
    qualified(build)
    done = build.ipclab("judge", "out", "nothing.json", "--results", "judged")
    assert (done.returncode, done.stdout) == (2, "ipclab: nothing.json: no such file\n")
    build.deviation(gpus=[])
    code, said = judge(build)
    assert code == 3
    assert "name the drivers and GPUs that were measured" in said
    assert not (build.root / "judged").exists()
