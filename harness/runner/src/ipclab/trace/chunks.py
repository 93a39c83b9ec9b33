"""Memory of cuMemCreate: exported, imported, mapped."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from ipclab.trace import descriptors
from ipclab.trace.files import Call
from ipclab.trace.state import Handler, State
from ipclab.trace.things import Chunk, Mapping, Memory, Opening, Space, size_text


def _create_chunk(state: State, space: Space, call: Call) -> None:
    if not call.ok:
        return
    memory = state.new_memory(space, call, "chunk", 0, call.arguments["size"])
    memory.handles = (call.arguments["prop"] or {}).get("handles", 0)
    space.chunks[call.arguments["handle"]] = Chunk(space.process, memory, None)


def _export_chunk(state: State, space: Space, call: Call) -> None:
    a = call.arguments
    chunk = space.chunks.get(a["handle"])
    state.concerns(call)
    if not call.ok:
        state.found(
            "not-exportable",
            call,
            f"{call.name} of memory that was not created for handle type "
            f"{a['handleType']} (error {call.result})",
            row="VMM-09",
            instead="name the handle type when the memory is made, in "
            "requestedHandleTypes of CUmemAllocationProp; of a pointer, "
            "CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES says which types it has",
            other=chunk.memory.made if chunk and chunk.memory else None,
        )
    elif chunk and chunk.memory:
        state.concerns(chunk.memory.made)
        state.export(
            descriptors.shared_handle(
                "chunk", space, chunk.memory, call, a["shareableHandle"]
            )
        )


def _import_chunk(state: State, space: Space, call: Call) -> None:
    handle = state.found_handle(space, call.arguments["osHandle"])
    state.imported(call, handle)
    if not call.ok:
        descriptors.refused_import(state, space, call, handle, "chunk", "VMM-11")
        return
    memory = handle.of if handle and isinstance(handle.of, Memory) else None
    opening = state.opened(space, call, memory, handle, "chunk", 0)
    pointer = call.arguments["handle"]
    space.chunks[pointer] = Chunk(space.process, memory, opening)


def _release_chunk(state: State, space: Space, call: Call) -> None:
    chunk = space.chunks.get(call.arguments["handle"])
    if not call.ok or chunk is None:
        return
    chunk.references -= 1
    if chunk.references:
        return
    del space.chunks[call.arguments["handle"]]
    if chunk.opening is not None:
        _released(state, chunk.opening, call)
    elif chunk.memory is not None:
        chunk.memory.freed = call


def _released(state: State, opening: Opening, call: Call) -> None:
    opening.closes.append(call)
    state.concerns(call)


def _retain_chunk(state: State, space: Space, call: Call) -> None:
    chunk = space.chunks.get(call.arguments["handle"] or 0)
    if call.ok and chunk is not None:
        chunk.references += 1


def _map_chunk(state: State, space: Space, call: Call) -> None:
    a = call.arguments
    chunk = space.chunks.get(a["handle"])
    if chunk is None:
        return
    memory = chunk.memory
    if memory and (a["offset"] or a["size"] != memory.size) and not call.ok:
        at = f" at offset {a['offset']}" if a["offset"] else ""
        state.found(
            "mapped-with-another-size",
            call,
            f"{call.name} of {size_text(a['size'])}{at} of {memory.name} is refused "
            f"(error {call.result})",
            other=memory.made,
        )
    if not call.ok:
        return
    mapping = Mapping(space.process, chunk, a["ptr"], a["size"], call)
    space.mappings.append(mapping)
    state.story.mappings.append(mapping)
    state.place(space, mapping)


def _set_access(state: State, space: Space, call: Call) -> None:
    a = call.arguments
    if not call.ok:
        return
    for item in space.addresses.inside(a["ptr"], a["size"]):
        if isinstance(item, Mapping):
            item.access = call
            if a["count"] == 1 and (wanted := a["desc"]) and item.rights is not None:
                item.rights[wanted["device"]] = wanted["flags"]
            else:
                item.rights = None


def _unmap_chunk(state: State, space: Space, call: Call) -> None:
    a = call.arguments
    if not call.ok:
        return
    for item in space.addresses.inside(a["ptr"], a["size"]):
        if isinstance(item, Mapping):
            item.unmapped = call
            space.addresses.remove(item.address)


HANDLERS: dict[str, Handler] = {
    "cuMemCreate": _create_chunk,
    "cuMemRelease": _release_chunk,
    "cuMemRetainAllocationHandle": _retain_chunk,
    "cuMemMap": _map_chunk,
    "cuMemUnmap": _unmap_chunk,
    "cuMemSetAccess": _set_access,
    "cuMemExportToShareableHandle": _export_chunk,
    "cuMemImportFromShareableHandle": _import_chunk,
}
