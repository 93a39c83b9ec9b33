"""Makes the verdict and the record from what one test wrote."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ipclab import deviations, failures, reader, schema
from ipclab.ctest import Case

if TYPE_CHECKING:
    from ipclab.supervise import Ended

Record = dict[str, Any]

FAILING = ("violates", "crashed", "hung", "broken", "flaky")
ORDER = (  # the order of columns and counts everywhere
    "conforms",
    "violates",
    "deviates",
    "lifted",
    "observed",
    "not applicable",
    "crashed",
    "hung",
    "flaky",
    "broken",
)
JUDGED = ("conforms", "violates", "deviates", "lifted")


def fails(verdict: str, strict: bool) -> bool:
    """Whether a verdict fails the run."""
    return verdict in FAILING or (strict and verdict == "deviates")


def of_test(
    case: Case, ended: Ended, written: bytes, seed: int, limit: float | None = None
) -> Record:
    """The line of one test, written by the program or made by this function.

    If a conformance program writes no valid line, the test is broken, even if the
    program printed something. A sample never writes a line; the way in which it ended
    decides the verdict. `limit` is the time limit of a test under a fault; if the test
    reaches it, the test is `hung`. If `limit` is None, CTest's limit applies: a
    conformance test that reaches this limit is broken, and a sample is hung.
    """
    if ended.timed_out and limit is not None and not ended.stuck:
        reason = f"still running after {limit:g} s"
        return _line(case, ended, seed, "hung", reason)
    if case.suite == "sample":
        return _line(case, ended, seed, *_sample_outcome(case, ended))
    if ended.stuck:
        return _line(case, ended, seed, "broken", _stuck(ended))
    line, wrong = _read_line(case, ended, written)
    if line is not None and not wrong:
        return line
    made = _line(case, ended, seed, "broken", wrong)
    if line is not None:  # these fields of the line still help to find the cause
        for field in (
            "failures",
            "roles",
            "timeline",
            "functions",
            "notes",
            "outcomes",
        ):
            if field in line:
                made[field] = line[field]
    return made


def of_tests(
    cases: Sequence[Case], ended: Ended, written: bytes, seed: int
) -> dict[Case, Record]:
    """The lines of tests that ran in one start of their program, until the program
    ended.

    The way in which the program ended counts for the first test without a record, or
    for the last test if all have records. Tests after the first test without a record
    have no line.
    """
    texts = written.splitlines(keepends=True)
    lines: dict[Case, Record] = {}
    before = replace(ended, code=0, timed_out=False, survivors=(), stuck="")
    failed = False
    for number, case in enumerate(cases):
        text = texts[number] if number < len(texts) else b""
        last = number == len(cases) - 1 or number + 1 > len(texts)
        how = ended if last else before
        if last and failed and ended.code == 1:
            how = replace(how, code=0)  # the 1 comes from an earlier test
        lines[case] = of_test(case, how, text, seed)
        failed = failed or lines[case]["outcome"] in FAILING
        if not text:
            break
    return lines


def not_started(case: Case, why: str, seed: int) -> Record:
    """The line of a program that the system could not start."""
    from ipclab.supervise import Ended  # needs psutil, which a reader may lack

    ended = Ended(0, 127, False, "", (), 0.0)
    reason = f"the program cannot be started; is it built? ({why})"
    line = _line(case, ended, seed, "broken", reason)
    line["roles"] = []
    return line


def not_judged(case: Case, why: str, seed: int) -> Record:
    """The line of a test that was not started because its row does not apply here."""
    from ipclab.supervise import Ended

    ended = Ended(0, 0, False, "", (), 0.0)
    line = _line(case, ended, seed, "not applicable", why)
    line["roles"] = []
    return line


def verdict(
    line: Record, kind: str | None, entry: deviations.Entry | None
) -> tuple[str, str]:
    """Verdict and reason of a line, given its row's kind.

    `entry` is the entry of deviations.json for this test on this machine.
    """
    outcome, reason = str(line["outcome"]), str(line["reason"])
    if outcome == "lifted" and kind != "LIMIT":
        return "broken", f"'lifted' is for rows of kind LIMIT, not {kind}: {reason}"
    if kind in deviations.UNJUDGED_KINDS and outcome == "conforms":
        return "observed", reason
    if outcome == "violates" and entry is not None:
        if deviations.excuses(entry, line):
            return "deviates", reason
        other = deviations.unknown_failure(entry, line)
        return outcome, f"{_UNKNOWN}{other}{_FIRST}{reason}"
    return outcome, reason


_UNKNOWN = f"{deviations.NAME} does not know: "
_FIRST = "; the first failure: "


def first_reason(reason: str) -> str:
    """The reason that the test gave, without what `verdict` put before it."""
    if not reason.startswith(_UNKNOWN):
        return reason
    return reason.partition(_FIRST)[2]


def place(record: Record) -> str:
    """The source and the line of the first check that failed; empty if none did."""
    for failure in record["failures"]:
        if failure["file"]:
            return f"{failure['file']}:{failure['line']}"
    return ""


@dataclass
class Row:
    """All attempts of one test as a reader sees them."""

    ctest: str
    verdict: str
    shown: str  # the verdict, with its counts if it is flaky
    reason: str
    record: Record  # of the attempt that is shown
    attempts: list[Record]


def rows(records: Iterable[Record]) -> list[Row]:
    """One result for each test. The results are sorted by lesson (first the lesson
    itself), then by row.
    """
    by_test: dict[str, list[Record]] = {}
    for record in records:
        by_test.setdefault(record["ctest"], []).append(record)
    return sorted(
        (_row(name, attempts) for name, attempts in by_test.items()),
        key=lambda row: (
            row.record["lesson"],
            row.record["suite"] != "sample",
            row.record["requirement"] or "",
            row.ctest,
        ),
    )


def excused_in_vain(table: Iterable[Row]) -> list[str]:
    """The entries of deviations.json whose tests conform, one line for each."""
    return [
        f"{deviations.NAME}: {row.record['requirement']} conforms after all "
        f"({row.record['test']})"
        for row in table
        if row.verdict == "conforms" and row.record["deviation"]
    ]


def counts(table: Iterable[Row]) -> dict[str, int]:
    """The number of rows for each verdict that occurs, in the order of ORDER."""
    found = Counter(row.verdict for row in table)
    return {name: found[name] for name in ORDER if found[name]}


def parse_lines(
    lines: Iterable[bytes], timelines: bool = True
) -> tuple[list[Record], str | None]:
    """The records before the first wrong line of records.jsonl, and what is wrong with
    that line; None if all lines are valid.

    Each line ends with a newline. A last line without a newline was cut off and is not
    a result. Without `timelines` the timelines are left out after they were checked:
    they are nine tenths of what a run needs in memory.
    """
    records: list[Record] = []
    for number, text in enumerate(lines, 1):
        if not text.endswith(b"\n"):
            return records, "the last line is cut off and is left out"
        try:
            record = reader.parse(text)
        except ValueError as error:
            wrong: str | None = f"line {number} {error}"
        else:
            wrong = schema.error(record, schema.RECORD, f"line {number}: record")
        if wrong:
            return records, f"{wrong}; this line and all after it are left out"
        records.append(record if timelines else {**record, "timeline": []})
    return records, None


def _row(name: str, attempts: list[Record]) -> Row:
    found = Counter(str(record["verdict"]) for record in attempts)
    if len(found) == 1:
        record = attempts[0]
        return Row(
            name,
            record["verdict"],
            record["verdict"],
            record["reason"],
            record,
            attempts,
        )
    commonest = found.most_common(1)[0][0]
    odd = [record for record in attempts if record["verdict"] != commonest]
    shown = f"flaky ({len(odd)} of {len(attempts)})"
    told = ", ".join(f"{count} x {verdict}" for verdict, count in found.most_common())
    why = next((record["reason"] for record in attempts if record["reason"]), "")
    record = next((r for r in attempts if r["verdict"] in FAILING), odd[0])
    return Row(
        name, "flaky", shown, f"{told}{': ' if why else ''}{why}", record, attempts
    )


def _read_line(case: Case, ended: Ended, written: bytes) -> tuple[Record | None, str]:
    if ended.timed_out:
        return None, f"the program reached CTest's time limit, {case.timeout:g} s"
    if not written:
        return None, f"the program wrote no record ({ended.how})"
    lines = written.split(b"\n")
    if lines.pop():
        return None, f"the program's record is cut off ({ended.how})"
    if len(lines) != 1:
        return None, f"the program wrote {len(lines)} records for one test"
    try:
        line = reader.parse(lines[0])
    except ValueError as error:
        return None, f"the program's record {error} ({ended.how})"
    if wrong := schema.error(line, schema.LINE):
        return None, f"the program's record: {wrong}"
    return line, _contradiction(case, ended, line)


def _contradiction(case: Case, ended: Ended, line: Record) -> str:
    if line["test"] != case.test:
        return f"the record is of another test: {line['test']}"
    if line["requirement"] != case.requirement:
        return (
            f"the record names row {line['requirement']}, "
            f"but CTest's list names row {case.requirement}"
        )
    if ended.signal:
        return f"the program was {ended.how} after its record"
    if ended.code not in (0, case.skip_code) and line["outcome"] in (
        "conforms",
        "lifted",
        "not applicable",
    ):
        return (
            f"the record says '{line['outcome']}', "
            f"but the program ended with {ended.how}"
        )
    if ended.survivors:
        return f"left behind: {', '.join(ended.survivors)}"
    return ""


def _stuck(ended: Ended) -> str:
    return (
        f"process {ended.pid} {ended.how}; the GPU or its driver hangs: look at "
        "`dmesg` and `nvidia-smi`, and reset the GPU"
    )


def _sample_outcome(case: Case, ended: Ended) -> tuple[str, str]:
    if ended.stuck:
        return "broken", _stuck(ended)
    if ended.timed_out:
        return "hung", f"still running at its time limit, {case.timeout:g} s"
    if ended.survivors:
        return "broken", f"left behind: {', '.join(ended.survivors)}"
    if ended.signal:
        return "crashed", ended.how
    if ended.code == 0:
        return "conforms", ""
    lines = [line for line in ended.output.splitlines() if line.strip()]
    if ended.code == case.skip_code:
        skips = [line for line in lines if line.startswith("SKIP: ")]
        if not skips:
            return "broken", f"exit {ended.code} without a line 'SKIP: <reason>'"
        return "not applicable", skips[-1].removeprefix("SKIP: ")
    fatal = next((line for line in lines if line.strip().startswith("->")), None)
    said = fatal or failures.reported(lines) or "".join(lines[-1:])
    return "violates", f"{ended.how}: {said.strip()}" if said else ended.how


def _line(case: Case, ended: Ended, seed: int, outcome: str, reason: str) -> Record:
    return {
        "test": case.test,
        "requirement": case.requirement,
        "outcome": outcome,
        "reason": reason,
        "role": None,
        "step": None,
        "call": None,
        "expected": None,
        "seen": None,
        "notes": [],
        "failures": [],
        "roles": [
            {
                "name": "lesson" if case.suite == "sample" else "referee",
                "pid": ended.pid,
                "ended": ended.how,
                "last_step": None,
                "last_call": None,
                "output": ended.output,
            }
        ],
        "timeline": [],
        "duration_ms": round(ended.seconds * 1000, 3),
        "seed": seed,
    }
