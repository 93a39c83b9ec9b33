"""Messages between processes, and the descriptors that they carry."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections import deque
from typing import Any

from ipclab.trace.files import Call, Event
from ipclab.trace.state import EventHandler, Message, Sent, State
from ipclab.trace.things import Handle, Memory, Pool, Space

# Which call imports a descriptor of each kind.
IMPORTED_BY = {
    "chunk": "import memory of cuMemCreate by cuMemImportFromShareableHandle",
    "pool": "import a pool by cudaMemPoolImportFromShareableHandle",
    "dma-buf": "a dma-buf is for mmap and for other drivers; between CUDA processes "
    "export memory of cuMemCreate by cuMemExportToShareableHandle",
}


def _send(state: State, space: Space, event: Event) -> None:
    handles = [
        state.handle_behind(space, x) if x else None for x in event.facts["descriptors"]
    ]
    key = _message_key(event)
    sent = Sent(event, handles, state.knowledge(space, event))
    state.sent.setdefault(key, deque()).append(sent)


def _receive(state: State, space: Space, event: Event) -> None:
    waiting = state.sent.get(_message_key(event), deque())
    if event.facts.get("cut"):  # fewer descriptors than were sent
        start = _message_key(event).rstrip("]")
        waiting = next(
            (x for key, x in state.sent.items() if x and key.startswith(start)), waiting
        )
    for index, sent in enumerate(waiting):
        if sent.event.process is event.process:
            continue
        del waiting[index]
        state.story.messages.append(Message(sent.event, event))
        state.concerns(sent.event, event)
        state.learns(space, sent.told)
        lost = len(sent.handles) - len(event.facts["descriptors"])
        if event.facts.get("cut") and lost > 0:
            space.cut = lost, len(sent.handles)
        for descriptor, given in zip(
            event.facts["descriptors"], sent.event.facts["descriptors"], strict=False
        ):
            early = given and state.spaces[sent.event.process].closed.get(given["fd"])
            if descriptor and early:
                space.early[descriptor["fd"]] = early
        for descriptor, handle in zip(
            event.facts["descriptors"], sent.handles, strict=False
        ):
            if descriptor:
                _got(state, space, handle, descriptor)
        return


def _got(
    state: State, space: Space, handle: Handle | None, descriptor: dict[str, int]
) -> None:
    """Note that a process has received a copy of a descriptor."""
    space.descriptors[descriptor["fd"]] = (handle, descriptor)
    space.taken.pop(descriptor["fd"], None)
    if handle is not None:
        handle.copies += 1


def _take(state: State, space: Space, event: Event) -> None:
    owners = [
        x for x in state.spaces.values() if x.process.number == event.facts["process"]
    ]
    descriptor = event.facts["descriptor"]
    if owners and descriptor:
        source = owners[-1].descriptors.get(event.facts["from"])
        handle = source[0] if source else None
        _got(state, space, handle, descriptor)
        state.concerns(event)


def _used_after_import(
    state: State, space: Space, entry: Call | Event, what: str, number: int
) -> bool:
    """Add a finding if external memory has taken over the descriptor with a number."""
    taken = space.taken.get(number)
    if taken is not None:
        state.found(
            "descriptor-taken-over",
            entry,
            f"{what} of descriptor {number}, which an import of external memory has "
            "taken over",
            other=taken,
        )
    return taken is not None


def _close(state: State, space: Space, event: Event) -> None:
    if event.facts.get("taken"):
        number = event.facts["descriptor"]["fd"]
        _used_after_import(state, space, event, "close", number)
        return
    handle = state.handle_behind(space, event.facts["descriptor"])
    if handle is not None:
        handle.closes.append(event)
        state.concerns(event)
        if handle.process is space.process:
            space.closed[event.facts["descriptor"]["fd"]] = handle
    space.descriptors.pop(event.facts["descriptor"]["fd"], None)


def _left_open(state: State, space: Space, event: Event) -> None:
    if state.failed(event.process):
        return
    for left in event.facts["open"]:
        handle = state.handle_behind(space, left)
        if handle is not None:
            state.found(
                "descriptor-left-open",
                event,
                f"descriptor {left['fd']} of {handle.of_what} is still open at the end",
                row="POOL-24" if handle.kind == "pool" else "",
                other=handle.made,
            )


def shared_handle(
    kind: str, space: Space, of: Memory | Pool, call: Call, value: Any
) -> Handle:
    """The Handle for an exported descriptor or, for fabric, exported bytes."""
    if isinstance(value, str):
        return Handle(kind, space.process, of, call, key=value)
    return Handle(kind, space.process, of, call, descriptor=value)


def refused_import(
    state: State, space: Space, call: Call, handle: Handle | None, kind: str, row: str
) -> None:
    """Add a finding if the descriptor of a refused import belongs to another thing."""
    given = call.arguments.get("osHandle", call.arguments.get("handle"))
    if isinstance(given, dict) and _used_after_import(
        state, space, call, call.name, given["fd"]
    ):
        return
    if handle is not None and handle.kind == kind:
        return
    early = space.early.get(given["fd"]) if isinstance(given, dict) else None
    text, instead = "a descriptor of no export", ""
    if handle is not None:
        text, instead = f"a descriptor of {handle.of_what}", IMPORTED_BY[handle.kind]
    elif early is not None:
        text += (
            f": {early.process.name} had closed its descriptor of {early.of_what} "
            "before it sent this number, which stood for another file then"
        )
        instead = "send the descriptor first, and close it then"
    elif given is None:
        text = "a number that is no open descriptor here"
        if space.cut:
            lost, sent = space.cut
            text += (
                f": this process has received a message that was cut, with {lost} of "
                f"{sent} descriptors missing"
            )
            instead = (
                "give recvmsg a control buffer of CMSG_SPACE for all descriptors of a "
                "message, and check msg_flags for MSG_CTRUNC"
            )
    state.found(
        "bad-descriptor",
        call,
        f"{call.name} of {text} (error {call.result})",
        row="VMM-12" if handle is not None else row,
        instead=instead,
        other=early.made if early else None,
    )


def _message_key(event: Event) -> str:
    """The part of a message that is the same at both ends."""
    files = [
        (x["device"], x["inode"]) if x else None for x in event.facts["descriptors"]
    ]
    return f"{event.facts['size']} {event.facts['bytes']} {files}"


EVENTS: dict[str, EventHandler] = {
    "send": _send,
    "receive": _receive,
    "takes": _take,
    "close": _close,
    "exit": _left_open,
}
