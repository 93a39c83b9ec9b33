"""Runs programs under `ipclab trace`, on a GPU if there is one or on the model.

From the environment: IPCLAB_BUILD, the build folder.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
BUILD = Path(os.environ.get("IPCLAB_BUILD", ROOT / "build" / "dev")).resolve()
PROGRAMS = BUILD / "harness" / "trace" / "tests" / "trace_programs"
COST = BUILD / "harness" / "trace" / "tests" / "trace_cost"
ON_GPU = Path("/dev/nvidiactl").exists() and not os.environ.get("IPCLAB_PROFILE")


@dataclass(frozen=True)
class Traced:
    """What came out of one `ipclab trace`."""

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
        sys.executable, "-m", "ipclab", "trace", "--build", BUILD, "--out", folder,
        *options, "--", *command,
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


def wait_for_begin(folder: Path, seconds: float = 30) -> None:
    """Wait until a process writes a trace there; TimeoutError if none does."""
    deadline = time.monotonic() + seconds
    while not any(_first_byte(path) == b"{" for path in folder.glob("*.trace")):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{folder}: nothing was recorded")
        time.sleep(0.002)


def _first_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(1)


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
