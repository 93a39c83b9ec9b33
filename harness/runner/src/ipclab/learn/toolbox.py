"""Builds and runs an exercise with the tools in the build folder.

An exercise is plain C++ that uses a precompiled header and a small library
(samples/exercises/CMakeLists.txt), so it is built in a third of a second. An exercise
runs on a GPU if there is one, otherwise on the reference model, on a simulated machine
of its own. An exercise with a profile always runs on the model.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ipclab import model, packed, supervise
from ipclab.errors import HarnessError, UsageError
from ipclab.mutants import faults
from ipclab.mutants.faults import Fault
from ipclab.trace import files, recording
from ipclab.trace.story import Story, replay

BUILD_SECONDS = 60  # enough for a compiler on a loaded machine
RUN_SECONDS = 30  # a role stops waiting after 10 s
SKIPPED = 77


@dataclass(frozen=True)
class Ran:
    """One run of a built exercise."""

    ended: supervise.Ended
    on_model: bool
    story: Story | None = None  # if it was traced
    fired: bool = False  # whether the fault took effect

    @property
    def skipped(self) -> bool:
        """Whether this machine cannot run the exercise."""
        return self.ended.code == SKIPPED


class Toolbox:
    """The part of a build folder that exercises need. Several students may share the
    folder.
    """

    def __init__(self, build: Path, backend: str = "auto") -> None:
        """Raises UsageError if something is missing; the error says what to type."""
        self._build = build.resolve()
        self._on_model = backend == "model" or (
            backend == "auto" and not Path("/dev/nvidiactl").exists()
        )
        self._fall_back = backend == "auto"
        self._libraries = self._build / "trace"
        path = self._build / "exercises/build.json"
        needed = [
            path,
            path.with_name("libexercise.a"),
            self._build / faults.LIBRARY,
            self._libraries / "libipclab_trace_model.so",
        ]
        if self._on_model:
            needed.append(self._build / "model/libcuda.so.1")
        for file in needed:
            if not file.is_file():
                raise UsageError(f"{file} is missing; {packed.remedy(build, 'learn')}")
        commands: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        self._compile = placed(commands["compile"], self._build)
        self._link = placed(commands["link"], self._build)
        self._faults: dict[str, Fault] | None = None
        # A copy: the environment may change while a thread builds.
        self._inherited = dict(os.environ)

    def where(self, profile: str | None = None) -> str:
        """Where an exercise with this profile runs first, in words for a person."""
        if profile is not None:
            return f"the reference model, as the machine {profile}"
        return "the reference model" if self._on_model else "the GPU of this machine"

    @property
    def options(self) -> list[str]:
        """The compiler's options, for an editor."""
        return self._compile[1:]

    def fault(self, name: str) -> Fault:
        """The description of a fault. Raises HarnessError if it does not exist."""
        if self._faults is None:
            self._faults = {x.name: x for x in faults.known(self._build)}
        if name not in self._faults:
            raise HarnessError(f"there is no fault {name}")
        return self._faults[name]

    def build(self, source: Path, program: Path) -> str:
        """Compile and link `source`; returns the compiler's errors, "" if there are
        none.

        Raises HarnessError if the compiler is missing or hangs, or if the disk is full.
        """
        part = program.with_name(f"{program.name}.{os.getpid()}")
        try:
            done = subprocess.run(
                [*self._compile, source.name, "-o", str(part), *self._link],
                cwd=source.parent,
                env=self._inherited,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=BUILD_SECONDS,
            )
        except OSError as error:
            raise HarnessError(f"{self._compile[0]}: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise HarnessError(
                f"{source}: the compiler has not ended after {BUILD_SECONDS} s"
            ) from None
        if done.returncode:
            said = (done.stderr or done.stdout).strip() or "the compiler failed"
            if os.strerror(errno.ENOSPC) in said:  # not the student's fault
                raise HarnessError(f"{program.parent}: {os.strerror(errno.ENOSPC)}")
            return said
        part.replace(program)
        return ""

    def run(self, program: Path, profile: str | None, trace: bool) -> Ran:
        """Run a program; with `trace`, record what it does.

        If the GPU cannot run the program and was not requested explicitly, the model
        runs it.
        """
        on_model = self._on_model or profile is not None
        ran = self._traced(program, profile, trace, on_model)
        if ran.skipped and not ran.on_model and self._fall_back:
            ran = self._traced(program, profile, trace, True)
        return ran

    def run_with(self, fault: Fault, program: Path, profile: str | None) -> Ran:
        """Run a program on a driver that has this one fault."""
        on_model = self._on_model or profile is not None
        with TemporaryDirectory(prefix="ipclab-learn-") as folder:
            log = Path(folder, "fired")
            state = Path(folder, "state")
            state.mkdir()
            library = self._build / faults.LIBRARY
            environment = {
                **self._environment(on_model, profile or fault.profile),
                **fault.environment,
                "IPCLAB_FAULT_LOG": str(log),
                "IPCLAB_FAULT_STATE": str(state),
            }
            if fault.kind != faults.MODEL:
                environment["LD_PRELOAD"] = str(library)
            ended = self._start(program, environment)
            return Ran(ended, on_model, fired=log.is_file() and log.stat().st_size > 0)

    def _traced(
        self, program: Path, profile: str | None, trace: bool, on_model: bool
    ) -> Ran:
        environment = self._environment(on_model, profile)
        if not trace:
            return Ran(self._start(program, environment), on_model)
        with TemporaryDirectory(prefix="ipclab-learn-") as folder:
            request = recording.Request(
                [str(program)], Path(folder), self._libraries, environment, on_model
            )
            ended = self._start(program, recording.variables(request))
            if not any(Path(folder).glob("*.trace")):
                return Ran(ended, on_model)
            # The roles of an exercise communicate only by messages.
            seen = replay(files.read(Path(folder)), messages_only=True)
            return Ran(ended, on_model, seen)

    def _environment(self, on_model: bool, profile: str | None) -> dict[str, str]:
        if not on_model:
            return {}
        return model.environment((self._build / "model").resolve(), profile)

    @staticmethod
    def _start(program: Path, environment: dict[str, str]) -> supervise.Ended:
        try:
            return supervise.run(
                [str(program)],
                timeout=RUN_SECONDS,
                folder=str(program.parent),
                environment={**os.environ, **environment},
            )
        except OSError as error:
            raise HarnessError(f"{program}: {error.strerror}") from None


def placed(
    words: list[str],
    suite: Path,
    toolkits: Sequence[str | None] = (os.environ.get("CUDA_HOME"), "/usr/local/cuda"),
) -> list[str]:
    """The arguments of a compiler; {suite} and {cuda} are replaced by real folders.

    CUDA is in the wheels beside the suite or in one of the toolkits. Raises UsageError
    if its headers are in none of them.
    """
    if not any("{cuda}" in word for word in words):
        return words
    wheels = suite.parents[1] / "nvidia/cu13"
    for folder in (wheels, *(Path(x) for x in toolkits if x)):
        headers = ("cuda_runtime.h", "crt/host_defines.h")
        if all((folder / "include" / x).is_file() for x in headers):
            return [
                word.replace("{suite}", str(suite)).replace("{cuda}", str(folder))
                for word in words
            ]
    raise UsageError(
        "the headers of CUDA 13 are missing, and an exercise needs them; this installs "
        "them: pip install 'nvidia-cuda-runtime==13.0.*' "
        "'nvidia-cuda-crt==13.0.*'"
    )
