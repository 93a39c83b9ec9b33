"""Memory of cudaMalloc and of pools: allocated, exported, opened, closed, freed. And
the contexts that it belongs to."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import itertools

from ipclab.trace import uses
from ipclab.trace.files import Call, Entry, when
from ipclab.trace.findings import INSTEAD, LEFT_BEHIND
from ipclab.trace.state import Handler, State
from ipclab.trace.things import (
    Handle,
    Memory,
    Opening,
    Pinned,
    Space,
    kind_of,
    range_text,
)

BLOCK = 2 << 20  # the blocks that cudaMalloc takes small allocations from
LAZY = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
SAME_BYTES = 4  # at the beginning of two handles, if one was made from the other
NO_PATH = (205, 217)  # map failed, peer access unsupported


def _alloc(state: State, space: Space, call: Call) -> None:
    if call.ok:
        a = call.arguments
        state.new_memory(space, call, "malloc", a["dptr"], a["bytesize"])


def _alloc_pitch(state: State, space: Space, call: Call) -> None:
    if call.ok:
        a = call.arguments
        size = a["pPitch"] * a["Height"]
        state.new_memory(space, call, "malloc", a["dptr"], size)


def _alloc_managed(state: State, space: Space, call: Call) -> None:
    if call.ok:
        a = call.arguments
        state.new_memory(space, call, "managed", a["dptr"], a["bytesize"])


def _free(state: State, space: Space, call: Call) -> None:
    item = space.addresses.at(call.arguments["dptr"])
    if isinstance(item, Opening) and item.kind == "memory":
        state.found(
            "import-freed",
            call,
            f"{call.name} of {item.name}, which was opened from a handle",
            other=item.opens[0],
        )
        return
    gone = space.gone.at(call.arguments["dptr"])
    if not call.ok and isinstance(gone, Opening):
        state.found(
            "closed-too-often",
            call,
            f"{call.name} of {gone.name}, which this process has already given back "
            f"(error {call.result})",
            row="POOL-15" if gone.kind == "pointer" else "",
            instead="free an imported pointer once" if gone.kind == "pointer" else "",
            other=gone.closes[-1],
        )
    if not call.ok or item is None:
        return
    if call.name == "cuMemFree":
        uses.synchronised(state, space, call)
    if isinstance(item, Opening):
        closed(state, space, item, call)
    elif isinstance(item, Memory):
        freed(state, space, item, call)
    else:  # a buffer of external memory
        item.unmapped = call
        space.addresses.remove(item.address)


def freed(state: State, space: Space, memory: Memory, entry: Entry) -> None:
    """The owner has freed memory. Add findings for those who may still use it."""
    memory.freed = entry
    space.addresses.remove(memory.address)
    if memory.exports:
        state.concerns(entry)
    for opening in memory.openings:
        if opening.process is space.process:
            continue
        if opening.open:
            early = memory.kind == "pool"
            state.found(
                "pool-pointer-freed-early" if early else "freed-while-open",
                entry,
                f"{memory.name} is freed while {opening.process.name} has it open",
                other=opening.opens[0],
            )
        elif opening.kind != "chunk" and not state.knows(
            space, opening.process, when(opening.closes[-1])
        ):
            pointer = opening.kind == "pointer"
            state.found(
                "pool-pointer-freed-early" if pointer else "freed-while-open",
                entry,
                f"{memory.name} is freed, and nothing has told "
                f"{space.process.name} that {opening.process.name} has "
                f"{'freed' if pointer else 'closed'} it",
                other=opening.closes[-1],
            )


def closed(state: State, space: Space, opening: Opening, entry: Entry) -> None:
    """Memory of another process was closed once, or its imported pointer freed."""
    opening.closes.append(entry)
    state.concerns(entry)
    # A pool's pointer has no reference count: the first free unmaps it.
    if opening.kind == "pointer":
        missing = len(opening.opens) - len(opening.closes)
        opening.closes += [entry] * missing
    if not opening.open:
        space.addresses.remove(opening.address)
        space.gone.add(opening)


def _export_memory(state: State, space: Space, call: Call) -> None:
    address = call.arguments["dptr"]
    item = space.addresses.holding(address)
    state.concerns(call)
    if not call.ok:
        pinned = item is None and space.pinned.holding(address)
        what = "page-locked memory of the host" if pinned else range_text(item)
        state.found(
            "not-exportable",
            call,
            f"cuIpcGetMemHandle of {what} is refused (error {call.result})",
            row="MNGD-01" if what == "managed memory" else "",
            instead=INSTEAD[kind_of(item)] + LEFT_BEHIND,
        )
        return
    if not isinstance(item, Memory):
        return
    state.export(Handle("memory", space.process, item, call,
                        call.arguments["pHandle"]))  # fmt: skip
    state.concerns(item.made)
    if address != item.address:
        item.inside.append((call, address - item.address))
    if item.size % BLOCK:
        state.found(
            "shared-with-neighbours",
            call,
            f"{item.name} is not a multiple of 2 MiB: its importer can read and "
            "write everything else in its block",
            once=(item,),
        )


def _open_memory(state: State, space: Space, call: Call) -> None:
    a = call.arguments
    handle = state.by_key.get(a["handle"])
    state.imported(call, handle)
    memory = handle.of if handle and isinstance(handle.of, Memory) else None
    if a["Flags"] != LAZY:
        state.found("wrong-flags", call, f"{call.name} with flags {a['Flags']}")
    elif not call.ok:
        _refused_open(state, space, call, handle, memory)
    elif memory is not None and memory.freed:
        state.found(
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
            state.opened(space, call, memory, handle, "memory", a["pdptr"])


def _refused_open(
    state: State, space: Space, call: Call, handle: Handle | None, memory: Memory | None
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
        state.found(
            "handle-of-zeros",
            call,
            f"{call.name} of a handle of zeros (error {call.result}): its exporter "
            "sent fewer handles than this process opens",
        )
    elif handle is None or memory is None:
        changed = _changed(state, call.arguments["handle"])
        state.found(
            "unknown-handle",
            call,
            f"{call.name} of bytes that no export in this trace returned "
            f"(error {call.result}){changed}",
            instead="send all 64 bytes as bytes, never as text: text ends at the first "
            "zero byte, and its length may change"
            if changed
            else "",
        )
    elif handle.process is space.process:
        state.found(
            "opened-in-exporter",
            call,
            f"the process that exported {memory.name} opens it (error {call.result})",
            other=handle.made,
        )
    elif handle.process.ended < call.ended:
        state.found(
            "handle-of-ended-process",
            call,
            f"{handle.process.name}, which exported {memory.name}, has ended "
            f"({handle.process.how})",
            other=handle.made,
        )
    elif memory.freed:
        state.found(
            "stale-handle",
            call,
            f"{memory.name} was freed before this open (error {call.result})",
            other=memory.freed,
        )
    elif elsewhere:
        state.found(
            "second-context",
            call,
            f"{memory.name} is open in another context of this process "
            f"(error {call.result})",
            other=elsewhere[0].opens[0],
        )
    elif call.result in NO_PATH:
        _no_path(state, space, call, memory)


def _changed(state: State, given: str) -> str:
    """From where on the bytes of a handle differ from those that an export returned,
    in words; "" if not even the first bytes are the same.
    """
    best, of = 0, ""
    for key, handle in state.by_key.items():
        pairs = zip(bytes.fromhex(key), bytes.fromhex(given), strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda x: x[0] == x[1], pairs))
        if handle.kind == "memory" and same > best:
            best, of = same, handle.of_what
    if best < SAME_BYTES:
        return ""
    zeros = not given[2 * best :].strip("0")
    rest = "the others are zero" if zeros else "the others differ"
    return f"; its first {best} bytes are those of the handle of {of}, and {rest}"


def _no_path(state: State, space: Space, call: Call, memory: Memory) -> None:
    """Add a finding if memory of another device could not be opened."""
    here = space.device(call)
    there = state.spaces[memory.owner].device(memory.made)
    one_numbering = space.process.visible == memory.owner.visible
    if here is None or there is None or (one_numbering and here == there):
        return
    state.found(
        "no-path-to-owner",
        call,
        f"{memory.name} is on device {there} of {memory.owner.name}, and device "
        f"{here} of {space.process.name} cannot map it (error {call.result})",
        other=memory.made,
    )


def tell_inside(state: State, memory: Memory) -> None:
    """Add a finding for each export of a pointer into the middle, unless an importer
    has used the memory so far from its base: then it knows the offset.
    """
    for call, offset in memory.inside:
        if memory.reached < offset:
            state.found(
                "interior-pointer",
                call,
                f"the handle of {memory.name} + {offset} opens at the base: the offset "
                "is lost",
            )


def _pin(state: State, space: Space, call: Call) -> None:
    a = call.arguments
    if call.ok and (address := a["pp"] if "pp" in a else a["p"]):
        space.pinned.add(Pinned(address, a["bytesize"]))


def _unpin(state: State, space: Space, call: Call) -> None:
    if call.ok:
        space.pinned.remove(call.arguments["p"])


def _close_memory(state: State, space: Space, call: Call) -> None:
    address = call.arguments["dptr"]
    item = space.addresses.at(address)
    state.concerns(call)
    if call.ok:
        if isinstance(item, Opening):
            closed(state, space, item, call)
        return
    gone = space.gone.at(address)
    if isinstance(gone, Opening) and (others := gone.taken_from(call.thread)):
        state.found(
            "closed-by-another-owner",
            call,
            f"{gone.name} is no longer open here (error {call.result}): {others}",
            other=gone.closes[-1],
        )
    elif isinstance(gone, Opening):
        state.found(
            "closed-too-often",
            call,
            f"{gone.name} is closed once more than it was opened (error {call.result})",
            other=gone.closes[-1],
        )
    elif not isinstance(item, Opening):
        state.found(
            "closed-not-opened",
            call,
            f"cuIpcCloseMemHandle of {range_text(item)} (error {call.result})",
        )


def _retain_context(state: State, space: Space, call: Call) -> None:
    if call.ok:
        device, context = call.arguments["dev"], call.arguments["pctx"]
        space.primary[device] = context
        space.devices[context] = device


def _create_context(state: State, space: Space, call: Call) -> None:
    if call.ok:
        space.devices[call.arguments["pctx"]] = call.arguments["dev"]


def _peer_access(state: State, space: Space, call: Call) -> None:
    device, other = space.device(call), call.arguments["peerContext"]
    if call.ok and device is not None and other in space.devices:
        pair = device, space.devices[other]
        if call.name == "cuCtxEnablePeerAccess":
            space.peers.add(pair)
        else:
            space.peers.discard(pair)


def _destroy_context(state: State, space: Space, call: Call) -> None:
    if not call.ok:
        return
    pointer = call.arguments.get("ctx")
    if pointer is None:
        pointer = space.primary.get(call.arguments["dev"])
    numbers = {n for n, p in space.process.contexts.items() if p == pointer}
    for opening in list(space.openings):
        if opening.kind == "memory" and opening.open and opening.context in numbers:
            state.found(
                "context-destroyed",
                call,
                f"{opening.name} is still open in the context that {call.name} ends",
                other=opening.opens[0],
            )
            missing = len(opening.opens) - len(opening.closes)
            for _ in range(missing):
                closed(state, space, opening, call)
    for memory in state.story.memories:
        if (
            memory.owner is space.process
            and memory.freed is None
            and memory.kind == "malloc"
            and memory.made.context in numbers
        ):
            freed(state, space, memory, call)


HANDLERS: dict[str, Handler] = {
    "cuMemAlloc": _alloc,
    "cuMemAllocPitch": _alloc_pitch,
    "cuMemAllocManaged": _alloc_managed,
    "cuMemFree": _free,
    "cuMemFreeAsync": _free,
    **dict.fromkeys(("cuMemAllocHost", "cuMemHostAlloc", "cuMemHostRegister"), _pin),
    **dict.fromkeys(("cuMemFreeHost", "cuMemHostUnregister"), _unpin),
    "cuIpcGetMemHandle": _export_memory,
    "cuIpcOpenMemHandle": _open_memory,
    "cuIpcCloseMemHandle": _close_memory,
    "cuDevicePrimaryCtxRetain": _retain_context,
    "cuCtxCreate": _create_context,
    "cuCtxEnablePeerAccess": _peer_access,
    "cuCtxDisablePeerAccess": _peer_access,
    "cuDevicePrimaryCtxReset": _destroy_context,
    "cuCtxDestroy": _destroy_context,
}
