"""What failed in a test: the check, and the value that the check saw.

Values that differ in each run are left out.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# The messages of GoogleTest: _EQUAL of EXPECT_EQ, _TRUTH of EXPECT_TRUE, _ORDER of
# EXPECT_LT and similar checks, _FAILED of FAIL.
_VALUE = r"  (.+)(?:\n|$)(?:    Which is: (.+)(?:\n|$))?"
_EQUAL = re.compile(rf"Expected equality of these values:\n{_VALUE}{_VALUE}")
_TRUTH = re.compile(r"Value of: (.+)\n  Actual: (true|false)")
_ORDER = re.compile(r"Expected: (\(.+\) (\S+) \(.+\)), actual: ((?:.|\n)*)")
_FAILED = re.compile(r"Failed\n(.+)")
# The message of EXPECT_TRUE(gives(...)) of harness/scenario. Group 2 has what the call
# gave and what was expected. Group 1 matches if the reason has already said both.
_GIVES = re.compile(
    r"(: )?Value of: ::ipclab::gives\(.*?"
    r"\n\s*Actual: false \(([^\n]*)\)\nExpected: true",
    re.DOTALL,
)
# The message of EXPECT_TRUE(f()) if f() explains its answer. Group 1, the explanation,
# says enough.
_TOLD = re.compile(
    r"Value of: [^\n]*\n\s*Actual: (?:true|false) \(([^\n]*)\)\n"
    r"Expected: (?:true|false)"
)
# The message of EXPECT_EQ after a reason that has already said both values (group 1).
_TOLD_EQUAL = re.compile(
    r"(expected [^\n]*, saw [^\n]*): Expected equality of these values:\n"
    r"(?:  \S[^\n]*\n?(?:    Which is: [^\n]*\n?)?){2}"
)
# How lessons and exercises say that something is wrong.
_WRONG = re.compile(r"\b[1-9][0-9]* wrong\b|\bNOT\b|\bSTILL\b")
SAME = "the same value"  # for a failed `!=`: the value itself differs in each run
FAILED = "failed"  # for a check that shows only that it failed


def reported(lines: Sequence[str]) -> str | None:
    """The first line in which a lesson or an exercise reports something wrong; None if
    there is no such line.
    """
    return next((line for line in lines if _WRONG.search(line)), None)


@dataclass(frozen=True)
class Signature:
    """The parts of a failure that are the same in another run."""

    check: str  # the call that gave a wrong answer, or the expression that was checked
    seen: str  # the code or the values that the check saw
    step: str | None  # the role's step: often the input of a table

    def __str__(self) -> str:
        """The text for one line of a report."""
        return f"{self.check}: {self.seen}{f' ({self.step})' if self.step else ''}"


def signature(failure: dict[str, Any]) -> Signature:
    """The signature of one entry of `failures` in a record."""
    step = failure["step"]
    if failure["seen"] is not None:
        return Signature(failure["call"] or "", failure["seen"], step)
    message = failure["message"]
    if found := _EQUAL.match(message):
        left, value, right, other = found.groups()
        seen = f"{value or left} vs {other or right}"
        return Signature(f"{left} == {right}", seen, step)
    if found := _TRUTH.match(message):
        return Signature(found[1], found[2], step)
    if found := _ORDER.match(message):
        seen = SAME if found[2] == "!=" else found[3].partition("\n")[0]
        return Signature(found[1], seen, step)
    if found := _FAILED.match(message):
        return Signature(found[1], FAILED, step)
    return Signature(message.partition("\n")[0], FAILED, step)


def readable(text: str) -> str:
    """A reason or a message, without the text that macros add.

    >>> readable("saw X: Value of: ::ipclab::gives((f()), {})\\n  Actual: false "
    ...          "(f() gives X, expected Y)\\nExpected: true")
    'saw X'
    >>> readable("Value of: ::ipclab::gives((f()), {})\\n  Actual: false "
    ...          "(f() gives X, expected Y)\\nExpected: true")
    'f() gives X, expected Y'
    >>> readable("saw 3: Value of: reads(a)\\n  Actual: false (3 words are wrong)\\n"
    ...          "Expected: true")
    'saw 3: 3 words are wrong'
    """
    text = _GIVES.sub(lambda found: "" if found[1] else found[2], text)
    return _TOLD_EQUAL.sub(r"\1\n", _TOLD.sub(r"\1", text)).rstrip("\n")
