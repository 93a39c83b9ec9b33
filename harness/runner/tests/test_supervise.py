"""Programs that end badly or do not end: the runner ends them."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from conftest import Build
from ipclab import records, supervise
from ipclab.ctest import Case


def test_a_system_that_forbids_pidfds_runs_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As under the seccomp profile of an old container engine, which is what the doctor
    must be able to say."""

    def refuse(_pid: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    ended = supervise.run(["sh", "-c", "echo here; exit 3"], timeout=20)
    assert (ended.code, ended.output) == (3, "here\n")
    assert supervise.run(["sleep", "60"], timeout=0.5).timed_out


def test_a_system_without_shared_memory_files_runs_programs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(supervise, "SHARED_MEMORY", tmp_path / "missing")
    assert supervise.run(["true"], timeout=20).code == 0


def test_a_program_that_no_signal_ends_is_told_and_left(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No signal is sent, so the process stays, as if a driver hung."""
    sent: list[int] = []
    monkeypatch.setattr(
        supervise, "_signal_group", lambda pid, number: sent.append(pid)
    )
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(pid))
    monkeypatch.setattr(supervise, "GRACE", 0.1)
    monkeypatch.setattr(supervise, "STUCK", 0.3)
    build.conformance("time.sleep(60)", timeout=3)
    began = time.monotonic()
    outcome = build.run()
    assert time.monotonic() - began < 30
    monkeypatch.undo()
    os.killpg(sent[0], signal.SIGKILL)
    os.waitpid(sent[0], 0)
    assert (outcome.only["verdict"], outcome.code) == ("broken", 1)
    assert "cannot be ended: state S" in outcome.only["reason"]
    assert "the GPU or its driver hangs" in outcome.only["reason"]


def test_a_sample_that_no_signal_ends_is_broken_not_hung(build: Build) -> None:
    build.sample("pass")
    ended = supervise.Ended(7, -9, True, "", (), 1.0, "state D, in nv_wait")
    record = records.of_test(_case(build), ended, b"", 1)
    assert record["outcome"] == "broken"
    assert "process 7 cannot be ended: state D, in nv_wait" in record["reason"]


def test_a_program_has_a_group_of_its_own_in_the_session_of_the_run() -> None:
    """Ctrl-C does not reach it, and Linux schedules it as an equal of all others."""
    program = "import os; print(os.getpid(), os.getpgid(0), os.getsid(0))"
    ended = supervise.run([sys.executable, "-c", program], timeout=20)
    pid, group, session = map(int, ended.output.split())
    assert (group, session) == (pid, os.getsid(0))


@pytest.mark.parametrize("megabytes", [0, 512])
def test_nothing_of_a_program_outlives_it(megabytes: int) -> None:
    """Even a grandchild in its own session that ignores SIGTERM does not survive. If
    it has much memory, some time passes before it has ended.
    """
    program = (
        "import os, signal, time\n"
        "ready, done = os.pipe()\n"  # tells that the memory is there
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        f"        memory = b'1' * ({megabytes} << 20)\n"
        "        print(os.getpid(), flush=True)\n"
        "        os.write(done, b'1')\n"
        "        time.sleep(60)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "os.read(ready, 1)\n"
    )
    ended = supervise.run([sys.executable, "-c", program], timeout=60)
    pid = int(ended.output)
    assert [f"({pid})" in survivor for survivor in ended.survivors] == [True]
    assert not psutil.pid_exists(pid)


def test_a_process_that_ends_while_it_is_looked_at_is_reaped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A zombie has no environment, so nothing shows which program it belonged to."""
    belongs = supervise._belongs

    def ends_first(process: psutil.Process, leader: int, mark: str) -> bool:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        return belongs(process, leader, mark)

    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    orphan = subprocess.Popen(command, start_new_session=True)
    monkeypatch.setattr(supervise, "_belongs", ends_first)
    assert supervise._family(0, "a mark") == []
    assert not psutil.pid_exists(orphan.pid)
    orphan.wait()


def test_what_another_thread_started_is_left_to_it() -> None:
    """If this thread reaped the other thread's child, the other thread would see exit
    code 0.
    """
    other = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert supervise.run(["true"], timeout=20).code == 0
    assert other.wait() == 3


def test_the_end_of_a_program_is_told_at_once_and_before_it_is_reaped() -> None:
    pid = os.spawnv(os.P_NOWAIT, "/bin/sh", ["sh", "-c", "exit 3"])
    end = supervise._End(pid)
    assert end.wait(20)
    assert Path(f"/proc/{pid}").exists()  # a zombie keeps its process id
    assert os.waitpid(pid, 0)[1] == 3 << 8
    end.close()


def _case(build: Build) -> Case:
    return Case(
        name="sample.01_legacy_memory",
        command=("true",),
        labels=("sample",),
        timeout=1,
        folder=str(build.root),
        skip_code=77,
        suite="sample",
        lesson="01_legacy_memory",
        gpus=1,
        alone=False,
        requirement=None,
    )
