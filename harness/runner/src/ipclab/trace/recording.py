"""Starts a program so that it and all its children write a trace."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ipclab import results
from ipclab.errors import HarnessError, UsageError
from ipclab.trace.files import TRACER

PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Request:
    """The program, the folder for the trace, and the libraries."""

    command: Sequence[str]
    folder: Path  # must be empty or must not exist
    libraries: Path  # the build's folder trace/
    environment: dict[str, str]
    on_model: bool


def libraries(build: Path) -> Path:
    """The folder of the recorder's libraries in a build.

    Raises UsageError if they are not there.
    """
    folder = (build / "trace").resolve()
    if not (folder / "libipclab_trace.so").is_file():
        raise UsageError(
            f"{folder}: no recorder here; build it with: cmake --build {build} "
            "(it needs CUPTI's headers: see harness/trace/README.md)"
        )
    return folder


def variables(request: Request) -> dict[str, str]:
    """The variables with which a program and its children write a trace."""
    name = "libipclab_trace_model.so" if request.on_model else "libipclab_trace.so"
    library = str(request.libraries / name)
    others = request.environment.get("LD_PRELOAD") or os.environ.get("LD_PRELOAD")
    made = {
        **request.environment,
        "IPCLAB_TRACE": str(request.folder.resolve()),
        "LD_PRELOAD": f"{library} {others}" if others else library,
    }
    if not request.on_model:
        made["CUDA_INJECTION64_PATH"] = library
    return made


def record(request: Request, tell: Callable[[str], None]) -> int:
    """Run the program until it and all its children have ended; return its exit code.

    The exit code is 128 + N if signal N ended the program, as in a shell. `tell` gets a
    line of progress every two seconds. Raises UsageError if the folder cannot be used
    or the program cannot be started.
    """
    results.make_folder(request.folder, "name another folder with --out")
    # Children whose parent ends become our children, so we see how they end.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        program = subprocess.Popen(
            list(request.command),
            env={**os.environ, **variables(request)},
        )
    except OSError as error:
        raise UsageError(f"{request.command[0]}: {error.strerror}") from None
    status = _wait_for_all(request.folder, program.pid, tell)
    program.returncode = 0  # _wait_for_all() has reaped it
    _trim(request.folder)
    return status >> 8 if not status & 0x7F else 128 + (status & 0x7F)


def _wait_for_all(folder: Path, main: int, tell: Callable[[str], None]) -> int:
    """Reap the program and the orphans. Returns the wait status of the program."""
    own = 0
    over = threading.Event()
    threading.Thread(target=_tell, args=(folder, tell, over), daemon=True).start()
    (folder / TRACER).touch(0o600)
    with (folder / TRACER).open("a", encoding="utf-8") as file:
        while True:
            try:
                process, status = os.waitpid(-1, 0)
            except ChildProcessError:
                over.set()
                return own
            except KeyboardInterrupt:
                continue  # the program also got the signal; its trace is kept
            if process == main:
                own = status
            line = {"process": process, "status": status, "at": time.monotonic_ns()}
            file.write(json.dumps(line) + "\n")
            file.flush()


def _tell(folder: Path, tell: Callable[[str], None], over: threading.Event) -> None:
    """Tell a line of progress every two seconds."""
    began = time.monotonic()
    while not over.wait(2):
        used = sum(path.stat().st_blocks * 512 for path in folder.iterdir())
        tell(f"{time.monotonic() - began:.0f} s, {used / 1e6:.0f} MB")


def _trim(folder: Path) -> None:
    """Cut off the space that was prepared but not used: zeros at the end of files."""
    for path in folder.glob("*.trace"):
        try:
            with path.open("r+b") as file:
                size = file.seek(0, os.SEEK_END)
                while size:
                    step = min(size, 1 << 20)
                    file.seek(size - step)
                    kept = file.read(step).rstrip(b"\0")
                    if kept:
                        size += len(kept) - step
                        break
                    size -= step
                file.truncate(size)
        except OSError as error:
            raise HarnessError(f"{path}: {error.strerror}") from None
