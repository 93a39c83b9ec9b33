"""What a process still has at its end, counted from the calls of its trace.

The rules of ipclab.trace concern only what processes share. This module counts
everything that a process has made, opened, mapped or imported, shared or not.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections import Counter

from ipclab.trace.files import Call, Event, Process, Trace
from ipclab.trace.story import FAULTS

# A call that makes something: the kind of thing, and the argument that names it.
# Several opens, or several handles of memory, can have the same value. Each of them
# must be ended.
MAKES = {
    "cuMemAlloc": ("device memory", "dptr"),
    "cuMemAllocPitch": ("device memory", "dptr"),
    "cuMemAllocManaged": ("device memory", "dptr"),
    "cuMemAllocAsync": ("device memory", "dptr"),
    "cuMemAllocFromPoolAsync": ("device memory", "dptr"),
    "cuMemPoolImportPointer": ("device memory", "ptr_out"),
    "cuIpcOpenMemHandle": ("opened handle", "pdptr"),
    "cuMemCreate": ("memory handle", "handle"),
    "cuMemImportFromShareableHandle": ("memory handle", "handle"),
    "cuExternalMemoryGetMappedBuffer": ("device memory", "devPtr"),
    "cuMemRetainAllocationHandle": ("memory handle", "handle"),
    "cuMemAddressReserve": ("addresses", "ptr"),
    "cuMemMap": ("mapping", "ptr"),
    "cuMemPoolCreate": ("pool", "pool"),
    "cuMemPoolImportFromShareableHandle": ("pool", "pool_out"),
    "cuLogicalEndpointIdReserve": ("endpoint number", "baseLeId"),
    "cuLogicalEndpointCreate": ("endpoint", "leId"),
    "cuLogicalEndpointImport": ("endpoint", "leId"),
    "cuEventCreate": ("event", "phEvent"),
    "cuIpcOpenEventHandle": ("event", "phEvent"),
    "cuStreamCreate": ("stream", "phStream"),
    "cuStreamCreateWithPriority": ("stream", "phStream"),
    "cuCtxCreate": ("context", "pctx"),
}
ENDS = {
    "cuMemFree": ("device memory", "dptr"),
    "cuMemFreeAsync": ("device memory", "dptr"),
    "cuIpcCloseMemHandle": ("opened handle", "dptr"),
    "cuMemRelease": ("memory handle", "handle"),
    "cuMemAddressFree": ("addresses", "ptr"),
    "cuMemUnmap": ("mapping", "ptr"),
    "cuMemPoolDestroy": ("pool", "pool"),
    "cuLogicalEndpointIdRelease": ("endpoint number", "baseLeId"),
    "cuLogicalEndpointDestroy": ("endpoint", "leId"),
    "cuEventDestroy": ("event", "hEvent"),
    "cuStreamDestroy": ("stream", "hStream"),
    "cuCtxDestroy": ("context", "ctx"),
}
KINDS = {kind for kind, _ in MAKES.values()} | {"descriptor"}


def left(trace: Trace) -> dict[Process, Counter[str]]:
    """How many objects of each kind each process has at its end.

    Has only processes that have called CUDA; their Counters may be empty. A descriptor
    counts if an export has made it or a message has brought it, and if it is still open
    when the process exits.
    """
    had: dict[Process, Counter[tuple[str, int]]] = {
        process: Counter() for process in trace.processes if process.recorder
    }
    found: dict[Process, Counter[str]] = {process: Counter() for process in had}
    for entry in trace.entries:
        if entry.process not in had:
            continue
        if isinstance(entry, Event):
            if entry.what == "exit" and entry.facts["open"]:
                found[entry.process]["descriptor"] += len(entry.facts["open"])
        elif entry.ok:
            _count(had[entry.process], entry)
    for process, things in had.items():
        for (kind, _), number in (+things).items():
            found[process][kind] += number
    return found


def lost(trace: Trace) -> set[Process]:
    """The processes that cannot release anything: killed, or after a fault."""
    faulted = {
        entry.process
        for entry in trace.entries
        if isinstance(entry, Call) and entry.result in FAULTS
    }
    return faulted | {process for process in trace.processes if process.signal}


def _count(things: Counter[tuple[str, int]], call: Call) -> None:
    if call.name in MAKES:
        kind, name = MAKES[call.name]
        things[kind, call.arguments[name]] += 1
    elif call.name in ENDS:
        kind, name = ENDS[call.name]
        thing = kind, call.arguments[name]
        things[thing] = max(0, things[thing] - 1)
