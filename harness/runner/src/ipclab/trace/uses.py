"""Work that uses shared memory, and what orders it."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ipclab.trace.files import Call, Event, Process, when
from ipclab.trace.state import FAULTS, LEGACY, NOT_READY, Handler, State, stream_of
from ipclab.trace.things import Mapping, Memory, Opening, Range, Space, Work, memory_of

RECAPTURE = (
    "a graph keeps the addresses of its capture: close an import after the last launch "
    "of the graph, or capture again after each new open"
)
MOST_USES = 500  # of a memory, this many first and last uses of a process are kept


def _synchronise(state: State, space: Space, call: Call) -> None:
    if call.result != NOT_READY:  # after a fault no work is running any more
        stream = call.arguments.get("hStream", 0)
        synchronised(state, space, call, None if stream in LEGACY else stream)


def synchronised(
    state: State, space: Space, call: Call, stream: int | None = None
) -> None:
    """The work of a stream is done, and the process knows it; None: of all streams."""
    for known in list(space.pending) if stream is None else [stream]:
        for work in space.pending.pop(known, {}).values():
            work.done.setdefault(space.process, when(call))
            if work.call is not call:
                work.memory.uses.append(call)


@dataclass(frozen=True)
class Access:
    """An address that a launch, a copy or a fill reads ("r"), writes ("w") or does
    either with ("rw").
    """

    address: int
    how: str


def accesses(call: Call) -> list[Access]:
    """What a launch, a copy or a fill accesses; none for any other call."""
    a = call.arguments
    if "pointers" in a:
        return [Access(address, "rw") for address in a["pointers"]]
    if call.name.startswith("cuMemcpy"):
        whole = a.get("pCopy") or {}
        to = a.get("dst", a.get("dstDevice", whole.get("dst", 0)))
        source = a.get("src", a.get("srcDevice", whole.get("src", 0)))
        return [Access(source, "r"), Access(to, "w")]
    return [Access(a["dstDevice"], "w")] if call.name.startswith("cuMemset") else []


def _launch(state: State, space: Space, call: Call) -> None:
    space.unseen = True
    for used in accesses(call):
        access(state, space, call, used.address, call.arguments["stream"], used.how)


def _graph(_state: State, space: Space, _call: Call) -> None:
    space.unseen = True  # what was captured is done by ipclab.trace.graphs


def _copy(state: State, space: Space, call: Call) -> None:
    source, to = (x.address for x in accesses(call))
    stream = call.arguments.get("hStream", 0)
    to_host = space.addresses.holding(to) is None
    access(state, space, call, source, stream, "r")
    if call.ok and "Async" not in call.name and to_host:
        synchronised(state, space, call)  # the copy has waited for the stream
    access(state, space, call, to, stream, "w")
    if call.ok and "Async" not in call.name and space.pinned.holding(source):
        synchronised(state, space, call, None if stream in LEGACY else stream)


def _fill(state: State, space: Space, call: Call) -> None:
    a = call.arguments
    access(state, space, call, a["dstDevice"], a.get("hStream", 0), "w")


def _stream_value(state: State, space: Space, call: Call) -> None:
    """A stream waits for a number in memory or writes a number. Both order work."""
    item = space.addresses.holding(call.arguments["addr"])
    memory = memory_of(item)
    if memory is None or not call.ok:
        return
    state.concerns(call)
    _is_set(state, space, call, memory)
    for other in state.spaces.values():
        for works in other.pending.values():
            for work in works.values():
                work.ordered_for.add(space.process)


def _is_set(state: State, space: Space, call: Call, memory: Memory) -> None:
    """Add a finding if a stream waits for a word that had no value when its memory was
    exported, and that nothing has set since then.
    """
    if "Wait" not in call.name:
        memory.set_by.add(space.process)
        return
    users = {memory.owner, *(x.process for x in memory.openings)}
    if (
        not memory.unset
        or any(state.spaces[x].unseen for x in users)
        or space.process in memory.set_by
        or any(
            work.process is space.process
            or space.process in work.ordered_for
            or any(state.knows(space, *seen) for seen in work.done.items())
            for work in memory.writes.values()
        )
    ):
        return
    state.found(
        "waits-for-unset-word",
        call,
        f"{call.name} waits for a word in {memory.name}, which "
        f"{memory.owner.name} exported before anything was written to it: the wait "
        "compares what was left in this memory",
        other=memory.exports[0].made,
        once=(memory,),
    )


def access(
    state: State, space: Space, call: Call, address: int, stream: int, how: str
) -> None:
    """A launch, a copy or a fill accesses an address: see Access for `how`."""
    item = space.addresses.holding(address)
    if item is None:
        strange(state, call, call.thread, address)
        return
    if isinstance(item, Opening) and address != item.address and item.memory:
        item.memory.reached = max(item.memory.reached, address - item.address)
    if isinstance(item, Mapping) and not item.access:
        state.found(
            "used-without-access",
            call,
            f"{call.name} uses {item.address:#x}, which was mapped and has no "
            "access yet",
            other=item.made,
            once=(item,),
        )
    memory = memory_of(item)
    if memory is None:
        return
    if "Launch" in call.name:
        _on_device(state, space, call, item)
    _is_newest(state, space, call, memory)
    memory.uses.append(call)
    if "r" in how:
        _ordered(state, space, call, memory, memory.writes.values(), "reads")
    if how == "w":  # a kernel with this pointer may only read
        _ordered(state, space, call, memory, memory.reads.values(), "writes")
    if call.ok:
        work = Work(space.process, stream, call, memory)
        known = memory.writes if "w" in how else memory.reads
        known[space.process, stream] = work
        space.pending.setdefault(stream, {})[id(memory), "w" in how] = work


def _on_device(state: State, space: Space, call: Call, item: Range) -> None:
    """Add a finding if a kernel uses memory that its device may not use."""
    if isinstance(item, Memory) and item.kind == "malloc":
        made = item.made
    elif isinstance(item, Opening) and item.kind == "memory":
        made = item.opens[0]
    else:
        return  # chunks and pools name the devices that may use them
    here, there = space.device(call), space.device(made)
    # An open in this device's context may have enabled the access that is needed.
    lazily = isinstance(item, Memory) and any(
        x.kind == "memory" and space.device(x.opens[0]) == here for x in space.openings
    )
    if None in (here, there) or here == there or lazily:
        return
    if (here, there) not in space.peers:
        state.found(
            "used-on-another-device",
            call,
            f"{call.name} on device {here} uses {item.name}, which was "
            f"{'opened' if isinstance(item, Opening) else 'made'} on device {there}; "
            f"device {here} has no access to the memory of device {there}",
            other=made,
            once=(item, here),
        )


def _is_newest(state: State, space: Space, call: Call, memory: Memory) -> None:
    """Add a finding if the owner has other memory at the same address now, has exported
    it, and this process knows that and still uses an older import.
    """
    owner = memory.owner
    if owner is space.process:
        return
    newest = state.newest.get((owner, state.lent_at.get(memory, 0)))
    if newest is None or newest.of is memory or not isinstance(newest.of, Memory):
        return
    told = space.knows.get(owner, 0) >= when(newest.made)
    if told and all(x.process is not space.process for x in newest.of.openings):
        state.found(
            "stale-import",
            call,
            f"{call.name} uses {memory.name}; {owner.name} has exported "
            f"{newest.of.name} since then, which is at the same address there, and "
            f"{space.process.name} has not imported it",
            other=newest.made,
            once=(memory, space.process),
        )


def _ordered(
    state: State,
    space: Space,
    call: Call,
    memory: Memory,
    before: Iterable[Work],
    how: str,
) -> None:
    """Add a finding if nothing orders the call after work of other processes."""
    for work in before:
        if (
            work.process is space.process
            or any(state.knows(space, *seen) for seen in work.done.items())
            or space.process in work.ordered_for
            or _has_seen_the_end(state, space, work.process, call)
            or _work_together(work.call, call)
            or state.has_said("possible-race", memory, work.process, space.process)
        ):
            continue
        returns_early = "Mem" in work.call.name and "Async" not in work.call.name
        record = _missed(state, space, work)
        state.found(
            "possible-race",
            call,
            f"{call.name} {how} {memory.name}; nothing orders it after "
            f"{work.call.name} of {work.process.name}"
            + (", which may return before it is done" if returns_early else "")
            + (
                ": the event that this process has waited for was recorded on another "
                "stream"
                if record
                else ""
            ),
            instead="record the event on the stream that does the work"
            if record
            else "",
            other=record or work.call,
            once=(memory, work.process, space.process),
        )


def _missed(state: State, space: Space, work: Work) -> Call | None:
    """The record of an event on another stream than the work's, after this work, for
    which the process has waited; None if there is none.
    """
    for event in state.story.events:
        record = event.recorded
        if (
            record is not None
            and record.process is work.process
            and space.process in event.waited
            and record.began >= work.call.ended
            and stream_of(record) not in (work.stream, *LEGACY)
        ):
            return record
    return None


def _has_seen_the_end(state: State, space: Space, other: Process, now: Call) -> bool:
    """Whether the process can know that another process has ended."""
    return other.ended < now.began and state.knows(space, other, other.ended)


def crashed(state: State, call: Event) -> None:
    """A process has died in a copy. Perhaps it had nothing at one of the addresses."""
    for name, value in call.facts["arguments"].items():
        if name.startswith(("dst", "src")) and isinstance(value, int):
            strange(state, call, call.facts["thread"], value)


def strange(state: State, call: Call | Event, thread: int, address: int) -> None:
    """Add a finding if something is wrong with an address at which this process has
    nothing.
    """
    space = state.spaces[call.process]
    name = call.name if isinstance(call, Call) else call.facts["call"]
    # A copy that has worked may have used memory of the host.
    sure = "Launch" in name
    if not isinstance(call, Call) or not (call.ok or call.result in FAULTS):
        sure = True
    graph = name == "cuGraphLaunch"
    gone = space.gone.holding(address)
    if isinstance(gone, Opening) and (others := gone.taken_from(thread)):
        state.found(
            "closed-by-another-owner",
            call,
            f"{name} uses {gone.name}, which is no longer open: {others}",
            other=gone.closes[-1],
            once=(gone,),
        )
        return
    if isinstance(gone, Opening):
        state.found(
            "use-after-close",
            call,
            f"{name} uses {gone.name}, which was closed"
            + (" after the graph was captured" if graph else ""),
            instead=RECAPTURE if graph else "",
            other=gone.closes[-1],
            once=(gone,),
        )
        return
    for memory in state.story.memories if sure else ():
        if (
            memory.exports
            and memory.owner is not space.process
            and memory.address <= address < memory.address + memory.size
        ):
            state.found(
                "pointer-of-another-process",
                call,
                f"{name} uses {address:#x}, an address of {memory.name} in "
                f"{memory.owner.name}",
                row="LMEM-41",
                other=memory.made,
                once=(memory, space.process),
            )
            return


def tell_uses(state: State, block: Memory) -> None:
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
            state.story.more[id(uses[MOST_USES])] = left_out
        state.concerns(*uses)


def _work_together(writer: Call, reader: Call) -> bool:
    """Whether both calls launch the same kernel, which may order the work itself.

    For example, the kernel of one process writes a flag in shared memory, and the
    kernel of the other process reads it.
    """
    if "kernel" not in writer.arguments or "kernel" not in reader.arguments:
        # Kernels of two graphs may order their work, too.
        return "Launch" in writer.name and "Launch" in reader.name
    names = [
        call.process.kernels.get(call.arguments["kernel"]) for call in (writer, reader)
    ]
    return names[0] == names[1]


HANDLERS: dict[str, Handler] = {
    "cuStreamSynchronize": _synchronise,
    "cuStreamQuery": _synchronise,
    "cuCtxSynchronize": _synchronise,
    "cuLaunchKernel": _launch,
    "cuLaunchKernelEx": _launch,
    "cuLaunchCooperativeKernel": _launch,
    "cuGraphLaunch": _graph,
    **dict.fromkeys(
        (
            f"cuStream{verb}Value{bits}"
            for verb in ("Wait", "Write")
            for bits in (32, 64)
        ),
        _stream_value,
    ),
    **dict.fromkeys(
        (
            f"cuMemcpy{way}{when_}"
            for way in ("", "HtoD", "DtoH", "DtoD", "Peer", "2D", "3D")
            for when_ in ("", "Async")
        ),
        _copy,
    ),
    **dict.fromkeys(
        (f"cuMemsetD{bits}{when_}" for bits in (8, 16, 32) for when_ in ("", "Async")),
        _fill,
    ),
}
