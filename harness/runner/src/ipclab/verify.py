"""`ipclab verify RESULTS`: is a submitted run complete, unedited, and made with the
options of `ipclab qualify`?

The digests show if a record or a setting was edited, lost or added after the run, or if
a file was damaged. With a build they also show if another program or catalogue ran.
They do not show who made the run. If somebody edits records and computes all digests
again, or submits the records of another day, the digests match. So they reveal
accidents and careless edits, but they do not stop a forger. With --key a signature ties
the results to the owner of this key (sign.py); it does not make them true.

A verified run may have failed: a driver that violates a row is a result, also if a
random program showed it and showed it again in new processes. But if the harness could
not judge (broken), or if attempts disagree (flaky), there is no result.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ipclab import (
    ctest,
    deviations,
    explore,
    fingerprint,
    fleet_node,
    manifest,
    reader,
    records,
    results,
    sign,
)
from ipclab.mutants import matrix
from ipclab.records import Record

REPEAT = 3
# The fixed options of `ipclab qualify`. Other options, such as the number of jobs, the
# backend and the profile of the model, are free; run.json contains them.
FIXED: dict[str, Any] = {
    "expression": "",
    "gpus": None,
    "repeat": REPEAT,
    "seed": 1,
    "requirements": None,
    "deviations": None,
}

Document = dict[str, Any]


def run(out: Console, folder: Path, build: Path | None, key: Path | None = None) -> int:
    """Print each problem in one line, or that there is none; return 1 or 0.

    With a build folder, also compare the programs and the catalogue with it. With a
    key, the results must have its signature. Raises UsageError if the results cannot be
    read at all.
    """
    contents = results.read(folder, timelines=False)
    document, found = contents.run, contents.records
    wrongs = [contents.wrong] if contents.wrong else []
    wrongs += problems(document, found, contents.seal)
    wrongs += _kill_matrix(document, matrix.read(folder))
    wrongs += _node(folder)
    signed = None
    if build is not None:
        wrongs += _against_build(document, build)
    if key is not None:
        wrong, signed = sign.check(folder, document["digest"], key)
        wrongs += [wrong] if wrong else []
    for problem in wrongs:
        line = f"not verified: {reader.plain(problem)}"
        out.print(Text(line), soft_wrap=True)
    if not wrongs:
        out.print(Text(_proved(signed)), soft_wrap=True)
        line = f"verified: {reader.plain(_told(document, found))}"
        out.print(Text(line), soft_wrap=True)
    return 1 if wrongs else 0


def _proved(signed: str | None) -> str:
    """What a verified run proves and what not, in one line."""
    proves = "the results are complete and agree with their digests"
    proves += f", and this key signed them: {signed}" if signed else ""
    who = "" if signed else "who made them (--key), "
    return (
        f"proves: {proves}. Does not prove: {who}that the tests ran on this machine, "
        "or when"
    )


def problems(
    document: Document, found: list[Record], seal: dict[str, Any]
) -> list[str]:
    """What is wrong with run.json and the records, one line each.

    `seal` is the seal of records.jsonl, `found` are its valid records. If only the
    first records exist, or if run.json was edited, the answer is only one line, which
    says this.
    """
    edited = list(manifest.edits(document, seal))
    if document["digest"] != manifest.of_document(document):
        return edited
    if document["state"] != "finished":
        return [_prefix(document, found)]
    return [
        *_options(document),
        *edited,
        *_attempts(document, found),
        *_rows(document, found),
        *_machine(document, found),
        *_verdicts(document, found),
        *_reported(document),
    ]


def _reported(document: Document) -> Iterator[str]:
    searched = document.get("explored", {"failures": []})
    steady = [x for x in searched["failures"] if not x["verdict"].startswith("flaky")]
    results = explore.problems({"failures": steady, "broken": None})
    for problem in document["problems"]:
        if problem not in results:
            yield f"the run itself reports: {problem}"


def _prefix(document: Document, found: list[Record]) -> str:
    tests, total = len({x["ctest"] for x in found}), len(document["manifest"]["tests"])
    return (
        f"the run is {document['state']}, not finished: "
        f"{len(found)} records of {tests} of {total} tests"
    )


def _options(document: Document) -> Iterator[str]:
    settings = document["settings"]
    for name, fixed in FIXED.items():
        if settings.get(name) != fixed:
            yield (
                f"not a run of `ipclab qualify`: {name} is "
                f"{settings.get(name)!r}, not {fixed!r}"
            )
    if settings.get("delays"):  # runs of older versions do not have this option
        yield "not a run of `ipclab qualify`: its roles paused at random (--delays)"
    if document["filtered"]:
        yield "the run was filtered: a part of the suite only"
    for name in fingerprint.PLANTED:
        if name in document["fingerprint"].get("variables", {}):
            yield f"made with a fault planted on purpose: {name} was set"


def _attempts(document: Document, found: list[Record]) -> Iterator[str]:
    tests = document["manifest"]["tests"]
    times = Counter((record["ctest"], record["attempt"]) for record in found)
    for (name, attempt), count in times.items():
        if name not in tests:
            yield f"{name}: a record of a test that is not in the run's list"
        elif count > 1:
            yield f"{name}: attempt {attempt} is recorded {count} times"
        elif attempt > REPEAT:
            yield f"{name}: attempt {attempt} of {REPEAT}"
    for name in tests:
        missing = [str(x) for x in range(1, REPEAT + 1) if (name, x) not in times]
        if missing:
            yield f"{name}: no record of attempt {', '.join(missing)}"


def _rows(document: Document, found: list[Record]) -> Iterator[str]:
    rows, tests = document["requirements"], document["manifest"]["tests"]
    yield from (
        f"{row}: a row without a test" for row in rows if row not in tests.values()
    )
    for record in found:
        row = tests.get(record["ctest"])
        if record["requirement"] != row and record["ctest"] in tests:
            yield f"{_name(record)}: has row {record['requirement']}, its test {row}"
        elif row is not None and rows.get(row, {}).get("kind") != record["kind"]:
            yield f"{_name(record)}: {row} is not {record['kind']} in this catalogue"


def _machine(document: Document, found: list[Record]) -> Iterator[str]:
    machine = document["fingerprint"]
    if machine.get("id") != fingerprint.identity(machine):
        yield "run.json: the fingerprint was edited: its id does not match"
    here = machine.get("id"), document["backend"]
    others: dict[tuple[Any, Any], list[Record]] = {}
    for record in found:
        there = record["fingerprint"], record["backend"]
        if there != here:
            others.setdefault(there, []).append(record)
    for (name, backend), foreign in others.items():
        yield (
            f"{len(foreign)} records of another machine ({backend}, fingerprint "
            f"{name}; this run's: {here[1]}, {here[0]}), first {_name(foreign[0])}"
        )


def _verdicts(document: Document, found: list[Record]) -> Iterator[str]:
    day = document["started"][:10]
    for record in found:
        entry = record["deviation"]
        if record["verdict"] == "deviates" and entry is None:
            yield f"{_name(record)}: deviates, but no entry says so"
        if entry and entry["requirement"] != record["requirement"]:
            yield f"{_name(record)}: its deviation is of {entry['requirement']}"
        if entry and entry.get("test", record["test"]) != record["test"]:
            yield f"{_name(record)}: its deviation is of {entry['test']}"
        if entry and deviations.expired(entry, day):
            yield f"{_name(record)}: its deviation had expired on {entry['expires']}"
        verdict = records.verdict(record, record["kind"], entry)[0]
        if record["verdict"] not in (verdict, "broken"):
            yield (
                f"{_name(record)}: says '{record['verdict']}', but its "
                f"outcome '{record['outcome']}' means '{verdict}'"
            )
    table = records.rows(found)
    for row in table:
        if row.verdict in ("broken", "flaky"):
            yield f"{row.ctest}: {row.shown}: {row.reason.partition(chr(10))[0]}"
    if document["counts"] != (counts := records.counts(table)):
        yield f"run.json: counts {document['counts']}, the records give {counts}"


def _kill_matrix(document: Document, kills: matrix.Document | None) -> Iterator[str]:
    """Check that the kill matrix in the folder is whole and of the same machine."""
    if kills is None:
        return
    for name in ("backend", "machine"):
        if kills[name] != document[name]:
            yield f"{matrix.NAME}: made on {kills[name]}, the run on {document[name]}"
    part = kills["partial"] or ""
    if left := matrix.left(kills):
        part = f"{left} faults not run"
    if part:
        yield f"{matrix.NAME}: not whole: {part}"


def _node(folder: Path) -> Iterator[str]:
    """Check that what a node of a fleet handed in follows from its records."""
    if not (folder / fleet_node.NODE).exists():
        return
    node = reader.document(folder / fleet_node.NODE, fleet_node.SCHEMA)
    for name, value in fleet_node.of_records(folder).items():
        if node[name] != value:
            yield f"{fleet_node.NODE}: {name} does not follow from the records"


def _against_build(document: Document, build: Path) -> Iterator[str]:
    ran = document["manifest"]
    cases = ctest.read(build)
    suite = [x for x in cases if x.suite in ("sample", "conformance")]
    now = {case.name for case in suite}
    for name in sorted(now - ran["tests"].keys()):
        yield f"{name}: in the build's list, not in the run's"
    for name in sorted(ran["tests"].keys() - now):
        yield f"{name}: in the run's list, not in the build's"
    probes = [case for case in cases if case.suite == "probe"]
    programs = manifest.of_programs(build, [*suite, *probes], document["backend"])
    for name in sorted(programs.keys() | ran["programs"].keys()):
        if programs.get(name) != ran["programs"].get(name):
            yield f"{name}: is not the program that ran"
    folder = ctest.source_folder(build) / "conformance"
    data = manifest.of_data(folder, folder / "deviations.json")
    for name, digest in ran["data"].items():
        if data.get(name) != digest:
            yield f"{name}: is not the one of the run"


def _told(document: Document, found: list[Record]) -> str:
    counts = ", ".join(f"{n} {verdict}" for verdict, n in document["counts"].items())
    failed = "" if document["exit_code"] == 0 else "; the run failed nevertheless"
    if judged := document.get("judged"):
        failed += f"; judged again on {judged['at'][:10]}"
    return (
        f"{len(document['manifest']['tests'])} tests, {len(found)} records, "
        f"{document['machine']}: {counts}{failed}"
    )


def _name(record: Record) -> str:
    return f"{record['ctest']}, attempt {record['attempt']}"
