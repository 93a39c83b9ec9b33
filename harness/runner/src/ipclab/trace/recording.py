"""Starts a program so that it and all its children write a trace."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TextIO

from ipclab import results
from ipclab.errors import HarnessError, UsageError
from ipclab.trace.files import TRACER, UNKNOWN

PR_SET_CHILD_SUBREAPER = 36
WATCH_SECONDS = 0.02  # after this time a new process is noticed


@dataclass(frozen=True)
class Request:
    """The program, the folder for the trace, and the libraries."""

    command: Sequence[str]
    folder: Path  # must be empty or must not exist
    libraries: Path  # the build's folder trace/
    environment: dict[str, str]
    on_model: bool
    stacks: bool = False  # record the callers of each call
    output: int | None = None  # a descriptor for what the program prints


class Watcher(Protocol):
    """What a person sees while a program is recorded."""

    def run(self, over: threading.Event) -> None:
        """Show something until `over` is set."""

    def interrupted(self) -> None:
        """The person has pressed Ctrl-C, and the program has got the signal, too."""


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
    if request.stacks:
        made["IPCLAB_TRACE_STACKS"] = "1"
    if not request.on_model:
        made["CUDA_INJECTION64_PATH"] = library
    return made


def record(request: Request, watcher: Watcher) -> int:
    """Run the program until it and all its children have ended; return its exit code.

    The exit code is 128 + N if signal N ended the program, as in a shell. Raises
    UsageError if the folder cannot be used or the program cannot be started.
    """
    results.make_folder(request.folder, "name another folder with --out")
    # Children whose parent ends become our children, so we see how they end.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        program = subprocess.Popen(
            list(request.command),
            env={**os.environ, **variables(request)},
            stdout=request.output,
            stderr=request.output,
        )
    except OSError as error:
        raise UsageError(f"{request.command[0]}: {error.strerror}") from None
    # The program also gets the signal of Ctrl-C; its trace is kept. An exception could
    # come between the end of waitpid() and its result.
    before = signal.signal(signal.SIGINT, lambda *_: watcher.interrupted())
    try:
        status = _wait_for_all(request.folder, program.pid, watcher)
    finally:
        signal.signal(signal.SIGINT, before)
    program.returncode = 0  # _wait_for_all() has reaped it
    _trim(request.folder)
    _seal(request.folder)
    return status >> 8 if not status & 0x7F else 128 + (status & 0x7F)


def _wait_for_all(folder: Path, main: int, watcher: Watcher) -> int:
    """Reap the program and the orphans. Returns the wait status of the program."""
    own = 0
    over = threading.Event()
    showing = threading.Thread(target=watcher.run, args=(over,))
    showing.start()
    (folder / TRACER).touch(0o600)
    with (folder / TRACER).open("a", encoding="utf-8") as file:
        watching = threading.Thread(target=_watch, args=(folder, file, over))
        watching.start()
        try:
            while True:
                try:
                    process, status = os.waitpid(-1, 0)
                except KeyboardInterrupt:  # another signal, for us alone
                    continue
                if process == main:
                    own = status
                _note(file, process, status)
        except ChildProcessError:
            return own
        finally:
            over.set()
            watching.join()
            showing.join()


def _note(file: TextIO, process: int, status: int) -> None:
    """Write the end of a process; one call of write, because two threads do so."""
    line = {"process": process, "status": status, "at": time.monotonic_ns()}
    file.write(json.dumps(line) + "\n")
    file.flush()


def _watch(folder: Path, file: TextIO, over: threading.Event) -> None:
    """Note when each process ends. Its parent may reap it much later or never, and a
    process that is killed cannot write its end itself.
    """
    seen: set[Path] = set()
    watched: dict[int, int] = {}  # pidfd to process
    poll = select.poll()
    while not over.wait(0 if watched else WATCH_SECONDS):
        for path in set(folder.iterdir()) - seen:
            seen.add(path)
            number = path.name.partition("-")[0]
            if not number.isdigit() or int(number) in watched.values():
                continue
            if not _is_descendant(int(number)):
                continue  # the process id of another namespace, or of a later process
            with contextlib.suppress(OSError):  # it has ended, or pidfds are refused
                watched[pidfd := os.pidfd_open(int(number))] = int(number)
                poll.register(pidfd, select.POLLIN)
        for pidfd, _ in poll.poll(WATCH_SECONDS * 1000) if watched else ():
            ended = watched.pop(pidfd)
            _note(file, ended, _status_of_dead(ended))
            poll.unregister(pidfd)
            os.close(pidfd)
    for pidfd in watched:
        os.close(pidfd)


def _status_of_dead(process: int) -> int:
    """The wait status of a process that has ended and was not reaped; UNKNOWN if the
    kernel does not tell it. To others than its user the kernel tells 0.
    """
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="latin-1")
        fields = status.rpartition(")")[2].split()
        return (fields[0] == "Z" and int(fields[-1])) or UNKNOWN
    except (OSError, ValueError, IndexError):
        return UNKNOWN


def _is_descendant(process: int) -> bool:
    """Whether this process started the other one, directly or by others."""
    for _ in range(100):
        if process == os.getpid():
            return True
        try:
            status = Path(f"/proc/{process}/stat").read_text(encoding="latin-1")
            process = int(status.rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return False


class Progress:
    """A Watcher that tells a line every two seconds."""

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self._folder, self._tell = folder, tell

    def run(self, over: threading.Event) -> None:
        """Tell how long it takes and how large the trace is."""
        began = time.monotonic()
        while not over.wait(2):
            used = sum(path.stat().st_blocks * 512 for path in self._folder.iterdir())
            self._tell(f"{time.monotonic() - began:.0f} s, {used / 1e6:.0f} MB")

    def interrupted(self) -> None:
        """Nothing to show."""


def _seal(folder: Path) -> None:
    """Write the size of each file, so that a reader sees what was cut or is missing."""
    sizes = {x.name: x.stat().st_size for x in sorted(folder.glob("*.trace"))}
    with (folder / TRACER).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"files": sizes}) + "\n")


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
