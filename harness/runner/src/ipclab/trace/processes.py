"""The begin and the end of a process, and what it has not released then."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import signal

from ipclab.trace.files import Entry, Event, Process
from ipclab.trace.state import EventHandler, State
from ipclab.trace.things import EventOpening, Space, times

BY_HAND = (signal.SIGINT, signal.SIGTERM)  # somebody ends all processes of a program


def begin(state: State, process: Process) -> None:
    """A process begins, perhaps with the descriptors of its parent."""
    space = Space(process)
    # After exec a process has its own number. After fork it has a new one: another
    # process with this number lives in another PID namespace.
    numbers = {process.parent} if process.forked else {process.number, process.parent}
    parents = [x for x in state.spaces.values() if x.process.number in numbers]
    if parents:  # descriptors are inherited, by fork and by exec
        space.descriptors = dict(parents[-1].descriptors)
    if process.forked and any(x.calls for x in parents):
        state.tainted.add(process)
    state.spaces[process] = space


def _refused(state: State, space: Space, event: Event) -> None:
    """A call that the runtime refused before it called the driver."""
    if space.process.forked and space.calls == 0:
        first_after_fork(state, event, event.facts["name"])


def first_after_fork(state: State, entry: Entry, name: str) -> None:
    """Add a finding for the first call of a child of fork, if it must not call CUDA."""
    if entry.process in state.tainted:
        state.found(
            "cuda-after-fork",
            entry,
            f"{name} in a child of fork, whose parent had called CUDA before",
        )


def end(state: State, process: Process, at: int) -> None:
    """A process has ended. Add findings for what it leaves to others."""
    space = state.spaces[process]
    # After a fault of the GPU the context refuses every release.
    if not process.died and not space.faulted and not state.failed(process):
        _not_released(state, space)
    for memory in state.story.memories:
        if memory.owner is not process or memory.kind == "chunk" or memory.freed:
            continue
        for opening in memory.openings:
            together = process.signal in BY_HAND and (
                opening.process.signal == process.signal
            )
            if opening.open and opening.process is not process and not together:
                state.found(
                    "exporter-ended-while-open",
                    process,
                    f"{memory.name} was open in {opening.process.name} when "
                    f"{process.name} ended ({process.how})",
                    row="LIFE-08" if memory.kind == "pool" else "LIFE-04",
                    other=opening.opens[0],
                )
    for opening in space.openings:  # the kernel closes what is left
        missing = len(opening.opens) - len(opening.closes)
        opening.closes += [Event(process, "gone", at, {})] * missing
    for event in space.events.values():
        if event.destroyed is None:
            event.destroyed = Event(process, "gone", at, {})


def _not_released(state: State, space: Space) -> None:
    """Add findings for what a process had not released when it ended by itself."""
    process = space.process
    for opening in space.openings:
        if not opening.open:
            continue
        first, closes = opening.opens[0], len(opening.closes)
        if opening.kind == "pointer":
            state.found(
                "pool-pointer-never-freed",
                process,
                f"{opening.name} was imported and never freed",
                other=first,
            )
        elif opening.kind == "chunk":
            owner = opening.memory.owner if opening.memory else process
            kept = owner is not process and owner.ended < process.ended
            state.found(
                "kept-after-owners-end" if kept else "never-released",
                process,
                f"{opening.name} was imported and never released"
                + (
                    f", although {owner.name} had ended ({owner.how}): until then "
                    "it was not free"
                    if kept
                    else ""
                ),
                other=first,
            )
        elif closes:
            state.found(
                "closed-too-seldom",
                process,
                f"{opening.name} was opened {len(opening.opens)} times and "
                f"closed {times(closes)}",
                other=first,
            )
        else:
            state.found(
                "never-closed",
                process,
                f"{opening.name} was opened and never closed",
                other=first,
            )
    for mapping in space.mappings:
        if mapping.unmapped is None and mapping.chunk.opening is not None:
            state.found(
                "never-unmapped",
                process,
                f"{mapping.chunk.opening.name} was mapped at "
                f"{mapping.address:#x} and never unmapped",
                instead="free a buffer of external memory: cuMemFree"
                if mapping.made is mapping.access
                else "",
                other=mapping.made,
            )
    for event in space.events.values():
        if isinstance(event, EventOpening) and event.destroyed is None:
            state.found(
                "event-never-destroyed",
                process,
                "an event was opened and never destroyed",
                other=event.opened,
            )


def _saw_the_end(state: State, space: Space, event: Event) -> None:
    """A process that has waited for the end of another process knows everything
    that the other process did."""
    for each in state.trace.processes:
        if each.number == event.facts["process"] and each.began < event.at:
            state.learns(space, {each: each.ended})


EVENTS: dict[str, EventHandler] = {"refused": _refused, "ended": _saw_the_end}
