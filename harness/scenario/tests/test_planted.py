"""Checks what the harness says about each planted fault.

SPDX-License-Identifier: Apache-2.0
"""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

PROGRAM = os.environ["IPCLAB_PLANTED"]


class Run:
    """Runs one planted TEST to its end."""

    def __init__(self, folder: Path, name: str, **environment: str) -> None:
        record = folder / "record.jsonl"
        record.unlink(missing_ok=True)
        began = time.monotonic()
        done = subprocess.run(
            [PROGRAM, f"--gtest_filter=Planted.{name}"],
            env={**os.environ, "IPCLAB_RECORD": str(record), **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.seconds = time.monotonic() - began
        self.code = done.returncode
        self.text = done.stdout + done.stderr
        lines = record.read_text().splitlines()
        assert len(lines) == 1, lines
        self.record: dict[str, Any] = json.loads(lines[0])
        self.outcome = self.record["outcome"]
        self.reason = self.record["reason"]


@pytest.fixture
def run(tmp_path: Path) -> Any:
    def start(name: str, **environment: str) -> Run:
        return Run(tmp_path, name, **environment)

    return start


def test_nothing_planted_conforms(run: Any) -> None:
    seen = run("Nothing")
    assert (seen.code, seen.outcome, seen.reason) == (0, "conforms", "")
    assert seen.record["requirement"] == "PLANTED-00"
    assert seen.record["test"] == "Planted.Nothing"
    assert [role["ended"] for role in seen.record["roles"]] == ["reached its end"] * 2
    assert seen.record["failures"] == []
    assert seen.record["seed"] == 1


def test_seed_reaches_the_record(run: Any) -> None:
    assert run("Nothing", IPCLAB_SEED="77").record["seed"] == 77


def test_delays_find_a_test_that_depends_on_speed(run: Any) -> None:
    def ends(outcome: str, **environment: str) -> bool:
        tries = (run("DependsOnSpeed", **environment) for _ in range(40))
        return any(x.outcome == outcome for x in tries)

    assert ends("conforms")
    assert ends("violates", IPCLAB_DELAYS="1")


def test_wrong_value(run: Any) -> None:
    seen = run("WrongValue")
    assert (seen.code, seen.outcome) == (1, "violates")
    record = seen.record
    assert record["role"] == "importer"
    assert record["step"] == "handle"
    assert record["call"] == "cudaSomething(&value)"
    assert (record["expected"], record["seen"]) == ("2", "1")
    for word in ("importer", "handle", "cudaSomething", "expected 2, saw 1"):
        assert word in seen.reason and word in seen.text
    assert "harness/scenario/tests/planted.cc" in record["failures"][0]["file"]
    assert [e["kind"] for e in record["timeline"]].count("failure") == 1


def test_every_failure_is_recorded_once(run: Any) -> None:
    failures = run("FourWrongValues").record["failures"]
    assert [x["role"] for x in failures] == ["exporter", "exporter", None, None]
    assert [re.findall(r"\d", x["message"]) for x in failures] == [
        ["1", "2"],
        ["3", "4"],
        ["5", "6"],
        ["7", "8"],
    ]


def test_wrong_size(run: Any) -> None:
    seen = run("WrongSize")
    assert (seen.code, seen.outcome) == (1, "violates")
    assert (seen.record["expected"], seen.record["seen"]) == ("8 bytes", "4 bytes")


def test_failed_call(run: Any) -> None:
    seen = run("FailedCall")
    assert (seen.code, seen.outcome) == (1, "violates")
    assert seen.record["call"] == "cudaMalloc(&p, 1)"
    assert seen.record["seen"] == "cudaErrorInvalidValue"
    assert len(seen.record["failures"]) == 1, "a later end is not reported twice"


@pytest.mark.parametrize("name", ["NoMemory", "Exception"])
def test_what_cannot_be_judged_is_broken(run: Any, name: str) -> None:
    seen = run(name)
    assert (seen.code, seen.outcome) == (1, "broken")


def test_dead_peer(run: Any) -> None:
    seen = run("DeadPeer")
    assert (seen.code, seen.outcome) == (1, "crashed")
    for word in (
        "importer",
        "SIGSEGV",
        "last step: handle",
        "last call: cudaLastCall()",
    ):
        assert word in seen.reason
    assert seen.seconds < 5, "a dead peer is known at once, not at the deadline"
    assert "exporter waits for 'closed'" in seen.record["notes"][0]


def test_deadlock(run: Any) -> None:
    seen = run("Deadlock")
    assert (seen.code, seen.outcome) == (1, "hung")
    assert "exporter waits for 'importer done'" in seen.reason
    assert "importer waits for 'exporter done'" in seen.reason
    assert seen.seconds < 5, "a deadlock is known at once, not at the deadline"


def test_endless_role(run: Any) -> None:
    seen = run("Endless")
    assert (seen.code, seen.outcome) == (1, "hung")
    assert (
        "3000 ms" in seen.reason
        and "exporter is running (last step: begun" in seen.reason
    )


def test_the_runner_may_give_less_time(run: Any) -> None:
    seen = run("Endless", IPCLAB_SECONDS="1")
    assert (seen.code, seen.outcome) == (1, "hung")
    assert "not at the end after" in seen.reason and "3000 ms" not in seen.reason
    assert seen.seconds < 3


def test_stopped_role(run: Any) -> None:
    seen = run("Stopped")
    assert (seen.code, seen.outcome) == (1, "hung")
    assert "exporter is stopped" in seen.reason
    assert "importer waits for 'handle'" in seen.reason


def test_end_before_the_end(run: Any) -> None:
    seen = run("EndsBeforeItsEnd")
    assert (seen.code, seen.outcome) == (1, "crashed")
    assert "exit code 0 before its end" in seen.reason


def test_another_death_than_declared(run: Any) -> None:
    seen = run("DiesOtherwiseThanSaid")
    assert (seen.code, seen.outcome) == (1, "crashed")
    assert "SIGABRT" in seen.reason


def test_crash_after_the_end(run: Any) -> None:
    seen = run("CrashAfterItsEnd")
    assert (seen.code, seen.outcome) == (1, "crashed")
    assert "SIGSEGV after its end" in seen.reason


def test_grandchild(run: Any) -> None:
    seen = run("Grandchild")
    assert (seen.code, seen.outcome) == (1, "broken")
    assert "left behind: " in seen.reason and "(pid " in seen.reason
    pid = int(seen.reason.split("(pid ")[1].split(")")[0])
    assert not psutil.pid_exists(pid)


def test_descriptor_left_open(run: Any) -> None:
    seen = run("DescriptorLeftOpen")
    assert (seen.code, seen.outcome) == (1, "broken")
    assert "left behind: descriptor" in seen.reason and "/dev/null" in seen.reason


def test_what_is_left_after_a_failed_check_hides_no_verdict(run: Any) -> None:
    seen = run("DescriptorLeftOpenAfterAFailedCheck")
    assert (seen.code, seen.outcome) == (1, "violates")
    assert "left behind" not in seen.reason


def remove_names() -> list[str]:
    left = list(Path("/dev/shm").glob("ipclab-planted-*"))
    for name in left:
        name.unlink()
    return sorted(map(str, left))


def test_shared_memory_names(run: Any) -> None:
    seen = run("SharedMemoryNames")
    left = remove_names()
    assert (seen.code, seen.outcome, len(left)) == (1, "broken", 2)
    failures = [x["message"] for x in seen.record["failures"]]
    assert [f"left behind: {name}" for name in left] == failures


def test_names_of_other_programs(run: Any) -> None:
    seen = run("NamesOfOtherPrograms")
    assert len(remove_names()) == 2
    assert (seen.code, seen.outcome, seen.reason) == (0, "conforms", "")


def test_device_memory(run: Any, tmp_path: Path) -> None:
    used = tmp_path / "used"
    used.write_text("0")
    seen = run(
        "DeviceMemory",
        LD_LIBRARY_PATH=os.environ["IPCLAB_FAKE_NVML"],
        IPCLAB_FAKE_USED=str(used),
        IPCLAB_EXCLUSIVE="1",
    )
    assert (seen.code, seen.outcome) == (1, "broken")
    assert "left behind: 4194304 bytes of device memory on GPU 0" in seen.reason


def test_flood_of_output(run: Any) -> None:
    seen = run("Flood")
    assert (seen.code, seen.outcome) == (1, "violates")
    output = seen.record["roles"][0]["output"]
    assert len(output) < 40000
    assert output.startswith("the first line\n")
    assert "the last line\n" in output and " bytes …]" in output


def test_message_cut_short(run: Any) -> None:
    seen = run("MessageCutShort")
    assert (seen.code, seen.outcome) == (1, "crashed")
    assert "cut short: 38 bytes came, 1000 are missing" in seen.reason


def test_bytes_that_are_no_message(run: Any) -> None:
    seen = run("NoMessage")
    assert (seen.code, seen.outcome) == (1, "broken")


def runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_referee_killed(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    referee = subprocess.Popen(
        [PROGRAM, "--gtest_filter=Planted.RefereeKilled"],
        env={**os.environ, "IPCLAB_BEGUN": str(begun)},
        stdout=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 20
        while not (begun.exists() and begun.read_text().endswith("\n")):
            assert time.monotonic() < until and referee.poll() is None
            os.sched_yield()
        roles = psutil.Process(referee.pid).children()
        assert len(roles) == 3
        referee.send_signal(signal.SIGKILL)
        referee.wait(timeout=5)
        # In some containers no process reaps the roles. A zombie counts as ended.
        until = time.monotonic() + 1
        while alive := [role for role in roles if runs(role)]:
            assert time.monotonic() < until, alive
            os.sched_yield()
    finally:
        referee.kill()
        referee.wait(timeout=5)


def test_a_failing_order_is_named(run: Any) -> None:
    seen = run("OneOrderFails")
    assert (seen.code, seen.outcome) == (1, "violates")
    assert "[order: free close]" in seen.reason


def test_lifted_and_observed_pass(run: Any, tmp_path: Path) -> None:
    seen = run("Lifted")
    assert (seen.code, seen.outcome, seen.reason) == (
        0,
        "lifted",
        "trim released 64 MiB",
    )
    (tmp_path / "record.jsonl").unlink()
    seen = run("Observed")
    assert (seen.code, seen.outcome) == (0, "conforms")
    assert seen.record["notes"] == ["from the referee", "exporter: code 1"]


def test_a_role_may_find_nothing_to_judge(run: Any) -> None:
    seen = run("NotApplicable")
    assert (seen.code, seen.outcome) == (0, "not applicable")
    assert seen.reason.strip() == "GPU 1 reaches GPU 0"


def test_a_fabric_that_is_not_ready_ends_the_scenario(run: Any) -> None:
    seen = run("FabricNotReady")
    assert (seen.code, seen.outcome) == (0, "not applicable")
    assert seen.reason.strip() == (
        "the fabric is not ready: cuMemCreate(…) gives CUDA_ERROR_FABRIC_NOT_READY"
    )


def test_nothing_to_judge_hides_no_failure(run: Any) -> None:
    seen = run("NotApplicableAndWrong")
    assert (seen.code, seen.outcome) == (1, "violates")


def test_tables_of_outcomes(run: Any) -> None:
    seen = run("Tabulated")
    assert (seen.code, seen.outcome) == (0, "conforms"), "a table judges nothing"
    lines = seen.record["outcomes"]
    assert {line["table"] for line in lines} == {"table"}
    assert {(x["input"], x["outcome"], x["code"]) for x in lines} == {
        ("zeros", "documented refusal", "cudaErrorInvalidValue"),
        ("noise", "wrong success", "cudaSuccess"),
        ("ones", "other refusal", "other"),
        ("null", "crash", "SIGSEGV"),
    }


def test_a_role_that_hung_is_in_the_table(run: Any) -> None:
    seen = run("TabulatedHang")
    assert (seen.code, seen.outcome) == (1, "hung")
    [line] = seen.record["outcomes"]
    assert (line["input"], line["outcome"], line["code"]) == ("ones", "hang", None)


CAPABILITIES = r"""{"backend": "cuda", "gpus": [{"uuid": "GPU-1"}],
 "capabilities": [{"name": "fabric", "available": false, "attribute": "1",
                   "attempt": "x", "reason": "cuMemCreate: no \"channel\""}]}"""


def test_missing_gpus_skip_with_the_reason(run: Any, tmp_path: Path) -> None:
    answers = tmp_path / "capabilities.json"
    answers.write_text(CAPABILITIES)
    seen = run("NeedsTwoGpus", IPCLAB_CAPABILITIES=str(answers))
    assert (seen.code, seen.outcome) == (0, "not applicable")
    assert seen.reason == "needs 2 GPUs, found 1"
    assert seen.record["requirement"] == "PLANTED-02"
    assert "SKIPPED" in seen.text


def test_missing_capability_skips_with_the_reason(run: Any, tmp_path: Path) -> None:
    answers = tmp_path / "capabilities.json"
    answers.write_text(CAPABILITIES)
    seen = run("NeedsFabric", IPCLAB_CAPABILITIES=str(answers))
    assert (seen.code, seen.outcome) == (0, "not applicable")
    assert seen.reason == 'fabric: cuMemCreate: no "channel"'


@pytest.mark.parametrize("content", ["", "nonsense", '{"gpus": [{"uuid": 1}]}'])
def test_unusable_answers_are_broken(run: Any, tmp_path: Path, content: str) -> None:
    answers = tmp_path / "capabilities.json"
    answers.write_text(content)
    seen = run("NeedsFabric", IPCLAB_CAPABILITIES=str(answers))
    if content.startswith("{"):
        assert (seen.code, seen.outcome) == (1, "broken")
    else:
        assert (seen.code, seen.outcome) == (0, "not applicable")


def test_a_full_disk_is_no_result(tmp_path: Path) -> None:
    done = subprocess.run(
        [PROGRAM, "--gtest_filter=Planted.Nothing"],
        env={**os.environ, "IPCLAB_RECORD": "/dev/full"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert (
        "cannot write the record to /dev/full: No space left on device" in done.stdout
    )


def test_listing_runs_nothing() -> None:
    done = subprocess.run(
        [PROGRAM, "--ipclab_list"], capture_output=True, text=True, timeout=10
    )
    assert done.returncode == 0
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert ["Planted.WrongValue", "PLANTED-01", "0", ""] in lines
    assert ["Planted.NeedsTwoGpus", "PLANTED-02", "2", ""] in lines
    assert ["Planted.NeedsFabric", "", "1", "alone"] in lines


def test_an_unknown_argument_is_refused() -> None:
    done = subprocess.run(
        [PROGRAM, "--nonsense"], capture_output=True, text=True, timeout=10
    )
    assert done.returncode == 2
    assert "unknown argument '--nonsense'" in done.stderr


# --- processes that tests share ------------------------------------------------


def shared(tmp_path: Path, *names: str, **environment: str) -> list[dict[str, Any]]:
    """Run these tests in one program, in the order of the source."""
    record = tmp_path / "record.jsonl"
    subprocess.run(
        [PROGRAM, "--gtest_filter=" + ":".join(f"Shared.{name}" for name in names)],
        env={**os.environ, "IPCLAB_RECORD": str(record), **environment},
        capture_output=True,
        timeout=60,
    )
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [line["test"] for line in lines] == [f"Shared.{name}" for name in names]
    return lines


def pid(record: dict[str, Any], role: int = 0) -> tuple[int, bool]:
    seen = record["roles"][role]
    return seen["pid"], seen["shared"]


def test_a_later_role_runs_in_the_process_of_an_earlier_one(tmp_path: Path) -> None:
    first, second = shared(tmp_path, "First", "Second")
    assert first["outcome"] == second["outcome"] == "conforms"
    number, _ = pid(first)
    assert (pid(first), pid(second)) == ((number, False), (number, True))
    assert first["notes"] == second["notes"] == [f"exporter: {number}"]
    assert first["roles"][0]["output"] == "from the first\n"
    assert second["roles"][0]["output"] == ""
    assert first["requirement"] == "PLANTED-03" and second["requirement"] is None
    assert [x["kind"] for x in second["timeline"]] == ["end"]


@pytest.mark.parametrize("name", ["Fails", "LeavesADescriptor", "IsNotAsNew"])
def test_a_process_that_is_not_as_new_is_not_used_again(
    tmp_path: Path, name: str
) -> None:
    between, last = shared(tmp_path, name, "TwoRuns")
    outcome = {"Fails": "violates", "LeavesADescriptor": "broken"}
    assert between["outcome"] == outcome.get(name, "conforms")
    assert last["outcome"] == "conforms"
    assert pid(last)[0] != pid(between)[0]


def test_nobody_waits_after_a_failure(tmp_path: Path) -> None:
    first, fails, last = shared(tmp_path, "First", "Fails", "TwoRuns")
    assert [x["outcome"] for x in (first, fails, last)] == [
        "conforms", "violates", "conforms",
    ]  # fmt: skip
    assert pid(fails) == (pid(first)[0], True)
    assert not pid(last)[1] and pid(last)[0] != pid(first)[0]


@pytest.mark.parametrize(
    "name", ["HasItsOwnEnvironment", "Fresh", "WaitsForTheEndOfANewProcess"]
)
def test_what_wants_a_new_process_gets_one(tmp_path: Path, name: str) -> None:
    first, own = shared(tmp_path, "First", name)
    assert own["outcome"] == "conforms"
    assert not pid(own)[1] and pid(own)[0] != pid(first)[0]


def test_two_runs_of_one_test_share(tmp_path: Path) -> None:
    (record,) = shared(tmp_path, "TwoRuns")
    assert record["outcome"] == "conforms"
    (number, _), (importer, _) = pid(record, 0), pid(record, 1)
    assert [pid(record, n) for n in (2, 3)] == [(number, True), (importer, True)]
    assert record["notes"] == [f"exporter: {number}"] * 2


def test_the_end_of_a_process_that_goes_on_cannot_be_waited_for(tmp_path: Path) -> None:
    (record,) = shared(tmp_path, "WaitsForAnEnd")
    assert record["outcome"] == "hung"
    assert "exporter rests, as processes do that scenarios share" in record["reason"]
    assert "importer waits for 'end of exporter'" in record["reason"]


def test_a_role_that_is_done_can_be_waited_for(tmp_path: Path) -> None:
    first, last = shared(tmp_path, "First", "WaitsUntilARoleIsDone")
    assert first["outcome"] == last["outcome"] == "conforms"
    assert pid(last) == (pid(first)[0], True)


def test_a_role_that_tries_no_input_is_a_failure(tmp_path: Path) -> None:
    (record,) = shared(tmp_path, "EndsBeforeItsFirstInput")
    assert record["outcome"] == "violates"
    assert "has ended before it tried an input" in record["reason"]


def test_a_crash_at_the_exit_of_a_shared_process_is_told(tmp_path: Path) -> None:
    *_, record = shared(tmp_path, "DiesAtItsExit")
    assert record["outcome"] == "crashed"
    assert "SIGSEGV" in record["reason"] and "exporter" in record["reason"]


def test_device_memory_of_shared_processes_comes_back(tmp_path: Path) -> None:
    used = tmp_path / "used"
    used.write_text("0")
    fake = {
        "LD_LIBRARY_PATH": os.environ["IPCLAB_FAKE_NVML"],
        "IPCLAB_FAKE_USED": str(used),
        "IPCLAB_EXCLUSIVE": "1",
    }
    first, last = shared(tmp_path, "First", "LeavesDeviceMemory", **fake)
    assert (first["outcome"], last["outcome"]) == ("conforms", "broken")
    assert "4194304 bytes of device memory on GPU 0" in last["reason"]


def test_the_list_says_which_tests_share() -> None:
    done = subprocess.run(
        [PROGRAM, "--ipclab_list"], capture_output=True, text=True, timeout=60
    )
    lines = dict(line.split("\t", 1) for line in done.stdout.splitlines())
    assert lines["Shared.Second"] == "\t0\tshared"
    assert lines["Shared.Fresh"] == "\t0\t"
    assert lines["Shared.Alone"] == "\t0\talone shared"
