"""Judges an exercise by its exit code, its trace, and its runs on wrong drivers."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ipclab import failures
from ipclab.learn.exercises import Exercise
from ipclab.learn.picture import named
from ipclab.learn.toolbox import Ran, Toolbox
from ipclab.trace.files import TAKES_AWAY, Call, Process
from ipclab.trace.story import Story

MOST_LINES = 24  # lines that are shown of the output of a program or a compiler

UNANSWERED = "you: not answered"  # predicted() of exercise.h prints it
# What a role says if it ends because the other role has ended (GONE) or has sent no
# message (WAITED).
GONE = "the other role has ended"
WAITED = "still waiting after"


@dataclass(frozen=True)
class Complaint:
    """Why an exercise does not pass: what was expected and what was seen."""

    # compile, exit, crash, hang, left, skip, finding:RULE, call:NAME, most:NAME,
    # order, fault:NAME
    kind: str
    expected: str
    seen: str
    advice: str = ""

    @property
    def text(self) -> str:
        """The whole complaint, for a person and for the tests."""
        told = f"expected: {self.expected}\nseen:     {self.seen}"
        return f"{told}\n{self.advice}" if self.advice else told


@dataclass(frozen=True)
class Verdict:
    """The result of one check of an exercise."""

    complaint: Complaint | None  # None: passed
    output: str  # what the program printed
    story: Story | None
    on_model: bool

    @property
    def passed(self) -> bool:
        """Whether the exercise is solved."""
        return self.complaint is None

    @property
    def text(self) -> str:
        """Output and complaint."""
        return f"{self.output}\n{self.complaint.text if self.complaint else 'passed'}"


def judge(toolbox: Toolbox, exercise: Exercise, source: Path, work: Path) -> Verdict:
    """Build `source`, run it, and apply the exercise's check.

    `work` is a folder for the program. The check ends at the first complaint, because
    a later complaint would often follow from the first.
    """
    work.mkdir(parents=True, exist_ok=True)
    program = work / exercise.name
    if said := toolbox.build(source, program):
        cannot = Complaint("compile", "a program that compiles", _first_error(said))
        return Verdict(cannot, _cut(said), None, True)
    ran = toolbox.run(program, exercise.check.profile, trace=True)
    complaint = (
        _of_end(ran, exercise)
        or _of_findings(exercise, ran.story)
        or _of_calls(exercise, ran.story)
        or _of_faults(toolbox, exercise, program)
    )
    return Verdict(complaint, _cut(ran.ended.output), ran.story, ran.on_model)


def _of_end(ran: Ran, exercise: Exercise) -> Complaint | None:
    ended = ran.ended
    if ended.code == 0 and not ended.survivors and not ended.timed_out:
        return None
    expected = "exit code 0: the program reports that the data is right"
    if exercise.kind == "find":
        expected = "exit code 0: this run was on a correct driver"
    last = (ended.output.strip().splitlines() or ["it printed nothing"])[-1]
    if ended.timed_out:
        return Complaint(
            "hang",
            "that the program ends",
            "the program was still running at the time limit and was ended",
        )
    if ended.survivors and ended.code == 0:
        return Complaint(
            "left",
            "that all roles end",
            f"the program ended while {len(ended.survivors)} of its roles still ran",
        )
    if ended.signal:
        return Complaint("crash", expected, f"{ended.how}; its last line: {last}")
    if ended.code == 77:
        return Complaint("skip", "a machine that can run it", last)
    lines = ended.output.strip().splitlines()
    if open_questions := sum(UNANSWERED in line for line in lines):
        return Complaint(
            "exit",
            "kYes or kNo for each question; predict before you look at the output",
            f"{open_questions} not answered",
        )
    said = f"exit code {ended.code}"
    failed = [f"{a}\n{b}" for a, b in itertools.pairwise(lines) if b[:5] == "  -> "]
    if failed:
        said += f"; {failed[0]}"
    elif ran.story and (first := _first_to_fail(ran.story, lines)):
        said += f"; {first}"
    elif lines:
        said += f"; {_telling(lines)}"
    advice = _besides(ran.story, exercise.check.ignore)
    if not advice and WAITED in said:
        advice = "Why did the other role not send it? Perhaps that role waits, too."
    return Complaint("exit", expected, said, advice)


def _besides(story: Story | None, ignored: Sequence[str]) -> str:
    """The first finding of the trace about a call of a program that failed: it is often
    the reason. Empty if there is none.
    """
    if story is None:
        return ""
    for found in story.findings:
        if isinstance(found.entry, Call) and found.rule not in ignored:
            return (
                f"The trace finds {found.rule}: {found.process.name}: "
                f"{named(story, found.text)}.\n"
                f"What to do: {found.advice}."
            )
    return ""


def _first_to_fail(story: Story, lines: Sequence[str]) -> str:
    """Which of several roles failed first, and how; may be empty."""
    failed = [x for x in story.trace.processes if x.died or x.exit_code]
    # If one role ends, the other role also ends: a signal kills it, or it says GONE.
    at_fault = [
        x for x in failed if any(GONE not in line for line in _errors_of(x, lines))
    ]
    first = min(at_fault or failed, key=lambda x: x.ended, default=None)
    if first is None or len(story.trace.processes) == 1:
        return ""
    if not first.died:
        own = [line for line in lines if line.startswith(_role(first))]
        own += _errors_of(first, lines)
        told = f"; {_telling(own)}" if own else ""
        return f"{first.name} failed first, with exit code {first.exit_code}{told}"
    made = [x for x in story.trace.entries if x.process is first]
    calls = [x.name for x in made if isinstance(x, Call)]
    call = calls[-1] if calls else "no call"
    told = f"{first.name} crashed or was killed; the last call that it finished: {call}"
    # Often a synchronize call comes after the call that released something.
    others = itertools.dropwhile(lambda x: x.endswith("Synchronize"), calls[::-1])
    last = next(others, "")
    if last in TAKES_AWAY or last == "cuIpcCloseMemHandle":
        told += f". Did it use something after {last} had released it?"
    return told


def _role(process: Process) -> str:
    return process.name.split()[0]


def _errors_of(process: Process, lines: Sequence[str]) -> list[str]:
    """The error lines that a role has printed: they begin with "[role "."""
    return [line for line in lines if line.startswith(f"[{_role(process)} ")]


def _telling(lines: Sequence[str]) -> str:
    """The first line that reports something wrong; if there is none, the last line."""
    wrong = failures.reported(lines)
    return f"it said: {wrong}" if wrong else f"its last line: {lines[-1]}"


def _of_calls(exercise: Exercise, story: Story | None) -> Complaint | None:
    """A complaint if the program does not make the calls that the exercise is about:
    often enough, not too often, and in their order. None if it makes them.
    """
    if story is None:
        return None
    done = _own_calls(story)
    for name, wanted in exercise.check.calls.items():
        times = done.count(name)
        if times < wanted:
            return Complaint(
                f"call:{name}",
                f"{name} succeeds {_times(wanted)}",
                f"it did {_times(times)}",
                "The exercise is about this call: correct the call, do not remove it.",
            )
    for name, most in exercise.check.at_most.items():
        times = done.count(name)
        if times > most:
            return Complaint(
                f"most:{name}",
                f"{name} succeeds {_times(most)} at most",
                f"it did {_times(times)}",
            )
    if left := _left_of(exercise.check.order, done):
        return Complaint(
            "order",
            f"calls in this order: {', '.join(exercise.check.order)}",
            f"{left[0]} comes too early or not at all",
            "The exercise is about this order: leave these calls at their places.",
        )
    return None


def _left_of(order: Sequence[str], done: Sequence[str]) -> list[str]:
    """The calls of `order` that `done` lacks, or has in another order."""
    left = list(order)
    for name in done:
        if left and left[0] == name:
            left.pop(0)
    return left


def _own_calls(story: Story) -> list[str]:
    """The calls that succeeded, without the probe of require_legacy_ipc().

    The probe allocates, asks for a handle, and frees. The picture does not show these
    calls either.
    """
    probe = ["cuMemAlloc", "cuIpcGetMemHandle", "cuMemFree"]
    done = [x for x in story.trace.entries if isinstance(x, Call) and x.ok]
    first = [x for x in done if x.name in probe][: len(probe)]
    places = {(x.process.number, x.arguments.get("dptr")) for x in first}
    if [x.name for x in first] == probe and len(places) == 1:
        done = [x for x in done if x not in first]
    return [x.name for x in done]


def _of_findings(exercise: Exercise, story: Story | None) -> Complaint | None:
    if story is None:
        return None
    for found in story.findings:
        if found.rule not in exercise.check.ignore:
            return Complaint(
                f"finding:{found.rule}",
                f"no rule of CUDA IPC is broken ({found.requirement})",
                f"{found.rule}: {found.process.name}: {named(story, found.text)}",
                f"What to do: {found.advice}.",
            )
    return None


def _of_faults(toolbox: Toolbox, exercise: Exercise, program: Path) -> Complaint | None:
    """A complaint if the program does not notice a wrong driver, or does not accept a
    driver that is right but different. None if it does both.
    """
    for name in (*exercise.check.faults, *exercise.check.legal):
        fault = toolbox.fault(name)
        ran = toolbox.run_with(fault, program, exercise.check.profile)
        if fault.allowed:
            if ran.ended.code != 0:
                return Complaint(
                    f"fault:{name}",
                    f"exit code 0 on a driver on which {fault.what}, which is legal",
                    _short(ran),
                )
        elif not ran.fired:
            return Complaint(
                f"fault:{name}",
                f"your program calls {fault.function}; without this call it cannot "
                f"notice that {fault.what}",
                "your program does not call it",
            )
        elif ran.ended.code == 0:
            return Complaint(
                f"fault:{name}",
                f"exit code 1 on a driver with one fault: {fault.what}",
                "exit code 0: your program believed the driver",
                "A check that cannot fail proves nothing: look at the data. (What you "
                "see above is the run on a correct driver.)",
            )
    return None


def _short(ran: Ran) -> str:
    last = (ran.ended.output.strip().splitlines() or ["it printed nothing"])[-1]
    return f"{ran.ended.how}; its last line: {last}"


def _times(number: int) -> str:
    words = {0: "not at all", 1: "once", 2: "twice"}
    return words.get(number, f"{number} times")


def _first_error(said: str) -> str:
    errors = [line for line in said.splitlines() if "error:" in line]
    return errors[0] if errors else said.splitlines()[0]


def _cut(text: str) -> str:
    lines = text.rstrip().splitlines()
    if len(lines) > MOST_LINES:
        left = len(lines) - MOST_LINES
        lines = [*lines[:MOST_LINES], f"… {left} more lines"]
    return "\n".join(lines)
