"""Replays a trace. Finds out what belonged to which process, which import came from
which export, and which rules were broken."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ipclab.trace import (
    chunks,
    descriptors,
    events,
    external,
    files,
    graphs,
    memory,
    names,
    pools,
    processes,
    uses,
    waiting,
)
from ipclab.trace.files import Call, Entry, Event, Process, Trace, when
from ipclab.trace.state import FAULTS, NOT_READY, EventHandler, Handler, State, Story
from ipclab.trace.surroundings import BY_FAULT, Surroundings
from ipclab.trace.things import Space
from ipclab.trace.waiting import Waits, cycle

__all__ = ["FAULTS", "NOT_READY", "Replay", "Story", "replay"]

LONG = 1_000_000_000  # nanoseconds; a shorter wait may be about to return
CONDITIONS = (">=", "==", "&", "~|")  # of cuStreamWaitValue
UNLOADING = 4  # the process ends
CANNOT = (800, 801)  # not permitted, not supported

HANDLERS: dict[str, Handler] = {
    **memory.HANDLERS,
    **uses.HANDLERS,
    **events.HANDLERS,
    **chunks.HANDLERS,
    **external.HANDLERS,
    **pools.HANDLERS,
}
EVENTS: dict[str, EventHandler] = {**descriptors.EVENTS, **processes.EVENTS}


def replay(trace: Trace, messages_only: bool = False) -> Story:
    """Go through a trace in the order of time.

    Processes may tell each other that they have synchronised or closed something, in
    ways that a trace does not show. So a later call counts as ordered. With
    `messages_only`, the processes communicate only by messages, events and their ends;
    then a later call counts as ordered only if one of these orders it.
    """
    with files.without_collector():
        replayed = Replay(trace, messages_only)
        for at, what, value in _order(trace):
            if what == "begin":
                replayed.begin(value)
            elif what == "end":
                replayed.end(value, at)
            else:
                replayed.entry(value)
        return replayed.finish()


def _order(trace: Trace) -> Iterator[tuple[int, str, Any]]:
    """The begins, entries and ends of all processes, in the order of time."""
    items: list[tuple[int, int, str, Any]] = []
    for process in trace.processes:
        items.append((process.began, 0, "begin", process))
        items.append((process.ended, 2, "end", process))
    items += [(when(entry), 1, "", entry) for entry in trace.entries]
    items.sort(key=lambda item: item[:2])
    return ((at, what, value) for at, _, what, value in items)


def is_about_ipc(call: Call) -> bool:
    """Whether a call makes, sends, receives or ends something that processes share."""
    if call.name in ("cuMemCreate", "cuMemPoolCreate"):
        wanted = call.arguments.get("prop") or call.arguments.get("poolProps") or {}
        return bool(wanted.get("handles"))
    if call.name == "cuEventCreate":
        return bool(call.arguments["Flags"] & events.INTERPROCESS)
    return call.name.startswith(("cuIpc", "cuMemMap", "cuMemSetAccess")) or any(
        x in call.name for x in ("ShareableHandle", "ExportPointer", "ImportPointer")
    )


class Replay:
    """A replay that gets the begins, entries and ends of processes one by one, in the
    order of time.
    """

    def __init__(self, trace: Trace, messages_only: bool = False) -> None:
        """`trace` may grow while it is replayed."""
        self.state = State(trace, messages_only)
        self.waits = Waits(self.state)
        self._around = Surroundings(trace, self.state.found)
        self._captures = graphs.Captures(self.state, self.waits)
        self._explained: set[Event] = set()  # waits that are in a cycle

    def begin(self, process: Process) -> None:
        """A process begins."""
        processes.begin(self.state, process)

    def end(self, process: Process, at: int) -> None:
        """A process has ended."""
        self._cycle(process, at)
        for poll in self.waits.polls(process):
            self._waited(poll)
        processes.end(self.state, process, at)

    def entry(self, entry: Entry) -> None:
        """A process does something."""
        state = self.state
        space = state.spaces[entry.process]
        if isinstance(entry, Event):
            self._around.event(entry)
            if on_event := EVENTS.get(entry.what):
                on_event(state, space, entry)
            self.waits.entry(entry)
            return
        space.calls += 1
        space.faulted |= entry.result in FAULTS
        if entry.process.forked and space.calls == 1:
            processes.first_after_fork(state, entry, entry.name)
        known = len(state.story.findings)
        explained = self._around.call(entry, space)
        captured = self._captures.call(entry, space)
        explained |= captured and not entry.ok
        handler = HANDLERS.get(entry.name)
        if handler and not explained and not captured:
            handler(state, space, entry)
        if not captured or not entry.ok:  # captured work does not wait now
            self.waits.entry(entry)
        if not entry.ok and not explained and known == len(state.story.findings):
            self._unexplained(space, entry)

    def still_waits(self, call: Event) -> None:
        """A call has not returned so far."""
        if call.process.signal in BY_FAULT:
            uses.crashed(self.state, call)
        elif call not in self._explained:
            self._around.waits(call, self.state.story.openings)

    def _cycle(self, process: Process, at: int) -> None:
        """A process ends. Perhaps it was in a cycle of processes that wait."""
        calls = {x.process: x for x in self.waits.calls(at - 1) if at - x.at > LONG}
        if process not in calls:
            return
        ring = cycle([x for x in self.waits.waits(at - 1) if x.process in calls])
        if process not in ring:
            return
        self._explained.update(calls[x] for x in ring)
        self.state.found(
            "waits-in-a-cycle",
            calls[process],
            f"{' waits for '.join(x.name for x in [*ring, ring[0]])}: "
            f"{waiting.told(calls[process])}",
            other=calls[ring[(ring.index(process) + 1) % len(ring)]],
        )

    def _waited(self, call: Event) -> None:
        """A process has waited for something to its end."""
        known = len(self.state.story.findings)
        found = self.waits.unsatisfied(call)
        if not found or not found[2]:
            self.still_waits(call)
        if (
            call.process.ended - call.at > LONG
            and call not in self._explained
            and known == len(self.state.story.findings)
            and found
        ):
            wait, why, _ = found
            value = wait.arguments["value"]
            kind = CONDITIONS[wait.arguments["flags"] & 3]
            self.state.found(
                "unsatisfied-wait",
                call,
                f"{waiting.told(call)}: its stream waits for a word {kind} {value}; "
                f"{why}",
                other=wait,
            )

    def _unexplained(self, space: Space, call: Call) -> None:
        """A call about IPC was refused, and no rule says why."""
        if space.faulted or call.result == UNLOADING or not is_about_ipc(call):
            return
        if "Create" in call.name and call.result in CANNOT:
            return  # a program asks what the machine can do
        self.state.found(
            "unexplained-refusal",
            call,
            f"{call.name} is refused with {names.result_name(call.result)} "
            f"({call.result}), and no rule of the trace says why",
            once=(call.process, call.name, call.result),
        )

    def finish(self) -> Story:
        """After the last entry: the story."""
        state, story = self.state, self.state.story
        self._around.end()
        for call in files.unfinished(state.trace):
            self._waited(call)
        for block in story.memories:
            memory.tell_inside(state, block)
            if block.shared:
                state.concerns(block.made, block.freed)
                uses.tell_uses(state, block)
        for mapping in story.mappings:
            of = mapping.chunk.memory
            if mapping.chunk.opening is not None or (of and of.shared):
                state.concerns(mapping.made, mapping.access, mapping.unmapped)
        story.findings.sort(key=lambda finding: finding.at)
        return story
