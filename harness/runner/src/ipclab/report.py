"""The page of a run: report.html, made from run.json and records.jsonl alone."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import functools
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from ipclab import records, timeline
from ipclab.records import Record, Row

MEANING = {
    "conforms": "what the sentence says was seen",
    "violates": "it was not",
    "deviates": "it was not, and deviations.json knows this driver for it",
    "lifted": "a documented limitation is no longer there",
    "observed": "undocumented or undefined: written down, never judged",
    "not applicable": "the machine lacks what the row needs",
    "crashed": "a role died where that is not the documented outcome",
    "hung": "a role ran out of time where that is not the documented outcome",
    "flaky": "repeated runs disagree",
    "broken": "the harness could not judge",
}


def page(run: dict[str, Any], found: list[Record], wrong: str | None) -> str:
    """The page as text. `wrong` is what `results.read` found amiss."""
    table = records.rows(found)
    strict = bool(run["settings"].get("strict"))
    return _template().render(
        run=run,
        banners=_banners(run, table, wrong),
        counts=records.counts(table),
        lessons=_lessons(table),
        meaning=MEANING,
        failing=[row for row in table if records.fails(row.verdict, strict)],
        facts=_facts(run["fingerprint"]),
    )


def tables(record: Record) -> dict[str, dict[str, Any]]:
    """The record's tables by name: counts by outcome, lines.

    A run of lines with the same outcome and code is one line, told by the first
    and the last input.
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


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["picture"] = _picture
    environment.globals["tables"] = tables
    environment.filters["slug"] = lambda text: str(text).replace(" ", "-")
    return environment.get_template("report.html.j2")


def _banners(run: dict[str, Any], table: list[Row], wrong: str | None) -> list[str]:
    state, settings = run["state"], run["settings"]
    said = []
    if run.get("backend") == "model":
        said.append("Made on the reference model: it says nothing about a driver.")
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
    return said + [str(problem) for problem in run["problems"]]


def _lessons(table: list[Row]) -> dict[str, list[Row]]:
    lessons: dict[str, list[Row]] = {}
    for row in table:
        lessons.setdefault(row.record["lesson"], []).append(row)
    return lessons


def _picture(record: Record) -> Markup:
    return Markup(timeline.svg(record["timeline"], f"Timeline of {record['test']}"))


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
