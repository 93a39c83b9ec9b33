"""Dma-bufs, and external memory: descriptors that the driver takes over."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from ipclab.trace import descriptors
from ipclab.trace.files import Call
from ipclab.trace.state import Handler, State
from ipclab.trace.things import Chunk, Handle, Mapping, Memory, Space, memory_of


def _export_range(state: State, space: Space, call: Call) -> None:
    a = call.arguments
    memory = memory_of(space.addresses.holding(a["dptr"]))
    state.concerns(call)
    if call.ok and memory is not None:
        state.concerns(memory.made)
        state.export(
            Handle("dma-buf", space.process, memory, call, descriptor=a["handle"])
        )


def _import_external(state: State, space: Space, call: Call) -> None:
    a = call.arguments
    handle = state.found_handle(space, a["handle"])
    state.imported(call, handle)
    if not call.ok:
        descriptors.refused_import(state, space, call, handle, "chunk", "VMM-11")
        return
    if a["handle"]:
        space.taken[a["handle"]["fd"]] = call
        space.descriptors.pop(a["handle"]["fd"], None)
    if handle is not None:
        handle.closes.append(call)
    memory = handle.of if handle and isinstance(handle.of, Memory) else None
    opening = state.opened(space, call, memory, handle, "chunk", 0)
    space.external[a["extMem_out"]] = Chunk(space.process, memory, opening)


def _map_buffer(state: State, space: Space, call: Call) -> None:
    a = call.arguments
    chunk = space.external.get(a["extMem"])
    if not call.ok or chunk is None:
        return
    # No call gives access to a buffer: the mapping does.
    mapping = Mapping(
        space.process, chunk, a["devPtr"], a["size"], call, access=call, rights=None
    )
    space.mappings.append(mapping)
    state.story.mappings.append(mapping)
    state.place(space, mapping)


def _destroy_external(state: State, space: Space, call: Call) -> None:
    chunk = space.external.pop(call.arguments["extMem"], None) if call.ok else None
    if chunk is not None and chunk.opening is not None:
        chunk.opening.closes.append(call)
        state.concerns(call)


HANDLERS: dict[str, Handler] = {
    "cuMemGetHandleForAddressRange": _export_range,
    "cuImportExternalMemory": _import_external,
    "cuExternalMemoryGetMappedBuffer": _map_buffer,
    "cuDestroyExternalMemory": _destroy_external,
}
