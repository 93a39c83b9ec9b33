"""`ipclab judge`: judge the records of a finished run with another deviations.json.

An entry of deviations.json needs a measurement, so the first run on a machine comes
before its entries. A record holds every failed check and what that check saw; therefore
the entries can be applied afterwards, without the machine. Nothing else can change:
outcomes, rows and kinds stay those of the run.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import datetime
import json
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ipclab import deviations, manifest, probe, records, results
from ipclab.errors import UsageError
from ipclab.records import Record

Document = dict[str, Any]


def run(out: Console, folder: Path, entries: Path, into: Path) -> int:
    """Write the run of `folder`, judged with the file `entries`, into `into`.

    Prints each test whose verdict changes. Returns the exit code of the judged run.
    Raises UsageError if there is no such file, if the run is not finished, is damaged
    or was edited, or if `into` is not empty, and HarnessError if an entry is malformed.
    """
    if not entries.is_file():
        raise UsageError(f"{entries}: no such file")
    contents = results.read(folder)
    if contents.run["state"] != "finished" or (wrong := _edited(contents)):
        state = contents.run["state"]
        reason = wrong if state == "finished" else f"the run is {state}, not finished"
        raise UsageError(f"{folder}: {reason}; only a finished run can be judged again")
    here = _here(contents.run, deviations.read_deviations(entries))
    judged = [_judged(record, here) for record in contents.records]
    changes = Counter(
        (now["ctest"], was["verdict"], now["verdict"])
        for was, now in zip(contents.records, judged, strict=True)
        if was["verdict"] != now["verdict"]
    )
    for (name, was, now), attempts in changes.items():
        out.print(Text(f"{name}: {attempts} x {was}, now {now}"), soft_wrap=True)
    made = results.Results(into)
    made.write_records(judged)
    document = _document(contents.run, judged, here)
    document["manifest"]["data"]["deviations.json"] = manifest.of_file(entries)
    document["manifest"]["records"] = made.seal
    made.write("run.json", json.dumps(manifest.sealed(document), indent=1) + "\n")
    counts = ", ".join(f"{n} {verdict}" for verdict, n in document["counts"].items())
    out.print(Text(f"{into}: {counts}"), soft_wrap=True)
    for problem in document["problems"]:
        out.print(Text(problem), soft_wrap=True)
    return int(document["exit_code"])


def _edited(contents: results.Contents) -> str | None:
    """What of the run is damaged or was edited."""
    if contents.wrong:
        return contents.wrong
    return next(manifest.edits(contents.run, contents.seal), None)


def _here(document: Document, entries: list[deviations.Entry]) -> deviations.Deviations:
    """The entries on the machine and on the day of the run."""
    return deviations.Deviations(
        entries,
        document["backend"],
        probe.driver(document["probe"]),
        [str(gpu["name"]) for gpu in document["probe"]["gpus"]],
        datetime.date.fromisoformat(document["started"][:10]),
        document["fingerprint"].get("runtime_version"),
    )


def _judged(record: Record, here: deviations.Deviations) -> Record:
    """The record with the verdict that the entries give it. What the runner itself
    found broken stays broken.
    """
    if record["verdict"] == "broken":
        return record
    entry = here.entry_for(record["test"], record["requirement"])
    line = {**record, "reason": records.first_reason(record["reason"])}
    verdict, reason = records.verdict(line, record["kind"], entry)
    return {
        **record,
        "verdict": verdict,
        "reason": reason,
        "deviation": entry if verdict in ("deviates", "conforms") else None,
    }


def _document(
    before: Document, judged: list[Record], here: deviations.Deviations
) -> Document:
    """run.json of the judged run, without its digests."""
    table = records.rows(judged)
    kinds = {name: row["kind"] for name, row in before["requirements"].items()}
    tests = {x["test"]: x["requirement"] for x in judged if x["suite"] == "conformance"}
    about_entries = f"{deviations.NAME}: "
    problems = [x for x in before["problems"] if not x.startswith(about_entries)]
    problems += here.problems(kinds, tests, before["filtered"])
    problems += records.excused_in_vain(table)
    failed = any(records.fails(x.verdict, before["settings"]["strict"]) for x in table)
    return {
        **{name: value for name, value in before.items() if name != "digest"},
        "counts": records.counts(table),
        "problems": problems,
        "exit_code": 1 if failed or problems else 0,
        "deviations": here.applicable,
        "judged": {
            "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "digest": before["digest"],
        },
        "manifest": {**before["manifest"], "data": {**before["manifest"]["data"]}},
    }
