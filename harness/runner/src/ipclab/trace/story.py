"""Replays a trace. Finds out what belonged to which process, which import came from
which export, and which rules were broken."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ipclab.trace import files
from ipclab.trace.files import Call, Entry, Event, Process, Trace, when
from ipclab.trace.findings import INSTEAD, LEFT_BEHIND, Finding
from ipclab.trace.surroundings import Surroundings
from ipclab.trace.things import (
    Chunk,
    EventOpening,
    Handle,
    Mapping,
    Memory,
    Opening,
    Pool,
    Range,
    SharedEvent,
    Space,
    Work,
)

BLOCK = 2 << 20  # the blocks that cudaMalloc takes small allocations from
INTERPROCESS = 4  # CU_EVENT_INTERPROCESS
NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING
LAZY = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
NOT_READY = 600
MOST_USES = 500  # of a memory, this many first and last uses of a process are kept
FAULTS = frozenset((700, 702, 709, 710, 714, 715, 716, 717, 718, 719))  # sticky


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


def replay(trace: Trace, messages_only: bool = False) -> Story:
    """Go through a trace in the order of time.

    Processes may tell each other that they have synchronised or closed something, in
    ways that a trace does not show. So a later call counts as ordered. With
    `messages_only`, the processes communicate only by messages, events and their ends;
    then a later call counts as ordered only if one of these orders it.
    """
    with files.without_collector():
        return _Replay(trace, messages_only).run()


@dataclass(frozen=True)
class _Sent:
    """A message that is on its way."""

    event: Event
    handles: list[Handle | None]
    told: dict[Process, int]  # what the sender knew when it sent the message


class _Replay:
    def __init__(self, trace: Trace, messages_only: bool) -> None:
        self.trace = trace
        self.messages_only = messages_only
        self.story = Story(trace, [], [], [], [], [], [], [], set(), {}, [])
        self.spaces: dict[Process, Space] = {}
        self.by_key: dict[str, Handle] = {}
        self.by_file: list[Handle] = []  # the exports that are descriptors
        self.sent: dict[str, deque[_Sent]] = {}
        self.said: set[tuple[Any, ...]] = set()
        self.tainted: set[Process] = set()  # forked when CUDA was in use
        self.around = Surroundings(trace, self.found)

    def run(self) -> Story:
        for at, what, value in self._order():
            if what == "begin":
                self._begin(value)
            elif what == "end":
                self._end(value, at)
            elif isinstance(value, Event):
                self.around.event(value)
                handler = getattr(self, f"_on_{value.what}", None)
                if handler:
                    handler(self.spaces[value.process], value)
            else:
                space = self.spaces[value.process]
                space.calls += 1
                space.faulted |= value.result in FAULTS
                if value.process.forked and space.calls == 1:
                    self._first_after_fork(value, value.name)
                explained = self.around.call(value, space.addresses)
                handler = HANDLERS.get(value.name)
                if handler and not explained:
                    handler(self, space, value)
        self.around.end(self.story.openings)
        self.story.findings.sort(key=lambda finding: finding.at)
        for block in self.story.memories:
            if block.shared:
                self.concerns(block.made, block.freed)
                self._tell_uses(block)
        for mapping in self.story.mappings:
            memory = mapping.chunk.memory
            if mapping.chunk.opening is not None or (memory and memory.shared):
                self.concerns(mapping.made, mapping.access, mapping.unmapped)
        return self.story

    def _order(self) -> Iterator[tuple[int, str, Any]]:
        """The begins, entries and ends of all processes, in the order of time."""
        items: list[tuple[int, int, str, Any]] = []
        for process in self.trace.processes:
            items.append((process.began, 0, "begin", process))
            items.append((process.ended, 2, "end", process))
        items += [(when(entry), 1, "", entry) for entry in self.trace.entries]
        items.sort(key=lambda item: item[:2])
        return ((at, what, value) for at, _, what, value in items)

    def _tell_uses(self, block: Memory) -> None:
        """Note the uses of a block; if a process has very many, note only its first and
        last uses.
        """
        by_process: dict[Process, list[Call]] = {}
        for call in block.uses:
            by_process.setdefault(call.process, []).append(call)
        for uses in by_process.values():
            left_out = len(uses) - 2 * MOST_USES
            if left_out > 0:
                uses[MOST_USES:-MOST_USES] = []
                self.story.more[id(uses[MOST_USES])] = left_out
            self.concerns(*uses)

    # Findings.

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

    def concerns(self, *entries: Entry | None) -> None:
        """Mark entries that concern IPC: the sequence shows no other entries."""
        self.story.concerns.update(id(entry) for entry in entries if entry)

    # Processes.

    def _begin(self, process: Process) -> None:
        space = Space(process)
        parents = [
            other
            for other in self.spaces.values()
            if other.process.number in (process.number, process.parent)
        ]
        if parents:  # descriptors are inherited, by fork and by exec
            space.descriptors = dict(parents[-1].descriptors)
        if process.forked and any(x.calls for x in parents):
            self.tainted.add(process)
        self.spaces[process] = space

    def _on_refused(self, space: Space, event: Event) -> None:
        """A call that the runtime refused before it called the driver."""
        if space.process.forked and space.calls == 0:
            self._first_after_fork(event, event.facts["name"])

    def _first_after_fork(self, entry: Entry, name: str) -> None:
        if entry.process in self.tainted:
            self.found(
                "cuda-after-fork",
                entry,
                f"{name} in a child of fork, whose parent had called CUDA before",
            )

    def _end(self, process: Process, at: int) -> None:
        space = self.spaces[process]
        # After a fault of the GPU the context refuses every release.
        if not process.died and not space.faulted:
            self._left_open(space)
        for memory in self.story.memories:
            if memory.owner is not process or memory.kind == "chunk" or memory.freed:
                continue
            for opening in memory.openings:
                if opening.open and opening.process is not process:
                    self.found(
                        "exporter-ended-while-open",
                        process,
                        f"{memory.name} was open in {opening.process.name} when "
                        f"{process.name} ended ({process.how})",
                        row="LIFE-08" if memory.kind == "pool" else "LIFE-04",
                        other=opening.opens[0],
                    )
        for opening in space.openings:  # the kernel closes what is left
            missing = len(opening.opens) - len(opening.closes)
            opening.closes += [Event(process, "gone", at, {})] * missing
        for event in space.events.values():
            if event.destroyed is None:
                event.destroyed = Event(process, "gone", at, {})

    def _left_open(self, space: Space) -> None:
        """Add findings for what a process had not released when it ended by itself."""
        process = space.process
        for opening in space.openings:
            if not opening.open:
                continue
            first, closes = opening.opens[0], len(opening.closes)
            if opening.kind == "pointer":
                self.found(
                    "pool-pointer-never-freed",
                    process,
                    f"{opening.name} was imported and never freed",
                    other=first,
                )
            elif opening.kind == "chunk":
                owner = opening.memory.owner if opening.memory else process
                kept = owner is not process and owner.ended < process.ended
                self.found(
                    "kept-after-owners-end" if kept else "never-released",
                    process,
                    f"{opening.name} was imported and never released"
                    + (
                        f", although {owner.name} had ended ({owner.how}): until then "
                        "it was not free"
                        if kept
                        else ""
                    ),
                    other=first,
                )
            elif closes:
                self.found(
                    "closed-too-seldom",
                    process,
                    f"{opening.name} was opened {len(opening.opens)} times and "
                    f"closed {'once' if closes == 1 else f'{closes} times'}",
                    other=first,
                )
            else:
                self.found(
                    "never-closed",
                    process,
                    f"{opening.name} was opened and never closed",
                    other=first,
                )
        for mapping in space.mappings:
            if mapping.unmapped is None and mapping.chunk.opening is not None:
                self.found(
                    "never-unmapped",
                    process,
                    f"{mapping.chunk.opening.name} was mapped at "
                    f"{mapping.address:#x} and never unmapped",
                    other=mapping.made,
                )
        for event in space.events.values():
            if isinstance(event, EventOpening) and event.destroyed is None:
                self.found(
                    "event-never-destroyed",
                    process,
                    "an event was opened and never destroyed",
                    other=event.opened,
                )

    def _on_exit(self, space: Space, event: Event) -> None:
        for left in event.facts["open"]:
            handle = self._handle_behind(space, left)
            if handle is not None:
                self.found(
                    "descriptor-left-open",
                    event,
                    f"descriptor {left['fd']} of {_owner_text(handle)} is still open "
                    "at the end",
                    row="POOL-24" if handle.kind == "pool" else "",
                    other=handle.made,
                )

    # Messages and descriptors.

    def _on_send(self, space: Space, event: Event) -> None:
        handles = [
            self._handle_behind(space, x) if x else None
            for x in event.facts["descriptors"]
        ]
        key = _message_key(event)
        sent = _Sent(event, handles, self._knowledge(space, event))
        self.sent.setdefault(key, deque()).append(sent)

    def _on_receive(self, space: Space, event: Event) -> None:
        waiting = self.sent.get(_message_key(event), deque())
        for index, sent in enumerate(waiting):
            if sent.event.process is event.process:
                continue
            del waiting[index]
            self.story.messages.append(Message(sent.event, event))
            self.concerns(sent.event, event)
            self._learns(space, sent.told)
            for descriptor, handle in zip(
                event.facts["descriptors"], sent.handles, strict=False
            ):
                if descriptor:
                    self._got(space, handle, descriptor)
            return

    def _on_ended(self, space: Space, event: Event) -> None:
        """A process that has waited for the end of another process knows everything
        that the other process did."""
        for each in self.trace.processes:
            if each.number == event.facts["process"] and each.began < event.at:
                self._learns(space, {each: each.ended})

    def _on_takes(self, space: Space, event: Event) -> None:
        owners = [
            x
            for x in self.spaces.values()
            if x.process.number == event.facts["process"]
        ]
        descriptor = event.facts["descriptor"]
        if owners and descriptor:
            source = owners[-1].descriptors.get(event.facts["from"])
            handle = source[0] if source else None
            self._got(space, handle, descriptor)
            self.concerns(event)

    def _got(
        self, space: Space, handle: Handle | None, descriptor: dict[str, int]
    ) -> None:
        """Note that a process has received a copy of a descriptor."""
        space.descriptors[descriptor["fd"]] = (handle, descriptor)
        if handle is not None:
            handle.copies += 1

    def _on_close(self, space: Space, event: Event) -> None:
        handle = self._handle_behind(space, event.facts["descriptor"])
        if handle is not None:
            handle.closes.append(event)
            self.concerns(event)
        space.descriptors.pop(event.facts["descriptor"]["fd"], None)

    def _handle_behind(self, space: Space, descriptor: Any) -> Handle | None:
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

    # Memory.

    def _new_memory(
        self, space: Space, call: Call, kind: str, address: int, size: int
    ) -> Memory:
        memory = Memory(kind, space.process, address, size, call)
        self.story.memories.append(memory)
        memory.number = len(self.story.memories)
        if kind != "chunk":
            self._place(space, memory)
        return memory

    def _place(self, space: Space, item: Range) -> None:
        for old in space.gone.inside(item.address, max(item.size, 1)):
            space.gone.remove(old.address)
        covering = space.gone.holding(item.address)
        if covering is not None:
            space.gone.remove(covering.address)
        space.addresses.add(item)

    def alloc(self, space: Space, call: Call) -> None:
        if call.ok:
            a = call.arguments
            self._new_memory(space, call, "malloc", a["dptr"], a["bytesize"])

    def alloc_pitch(self, space: Space, call: Call) -> None:
        if call.ok:
            a = call.arguments
            size = a["pPitch"] * a["Height"]
            self._new_memory(space, call, "malloc", a["dptr"], size)

    def alloc_managed(self, space: Space, call: Call) -> None:
        if call.ok:
            a = call.arguments
            self._new_memory(space, call, "managed", a["dptr"], a["bytesize"])

    def alloc_pool(self, space: Space, call: Call) -> None:
        a = call.arguments
        pool = space.pools.get(a.get("pool", 0))
        if call.ok:
            memory = self._new_memory(space, call, "pool", a["dptr"], a["bytesize"])
            memory.pool = pool
        elif pool is not None and pool.imported:
            self.found(
                "allocated-from-import", call, f"{call.name} from an imported pool"
            )

    def free(self, space: Space, call: Call) -> None:
        item = space.addresses.at(call.arguments["dptr"])
        if isinstance(item, Opening) and item.kind == "memory":
            self.found(
                "import-freed",
                call,
                f"{call.name} of {item.name}, which was opened from a handle",
                other=item.opens[0],
            )
            return
        if not call.ok or item is None:
            return
        if call.name == "cuMemFree":
            self._synchronised(space, call)
        if isinstance(item, Opening):
            self._closed(space, item, call)
        elif isinstance(item, Memory):
            self._freed(space, item, call)

    def _freed(self, space: Space, memory: Memory, entry: Entry) -> None:
        memory.freed = entry
        space.addresses.remove(memory.address)
        if memory.exports:
            self.concerns(entry)
        for opening in memory.openings:
            if opening.process is space.process:
                continue
            if opening.open:
                early = memory.kind == "pool"
                self.found(
                    "pool-pointer-freed-early" if early else "freed-while-open",
                    entry,
                    f"{memory.name} is freed while {opening.process.name} has it open",
                    other=opening.opens[0],
                )
            elif opening.kind != "chunk" and not self._knows(
                space, opening.process, when(opening.closes[-1])
            ):
                pointer = opening.kind == "pointer"
                self.found(
                    "pool-pointer-freed-early" if pointer else "freed-while-open",
                    entry,
                    f"{memory.name} is freed, and nothing has told "
                    f"{space.process.name} that {opening.process.name} has "
                    f"{'freed' if pointer else 'closed'} it",
                    other=opening.closes[-1],
                )

    def _closed(self, space: Space, opening: Opening, entry: Entry) -> None:
        opening.closes.append(entry)
        self.concerns(entry)
        # A pool's pointer has no reference count: the first free unmaps it.
        if opening.kind == "pointer":
            missing = len(opening.opens) - len(opening.closes)
            opening.closes += [entry] * missing
        if not opening.open:
            space.addresses.remove(opening.address)
            space.gone.add(opening)

    # Legacy handles.

    def export_memory(self, space: Space, call: Call) -> None:
        address = call.arguments["dptr"]
        item = space.addresses.holding(address)
        self.concerns(call)
        if not call.ok:
            what = _what(item)
            self.found(
                "not-exportable",
                call,
                f"cuIpcGetMemHandle of {what} is refused (error {call.result})",
                row="MNGD-01" if what == "managed memory" else "",
                instead=INSTEAD[_kind(item)] + LEFT_BEHIND,
            )
            return
        if not isinstance(item, Memory):
            return
        self._export(Handle("memory", space.process, item, call,
                            call.arguments["pHandle"]))  # fmt: skip
        self.concerns(item.made)
        if address != item.address:
            self.found(
                "interior-pointer",
                call,
                f"the handle of {item.name} + {address - item.address} opens at the "
                "base: the offset is lost",
            )
        if item.size % BLOCK:
            self.found(
                "shared-with-neighbours",
                call,
                f"{item.name} is not a multiple of 2 MiB: its importer can read and "
                "write everything else in its block",
                once=(item,),
            )

    def _export(self, handle: Handle) -> None:
        if isinstance(handle.of, Memory):
            handle.of.exports.append(handle)
        self.story.handles.append(handle)
        if handle.key:
            self.by_key[handle.key] = handle
        if handle.descriptor:
            self.by_file.append(handle)
            space = self.spaces[handle.process]
            space.descriptors[handle.descriptor["fd"]] = (handle, handle.descriptor)

    def open_memory(self, space: Space, call: Call) -> None:
        a = call.arguments
        handle = self.by_key.get(a["handle"])
        self._imported(call, handle)
        memory = handle.of if handle and isinstance(handle.of, Memory) else None
        if a["Flags"] != LAZY:
            self.found("wrong-flags", call, f"{call.name} with flags {a['Flags']}")
        elif not call.ok:
            self._refused_open(space, call, handle, memory)
        elif memory is not None and memory.freed:
            self.found(
                "stale-handle",
                call,
                f"{memory.name} was freed before this open",
                other=memory.freed,
            )
        if call.ok:
            item = space.addresses.at(a["pdptr"])
            if isinstance(item, Opening) and item.memory is memory and item.open:
                item.opens.append(call)
            else:
                self._opened(space, call, memory, handle, "memory", a["pdptr"])

    def _opened(
        self,
        space: Space,
        call: Call,
        memory: Memory | None,
        handle: Handle | None,
        kind: str,
        address: int,
    ) -> Opening:
        size = memory.size if memory else 1
        opening = Opening(
            space.process, memory, handle, kind, address, size, call.context, [call]
        )
        self.story.openings.append(opening)
        space.openings.append(opening)
        if memory is not None:
            memory.openings.append(opening)
        if kind != "chunk":
            self._place(space, opening)
        return opening

    def _imported(self, call: Call, handle: Handle | None) -> None:
        self.concerns(call)
        if handle is not None:
            handle.imports.append(call)
            self.concerns(handle.made)
        elif call.ok:
            self.story.unmatched.append(call)

    def _refused_open(
        self, space: Space, call: Call, handle: Handle | None, memory: Memory | None
    ) -> None:
        """Add a finding that says why a memory handle could not be opened."""
        elsewhere = [
            opening
            for opening in (memory.openings if memory else ())
            if opening.process is space.process
            and opening.open
            and opening.context != call.context
        ]
        if not call.arguments["handle"].strip("0"):
            self.found(
                "handle-of-zeros",
                call,
                f"{call.name} of a handle of zeros (error {call.result}): its exporter "
                "sent fewer handles than this process opens",
            )
        elif handle is None or memory is None:
            self.found(
                "unknown-handle",
                call,
                f"{call.name} of bytes that no export in this trace returned "
                f"(error {call.result})",
            )
        elif handle.process is space.process:
            self.found(
                "opened-in-exporter",
                call,
                f"the process that exported {memory.name} opens it "
                f"(error {call.result})",
                other=handle.made,
            )
        elif handle.process.ended < call.ended:
            self.found(
                "handle-of-ended-process",
                call,
                f"{handle.process.name}, which exported {memory.name}, has ended "
                f"({handle.process.how})",
                other=handle.made,
            )
        elif memory.freed:
            self.found(
                "stale-handle",
                call,
                f"{memory.name} was freed before this open (error {call.result})",
                other=memory.freed,
            )
        elif elsewhere:
            self.found(
                "second-context",
                call,
                f"{memory.name} is open in another context of this process "
                f"(error {call.result})",
                other=elsewhere[0].opens[0],
            )

    def close_memory(self, space: Space, call: Call) -> None:
        address = call.arguments["dptr"]
        item = space.addresses.at(address)
        self.concerns(call)
        if call.ok:
            if isinstance(item, Opening):
                self._closed(space, item, call)
            return
        gone = space.gone.at(address)
        if isinstance(gone, Opening):
            self.found(
                "closed-too-often",
                call,
                f"{gone.name} is closed once more than it was opened "
                f"(error {call.result})",
                other=gone.closes[-1],
            )
        elif not isinstance(item, Opening):
            self.found(
                "closed-not-opened",
                call,
                f"cuIpcCloseMemHandle of {_what(item)} (error {call.result})",
            )

    # Events.

    def create_event(self, space: Space, call: Call) -> None:
        if call.ok:
            pointer = call.arguments["phEvent"]
            event = SharedEvent(space.process, pointer, call.arguments["Flags"], call)
            space.events[pointer] = event
        elif call.arguments["Flags"] & (INTERPROCESS | NO_TIMING) == INTERPROCESS:
            self.found(
                "event-not-exportable",
                call,
                "an interprocess event that measures time cannot be created (error "
                f"{call.result})",
                row="LEVT-02",
            )

    def export_event(self, space: Space, call: Call) -> None:
        event = space.events.get(call.arguments["event"])
        self.concerns(call)
        if call.ok and isinstance(event, SharedEvent):
            event.exported = call
            self.story.events.append(event)
            self.concerns(event.made, event.recorded)
            self._export(Handle("event", space.process, event, call,
                                call.arguments["pHandle"]))  # fmt: skip
        elif not call.ok:
            if isinstance(event, SharedEvent) and not event.flags & INTERPROCESS:
                text = "an event without cudaEventInterprocess has no handle"
            else:
                text = f"cuIpcGetEventHandle of {_what_event(event)}"
            made = event.made if isinstance(event, SharedEvent) else None
            self.found(
                "event-not-exportable",
                call,
                f"{text} (error {call.result})",
                other=made,
            )

    def open_event(self, space: Space, call: Call) -> None:
        handle = self.by_key.get(call.arguments["handle"])
        event = handle.of if handle and isinstance(handle.of, SharedEvent) else None
        self._imported(call, handle)
        if event is not None and event.destroyed:
            rule = "event-destroyed-while-open"
            self.found(rule, call, "the event was destroyed before this open",
                       other=event.destroyed)  # fmt: skip
        elif not call.ok and handle is not None and handle.process is space.process:
            self.found(
                "opened-in-exporter",
                call,
                f"the process that exported the event opens it (error {call.result})",
                row="LEVT-05",
                other=handle.made,
            )
        elif not call.ok and event is None:
            self.found(
                "unknown-handle",
                call,
                f"{call.name} of bytes that no event's export in this trace returned "
                f"(error {call.result})",
                row="LEVT-04",
            )
        if call.ok:
            opening = EventOpening(
                space.process, event, call.arguments["phEvent"], call
            )
            space.events[opening.pointer] = opening
            if event is not None:
                event.openings.append(opening)

    def destroy_event(self, space: Space, call: Call) -> None:
        event = space.events.pop(call.arguments["hEvent"], None)
        if not call.ok or event is None:
            return
        event.destroyed = call
        if isinstance(event, EventOpening) or event.exported:
            self.concerns(call)
        if isinstance(event, SharedEvent):
            for opening in event.openings:
                if opening.destroyed is None and opening.process is not space.process:
                    self.found(
                        "event-destroyed-while-open",
                        call,
                        f"the event is destroyed while {opening.process.name} has it "
                        "open",
                        other=opening.opened,
                    )

    def record_event(self, space: Space, call: Call) -> None:
        event = self._event(space, call)
        if not call.ok or event is None:
            return
        event.recorded = call
        stream = call.arguments["hStream"]
        streams = space.pending if stream in LEGACY else {stream: ()}
        event.covers = [
            work for x in streams for work in space.pending.get(x, {}).values()
        ]
        event.told = self._knowledge(space, call)

    def _event(self, space: Space, call: Call) -> SharedEvent | None:
        """The event of a call: one object for all processes that share the event. None
        if its exporter is not in the trace.
        """
        event = space.events.get(call.arguments["hEvent"])
        if isinstance(event, EventOpening):
            self.concerns(call)
            return event.event
        if event is not None and event.exported:
            self.concerns(call)
        return event

    def wait_event(self, space: Space, call: Call) -> None:
        """All work before the event's record is ordered before the waiter's work."""
        event = self._event(space, call)
        if not call.ok or event is None:
            return
        host = call.name != "cuStreamWaitEvent"
        for work in event.covers:
            work.ordered_for.add(space.process)
            if host:
                work.done.setdefault(space.process, when(call))
                work.memory.uses.append(call)
        if host:
            self._learns(space, event.told)

    # Order.

    def _knowledge(self, space: Space, entry: Entry) -> dict[Process, int]:
        """What a process can tell others at this moment."""
        return {**space.knows, space.process: when(entry)}

    def _learns(self, space: Space, told: dict[Process, int]) -> None:
        for process, until in told.items():
            space.knows[process] = max(until, space.knows.get(process, until))

    def _knows(self, space: Space, other: Process, at: int) -> bool:
        """Whether the process can know what another process did at that time. Without
        `messages_only`, always.
        """
        return (
            not self.messages_only
            or other is space.process
            or at <= max(space.knows.get(other, 0), space.process.began)
        )

    def synchronise(self, space: Space, call: Call) -> None:
        if call.result != NOT_READY:  # after a fault no work is running any more
            stream = call.arguments.get("hStream", 0)
            self._synchronised(space, call, None if stream in LEGACY else stream)

    def _synchronised(
        self, space: Space, call: Call, stream: int | None = None
    ) -> None:
        for known in list(space.pending) if stream is None else [stream]:
            for work in space.pending.pop(known, {}).values():
                work.done.setdefault(space.process, when(call))
                if work.call is not call:
                    work.memory.uses.append(call)

    def launch(self, space: Space, call: Call) -> None:
        for address in call.arguments["pointers"]:
            self._access(space, call, address, call.arguments["stream"], "rw")

    def copy(self, space: Space, call: Call) -> None:
        a = call.arguments
        whole = a.get("pCopy") or {}
        to = a.get("dst", a.get("dstDevice", whole.get("dst", 0)))
        source = a.get("src", a.get("srcDevice", whole.get("src", 0)))
        stream = a.get("hStream", 0)
        to_host = space.addresses.holding(to) is None
        self._access(space, call, source, stream, "r")
        if call.ok and "Async" not in call.name and to_host:
            self._synchronised(space, call)  # the copy has waited for the stream
        self._access(space, call, to, stream, "w")

    def fill(self, space: Space, call: Call) -> None:
        a = call.arguments
        self._access(space, call, a["dstDevice"], a.get("hStream", 0), "w")

    def stream_value(self, space: Space, call: Call) -> None:
        """A stream waits for a number in memory or writes a number. Both order work."""
        item = space.addresses.holding(call.arguments["addr"])
        memory = _memory(item)
        if memory is None or not call.ok:
            return
        self.concerns(call)
        for other in self.spaces.values():
            for works in other.pending.values():
                for work in works.values():
                    work.ordered_for.add(space.process)

    def _access(
        self, space: Space, call: Call, address: int, stream: int, how: str
    ) -> None:
        item = space.addresses.holding(address)
        if item is None:
            self._strange(space, call, address)
            return
        if isinstance(item, Mapping) and not item.access:
            self.found(
                "used-without-access",
                call,
                f"{call.name} uses {item.address:#x}, which was mapped and has no "
                "access yet",
                other=item.made,
                once=(item,),
            )
        memory = _memory(item)
        if memory is None:
            return
        memory.uses.append(call)
        if "r" in how:
            self._ordered(space, call, memory, memory.writes.values(), "reads")
        if how == "w":  # a kernel with this pointer may only read
            self._ordered(space, call, memory, memory.reads.values(), "writes")
        if call.ok:
            work = Work(space.process, stream, call, memory)
            known = memory.writes if "w" in how else memory.reads
            known[space.process, stream] = work
            space.pending.setdefault(stream, {})[id(memory), "w" in how] = work

    def _ordered(
        self, space: Space, call: Call, memory: Memory, before: Iterable[Work], how: str
    ) -> None:
        """Add a finding if nothing orders the call after work of other processes."""
        for work in before:
            if (
                work.process is space.process
                or any(self._knows(space, *seen) for seen in work.done.items())
                or space.process in work.ordered_for
                or self._has_seen_the_end(space, work.process, call)
                or _work_together(work.call, call)
            ):
                continue
            self.found(
                "possible-race",
                call,
                f"{call.name} {how} {memory.name}; nothing orders it after "
                f"{work.call.name} of {work.process.name}",
                other=work.call,
                once=(memory, work.process, space.process),
            )

    def _has_seen_the_end(self, space: Space, other: Process, now: Call) -> bool:
        """Whether the process can know that another process has ended."""
        return other.ended < now.began and self._knows(space, other, other.ended)

    def _strange(self, space: Space, call: Call, address: int) -> None:
        """Add a finding if something is wrong with an address at which this process has
        nothing.
        """
        gone = space.gone.holding(address)
        if isinstance(gone, Opening):
            self.found(
                "use-after-close",
                call,
                f"{call.name} uses {gone.name}, which was closed",
                other=gone.closes[-1],
                once=(gone,),
            )
            return
        for memory in self.story.memories if "Launch" in call.name else ():
            if (
                memory.exports
                and memory.owner is not space.process
                and memory.address <= address < memory.address + memory.size
            ):
                self.found(
                    "pointer-of-another-process",
                    call,
                    f"{call.name} uses {address:#x}, an address of {memory.name} in "
                    f"{memory.owner.name}",
                    row="LMEM-41",
                    other=memory.made,
                    once=(memory, space.process),
                )
                return

    # Virtual memory management.

    def create_chunk(self, space: Space, call: Call) -> None:
        if not call.ok:
            return
        memory = self._new_memory(space, call, "chunk", 0, call.arguments["size"])
        memory.handles = (call.arguments["prop"] or {}).get("handles", 0)
        space.chunks[call.arguments["handle"]] = Chunk(space.process, memory, None)

    def export_chunk(self, space: Space, call: Call) -> None:
        a = call.arguments
        chunk = space.chunks.get(a["handle"])
        self.concerns(call)
        if not call.ok:
            self.found(
                "not-exportable",
                call,
                f"{call.name} of memory that was not created for handle type "
                f"{a['handleType']} (error {call.result})",
                row="VMM-09",
            )
        elif chunk and chunk.memory:
            self.concerns(chunk.memory.made)
            self._export(
                self._shared("chunk", space, chunk.memory, call, a["shareableHandle"])
            )

    def _shared(
        self, kind: str, space: Space, of: Memory | Pool, call: Call, value: Any
    ) -> Handle:
        """The Handle for an exported descriptor or, for fabric, exported bytes."""
        if isinstance(value, str):
            return Handle(kind, space.process, of, call, key=value)
        return Handle(kind, space.process, of, call, descriptor=value)

    def _found_handle(self, space: Space, value: Any) -> Handle | None:
        if isinstance(value, str):
            return self.by_key.get(value)
        return self._handle_behind(space, value)

    def import_chunk(self, space: Space, call: Call) -> None:
        handle = self._found_handle(space, call.arguments["osHandle"])
        self._imported(call, handle)
        if not call.ok:
            self._bad_descriptor(call, handle, "chunk", "VMM-11")
            return
        memory = handle.of if handle and isinstance(handle.of, Memory) else None
        opening = self._opened(space, call, memory, handle, "chunk", 0)
        pointer = call.arguments["handle"]
        space.chunks[pointer] = Chunk(space.process, memory, opening)

    def _bad_descriptor(
        self, call: Call, handle: Handle | None, kind: str, row: str
    ) -> None:
        if handle is None or handle.kind != kind:
            what = "no export" if handle is None else _owner_text(handle)
            self.found(
                "bad-descriptor",
                call,
                f"{call.name} of a descriptor of {what} (error {call.result})",
                row="VMM-12" if handle is not None else row,
            )

    def release_chunk(self, space: Space, call: Call) -> None:
        chunk = space.chunks.get(call.arguments["handle"])
        if not call.ok or chunk is None:
            return
        chunk.references -= 1
        if chunk.references:
            return
        del space.chunks[call.arguments["handle"]]
        if chunk.opening is not None:
            self._released(chunk.opening, call)
        elif chunk.memory is not None:
            chunk.memory.freed = call

    def _released(self, opening: Opening, call: Call) -> None:
        opening.closes.append(call)
        self.concerns(call)

    def retain_chunk(self, space: Space, call: Call) -> None:
        chunk = space.chunks.get(call.arguments["handle"] or 0)
        if call.ok and chunk is not None:
            chunk.references += 1

    def map_chunk(self, space: Space, call: Call) -> None:
        a = call.arguments
        chunk = space.chunks.get(a["handle"])
        if not call.ok or chunk is None:
            return
        mapping = Mapping(space.process, chunk, a["ptr"], a["size"], call)
        space.mappings.append(mapping)
        self.story.mappings.append(mapping)
        self._place(space, mapping)

    def set_access(self, space: Space, call: Call) -> None:
        a = call.arguments
        if not call.ok:
            return
        for item in space.addresses.inside(a["ptr"], a["size"]):
            if isinstance(item, Mapping):
                item.access = call

    def unmap_chunk(self, space: Space, call: Call) -> None:
        a = call.arguments
        if not call.ok:
            return
        for item in space.addresses.inside(a["ptr"], a["size"]):
            if isinstance(item, Mapping):
                item.unmapped = call
                space.addresses.remove(item.address)

    # Pools.

    def create_pool(self, space: Space, call: Call) -> None:
        if call.ok:
            a = call.arguments
            handles = (a["poolProps"] or {}).get("handles", 0)
            space.pools[a["pool"]] = Pool(space.process, a["pool"], handles, call)

    def default_pool(self, space: Space, call: Call) -> None:
        pointer = call.arguments["pool_out"]
        if call.ok and pointer not in space.pools:
            space.pools[pointer] = Pool(space.process, pointer, 0, call, default=True)

    def export_pool(self, space: Space, call: Call) -> None:
        a = call.arguments
        pool = space.pools.get(a["pool"])
        self.concerns(call)
        if call.ok and pool is not None:
            self.concerns(pool.made)
            self._export(self._shared("pool", space, pool, call, a["handle_out"]))
        elif not call.ok and pool is not None:
            what, row = f"a pool without handle type {a['handleType']}", "POOL-02"
            if pool.default:
                what, row = "the default pool", "POOL-04"
            elif pool.imported:
                what, row = "an imported pool", "IMPL-10"
            self.found(
                "pool-not-exportable",
                call,
                f"{call.name} of {what} (error {call.result})",
                row=row,
            )

    def import_pool(self, space: Space, call: Call) -> None:
        handle = self._found_handle(space, call.arguments["handle"])
        self._imported(call, handle)
        if not call.ok:
            self._bad_descriptor(call, handle, "pool", "IMPL-09")
            return
        original = handle.of if handle and isinstance(handle.of, Pool) else None
        pointer = call.arguments["pool_out"]
        space.pools[pointer] = Pool(
            space.process, pointer, 0, call, original, imported=True
        )

    def destroy_pool(self, space: Space, call: Call) -> None:
        pool = space.pools.get(call.arguments["pool"])
        if call.ok and pool is not None:
            pool.destroyed = call
            if pool.imported:
                self.concerns(call)
            del space.pools[call.arguments["pool"]]

    def export_pointer(self, space: Space, call: Call) -> None:
        item = space.addresses.holding(call.arguments["ptr"])
        self.concerns(call)
        if call.ok and isinstance(item, Memory):
            self.concerns(item.made)
            self._export(Handle("pointer", space.process, item, call,
                                call.arguments["shareData_out"]))  # fmt: skip
        elif not call.ok:
            self.found(
                "not-exportable",
                call,
                f"{call.name} of {_what(item)} (error {call.result})",
                row="POOL-09",
            )

    def import_pointer(self, space: Space, call: Call) -> None:
        key = call.arguments["shareData"]
        handle = self.by_key.get(key) if key else None
        memory = handle.of if handle and isinstance(handle.of, Memory) else None
        if memory is not None and memory.freed is not None:
            self.found(
                "pool-pointer-freed-early",
                call,
                f"{memory.name} is imported after {memory.owner.name} has freed it",
                other=memory.freed,
            )
        if not call.ok:
            self.concerns(call)
            return
        self._imported(call, handle)
        address = call.arguments["ptr_out"]
        item = space.addresses.at(address)
        if isinstance(item, Opening) and item.open and item.memory is memory:
            self.found(
                "pool-pointer-imported-twice",
                call,
                f"{item.name} is imported a second time: the first free unmaps both",
                other=item.opens[0],
            )
            item.opens.append(call)
            return
        self._opened(space, call, memory, handle, "pointer", address)

    # Contexts.

    def retain_context(self, space: Space, call: Call) -> None:
        if call.ok:
            space.primary[call.arguments["dev"]] = call.arguments["pctx"]

    def destroy_context(self, space: Space, call: Call) -> None:
        if not call.ok:
            return
        pointer = call.arguments.get("ctx")
        if pointer is None:
            pointer = space.primary.get(call.arguments["dev"])
        numbers = {n for n, p in space.process.contexts.items() if p == pointer}
        for opening in list(space.openings):
            if opening.kind == "memory" and opening.open and opening.context in numbers:
                self.found(
                    "context-destroyed",
                    call,
                    f"{opening.name} is still open in the context that "
                    f"{call.name} ends",
                    other=opening.opens[0],
                )
                missing = len(opening.opens) - len(opening.closes)
                for _ in range(missing):
                    self._closed(space, opening, call)
        for memory in self.story.memories:
            if (
                memory.owner is space.process
                and memory.freed is None
                and memory.kind == "malloc"
                and memory.made.context in numbers
            ):
                self._freed(space, memory, call)


def _memory(item: Range | None) -> Memory | None:
    """The memory to which a range of addresses leads."""
    if isinstance(item, Memory):
        return item
    if isinstance(item, Opening):
        return item.memory
    return item.chunk.memory if isinstance(item, Mapping) else None


def _kind(item: Range | None) -> str:
    """The kind of memory, for INSTEAD."""
    if isinstance(item, Memory):
        return "" if item.freed or item.kind == "malloc" else item.kind
    if isinstance(item, Opening):
        return "import"
    return "chunk" if isinstance(item, Mapping) else ""


def _what(item: Range | None) -> str:
    """The memory at an address, in words."""
    if isinstance(item, Memory):
        return {
            "malloc": "memory of cudaMalloc",
            "managed": "managed memory",
            "pool": "memory of a pool",
            "chunk": "a chunk",
        }[item.kind]
    if isinstance(item, Opening):
        return "memory that was opened from a handle"
    if isinstance(item, Mapping):
        return "memory of cuMemCreate"
    return "an address outside all allocations"


def _what_event(event: SharedEvent | EventOpening | None) -> str:
    if isinstance(event, EventOpening):
        return "an event that was opened from a handle"
    return "an event" if event else "something that is not an event"


def _owner_text(handle: Handle) -> str:
    """The owner of an export, in words."""
    if isinstance(handle.of, Memory):
        return handle.of.name
    return "a pool" if isinstance(handle.of, Pool) else "an event"


def _same_file(one: Any, other: Any) -> bool:
    return bool(one["device"] == other["device"] and one["inode"] == other["inode"])


def _message_key(event: Event) -> str:
    """The part of a message that is the same at both ends."""
    files = [
        (x["device"], x["inode"]) if x else None for x in event.facts["descriptors"]
    ]
    return f"{event.facts['size']} {event.facts['bytes']} {files}"


def _work_together(writer: Call, reader: Call) -> bool:
    """Whether both calls launch the same kernel, which may order the work itself.

    For example, the kernel of one process writes a flag in shared memory, and the
    kernel of the other process reads it.
    """
    if "Launch" not in writer.name or "Launch" not in reader.name:
        return False
    names = [
        call.process.kernels.get(call.arguments["kernel"]) for call in (writer, reader)
    ]
    return names[0] == names[1]


LEGACY = (0, 1)  # the default stream, as null and as CU_STREAM_LEGACY

HANDLERS: dict[str, Callable[[_Replay, Space, Call], None]] = {
    "cuMemAlloc": _Replay.alloc,
    "cuMemAllocPitch": _Replay.alloc_pitch,
    "cuMemAllocManaged": _Replay.alloc_managed,
    "cuMemAllocAsync": _Replay.alloc_pool,
    "cuMemAllocFromPoolAsync": _Replay.alloc_pool,
    "cuMemFree": _Replay.free,
    "cuMemFreeAsync": _Replay.free,
    "cuIpcGetMemHandle": _Replay.export_memory,
    "cuIpcOpenMemHandle": _Replay.open_memory,
    "cuIpcCloseMemHandle": _Replay.close_memory,
    "cuEventCreate": _Replay.create_event,
    "cuEventDestroy": _Replay.destroy_event,
    "cuIpcGetEventHandle": _Replay.export_event,
    "cuIpcOpenEventHandle": _Replay.open_event,
    "cuEventRecord": _Replay.record_event,
    "cuEventRecordWithFlags": _Replay.record_event,
    "cuStreamWaitEvent": _Replay.wait_event,
    "cuEventSynchronize": _Replay.wait_event,
    "cuEventQuery": _Replay.wait_event,
    "cuStreamSynchronize": _Replay.synchronise,
    "cuStreamQuery": _Replay.synchronise,
    "cuCtxSynchronize": _Replay.synchronise,
    "cuLaunchKernel": _Replay.launch,
    "cuLaunchKernelEx": _Replay.launch,
    "cuLaunchCooperativeKernel": _Replay.launch,
    "cuMemCreate": _Replay.create_chunk,
    "cuMemRelease": _Replay.release_chunk,
    "cuMemRetainAllocationHandle": _Replay.retain_chunk,
    "cuMemMap": _Replay.map_chunk,
    "cuMemUnmap": _Replay.unmap_chunk,
    "cuMemSetAccess": _Replay.set_access,
    "cuMemExportToShareableHandle": _Replay.export_chunk,
    "cuMemImportFromShareableHandle": _Replay.import_chunk,
    "cuMemPoolCreate": _Replay.create_pool,
    "cuMemPoolDestroy": _Replay.destroy_pool,
    "cuDeviceGetDefaultMemPool": _Replay.default_pool,
    "cuMemPoolExportToShareableHandle": _Replay.export_pool,
    "cuMemPoolImportFromShareableHandle": _Replay.import_pool,
    "cuMemPoolExportPointer": _Replay.export_pointer,
    "cuMemPoolImportPointer": _Replay.import_pointer,
    "cuDevicePrimaryCtxRetain": _Replay.retain_context,
    "cuDevicePrimaryCtxReset": _Replay.destroy_context,
    "cuCtxDestroy": _Replay.destroy_context,
    **dict.fromkeys(
        (
            f"cuStream{verb}Value{bits}"
            for verb in ("Wait", "Write")
            for bits in (32, 64)
        ),
        _Replay.stream_value,
    ),
    **dict.fromkeys(
        (
            f"cuMemcpy{way}{when_}"
            for way in ("", "HtoD", "DtoH", "DtoD", "Peer", "2D", "3D")
            for when_ in ("", "Async")
        ),
        _Replay.copy,
    ),
    **dict.fromkeys(
        (f"cuMemsetD{bits}{when_}" for bits in (8, 16, 32) for when_ in ("", "Async")),
        _Replay.fill,
    ),
}
