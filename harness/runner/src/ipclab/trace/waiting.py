"""Who waits for whom: what the streams of each process wait for, and the graph."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ipclab.trace import names
from ipclab.trace.files import Call, Entry, Event, Process
from ipclab.trace.state import CONTEXT_WAITS, LEGACY, NOT_READY, State, stream_of
from ipclab.trace.things import EventOpening, Memory, SharedEvent, memory_of

EQUAL = 1  # CU_STREAM_WAIT_VALUE_EQ


@dataclass(frozen=True)
class Queued:
    """Work in a stream that may wait for another process."""

    call: Call
    what: Memory | SharedEvent
    kernel: bool = False  # a kernel may wait for a word, but need not

    @property
    def whom(self) -> list[Process]:
        """The processes of which one can end the wait."""
        mine = self.call.process
        if isinstance(self.what, SharedEvent):
            recorded = self.what.recorded
            return [recorded.process] if recorded else []
        users = [self.what.owner] + [
            x.process
            for x in self.what.openings
            # What was open at the end of its process counts: perhaps that is why.
            if x.open or any(isinstance(y, Event) for y in x.closes)
        ]
        return [x for x in dict.fromkeys(users) if x is not mine]

    @property
    def why(self) -> str:
        """What it waits for, in words."""
        if isinstance(self.what, SharedEvent):
            return "an event"
        if not self.kernel:
            return f"a word in {self.what.name}"
        if "kernel" not in self.call.arguments:
            return f"a graph on {self.what.name}"
        name = self.call.process.kernels.get(self.call.arguments["kernel"], "?")
        return f"kernel {names.plain_name(name)} on {self.what.name}"


@dataclass(frozen=True)
class Wait:
    """A process waits."""

    process: Process
    call: str  # "" if only its streams wait
    since: int  # nanoseconds of CLOCK_MONOTONIC
    whom: tuple[Process, ...]  # one of these can end the wait; none: not known
    why: str
    hopeless: bool  # all that could end the wait have ended


class Waits:
    """What each process waits for, at one moment of a replay."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._threads: dict[tuple[Process, int], Event] = {}
        self._returned: dict[tuple[Process, int], int] = {}
        # Of each process, by stream: the newest work of each kind with each object.
        self._queued: dict[Process, dict[int, dict[tuple[int, bool], Queued]]] = {}
        # Of each word in memory: the last value that a stream has written.
        self._written: dict[tuple[int, int], Call] = {}

    def entry(self, entry: Entry) -> None:
        """An entry, after its replay."""
        if isinstance(entry, Event):
            if entry.what == "waits":
                place = entry.process, entry.facts["thread"]
                if entry.at > self._returned.get(place, 0):
                    self._threads[place] = entry
            return
        place = entry.process, entry.thread
        before = self._threads.pop(place, None)
        self._returned[place] = entry.ended
        if entry.ok:
            self.note(entry)
        elif entry.result == NOT_READY:
            self._poll(entry, before)

    def calls(self, now: int) -> list[Event]:
        """The calls that have not returned, of processes that have not ended before
        `now`, the moment of the replay.
        """
        return [x for x in self._threads.values() if x.process.ended > now]

    def polls(self, process: Process) -> list[Event]:
        """The queries of a process that say that it has to wait for another one."""
        every = self._threads.values()
        return [x for x in every if x.process is process and "polls" in x.facts]

    def unsatisfied(self, wait: Event) -> tuple[Call, str, bool] | None:
        """The wait for a word that keeps a call from returning, why, in words, and
        whether no later value of a growing number can end it.
        """
        for work in self._behind(wait):
            call, a = work.call, work.call.arguments
            if not call.name.startswith("cuStreamWaitValue"):
                continue
            write = self._written.get(self._word(call))
            if write is None:
                return call, "no stream has written it", False
            value = write.arguments["value"]
            bits = int(call.name[-2:])
            if not _satisfies(value, a["value"], a["flags"], bits):
                passed = a["flags"] & 3 == EQUAL and value > a["value"]
                why = f"{write.process.name} has written {value}"
                why += ", so the number has gone past it" if passed else ""
                return call, why, passed
        return None

    def waits(self, now: int) -> list[Wait]:
        """Who waits in a call, and whose streams the others wait for."""
        found: dict[Process, Wait] = {}
        for call in self.calls(now):
            queued = self._behind(call)
            if call.process not in found or queued:
                found[call.process] = _wait(call.process, call, queued, now)
        for wait in list(found.values()):
            for process in wait.whom:
                queued = [x for x in self._of(process) if not x.kernel]
                if process not in found and queued and process.ended > now:
                    found[process] = _wait(process, None, queued, now)
        return list(found.values())

    def _poll(self, query: Call, before: Event | None) -> None:
        """A thread that asks again and again waits, since its first question."""
        a = query.arguments
        if before is None or before.facts["arguments"] != a:
            facts = {"thread": query.thread, "call": query.name, "arguments": a}
            facts |= {"polls": True, "stack": query.stack}
            before = Event(query.process, "waits", query.began, facts)
        before.facts["last"] = query.ended
        if any(not x.kernel for x in self._behind(before)):
            self._threads[query.process, query.thread] = before

    def kernel(self, launch: Call, stream: int, address: int) -> None:
        """A launch may wait for a word of the memory at an address."""
        space = self._state.spaces[launch.process]
        if memory := memory_of(space.addresses.holding(address)):
            self._queued.setdefault(launch.process, {})
            self._queue(stream, Queued(launch, memory, kernel=True))

    def note(self, call: Call) -> None:
        """A call that has succeeded, after its replay."""
        space, a = self._state.spaces[call.process], call.arguments
        streams = self._queued.setdefault(call.process, {})
        if call.name == "cuStreamWaitEvent" or call.name in CONTEXT_WAITS:
            event = self._event(call.process, a["hEvent"])
            if event and event.recorded and event.recorded.process is not call.process:
                self._queue(stream_of(call), Queued(call, event))
        elif call.name.startswith("cuStreamWaitValue"):
            if memory := memory_of(space.addresses.holding(a["addr"])):
                self._queue(a["stream"], Queued(call, memory))
        elif call.name.startswith("cuStreamWriteValue"):
            self._written[self._word(call)] = call
        elif "pointers" in a:
            for address in a["pointers"]:
                self.kernel(call, a["stream"], address)
        elif call.name in ("cuStreamSynchronize", "cuStreamQuery"):
            if a["hStream"] in LEGACY:
                streams.clear()
            streams.pop(a["hStream"], None)
        elif call.name in ("cuEventSynchronize", "cuEventQuery"):
            event = self._event(call.process, a["hEvent"])
            if event and event.recorded and event.recorded.process is call.process:
                streams.pop(stream_of(event.recorded), None)
        elif call.name in ("cuCtxSynchronize", "cuStreamDestroy", "cuMemFree"):
            streams.pop(a["hStream"], None) if "hStream" in a else streams.clear()

    def _word(self, call: Call) -> tuple[int, int]:
        """The word of a wait or of a write, the same for all processes."""
        address = call.arguments["addr"]
        item = self._state.spaces[call.process].addresses.holding(address)
        memory = memory_of(item)
        return id(memory), address - item.address if item else address

    def _queue(self, stream: int, work: Queued) -> None:
        streams = self._queued[work.call.process]
        streams.setdefault(stream, {})[id(work.what), work.kernel] = work

    def _event(self, process: Process, pointer: int) -> SharedEvent | None:
        event = self._state.spaces[process].events.get(pointer)
        return event.event if isinstance(event, EventOpening) else event

    def _behind(self, wait: Event) -> list[Queued]:
        """What a call waits for; first what surely waits, and kernels only without."""
        process, a = wait.process, wait.facts["arguments"]
        event = self._event(process, a["hEvent"]) if "hEvent" in a else None
        stream = a.get("hStream", 0)
        if event and event.recorded:
            if event.recorded.process is not process:
                return [Queued(event.recorded, event)]
            stream = stream_of(event.recorded)
        queued = list(self._of(process, None if stream in LEGACY else stream))
        return [x for x in queued if not x.kernel] or queued

    def _of(self, process: Process, stream: int | None = None) -> Iterator[Queued]:
        for known, works in self._queued.get(process, {}).items():
            if stream is None or known == stream:
                yield from works.values()


def cycle(waits: list[Wait]) -> list[Process]:
    """Processes of which each waits for the next one, and the last for the first; none
    if there is no such cycle.
    """
    known = {x.process: x for x in waits}
    for first in known:
        path = [first]
        left = [iter(known[first].whom)]
        seen = {first}
        while path:
            following = next(left[-1], None)
            if following is first:
                return path
            if following is None:
                path.pop()
                left.pop()
            elif following in known and following not in seen:
                seen.add(following)
                path.append(following)
                left.append(iter(known[following].whom))
    return []


def picture(waits: list[Wait], now: int) -> list[str]:
    """The graph as lines of text: one for each wait, and what follows from them."""
    lines = []
    for wait in waits:
        whom = " or ".join(named(x) for x in wait.whom) or "its own work"
        since = f"since {max(0, now - wait.since) / 1e9:.1f} s"
        told = f"{wait.call or 'its stream waits'} {since}, for {wait.why}"
        lines.append(f"{named(wait.process)} --> {whom}: {told}")
    if round_ := cycle(waits):
        names = " -> ".join(named(x) for x in [*round_, round_[0]])
        lines.append(f"a cycle: {names}; one of them must write before it waits")
    for wait in waits:
        if wait.hopeless:
            ends = " and ".join(f"{named(x)} ({x.how})" for x in wait.whom)
            lines.append(
                f"a dead peer: {ends} can write nothing any more; end the wait of "
                f"{named(wait.process)} from another stream"
            )
    return lines


def _satisfies(value: int, wanted: int, flags: int, bits: int) -> bool:
    """Whether a value satisfies the condition of cuStreamWaitValue: GEQ (cyclic), EQ,
    AND, NOR.
    """
    mask = (1 << bits) - 1
    kind = flags & 3
    if kind == 0:
        return not ((value - wanted) & mask) >> (bits - 1)
    if kind == 1:
        return value & mask == wanted & mask
    both = value & wanted if kind == 2 else ~(value | wanted)
    return bool(both & mask)


def told(wait: Event) -> str:
    """That a call of a process waits until the end, in words."""
    if "polls" in wait.facts:
        return f"{wait.facts['call']} said to its end that work is not done"
    return f"{wait.facts['call']} never returned"


def named(process: Process) -> str:
    """exporter 4711."""
    return f"{process.name} {process.number}"


def _wait(process: Process, call: Event | None, queued: list[Queued], now: int) -> Wait:
    whom = dict.fromkeys(x for work in queued for x in work.whom if x is not process)
    reasons = dict.fromkeys(work.why for work in queued if work.whom)
    return Wait(
        process,
        call.facts["call"] if call else "",
        call.at if call else min(x.call.ended for x in queued),
        tuple(whom),
        " and ".join(list(reasons)[:3]) or "the end of what it has queued",
        bool(whom) and all(x.ended <= now for x in whom),
    )
