"""Work that is captured into a graph: each launch does it, and not the call."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass, field

from ipclab.trace import events, names, uses
from ipclab.trace.files import Call, Process
from ipclab.trace.state import State
from ipclab.trace.things import EventOpening, Space
from ipclab.trace.waiting import Waits

EXTERNAL = 1  # CU_EVENT_RECORD_EXTERNAL, CU_EVENT_WAIT_EXTERNAL
REFUSED = range(900, 909)  # the errors of captures
INSTANTIATE = (
    "cuGraphInstantiate",
    "cuGraphInstantiateWithFlags",
    "cuGraphInstantiateWithParams",
)
SET_PARAMETERS = ("cuGraphExecKernelNodeSetParams", "cuGraphExecMemcpyNodeSetParams")


@dataclass(eq=False)
class _Capture:
    """What was captured so far. A copy, a fill or a kernel is only kept for the memory
    of CUDA that it uses, once between two other calls.
    """

    began: Call
    streams: set[int]
    work: list[uses.Access | Call] = field(default_factory=list)
    kept: set[tuple[int, str]] = field(default_factory=set)  # since the last call
    told: bool = False  # a refusal has been told: what follows comes from it


@dataclass
class _Graphs:
    """The captures and graphs of one process."""

    captures: list[_Capture] = field(default_factory=list)
    events: dict[int, _Capture] = field(default_factory=dict)  # recorded in a capture
    made: dict[int, _Capture] = field(default_factory=dict)
    executables: dict[int, _Capture] = field(default_factory=dict)

    def of_stream(self, stream: int) -> _Capture | None:
        """The capture that a stream takes part in."""
        return next((x for x in self.captures if stream in x.streams), None)


class Captures:
    """Sees each call of a trace in the order of time."""

    def __init__(self, state: State, waits: Waits) -> None:
        self._state = state
        self._waits = waits
        self._graphs: dict[Process, _Graphs] = {}

    def call(self, call: Call, space: Space) -> bool:
        """A call, before its effect. True if it has no effect now: it was captured, or
        refused because of a capture.
        """
        graphs = self._graphs.get(call.process)
        if graphs is None:
            if call.name != "cuStreamBeginCapture":
                return False
            graphs = self._graphs[call.process] = _Graphs()
        if call.result in REFUSED:
            return self._refused(graphs, call, space)
        if not call.ok:
            return False
        a = call.arguments
        if call.name == "cuStreamBeginCapture":
            graphs.captures.append(_Capture(call, {a["hStream"]}))
        elif call.name == "cuStreamEndCapture":
            if capture := graphs.of_stream(a["hStream"]):
                graphs.captures.remove(capture)
                graphs.made[a["phGraph"]] = capture
        elif call.name in INSTANTIATE or call.name == "cuGraphExecUpdate":
            executable = a["phGraphExec" if "phGraphExec" in a else "hGraphExec"]
            if a["hGraph"] in graphs.made:
                graphs.executables[executable] = graphs.made[a["hGraph"]]
            else:
                graphs.executables.pop(executable, None)
        elif call.name in SET_PARAMETERS or call.name == "cuGraphExecDestroy":
            graphs.executables.pop(a["hGraphExec"], None)
        elif call.name == "cuStreamWaitEvent" and (
            joined := graphs.events.get(a["hEvent"])
        ):
            joined.streams.add(a["hStream"])
            return True
        elif capture := graphs.of_stream(a.get("hStream", a.get("stream", -1))):
            return self._captured(graphs, capture, call, space)
        elif "RecordEvent" in call.name or call.name.startswith("cuEventRecord"):
            graphs.events.pop(a["hEvent"], None)
        elif call.name == "cuGraphLaunch" and (
            launched := graphs.executables.get(
                a["hGraphExec" if "hGraphExec" in a else "hGraph"]
            )
        ):
            self._launched(launched, call, space)
        return False

    def _captured(
        self, graphs: _Graphs, capture: _Capture, call: Call, space: Space
    ) -> bool:
        flags = call.arguments.get("flags", call.arguments.get("Flags", 0))
        record = call.name.startswith("cuEventRecord")
        if record and not flags & EXTERNAL:
            event = call.arguments["hEvent"]
            graphs.events[event] = capture
            if _shared(space, event):
                self._told(
                    capture,
                    call,
                    f"{call.name} of an interprocess event while its stream captures: "
                    "the graph does not record it when it is launched",
                )
        elif record or call.name in events.HANDLERS or "Value" in call.name:
            capture.work.append(call)
            capture.kept.clear()
        elif found := uses.accesses(call):
            for access in found:
                item = space.addresses.holding(access.address)
                if item is None:
                    uses.strange(self._state, call, call.thread, access.address)
                elif (id(item), access.how) not in capture.kept:
                    capture.kept.add((id(item), access.how))
                    capture.work.append(access)
        else:
            return False
        return True

    def _launched(self, capture: _Capture, launch: Call, space: Space) -> None:
        """Do what was captured, in the stream of the launch."""
        stream = launch.arguments["hStream"]
        for work in capture.work:
            if isinstance(work, Call):
                changed = {
                    x: stream if x in ("hStream", "stream") else value
                    for x, value in work.arguments.items()
                }
                place, times = (
                    (launch.thread, launch.context),
                    (launch.began, launch.ended),
                )
                now = Call(launch.process, work.name, times, place, 0, changed)
                handler = events.HANDLERS.get(work.name) or uses.HANDLERS[work.name]
                handler(self._state, space, now)
                self._waits.note(now)
            else:
                uses.access(self._state, space, launch, work.address, stream, work.how)
                if work.how == "rw":
                    self._waits.kernel(launch, stream, work.address)

    def _refused(self, graphs: _Graphs, call: Call, space: Space) -> bool:
        """A call was refused because of a capture."""
        stream = call.arguments.get("hStream", call.arguments.get("stream", -1))
        capture = graphs.of_stream(stream)
        if capture is None:  # a call that names no stream, or another one
            if not graphs.captures:
                return False
            capture = graphs.captures[-1]
        if call.name == "cuStreamEndCapture":
            graphs.captures.remove(capture)
        if capture.told:
            return True
        what = call.name
        instead = ""
        if call.name.startswith("cuEventRecord") and _shared(
            space, call.arguments["hEvent"]
        ):
            what += " of an interprocess event"
        else:
            instead = (
                "open handles, exchange messages and wait before the capture begins "
                "or after it has ended; use only asynchronous calls on the streams of "
                "the capture, and no default stream"
            )
        result = names.result_name(call.result)
        self._told(
            capture,
            call,
            f"{what} is refused with {result} ({call.result}) while a stream captures "
            "a graph: the capture may be lost",
            instead,
        )
        return True

    def _told(
        self, capture: _Capture, call: Call, text: str, instead: str = ""
    ) -> None:
        capture.told = True
        self._state.found(
            "lost-in-capture", call, text, instead=instead, other=capture.began
        )


def _shared(space: Space, pointer: int) -> bool:
    """Whether an event is one that processes share."""
    event = space.events.get(pointer)
    if isinstance(event, EventOpening):
        return True
    return event is not None and bool(event.flags & events.INTERPROCESS)
