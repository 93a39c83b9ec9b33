"""`ipclab explain`: what an error means when processes share memory, and what to do.

It takes what people paste: a code, a line of a log, the name of a call, a symptom. It
needs Python and no package.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ipclab import lines
from ipclab.errors import UsageError

FILE = Path(__file__).parent / "errors.json"
PAINS = Path(__file__).parent / "pains.json"
WIDE = 120  # with this many columns there is room for the table of all codes
PROSE = 100  # longer lines of text are hard to read
MOST = 3  # entries of a kind that are shown in full
LONGEST = 20_000  # characters of a question; a log has its error at its end
CALL = re.compile(r"\bcu(?:da)?(?!Error)[A-Z]\w+")
CUDA = re.compile(r"cuda|\bcu[A-Z]|nccl|driver|\b[1-9]\d\d?\b", re.IGNORECASE)
# A number is a code of CUDA if one of these stands before or after it.
NUMBERS = (
    re.compile(r"^\W*(\d{1,3})\W*$"),
    re.compile(
        r"(?:cuda|driver|runtime|cures?ult|cu)\w*[ _]"
        r"(?:error|failure|result|status|code)[ :=#('\"]*(\d{1,3})\b",
        re.IGNORECASE,
    ),
    re.compile(r"\b(?:error|code)[ :=#('\"]+(\d{3})\b", re.IGNORECASE),
    re.compile(
        r"\bcu(?:da)?[A-Z]\w*(?:\([^)]*\))?"
        r"(?: (?:failed|refused|return(?:ed|s)?)(?: value| code| with)?)?"
        r"[ :=>\-]+(\d{1,3})\b"
    ),
    re.compile(r"\b(?:cudaError\w+|CUDA_ERROR_\w+)\W{1,3}(\d{1,3})\b"),
    re.compile(r"\[(\d{3})\] Call to cu"),  # Numba
)


@dataclass(frozen=True)
class Entry:
    """One error code; the fields are those of errors.json."""

    code: str  # the runtime's name
    driver: str | None  # the driver's name of the same number
    number: int
    says: str  # cudaGetErrorString
    appears: list[str]
    cause: str
    do: str
    checks: list[str]  # of `ipclab doctor`
    lessons: list[str]
    rows: list[str]
    since: str = ""  # the CUDA that brought the code, if it is newer than 13.0

    @property
    def names(self) -> list[str]:
        """The runtime's name, and the driver's name if the driver has this code."""
        return [self.code, *([self.driver] if self.driver else [])]


@dataclass(frozen=True)
class Pain:
    """What people suffer from; the fields are those of pains.json."""

    what: str
    words: list[str]
    cause: str
    do: str
    checks: list[str]
    lessons: list[str]
    errors: list[str]
    pages: list[str]  # of the site, the best first
    general: bool = False  # about a framework: says less than a symptom that is known


@dataclass
class Answer:
    """What is known about a question, the best first."""

    question: str
    errors: list[Entry] = field(default_factory=list)
    pains: list[Pain] = field(default_factory=list)
    rules: dict[str, tuple[str, str]] = field(default_factory=dict)  # of `trace`
    calls: list[str] = field(default_factory=list)  # calls that the question names
    named: bool = True  # whether the question names the codes, and not only their calls

    @property
    def empty(self) -> bool:
        """Whether nothing is known."""
        return not (self.errors or self.pains or self.rules)


def read() -> list[Entry]:
    """The dictionary, sorted by number."""
    entries = json.loads(FILE.read_text(encoding="utf-8"))["errors"]
    return [Entry(**entry) for entry in entries]


def pains() -> list[Pain]:
    """What people suffer from, and where each complaint is answered."""
    entries = json.loads(PAINS.read_text(encoding="utf-8"))["pains"]
    return [Pain(**entry) for entry in entries]


def find(question: str) -> Answer:
    """What is known about a code, a call, a symptom or a pasted text. UsageError names
    what is near if nothing is known.
    """
    question = " ".join(question[-LONGEST:].split())
    answer = Answer(question)
    answer.calls = list(dict.fromkeys(_plain_call(x) for x in CALL.findall(question)))
    answer.errors = _errors(question)
    if not answer.errors and answer.calls:
        answer.named = False
        answer.errors = [x for x in read() if any(_about(x, y) for y in answer.calls)]
    answer.pains = _pains(question.lower())
    answer.rules = {x: y for x, y in _rules().items() if x in question.lower()}
    if answer.empty:
        raise UsageError(
            f"nothing is known about '{_short(question)}'{_near(question.lower())}"
            "; `ipclab explain` lists everything"
        )
    return answer


def run(words: Sequence[str], as_json: bool = False, columns: int | None = None) -> int:
    """Print what is known about these words, or all codes and complaints if there are
    none, in lines of at most `columns` columns (default: as wide as standard output).
    The word `-` stands for the text on standard input.
    """
    columns = columns or lines.width()
    question = sys.stdin.read() if list(words) == ["-"] else " ".join(words)
    if as_json:
        found = find(question) if words else Answer("", read(), pains())
        print(json.dumps(asdict(found), indent=1))
    elif words:
        print("\n".join(_told(find(question), min(columns, PROSE))))
    else:
        print("\n".join(_list(columns)))
    return 0


# --- looking up ---------------------------------------------------------------------


def _errors(question: str) -> list[Entry]:
    """The codes that a text names: by name, number or CUDA's words, or by a part of a
    name.
    """
    entries = read()
    low = question.lower()
    numbers = {int(x) for shape in NUMBERS for x in shape.findall(question)}
    names = set(re.findall(r"\w+", low))
    named = [x for x in entries if names & {name.lower() for name in x.names}]
    if not named:
        said = [x for x in entries if _occurs(x.says.lower(), low)]
        # 'operation not permitted when …' does not also say 'not permitted'.
        named = [
            x for x in said if not any(x.says in y.says for y in said if y is not x)
        ]
    if not named:
        named = [x for x in entries if x.number in numbers]
    if not named and len(low.split()) == 1:
        named = _by_part(entries, low)
    return named


def _by_part(entries: list[Entry], part: str) -> list[Entry]:
    """The codes with this part in their name: NOT_PERMITTED, PeerAccess."""
    if len(part) < 5:
        return []
    tight = part.replace("_", "")
    names = {
        re.sub("^(cudaerror|cudaerror_|cuda_error_)", "", name.lower()): entry
        for entry in entries
        for name in entry.names
    }
    whole = {y.number: y for x, y in names.items() if x.replace("_", "") == tight}
    part_of = {y.number: y for x, y in names.items() if tight in x.replace("_", "")}
    return list((whole or part_of).values())


def _pains(low: str) -> list[Pain]:
    """The complaints whose words occur in a text, those with the most words first."""
    score = {}
    for index, pain in enumerate(pains()):
        hits = [x for x in pain.words if all(_occurs(y, low) for y in x.split(" + "))]
        # A word inside a longer phrase that occurs, too, says nothing new.
        hits = [x for x in hits if not any(x in y for y in hits if y != x)]
        if hits:
            worth = sum(len(x) + 8 * x.count(" + ") for x in hits)
            score[index] = (-worth / (3 if pain.general else 1), index)
    every = pains()
    best = sorted(score, key=lambda index: score[index])
    # What matched by one short word is noise beside what matched by phrases.
    least = -score[best[0]][0] / 4 if best else 0
    return [every[x] for x in best if -score[x][0] >= least]


def _occurs(phrase: str, low: str) -> bool:
    """Whether a phrase occurs as whole words; its last word may have a plural s."""
    head = r"(?<![a-z0-9])" if phrase[0].isalnum() else ""
    tail = r"s?(?![a-z0-9])" if phrase[-1].isalnum() else ""
    return phrase in low and bool(re.search(head + re.escape(phrase) + tail, low))


def _plain_call(name: str) -> str:
    """One name for both interfaces and all versions: cuIpcOpenMemHandle."""
    name = re.sub(r"(_v\d|_pts[zd]|_ptds)+$", "", name)
    return re.sub("^cuda", "cu", name)


def _about(entry: Entry, call: str) -> bool:
    return any(call in map(_plain_call, CALL.findall(x)) for x in entry.appears)


def _rules() -> dict[str, tuple[str, str]]:
    """The rules of `ipclab trace`: the row and the advice of each."""
    from ipclab.trace.findings import RULES

    return RULES


def _near(low: str) -> str:
    """What a mistyped question may mean, as a part of a sentence; perhaps empty."""
    known: dict[str, str] = {}
    for entry in read():
        known.update({name.lower(): entry.code for name in entry.names})
        known[entry.says.lower()] = entry.says
    for pain in pains():
        known.update({x: x for x in pain.words if " + " not in x})
    known.update({x: x for x in _rules()})
    near = difflib.get_close_matches(low[:200], known, n=3, cutoff=0.65)
    for word in re.findall(r"[a-z_/.-]{4,}", low)[:50]:
        near += difflib.get_close_matches(word, known, n=2, cutoff=0.75)
    shown = list(dict.fromkeys(known[x] for x in near))[:MOST]
    return "; near: " + ", ".join(shown) if shown else ""


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "…"


# --- showing ------------------------------------------------------------------------


def _told(answer: Answer, columns: int) -> list[str]:
    """The answer: a code that was named comes first, else the best complaint."""
    told: list[str] = []
    shown = answer.errors[:MOST]
    if answer.pains and len(shown) > 1 and not _names_code(answer):
        shown = []  # several codes for one call: the complaint says more
    for rule, (row, advice) in answer.rules.items():
        told += lines.table(
            [(rule, f"a finding of `ipclab trace`; rule {row}"), ("do", advice)],
            columns,
        )
        told.append("")
    coded = [y for x in shown for y in (*_entry(x, columns, answer.calls), "")]
    complaints = [y for x in answer.pains[:MOST] for y in (*_pain(x, columns), "")]
    told += complaints + coded if _complaint_first(answer) else coded + complaints
    others = [f"{x.number} {x.code}" for x in answer.errors if x not in shown]
    others += [x.what for x in answer.pains[MOST : 2 * MOST]]
    if not answer.pains:
        codes = {x.code for x in shown}
        others += [x.what for x in pains() if codes & set(x.errors)]
    if others:
        told += lines.table(
            [("" if i else "see also", x) for i, x in enumerate(others)], columns
        )
    return told if told[-1] else told[:-1]


def _complaint_first(answer: Answer) -> bool:
    """Whether the complaint says more than the codes: they say nothing about the calls
    of the question, or nothing shows that its words are those of CUDA.
    """
    if answer.calls:
        known = any(_lines_about(x, answer.calls) for x in answer.errors)
        return not (known and answer.named)
    own_words = any(x.says.lower() == answer.question.lower() for x in answer.errors)
    return not (own_words or _names_code(answer) or CUDA.search(answer.question))


def _names_code(answer: Answer) -> bool:
    """Whether the question is a code's name or a part of it, or has such a name."""
    low = answer.question.lower()
    names = {name.lower() for x in answer.errors for name in x.names}
    return bool(names & set(re.findall(r"\w+", low))) or (
        not answer.calls
        and any(low.replace("_", "") in x.replace("_", "") for x in names)
    )


def _list(columns: int) -> list[str]:
    told = []
    if columns >= WIDE:
        rows = [(f"{x.number:6}", x.code, x.driver or "-", x.cause) for x in read()]
        told = lines.table(rows, columns, ("number", "runtime", "driver", "cause"))
    else:  # a small terminal has no room for four columns
        for entry in read():
            told += _block(f"{entry.number} {entry.code}", entry.cause, columns)
    told.append("")
    for pain in pains():
        where = ", ".join([*pain.checks, *pain.lessons, *pain.errors])
        told += _block(pain.what, where, columns)
    return told


def _block(title: str, text: str, columns: int) -> list[str]:
    """A title, and under it a text that is indented."""
    return [
        *(lines.bold(line) for line in lines.wrap(title, columns)),
        *(f"  {line}" for line in lines.wrap(text, columns - 2)),
    ]


def _pain(pain: Pain, columns: int) -> list[str]:
    told = [lines.bold(line) for line in lines.wrap(pain.what, columns)]
    return told + _table(
        (
            ("cause", [pain.cause]),
            ("do", [pain.do]),
            ("doctor", [", ".join(pain.checks)]),
            ("lessons", [", ".join(pain.lessons)]),
            ("pages", [", ".join(f"{x}.html" for x in pain.pages)]),
        ),
        columns,
    )


def _entry(entry: Entry, columns: int, calls: Sequence[str] = ()) -> list[str]:
    """An entry; if calls are given, only the lines about them, if there are any."""
    about = _lines_about(entry, calls)
    names = " = ".join(entry.names)
    title = f"{names}, from CUDA {entry.since} on" if entry.since else names
    return _table(
        (
            (str(entry.number), [title]),
            ("says", [entry.says]),
            ("appears", about or entry.appears),
            ("cause", [entry.cause]),
            ("do", [entry.do]),
            ("doctor", [", ".join(entry.checks)]),
            ("lessons", [", ".join(entry.lessons)]),
            ("rows", [", ".join(entry.rows)]),
        ),
        columns,
    )


def _lines_about(entry: Entry, calls: Sequence[str]) -> list[str]:
    """Where a code appears, as far as these calls are concerned."""
    return [
        x
        for x in entry.appears
        if set(calls) & set(map(_plain_call, CALL.findall(x.partition(":")[0])))
    ]


def _table(fields: Iterable[tuple[str, list[str]]], columns: int) -> list[str]:
    rows = []
    for label, texts in fields:
        found = [text for text in texts if text]
        rows += [("" if index else label, text) for index, text in enumerate(found)]
    return lines.table(rows, columns)
