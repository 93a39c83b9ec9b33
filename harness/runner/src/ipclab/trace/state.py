"""What is known at one moment of a replay, and the steps that all objects share."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ipclab.trace.files import Call, Entry, Event, Process, Trace, when
from ipclab.trace.findings import Finding
from ipclab.trace.things import (
    Handle,
    Mapping,
    Memory,
    Opening,
    Range,
    SharedEvent,
    Space,
)

NOT_READY = 600
FAULTS = frozenset((700, 702, 709, 710, 714, 715, 716, 717, 718, 719))  # sticky
MANY_OPENS = 100
LEGACY = (0, 1)  # the default stream, as null and as CU_STREAM_LEGACY
CONTEXT_RECORDS = ("cuCtxRecordEvent", "cuGreenCtxRecordEvent")
CONTEXT_WAITS = ("cuCtxWaitEvent", "cuGreenCtxWaitEvent")


@dataclass(eq=False)
class Message:
    """What one process sent to another over a socket."""

    sent: Event
    received: Event


@dataclass
class Story:
    """A trace that has been replayed."""

    trace: Trace
    memories: list[Memory]
    handles: list[Handle]
    openings: list[Opening]
    mappings: list[Mapping]
    events: list[SharedEvent]
    messages: list[Message]
    findings: list[Finding]
    concerns: set[int]  # id() of each entry that concerns IPC
    more: dict[
        int, int
    ]  # id() of the last use that is noted -> how many uses before it are not noted
    unmatched: list[Call]  # imports whose export is not in the trace


@dataclass(frozen=True)
class Sent:
    """A message that is on its way."""

    event: Event
    handles: list[Handle | None]
    told: dict[Process, int]  # what the sender knew when it sent the message


class State:
    """The story so far, and what each process has."""

    def __init__(self, trace: Trace, messages_only: bool) -> None:
        """See ipclab.trace.story.replay()."""
        self.trace = trace
        self.messages_only = messages_only
        self.story = Story(trace, [], [], [], [], [], [], [], set(), {}, [])
        self.spaces: dict[Process, Space] = {}
        self.by_key: dict[str, Handle] = {}
        self.by_file: list[Handle] = []  # the exports that are descriptors
        self.sent: dict[str, deque[Sent]] = {}
        self.said: set[tuple[Any, ...]] = set()
        self.tainted: set[Process] = set()  # forked when CUDA was in use
        # The address that lent memory has in its owner; the last export of an address.
        self.lent_at: dict[Memory, int] = {}
        self.newest: dict[tuple[Process, int], Handle] = {}

    def found(
        self,
        rule: str,
        entry: Entry | Process,
        text: str,
        *,
        row: str = "",
        instead: str = "",
        other: Entry | None = None,
        once: tuple[Any, ...] = (),
    ) -> None:
        """Add a finding. With `once`, add only one finding for these objects."""
        if once:
            if (rule, *once) in self.said:
                return
            self.said.add((rule, *once))
        if isinstance(entry, Process):
            at = entry.ended
            finding = Finding(rule, entry, None, at, text, row, instead, other)
        else:
            at = when(entry)
            of = entry.process
            finding = Finding(rule, of, entry, at, text, row, instead, other)
            self.story.concerns.add(id(entry))
        if other is not None:
            self.story.concerns.add(id(other))
        self.story.findings.append(finding)

    def has_said(self, rule: str, *once: Any) -> bool:
        """Whether found() would add no finding for these objects any more."""
        return (rule, *once) in self.said

    def failed(self, process: Process) -> bool:
        """Whether a process gave up after a mistake, its own or another one's: then
        what it had not released follows from that.
        """
        return bool(process.exit_code) and any(not x.rank for x in self.story.findings)

    def concerns(self, *entries: Entry | None) -> None:
        """Mark entries that concern IPC: the sequence shows no other entries."""
        self.story.concerns.update(id(entry) for entry in entries if entry)

    def knowledge(self, space: Space, entry: Entry) -> dict[Process, int]:
        """What a process can tell others at this moment."""
        return {**space.knows, space.process: when(entry)}

    def learns(self, space: Space, told: dict[Process, int]) -> None:
        """A process learns what others have done until some time."""
        for process, until in told.items():
            space.knows[process] = max(until, space.knows.get(process, until))

    def knows(self, space: Space, other: Process, at: int) -> bool:
        """Whether the process can know what another process did at that time. Without
        `messages_only`, always.
        """
        return (
            not self.messages_only
            or other is space.process
            or at <= max(space.knows.get(other, 0), space.process.began)
        )

    def handle_behind(self, space: Space, descriptor: Any) -> Handle | None:
        """The export that a descriptor came from; None if it came from no export.

        If the trace has the message with the descriptor, the message shows the export.
        Otherwise the file of the descriptor shows it. With NVIDIA's driver all exports
        have the same file; then the answer is the latest export.
        """
        if not descriptor:
            return None
        known = space.descriptors.get(descriptor["fd"])
        if known is not None and _same_file(known[1], descriptor):
            return known[0]
        for handle in reversed(self.by_file):
            if handle.descriptor and _same_file(handle.descriptor, descriptor):
                return handle
        return None

    def found_handle(self, space: Space, value: Any) -> Handle | None:
        """The export of a descriptor, or of the bytes of a fabric handle."""
        if isinstance(value, str):
            return self.by_key.get(value)
        return self.handle_behind(space, value)

    def export(self, handle: Handle) -> None:
        """A process has exported something."""
        if isinstance(handle.of, Memory):
            memory = handle.of
            if not memory.exports:
                on_host = "place" in (memory.made.arguments.get("prop") or {})
                memory.unset = not memory.writes and not memory.set_by and not on_host
            memory.exports.append(handle)
            if address := self._address(handle.of):
                self.lent_at[handle.of] = address
                self.newest[handle.process, address] = handle
        self.story.handles.append(handle)
        if handle.key:
            self.by_key[handle.key] = handle
        if handle.descriptor:
            self.by_file.append(handle)
            space = self.spaces[handle.process]
            space.descriptors[handle.descriptor["fd"]] = (handle, handle.descriptor)
            space.taken.pop(handle.descriptor["fd"], None)

    def _address(self, memory: Memory) -> int:
        """Where memory is in its owner; 0 if it is a chunk that is not mapped."""
        for mapping in reversed(self.spaces[memory.owner].mappings):
            if mapping.chunk.memory is memory and mapping.unmapped is None:
                return mapping.address
        return memory.address

    def imported(self, call: Call, handle: Handle | None) -> None:
        """A process has opened or imported a handle; None: of an unknown export."""
        self.concerns(call)
        if handle is not None:
            handle.imports.append(call)
            self.concerns(handle.made)
        elif call.ok:
            self.story.unmatched.append(call)

    def opened(
        self,
        space: Space,
        call: Call,
        memory: Memory | None,
        handle: Handle | None,
        kind: str,
        address: int,
    ) -> Opening:
        """Note that a process has opened or imported memory of another process."""
        size = memory.size if memory else 1
        opening = Opening(
            space.process, memory, handle, kind, address, size, call.context, [call]
        )
        self._again(space, opening, call)
        self.story.openings.append(opening)
        space.openings.append(opening)
        if memory is not None:
            memory.openings.append(opening)
        if kind != "chunk":
            self.place(space, opening)
        return opening

    def _again(self, space: Space, opening: Opening, call: Call) -> None:
        """Add a finding if a process opens a handle that it has closed many times."""
        if opening.handle is None:
            return
        before = space.last_openings.get(opening.handle)
        space.last_openings[opening.handle] = opening
        if before is None or before.open:
            return
        opening.before = before.before + 1
        if opening.before >= MANY_OPENS:
            self.found(
                "opened-again-and-again",
                call,
                f"{space.process.name} has opened {opening.name} {opening.before} "
                "times before, and closed it each time",
                other=opening.handle.made,
                once=(opening.handle, space.process),
            )

    def new_memory(
        self, space: Space, call: Call, kind: str, address: int, size: int
    ) -> Memory:
        """Note that a process has made memory."""
        memory = Memory(kind, space.process, address, size, call)
        self.story.memories.append(memory)
        memory.number = len(self.story.memories)
        if kind != "chunk":
            self.place(space, memory)
        return memory

    def place(self, space: Space, item: Range) -> None:
        """Note what is at a range of addresses, instead of what was closed there."""
        for old in space.gone.inside(item.address, max(item.size, 1)):
            space.gone.remove(old.address)
        covering = space.gone.holding(item.address)
        if covering is not None:
            space.gone.remove(covering.address)
        space.addresses.add(item)


def _same_file(one: Any, other: Any) -> bool:
    return bool(one["device"] == other["device"] and one["inode"] == other["inode"])


def stream_of(call: Call) -> int:
    """The stream of a call; of a call for a whole context, the default stream, which
    also stands for all streams.
    """
    return int(call.arguments.get("hStream", LEGACY[0]))


Handler = Callable[[State, Space, Call], None]
EventHandler = Callable[[State, Space, Event], None]
