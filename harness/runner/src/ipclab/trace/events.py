"""Events that processes share."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from ipclab.trace.files import Call, Process, when
from ipclab.trace.state import (
    CONTEXT_RECORDS,
    CONTEXT_WAITS,
    LEGACY,
    Handler,
    State,
    stream_of,
)
from ipclab.trace.things import EventOpening, Handle, SharedEvent, Space

INTERPROCESS = 4  # CU_EVENT_INTERPROCESS
NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING
INVALID_HANDLE = 400


def _create_event(state: State, space: Space, call: Call) -> None:
    if call.ok:
        pointer = call.arguments["phEvent"]
        event = SharedEvent(space.process, pointer, call.arguments["Flags"], call)
        space.events[pointer] = event
    elif call.arguments["Flags"] & (INTERPROCESS | NO_TIMING) == INTERPROCESS:
        state.found(
            "event-not-exportable",
            call,
            "an interprocess event that measures time cannot be created (error "
            f"{call.result})",
            row="LEVT-02",
        )


def _export_event(state: State, space: Space, call: Call) -> None:
    event = space.events.get(call.arguments["event"])
    state.concerns(call)
    if call.ok and isinstance(event, SharedEvent):
        event.exported = call
        state.story.events.append(event)
        state.concerns(event.made, event.recorded)
        state.export(Handle("event", space.process, event, call,
                            call.arguments["pHandle"]))  # fmt: skip
    elif not call.ok:
        if isinstance(event, SharedEvent) and not event.flags & INTERPROCESS:
            text = "an event without cudaEventInterprocess has no handle"
        else:
            text = f"cuIpcGetEventHandle of {_what_event(event)}"
        made = event.made if isinstance(event, SharedEvent) else None
        state.found(
            "event-not-exportable",
            call,
            f"{text} (error {call.result})",
            other=made,
        )


def _open_event(state: State, space: Space, call: Call) -> None:
    handle = state.by_key.get(call.arguments["handle"])
    event = handle.of if handle and isinstance(handle.of, SharedEvent) else None
    state.imported(call, handle)
    if event is not None and event.destroyed:
        rule = "event-destroyed-while-open"
        state.found(rule, call, "the event was destroyed before this open",
                   other=event.destroyed)  # fmt: skip
    elif not call.ok and handle is not None and handle.process is space.process:
        state.found(
            "opened-in-exporter",
            call,
            f"the process that exported the event opens it (error {call.result})",
            row="LEVT-05",
            other=handle.made,
        )
    elif not call.ok and event is None:
        state.found(
            "unknown-handle",
            call,
            f"{call.name} of bytes that no event's export in this trace returned "
            f"(error {call.result})",
            row="LEVT-04",
        )
    if call.ok:
        opening = EventOpening(space.process, event, call.arguments["phEvent"], call)
        space.events[opening.pointer] = opening
        if event is not None:
            event.openings.append(opening)


def _destroy_event(state: State, space: Space, call: Call) -> None:
    event = space.events.pop(call.arguments["hEvent"], None)
    if not call.ok or event is None:
        return
    event.destroyed = call
    if isinstance(event, EventOpening) or event.exported:
        state.concerns(call)
    if isinstance(event, SharedEvent):
        for opening in event.openings:
            if opening.destroyed is None and opening.process is not space.process:
                state.found(
                    "event-destroyed-while-open",
                    call,
                    f"the event is destroyed while {opening.process.name} has it open",
                    other=opening.opened,
                )


def _elapsed(state: State, space: Space, call: Call) -> None:
    if call.result != INVALID_HANDLE:
        return
    for name in ("hStart", "hEnd"):
        event = space.events.get(call.arguments[name])
        if isinstance(event, EventOpening):
            what, made = "an event that was opened from a handle", event.opened
        elif event is not None and event.flags & INTERPROCESS:
            what, made = "an event with cudaEventInterprocess", event.made
        else:
            continue
        state.found(
            "event-without-time",
            call,
            f"{call.name} of {what}, which has no time (error {call.result})",
            other=made,
        )
        return


def _record_event(state: State, space: Space, call: Call) -> None:
    event = _event(state, space, call)
    if not call.ok or event is None:
        return
    first = event.recorded is None
    event.recorded = call
    stream = stream_of(call)
    streams = space.pending if stream in LEGACY else {stream: ()}
    event.covers = [work for x in streams for work in space.pending.get(x, {}).values()]
    event.told = state.knowledge(space, call)
    event.waited.clear()
    for waiter, wait in event.early.items() if first else ():
        _waited_early(state, event, waiter, wait)


def _waited_early(
    state: State, event: SharedEvent, waiter: Process, wait: Call
) -> None:
    """Add a finding if a process waited for this event before its first record, and
    has already read what the record now covers.
    """
    stream = wait.arguments.get("hStream")  # None: the wait of a thread
    for work in event.covers:
        memory = work.memory
        reads = any(
            process is waiter
            and stream in (None, at)
            and wait.ended <= read.call.began < work.call.ended
            for (process, at), read in memory.reads.items()
        )
        if reads and work in memory.writes.values() and work.process is not waiter:
            state.found(
                "waits-before-record",
                wait,
                f"{wait.name} of an event that {event.owner.name} had not recorded "
                f"orders nothing: {waiter.name} has read {memory.name} before "
                f"{work.call.name} of {work.process.name}",
                other=event.recorded,
                once=(event, waiter),
            )


def _event(state: State, space: Space, call: Call) -> SharedEvent | None:
    """The event of a call: one object for all processes that share the event. None
    if its exporter is not in the trace.
    """
    event = space.events.get(call.arguments["hEvent"])
    if isinstance(event, EventOpening):
        state.concerns(call)
        return event.event
    if event is not None and event.exported:
        state.concerns(call)
    return event


def _wait_event(state: State, space: Space, call: Call) -> None:
    """All work before the event's record is ordered before the waiter's work."""
    event = _event(state, space, call)
    if not call.ok or event is None:
        return
    if event.recorded is None and event.owner is not space.process:
        event.early[space.process] = call
    host = call.name in ("cuEventSynchronize", "cuEventQuery")
    event.waited.add(space.process)
    for work in event.covers:
        work.ordered_for.add(space.process)
        if host:
            work.done.setdefault(space.process, when(call))
            work.memory.uses.append(call)
    if host:
        state.learns(space, event.told)


def _what_event(event: SharedEvent | EventOpening | None) -> str:
    if isinstance(event, EventOpening):
        return "an event that was opened from a handle"
    return "an event" if event else "something that is not an event"


HANDLERS: dict[str, Handler] = {
    "cuEventCreate": _create_event,
    "cuEventDestroy": _destroy_event,
    "cuIpcGetEventHandle": _export_event,
    "cuIpcOpenEventHandle": _open_event,
    "cuEventElapsedTime": _elapsed,
    "cuEventRecord": _record_event,
    "cuEventRecordWithFlags": _record_event,
    **dict.fromkeys(CONTEXT_RECORDS, _record_event),
    "cuStreamWaitEvent": _wait_event,
    **dict.fromkeys(CONTEXT_WAITS, _wait_event),
    "cuEventSynchronize": _wait_event,
    "cuEventQuery": _wait_event,
}
