"""The page of a run: report.html, made from run.json, records.jsonl and, if there is
one, the kill matrix.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import base64
import gzip
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from ipclab import (
    deviations,
    explore,
    fingerprint,
    hardware,
    pages,
    records,
    summary,
    timeline,
)
from ipclab.mutants import matrix
from ipclab.records import Record, Row

AT_ONCE = 8  # failing tests that are unfolded, with their pictures
# Marks the place in the page for the packed pictures.
PACKED = "IPCLAB-PACKED-PICTURES"
MEANING = {
    "conforms": "the test saw what the sentence says",
    "violates": "the test saw something else",
    "deviates": "the test saw something else; deviations.json lists it for this driver",
    "lifted": "a documented limitation is no longer there",
    "observed": "the behaviour is undocumented or undefined: it is recorded, and the "
    "test fails only for harm that the rule names",
    "not applicable": "the machine lacks what the row needs",
    "crashed": "a role died, and that is not the documented outcome",
    "hung": "a role ran out of time, and that is not the documented outcome",
    "flaky": "repeated runs disagree",
    "broken": "the harness could not judge",
}


def page(
    run: dict[str, Any],
    found: list[Record],
    wrong: str | None,
    kills: matrix.Document | None = None,
) -> str:
    """The page as text.

    `wrong` is what `results.read` found wrong; None if nothing. `kills` is the kill
    matrix in the folder of the run; None if there is none.
    """
    table = records.rows(found)
    strict = bool(run["settings"].get("strict"))
    failing = [row for row in table if records.fails(row.verdict, strict)]
    first = {row.ctest for row in failing[:AT_ONCE]}
    kept = _Pictures(first)
    explored = run.get("explored")
    state = summary.State(
        run["state"],
        int(run.get("selected") or len(table)),
        run["problems"],
        strict,
        run.get("backend") == "model",
        bool(run.get("filtered")),
    )
    chapters = _chapters(table)
    shown = pages.render(
        "report.html.j2",
        run=run,
        on_model=pages.ON_MODEL if run.get("backend") == "model" else None,
        banners=_banners(run, table, wrong),
        moments=pages.moments(run["started"], run.get("finished")),
        problems=[str(problem) for problem in run["problems"]],
        counts=_counts(table),
        state=_state,
        headline=summary.headline(table, state),
        chapters=chapters,
        quiet=_quiet,
        basis=deviations.basis,
        unseen=_unseen(run, hardware.known()),
        place=records.place,
        next_step=summary.next_step,
        plain=_plain,
        made_by=_made_by(run),
        abbreviations=pages.ABBREVIATIONS,
        meaning=MEANING | {f"lesson: {x}": x for x in (*MEANING, "works")},
        failing=failing,
        first=first,
        at_once=AT_ONCE,
        deviations=_deviations(table),
        anchors=_anchors(table),
        facts=_facts(run["fingerprint"]),
        picture=kept.picture,
        tables=tables,
        kills=kills and matrix.view(kills),
        explored=explored,
        explored_line=explored and explore.summary_of(explored),
    )
    return shown.replace(PACKED, kept.packed(), 1)


@dataclass(frozen=True)
class Chapter:
    """The lessons of one chapter, each with its rows."""

    title: str
    lessons: dict[str, list[Row]]

    @property
    def counts(self) -> dict[str, int]:
        """The number of the chapter's rows for each verdict that occurs."""
        return records.counts(row for rows in self.lessons.values() for row in rows)


def _chapters(table: list[Row]) -> list[Chapter]:
    chapters = pages.grouped((pages.chapter(x.record["lesson"]), x) for x in table)
    return [
        Chapter(title, pages.grouped((row.record["lesson"], row) for row in rows))
        for title, rows in chapters.items()
    ]


def _deviations(table: list[Row]) -> list[tuple[dict[str, Any], list[Row]]]:
    """Each deviation that applied, with its rows."""
    entries = {
        (entry["requirement"], entry.get("test")): entry
        for row in table
        for attempt in row.attempts
        if (entry := attempt["deviation"])
    }
    return [
        (
            entry,
            [
                row
                for row in table
                if row.record["requirement"] == name
                and test in (None, row.record["test"])  # None: a record of version 1
            ],
        )
        for (name, test), entry in entries.items()
    ]


def _anchors(table: list[Row]) -> dict[str, str]:
    """For each requirement its first test: the target of the link `#ROW-01`."""
    return {
        row.record["requirement"]: row.ctest
        for row in reversed(table)
        if row.record["requirement"]
    }


def _unseen(run: dict[str, Any], judged: frozenset[str]) -> dict[str, str]:
    """A remark for each row that no GPU has judged: neither a recorded GPU nor, if this
    is a run of a driver, this one.
    """
    if run.get("backend") == "cuda":
        return {}
    return {
        name: f"{hardware.ON_MODEL}: no recorded GPU has judged this row"
        for name, row in run.get("requirements", {}).items()
        if hardware.on_model_only(name, row["kind"], judged)
    }


def tables(record: Record) -> dict[str, dict[str, Any]]:
    """The tables of a record by name: for each, the counts by outcome, and its lines.

    Successive lines with the same outcome and code become one line, which names the
    first and the last input.
    """
    by_name: dict[str, list[dict[str, str]]] = {}
    for line in record.get("outcomes", []):
        by_name.setdefault(line["table"], []).append(line)
    return {
        name: {
            "counts": Counter(line["outcome"] for line in lines),
            "lines": [_fold(list(run)) for _, run in itertools.groupby(lines, _result)],
        }
        for name, lines in by_name.items()
    }


def _result(line: dict[str, str]) -> tuple[str, str | None]:
    return line["outcome"], line["code"]


def _fold(run: list[dict[str, str]]) -> dict[str, str | None]:
    first, last = run[0]["input"], run[-1]["input"]
    told = first if len(run) == 1 else f"{first} … {last} ({len(run)})"
    return {"input": told, "outcome": run[0]["outcome"], "code": run[0]["code"]}


def _banners(run: dict[str, Any], table: list[Row], wrong: str | None) -> list[str]:
    state, settings = run["state"], run["settings"]
    said = [
        f"Made with a fault planted on purpose: {name}={fault}."
        for name in fingerprint.PLANTED
        if (fault := run["fingerprint"].get("variables", {}).get(name))
    ]
    if run.get("backend") == "none":
        said.append("Made without a GPU: rows that need one are not applicable.")
    if state == "running":
        said.append(
            "This run has not ended, or was killed: "
            f"{len(table)} of {run.get('selected', '?')} tests have a verdict."
        )
    elif state != "finished":
        said.append(
            f"This run is {state}: "
            f"{len(table)} of {run.get('selected', '?')} tests have a verdict."
        )
    if run.get("filtered"):
        limits = [
            f"-k '{settings['expression']}'" if settings.get("expression") else "",
            f"--gpus {settings['gpus']}" if settings.get("gpus") is not None else "",
        ]
        said.append(f"Part of the suite only: {' '.join(x for x in limits if x)}.")
    if wrong:
        said.append(wrong)
    return said


class _Pictures:
    """The timelines. The pictures of some tests are shown at once. The others are
    packed together; pictures.js unpacks a picture when a reader opens its test."""

    def __init__(self, at_once: Iterable[str]) -> None:
        self._at_once = set(at_once)
        self._kept: list[str] = []

    def picture(self, record: Record) -> Markup:
        """The picture, or the place into which pictures.js unpacks it.

        Empty if the test recorded nothing, or if only the first attempt has a picture.
        """
        if not record["timeline"]:
            return Markup("")
        at_once = record["ctest"] in self._at_once
        if record["attempt"] > 1 and not at_once:
            return Markup("")  # the first attempt has the picture
        drawn = timeline.svg(record["timeline"], f"Timeline of {record['test']}")
        if at_once:
            return Markup(drawn)
        self._kept.append(drawn)
        return Markup('<div data-picture="{}"></div>').format(len(self._kept) - 1)

    def packed(self) -> str:
        """All packed pictures: JSON, gzip, base64."""
        data = gzip.compress(json.dumps(self._kept).encode(), mtime=0)
        return base64.b64encode(data).decode()


def _state(row: Row) -> str:
    """The filter's word for a row. Lessons judge nothing, so they have other words."""
    if row.record["suite"] != "sample":
        return row.verdict
    return f"lesson: {'works' if row.verdict == 'conforms' else row.verdict}"


def _counts(table: list[Row]) -> dict[str, int]:
    """The number of rows for each word of the filter, the tests first."""
    found = Counter(map(_state, table))
    order = [*records.ORDER, "lesson: works", *(f"lesson: {x}" for x in records.ORDER)]
    return {name: found[name] for name in order if found[name]}


def _quiet(rows: list[Row]) -> bool:
    """Whether these rows have nothing that a reader must know."""
    return all(
        row.verdict in ("conforms", "observed", "not applicable") for row in rows
    )


def _plain(text: str) -> Markup:
    """Text of the catalogue; words in backticks are code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _made_by(run: dict[str, Any]) -> list[tuple[str, str]]:
    """Which suite made the run, and the digests of its files."""
    manifest = run.get("manifest") or {}
    kept = manifest.get("records") or {}
    facts = [
        ("suite", f"ipclab {manifest['tool']}" if "tool" in manifest else ""),
        ("digest of run.json", str(run.get("digest") or "")),
        ("digest of records.jsonl", str(kept.get("sha256") or "")),
        ("records", str(kept.get("count") or "")),
    ]
    return [(name, value) for name, value in facts if value]


def _facts(fingerprint: dict[str, Any]) -> list[tuple[str, str]]:
    """The fingerprint as lines for a reader."""
    lines = []
    for name, value in fingerprint.items():
        if name == "gpus":
            for gpu in value:
                lines.append(
                    (
                        f"GPU {gpu.get('index', '?')}",
                        f"{gpu['name']}, compute capability "
                        f"{gpu.get('compute_capability', '?')}, "
                        f"{int(gpu.get('memory_bytes') or 0) / 2**30:.1f} GiB, "
                        f"mode {gpu.get('compute_mode', '?')}, "
                        f"MIG {'on' if gpu.get('mig') else 'off'}, {gpu['uuid']}",
                    )
                )
        elif isinstance(value, dict):
            text = ", ".join(
                f"{key} {'unlimited' if item is None else item}"
                for key, item in value.items()
            )
            lines.append((name.replace("_", " "), text or "none"))
        elif isinstance(value, list):
            lines.append((name.replace("_", " "), ", ".join(map(str, value)) or "none"))
        elif isinstance(value, bool):
            lines.append((name.replace("_", " "), "yes" if value else "no"))
        else:
            text = "unknown" if value is None else str(value)
            lines.append((name.replace("_", " "), text))
    return lines
