"""Reads the files of a trace: one for each process and program (harness/trace)."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import gc
import itertools
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ipclab import reader
from ipclab.errors import UsageError

FORMAT = 1
ROLE = "--importer"  # how samples/common/roles.h starts the second role
TRACER = "tracer.jsonl"  # how processes ended, as far as `ipclab trace` saw it
UNKNOWN = -1  # in TRACER: the process has ended, and how is not known yet


@dataclass(frozen=True)
class Code:
    """What the loader of a process knows about an address of a stack."""

    module: str  # the file of the program or library
    offset: int  # of the address, from where the module begins
    function: str  # the nearest exported function before the address; "" if none
    after: int  # bytes from this function on
    modified: int  # when the file was changed, in nanoseconds since 1970


@dataclass(eq=False)
class Process:
    """One process while it ran one program.

    Times are nanoseconds of CLOCK_MONOTONIC, the same for all processes.
    """

    number: int  # the pid
    parent: int
    began: int
    command: list[str]
    forked: bool  # a child of fork that has not called exec
    path: Path
    name: str = ""  # name for people, unique in its trace
    visible: str | None = None  # CUDA_VISIBLE_DEVICES when it began
    recorder: str = ""  # "cupti" or "calls"; empty without CUDA
    problem: str = ""  # why its calls are not recorded
    torn: int = 0  # incomplete lines; there are some if the process was killed
    exit_code: int | None = None  # None: a signal ended it, or its end is unknown
    signal: int = 0  # signal that ended it, if its parent or the tracer saw the end
    ended: int = 0  # time of its end; if nobody saw the end, the time of its last entry
    size: int = 0  # bytes of its file, without zeros at the end
    kernels: dict[int, str] = field(default_factory=dict)
    contexts: dict[int, int] = field(default_factory=dict)  # number to pointer
    stacks: dict[int, list[int]] = field(default_factory=dict)  # number to addresses
    code: dict[int, Code] = field(default_factory=dict)  # by address

    @property
    def died(self) -> bool:
        """Whether a signal ended the process or its end is unknown."""
        return bool(self.signal) or self.exit_code is None

    @property
    def how(self) -> str:
        """How the process ended, in words."""
        if self.signal:
            return f"killed by {signal_name(self.signal)}"
        if self.exit_code is None:
            return "its end was not seen"
        return f"exit {self.exit_code}"


class Call:
    """One call of the driver API, as the program made it."""

    __slots__ = (
        "arguments", "began", "context", "ended", "name", "process", "result",
        "stack", "thread",
    )  # fmt: skip

    def __init__(
        self,
        process: Process,
        name: str,
        times: tuple[int, int],
        place: tuple[int, int],
        result: int,
        arguments: dict[str, Any],
        stack: int = 0,
    ) -> None:
        self.process = process
        self.name = name
        self.began, self.ended = times
        self.thread, self.context = place
        self.result = result
        self.arguments = arguments
        self.stack = stack  # the number of the stack in its process; 0: not recorded

    @property
    def ok(self) -> bool:
        """Whether the call succeeded."""
        return self.result == 0


@dataclass(eq=False)
class Event:
    """An entry that is not a call: a message, a closed descriptor, a process's end."""

    process: Process
    what: str  # send, receive, takes, untaken, close, refused, leaves, exit, ended, …
    at: int
    facts: dict[str, Any]


Entry = Call | Event


@dataclass
class Trace:
    """All processes of a trace, and their entries in the order of time."""

    processes: list[Process]
    entries: list[Entry]
    incomplete: list[str] = field(default_factory=list)  # what is missing, in words


def when(entry: Entry) -> int:
    """The time at which an entry takes effect.

    A call that releases something takes effect when it begins, because other processes
    may see the effect from then on; so does one whose function another thread runs. Any
    other call takes effect when it ends.
    """
    if isinstance(entry, Event):
        return entry.at
    return entry.began if entry.name in AT_ITS_BEGIN else entry.ended


TAKES_AWAY = frozenset(
    (
        "cuMemFree",
        "cuMemFreeAsync",
        "cuMemUnmap",
        "cuEventDestroy",
        "cuMemPoolDestroy",
        "cuCtxDestroy",
        "cuDevicePrimaryCtxReset",
        "cuDevicePrimaryCtxRelease",
    )
)
AT_ITS_BEGIN = TAKES_AWAY | {"cuLaunchHostFunc"}


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Switch off Python's garbage collector, which would take minutes if there are
    millions of entries."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def read(folder: Path, memory: int | None = None) -> Trace:
    """Read a folder of files that `ipclab trace` wrote, perhaps packed by gzip. Lines
    that are damaged are left out; `Trace.incomplete` tells of them. `memory` limits
    what one file may take; None: the trace is our own.

    Raises UsageError if there is no trace, or one of another format.
    """
    paths = sorted([*folder.glob("*.trace"), *folder.glob("*.trace.gz")])
    if not paths:
        raise UsageError(f"{folder}: no trace here (no file *.trace)")
    processes: list[Process] = []
    entries: list[Entry] = []
    incomplete: list[str] = []
    with without_collector():
        for path in paths:
            process, own, torn = _file(path, memory)
            if process is None:
                # A process that is killed early leaves a file of zeros.
                incomplete += [f"{path.name}: {torn} damaged lines"] if torn else []
            else:
                processes.append(process)
                entries += own
    if incomplete and not processes:
        raise UsageError(f"{folder}: no process can be read: {incomplete[0]}")
    processes.sort(key=lambda process: process.began)
    ends, sizes = _tracer(folder)
    _ends(processes, entries, ends)
    entries.sort(key=when)
    give_names(processes, entries)
    whole = {x.path.name.removesuffix(".gz"): x.size for x in processes}
    for name, size in sizes.items():
        if whole.get(name, 0) < size:
            what = "was cut" if name in whole else "is missing"
            incomplete.append(f"{name}: this file of the trace {what}")
    for process in processes:
        name = f"{process.name} {process.number}"
        if process.torn > 1 or (process.torn and not process.died):
            incomplete.append(f"{name}: {process.torn} damaged lines")
        if process.exit_code is None and not process.signal:
            incomplete.append(f"{name}: {process.how}")
        if process.problem:
            incomplete.append(f"{name}: not recorded: {process.problem}")
    return Trace(processes, entries, incomplete)


class Lines:
    """Makes entries from the lines of one file, in their order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.process: Process | None = None  # after the first line
        self.torn = 0  # damaged lines
        self._declared: dict[int, list[str]] = {}

    def entry(self, line: bytes) -> Entry | None:
        """The entry of a line; None if the line is damaged or only declares something.

        Raises UsageError if the trace has another format.
        """
        try:
            document = reader.parse(line)
            if isinstance(document, list):
                if self.process is None:
                    raise ValueError
                return _call(self.process, self._declared, document)
            return self._object(document.pop("what"), document)
        except (ValueError, KeyError, TypeError, AttributeError):
            self.torn += 1
            return None

    def numbers(self, begins: tuple[str, ...]) -> frozenset[bytes]:
        """The numbers in this file, as text, of the calls whose names begin so."""
        return frozenset(
            str(number).encode()
            for number, (name, *_) in self._declared.items()
            if name.startswith(begins)
        )

    def _object(self, what: str, document: dict[str, Any]) -> Entry | None:
        process = self.process
        if what == "process":
            self.process = _process(self.path, document)
        elif process is None:
            raise ValueError
        elif what == "calls":
            declared = enumerate(document["calls"], start=document["first"])
            self._declared.update(declared)
        elif what == "kernel":
            process.kernels[document["number"]] = document["name"]
        elif what == "context":
            process.contexts[document["number"]] = document["pointer"]
        elif what == "stack":
            process.stacks[document["number"]] = document["addresses"]
        elif what == "address":
            process.code[document["address"]] = Code(
                str(document["module"]),
                int(document["offset"]),
                str(document.get("function", "")),
                int(document.get("after", 0)),
                int(document.get("modified", 0)),
            )
        elif what == "source":
            process.recorder = document["name"]
        elif what == "problem":
            process.problem = str(document["text"])
        else:
            if what == "waits":
                document["call"], *names = self._declared[document["call"]]
                given = document.get("arguments", [])
                document["arguments"] = dict(zip(names, given, strict=False))
            at = process.began + document.pop("t")
            return Event(process, what, at, document)
        return None


def _file(path: Path, memory: int | None) -> tuple[Process | None, list[Entry], int]:
    """The process and the entries of one file, and the number of damaged lines. The
    process is None if it was killed before it had written its first line.
    """
    entries: list[Entry] = []
    lines, size = Lines(path), 0
    for line in _lines(path, memory):
        size += len(line)
        if entry := lines.entry(line):
            entries.append(entry)
    if process := lines.process:
        process.torn, process.size = lines.torn, size
        process.ended = max((when(entry) for entry in entries), default=process.began)
    return process, entries, lines.torn


def _lines(path: Path, memory: int | None) -> Iterator[bytes]:
    """The lines. If the process died while it wrote a line, the first byte of that line
    is zero, so the rest is not JSON; the zeros become spaces."""
    for line in reader.Lines(path, memory):
        if line.endswith(b"\n") or line.strip(b"\0"):
            torn = line.rfind(b"\0") + 1
            yield b" " * torn + line[torn:] if torn else line


def _process(path: Path, head: dict[str, Any]) -> Process:
    if head["format"] != FORMAT:
        raise UsageError(
            f"{path}: format {head['format']} of a trace; this ipclab reads {FORMAT}"
        )
    return Process(
        number=int(head["process"]),
        parent=int(head["parent"]),
        began=int(head["began"]),
        command=[str(word) for word in head["command"]],
        forked=bool(head["forked"]),
        path=path,
        visible=None if head.get("visible") is None else str(head["visible"]),
    )


def _call(process: Process, declared: dict[int, list[str]], line: list[Any]) -> Call:
    began, duration, thread, context, number, result, *arguments = line
    name, *names = declared[number]
    if not all(isinstance(x, int) for x in line[:6]):
        raise ValueError
    start = process.began + began
    return Call(
        process,
        name,
        (start, start + duration),
        (thread, context),
        result,
        dict(zip(names, arguments, strict=False)),
        arguments[len(names)] if len(arguments) > len(names) else 0,
    )


def _tracer(folder: Path) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """How processes ended, as far as the tracer itself saw it, and the sizes that the
    files had when the program ended."""
    path = folder / TRACER
    if not path.exists():
        return [], {}
    try:
        every = [reader.parse(line) for line in reader.Lines(path)]
        ends = [x for x in every if "files" not in x]
        sizes = [x["files"] for x in every if "files" in x]
        return (
            [{x: int(end[x]) for x in ("process", "status", "at")} for end in ends],
            {str(x): int(y) for each in sizes for x, y in each.items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{path}: `ipclab trace` did not write this") from None


def _ends(
    processes: list[Process], entries: list[Entry], seen: list[dict[str, Any]]
) -> None:
    """Find out how each process ended: its own file, the file of its parent or
    tracer.jsonl says it.
    """
    # The system reuses process ids: an end belongs to the last program with this id
    # that began before the end.
    by_number: dict[int, list[Process]] = {}
    for process in processes:
        by_number.setdefault(process.number, []).append(process)
    for same in by_number.values():
        for process, later in itertools.pairwise(same):
            process.exit_code = 0  # after exec, another program in the same process
            process.ended = later.began
    ends = [(x["at"], x["process"], x["status"]) for x in seen]
    exact: set[Process] = set()  # those whose time of the end is known
    for entry in entries:
        if not isinstance(entry, Event):
            continue
        if entry.what == "exit":
            entry.process.exit_code = entry.facts["code"]
            entry.process.ended = max(entry.process.ended, entry.at)
            exact.add(entry.process)
        elif entry.what == "ended":
            ends.append((entry.at, entry.facts["process"], entry.facts["status"]))
    for at, number, status in sorted(ends):
        before = [x for x in by_number.get(number, []) if x.began < at]
        if not before:
            continue
        process = before[-1]
        if process not in exact:  # it may be reaped much later than it was seen dead
            process.ended = max(process.ended, at)
            exact.add(process)
        if status == UNKNOWN:
            continue
        if status & 0x7F:
            process.signal = status & 0x7F
        elif process.exit_code is None:
            process.exit_code = status >> 8 & 0xFF


# Calls that only an importer makes successfully.
IMPORTS = frozenset(
    (
        "cuImportExternalMemory",
        "cuIpcOpenEventHandle",
        "cuIpcOpenMemHandle",
        "cuMemImportFromShareableHandle",
        "cuMemPoolImportFromShareableHandle",
    )
)


def give_names(processes: Sequence[Process], entries: Sequence[Entry]) -> None:
    """A name for each process: its program, with a number if there are several.

    The roles of our own programs get the names from the sources. The first process of
    such a program is the exporter, and the processes that it starts are importers. If
    only the first process imports, it is the importer. An export does not show the
    role, because a program also exports to find out what the machine can do. If the
    first process does not use CUDA and starts both roles, it is their parent.
    """
    bases = {process: _program(process) for process in processes}
    calls = [x for x in entries if isinstance(x, Call)]
    busy = {x.process for x in calls}
    imported = {x.process for x in calls if x.name in IMPORTS and x.ok}
    for parent in processes:
        family = _second_starts(processes, parent)
        if not family or _second(parent):
            continue
        roles = [x for x in family if x in busy]
        if parent not in busy and len(roles) > 1:
            bases[parent] = "parent"
            for role in roles:
                bases[role] = "importer" if role in imported else "exporter"
            # A broker does not use CUDA. In a namespace of its own it is a child.
            for process in family:
                if process.forked and process.command[2:3] == ["broker"]:
                    bases[process] = "broker"
            continue
        other, own = "importer", "exporter"
        if parent in imported and not imported & set(family):
            other, own = own, other
        # A process that only starts another process is left out. If the parent is 0, it
        # is not known who started the process.
        starts = {x.parent for x in processes}
        last = {x for x in family if x.number not in starts and 0 not in starts}
        bases.update({x: other for x in family if x in busy | last})
        bases[parent] = own
    used: dict[str, int] = {}
    for process, base in bases.items():
        used[base] = used.get(base, 0) + 1
        alone = list(bases.values()).count(base) == 1
        process.name = base if alone else f"{base} {used[base]}"


def _second(process: Process) -> bool:
    """Whether the process plays a role of one of our programs that another process of
    the program started, or the user.
    """
    command = process.command
    return ROLE in command or command[1:2] == ["--role"]


def _second_starts(processes: Sequence[Process], parent: Process) -> list[Process]:
    """The children of `parent` that play a role, and their children in a new PID
    namespace.

    Such a grandchild writes 0 as the number of its parent.
    """
    found: list[Process] = []
    for process in processes:
        lost = process.forked and process.parent == 0 and bool(found)
        if _second(process) and (process.parent == parent.number or lost):
            found.append(process)
    return found


def _program(process: Process) -> str:
    base = Path(process.command[0]).name if process.command else "?"
    scripts = [x for x in process.command[1:] if x.endswith(".py")]
    return Path(scripts[0]).name if base.startswith("python") and scripts else base


def signal_name(number: int) -> str:
    """SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def unfinished(trace: Trace) -> list[Event]:
    """The waits that never returned: they show where a process hung until it ended."""
    last: dict[tuple[Process, int], Event] = {}
    returned: dict[tuple[Process, int], int] = {}  # when the thread's last call did
    for entry in trace.entries:
        if isinstance(entry, Call):
            place = entry.process, entry.thread
            last.pop(place, None)
            returned[place] = entry.ended
        elif entry.what == "waits":
            place = entry.process, entry.facts["thread"]
            # A call that takes something away is sorted by its begin.
            if entry.at > returned.get(place, 0):
                last[place] = entry
    return list(last.values())
