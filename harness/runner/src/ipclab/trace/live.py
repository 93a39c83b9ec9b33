"""`ipclab trace --live`: who shares, who waits and what is wrong, while it happens."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import pty
import termios
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ipclab.trace import files, findings, recording
from ipclab.trace.files import IMPORTS, Call, Entry, Event, Process, Trace, when
from ipclab.trace.findings import Finding
from ipclab.trace.story import Replay
from ipclab.trace.tail import Tail
from ipclab.trace.things import Memory, Opening, size_text
from ipclab.trace.waiting import Wait, named, picture

TICK = 0.25  # seconds
LATE = 20_000_000  # nanoseconds: so much later another process's line may appear
LONG = 1_000_000_000  # a wait that is told
HANG = 5_000_000_000  # without a new line
SOON = 1_000_000_000  # after its end was seen, how a process ended is known
MOST = 8_000  # entries in a tick; frequent calls are left out if there are more
FOREVER = 2**63 - 1  # Process.ended of a process that runs
SHOWN = 12  # processes, blocks of memory or findings in the table


@dataclass(frozen=True)
class Share:
    """What a process lends and borrows."""

    lends: int = 0  # blocks
    lent: int = 0  # bytes
    borrows: int = 0
    borrowed: int = 0

    @property
    def text(self) -> str:
        """lends 2 (8 MiB), borrows 1 (4 MiB)."""
        parts = []
        for what, count, size in (
            ("lends", self.lends, self.lent),
            ("borrows", self.borrows, self.borrowed),
        ):
            parts.append(f"{what} {count} ({size_text(size)})" if count else "")
        return ", ".join(filter(None, parts)) or "shares nothing"


class View:
    """The replay of a trace that is being written."""

    def __init__(
        self, folder: Path, silenced: Sequence[findings.Suppression] = ()
    ) -> None:
        self.began = time.monotonic_ns()
        self.moved = self.began  # when the newest entry was written
        self.trace = Trace([], [])
        self.replay = Replay(self.trace)
        self.waits = self.replay.waits
        self.found: list[Finding] = []  # those that no suppression covers
        self._folder = folder
        self._silenced = list(silenced)
        self._tails: dict[Path, Tail] = {}
        self._begun: set[Tail] = set()
        self._held: list[tuple[int, int, str, Entry | Process]] = []
        self._ends: dict[int, list[tuple[int, int]]] = {}  # pid: time and status
        self._tracer = 0  # bytes of tracer.jsonl that are read
        self._shown: dict[tuple[Process, bool], Call] = {}  # they give names
        self._judged = 0  # findings

    def tick(self, now: int, last: bool = False) -> None:
        """Read what is new until `now`, a time of CLOCK_MONOTONIC. With `last`, nothing
        more will be written.
        """
        for path in sorted(self._folder.glob("*.trace")):
            if path not in self._tails:
                self._tails[path] = Tail(path)
        self._load(MOST)
        self._read_tracer()
        self._note_ends(now, last)
        self._held.sort(key=lambda item: item[:2])
        ready = 0
        while ready < len(self._held) and (
            last or self._held[ready][0] <= max(now - LATE, self.began)
        ):
            self._step(*self._held[ready])
            ready += 1
        del self._held[:ready]
        for call in self.waits.calls(now):
            if now - call.at > LONG:
                self.replay.still_waits(call)
        every = self.replay.state.story.findings
        self.found += findings.split(every[self._judged :], self._silenced)[0]
        self._judged = len(every)
        for memory in self.replay.state.story.memories:
            memory.uses.clear()  # only the pictures need them

    @property
    def left_out(self) -> int:
        """Launches, copies and queries that were counted and not looked at."""
        return sum(x.left_out for x in self._tails.values())

    @property
    def behind(self) -> int:
        """About how many lines are written and not read yet."""
        return sum(x.behind for x in self._tails.values())

    @property
    def processes(self) -> list[Process]:
        """The processes that have used CUDA."""
        return [x for x in self.trace.processes if x.recorder]

    def hung(self, now: int) -> bool:
        """Whether a process waits and nothing has moved for some seconds."""
        return bool(self.waits.calls(now)) and now - self.moved >= HANG

    def shares(self) -> dict[Process, Share]:
        """What each process lends and borrows now."""
        lent: dict[Process, list[int]] = {}
        borrowed: dict[Process, list[int]] = {}
        for memory in self.shared():
            if memory.freed is None and not has_ended(memory.owner):
                lent.setdefault(memory.owner, []).append(memory.size)
        for process in self.processes:
            space = self.replay.state.spaces.get(process)
            opened = [x for x in space.openings if x.open] if space else []
            if opened:
                borrowed[process] = [x.memory.size if x.memory else 0 for x in opened]
        return {
            x: Share(
                len(lent.get(x, ())),
                sum(lent.get(x, ())),
                len(borrowed.get(x, ())),
                sum(borrowed.get(x, ())),
            )
            for x in self.processes
        }

    def shared(self) -> list[Memory]:
        """The memory that was exported."""
        handles = self.replay.state.story.handles
        return list(dict.fromkeys(x.of for x in handles if isinstance(x.of, Memory)))

    def holders(self) -> list[str]:
        """Who holds the memory of another process, largest first."""
        told = []
        for memory in sorted(self.shared(), key=lambda x: -x.size):
            holds = [
                f"{named(x.process)} {_how(x)}" for x in memory.openings if x.open
            ] + [
                f"{named(process)} has descriptor {fd}"
                for process, fd in self._with_descriptor(memory)
            ]
            if not holds:
                continue
            owner = f"{memory.name} of {named(memory.owner)}"
            if has_ended(memory.owner):
                owner += f", which has ended ({memory.owner.how})"
            elif memory.freed is not None:
                owner += ", which has freed it"
            told.append(f"{owner}: {', '.join(holds)}")
        return told

    def _with_descriptor(self, memory: Memory) -> list[tuple[Process, int]]:
        return [
            (process, fd)
            for process, space in self.replay.state.spaces.items()
            if process is not memory.owner and not has_ended(process)
            for fd, (handle, _) in space.descriptors.items()
            if handle is not None and handle.of is memory
        ]

    def _load(self, most: int) -> None:
        busy = [tail for tail in self._tails.values() if tail.load()]
        for tail in busy:
            for entry in tail.entries(max(1, most // len(busy))):
                self._held.append((when(entry), 1, "", entry))
                written = entry.at if isinstance(entry, Event) else entry.ended
                self.moved = max(self.moved, written)
                if isinstance(entry, Call):
                    imports = entry.name in IMPORTS and entry.ok
                    self._shown.setdefault((entry.process, imports), entry)
                else:
                    self._end_in(entry)
            process = tail.process
            if process is not None and tail not in self._begun:
                self._begun.add(tail)
                process.ended = FOREVER
                self.trace.processes.append(process)
                self.trace.processes.sort(key=lambda x: x.began)
                self._held.append((process.began, 0, "begin", process))
                self.moved = max(self.moved, process.began)
        if busy:
            files.give_names(self.trace.processes, list(self._shown.values()))

    def _end_in(self, event: Event) -> None:
        """The end of a process, if its own file or that of its parent tells it."""
        if event.what == "exit":
            event.process.exit_code = event.facts["code"]
        elif event.what == "ended":
            ends = self._ends.setdefault(event.facts["process"], [])
            ends.append((event.at, event.facts["status"]))

    def _read_tracer(self) -> None:
        path = self._folder / files.TRACER
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._tracer)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        self._tracer += len(data)
        for line in data.splitlines():
            end = json.loads(line)
            if "files" not in end:
                ends = self._ends.setdefault(end["process"], [])
                ends.append((end["at"], end["status"]))

    def _note_ends(self, now: int, last: bool) -> None:
        """Note who has ended: the process, or the program that it ran before exec."""
        for process in self.trace.processes:
            if has_ended(process):
                continue
            after = [
                x.began
                for x in self.trace.processes
                if x.number == process.number and x.began > process.began
            ]
            ends = [
                x for x in self._ends.get(process.number, ()) if x[0] > process.began
            ]
            if after and not any(at < after[0] for at, _ in ends):
                process.exit_code, ends = 0, [(after[0], 0)]
            if not ends:
                continue
            at = min(time for time, _ in ends)
            for status in (x for _, x in ends if x != files.UNKNOWN):
                process.signal = status & 0x7F
                if not process.signal and process.exit_code is None:
                    process.exit_code = status >> 8 & 0xFF
            if process.died and not process.signal and not last and now - at < SOON:
                continue
            process.ended = at
            self.moved = max(self.moved, at)
            self._held.append((at, 2, "end", process))

    def _step(self, at: int, _: int, what: str, value: Entry | Process) -> None:
        if isinstance(value, Process):
            if what == "begin":
                self.replay.begin(value)
            else:
                self.replay.end(value, at)
        elif value.process in self.replay.state.spaces:
            self.replay.entry(value)


def has_ended(process: Process) -> bool:
    """Whether the end of a process has been seen."""
    return process.ended != FOREVER


def _how(opening: Opening) -> str:
    missing = len(opening.opens) - len(opening.closes)
    has = "has imported it" if opening.kind == "chunk" else "has it open"
    return has if missing == 1 else f"{has} {missing} times"


class Watcher:
    """Shows a View: as a table on a terminal, otherwise as lines when it changes."""

    def __init__(self, out: Console, view: View) -> None:
        self._out = out
        self._view = view
        self._asked = threading.Event()
        self._shares: dict[Process, Share] = {}
        self._ended: set[Process] = set()
        self._waiting: set[tuple[Process, int]] = set()
        self._told = 0  # findings
        self._left_out = 0
        self._pictured = 0  # the value of moved at the last picture

    def interrupted(self) -> None:
        """The person has pressed Ctrl-C: show who waits for whom."""
        self._asked.set()

    def run(self, over: threading.Event) -> None:
        """Watch until `over` is set."""
        try:
            if self._out.is_terminal:
                with Live(console=self._out, auto_refresh=False, transient=True) as on:
                    self._watch(over, lambda: on.update(self._table(), refresh=True))
            else:
                self._watch(over, self._lines)
            if self._asked.is_set():
                self._picture(time.monotonic_ns())
            self._view.tick(time.monotonic_ns(), last=True)
            if not self._out.is_terminal:
                self._lines()
        except Exception as error:  # the program and its trace go on
            self._print(f"the live view ends: {type(error).__name__} {error}")

    def _watch(self, over: threading.Event, show: Callable[[], None]) -> None:
        while not over.wait(TICK):
            now = time.monotonic_ns()
            if self._asked.is_set():  # as it was: what Ctrl-C ends does not count
                self._picture(now)
                self._asked.clear()
            self._view.tick(now)
            show()
            if self._view.hung(now) and self._pictured != self._view.moved:
                self._pictured = self._view.moved
                self._picture(now)

    def _picture(self, now: int) -> None:
        quiet = (now - self._view.moved) / 1e9
        waits = self._view.waits.waits(now)
        self._print(f"nothing has moved for {quiet:.1f} s; who waits for whom:")
        for line in picture(waits, now) or ["nobody waits in a call of CUDA"]:
            self._print(f"  {line}")
        for line in self._view.holders()[:SHOWN]:
            self._print(f"  {line}")

    def _print(self, text: str) -> None:
        seconds = (time.monotonic_ns() - self._view.began) / 1e9
        self._out.print(f"[{seconds:.1f} s] {text}", markup=False, highlight=False)

    def _lines(self) -> None:
        view, now = self._view, time.monotonic_ns()
        for process, share in view.shares().items():
            if not has_ended(process) and share != self._shares.get(process, Share()):
                self._print(f"{named(process)} {share.text}")
                self._shares[process] = share
        for wait in view.waits.waits(now):
            key = wait.process, wait.since
            if wait.call and now - wait.since > LONG and key not in self._waiting:
                self._waiting.add(key)
                self._print(picture([wait], now)[0])
        for process in view.processes:
            if has_ended(process) and process not in self._ended:
                self._ended.add(process)
                self._print(f"{named(process)} has ended ({process.how})")
                for line in view.holders():
                    if f" of {named(process)}, which" in line:
                        self._print(f"  still held: {line}")
        for finding in view.found[self._told :]:
            self._print(f"{finding.rule}: {named(finding.process)}: {finding.text}")
        self._told = len(view.found)
        if view.left_out >= 2 * self._left_out + 1:
            self._left_out = view.left_out
            self._print(_lag(view))

    def _table(self) -> Group:
        view, now = self._view, time.monotonic_ns()
        table = Table(box=None, pad_edge=False)
        for column in ("process", "lends", "borrows", "waits"):
            table.add_column(column)
        waits = {x.process: x for x in view.waits.waits(now) if x.call}
        for process, share in list(view.shares().items())[-SHOWN:]:
            table.add_row(
                named(process),
                f"{share.lends} ({size_text(share.lent)})" if share.lends else "",
                f"{share.borrows} ({size_text(share.borrowed)})"
                if share.borrows
                else "",
                process.how if has_ended(process) else _waits(waits.get(process), now),
            )
        parts = [Text(x) for x in view.holders()[:SHOWN]]
        parts += [Text(f"{x.rule}: {x.text}") for x in view.found[-SHOWN:]]
        if view.left_out or view.behind:
            parts.append(Text(_lag(view)))
        return Group(table, *parts)


def _waits(wait: Wait | None, now: int) -> str:
    if wait is None:
        return ""
    return picture([wait], now)[0].partition("--> ")[2]


def _lag(view: View) -> str:
    behind = f", {view.behind} lines behind" if view.behind else ""
    return (
        f"{view.left_out} launches, copies and queries not looked at here{behind}; the "
        "report at the end has all"
    )


def record(
    out: Console,
    request: recording.Request,
    silenced: Sequence[findings.Suppression],
) -> int:
    """Record a program as recording.record() does, and show it live.

    On a terminal the program gets a terminal of its own, and what it prints appears
    above the table.
    """
    watcher = Watcher(out, View(request.folder, silenced))
    if not out.is_terminal:
        return recording.record(request, watcher)
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (out.height, out.width))
    copying = threading.Thread(target=_copy, args=(ours, out))
    copying.start()
    try:
        return recording.record(replace(request, output=its), watcher)
    finally:
        os.close(its)
        copying.join()


def _copy(terminal: int, out: Console) -> None:
    """Print what is written to a terminal, until the last process has closed it."""
    rest = b""
    while True:
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:  # EIO: nobody can write any more
            data = b""
        *whole, rest = (rest + data).split(b"\n")
        for line in [*whole, rest] if not data and rest else whole:
            out.print(Text.from_ansi(line.decode("utf-8", "replace").rstrip("\r")))
        if not data:
            os.close(terminal)
            return
