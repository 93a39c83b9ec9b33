"""Run one program and make sure that none of its processes outlives the call.

The program leads its own process group. The runner's process is a subreaper: every
process that the program leaves behind becomes a child of the runner. The runner finds,
names and ends these children. Only a process that hangs in the driver can outlive the
call.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")
MARK = "IPCLAB_SUPERVISED"  # a variable that even processes in another group inherit
HEAD = TAIL = 64 * 1024  # bytes of output that are kept at each end
GRACE = 2.0  # seconds between SIGTERM and SIGKILL
LINGER = 2.0  # seconds in which the last children may end by themselves
STUCK = 10.0  # seconds after SIGKILL until a process counts as stuck
LOOK = 0.05  # seconds between two checks of /dev/shm; a CUDA process lives longer
ASK = 0.01  # seconds between two questions whether a process has ended, without a pidfd

_PR_SET_CHILD_SUBREAPER = 36
_lock = threading.Lock()
_leaders: set[int] = set()
_marks = 0


@dataclass(frozen=True)
class Ended:
    """How a supervised program ended."""

    pid: int
    code: int  # exit code, or minus the signal's number
    timed_out: bool
    output: str
    survivors: tuple[str, ...]  # "name (pid)" of each process left behind
    seconds: float
    stuck: str = ""  # the program's state, if not even SIGKILL ended the program

    @property
    def signal(self) -> str | None:
        """The name of the signal that ended the program; None if no signal did."""
        if self.code >= 0:
            return None
        try:
            return signal.Signals(-self.code).name
        except ValueError:
            return f"signal {-self.code}"

    @property
    def how(self) -> str:
        """How the program ended, in words for the report."""
        if self.stuck:
            return f"cannot be ended: {self.stuck}"
        if self.timed_out:
            return "ended at the time limit"
        return f"killed by {self.signal}" if self.signal else f"exit {self.code}"


class Capture:
    """Output up to a limit: the first HEAD bytes and the last TAIL bytes."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
        """Append output as it comes."""
        room = HEAD - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > TAIL:
            self._dropped += len(self._tail) - TAIL
            del self._tail[:-TAIL]

    def text(self) -> str:
        """The output that was kept; zeros and bytes that are not UTF-8 are replaced."""
        cut = f"\n[… {self._dropped} bytes left out …]\n" if self._dropped else ""
        kept = self._head + cut.encode() + self._tail
        return kept.decode(errors="replace").replace("\0", "�")


def adopt_orphans() -> None:
    """Make this process the new parent of its programs' orphans."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run(
    command: Sequence[str],
    *,
    timeout: float,
    folder: str | None = None,
    environment: Mapping[str, str] | None = None,
    live: Callable[[bytes], None] | None = None,
) -> Ended:
    """Run `command` to its end or for `timeout` seconds.

    Raises OSError if the program cannot be started, and IndexError if `command` is
    empty. `live` gets the output as it comes. If SIGKILL does not end the program, for
    example because it waits inside a hung driver, this function returns nevertheless,
    and `stuck` says so.
    """
    global _marks
    adopt_orphans()
    with _lock:
        _marks += 1
        mark = f"{os.getpid()}.{_marks}"
    start = time.monotonic()
    capture = Capture()
    with _lock:  # otherwise another thread could reap the program too early
        program = subprocess.Popen(
            command,
            cwd=folder,
            env={**(os.environ if environment is None else environment), MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # No session of its own: Linux shares the processors between sessions
            # ("autogroup" in sched(7)). With 20 at work, Linux 6.18 let one of them
            # keep both processors for up to 4.6 s; a test that waits 5 s failed.
            process_group=0,
        )
        _leaders.add(program.pid)
    reader = threading.Thread(target=_read, args=(program, capture, live), daemon=True)
    reader.start()
    names_of_driver = _DriverNames(program.pid, mark)
    end = _End(program.pid)
    timed_out = False
    stuck = ""
    alone = False  # whether all processes of the program have ended
    survivors: list[psutil.Process] = []
    try:
        if _wait_and_look(end, timeout, names_of_driver):
            survivors = _wait_for(program.pid, mark, LINGER)
            alone = not survivors
        else:
            timed_out = True
            _signal_group(program.pid, signal.SIGTERM)
            end.wait(GRACE)
        names = tuple(f"{_name(process)} ({process.pid})" for process in survivors)
    finally:
        names_of_driver.look()
        # End all processes and reap them, even after a KeyboardInterrupt. The leader is
        # reaped last: until then no other process can get the leader's id or the id of
        # its group.
        if not alone:
            _signal_group(program.pid, signal.SIGKILL)
            left = _family(program.pid, mark)
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
        if not end.wait(STUCK):
            stuck = _state(program.pid)
            program.returncode = -signal.SIGKILL  # so that program.wait() returns
        if not alone:
            _reap_killed(left)
            _wait_for(program.pid, mark, GRACE)
        end.close()
        with _lock:
            program.wait()
            _leaders.discard(program.pid)
        reader.join(GRACE)
        names_of_driver.remove()
    return Ended(
        pid=program.pid,
        stuck=stuck,
        code=program.returncode,
        timed_out=timed_out,
        output=capture.text(),
        survivors=names,
        seconds=time.monotonic() - start,
    )


def stop_all() -> None:
    """End every program that is running now. Their calls of `run` then return."""
    with _lock:
        leaders = list(_leaders)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with _lock:  # so no thread reaps a leader during the loop
            for pid in _leaders.intersection(leaders):
                _signal_group(pid, number)
        deadline = time.monotonic() + GRACE
        while time.monotonic() < deadline:
            with _lock:
                if not _leaders.intersection(leaders):
                    return
            time.sleep(0.01)


def _read(
    program: subprocess.Popen[bytes],
    capture: Capture,
    live: Callable[[bytes], None] | None,
) -> None:
    assert program.stdout is not None
    with program.stdout as stream:
        while data := os.read(stream.fileno(), 64 * 1024):
            capture.add(data)
            if live is not None:
                live(data)


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _family(leader: int, mark: str) -> list[psutil.Process]:
    """The leader's living descendants, even if they have another parent now.

    Also reaps orphans that have ended.
    """
    family = []
    others = _leaders - {leader}
    for pid in _descendants():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getpgid(pid) in others:
                continue  # the thread of that leader looks after it
            process = psutil.Process(pid)
            ours = pid != leader and _belongs(process, leader, mark)
            # The status is read after the environment: a process that ends before
            # that has no environment any more, and is seen here as a zombie.
            if process.status() == psutil.STATUS_ZOMBIE:
                # A zombie in our own group belongs to another thread, which reaps the
                # zombie.
                if os.getpgid(pid) != os.getpgid(0):
                    _reap(pid)
            elif ours:
                family.append(process)
    return family


def _descendants() -> list[int]:
    """The children of this process, their children and so on, zombies too.

    psutil makes an object for each and reads several files for it; with many tests at
    once that takes longer than everything else here.
    """
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                stat = Path(entry.path, "stat").read_bytes()
                parent = int(stat[stat.rindex(b")") + 4 :].split(b" ", 1)[0])
                children.setdefault(parent, []).append(int(entry.name))
    found = children.get(os.getpid(), [])
    for pid in found:  # grows in the loop
        found.extend(children.get(pid, []))
    return found


def _wait_for(leader: int, mark: str, seconds: float) -> list[psutil.Process]:
    """Wait until the family is empty or `seconds` have passed; return the family."""
    deadline = time.monotonic() + seconds
    while (family := _family(leader, mark)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return family


def _reap_killed(processes: Sequence[psutil.Process]) -> None:
    """Wait for processes that were killed, and reap them.

    Before such a process is a zombie, the kernel takes its environment and frees its
    memory. During this time `_family` does not see whose it is.
    """
    deadline = time.monotonic() + GRACE
    for process in processes:
        with contextlib.suppress(OSError):  # another thread has reaped it
            end = _End(process.pid)
            end.wait(deadline - time.monotonic())
            end.close()
    # Now all parents have ended, so this process is the parent of all.
    for process in processes:
        _reap(process.pid)


def _belongs(process: psutil.Process, leader: int, mark: str) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        group = os.getpgid(process.pid)
        return group == leader or process.environ().get(MARK) == mark
    return False


class _End:
    """Notices the end of a child without reaping the child."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._poll: select.poll | None = None
        try:
            self._descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except OSError:  # an old kernel, or a filter that forbids it
            return
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def wait(self, seconds: float) -> bool:
        """Whether the child has ended; waits at most `seconds`."""
        if self._poll is not None:
            return bool(self._poll.poll(max(seconds, 0) * 1000))
        deadline = time.monotonic() + seconds
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while True:
            if os.waitid(os.P_PID, self._pid, look) is not None:
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(ASK)

    def close(self) -> None:
        """Close the descriptor."""
        if self._poll is not None:
            os.close(self._descriptor)


def _wait_and_look(end: _End, timeout: float, names: _DriverNames) -> bool:
    """Wait for the end of the program; during this time, remember the driver's names.

    Returns False if the time has run out.
    """
    deadline = time.monotonic() + timeout
    while (left := deadline - time.monotonic()) > 0:
        if end.wait(min(LOOK, left)):
            return True
        names.look()
    return end.wait(0)


def _state(pid: int) -> str:
    """What the kernel says about a process that has not ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
        state = status.partition("State:")[2].partition("\n")[0].strip()
        where = Path(f"/proc/{pid}/wchan").read_text(encoding="ascii").strip("0\n")
        return f"state {state}, in {where or 'the kernel'}"
    except OSError:
        return "state unknown"


class _DriverNames:
    """The names in /dev/shm that NVIDIA's driver leaves for a program's processes.

    For interprocess events the driver makes a name that contains the process's id. It
    never unlinks this name. A name is removed if it has the id of the program, or if
    it was seen while its process lived and belonged to the program. Other names stay,
    because a process in a container that shares /dev/shm may use them.
    """

    def __init__(self, leader: int, mark: str) -> None:
        self._leader = leader
        self._mark = mark
        self._ours: set[Path] = set()

    def look(self) -> None:
        """Remember the names of the processes that live now."""
        for path in self._all():
            with contextlib.suppress(psutil.Error, OSError, ValueError):
                pid = int(path.name.split(".")[3], 16)
                if _belongs(psutil.Process(pid), self._leader, self._mark):
                    self._ours.add(path)

    def remove(self) -> None:
        """Remove the names; all processes of the program have ended."""
        for path in self._ours.union(self._all(f"{self._leader:x}")):
            with contextlib.suppress(OSError):
                path.unlink()

    @staticmethod
    def _all(pid: str = "") -> Iterator[Path]:
        start = f"cuda.shm.{os.geteuid()}." + (f"{pid}." if pid else "")
        with contextlib.suppress(OSError):  # a container may have no such folder
            yield from (x for x in SHARED_MEMORY.iterdir() if x.name.startswith(start))


def _reap(pid: int) -> None:
    with _lock, contextlib.suppress(ChildProcessError):
        if pid not in _leaders:  # for a leader, another call of `run` waits
            os.waitpid(pid, os.WNOHANG)


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return "?"
