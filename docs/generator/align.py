"""Which line of a lesson's program makes each step of its trace.

A trace has calls, not lines. The steps of a process are laid along the lines of its
role, in order; going back is a loop, and costs more than going on (Viterbi).

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ipclab.trace.sequence import Step

# What is called, and calls of CUDA that a macro or a table of functions is given.
CALLED = re.compile(r"[A-Za-z_]\w*(?=\s*(?:\(|<<<))|\bcu(?:da)?[A-Z]\w+")
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
HELPER = re.compile(
    r"^(?:template <.*?>\n)?(?:static |inline |\[\[.*?\]\]\s)*"
    r"(?:[\w:<>,*&]+[ *&]+)+?(\w+)\([^;{]*?\{.*?\n}",
    re.MULTILINE | re.DOTALL,
)
FUNCTION = re.compile(r"^(?:[\w:<>,*&\[\]]+[ *&]+)+(\w+)\(")
ROLES = ("exporter", "importer")
# What it costs to leave a step without a line, to go back, to stay, to go on.
UNKNOWN, BACK, STAY, ON, ELSEWHERE = 4.0, 2.0, 0.2, 0.02, 1.5
ASKED = 0.01


@dataclass(frozen=True)
class Line:
    """A line of the program."""

    number: int  # from 1
    function: str  # that it stands in; empty outside of any
    names: frozenset[str]  # that it calls, itself or by a helper
    strings: frozenset[str]
    helper: str = ""  # of samples/common that it calls
    calls: frozenset[str] = frozenset()  # what stands in it


@dataclass(frozen=True)
class Place:
    """Where the two ends of a step stand; None: nobody knows."""

    line: int | None
    other: int | None = None  # of the process that receives a message
    helper: str = ""  # of samples/common that the line calls


def places(
    steps: Sequence[Step], program: str, common: str, first: str = "exporter"
) -> list[Place]:
    """The place of each step.

    `program` is the source of the lesson, `common` the headers that it includes,
    `first` the process that goes through main().
    """
    lines = _lines(program, _helpers(common))
    found: list[tuple[Line | None, Line | None]] = [(None, None)] * len(steps)
    for process in dict.fromkeys(x for step in steps for x in (step.who, step.to) if x):
        own = [i for i, step in enumerate(steps) if process in (step.who, step.to)]
        order = _in_order(lines, process, process == first)
        for i, line in zip(own, _laid([steps[i] for i in own], order), strict=True):
            here, there = found[i]
            found[i] = (line, there) if steps[i].who == process else (here, line)
    return [
        Place(
            here.number if here else None,
            there.number if there else None,
            here.helper if here else "",
        )
        for here, there in found
    ]


def _helpers(common: str) -> dict[str, tuple[frozenset[str], frozenset[str]]]:
    """Each function of the headers, with all names that it leads to, and the texts
    that stand in it, which can be the name of a message."""
    bodies: dict[str, set[str]] = {}
    texts: dict[str, frozenset[str]] = {}
    for match in HELPER.finditer(common):
        body = _code(match[0])
        texts[match[1]] = frozenset(STRING.findall(body))
        bodies[match[1]] = set(CALLED.findall(STRING.sub("", body))) - {match[1]}
    changed = True
    while changed:
        changed = False
        for names in bodies.values():
            more = set().union(*(bodies[x] for x in names & bodies.keys())) - names
            names |= more
            changed |= bool(more)
    return {name: (frozenset(names), texts[name]) for name, names in bodies.items()}


def _lines(
    program: str, helpers: Mapping[str, tuple[frozenset[str], frozenset[str]]]
) -> list[Line]:
    found, function = [], ""
    texts = [_code(text).rstrip() for text in program.splitlines()]
    for i, text in enumerate(texts):
        if match := FUNCTION.match(text):
            function = match[1]
        statement = text
        if not i or not texts[i - 1] or texts[i - 1].endswith((";", "{", "}", ":")):
            for more in texts[i + 1 :]:  # what begins here goes on below
                if not text or statement.endswith((";", "{", "}")):
                    break
                statement += "\n" + more
        names = set(CALLED.findall(STRING.sub("", statement)))
        used = sorted(names & helpers.keys())
        strings = frozenset(STRING.findall(statement))
        for name in used:
            names |= helpers[name][0]
            strings |= helpers[name][1]
        helper = used[0] if used else ""
        calls = frozenset(CALLED.findall(STRING.sub("", text)))
        found.append(Line(i + 1, function, frozenset(names), strings, helper, calls))
        if text == "}":
            function = ""
    return found


def _code(text: str) -> str:
    return re.sub(r"//.*", "", text)


def _in_order(lines: list[Line], process: str, first: bool) -> list[tuple[Line, float]]:
    """The lines as a process comes to them, each with what it costs to be there.

    A function of the lesson stands after each line that calls it.
    """
    role = re.sub(r"[ _]?\d+$", "", process)
    functions: dict[str, list[Line]] = {}
    for line in lines:
        if line.function:
            functions.setdefault(line.function, []).append(line)
    begins = ["main", role] if first else [role]
    if role not in functions:  # a program of one process
        begins = ["main"]
    apart = frozenset(("main", *ROLES))
    order = [x for name in begins for x in _entered(name, functions, apart)]
    met = {line.number for line in order}
    rest = [
        line
        for name, inside in functions.items()
        if name not in apart
        for line in inside
        if line.number not in met
    ]
    # What can be the lesson's own call is no question to the machine.
    asked = [(x, ASKED if x.helper.startswith("require") else 0.0) for x in order]
    return asked + [(x, ELSEWHERE) for x in rest]


def _entered(
    name: str, functions: Mapping[str, list[Line]], met: frozenset[str]
) -> list[Line]:
    """The lines of a function, and where it calls others of them, theirs."""
    found = []
    for line in functions.get(name, []):
        found.append(line)
        for called in sorted(line.calls & functions.keys() - met - {name}):
            found += _entered(called, functions, met | {name})
    return found


def _fits(step: Step, line: Line) -> bool:
    if step.kind == "refused" and line.helper.startswith("require"):
        return False  # a machine that refuses what a lesson requires ends it
    if step.to:
        return step.text in line.strings
    if step.text.startswith("close descriptor"):
        return "close" in line.names
    return step.text.removeprefix("kernel ") in line.names


def _laid(steps: Iterable[Step], order: list[tuple[Line, float]]) -> list[Line | None]:
    """The cheapest line for each step."""
    count = len(order)
    costs = [0.0] * count
    trail: list[list[tuple[int, bool]]] = []
    for step in steps:
        came: list[tuple[int, bool]] = []
        new = []
        fits = [_fits(step, line) for line, _ in order]
        for at in range(count):
            best, source, matched = costs[at] + UNKNOWN, at, False
            if fits[at]:
                for before in range(count):
                    far = at - before
                    move = BACK if far < 0 else ON * far if far else STAY
                    cost = costs[before] + order[at][1] + (move if trail else 0)
                    if cost < best:
                        best, source, matched = cost, before, True
            new.append(best)
            came.append((source, matched))
        costs = new
        trail.append(came)
    if not count:
        return [None for _ in trail]
    at = min(range(count), key=costs.__getitem__)
    laid: list[Line | None] = []
    for came in reversed(trail):
        source, matched = came[at]
        laid.append(order[at][0] if matched else None)
        at = source
    return laid[::-1]
