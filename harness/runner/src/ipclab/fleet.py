"""`ipclab fleet`: one run of the suite on each node, collected and merged into one
page.

An engine that the site already has (engines.py) starts `ipclab node` on each node,
which writes a results folder (fleet_node.py):

    FOLDER/fleet.json        which nodes, which suite, when it began and ended
    FOLDER/nodes/NAME/       the results of a node
    FOLDER/nodes/NAME.part/  a run that has not ended, or results that are cut off
    FOLDER/engine/NAME.log   what the engine said about a node
    FOLDER/merged.json       what all nodes say (also merged.html)

Nodes with equal answers are one group. Each group except the largest is described by
its differences from the largest group, and by the facts of its machines that no
machine of the largest group shares. A node without complete and valid results has a
state that says why; it is never left out.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import datetime
import json
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ipclab import compare, ctest, manifest, pages, reader, records, results, schema
from ipclab.errors import UsageError
from ipclab.fleet_node import (
    BROKEN,
    CUT_OFF,
    JUDGED,
    LATE,
    MISSING,
    NO_DRIVER,
    REFUSED,
    Node,
    read,
)

Document = dict[str, Any]
Say = Callable[[str], None]

MEANING = {  # the states of a node, in the order in which they are shown
    REFUSED: "its results cannot be read, are of another suite or another fleet, or "
    "were edited",
    NO_DRIVER: "it has no working driver, so nothing was judged there",
    BROKEN: "the harness could not judge there",
    CUT_OFF: "its run began, but did not end",
    LATE: "its run had not ended at the time limit",
    MISSING: "its run never began",
    JUDGED: "it gave complete and valid results",
}
COLOURS = {JUDGED: "green", LATE: "yellow", MISSING: "yellow"}
BACKENDS = {"cuda": "the driver", "model": "the reference model"}
SAY_SECONDS = 2.0  # between two lines of progress
_TEXTS: schema.Schema = {"type": "object", "additionalProperties": {"type": "string"}}
SCHEMA: schema.Schema = {
    "type": "object",
    "properties": {
        "version": {"const": 2},
        "id": {"type": "string", "minLength": 1},
        "engine": {"type": "string"},
        "backend": {"enum": list(BACKENDS)},
        "started": {"type": "string", "format": "date-time"},
        "ended": {"type": ["string", "null"], "format": "date-time"},
        # Each node that was asked for, with the reason why it was not started.
        "expected": {
            "type": "object",
            "additionalProperties": {"type": ["string", "null"]},
        },
        "said": _TEXTS,  # what the engine said about a node that failed
        "late": {"type": "array", "items": {"type": "string"}},
        "suite": {
            "type": "object",
            "properties": {
                x: schema.RUN["properties"]["manifest"]["properties"][x]
                for x in ("tests", "programs", "data")
            },
            "required": ["tests", "programs", "data"],
            "additionalProperties": False,
        },
    },
    "required": [
        *("version", "id", "engine", "backend", "started", "ended"),
        *("expected", "said", "late", "suite"),
    ],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Difference:
    """One test that a group answers differently from the largest group."""

    test: str
    requirement: str | None
    usual: str  # the largest group's verdict, or "not there"
    here: str
    reason: str


@dataclass(frozen=True)
class Group:
    """Nodes with equal answers."""

    nodes: list[str]
    backend: str  # cuda or model
    machine: str  # the machine of the first node
    counts: dict[str, int]  # tests by verdict
    failing: list[str]  # tests that fail the run there
    problems: list[str]  # what else fails the run there
    differences: list[Difference]  # from the largest group
    machines: list[tuple[str, str, str]]  # fact, value here, value in the largest group
    regressed: list[str]  # tests that are worse than in the baseline


@dataclass(frozen=True)
class Merged:
    """What all nodes say; `exit_code` is that of `ipclab fleet`."""

    fleet: Document
    nodes: dict[str, list[str]]  # state: names
    why: dict[str, str]  # name: why it is not judged
    groups: list[Group]  # the largest first
    baseline: str | None
    exit_code: int


# --- the fleet ----------------------------------------------------------------


def begin(
    folder: Path,
    build: Path,
    engine: str,
    backend: str,
    expected: dict[str, str | None],
) -> Document:
    """Write FOLDER/fleet.json: the nodes, and why other nodes are left out. If FOLDER
    is a fleet already, nodes are added to it.

    Raises UsageError if the folder holds something else or a fleet of another suite or
    backend, or if no node can run.
    """
    if not any(why is None for why in expected.values()):
        reasons = ", ".join(f"{x} {why}" for x, why in expected.items()) or "no nodes"
        raise UsageError(f"no node can run: {reasons}")
    for name in expected:
        if name in (".", "..") or not re.fullmatch(r"[A-Za-z0-9._-]+", name):
            raise UsageError(f"{reader.plain(name)!r} is not the name of a node")
    suite = suite_of(build, backend)
    if (folder / "fleet.json").exists():
        document = read_fleet(folder)
        if document["suite"] != suite or document["backend"] != backend:
            raise UsageError(f"{folder}: is a fleet of another suite; name another")
        document["expected"] |= expected
    else:
        results.make_folder(folder, "name another, or the folder of a fleet")
        document = create(secrets.token_hex(8), engine, backend, expected, suite)
        (folder / "nodes").mkdir()
    save(folder, document)
    return document


def create(
    identity: str,
    engine: str,
    backend: str,
    expected: dict[str, str | None],
    suite: Document,
) -> Document:
    """A new fleet that begins now."""
    return {
        "version": 2,
        "id": identity,
        "engine": engine,
        "backend": backend,
        "started": now().isoformat(timespec="seconds"),
        "ended": None,
        "expected": expected,
        "said": {},
        "late": [],
        "suite": suite,
    }


def suite_of(build: Path, backend: str) -> Document:
    """The list of tests that every node must have, and the digests of the programs and
    data that it must have used.
    """
    cases = ctest.read(build)
    asked = [x for x in cases if x.suite in ("sample", "conformance", "probe")]
    source = ctest.source_folder(build) / "conformance"
    return {
        "tests": {
            x.name: x.requirement for x in asked if x.suite in ("sample", "conformance")
        },
        "programs": manifest.of_programs(build, asked, backend),
        "data": manifest.of_data(source, source / "deviations.json"),
    }


def save(folder: Path, document: Document) -> None:
    """Write FOLDER/fleet.json."""
    results.write(folder / "fleet.json", json.dumps(document, indent=1) + "\n")


def read_fleet(folder: Path) -> Document:
    """FOLDER/fleet.json; UsageError if this is not a fleet's folder."""
    path = folder / "fleet.json"
    if not path.exists():
        raise UsageError(f"{path}: no such file; no fleet here")
    return reader.document(path, SCHEMA, hint="; `ipclab fleet` did not write this")


# --- gather -------------------------------------------------------------------


def gather(folder: Path, say: Say = lambda line: None) -> tuple[Document, list[Node]]:
    """The fleet and the result of each node, in the order of names. Rows are kept once
    for all nodes with equal answers.
    """
    fleet = read_fleet(folder)
    names = set(fleet["expected"])
    if (folder / "nodes").is_dir():
        for path in (folder / "nodes").iterdir():
            name = path.name.removesuffix(".part")
            names.add(name if name.strip(".") else path.name)
    nodes: list[Node] = []
    rows: dict[bytes, tuple[records.Row, ...]] = {}
    first: dict[str, str] = {}  # the digest of a run, and the node that has it
    told = time.monotonic()
    for name in sorted(names, key=_natural):
        node = read(folder, fleet, name, rows)
        if node.run is not None:
            other = first.setdefault(node.run["digest"], node.name)
            if other != node.name:
                node = Node(node.name, REFUSED, f"handed in the results of {other}")
        nodes.append(node)
        if time.monotonic() - told > SAY_SECONDS:
            told = time.monotonic()
            say(f"read the results of {len(nodes)} of {len(names)} nodes")
    return fleet, nodes


# --- merge --------------------------------------------------------------------


def merge(
    fleet: Document, nodes: Sequence[Node], baseline: Path | None = None
) -> Merged:
    """One document for all nodes.

    The exit code is 1 if a test fails on any node or nodes answer differently; if not,
    3 if a node has no answer; otherwise 0. A baseline is a results folder of `ipclab
    run`. With a baseline, nodes may answer differently, and a test fails the fleet only
    if it passed in the baseline, or if it is missing now.
    """
    before = compare.read(baseline) if baseline is not None else None
    by_answers: dict[bytes, list[Node]] = {}
    for node in nodes:
        if node.state == JUDGED:
            by_answers.setdefault(node.key, []).append(node)
    alike = sorted(by_answers.values(), key=lambda x: (-len(x), _natural(x[0].name)))
    groups = [_group(members, alike[0], before) for members in alike]
    states: dict[str, list[str]] = {}
    for state in MEANING:
        if found := [node.name for node in nodes if node.state == state]:
            states[state] = found
    if before is None:
        bad = len(groups) > 1 or any(x.failing or x.problems for x in groups)
    else:
        bad = any(x.regressed or x.problems for x in groups)
    absent = states.keys() - {JUDGED} or not groups
    return Merged(
        fleet={name: value for name, value in fleet.items() if name != "suite"},
        nodes=states,
        why={node.name: node.why for node in nodes if node.state != JUDGED},
        groups=groups,
        baseline=str(baseline) if baseline is not None else None,
        exit_code=1 if bad else 3 if absent else 0,
    )


def _group(
    members: list[Node], usual: list[Node], before: compare.Read | None
) -> Group:
    one = members[0]
    assert one.run is not None
    problems = [reader.plain(x) for x in one.run["problems"]]
    regressed = []
    if before is not None:
        found = compare.difference(
            before, (one.run, list(one.rows)), compare.by_verdict
        )
        regressed = [x.test for x in found.changes if x.what in compare.WORSE]
        problems = [x for x in problems if x not in before[0]["problems"]]
    strict = bool(one.run["strict"])
    return Group(
        nodes=[node.name for node in members],
        backend=one.backend,
        machine=str(one.run["machine"]),
        counts=records.counts(one.rows),
        failing=[x.ctest for x in one.rows if records.fails(x.verdict, strict)],
        problems=problems,
        differences=[] if members is usual else list(_differences(usual[0], one)),
        machines=[] if members is usual else _machines(usual, members),
        regressed=regressed,
    )


def _differences(usual: Node, here: Node) -> Iterable[Difference]:
    there = {row.ctest: row for row in usual.rows}
    own = {row.ctest: row for row in here.rows}
    for name in there | own:
        a, b = there.get(name), own.get(name)
        row = b or a
        assert row is not None
        usually, seen = (x.shown if x else "not there" for x in (a, b))
        if usually != seen:
            reason = row.reason.partition("\n")[0]
            yield Difference(name, row.record["requirement"], usually, seen, reason)


def _machines(usual: list[Node], here: list[Node]) -> list[tuple[str, str, str]]:
    """The facts that differ between the machines of two groups, with both values."""
    ours, theirs = (
        [node.run["facts"] for node in nodes if node.run] for nodes in (here, usual)
    )
    told = []
    for name in dict.fromkeys(fact for facts in [*ours, *theirs] for fact in facts):
        mine, usual_ones = (
            sorted({facts.get(name, "none") for facts in x}) for x in (ours, theirs)
        )
        if set(mine).isdisjoint(usual_ones):
            told.append((name, ", ".join(mine[:3]), ", ".join(usual_ones[:3])))
    return told


# --- show ---------------------------------------------------------------------


def show(out: Console, merged: Merged) -> None:
    """Print the merged answer: a table of groups, then the nodes without an answer."""
    total = sum(len(x) for x in merged.nodes.values())
    told = ", ".join(f"{len(x)} {state}" for state, x in merged.nodes.items())
    judges = BACKENDS[merged.fleet["backend"]]
    out.print(Text(f"{total} nodes, judging {judges}: {told}"), soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("nodes", "which", "backend", "verdicts", "what differs"):
        table.add_column(name, overflow="fold")
    for group in merged.groups:
        table.add_row(
            str(len(group.nodes)),
            Text(folded(group.nodes)),
            group.backend,
            ", ".join(f"{n} {verdict}" for verdict, n in group.counts.items()),
            Text(
                _told(group),
                style="bold red" if group.failing or group.problems else "",
            ),
        )
    out.print(table)
    for state, names in merged.nodes.items():
        if state == JUDGED:
            continue
        for why, alike in pages.grouped((merged.why[x], x) for x in names).items():
            line = f"{state}: {folded(alike)}: {why}"
            out.print(Text(line, style=COLOURS.get(state, "bold red")), soft_wrap=True)
    for group in merged.groups:
        for problem in group.problems:
            line = f"problem on {folded(group.nodes)}: {problem}"
            out.print(Text(line, style="bold red"), soft_wrap=True)
        if group.regressed:
            line = f"regressed on {folded(group.nodes)}: {', '.join(group.regressed)}"
            out.print(Text(line, style="bold red"), soft_wrap=True)


def _told(group: Group) -> str:
    if not group.differences:
        return f"fails: {', '.join(group.failing)}" if group.failing else ""
    told = [
        f"{x.requirement or x.test}: {x.here}, not {x.usual}"
        for x in group.differences[:5]
    ]
    if (more := len(group.differences) - 5) > 0:
        told.append(f"and {more} more")
    if group.machines:
        facts = [f"{name} {here}" for name, here, _ in group.machines[:4]]
        told.append(f"there: {'; '.join(facts)}")
    return ". ".join(told)


def page(merged: Merged) -> str:
    """The merged answer as a page."""
    return pages.render(
        "fleet.html.j2",
        merged=merged,
        meaning=MEANING,
        backends=BACKENDS,
        on_model=pages.ON_MODEL if merged.fleet["backend"] == "model" else None,
        folded=folded,
        grouped=pages.grouped,
        judged=JUDGED,
    )


def finish(out: Console, folder: Path, baseline: Path | None, to: Path | None) -> int:
    """Gather and merge the results in FOLDER, show them, and write merged.json and
    merged.html; return the exit code. If `to` is given, it gets a copy of merged.json.
    """

    def say(line: str) -> None:
        out.print(Text(line), soft_wrap=True)

    merged = merge(*gather(folder, say), baseline)
    text = json.dumps(asdict(merged), indent=1) + "\n"
    for path in [folder / "merged.json", *([to] if to else [])]:
        results.write(path, text)
    results.write(folder / "merged.html", page(merged))
    show(out, merged)
    out.print(Text(str(folder / "merged.html")), soft_wrap=True)
    return merged.exit_code


def folded(names: Sequence[str]) -> str:
    """Names of nodes in short form: successive numbers become ranges, as in n[1-4,7],
    gpu-a.
    """
    by_prefix: dict[tuple[str, str], list[str]] = {}
    for name in names:
        found = re.fullmatch(r"(.*?)([0-9]+)(\D*)", name)
        prefix, number, rest = found.groups() if found else (name, "", "")
        by_prefix.setdefault((prefix, rest), []).append(number)
    return ", ".join(
        f"{prefix}{_ranges(numbers)}{rest}"
        for (prefix, rest), numbers in by_prefix.items()
    )


def _ranges(numbers: list[str]) -> str:
    if len(numbers) == 1:
        return numbers[0]
    runs: list[list[str]] = []
    for text in sorted(numbers, key=int):
        last = runs[-1][-1] if runs else None
        if last is not None and int(text) == int(last) + 1 and len(text) >= len(last):
            runs[-1].append(text)
        else:
            runs.append([text])
    return (
        "[" + ",".join(x[0] if len(x) == 1 else f"{x[0]}-{x[-1]}" for x in runs) + "]"
    )


def _natural(name: str) -> list[tuple[int, str]]:
    """A sort key that puts n2 before n10."""
    return [
        (int(x), "") if x.isdigit() else (-1, x) for x in re.split(r"([0-9]+)", name)
    ]


def now() -> datetime.datetime:
    """The current time, with its time zone."""
    return datetime.datetime.now(datetime.UTC)
