"""Runs programs under `ipclab trace`, on a GPU if there is one or on the model.

The variable IPCLAB_BUILD names the build folder.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipclab.errors import UsageError
from ipclab.trace import files, recording
from ipclab.trace.story import replay

ROOT = Path(__file__).parents[3]
BUILD = Path(os.environ.get("IPCLAB_BUILD", ROOT / "build" / "dev")).resolve()
PROGRAMS = BUILD / "harness" / "trace" / "tests" / "trace_programs"
COST = BUILD / "harness" / "trace" / "tests" / "trace_cost"
ON_GPU = Path("/dev/nvidiactl").exists() and not os.environ.get("IPCLAB_PROFILE")


@dataclass(frozen=True)
class Traced:
    """The results of one `ipclab trace`."""

    code: int
    output: str  # what the program and ipclab printed
    folder: Path
    document: dict[str, Any]  # trace.json, empty if there is none

    @property
    def rules(self) -> set[str]:
        """The rules that were broken."""
        return {finding["rule"] for finding in self.document.get("findings", [])}


def trace(
    folder: Path, command: Sequence[str | Path], *options: str, seconds: float = 120
) -> Traced:
    """Trace a program into an empty folder."""
    arguments = [
        sys.executable, "-P", "-m", "ipclab", "trace",
        "--build", BUILD, "--out", folder, *options, "--", *command,
    ]  # fmt: skip
    source = ROOT / "harness" / "runner" / "src"
    ended = subprocess.run(
        list(map(str, arguments)),
        env={**os.environ, "PYTHONPATH": str(source)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    path = folder / "trace.json"
    document = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return Traced(ended.returncode, ended.stdout, folder, document)


def killed(folder: Path, number: int) -> tuple[int, str]:
    """Kill two traced processes at a random moment. Return the number of entries in the
    trace, and what is wrong with the trace; an empty text if nothing is wrong.

    The first process counts its launches in a file. Each launch that has returned
    must be in the trace, and at most one more.
    """
    folder.mkdir(parents=True)
    counter = folder / "launches"
    request = recording.Request(
        [], folder, BUILD / "trace", plain_environment(), not ON_GPU
    )
    process = subprocess.Popen(
        [COST, "exchange", "100000000"],
        env={
            **os.environ,
            **recording.variables(request),
            "COST_COUNTER": str(counter),
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: counter.exists() and _number(counter) > 0)
        time.sleep(random.Random(number).uniform(0, 0.5))  # the moment of the kill
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)
    try:
        read = files.read(folder)
        replay(read)
    except (UsageError, ValueError, KeyError) as error:
        return 0, f"{type(error).__name__} {error}"
    # An unfinished line is lost, at most one for each thread.
    if any(x.torn > 1 for x in read.processes):
        return len(read.entries), "more than one torn line"
    first = next(x for x in read.processes if x.number == process.pid)
    launches = sum(
        isinstance(x, files.Call) and x.process is first and "Launch" in x.name
        for x in read.entries
    )
    returned = _number(counter)
    wrong = (
        ""
        if returned <= launches <= returned + 1
        else (f"{returned} launches had returned, {launches} are in the trace")
    )
    return len(read.entries), wrong


def wait_until(happens: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for something; TimeoutError if it does not happen."""
    deadline = time.monotonic() + seconds
    while not happens():
        if time.monotonic() > deadline:
            raise TimeoutError("it does not happen")
        time.sleep(0.002)


def _number(path: Path) -> int:
    return int.from_bytes(path.read_bytes(), "little")


def plain_environment() -> dict[str, str]:
    """The environment in which a program uses the same CUDA without a trace."""
    if ON_GPU:
        return dict(os.environ)
    return {**os.environ, "LD_LIBRARY_PATH": str(BUILD / "model")}


def cases() -> list[str]:
    """The names of the small programs: RULE or RULE.which."""
    ended = subprocess.run(
        [PROGRAMS], env=plain_environment(), capture_output=True, text=True, check=True
    )
    return ended.stdout.split()
