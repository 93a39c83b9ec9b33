"""Memory pools and their pointers."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from ipclab.trace import descriptors
from ipclab.trace.files import Call
from ipclab.trace.state import Handler, State
from ipclab.trace.things import Handle, Memory, Opening, Pool, Space, range_text


def _create_pool(state: State, space: Space, call: Call) -> None:
    if call.ok:
        a = call.arguments
        handles = (a["poolProps"] or {}).get("handles", 0)
        pool = Pool(space.process, a["pool"], handles, call)
        pool.device = (a["poolProps"] or {}).get("device")
        space.pools[a["pool"]] = pool


def _default_pool(state: State, space: Space, call: Call) -> None:
    pointer = call.arguments["pool_out"]
    if call.ok and pointer not in space.pools:
        space.pools[pointer] = Pool(space.process, pointer, 0, call, default=True)


def _alloc_pool(state: State, space: Space, call: Call) -> None:
    a = call.arguments
    pool = space.pools.get(a.get("pool", 0))
    if call.ok:
        memory = state.new_memory(space, call, "pool", a["dptr"], a["bytesize"])
        memory.pool = pool
    elif pool is not None and pool.imported:
        state.found("allocated-from-import", call, f"{call.name} from an imported pool")


def _export_pool(state: State, space: Space, call: Call) -> None:
    a = call.arguments
    pool = space.pools.get(a["pool"])
    state.concerns(call)
    if call.ok and pool is not None:
        state.concerns(pool.made)
        state.export(
            descriptors.shared_handle("pool", space, pool, call, a["handle_out"])
        )
    elif not call.ok:
        what, row = f"a pool without handle type {a['handleType']}", "POOL-02"
        if pool is None or pool.default:  # not created, so it is the device's
            what, row = "the default pool", "POOL-04"
        elif pool.imported:
            what, row = "an imported pool", "IMPL-10"
        state.found(
            "pool-not-exportable",
            call,
            f"{call.name} of {what} (error {call.result})",
            row=row,
        )


def _import_pool(state: State, space: Space, call: Call) -> None:
    handle = state.found_handle(space, call.arguments["handle"])
    state.imported(call, handle)
    if not call.ok:
        descriptors.refused_import(state, space, call, handle, "pool", "IMPL-09")
        return
    original = handle.of if handle and isinstance(handle.of, Pool) else None
    pointer = call.arguments["pool_out"]
    pool = Pool(space.process, pointer, 0, call, original, imported=True)
    if original and original.process.visible == space.process.visible:
        pool.device = original.device  # the numbers of both processes agree
    space.pools[pointer] = pool


def _set_access(state: State, space: Space, call: Call) -> None:
    a = call.arguments
    pool, wanted = space.pools.get(a["pool"]), a["map"]
    if call.ok and pool is not None and wanted and a["count"] == 1:
        pool.rights[wanted["device"]] = wanted["flags"]
    elif call.ok and pool is not None:
        pool.device = None  # not all of its rights are in the trace


def _destroy_pool(state: State, space: Space, call: Call) -> None:
    pool = space.pools.get(call.arguments["pool"])
    if call.ok and pool is not None:
        pool.destroyed = call
        if pool.imported:
            state.concerns(call)
        del space.pools[call.arguments["pool"]]


def _export_pointer(state: State, space: Space, call: Call) -> None:
    item = space.addresses.holding(call.arguments["ptr"])
    state.concerns(call)
    if call.ok and isinstance(item, Memory):
        state.concerns(item.made)
        state.export(Handle("pointer", space.process, item, call,
                            call.arguments["shareData_out"]))  # fmt: skip
    elif not call.ok:
        state.found(
            "not-exportable",
            call,
            f"{call.name} of {range_text(item)} (error {call.result})",
            row="POOL-09",
            instead="export the pointer that the allocation from the exported pool "
            "returned, before it is freed",
        )


def _import_pointer(state: State, space: Space, call: Call) -> None:
    key = call.arguments["shareData"]
    handle = state.by_key.get(key) if key else None
    memory = handle.of if handle and isinstance(handle.of, Memory) else None
    if memory is not None and memory.freed is not None:
        state.found(
            "pool-pointer-freed-early",
            call,
            f"{memory.name} is imported after {memory.owner.name} has freed it",
            other=memory.freed,
        )
    if not call.ok:
        state.concerns(call)
        return
    state.imported(call, handle)
    address = call.arguments["ptr_out"]
    item = space.addresses.at(address)
    if isinstance(item, Opening) and item.open and item.memory is memory:
        state.found(
            "pool-pointer-imported-twice",
            call,
            f"{item.name} is imported a second time: the first free unmaps both",
            other=item.opens[0],
        )
        item.opens.append(call)
        return
    state.opened(space, call, memory, handle, "pointer", address)


HANDLERS: dict[str, Handler] = {
    "cuMemAllocAsync": _alloc_pool,
    "cuMemAllocFromPoolAsync": _alloc_pool,
    "cuMemPoolCreate": _create_pool,
    "cuMemPoolDestroy": _destroy_pool,
    "cuMemPoolSetAccess": _set_access,
    "cuDeviceGetDefaultMemPool": _default_pool,
    "cuMemPoolExportToShareableHandle": _export_pool,
    "cuMemPoolImportFromShareableHandle": _import_pool,
    "cuMemPoolExportPointer": _export_pointer,
    "cuMemPoolImportPointer": _import_pointer,
}
