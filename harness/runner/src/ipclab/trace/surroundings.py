"""The rules about what surrounds shared memory: threads, devices, processes that have
ended, and what grows without end."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import errno
import signal
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from ipclab.trace.files import Call, Entry, Event, Process, Trace
from ipclab.trace.things import (
    Addresses,
    Mapping,
    Opening,
    Range,
    Space,
    memory_of,
    size_text,
)
from ipclab.trace.waiting import told

INVALID_DEVICE = 101
INVALID_CONTEXT = 201
ILLEGAL_ADDRESS = 700
NOT_PERMITTED = 800
# Calls that are refused with 800 for want of a permission.
NEED_PERMISSION = (
    "cuMemCreate",
    "cuMemExport",
    "cuMemImport",
    "cuMemPool",
    "cuLogical",
)
NO_ROOM = (2, 205, 304)  # what drivers answer if a resource has come to its end
INTERPROCESS = 4  # CU_EVENT_INTERPROCESS
HOST_NUMA = 3  # CU_MEM_LOCATION_TYPE_HOST_NUMA
MANY_EVENTS = 3500  # driver 580 has room for 4,096 in a process
MANY_IMPORTS = 1000
IMPORTS = {"cuIpcOpenMemHandle": "pdptr", "cuMemImportFromShareableHandle": "handle"}
RELEASES = {"cuIpcCloseMemHandle": "dptr", "cuMemRelease": "handle"}
SOME_EVENTS = 500  # with so many, a refusal is no accident
LAST_LAUNCHES = 16
BY_FAULT = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)

READ, READ_AND_WRITE = 1, 3  # CUmemAccess_flags
Found = Callable[..., None]  # _Replay.found


@dataclass
class _State:
    """What one process has at one moment."""

    threads: set[int] = field(default_factory=set)  # those that had a context
    events: set[int] = field(default_factory=set)  # live ones for several processes
    reserved: dict[int, int] = field(default_factory=dict)  # address to size
    launches: list[Call] = field(default_factory=list)  # the last ones
    imports: Counter[int] = field(default_factory=Counter)  # by pointer or handle
    held: int = 0  # imports in all
    host_function: Call | None = None  # the last launch of one
    left: bool = False  # main has returned


def _rights(
    space: Space, item: Range | None
) -> tuple[str, dict[int, int] | None, str, str]:
    """The name of memory, the rights of each device (None: not known, or not needed),
    the row about it, and the call that sets the rights.
    """
    if isinstance(item, Mapping):
        made = item.chunk.memory
        return made.name if made else "memory", item.rights, "VMM-17", "cuMemSetAccess"
    memory = memory_of(item)
    pool = memory.pool if memory else None
    if isinstance(item, Opening) and pool:
        imports = [x for x in space.pools.values() if x.original is pool]
        pool = imports[0] if imports else None
    if memory is None or pool is None or pool.device is None:
        return "", None, "", ""
    rights = {pool.device: READ_AND_WRITE, **pool.rights}
    return memory.name, rights, "SOMA-13", "cudaMemPoolSetAccess"


class Surroundings:
    """Sees each entry of a trace in the order of time, and reports findings."""

    def __init__(self, trace: Trace, found: Found) -> None:
        self._trace = trace
        self._found = found
        self._states: defaultdict[Process, _State] = defaultdict(_State)

    def call(self, call: Call, space: Space) -> bool:
        """A call, before its effect; `space` is that of its process. True if this
        explains why the call was refused.
        """
        state = self._states[call.process]
        if call.context:
            state.threads.add(call.thread)
        elif call.result == INVALID_CONTEXT and state.threads - {call.thread}:
            self._found(
                "thread-without-context",
                call,
                f"{call.name} in thread {call.thread}, which has no current context "
                f"(error {call.result}); thread {min(state.threads)} has one",
                once=(call.process, call.thread),
            )
            return True
        if call.name == "cuLaunchHostFunc" and call.ok:
            state.host_function = call
        if (
            call.result == NOT_PERMITTED
            and state.host_function
            and not call.name.startswith(NEED_PERMISSION)
        ):
            self._found(
                "called-in-host-function",
                call,
                f"CUDA is called and refuses it ({call.name}: error {call.result}): a "
                "function that cuLaunchHostFunc has put into a stream must not call "
                "CUDA",
                other=state.host_function,
                once=(call.process,),
            )
            return True
        if call.name in ("cuEventCreate", "cuIpcGetEventHandle"):
            self._event(state, call)
        elif call.name == "cuEventDestroy" and call.ok:
            state.events.discard(call.arguments["hEvent"])
        elif call.name in IMPORTS or call.name in RELEASES:
            self._import(state, call)
        elif call.name.startswith("cuMemAddress"):
            self._reservation(state, call)
        elif "Launch" in call.name and "pointers" in call.arguments:
            state.launches = [*state.launches[1 - LAST_LAUNCHES :], call]
        elif call.name in ("cuMemCreate", "cuMemGetAllocationGranularity"):
            self._numa(call)
        elif call.name == "cuDeviceGet" and call.result == INVALID_DEVICE:
            self._ordinal(call, call.arguments["ordinal"], call.process.visible)
        if call.result == ILLEGAL_ADDRESS and not self._no_access(state, call, space):
            self._fault(state, call, space.addresses)
        return False

    def event(self, event: Event) -> None:
        """An entry that is no call."""
        if event.what == "refused" and event.facts["result"] == INVALID_DEVICE:
            visible = event.facts.get("visible")
            self._ordinal(event, event.facts["argument"], visible)
        elif event.what == "leaves":
            self._states[event.process].left = True
        elif event.what == "untaken":
            number = event.facts["error"]
            self._found(
                "descriptor-not-taken",
                event,
                f"pidfd_getfd of descriptor {event.facts['from']} of process "
                f"{event.facts['process']} is refused by the kernel "
                f"({errno.errorcode.get(number, number)})",
                once=(event.process, event.facts["process"]),
            )

    def end(self) -> None:
        """After the last entry."""
        for process, state in self._states.items():
            if state.left and process.signal in BY_FAULT:
                self._found(
                    "killed-at-exit",
                    process,
                    f"{process.name} was {process.how} after main had returned",
                )

    def _event(self, state: _State, call: Call) -> None:
        many = MANY_EVENTS
        refused = ""
        if call.result in NO_ROOM:
            many, refused = SOME_EVENTS, f", and {call.name} is refused (error "
            refused += f"{call.result})"
        elif call.ok and call.arguments.get("Flags", 0) & INTERPROCESS:
            state.events.add(call.arguments["phEvent"])
        if len(state.events) >= many:
            self._found(
                "events-without-end",
                call,
                f"{len(state.events)} interprocess events of this process are alive"
                + refused,
                once=(call.process, bool(refused)),
            )

    def _import(self, state: _State, call: Call) -> None:
        if not call.ok:
            return
        if call.name in RELEASES:
            released = call.arguments[RELEASES[call.name]]
            if state.imports[released]:  # and not memory of its own
                state.imports[released] -= 1
                state.held -= 1
            return
        state.imports[call.arguments[IMPORTS[call.name]]] += 1
        state.held += 1
        if state.held >= MANY_IMPORTS:
            self._found(
                "imports-without-end",
                call,
                f"{state.held} imports of this process are alive",
                once=(call.process,),
            )

    def _reservation(self, state: _State, call: Call) -> None:
        a = call.arguments
        if call.name == "cuMemAddressFree":
            if call.ok:
                state.reserved.pop(a["ptr"], None)
        elif call.ok:
            state.reserved[a["ptr"]] = a["size"]
        elif call.result in NO_ROOM and len(state.reserved) > 1:
            total = sum(state.reserved.values())
            self._found(
                "reservations-without-end",
                call,
                f"{call.name} of {size_text(a['size'])} is refused (error "
                f"{call.result}): this process holds {len(state.reserved)} "
                f"reservations of {total / 2**30:.0f} GiB together",
                once=(call.process,),
            )

    def _numa(self, call: Call) -> None:
        wanted = call.arguments.get("prop") or {}
        if call.ok or wanted.get("place") != HOST_NUMA:
            return
        node = wanted["device"]
        self._found(
            "numa-node-refused",
            call,
            f"{call.name} on NUMA node {node} is refused (error {call.result}): a "
            "process that chooses its way of sharing by this alone may choose another "
            "one than its peer",
            once=(call.process, node),
        )

    def _ordinal(self, entry: Entry, ordinal: int, visible: str | None) -> None:
        others = [
            x
            for x in self._trace.processes
            if x.recorder and x is not entry.process and x.visible != visible
        ]
        if not others:
            return  # a program may ask for devices until there is none
        sees = "all GPUs" if visible is None else f"CUDA_VISIBLE_DEVICES={visible}"
        self._found(
            "ordinal-of-another-process",
            entry,
            f"device {ordinal} does not exist here (error {INVALID_DEVICE}): "
            f"{entry.process.name} sees {sees}, and {others[0].name} numbers other "
            "GPUs",
            once=(entry.process, ordinal),
        )

    def _no_access(self, state: _State, call: Call, space: Space) -> bool:
        """Add a finding if a kernel that has faulted used memory that its device may
        not use, or may only read. Whether this is surely the cause.
        """
        for launch in reversed(state.launches):
            device = space.device(launch)
            if device is None:
                continue
            for address in launch.arguments["pointers"]:
                item = space.addresses.holding(address)
                name, rights, row, setter = _rights(space, item)
                if rights is None or rights.get(device, 0) == READ_AND_WRITE:
                    continue
                reads = rights.get(device) == READ
                self._found(
                    "used-without-access",
                    call,
                    f"error {call.result} after a kernel on device {device} that used "
                    f"{name}: this device may {'only read' if reads else 'not use'} it",
                    row=row,
                    instead=f"give device {device} access to read and write: {setter}",
                    other=launch,
                    once=(call.process,),
                )
                return not reads
        return False

    def _fault(self, state: _State, call: Call, addresses: Addresses[Range]) -> None:
        """A kernel has faulted. Perhaps it used what is reserved beside an import."""
        for launch in reversed(state.launches):
            for address in launch.arguments["pointers"]:
                item = addresses.holding(address)
                if not isinstance(item, Mapping) or item.chunk.opening is None:
                    continue
                reserved = [
                    (base, size)
                    for base, size in state.reserved.items()
                    if base <= item.address < base + size
                ]
                if not reserved:
                    continue
                base, size = reserved[0]
                mapped = sum(
                    x.size
                    for x in addresses.inside(base, size)
                    if isinstance(x, Mapping)
                )
                if mapped < size:
                    self._found(
                        "fault-beside-import",
                        call,
                        f"error {call.result} after a kernel that used "
                        f"{item.chunk.opening.name}: only {size_text(mapped)} of the "
                        f"{size_text(size)} that are reserved there are mapped",
                        other=launch,
                        once=(call.process,),
                    )

    def waits(self, wait: Event, openings: list[Opening]) -> None:
        """A wait has not returned. Perhaps the process that shares memory has ended."""
        dead: dict[Process, Opening] = {}
        for opening in openings:
            owner = opening.memory.owner if opening.memory else None
            for one, other in ((owner, opening.process), (opening.process, owner)):
                if one is wait.process and other is not None:
                    dead[other] = opening
        for peer, opening in dead.items():
            known = peer.signal or peer.exit_code is not None
            if peer is wait.process or not known or peer.ended >= wait.process.ended:
                continue
            if peer.signal and peer.signal == wait.process.signal:
                continue  # somebody has killed both
            if peer.ended > wait.facts.get("last", peer.ended):
                continue  # the process may have ended first, and its end was seen later
            self._found(
                "waits-for-dead-peer",
                wait,
                f"{told(wait)}; {peer.name}, which shares "
                f"{opening.name}, had ended ({peer.how})",
                once=(wait.process, peer),
            )
