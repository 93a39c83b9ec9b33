"""Hold the GPUs open during a run.

CUDA starts faster if another process already has the GPU open: on one H200, a start
with a context takes 174 ms instead of 290 ms. The runner's own process never uses CUDA.
Instead, the probe holds the GPUs open: `probe --hold` only calls cuInit.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import time
from collections.abc import Mapping

from ipclab.ctest import Case

READY = 60.0  # seconds in which the probe must hold the GPUs, or start once
GOODBYE = 10.0  # seconds until the process must have ended


class Holder:
    """A process that holds the GPUs open until `close`.

    The process also ends when the runner ends in any way.
    """

    def __init__(self, probe: Case, environment: Mapping[str, str]) -> None:
        """Start the process. If this fails, nothing is held, and the run continues.

        `probe` is CTest's test of that name; `environment` is added to our own.
        """
        self._probe = probe
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = self._start("--hold")
        except (OSError, IndexError):
            return
        output = self._process.stdout
        assert output is not None
        ready, _, _ = select.select([output], [], [], READY)
        if not ready or output.readline() != b"held\n":
            self.close()

    @property
    def holds(self) -> bool:
        """Whether the GPUs are held open."""
        return self._process is not None

    def start_ms(self) -> float | None:
        """How many milliseconds a process takes now to start, make a context and end.

        None if the GPUs are not held, or if the process fails.
        """
        if not self.holds:
            return None
        began = time.monotonic()
        try:
            once = self._start("--start")
        except OSError:
            return None
        with once:
            try:
                code = once.wait(READY)
            except subprocess.TimeoutExpired:
                once.kill()
                return None
        return round((time.monotonic() - began) * 1000, 1) if code == 0 else None

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        try:
            process.wait(GOODBYE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(GOODBYE)

    def _start(self, how: str) -> subprocess.Popen[bytes]:
        # The process gets its own group, so that Ctrl-C does not reach it: the run must
        # end first.
        return subprocess.Popen(
            [*self._probe.command, how],
            cwd=self._probe.folder,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
