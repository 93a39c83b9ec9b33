"""A process holds the GPUs open, and this process always ends with the run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ipclab.ctest import Case
from ipclab.hold import Holder

MODEL = {"LD_LIBRARY_PATH": os.environ["IPCLAB_MODEL"]}
PROBE = os.environ["IPCLAB_PROBE"]


def case_of(program: str | Path) -> Case:
    """CTest's entry of a probe."""
    return Case(
        name="probe", command=(str(program),), labels=("probe",), timeout=60,
        folder="/", skip_code=77, suite="probe", lesson=None, gpus=0, alone=False,
        requirement=None,
    )  # fmt: skip


def test_the_probe_holds_until_it_is_told() -> None:
    holder = Holder(case_of(PROBE), MODEL)
    assert holder.holds
    held = [x for x in psutil.Process().children() if "--hold" in x.cmdline()]
    assert len(held) == 1
    cost = holder.start_ms()
    assert cost is not None and cost > 0
    holder.close()
    assert not holder.holds and not held[0].is_running()
    assert holder.start_ms() is None


def test_it_ends_with_a_runner_that_is_killed() -> None:
    script = (
        "import os, signal; from test_hold import *\n"
        "holder = Holder(case_of(PROBE), MODEL)\n"
        "print(holder._process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    pid = int(ended.stdout)
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize("script", ["exit 1", "echo what", "exec >&-; cat"])
def test_a_probe_that_cannot_hold_costs_nothing(tmp_path: Path, script: str) -> None:
    program = tmp_path / "probe"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    holder = Holder(case_of(program), {})
    assert not holder.holds
    assert not [x for x in psutil.Process().children() if "--hold" in x.cmdline()]
    holder.close()
