"""`ipclab mutants`: the result of a fault, and a command that is stopped."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from conftest import NO_GPU, PROBE, Build, machine
from ipclab.mutants import matrix

FREE = "reaches('cudaFree')\n"


@pytest.fixture
def model(build: Build) -> Build:
    """A build with a reference model and no GPU."""
    machine(build, NO_GPU)
    return build


def mutants(build: Build, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command; results go into `kills`, unless the arguments name a folder."""
    if not {"--results", "--resume"} & set(arguments):
        arguments = ("--results", "kills", *arguments)
    return build.ipclab("mutants", "--build", "build", "-j", "2", *arguments)


def document(build: Build, name: str = "kills/mutants.json") -> dict[str, Any]:
    """The matrix, checked against its schema."""
    found: dict[str, Any] = json.loads((build.root / name).read_text())
    jsonschema.Draft202012Validator(matrix.SCHEMA).validate(found)
    return found


def results(build: Build, name: str = "kills/mutants.json") -> dict[str, str]:
    """Each fault with its result."""
    return {x["name"]: x["result"] for x in document(build, name)["faults"]}


def cells(build: Build, fault: str, name: str = "kills/mutants.json") -> dict[str, str]:
    """Each row with its result for a fault."""
    [found] = (x for x in document(build, name)["faults"] if x["name"] == fault)
    return {x["row"]: x["result"] for x in found["cells"]}


def journal(build: Build, name: str = "kills/faults.jsonl") -> list[dict[str, Any]]:
    """The trials that the journal has."""
    lines = [json.loads(x) for x in (build.root / name).read_text().splitlines()]
    return [x for x in lines if x["line"] == "trial"]


# --- operators ---------------------------------------------------------------


def test_an_operator_is_killed_survives_or_never_fires(model: Build) -> None:
    model.faults(
        {"name": "cudaFree.noop"},
        {"name": "cudaFree.twice"},
        {"name": "cudaFree.late"},
        {"name": "cudaMalloc.noop", "function": "cudaMalloc"},
    )
    model.conformance(FREE + "violates() if under('cudaFree.noop') else record()")
    model.conformance(
        FREE + "under('cudaFree.twice'); record()", "Suite.Two", "LMEM-02"
    )
    done = mutants(model)
    assert done.returncode == 1
    assert results(model) == {
        "cudaFree.noop": "killed",
        "cudaFree.twice": "survived",
        "cudaFree.late": "never fired",
        "cudaMalloc.noop": "never fired",
    }
    assert cells(model, "cudaFree.noop") == {"LMEM-01": "killed"}
    assert "4 faults: 1 killed, 1 survived, 2 never fired" in done.stdout
    assert "survived: cudaFree.twice: is wrong" in done.stdout
    # LMEM-02 is judged and has a test here, and no fault made this test fail.
    assert "no fault is noticed by LMEM-02: never seen to fail" in done.stdout


def test_an_operator_stops_at_its_first_kill(model: Build) -> None:
    model.faults({"name": "cudaFree.noop"})
    for i in range(6):
        model.conformance(
            FREE + "violates() if under('cudaFree.noop') else record()", f"Suite.T{i}"
        )
    done = model.ipclab("mutants", "--build", "build", "-j", "1", "--results", "kills")
    assert done.returncode == 0, done.stdout
    assert len(journal(model)) == 1


def test_tests_that_do_not_reach_the_function_are_not_asked(model: Build) -> None:
    model.faults({"name": "cudaFree.noop"})
    model.conformance("under('cudaFree.noop'); record()")
    mutants(model)
    assert journal(model) == []
    assert results(model) == {"cudaFree.noop": "never fired"}


def test_rows_that_speak_of_the_function_are_asked_first(model: Build) -> None:
    model.faults({"name": "cudaFree.noop"})
    catalogue = json.loads(model.room.read_text())
    catalogue["rows"][1]["source"] = "see cuFree"
    model.room.write_text(json.dumps(catalogue))
    test = FREE + "violates() if under('cudaFree.noop') else record()"
    model.conformance(test, "Suite.Fast", "LMEM-01")
    model.conformance(FREE + "time.sleep(0.5)\n" + test, "Suite.Slow", "LMEM-02")
    model.ipclab("mutants", "--build", "build", "-j", "1", "--results", "kills")
    assert journal(model)[0]["ctest"].endswith("Suite.Slow")


@pytest.mark.nightly
def test_what_noticed_others_of_its_kind_is_asked_first(model: Build) -> None:
    """With an earlier matrix, each fault first runs with the test that noticed it
    there.
    """
    functions = [f"cuda{x}" for x in ("Free", "HostAlloc", "Memset")]
    model.faults(*({"name": f"{x}.late", "function": x} for x in functions))
    reach = f"reaches(*{functions!r})\n"
    for i in range(6):
        model.conformance(f"{reach}under(*{functions!r}); record()", f"Suite.A{i}")
    noticing = ["cudaFree.late", "cudaHostAlloc.late", "cudaMemset.late"]
    model.conformance(
        f"time.sleep(1)\n{reach}violates() if under(*{noticing!r}) else record()",
        "Suite.Z",  # the slowest test, so it runs last if nothing else decides
    )
    model.ipclab("mutants", "--build", "build", "-j", "1", "--results", "kills")
    assert set(results(model).values()) == {"killed"}
    first = len(journal(model))
    # The earlier matrix says which test to run first, also if it is incomplete and
    # packed.
    earlier = model.root / "kills" / "faults.jsonl"
    (model.root / "kills" / "faults.jsonl.gz").write_bytes(
        gzip.compress(earlier.read_bytes() + b'{"line": "tri')
    )
    earlier.unlink()
    model.ipclab(
        *("mutants", "--build", "build", "-j", "1", "--results", "again"),
        *("--like", "kills"),
    )
    assert set(results(model, "again/mutants.json").values()) == {"killed"}
    trials = journal(model, "again/faults.jsonl")
    assert len(trials) == 3 < first
    # A test that took long starts earlier: not last, as it would otherwise.
    lines = (model.root / "again" / "faults.jsonl").read_text().splitlines()
    last = {**trials[-1], "seconds": 20.0}
    (model.root / "again" / "faults.jsonl").write_text(
        "".join(x + "\n" for x in [*lines[:-1], json.dumps(last)])
    )
    model.ipclab(
        *("mutants", "--build", "build", "-j", "1", "--results", "slow"),
        *("--like", "again"),
    )
    first_fault, second, third = (x["fault"] for x in trials)
    assert [x["fault"] for x in journal(model, "slow/faults.jsonl")] == [
        first_fault,
        third,
        second,
    ]


def test_a_row_that_the_list_puts_first(model: Build) -> None:
    model.faults(
        {"name": "cudaFree.late"},
        {"name": "cudaFree.noop"},
        first={"late": ["LMEM-02"]},
    )
    test = FREE + "violates() if under('cudaFree.late', 'cudaFree.noop') else record()"
    model.conformance(test, "Suite.Fast", "LMEM-01")
    model.conformance(FREE + "time.sleep(2)\n" + test, "Suite.Slow", "LMEM-02")
    model.ipclab("mutants", "--build", "build", "-j", "1", "--results", "kills")
    found = {x["fault"]: x["ctest"].rpartition(".")[2] for x in journal(model)}
    assert found == {"cudaFree.late": "Slow", "cudaFree.noop": "Fast"}


def test_a_row_of_a_named_fault_stops_at_its_first_kill(model: Build) -> None:
    model.faults({"name": "bad", "rows": ["LMEM-01", "LMEM-02"]})
    for i in range(4):
        for row in ("LMEM-01", "LMEM-02"):
            model.conformance(
                "violates() if under('bad') else record()", f"Suite.T{i}{row[-1]}", row
            )
    assert mutants(model).returncode == 0
    assert cells(model, "bad") == {"LMEM-01": "killed", "LMEM-02": "killed"}
    assert len(journal(model)) == 2


def test_another_legal_answer_meets_all_tests(model: Build) -> None:
    model.faults({"name": "ok-good", "rows": ["LMEM-01"]})
    for i in range(4):
        model.conformance("under('ok-good'); record()", f"Suite.T{i}")
    mutants(model)
    assert results(model) == {"ok-good": "passed"}
    assert len(journal(model)) == 4


def test_the_tests_of_another_legal_answer_do_not_wait_for_each_other(
    model: Build,
) -> None:
    model.faults({"name": "ok-good", "rows": ["LMEM-01"]})
    for mine, other in ("01", "10"):
        model.conformance(
            "import pathlib\n"
            "if under('ok-good'):\n"
            f"    pathlib.Path('begun{mine}').touch()\n"
            "    end = time.monotonic() + 10\n"
            f"    while not pathlib.Path('begun{other}').exists():\n"
            "        if time.monotonic() > end: violates()\n"
            "        time.sleep(0.01)\n"
            "record()",
            f"Suite.T{mine}",
        )
    mutants(model)
    assert results(model) == {"ok-good": "passed"}


def test_rows_without_a_kill_are_tried_with_further_operators(model: Build) -> None:
    model.faults({"name": "cudaFree.noop"})
    test = FREE + "violates() if under('cudaFree.noop') else record()"
    for i in (1, 2):
        model.conformance(test, f"Suite.T{i}", f"LMEM-0{i}")
    done = model.ipclab("mutants", "--build", "build", "-j", "1", "--results", "kills")
    assert done.returncode == 0, done.stdout
    assert cells(model, "cudaFree.noop") == {"LMEM-01": "killed", "LMEM-02": "killed"}


# --- named faults ------------------------------------------------------------


def test_each_row_of_a_named_fault_has_to_notice(model: Build) -> None:
    model.faults(
        {"name": "all", "rows": ["LMEM-01", "LMEM-02"]},
        {"name": "one", "rows": ["LMEM-01", "LMEM-02"]},
        {"name": "seen", "rows": ["LMEM-01", "OBS-01"]},
        {"name": "open", "rows": ["LMEM-01", "LMEM-99"]},
    )
    model.conformance("violates() if under('all', 'one', 'seen', 'open') else record()")
    model.conformance("under('all', 'one'); record()", "Suite.Lax", "LMEM-02")
    model.conformance(
        "under('one', fires=False); violates() if under('all') else record()",
        "Suite.Second",
        "LMEM-02",
    )
    model.conformance("under('seen'); record()", "Suite.Seen", "OBS-01")
    done = mutants(model)
    assert done.returncode == 1
    assert results(model) == {
        "all": "killed",
        "one": "survived",
        "open": "killed",
        "seen": "killed",
    }
    assert cells(model, "all") == {"LMEM-01": "killed", "LMEM-02": "killed"}
    assert cells(model, "one") == {"LMEM-01": "killed", "LMEM-02": "survived"}
    assert cells(model, "seen") == {"LMEM-01": "killed", "OBS-01": "observed"}
    assert cells(model, "open") == {"LMEM-01": "killed", "LMEM-99": "no test"}
    assert "one: is wrong (not noticed by LMEM-02 survived)" in done.stdout


def test_a_fault_that_is_not_noticed_meets_its_tests_once_more_and_alone(
    model: Build,
) -> None:
    model.faults(
        {"name": "hidden", "rows": ["LMEM-01", "LMEM-02"]},
        {"name": "lost", "rows": ["LMEM-01"]},
        {"name": "ok-good", "rows": ["LMEM-01"]},
    )
    # A test that meets a fault for the second time must have no neighbour.
    model.conformance(
        """
        from pathlib import Path
        name = os.environ.get("IPCLAB_FAULT", "none")
        tries = Path("tries"); tries.mkdir(exist_ok=True)
        before = len(list(tries.glob(f"{name}-*")))
        running = tries / "running"
        if under("hidden", "lost", "ok-good") and before:
            running.touch(exist_ok=False)
            time.sleep(0.1)
            running.unlink()
        (tries / f"{name}-{before}").touch()
        violates() if under("hidden") and before else record()
        """
    )
    model.conformance(
        "violates() if under('hidden') else record()", "Suite.Second", "LMEM-02"
    )
    done = mutants(model)
    assert done.returncode == 1
    assert results(model) == {
        "hidden": "killed",
        "lost": "survived",
        "ok-good": "passed",
    }
    assert "2 faults were not noticed: 2 tests run once more, one at a time" in (
        done.stdout
    )
    assert len(journal(model)) == 6
    again = mutants(model, "--resume", "kills")  # there is no third time
    assert "once more" not in again.stdout
    assert len(journal(model)) == 6


def test_a_fault_without_a_test_that_works_here_leaves_the_matrix_whole(
    model: Build,
) -> None:
    model.faults(
        {"name": "here", "rows": ["LMEM-01"]},
        {"name": "elsewhere", "rows": ["LMEM-02"]},
    )
    model.conformance("violates() if under('here') else record()")
    model.conformance(
        "record(outcome='not applicable', reason='no fabric')", "Suite.Far", "LMEM-02"
    )
    done = mutants(model)
    assert done.returncode == 0, done.stdout
    assert results(model) == {"elsewhere": "not run", "here": "killed"}
    [found] = (x for x in document(model)["faults"] if x["name"] == "elsewhere")
    assert found["note"] == "this machine cannot run the tests of its rows"
    assert matrix.left(document(model)) == 0


def test_another_legal_answer_passes_or_is_flagged(model: Build) -> None:
    model.faults(
        {"name": "ok-good", "rows": ["LMEM-01"]},
        {"name": "ok-flagged", "rows": ["LMEM-01"]},
        {"name": "ok-idle", "rows": ["LMEM-01"]},
        {"name": "bad", "rows": ["LMEM-01"]},
    )
    model.conformance(
        "under('ok-good'); violates() if under('ok-flagged', 'bad') else record()"
    )
    done = mutants(model)
    assert done.returncode == 1
    assert results(model) == {
        "bad": "killed",
        "ok-good": "passed",
        "ok-flagged": "flagged",
        "ok-idle": "never fired",
    }
    assert "flagged: ok-flagged: is wrong (LMEM-01: violates" in done.stdout


def test_a_capability_that_is_denied_is_a_kill_of_its_own_kind(model: Build) -> None:
    model.faults({"name": "bad", "rows": ["LMEM-01"]})
    model.conformance(
        "record(outcome='not applicable', reason='no IPC') "
        "if under('bad') else record()"
    )
    done = mutants(model)
    assert done.returncode == 0
    assert results(model) == {"bad": "denied"}
    assert "1 faults: 1 denied" in done.stdout


def test_a_hang_is_a_kill_and_costs_a_part_of_the_time_limit(
    model: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ipclab.mutants.trials.MORE_SECONDS", 0.5)
    model.faults({"name": "bad", "rows": ["LMEM-01"]})
    model.conformance("if under('bad'): time.sleep(600)\nrecord()", timeout=900)
    began = time.monotonic()
    assert mutants(model).returncode == 0
    assert time.monotonic() - began < 60
    [trial] = journal(model)
    assert trial["verdict"] == "hung"
    assert results(model) == {"bad": "killed"}


def test_a_hang_keeps_the_check_that_failed_before(model: Build) -> None:
    model.faults({"name": "bad", "rows": ["LMEM-01"]})
    model.conformance(
        "own = {**FAILURE, 'file': None, 'message': 'not at the end'}\n"
        "seconds = os.environ.get('IPCLAB_SECONDS')\n"
        "if not under('bad'): assert seconds is None; record()\n"
        "else:\n"
        "    assert float(seconds) > 1\n"
        "    record(outcome='hung', reason='not at the end', failures=[own, FAILURE])\n"
        "    sys.exit(1)"
    )
    assert mutants(model).returncode == 0
    [trial] = journal(model)
    assert trial["reason"] == "Value of: refused; then not at the end"


def test_a_test_that_cannot_judge_is_no_kill(model: Build) -> None:
    model.faults(
        {"name": "broken", "rows": ["LMEM-01"]},
        {"name": "chance", "rows": ["LMEM-01"]},
    )
    model.conformance(
        """
        if under("broken"):
            sys.exit(1)
        if under("chance", fires=False):
            violates(reason="by chance")
        record()
        """
    )
    done = mutants(model)
    assert done.returncode == 1
    assert results(model) == {"broken": "unjudged", "chance": "unjudged"}
    assert "wrote no record (exit 1)" in done.stdout


def test_a_fault_does_not_hide_behind_a_deviation(build: Build) -> None:
    build.probe({**PROBE, "gpus": PROBE["gpus"][:1]})
    build.faults(
        {"name": "hidden", "rows": ["LMEM-01"]},
        {"name": "other", "rows": ["LMEM-01"]},
    )
    build.conformance(
        "under('hidden')\nviolates(**{'seen': 'zeros'} if under('other') else {})"
    )
    build.deviation()
    done = mutants(build, "--backend", "cuda")
    assert done.returncode == 1
    assert results(build) == {"hidden": "survived", "other": "killed"}
    assert "hidden by deviation LMEM-01" in done.stdout


def test_a_fault_that_the_driver_itself_has_is_not_wrong_there(build: Build) -> None:
    build.probe({**PROBE, "gpus": PROBE["gpus"][:1]})
    why = "the driver does this itself (deviation LMEM-01)"
    build.faults(
        {"name": "hidden", "rows": ["LMEM-01"]},
        {"name": "missed", "rows": ["LMEM-01"]},
        {"name": "other", "rows": ["LMEM-01"]},
        same_as_driver=[
            {"fault": name, "where": "cuda", "why": why}
            for name in ("hidden", "missed")
        ],
    )
    build.conformance("under('hidden'); record()", "Suite.Lax")
    build.conformance(
        "under('hidden')\nrecord() if under('missed') else "
        "violates(**{'seen': 'zeros'} if under('other') else {})"
    )
    build.deviation()
    mutants(build, "--backend", "cuda")
    wrong = {x["name"]: x["wrong"] for x in document(build)["faults"]}
    assert wrong == {"hidden": False, "missed": True, "other": False}


def test_equivalents_are_tried_all_the_same(model: Build) -> None:
    why = "no sentence is about it"
    model.faults(
        {"name": "cudaFree.late"},
        {"name": "cudaFree.noop"},
        {"name": "cudaFree.idle"},
        {"name": "cudaFree.awake"},
        {"name": "cudaFree.lost"},
        equivalent=[
            {"fault": "cudaFree.late", "why": why},
            {"fault": "cudaFree.noop", "why": why},
        ],
        expected_unfired=[
            {"fault": "cudaFree.idle", "where": "model", "why": "only a GPU has it"},
            {"fault": "cudaFree.awake", "where": "model", "why": "only a GPU has it"},
            {"fault": "cudaFree.lost", "where": "cuda", "why": "only the model has it"},
        ],
    )
    model.conformance(
        FREE + "under('cudaFree.late')\n"
        "violates() if under('cudaFree.noop', 'cudaFree.awake') else record()"
    )
    done = mutants(model)
    assert done.returncode == 1
    assert results(model) == {
        "cudaFree.awake": "killed",
        "cudaFree.idle": "never fired",
        "cudaFree.late": "equivalent",
        "cudaFree.lost": "never fired",
        "cudaFree.noop": "not equivalent",
    }
    wrong = {x["name"] for x in document(model)["faults"] if x["wrong"]}
    assert wrong == {"cudaFree.awake", "cudaFree.lost", "cudaFree.noop"}
    assert "faults.json says that it never fires here, but it did" in done.stdout
    page = (model.root / "kills/mutants.html").read_text()
    assert why in page


# --- the sound driver ----------------------------------------------------------


def test_a_test_that_fails_without_a_fault_is_left_out_and_told(model: Build) -> None:
    model.faults({"name": "bad", "rows": ["LMEM-01", "LMEM-02"]})
    model.conformance("violates(reason='zeros')")
    model.conformance("violates() if under('bad') else record()", "Suite.B", "LMEM-02")
    done = mutants(model)
    assert done.returncode == 1
    assert (
        "left out, as it fails without a fault: "
        "conformance.01_legacy_memory.Suite.Name: violates: zeros" in done.stdout
    )
    assert cells(model, "bad") == {"LMEM-01": "not applicable", "LMEM-02": "killed"}
    assert results(model) == {"bad": "killed"}


def test_the_library_changes_no_verdict(model: Build) -> None:
    model.faults({"name": "bad", "rows": ["LMEM-01"]})
    test = "violates() if under('bad') else record()"
    model.conformance(test)
    assert model.run("--backend", "model").code == 0
    assert mutants(model, "--baseline", "out").returncode == 0
    loaded = "os.environ.get('FAKE_FAULTS')"
    model.conformance(
        f"record(outcome='lifted' if {loaded} else 'conforms')", "Suite.L", "LIM-01"
    )
    model.faults({"name": "bad", "rows": ["LMEM-01", "LIM-01"]})
    model.ipclab("run", "--build", "build", "--backend", "model", "--results", "two")
    done = mutants(model, "--baseline", "two", "--results", "kills2")
    assert done.returncode == 1
    assert "Suite.L: lifted with the library, conforms in two" in done.stdout


def test_a_fault_is_chosen_by_environment_alone(
    model: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("IPCLAB_FAULT", "not-this")
    model.faults({"name": "bad", "rows": ["LMEM-01"]})
    model.conformance(
        f"""
        seen = dict(os.environ)
        open(r"{model.root}/seen", "a").write(json.dumps(seen) + "\\n")
        violates() if under("bad") else record()
        """
    )
    assert mutants(model).returncode == 0
    lines = (model.root / "seen").read_text().splitlines()
    sound, faulty = (json.loads(x) for x in lines)
    library = str((model.folder / "faults/libipclab_faults.so").resolve())
    for seen in (sound, faulty):
        assert seen["LD_PRELOAD"].split(":")[-1] == library
        assert seen["FAKE_FAULTS"] == "loaded"
        assert not Path(seen["IPCLAB_FAULT_STATE"]).exists()  # of this test alone
    assert "IPCLAB_FAULT" not in sound and "IPCLAB_FAULT_CENSUS" in sound
    assert faulty["IPCLAB_FAULT"] == "bad" and "IPCLAB_FAULT_CENSUS" not in faulty
    assert sound["IPCLAB_MODEL_MACHINE"] != faulty["IPCLAB_MODEL_MACHINE"]
    assert sound["IPCLAB_CAPABILITIES"] == faulty["IPCLAB_CAPABILITIES"]


def test_what_the_library_does_not_know_stops_the_command(model: Build) -> None:
    model.faults({"name": "bad", "rows": ["LMEM-01"]})
    model.conformance(
        """
        if os.environ.get("IPCLAB_FAULT"):
            print("ipclab faults: no fault 'bad'; see harness/faults/faults.json")
            sys.exit(127)
        record()
        """
    )
    done = mutants(model)
    assert done.returncode == 3
    assert "does not know bad, although its own list has it" in done.stdout


def test_a_hook_of_the_model_is_a_fault_of_the_model_alone(model: Build) -> None:
    model.faults({"name": "bad", "rows": ["LMEM-01"]})
    hooks = model.source / "harness/model/choices.json"
    hooks.parent.mkdir(parents=True)
    entry = {"entry": "IpcOpenMem", "what": "inside", "rows": ["LMEM-01"]}
    hooks.write_text(
        json.dumps(
            [
                {"name": "inside", **entry},
                {"name": "of-tegra", **entry, "profile": "tegra"},
                {"name": "bad", **entry},
            ]
        )
    )
    model.conformance(
        """
        inside = os.environ.get("IPCLAB_CHOICE")
        tegra = os.environ.get("IPCLAB_PROFILE") == "tegra"
        bad = under("bad") or inside == "inside" or (inside == "of-tegra" and tegra)
        violates() if bad else record()
        """
    )
    assert mutants(model).returncode == 0
    assert results(model) == {"bad": "killed", "inside": "killed", "of-tegra": "killed"}
    model.probe({**PROBE, "gpus": PROBE["gpus"][:1]})
    done = mutants(model, "--backend", "cuda", "--results", "gpu")
    assert results(model, "gpu/mutants.json") == {"bad": "killed"}
    assert done.returncode == 0, done.stdout


def test_what_needs_more_gpus_is_not_run_or_has_two_on_the_model(build: Build) -> None:
    build.probe({**PROBE, "gpus": PROBE["gpus"][:1]})
    build.faults({"name": "cudaFree.first-gpu", "gpus": 2})
    build.conformance(
        FREE + "violates() if under('cudaFree.first-gpu') else record()", gpus=2
    )
    done = mutants(build, "--backend", "cuda")
    assert done.returncode == 0
    assert results(build) == {"cudaFree.first-gpu": "not run"}
    assert "needs 2 GPUs" in (build.root / "kills/mutants.html").read_text()
    assert journal(build) == []


def test_a_legal_answer_can_be_tried_with_all_tests_that_meet_it(model: Build) -> None:
    model.faults(
        {"name": "ok-other", "rows": ["LMEM-01"]},
        {"name": "ok-here", "rows": ["LMEM-01"]},
        {"name": "cudaFree.noop"},
        everywhere=["ok-other"],
    )
    model.conformance(FREE + "under('ok-other'); record()")
    model.conformance(
        FREE + "violates() if under('ok-other') else record()", "Suite.Two", "LMEM-02"
    )
    model.conformance(
        "violates() if under('ok-other') else record()", "Suite.Three", "LMEM-02"
    )
    assert mutants(model, "--faults", "ok-other").returncode == 0
    assert results(model) == {"ok-other": "passed"}
    for arguments in (("--legal", "--results", "legal"), ("--resume", "legal")):
        done = mutants(model, *arguments)
        assert done.returncode == 1
        assert results(model, "legal/mutants.json") == {"ok-other": "flagged"}
        assert "flagged: ok-other: is wrong (LMEM-02: violates" in done.stdout
    assert len(journal(model, "legal/faults.jsonl")) == 2


# --- which faults ----------------------------------------------------------------


def several(build: Build) -> None:
    """Five faults, all noticed."""
    build.faults(
        {"name": "cudaFree.noop"},
        {"name": "cudaFree.twice"},
        {"name": "cudaMalloc.noop", "function": "cudaMalloc"},
        {"name": "named", "rows": ["LMEM-01"]},
        {"name": "other", "rows": ["LMEM-01"]},
    )
    build.conformance(
        "reaches('cudaFree', 'cudaMalloc')\n"
        "chosen = os.environ.get('IPCLAB_FAULT')\n"
        "violates() if under(chosen) and chosen else record()"
    )


@pytest.mark.parametrize(
    ("arguments", "chosen"),
    [
        ((), 5),
        (("--faults", "named", "cudaFree.noop"), 2),
        (("--function", "cudaFree"), 4),
        (("--function", "cudaMalloc"), 1),
        (("--operators",), 3),
        (("--named",), 2),
        (("--named", "--shard", "1/2"), 1),
    ],
)
def test_a_part_says_that_it_is_one(
    model: Build, arguments: tuple[str, ...], chosen: int
) -> None:
    several(model)
    done = mutants(model, *arguments)
    assert done.returncode == 0, done.stdout
    assert set(results(model).values()) == {"killed"}
    assert len(results(model)) == chosen
    assert ("NOT the whole matrix" in done.stdout) == (chosen < 5)
    assert bool(document(model)["partial"]) == (chosen < 5)


def test_the_shards_are_the_whole(model: Build) -> None:
    several(model)
    found: list[str] = []
    for part in (1, 2, 3):
        name = f"part{part}"
        assert mutants(model, "--shard", f"{part}/3", "--results", name).returncode == 0
        found += results(model, f"{name}/mutants.json")
    assert sorted(found) == sorted(set(found))
    assert len(found) == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--faults", "typo"), "no fault 'typo'; `ipclab_faults` lists them"),
        (("--function", "cudaTypo"), "no fault of 'cudaTypo'"),
        (
            ("--function", "cudaMalloc", "--named"),
            "no fault fits all of these options",
        ),
        (("--shard", "3/2"), "3/2 is not K/N with K from 1 to N"),
        (("--operators", "--named"), "not allowed with"),
        (("--named", "--legal"), "not allowed with"),
        (("--resume", "kills", "--named"), "leave out --named"),
        (("--resume", "gone"), "gone/faults.jsonl: No such file or directory"),
        (("--backend", "cuda"), "no GPU here: leave out --backend cuda"),
        (("--results", "/dev/null/x"), "/dev/null/x: Not a directory"),
        (("--like", "gone"), "gone/faults.jsonl: No such file or directory"),
    ],
)
def test_what_cannot_be_asked_for(
    model: Build, arguments: tuple[str, ...], said: str
) -> None:
    several(model)
    done = mutants(model, *arguments)
    assert done.returncode == 2
    assert said in done.stdout


def test_a_build_without_the_library_says_how_to_make_it(model: Build) -> None:
    model.conformance("record()")
    done = mutants(model)
    assert done.returncode == 2
    assert "no faults here; build them with: cmake --build build" in done.stdout


def test_the_two_lists_have_to_agree(model: Build) -> None:
    model.faults(
        {"name": "bad", "rows": ["LMEM-01"]},
        {"name": "no-rows"},
        equivalent=[{"fault": "cudaGone.noop", "why": "?"}],
    )
    model.conformance("violates() if under('bad') else record()")
    done = mutants(model)
    assert done.returncode == 1
    assert "harness/faults/bugs.cc: no-rows names no rows" in done.stdout
    assert "faults.json: there is no fault cudaGone.noop" in done.stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "faults.json: [] is not of type object"),
        ("{", "is not JSON"),
        (
            '{"equivalent": [{"fault": "x"}], "expected_unfired": [], '
            '"same_as_driver": [], "first": {}, "lessons": {}, "everywhere": []}',
            "faults.json.equivalent[0].why: is missing",
        ),
    ],
)
def test_a_malformed_list_is_one_clear_error(
    model: Build, text: str, said: str
) -> None:
    several(model)
    (model.source / "harness/faults/faults.json").write_text(text)
    done = mutants(model)
    assert done.returncode == 3
    assert said in done.stdout


# --- stopped and resumed -----------------------------------------------------------


def slow(build: Build, count: int) -> None:
    """Faults whose tests take a third of a second each."""
    names = [f"fault-{i}" for i in range(count)]
    build.faults(*({"name": name, "rows": ["LMEM-01"]} for name in names))
    build.conformance(f"time.sleep(0.3); violates() if under(*{names!r}) else record()")


def test_a_limit_stops_and_resume_goes_on(model: Build) -> None:
    slow(model, 48)
    done = mutants(model, "--limit", "6")
    assert done.returncode == 3
    said = done.stdout.splitlines()[-1]
    found = re.search(r"stopped: (\d+) of 48 faults are left", said)
    assert found, done.stdout
    left = int(found[1])
    assert 0 < left < 48
    before = journal(model)
    assert len(before) == 48 - left
    assert list(results(model).values()).count("not run") == left
    done = mutants(model, "--resume", "kills")
    assert done.returncode == 0, done.stdout
    assert journal(model)[: len(before)] == before  # nothing was done again
    tested = [x["fault"] for x in journal(model)]
    assert sorted(tested) == sorted(set(tested)) and len(tested) == 48
    assert set(results(model).values()) == {"killed"}
    # All is done: another --resume only writes the matrix and the page again.
    assert mutants(model, "--resume", "kills").returncode == 0
    assert len(journal(model)) == 48


def test_what_was_stopped_before_its_first_fault_says_nothing(model: Build) -> None:
    model.faults({"name": "cudaFree.noop"}, {"name": "bad", "rows": ["LMEM-01"]})
    model.conformance("time.sleep(30); record()", timeout=60)
    done = mutants(model, "--limit", "2")
    assert done.returncode == 3
    assert set(results(model).values()) == {"not run"}
    assert not any(x["wrong"] for x in document(model)["faults"])
    assert "stopped: 2 of 2 faults are left" in done.stdout


def test_a_half_written_line_is_done_again(model: Build) -> None:
    slow(model, 3)
    assert mutants(model).returncode == 0
    path = model.root / "kills/faults.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    assert len(path.read_text().splitlines()) == 5
    assert mutants(model, "--resume", "kills").returncode == 0
    assert len(journal(model)) == 3


def test_another_machine_is_not_gone_on_with(build: Build) -> None:
    slow(build, 2)
    assert mutants(build, "--backend", "cuda").returncode == 0
    assert mutants(build, "--resume", "kills").returncode == 0  # on the GPU, as before
    build.probe({**PROBE, "gpus": PROBE["gpus"][:1]})
    done = mutants(build, "--resume", "kills")
    assert done.returncode == 2


def test_a_new_test_is_added(model: Build) -> None:
    slow(model, 3)
    assert mutants(model).returncode == 0
    before = journal(model)
    rows = ["LMEM-01", "LMEM-02"]
    model.faults(*({"name": f"fault-{i}", "rows": rows} for i in range(3)))
    names = [f"fault-{i}" for i in range(3)]
    model.conformance(
        f"violates() if under(*{names!r}) else record()", "Suite.New", "LMEM-02"
    )
    done = mutants(model, "--resume", "kills")
    assert done.returncode == 0, done.stdout
    assert "1 tests and 0 faults are not the same any more" in done.stdout
    assert journal(model)[: len(before)] == before
    assert len(journal(model)) == 6


def a_source(build: Build, path: str, text: str) -> None:
    file = build.source / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_the_same_sources_built_again_are_gone_on_with(model: Build) -> None:
    a_source(model, "conformance/01_legacy_memory/test.cu", "one")
    slow(model, 3)
    assert mutants(model).returncode == 0
    before = (model.root / "kills/faults.jsonl").read_bytes()
    program = next(model.folder.glob("conformance.*.py"))
    program.write_text(program.read_text() + "# process 4711\n")
    a_source(model, "conformance/02_another_folder/test.cu", "two")
    a_source(model, "harness/scenario/tests/test.cc", "of the project itself")
    assert mutants(model, "--resume", "kills").returncode == 0
    assert (model.root / "kills/faults.jsonl").read_bytes() == before


@pytest.mark.parametrize("folder", ["conformance", "samples"])
def test_only_a_changed_test_runs_again(model: Build, folder: str) -> None:
    a_source(model, f"{folder}/01_legacy_memory/test.cu", "one")
    rows = ["LMEM-01", "LMEM-02"]
    model.faults({"name": "a", "rows": rows}, {"name": "b", "rows": rows})
    model.conformance("violates() if under('a', 'b') else record()")
    other = "02_handle_identity"
    model.conformance(
        "violates() if under('a', 'b') else record()",
        "Suite.B",
        "LMEM-02",
        lesson=other,
    )
    assert mutants(model).returncode == 0
    before = journal(model)
    a_source(model, f"{folder}/01_legacy_memory/test.cu", "two")
    # The changed test does not notice one of the faults any more.
    program = next(model.folder.glob("conformance.01*.py"))
    program.write_text(program.read_text().replace("under('a', 'b')", "under('a')"))
    done = mutants(model, "--resume", "kills")
    assert done.returncode == 1
    assert "1 tests and 0 faults are not the same any more" in done.stdout
    assert results(model) == {"a": "killed", "b": "survived"}
    kept = [x for x in before if other in x["ctest"]]
    assert journal(model)[: len(kept)] == kept
    tried_again = 1  # the fault that is not noticed any more
    assert len(journal(model)) == len(before) + tried_again
    lines = (model.root / "kills/faults.jsonl").read_text().splitlines()
    assert sum('"baseline"' in x for x in lines) == 2


def test_only_the_faults_of_a_changed_file_run_again(model: Build) -> None:
    a_source(model, "harness/faults/bugs.cc", "one")
    model.conformance("violates() if under('a', 'b') else record()")
    old = [{"name": "a", "rows": ["LMEM-01"]}]
    old += [{"name": "b", "rows": ["LMEM-01"], "file": "harness/faults/other.cc"}]
    model.faults(*old)
    assert mutants(model).returncode == 0
    before = journal(model)
    a_source(model, "harness/faults/bugs.cc", "two")
    model.faults(
        *old, {"name": "c", "rows": ["LMEM-01"], "file": "harness/faults/bugs.cc"}
    )
    done = mutants(model, "--resume", "kills")
    assert "0 tests and 2 faults are not the same any more" in done.stdout
    assert results(model) == {"a": "killed", "b": "killed", "c": "never fired"}
    kept = [x for x in before if x["fault"] == "b"]
    assert [x for x in journal(model) if x["fault"] == "b"] == kept
    assert Counter(x["fault"] for x in journal(model)) == {"a": 1, "b": 1, "c": 2}
    # A part of the faults stays the same part.
    assert mutants(model, "--faults", "b", "--results", "part").returncode == 0
    a_source(model, "harness/faults/other.cc", "two")
    done = mutants(model, "--resume", "part")
    assert "0 tests and 1 faults are not the same any more" in done.stdout
    assert results(model, "part/mutants.json") == {"b": "killed"}


@pytest.mark.parametrize(
    "path",
    ["harness/faults/engine/f.cc", "conformance/CMakeLists.txt", "samples/common/x.h"],
)
def test_another_build_is_not_gone_on_with(model: Build, path: str) -> None:
    slow(model, 3)
    assert mutants(model).returncode == 0
    a_source(model, path, "changed")
    done = mutants(model, "--resume", "kills")
    assert done.returncode == 2
    assert "was begun with another build" in done.stdout


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("harness/model/m.cc", 0),
        ("harness/trace/t.cc", 0),
        ("harness/faults/engine/f.cc", 2),
    ],
)
def test_on_a_gpu_the_model_may_change(build: Build, path: str, code: int) -> None:
    machine(build, PROBE)
    slow(build, 3)
    assert mutants(build, "--backend", "cuda").returncode == 0
    a_source(build, path, "changed")
    done = mutants(build, "--backend", "cuda", "--resume", "kills")
    assert done.returncode == code
    assert ("was begun with another build" in done.stdout) == (code == 2)


def test_twins_that_differ_are_told(model: Build) -> None:
    model.faults(
        {"name": "same", "rows": ["LMEM-01"]}, {"name": "other", "rows": ["LMEM-01"]}
    )
    old = model.root / "old" / "libipclab_faults.so"
    old.parent.mkdir()
    shutil.copy(model.folder / "faults/libipclab_faults.so", old)
    # A fault that its old form does not notice in one of the two tests.
    model.conformance("violates() if under('same') else record()")
    model.conformance(
        "import os\n"
        "new = '/new/' in os.environ.get('LD_PRELOAD', '')\n"
        "violates() if under('other') and new else record()",
        "Suite.Two",
        "LMEM-02",
    )
    done = model.ipclab("mutants", "--build", "build", "--twin", str(old), "-j", "2")
    assert done.returncode == 1, done.stdout
    assert "other: conformance." in done.stdout
    assert "was conforms; is violates" in done.stdout
    assert "2 faults, 4 of 4 pairs of test and fault" in done.stdout
    assert "1 differ, of 1 faults" in done.stdout
    assert "same: " not in done.stdout


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda lines: lines[1:], "line 1 is not a line of a matrix"),
        (
            lambda lines: [lines[0], "{}", *lines[1:]],
            "line 2 is not a line of a matrix",
        ),
        (lambda lines: [lines[0], "{" * 100000, *lines[1:]], "line 2 is not JSON"),
        (
            lambda lines: [*lines, lines[-1].replace('"seconds": ', '"seconds": -')],
            "is below 0",
        ),
        (lambda lines: [], "is empty"),
    ],
)
def test_a_damaged_journal_is_told(
    model: Build, damage: Callable[[list[str]], list[str]], said: str
) -> None:
    slow(model, 2)
    assert mutants(model).returncode == 0
    path = model.root / "kills/faults.jsonl"
    lines = damage(path.read_text().splitlines())
    path.write_text("".join(f"{line}\n" for line in lines))
    done = mutants(model, "--resume", "kills")
    assert done.returncode == 2
    assert said in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_loses_nothing(model: Build, number: int) -> None:
    slow(model, 24)
    arguments = ("--build", "build", "-j", "2", "--results", "kills")
    process = model.start("mutants", *arguments)
    path = model.root / "kills/faults.jsonl"
    deadline = time.monotonic() + 60
    while not path.exists() or path.read_text().count('"trial"') < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 3, said
    assert "faults are left; continue with: ipclab mutants --resume kills" in said
    assert mutants(model, "--resume", "kills").returncode == 0
    assert set(results(model).values()) == {"killed"}


def test_a_folder_has_one_matrix(model: Build) -> None:
    slow(model, 1)
    assert mutants(model).returncode == 0
    done = mutants(model)
    assert done.returncode == 2
    assert "holds a matrix already; --resume kills continues it" in done.stdout


# --- lessons -------------------------------------------------------------------------


def test_lessons_notice_their_central_faults(model: Build) -> None:
    model.faults(
        {"name": "central", "rows": ["LMEM-01"]},
        {"name": "missed", "rows": ["LMEM-01"]},
        {"name": "aside", "rows": ["LMEM-01"]},
        {"name": "denied", "rows": ["LMEM-01"]},
        {"name": "ok-legal", "rows": ["LMEM-01"]},
        {"name": "ok-flagged", "rows": ["LMEM-01"]},
        {"name": "cudaFree.noop"},
        {"name": "cudaFree.twice"},
        lessons={"01_legacy_memory": ["central", "missed", "denied", "cudaFree.noop"]},
    )
    model.sample(
        FREE + "under('missed', 'aside', 'ok-legal', 'cudaFree.twice')\n"
        "if under('denied'): print('SKIP: no IPC'); sys.exit(77)\n"
        "sys.exit(under('central', 'ok-flagged', 'cudaFree.noop'))"
    )
    assert mutants(model, "--lessons", "--results", "main").returncode == 1
    assert results(model, "main/lessons.json") == {
        "central": "killed",
        "cudaFree.noop": "killed",
        "denied": "survived",
        "missed": "survived",
    }
    done = mutants(model, "--lessons", "all")
    name = "kills/lessons.json"
    assert done.returncode == 1
    assert results(model, name) == {
        "aside": "not noticed",
        "central": "killed",
        "cudaFree.noop": "killed",
        "denied": "survived",
        "missed": "survived",
        "ok-flagged": "flagged",
        "ok-legal": "passed",
    }
    # `missed` and `denied` also took effect; the output lists them by name.
    assert (
        "01_legacy_memory: notices 2 of 5 that take effect in it, "
        "2 of its 4 central ones" in done.stdout
    )
    assert (
        "survived: missed: is wrong "
        "(must be noticed by 01_legacy_memory (survived))" in done.stdout
    )
    assert (model.root / "kills/lessons.html").exists()


def test_a_lesson_without_the_fault_that_it_must_notice(model: Build) -> None:
    model.faults(
        {"name": "gone", "rows": ["LMEM-01"]},
        {"name": "skipped", "rows": ["LMEM-01"]},
        lessons={"99_gone": ["gone"], "01_legacy_memory": ["skipped"]},
    )
    model.sample(FREE + "print('SKIP: one GPU'); sys.exit(77)")
    model.sample("print('idle')", "02_idle")
    done = mutants(model, "--lessons")
    assert "no central fault in faults.json for 02_idle" in done.stdout
    assert done.returncode == 1
    assert "gone: is wrong (must be noticed by 99_gone (no test))" in done.stdout
    assert results(model, "kills/lessons.json")["skipped"] == "not run"


# --- where it is shown ---------------------------------------------------------------


def noticed(build: Build) -> None:
    """A named fault and an operator. The only test notices both."""
    build.faults({"name": "bad", "rows": ["LMEM-01"]}, {"name": "cudaFree.noop"})
    build.conformance(
        FREE + "violates() if under('bad', 'cudaFree.noop') else record()"
    )


def test_the_matrix_goes_into_the_page_of_a_run(model: Build) -> None:
    noticed(model)
    assert model.run("--backend", "model").code == 0
    page = model.root / "out/report.html"
    assert "Kill matrix" not in page.read_text()
    assert mutants(model, "--results", "out").returncode == 0
    text = page.read_text()
    assert "bad, LMEM-01: killed" in text
    assert "cudaFree.noop: killed" in text
    assert "Every judged row that has a test here has failed" in text


def test_a_matrix_of_its_own_has_a_folder(model: Build) -> None:
    noticed(model)
    done = model.ipclab("mutants", "--build", "build")
    assert done.returncode == 0
    (folder,) = (model.root / "results").iterdir()
    assert folder.name.endswith("-mutants")
    page = (folder / "mutants.html").read_text()
    assert "Made on the reference model" in page
    assert not re.search(r'(src|href)="(?!#)', page)  # self-contained
    assert f"results/{folder.name}/mutants.html" in done.stdout


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda x: x.pop("faults"), "matrix.faults: is missing"),
        (lambda x: x.update(seconds=-1), "matrix.seconds: -1 is below 0"),
        (lambda x: x["rows"].clear(), "matrix.rows: LMEM-01 is missing"),
        (
            lambda x: x["faults"][0]["cells"][0].update(result="good"),
            '"good" is none of killed',
        ),
        (None, "is not JSON"),
    ],
)
def test_a_damaged_matrix_is_told(
    model: Build, damage: Callable[[Any], Any] | None, text: str
) -> None:
    noticed(model)
    assert model.run("--backend", "model").code == 0
    mutants(model, "--results", "out")
    path = model.root / "out/mutants.json"
    found = json.loads(path.read_text())
    before = (model.root / "out/report.html").read_text()
    if damage:
        damage(found)
    path.write_text(json.dumps(found) if damage else "{")
    done = model.ipclab("report", "out")
    assert done.returncode == 2
    assert text in done.stdout
    assert "remove it or make it again" in done.stdout
    assert (model.root / "out/report.html").read_text() == before


def test_rules_name_what_proves_a_row(model: Build) -> None:
    noticed(model)
    model.written()
    assert model.run().code == 0
    done = model.ipclab("rules", "--build", "build")
    (line,) = (x for x in done.stdout.splitlines() if x.startswith("LMEM-01"))
    assert line.split()[:4] == ["LMEM-01", "MUST", "1", "1"]
    told = model.ipclab(
        "rules", "--build", "build", "--results", "out", "lmem-01"
    ).stdout
    assert "conformance.01_legacy_memory.Suite.Name  conforms" in told
    assert "How LMEM-01 is tested." in told
    assert "bad: is wrong" in told
    whole = json.loads(model.ipclab("rules", "--build", "build", "--json").stdout)
    assert whole["rows"][0]["tests"] == {"Suite.Name": "How LMEM-01 is tested."}
    done = model.ipclab("rules", "--build", "build", "--json", "LMEM-01")
    assert (done.returncode, done.stdout) == (
        2,
        "ipclab: --json prints all rows: leave out LMEM-01\n",
    )
    done = model.ipclab("rules", "--build", "build", "LMEM-99")
    assert done.returncode == 2
    assert "no row 'LMEM-99'" in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("whole", "cell"), [("passed", "passed"), ("killed", "survived")]
)
def test_the_picture_does_not_blame_tests_that_let_a_legal_answer_pass(
    whole: str, cell: str
) -> None:
    """If no test flagged a legal answer, the cells of its rows say "passed"."""
    found = [{"row": "LMEM-01", "result": "survived"}]
    document = {
        "faults": [{"kind": "named", "name": "f", "result": whole, "cells": found}],
        "rows": [{"id": "LMEM-01", "lesson": "01_legacy_memory"}],
    }
    [block] = matrix.blocks(document)
    assert block.counts == {cell: 1}
