"""`ipclab catalogue`: compares a toolkit's documentation with what the rows cite.

conformance/sentences.json has an entry for each documented sentence of the
functions that the suite is about: the rows that judge or observe it, or the reason
why no row does. This module compares that list with the headers of a toolkit, and
with the calls that the tests of the rows made in recorded runs. conformance/guides.json
has the claims of NVIDIA's guides in our words.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipclab import deviations, documentation, hardware, requirements, results, schema
from ipclab.documentation import Documentation, Sentence
from ipclab.errors import HarnessError, UsageError

if TYPE_CHECKING:  # `ipclab rules` reads the entries without this package
    from rich.console import Console

GUIDES = "guides.json"
ALIKE = 0.6  # from this similarity on, a sentence is a changed form of another

# What covers a sentence, in the order in which it is printed.
JUDGED, ON_MODEL, OBSERVED, OPEN = "judged", "on the model", "observed", "open"
ELSEWHERE, NO_CLAIM = "elsewhere", "no claim"
COVERS = (JUDGED, ON_MODEL, OBSERVED, OPEN, ELSEWHERE, NO_CLAIM)
COVERED = (JUDGED, ON_MODEL, OBSERVED)
MEANING = {
    JUDGED: "a row judges it, and a recorded GPU has judged this row",
    ON_MODEL: "a row judges it, so far on the reference model only",
    OBSERVED: "a row only describes it, or records what happens",
    OPEN: "a test could judge it, but no row does",
    ELSEWHERE: "it is about something other than sharing between processes",
    NO_CLAIM: "it claims nothing that a driver could break",
}


@dataclass(frozen=True)
class Entry:
    """A sentence that somebody has read, and what covers it."""

    topic: str
    says: str
    digest: str
    since: str | None  # the first toolkit that has the sentence; None: no limit
    until: str | None  # the last toolkit that has it; None: no limit
    rows: tuple[str, ...]
    why_not: str | None

    def expected_in(self, toolkit: str) -> bool:
        """Whether the sentence is in the documentation of a toolkit."""
        return holds(self.since, self.until, toolkit)


@dataclass(frozen=True)
class Ledger:
    """conformance/sentences.json."""

    read: list[str]  # the toolkits that a person has read
    concerned: re.Pattern[str]  # topics of which every sentence has an entry
    reasons: dict[str, dict[str, str]]
    entries: dict[str, list[Entry]]  # by topic
    kinds: Mapping[str, str]  # of the catalogue's rows
    seen: frozenset[str]  # the rows that a recorded GPU has judged
    guides: tuple[Guide, ...] = ()

    def cover(self, entry: Entry) -> str:
        """One of COVERS."""
        if entry.why_not:
            return self.reasons[entry.why_not]["class"]
        judging = [
            row
            for row in entry.rows
            if self.kinds[row] not in deviations.UNJUDGED_KINDS
        ]
        if not judging:
            return OBSERVED
        return JUDGED if self.seen.intersection(judging) else ON_MODEL

    def by(self, entry: Entry) -> str:
        """The rows of an entry, or the reason why it has none."""
        if entry.why_not:
            return self.reasons[entry.why_not]["says"]
        return ", ".join(entry.rows)


@dataclass(frozen=True)
class Guide:
    """A guide of NVIDIA of which somebody has read chapters."""

    name: str
    version: str
    claims: tuple[Entry, ...]  # the topic of each is its section
    not_read: str  # the parts about sharing that nobody has read


@dataclass(frozen=True)
class Finding:
    """How a toolkit's documentation differs from an entry.

    `what` is changed, moved, gone, new, or found (the toolkit has the sentence although
    the entry's `since` or `until` says that it does not).
    """

    what: str
    topic: str
    rows: tuple[str, ...]
    old: str  # the entry's words, or the whole sentence if the older headers are given
    new: str  # what the documentation says now


def holds(since: str | None, until: str | None, toolkit: str) -> bool:
    """Whether `since` and `until` include a version of CUDA such as 13.5."""
    this = _version(toolkit)
    return (since is None or _version(since) <= this) and (
        until is None or this <= _version(until)
    )


def read(path: Path, rows: Mapping[str, Any]) -> Ledger:
    """Read the entries; check them against their schema and the catalogue's rows.

    guides.json and judged.json are read from the same folder, if they are there.
    Raises HarnessError with the place if something is wrong.
    """
    document = _document(path, schema.SENTENCES)
    guides = path.with_name(GUIDES)
    told = _document(guides, schema.GUIDES)["guides"] if guides.exists() else []
    ledger = Ledger(
        document["read"],
        re.compile("|".join(f"(?:{x})" for x in document["concerned"])),
        document["reasons"],
        {
            topic: [
                Entry(
                    topic,
                    x["says"],
                    x["digest"],
                    x.get("since"),
                    x.get("until"),
                    tuple(x.get("rows", ())),
                    x.get("why_not"),
                )
                for x in entries
            ]
            for topic, entries in document["sentences"].items()
        },
        {name: row["kind"] for name, row in rows.items()},
        hardware.read(path.parent),
        tuple(
            Guide(
                x["name"],
                x["version"],
                tuple(
                    Entry(
                        claim["section"],
                        claim["says"],
                        "",
                        None,
                        None,
                        tuple(claim.get("rows", ())),
                        claim.get("why_not"),
                    )
                    for claim in x["claims"]
                ),
                x["not_read"],
            )
            for x in told
        ),
    )
    for entry in _all(ledger):
        if wrong := _inconsistent(entry, ledger, rows):
            raise HarnessError(f"{path}: {entry.topic}: {entry.digest}: {wrong}")
    for guide in ledger.guides:
        for entry in guide.claims:
            if wrong := _inconsistent(entry, ledger, rows):
                raise HarnessError(f"{guides}: {entry.topic}: {entry.says}: {wrong}")
    return ledger


def _document(path: Path, wanted: schema.Schema) -> Any:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HarnessError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise HarnessError(f"{path}: is not JSON ({error})") from None
    if wrong := schema.error(document, wanted, path.stem):
        raise HarnessError(f"{path}: {wrong}")
    return document


def _inconsistent(entry: Entry, ledger: Ledger, rows: Mapping[str, Any]) -> str | None:
    if entry.why_not and entry.why_not not in ledger.reasons:
        return f"'{entry.why_not}' is not in 'reasons'"
    # Rows may rest on a sentence that is not counted, such as a list of codes.
    uncounted = entry.why_not and ledger.reasons[entry.why_not]["class"] == NO_CLAIM
    if bool(entry.rows) == bool(entry.why_not) and not uncounted:
        return "has either 'rows' or 'why_not'"
    unknown = [row for row in entry.rows if row not in rows]
    return f"{unknown[0]} is no row of the catalogue" if unknown else None


def cited(ledger: Ledger) -> dict[str, list[Entry]]:
    """For each row, the sentences that it is based on."""
    found: dict[str, list[Entry]] = {}
    for entry in _all(ledger):
        for row in entry.rows:
            found.setdefault(row, []).append(entry)
    return found


def compare(
    ledger: Ledger, now: Documentation, before: Documentation | None = None
) -> list[Finding]:
    """How the documentation `now` differs from the entries. `before` is the
    documentation of an older toolkit. If it is given, an old sentence is shown as a
    whole.
    """
    topics = [*ledger.entries]
    topics += [x for x in now.topics if x not in ledger.entries]
    whole = {
        (topic, sentence.digest): sentence.text
        for topic, told in (before.topics if before else {}).items()
        for sentence in told
    }
    known = {(x.topic, x.digest) for x in _all(ledger)}
    elsewhere = {
        sentence.digest: topic
        for topic, told in now.topics.items()
        for sentence in told
        if (topic, sentence.digest) not in known
    }
    found: list[Finding] = []
    for topic in topics:
        found += _of_topic(ledger, topic, now, whole, elsewhere)
    return found


def _of_topic(
    ledger: Ledger,
    topic: str,
    now: Documentation,
    whole: Mapping[tuple[str, str], str],
    elsewhere: Mapping[str, str],
) -> Iterator[Finding]:
    entries = ledger.entries.get(topic, [])
    told = {x.digest: x for x in now.topics.get(topic, [])}
    known = {x.digest for x in entries}
    unknown = [x for x in told.values() if x.digest not in known]
    for entry in entries:
        old = whole.get((topic, entry.digest), entry.says)
        expected = entry.expected_in(now.toolkit)
        if expected and entry.digest not in told:
            if changed := _alike(entry, old, unknown):
                unknown.remove(changed)
                yield Finding("changed", topic, entry.rows, old, changed.text)
            elif place := elsewhere.get(entry.digest):
                yield Finding("moved", topic, entry.rows, old, f"now under {place}")
            else:
                yield Finding("gone", topic, entry.rows, old, "")
        elif not expected and entry.digest in told:
            span = f"since {entry.since}" if entry.since else ""
            span += f" until {entry.until}" if entry.until else ""
            new = f"is there, although the entry says {span.strip()}"
            yield Finding("found", topic, entry.rows, old, new)
    if ledger.concerned.fullmatch(topic):
        for sentence in unknown:
            yield Finding("new", topic, (), "", sentence.text)


def _alike(entry: Entry, old: str, candidates: Sequence[Sentence]) -> Sentence | None:
    """The sentence that is most similar to an entry; None if no sentence is similar
    enough.
    """
    short = old == entry.says
    best = max(
        candidates,
        key=lambda x: _likeness(old, x.says if short else x.text),
        default=None,
    )
    if best is None or _likeness(old, best.says if short else best.text) < ALIKE:
        return None
    return best


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.split(), other.split()).ratio()


def coverage(ledger: Ledger, toolkit: str) -> dict[str, list[tuple[Entry, str]]]:
    """For each topic, its sentences in a toolkit's documentation, and what covers each.

    Has only the topics that the suite is about. Rows also cite single sentences of
    other topics.
    """
    return {
        topic: told
        for topic, entries in ledger.entries.items()
        if ledger.concerned.fullmatch(topic)
        and (
            told := [
                (entry, ledger.cover(entry))
                for entry in entries
                if entry.expected_in(toolkit)
            ]
        )
    }


def counts(found: Mapping[str, list[tuple[Entry, str]]]) -> Counter[str]:
    """The number of sentences for each of COVERS."""
    return Counter(cover for told in found.values() for _, cover in told)


def share(counted: Mapping[str, int], covers: Sequence[str] = COVERED) -> float:
    """The share of these covers in the sentences that can be judged, from 0 to 1."""
    return sum(counted[x] for x in covers) / judgeable(counted)


def judgeable(counted: Mapping[str, int]) -> int:
    """The number of sentences that a test could judge or observe."""
    return sum(counted[x] for x in (*COVERED, OPEN))


def of_guide(ledger: Ledger, guide: Guide) -> Counter[str]:
    """The number of a guide's claims for each of COVERS."""
    return Counter(ledger.cover(entry) for entry in guide.claims)


def told_shares(counted: Mapping[str, int]) -> str:
    """How many of the judgeable sentences each cover has, as a sentence."""
    parts = (
        f"{100 * share(counted, [JUDGED]):.1f} % judged on hardware",
        f"{100 * share(counted, [ON_MODEL]):.1f} % judged on the model only",
        f"{100 * share(counted, [OBSERVED]):.1f} % observed",
    )
    return f"of the {judgeable(counted)} that can be judged, {', '.join(parts)}"


def calls(folders: Iterable[Path]) -> dict[str, set[str]]:
    """For each row, the functions that its tests called in these runs.

    Each of `folders` has the results of a run. A test that was not applicable called
    no function. Raises UsageError if a folder holds no results, or those of an older
    ipclab.
    """
    made: dict[str, set[str]] = {}
    for folder in folders:
        contents = results.read(folder, timelines=False)
        if contents.wrong:
            raise UsageError(f"{folder}: {contents.wrong}")
        if not any("functions" in record for record in contents.records):
            raise UsageError(
                f"{folder}: its records do not name the functions that tests called; "
                "run the suite again with this ipclab"
            )
        for record in contents.records:
            if record.get("requirement") and record["outcome"] != "not applicable":
                made.setdefault(record["requirement"], set()).update(
                    record.get("functions", ())
                )
    return made


def uncalled(
    ledger: Ledger, now: Documentation, made: Mapping[str, set[str]]
) -> list[Entry]:
    """Sentences whose function was called by no test of their rows.

    A driver may be right in one API and wrong in the other API. So a row covers a
    sentence only if a test of the row calls exactly the function that has the sentence.
    """
    return [
        entry
        for entry in _all(ledger)
        if ledger.concerned.fullmatch(entry.topic)
        and entry.topic in now.functions
        and entry.expected_in(now.toolkit)
        and entry.rows
        and not any(entry.topic in made.get(row, ()) for row in entry.rows)
    ]


def run(
    out: Console,
    source: Path,
    headers: Path,
    old: Path | None,
    every: bool,
    runs: Sequence[Path] = (),
    write: bool = False,
) -> int:
    """Print how a toolkit's documentation differs from sentences.json. With `every`,
    print each sentence. With `runs` (results folders), also print the sentences whose
    function no test of their rows called; with `write`, then write judged.json.

    Returns 1 if there is such a sentence or any difference, 0 otherwise.
    """
    from rich.text import Text

    rows = requirements.read(source / "conformance")
    if write:
        hardware.write(source / "conformance", runs)
    ledger = read(source / "conformance" / "sentences.json", rows)
    now = documentation.read(headers)
    before = documentation.read(old) if old else None
    found = compare(ledger, now, before)
    missed = uncalled(ledger, now, calls(runs)) if runs else []
    if every:
        _sentences(out, ledger, coverage(ledger, now.toolkit))
    for finding in found:
        _tell(out, finding)
    for entry in missed:
        rows_of = ", ".join(entry.rows)
        out.print(
            Text(f"not called  {entry.topic}  {rows_of}\n  {entry.says}"),
            soft_wrap=True,
        )
    _summary(out, ledger, found, now)
    if runs:
        out.print(
            f"sentences whose function no test of their rows called in "
            f"{len(runs)} runs: {len(missed)}"
        )
    return 1 if found or missed else 0


def _tell(out: Console, finding: Finding) -> None:
    from rich.text import Text

    rows = ", ".join(finding.rows) or ("no row" if finding.what != "new" else "")
    out.print(Text(f"{finding.what}  {finding.topic}  {rows}".rstrip(), style="bold"))
    for label, text in (("old", finding.old), ("new", finding.new)):
        if text:
            out.print(Text(f"  {label}: {text}"), soft_wrap=True)
    if finding.what in ("new", "changed"):
        sentence = Sentence(finding.topic, finding.new)
        entry = {"says": sentence.says, "digest": sentence.digest}
        line = json.dumps(entry, ensure_ascii=False)
        out.print(Text(f"  entry: {line}", style="dim"), soft_wrap=True)


def _sentences(
    out: Console, ledger: Ledger, found: Mapping[str, list[tuple[Entry, str]]]
) -> None:
    from rich.text import Text

    for topic, told in found.items():
        out.print(Text(topic, style="bold"))
        for entry, cover in told:
            line = f"  {cover:12} {entry.says}  [{ledger.by(entry)}]"
            out.print(Text(line), soft_wrap=True)
    for guide in ledger.guides:
        out.print(Text(f"{guide.name} {guide.version}", style="bold"))
        for entry in guide.claims:
            line = f"  {ledger.cover(entry):12} {entry.topic} {entry.says}"
            out.print(Text(f"{line}  [{ledger.by(entry)}]"), soft_wrap=True)


def _summary(
    out: Console,
    ledger: Ledger,
    found: Sequence[Finding],
    now: Documentation,
) -> None:
    from rich.table import Table

    counted = counts(coverage(ledger, now.toolkit))
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="right")
    table.add_column()
    for cover in COVERS:
        table.add_row(str(counted[cover]), f"{cover}: {MEANING[cover]}")
    out.print(table)
    out.print(
        f"CUDA {now.toolkit}: {counted.total()} documented sentences; "
        f"{told_shares(counted)}"
    )
    for guide in ledger.guides:
        counted = of_guide(ledger, guide)
        out.print(
            f"{guide.name} {guide.version}: {counted.total()} claims; "
            f"{told_shares(counted)}"
        )
    touched = {row for finding in found for row in finding.rows}
    said = Counter(finding.what for finding in found)
    told = ", ".join(f"{number} {what}" for what, number in said.items())
    resting = cited(ledger)
    out.print(
        f"{len(resting)} rows are based on sentences of the headers; sentences of "
        f"{len(touched)} rows differ"
        + (f" ({told})" if told else ": every sentence is unchanged")
    )


def _all(ledger: Ledger) -> Iterator[Entry]:
    for entries in ledger.entries.values():
        yield from entries


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split("."))
