"""The sequence of a trace: what each process did with IPC, causes before effects."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ipclab.trace.files import Call, Event, Process, unfinished
from ipclab.trace.findings import Finding
from ipclab.trace.names import plain_name, result_name
from ipclab.trace.state import NOT_READY, Story
from ipclab.trace.things import Memory, size_text

LONGEST_ROUND = 12  # steps
NAMELESS = "message"  # the name of a message that does not begin with a word
NOT_YET = "not ready"  # the answer of a query if the work is not done


@dataclass(frozen=True)
class Step:
    """One row of the picture."""

    who: str  # the name of the process; empty for a remark about all processes
    kind: str  # call, refused, never, message, kernel, copy, end, death, more
    text: str
    at: int = 0  # nanoseconds since the trace began
    detail: str = ""
    to: str = ""  # the receiver of a message
    handle: int = 0  # the number of the memory that the step concerns; 0: none
    finding: str = ""  # the rule that the step breaks
    times: int = 1
    driver: str = ""  # the driver's call, if the text is the name in a source

    @property
    def sentence(self) -> str:
        """The step for a reader who cannot see the picture."""
        if self.to:
            return f"{self.who} sends {self.text} to {self.to}"
        told = f"{self.who}: {self.text}" if self.who else self.text
        if self.detail:
            told += f" ({self.detail})"
        return told + (f", {self.times} times" if self.times > 1 else "")

    @property
    def shape(self) -> tuple[object, ...]:
        """The part of a step that is the same in each round of a loop."""
        return (self.who, self.kind, self.text, self.detail, self.to, self.finding)


def steps(story: Story, found: Iterable[Finding]) -> list[Step]:
    """The steps that concern IPC, causes before effects, loops shown once."""
    return without_rounds(every_step(story, found))


def every_step(story: Story, found: Iterable[Finding]) -> list[Step]:
    """All steps that concern IPC, causes before effects, each round of a loop."""
    began = story.trace.processes[0].began if story.trace.processes else 0
    broken = {id(x.entry): x.rule for x in found if x.entry is not None}
    at_end = {x.process: x.rule for x in found if x.entry is None or _is_exit(x.entry)}
    received = {id(message.received): message for message in story.messages}
    sent = {id(message.sent) for message in story.messages}
    memories = _memories(story)
    made: list[Step] = []
    begins: dict[int, int] = {}  # id() of a message's step: when it was sent
    for entry in story.trace.entries:
        rule = broken.get(id(entry), "")
        if isinstance(entry, Call):
            if id(entry) in story.concerns:
                step = _call(entry, entry.ended - began, memories, rule)
                if more := story.more.get(id(entry)):
                    text = f"{more} more launches and copies"
                    made.append(replace(step, kind="more", text=text, at=step.at - 1))
                made.append(step)
            continue
        message = received.get(id(entry))
        if message is not None:
            step = _message(message.sent, entry.process, entry.at - began)
            begins[id(step)] = message.sent.at - began
            made.append(step)
        elif (
            id(entry) in story.concerns
            and id(entry) not in sent
            and not _is_exit(entry)
        ):
            made.append(_event(entry, entry.at - began, rule))
    for process in _drawn(story, made):
        kind = "death" if process.signal else "end"
        at = process.ended - began
        rule = at_end.get(process, "")
        made.append(Step(process.name, kind, process.how, at, finding=rule))
    made += _unfinished(story, began)
    made.sort(key=lambda step: step.at)
    return _level(made, begins)


def _is_exit(entry: Call | Event) -> bool:
    return isinstance(entry, Event) and entry.what == "exit"


def _level(made: list[Step], begins: dict[int, int]) -> list[Step]:
    """Draw a message before the sender's next step, unless the receiver did something
    between this step and the receipt. An arrow is always horizontal, although the
    message was sent and received at different times."""
    by_process: dict[str, list[int]] = {}
    for step in made:
        by_process.setdefault(step.who, []).append(step.at)
    placed = []
    for step in made:
        at = step.at
        if id(step) in begins:
            own = by_process[step.who]
            after = bisect.bisect_right(own, begins[id(step)])
            other = by_process.get(step.to, [])
            if after < len(own) and own[after] < at:
                between = bisect.bisect_left(other, at) - bisect.bisect_right(
                    other, own[after]
                )
                at = at if between > 0 else own[after] - 1
        placed.append((at, step))
    placed.sort(key=lambda pair: pair[0])
    return [step for _, step in placed]


def _drawn(story: Story, made: list[Step]) -> list[Process]:
    used = {step.who for step in made} | {step.to for step in made}
    return [process for process in story.trace.processes if process.name in used]


def _unfinished(story: Story, began: int) -> list[Step]:
    """The waits that never returned: they show where a process hung until it ended."""
    return [
        Step(x.process.name, "never", x.facts["call"], x.at - began, "never returned")
        for x in unfinished(story.trace)
    ]


def _memories(story: Story) -> dict[int, Memory]:
    """The memory that an entry concerns, by the entry's id()."""
    found: dict[int, Memory] = {}
    for memory in story.memories:
        if not memory.shared:
            continue
        for call in memory.uses:
            found[id(call)] = memory
        for handle in memory.exports:
            found[id(handle.made)] = memory
        for opening in memory.openings:
            for entry in (*opening.opens, *opening.closes):
                found[id(entry)] = memory
        found[id(memory.made)] = memory
        if memory.freed is not None:
            found[id(memory.freed)] = memory
    for mapping in story.mappings:
        if mapping.chunk.memory is not None:
            for change in (mapping.made, mapping.access, mapping.unmapped):
                found[id(change)] = mapping.chunk.memory
    return found


def _call(call: Call, at: int, memories: dict[int, Memory], rule: str) -> Step:
    memory = memories.get(id(call))
    text, kind = call.name, "call"
    if "Launch" in call.name and "kernel" in call.arguments:
        name = call.process.kernels.get(call.arguments["kernel"], "?")
        text, kind = f"kernel {plain_name(name)}", "kernel"
    elif call.name.startswith(("cuMemcpy", "cuMemset")):
        kind = "copy"
    detail = memory.name if memory is not None else ""
    if call.result == NOT_READY:  # this is an answer and not a refusal
        detail = NOT_YET
    elif not call.ok:
        kind, detail = "refused", result_name(call.result)
    return Step(
        call.process.name,
        kind,
        text,
        at,
        detail,
        handle=memory.number if memory else 0,
        finding=rule,
    )


def _message(sent: Event, to: Process, at: int) -> Step:
    data = bytes.fromhex(sent.facts["bytes"])
    text = _label(data)
    size = sent.facts["size"]
    if text and data[len(text) : len(text) + 1] == b"\0":
        size -= len(text) + 1  # the name does not count
    count = len(sent.facts["descriptors"])
    brings = [size_text(size)] if size or not (text or count) else []
    if count:
        brings.append(f"{count} descriptor{'s' * (count > 1)}")
    detail = ", ".join(brings)
    return Step(sent.process.name, "message", text or NAMELESS, at, detail, to.name)


def _label(data: bytes) -> str:
    """The word at the beginning of a message; "" if there is none."""
    match = re.match(rb"[ -~]{2,40}(?=\0|$)", data)
    return match[0].decode() if match else ""


def _event(event: Event, at: int, rule: str) -> Step:
    facts = event.facts
    if event.what == "close":
        text = f"close descriptor {facts['descriptor']['fd']}"
    elif event.what == "takes":
        text = f"pidfd_getfd of descriptor {facts['from']}"
    else:
        text = event.what
    return Step(event.process.name, "call", text, at, finding=rule)


def without_rounds(made: list[Step]) -> list[Step]:
    """The steps, with a loop of three or more equal rounds shown once.

    Between two messages nothing orders the processes, and their rounds mix by chance.
    There the rounds of each process are counted separately if this gives fewer steps.
    """
    kept: list[Step] = []
    rounds = _folded(made, with_messages=True)
    for free, together in itertools.groupby(rounds, lambda x: bool(x.who and not x.to)):
        run = list(together)
        if free:
            joint, alone = _folded(run), _alone(run)
            run = alone if len(alone) < len(joint) else joint
        kept += run
    return kept


def _alone(run: list[Step]) -> list[Step]:
    """The steps, with the rounds of each process shown once."""
    folded: list[Step] = []
    for who in dict.fromkeys(step.who for step in run):
        own = _folded([step for step in run if step.who == who])
        folded += [step if step.who else replace(step, who=who) for step in own]
    return sorted(folded, key=lambda step: step.at)


def _folded(made: list[Step], with_messages: bool = False) -> list[Step]:
    """The steps, with equal rounds shown once.

    With `with_messages`, only rounds that have a message are folded.
    """
    rounds = _rounds(made)
    kept: list[Step] = []
    place = 0
    while place < len(made):
        length, times = rounds(place)
        first = made[place : place + length]
        if times < 3 or (with_messages and not any(step.to for step in first)):
            kept.append(made[place])
            place += 1
            continue
        if length == 1:
            kept.append(replace(made[place], times=times))
        else:
            text = f"these {length} steps {times - 1} times more"
            kept += [*first, Step("", "more", text, made[place + length].at)]
        place += length * times
    return kept


def _rounds(made: list[Step]) -> Callable[[int], tuple[int, int]]:
    """Gives for each place the length of the shortest round that begins there and
    occurs at least three times, and how often it occurs; (1, 1) if there is none.
    """
    numbers: dict[tuple[object, ...], int] = {}
    shapes = [numbers.setdefault(step.shape, len(numbers)) for step in made]
    # For each length: how many steps from a place on are equal to the step that comes
    # this length later. One pass finds them all; a search at each place is quadratic.
    equal: list[list[int]] = []
    for length in range(1, LONGEST_ROUND + 1):
        same = [0] * (len(shapes) + 1)
        for place in range(len(shapes) - length - 1, -1, -1):
            if shapes[place] == shapes[place + length]:
                same[place] = same[place + 1] + 1
        equal.append(same)

    def found(place: int) -> tuple[int, int]:
        for length, same in enumerate(equal, start=1):
            if same[place] >= 2 * length:
                return length, same[place] // length + 1
        return 1, 1

    return found
