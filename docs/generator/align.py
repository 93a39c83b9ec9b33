"""Finds, for each step of a lesson's trace, the line of the program that makes it.

A trace has calls, not lines. The steps of a process are assigned to the lines of its
role, in order (Viterbi). A jump back is a loop and costs more than a jump forward.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from generator import traces
from ipclab.trace.sequence import NAMELESS, Step

# Finds calls: f(, f<T>(, kernel<<<, kernel<T><<<, and names of CUDA functions that are
# arguments of a macro or entries of a table.
CALLED = re.compile(
    r"[A-Za-z_]\w*(?=\s*(?:<[\w:, *]*>\s*)?(?:\(|<<<))|\bcu(?:da)?[A-Z]\w+"
)
MADE = re.compile(r"\b([A-Z]\w*)(?:<[\w:, *]*>)?\s+\w+[({]")  # Ranks ranks(argv)
METHOD = re.compile(r"(?:\.|->)\s*(\w+)")
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
HELPER = re.compile(
    r"^( *)(?:template <[^\n]*>\n\1)?"
    r"(?:static |inline |explicit |\[\[[^\n]*?\]\]\s)*"
    r"(?!else |return |case )"
    r"(?:(?:[\w:<>,*&]+[ *&]+)+?(?:\w+::)*|(?:\w+::)+|(?=[A-Z]\w*[a-z]\w*\())"
    r"(?!if\b|for\b|while\b|switch\b)(\w+)\([^;{]*?\{(?:[^\n]*}$|.*?\n\1})",
    re.MULTILINE | re.DOTALL,
)
FUNCTION = re.compile(r"^(?:[\w:<>,*&\[\]]+[ *&]+)+(\w+)\(")
# The head of a loop, a condition or a template: there a statement ends at the end of
# its line.
HEAD = re.compile(r"\s*(?:(?:else )?(?:if|for|while|switch) ?\(|template )")
LOOP = re.compile(r"\b(?:for|while) \(")
ALONE = re.compile(r"\s*(?:[{}()\],;]+|else|#.*)")
ROLES = ("exporter", "importer")
SENDS, RECEIVES = "sendmsg", "recvmsg"  # at the end of every message
# The costs: a step without a line, going back, staying, going forward by one line. The
# numbers give every lesson the result that docs/tests/test_align.py expects.
UNKNOWN, BACK, STAY, ON = 4.0, 2.0, 0.15, 0.02
# The cost of staying for a step that this line has made before: in a loop, elsewhere.
ROUND, AGAIN = 0.2, 1.0
# The cost of a call that is made by a helper, by a helper's helper, under another name.
HELPED, FARTHER, RENAMED = 0.15, 0.2, 0.3
ASKED = 0.1  # cost of a line that queries the machine
FAR = 90  # distance in lines to code after a return: nearly as costly as going back


@dataclass(frozen=True)
class Helper:
    """The calls that all functions with one name make."""

    names: frozenset[str] = frozenset()  # calls, direct or indirect, and texts
    near: frozenset[str] = frozenset()  # calls in the functions themselves
    often: frozenset[str] = frozenset()  # calls in a loop

    def __or__(self, other: Helper) -> Helper:
        return Helper(
            self.names | other.names, self.near | other.near, self.often | other.often
        )

    def in_a_loop(self) -> Helper:
        """The same calls, all of them in a loop."""
        return replace(self, often=self.names)


@dataclass(frozen=True)
class Line:
    """A line of the program."""

    number: int  # from 1
    function: str  # the function that contains it; empty outside of functions
    calls: frozenset[str] = frozenset()  # of the statement that begins in this line
    functions: frozenset[str] = frozenset()  # functions of the program that it calls
    leads: Helper = Helper()  # the calls of the line, direct or by a helper
    helper: str = ""  # function of a header that it calls
    returns: bool = False


@dataclass(frozen=True)
class Place:
    """The lines of the two ends of a step; None if a line is not known."""

    line: int | None
    other: int | None = None  # line of the process that receives a message
    helper: str = ""  # function of a header that the line calls
    name: str = ""  # the name of the call in the line, if the step has another name


def places(
    steps: Sequence[Step],
    program: str,
    headers: Sequence[str] = (),
    first: str = "exporter",
) -> list[Place]:
    """The place of each step.

    `program` is the source of the lesson. `headers` are its headers; a header can use
    the headers before it. `first` is the process that runs main().
    """
    lines = _lines(program, _helpers(headers))
    found: list[tuple[Line | None, Line | None]] = [(None, None)] * len(steps)
    for process in dict.fromkeys(x for step in steps for x in (step.who, step.to) if x):
        own = [i for i, step in enumerate(steps) if process in (step.who, step.to)]
        made = [steps[i] for i in own]
        order = _in_order(lines, process, process == first)
        stops = _stops(order, made, process)
        for i, line in zip(own, _laid(made, stops, process), strict=True):
            here, there = found[i]
            found[i] = (line, there) if steps[i].who == process else (here, line)
    return [
        Place(
            here.number if here else None,
            there.number if there else None,
            here.helper if here else "",
            _written(step, here) if here else "",
        )
        for step, (here, there) in zip(steps, found, strict=True)
    ]


def _helpers(headers: Iterable[str]) -> dict[str, Helper]:
    """Each function of the headers by its name, with all calls that it makes.

    A header does not call functions of a later header, even if a later header has a
    function of the called name.
    """
    known: dict[str, Helper] = {}
    for text in headers:
        direct: dict[str, Helper] = {}
        for match in HELPER.finditer(_code(text)):
            direct[match[2]] = direct.get(match[2], Helper()) | _body(
                match[2], match[0]
            )
        own = dict(direct)
        changed = True
        while changed:
            changed = False
            for name, helper in direct.items():
                leads = _leading(helper, own) | _leading(helper, known)
                changed |= leads != own[name]
                own[name] = leads
        known |= {name: own[name] | known.get(name, Helper()) for name in own}
    return known


def _body(name: str, text: str) -> Helper:
    """The direct calls of a function."""
    begin, *loops = LOOP.split(text, maxsplit=1)
    once, often = (frozenset(_called(x) - {name}) for x in (begin, "".join(loops)))
    return Helper(once | often, once | often, often)


def _leading(helper: Helper, known: Mapping[str, Helper]) -> Helper:
    leads = helper
    for name in helper.names & known.keys():
        more = replace(known[name], near=frozenset())
        leads |= more.in_a_loop() if name in helper.often else more
    return leads


def _called(text: str) -> set[str]:
    """The names of the calls, and the strings, which can be names of messages."""
    code = STRING.sub("", text)
    return {*CALLED.findall(code), *MADE.findall(code), *STRING.findall(text)}


def _lines(program: str, helpers: Mapping[str, Helper]) -> list[Line]:
    texts = _code(program).splitlines()
    own = {match[1] for text in texts if (match := FUNCTION.match(text))}
    found, function, looped = [], "", False
    for i, statement in enumerate(_statements(texts)):
        calls = _called(statement)
        if match := FUNCTION.match(statement):
            function = match[1]
            calls.discard(function)
        methods = set(METHOD.findall(statement))
        functions = (calls & own) - methods
        used = sorted((calls & helpers.keys()) - functions)
        leads = Helper(frozenset(calls))
        for name in used:
            leads |= helpers[name]
        if LOOP.search(statement) or looped:
            leads = leads.in_a_loop()
        if statement:
            looped = bool(LOOP.search(statement)) and statement[-1] not in "{;"
        found.append(
            Line(
                i + 1,
                function,
                frozenset(calls),
                frozenset(functions),
                leads,
                used[0] if used else "",
                bool(re.search(r"\breturn\b", statement)),
            )
        )
        if texts[i] == "}":
            function = ""
    return found


def _statements(texts: Sequence[str]) -> list[str]:
    """For each line the statement that begins there; empty if no statement begins."""
    found: list[str] = []
    begun = None  # the number of the line in which the open statement begins
    for i, text in enumerate(texts):
        if begun is None:
            found.append(text)
            begun = i
        else:
            found.append("")
            found[begun] += "\n" + text
        whole = found[begun]
        if (
            not text
            or text.endswith((";", "{", "}", ":"))
            or ALONE.fullmatch(text)
            or (HEAD.match(whole) and whole.count("(") == whole.count(")"))
        ):
            begun = None
    return found


def _code(text: str) -> str:
    """The text without its comments, line by line."""
    return re.sub(r"[ \t]*(?://.*)?$", "", text, flags=re.MULTILINE)


def _in_order(lines: list[Line], process: str, first: bool) -> list[Line | None]:
    """The lines in the order in which a process reaches them. None marks a gap: after a
    return, and before the lines that the role does not reach.

    A function of the lesson comes before each line that calls it, because most of these
    calls are arguments of another call. Only the first process queries the machine.
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
    rest = [
        line
        for name, inside in functions.items()
        if name not in ROLES
        for line in inside
        if line not in order and (first or not line.helper.startswith("require"))
    ]
    return [*order, None, *rest]


def _entered(
    name: str, functions: Mapping[str, list[Line]], met: frozenset[str]
) -> list[Line | None]:
    """The lines of a function, each after the lines of the functions that it calls."""
    found: list[Line | None] = []
    for line in functions.get(name, []):
        entered = sorted(line.functions - met - {name})
        for called in entered:
            found += _entered(called, functions, met | {name})
        found.append(line)
        found += [None] if entered and line.returns else []
    return found


@dataclass(frozen=True)
class Stop:
    """A line of a process that can make one of its steps."""

    line: Line
    price: float  # the cost of using this line
    at: int  # its position; a return before it counts as FAR lines


def _stops(
    order: Iterable[Line | None], steps: Sequence[Step], process: str
) -> list[Stop]:
    stops = []
    at = 0
    for line in order:
        if line is None:
            at += FAR
        elif any(_fits(step, line, process) is not None for step in steps):
            at += 1
            # Queries of the machine cost extra, so that the lesson's own calls come
            # first.
            price = ASKED if line.helper.startswith("require") else 0.0
            stops.append(Stop(line, price, at))
    return stops


def _written(step: Step, line: Line) -> str:
    """The line's name for the call if the step has another name; otherwise empty."""
    if step.text in line.leads.names:
        return ""
    others = traces.runtime(step.driver)
    return next((x for x in others if x in line.leads.names), "")


def _fits(step: Step, line: Line, process: str) -> float | None:
    """The cost of the line for this step; None if the line cannot make the step."""
    if step.kind == "refused" and line.helper.startswith("require"):
        return None  # a lesson ends if the machine lacks what it requires
    if step.to:
        way = SENDS if process == step.who else RECEIVES
        if way not in line.leads.names:
            return None
        return _near(line, way if step.text == NAMELESS else _name(step))
    if step.text.startswith("close descriptor"):
        return _near(line, "close")
    text = _name(step)
    # A lesson for the driver API queries the machine with calls of the runtime.
    asked = line.helper.startswith("require") and text.startswith("cu")
    for name in (text, f"cuda{text[2:]}" if asked else "", _written(step, line)):
        cost = _near(line, name)
        if cost is not None:
            return cost if name == text else cost + RENAMED
    return None


def _name(step: Step) -> str:
    """The text of the step in a source."""
    return f'"{step.text}"' if step.to else step.text.removeprefix("kernel ")


def _near(line: Line, name: str) -> float | None:
    """The cost of helpers between line and call; None if the line does not make it."""
    if name in line.calls:
        return 0.0
    if name in line.leads.near:
        return HELPED
    return FARTHER if name in line.leads.names else None


def _laid(
    steps: Iterable[Step], order: Sequence[Stop], process: str
) -> list[Line | None]:
    """For each step the line with the least cost; None if no line can make the step."""
    if not order:
        return [None for _ in steps]
    costs = [0.0] * len(order)
    trail: list[list[tuple[int, bool]]] = []
    made: list[frozenset[str]] = [frozenset()] * len(order)  # in this stay
    for step in steps:
        key = f"{step.text} {step.who} {step.to}"
        new_made: list[frozenset[str]] = []
        came: list[tuple[int, bool]] = []
        new = []
        ahead, behind = _cheapest(costs, order)
        for i, stop in enumerate(order):
            best, source, matched = costs[i] + UNKNOWN, i, False
            fit = _fits(step, stop.line, process)
            if fit is not None:
                ways = [(fit, i)]
                if trail:
                    on, back = ahead[i], behind[i]
                    again = STAY
                    if key in made[i]:
                        often = _name(step) in stop.line.leads.often
                        again = ROUND if often else AGAIN
                    ways = [(costs[i] + again, i)]
                    ways += [(on[0] + fit, on[1]), (back[0] + fit, back[1])]
                cost, before = min(ways)
                if cost + stop.price < best:
                    best, source, matched = cost + stop.price, before, True
            new.append(best)
            came.append((source, matched))
            stayed = made[i] if source == i else frozenset()
            new_made.append(stayed | {key} if matched else stayed)
        costs, made = new, new_made
        trail.append(came)
    at = min(range(len(order)), key=costs.__getitem__)
    laid: list[Line | None] = []
    for came in reversed(trail):
        source, matched = came[at]
        laid.append(order[at].line if matched else None)
        at = source
    return laid[::-1]


def _cheapest(
    costs: Sequence[float], order: Sequence[Stop]
) -> tuple[list[tuple[float, int]], list[tuple[float, int]]]:
    """For each stop, the least cost to reach it from an earlier stop and from a later
    stop, and which stop that is."""
    ahead, behind = [(math.inf, 0)], [(math.inf, 0)]
    for i, cost in enumerate(costs[:-1]):
        far = ON * (order[i + 1].at - order[i].at)
        so_far, source = ahead[-1]
        ahead.append(min((so_far + far, source), (cost + far, i)))
    for i in range(len(costs) - 1, 0, -1):
        behind.append(min(behind[-1], (costs[i] + BACK, i)))
    return ahead, behind[::-1]
