"""What covers each documented sentence: a page of counts, a page of all sentences.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

from collections.abc import Iterable

from generator.rules import link_to
from generator.text import lines, plain, table
from ipclab import catalogue
from ipclab.catalogue import Entry, Guide, Ledger

Told = tuple[Entry, str]  # a sentence, and one of catalogue.COVERS


SHARES = {  # what is counted, and its covers
    "judged on hardware, of all that can be judged": (catalogue.JUDGED,),
    "judged on the model only": (catalogue.ON_MODEL,),
    "judged or observed": catalogue.COVERED,
}


def pages(ledger: Ledger) -> dict[str, str]:
    """File name -> page."""
    oldest, newest = ledger.read[0], ledger.read[-1]
    counted = {
        f"CUDA {x}": catalogue.counts(catalogue.coverage(ledger, x))
        for x in (oldest, newest)
    }
    counted |= {
        f"{x.name} {x.version}": catalogue.of_guide(ledger, x) for x in ledger.guides
    }
    head = ["", *counted]
    rows = [
        [
            f"{cover}: {catalogue.MEANING[cover]}",
            *(str(count[cover]) for count in counted.values()),
        ]
        for cover in catalogue.COVERS
    ]
    rows += [
        [
            f"**{what}**",
            *(
                f"**{100 * catalogue.share(count, covers):.1f} %**"
                for count in counted.values()
            ),
        ]
        for what, covers in SHARES.items()
    ]
    everything = {
        topic: [(entry, ledger.cover(entry)) for entry in ledger.entries[topic]]
        for topic in ledger.entries
    }
    return {
        "coverage.dox": "/**\n@page coverage Sentences\n"
        "@brief For each documented sentence: what covers it, or why nothing does.\n\n"
        "The sentences are from the comments in CUDA's headers. They are about "
        "functions and types with which processes share memory or events. The claims "
        "of NVIDIA's guides are in our words. "
        "`ipclab catalogue INCLUDE --coverage` prints the counts and the sentences for "
        "any toolkit. A rule covers a sentence about a function only if tests of the "
        "rule call this function, and not only the same function of the other API: "
        "`--runs RESULTS` checks this.\n\n"
        f"{table(head, rows)}"
        "- @subpage coverage_sentences\n"
        "- @subpage coverage_guides\n\n"
        f"@section coverage_open What no rule judges yet\n\n{_open(ledger, everything)}"
        f"@section coverage_reasons Other reasons\n\n{_reasons(ledger)}*/\n",
        "coverage_sentences.dox": "/**\n@page coverage_sentences All sentences\n"
        "@brief By function and type, each with its rules.\n\n"
        "A quotation has the first words of its sentence. For functions that share "
        "nothing, such as cudaFree, this page has only the sentences on which a rule "
        "is based.\n\n"
        + "".join(_topic(topic, told, ledger) for topic, told in everything.items())
        + "*/\n",
        "coverage_guides.dox": "/**\n@page coverage_guides Claims of the guides\n"
        "@brief What the Programming Guide and the MPS guide say, with the rules.\n\n"
        "Each claim is in our words.\n\n"
        + "".join(_guide(number, x, ledger) for number, x in enumerate(ledger.guides))
        + "*/\n",
    }


def _guide(number: int, guide: Guide, ledger: Ledger) -> str:
    rows = [
        [entry.topic, plain(entry.says), ledger.cover(entry), _by(entry, ledger)]
        for entry in guide.claims
    ]
    shown = table(["section", "claim", "", "rules, or why not"], rows)
    return (
        f"@section coverage_guide_{number} {guide.name} {guide.version}\n\n{shown}"
        f"Nobody has read: {plain(guide.not_read)}\n\n"
    )


def _by(entry: Entry, ledger: Ledger) -> str:
    """Links to the rows of an entry, or the reason why it has none."""
    if entry.why_not:
        return plain(ledger.by(entry))
    return ", ".join(map(link_to, entry.rows))


def _open(ledger: Ledger, found: dict[str, list[Told]]) -> str:
    """A table of the reasons why sentences are not judged yet, with their functions."""
    rows = []
    for name, reason in ledger.reasons.items():
        if reason["class"] != catalogue.OPEN:
            continue
        topics = {
            topic: sum(entry.why_not == name for entry, _ in told)
            for topic, told in found.items()
        }
        where = ", ".join(f"{x} ({count})" for x, count in topics.items() if count)
        rows.append([plain(reason["says"]), where])
    return table(["why", "function or type (sentences)"], rows)


def _reasons(ledger: Ledger) -> str:
    rows = [
        [reason["class"], plain(reason["says"])]
        for reason in ledger.reasons.values()
        if reason["class"] != catalogue.OPEN
    ]
    return table(["", "why"], sorted(rows))


def _topic(topic: str, told: Iterable[Told], ledger: Ledger) -> str:
    rows = [
        [
            plain(entry.says),
            lines([cover, *_span(entry)]),
            _by(entry, ledger),
        ]
        for entry, cover in told
    ]
    columns = ["sentence", "", "rules, or why not"]
    return f"@section coverage_{topic} {topic}\n\n{table(columns, rows)}"


def _span(entry: Entry) -> list[str]:
    """The versions between which the documentation has the sentence."""
    return [
        f"{word} {version}"
        for word, version in (("since", entry.since), ("until", entry.until))
        if version
    ]
