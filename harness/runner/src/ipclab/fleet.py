"""`ipclab fleet`: one run of the suite on each node, collected and merged into one
page.

An engine that the site already has (engines.py) starts `ipclab node` on each node.
`ipclab node` runs the suite and writes a results folder. The folder gets its final name
when it is complete:

    FOLDER/fleet.json        which nodes, which suite, when it began and ended
    FOLDER/nodes/NAME/       run.json, records.jsonl, … and node.json
    FOLDER/nodes/NAME.part/  a run that has not ended, or results that are cut off
    FOLDER/merged.json       what all nodes say (also merged.html)

Nodes with equal answers are one group. Each group except the largest is described by
its differences from the largest group, and by the facts of its machines that no
machine of the largest group shares. A node without complete and valid results has a
state that says why; it is never left out.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import concurrent.futures
import datetime
import functools
import json
import os
import platform
import re
import secrets
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ipclab import (
    compare,
    ctest,
    fingerprint,
    manifest,
    pages,
    records,
    results,
    schema,
)
from ipclab.errors import HarnessError, UsageError
from ipclab.records import Row

Document = dict[str, Any]

JUDGED, MISSING, LATE, CUT_OFF, REFUSED, BROKEN = (
    "judged",
    "missing",
    "late",
    "cut off",
    "refused",
    "broken",
)
MEANING = {  # the states of a node, in the order in which they are shown
    REFUSED: "its results are of another suite or another fleet, or were edited",
    BROKEN: "the harness could not judge there",
    CUT_OFF: "its run began, but did not end",
    LATE: "its run had not ended at the time limit",
    MISSING: "its run never began",
    JUDGED: "it gave complete and valid results",
}
COLOURS = {JUDGED: "green", LATE: "yellow", MISSING: "yellow"}
FEW = 16  # with fewer nodes, one process reads all results
CLOCK_SECONDS = 120  # the error that a node's clock may have
KEPT = (  # the fields of a record that stay in memory
    "ctest",
    "suite",
    "lesson",
    "requirement",
    "verdict",
    "reason",
    "notes",
    "fingerprint",
)
# Facts that differ on all nodes and explain nothing.
PRIVATE = ("id", "namespaces", "gpus")
NODE_NAMES = ("IPCLAB_NODE", "SLURMD_NODENAME")


@dataclass(frozen=True)
class Node:
    """The result of one node."""

    name: str
    state: str  # one of the words above
    why: str = ""
    run: Document | None = None  # parts of its run.json, if the node is judged
    rows: tuple[Row, ...] = ()

    @functools.cached_property
    def facts(self) -> dict[str, str]:
        """A description of the node's machine, made once. Each group that differs needs
        it.
        """
        return facts_of(self.run["fingerprint"]) if self.run else {}

    @property
    def answers(self) -> tuple[tuple[str, str], ...]:
        """Each test with its verdict as shown."""
        return tuple((row.ctest, row.shown) for row in self.rows)


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
    machine: str  # the machine of the first node
    counts: dict[str, int]  # tests by verdict
    failing: list[str]  # tests that fail the run there
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


# --- on a node ----------------------------------------------------------------


def node_name() -> str:
    """The name under which the engine knows this node."""
    return next((os.environ[x] for x in NODE_NAMES if x in os.environ), platform.node())


def run_node(folder: Path, build: Path, options: Sequence[str]) -> int:
    """Run the suite on this node, with the results in FOLDER/nodes/NAME; return 0 if
    there are results.

    Replaces unfinished results of an earlier attempt. The verdicts are in the results
    and not in the exit code: a node whose driver fails a row has not failed. Raises
    UsageError if the node already has its results, and HarnessError if the run made
    none.
    """
    fleet = read_fleet(folder)
    name = node_name()
    whole, part = folder / "nodes" / name, folder / "nodes" / f"{name}.part"
    if whole.exists():
        raise UsageError(f"{whole}: this node has its results already")
    shutil.rmtree(part, ignore_errors=True)
    command = [sys.executable, "-P", "-m", "ipclab", "run", "--build", str(build)]
    done = subprocess.run(
        [*command, "--results", str(part), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if not (part / "run.json").is_file():
        last = done.stdout.strip().splitlines()[-1:] or ["nothing"]
        raise HarnessError(f"{name}: no results; the run said: {last[0]}")
    results.write(part / "output.txt", done.stdout)
    document = {"node": name, "fleet": fleet["id"], "exit_code": done.returncode}
    results.write(part / "node.json", json.dumps(document) + "\n")
    part.rename(whole)
    return 0


# --- the fleet ----------------------------------------------------------------


def begin(
    folder: Path, build: Path, engine: str, expected: dict[str, str | None]
) -> Document:
    """Write FOLDER/fleet.json: the nodes, and why other nodes are left out.

    Raises UsageError if the folder already has nodes, or if no node can run.
    """
    if not any(why is None for why in expected.values()):
        reasons = ", ".join(f"{x} {why}" for x, why in expected.items()) or "no nodes"
        raise UsageError(f"no node can run: {reasons}")
    try:
        (folder / "nodes").mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}; name another") from None
    document: Document = {
        "version": 1,
        "id": secrets.token_hex(8),
        "engine": engine,
        "started": now().isoformat(timespec="seconds"),
        "ended": None,
        "out_of_time": False,
        "expected": expected,
        "suite": suite_of(build),
    }
    save(folder, document)
    return document


def suite_of(build: Path) -> Document:
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
        "programs": manifest.of_programs(build, asked, "model"),
        "data": {
            name: manifest.of_file(source / name)
            for name in ("requirements.json", "deviations.json")
        },
    }


def save(folder: Path, document: Document) -> None:
    """Write FOLDER/fleet.json."""
    results.write(folder / "fleet.json", json.dumps(document, indent=1) + "\n")


def read_fleet(folder: Path) -> Document:
    """FOLDER/fleet.json; UsageError if this is not a fleet's folder."""
    path = folder / "fleet.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        for field, kind in (("id", str), ("expected", dict), ("suite", dict)):
            if not isinstance(document[field], kind):
                raise KeyError(field)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; no fleet here") from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{path}: is not what `ipclab fleet` writes") from None
    return dict(document)


# --- gather -------------------------------------------------------------------


def gather(folder: Path) -> tuple[Document, list[Node]]:
    """The fleet and the result of each node, in the order of names."""
    fleet = read_fleet(folder)
    names = set(fleet["expected"])
    if (folder / "nodes").is_dir():
        names |= {x.name.removesuffix(".part") for x in (folder / "nodes").iterdir()}
    ordered = sorted(names, key=_natural)
    read = functools.partial(_node, folder, fleet)
    if len(ordered) < FEW:
        nodes = [read(name) for name in ordered]
    else:  # one node takes 50 ms of a core
        with concurrent.futures.ProcessPoolExecutor() as pool:
            nodes = list(pool.map(read, ordered, chunksize=8))
    first: dict[str, str] = {}
    for i, node in enumerate(nodes):
        if node.run is None:
            continue
        other = first.setdefault(node.run["digest"], node.name)
        if other != node.name:
            nodes[i] = Node(node.name, REFUSED, f"handed in the results of {other}")
    return fleet, nodes


def _node(folder: Path, fleet: Document, name: str) -> Node:
    whole, part = folder / "nodes" / name, folder / "nodes" / f"{name}.part"
    if not whole.is_dir():
        if (why := fleet["expected"].get(name)) is not None:
            return Node(name, MISSING, why)
        if not part.is_dir():
            return Node(name, MISSING, "nothing came back")
        return Node(name, LATE if fleet["out_of_time"] else CUT_OFF, _progress(part))
    try:
        document, lines, seal = _read(whole)
    except UsageError as error:
        return Node(name, REFUSED, str(error).removeprefix(f"{whole}/"))
    if why := _lie(fleet, name, whole, document, seal):
        return Node(name, REFUSED, why)
    if document["state"] != "finished":
        return Node(name, CUT_OFF, f"its run is {document['state']}")
    try:
        rows = records.rows([_slim(line) for line in lines])
    except (ValueError, KeyError, TypeError):
        return Node(name, REFUSED, "records.jsonl holds something else")
    if document["exit_code"] == 3 or not rows:
        problems = document["problems"] or ["no test was judged"]
        return Node(name, BROKEN, str(problems[0]))
    if why := _contradiction(document, rows):
        return Node(name, REFUSED, why)
    kept = {x: document[x] for x in ("digest", "machine", "fingerprint")}
    kept["requirements"] = {}  # the catalogue of the fleet; its digest was compared
    return Node(name, JUDGED, run=kept, rows=tuple(rows))


def _read(
    folder: Path,
) -> tuple[Document, list[bytes], Document]:
    """Read run.json and the records, and compute the seal of the records; UsageError
    if a file is missing, damaged or too large, or if run.json is not valid.
    """
    path = folder / "run.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"{path}: is not JSON") from None
    if wrong := schema.error(document, schema.RUN, "run.json"):
        raise UsageError(wrong)
    return (document, *results.read_lines(folder))


def _slim(line: bytes) -> records.Record:
    """The fields of a record that KEPT names. Only these fields stay in memory, because
    there may be a thousand nodes. The digest of all records was already compared, so
    the record is not checked against the schema.
    """
    record: records.Record = json.loads(line)
    return {field: record[field] for field in KEPT}


def _progress(part: Path) -> str:
    try:
        contents = results.read(part)
    except UsageError:
        return "no test had ended"
    tests = len({record["ctest"] for record in contents.records})
    return f"{tests} of {contents.run.get('selected', '?')} tests had ended"


def _lie(
    fleet: Document, name: str, folder: Path, document: Document, seal: Document
) -> str | None:
    """Why the results of a node cannot be trusted; None if they can."""
    try:
        node = json.loads((folder / "node.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "node.json is missing or damaged"
    if node.get("fleet") != fleet["id"]:
        return "the results are of another fleet"
    if node.get("node") != name:
        return f"the results are of {node.get('node')}"
    if document.get("digest") != manifest.of_document(document):
        return "run.json was edited: its digest does not match"
    ran = document["manifest"]
    if document["state"] == "finished" and ran["records"] != seal:
        return "records.jsonl was edited or damaged"
    machine = document["fingerprint"]
    if machine.get("id") != fingerprint.identity(machine):
        return "the fingerprint was edited: its id does not match"
    suite = fleet["suite"]
    if ran["tests"] != suite["tests"] and not document["filtered"]:
        return "another list of tests"
    for part in ("programs", "data"):
        for file, digest in ran[part].items():
            if suite[part].get(file) != digest:
                return f"another suite: {file} is not the one of this fleet"
    return _clock(fleet, document)


def _contradiction(document: Document, rows: Sequence[Row]) -> str | None:
    """Why the records contradict run.json, although both digests match; None if they do
    not.
    """
    tests = document["manifest"]["tests"]
    for row in rows:
        if row.ctest not in tests:
            return f"{row.ctest}: a record of a test that is not in the list"
        if row.record["requirement"] != tests[row.ctest]:
            return f"{row.ctest}: a record of another row of the catalogue"
        if row.verdict not in records.ORDER:
            return f"{row.ctest}: {row.verdict} is not a verdict"
        if any(x["fingerprint"] != document["fingerprint"]["id"] for x in row.attempts):
            return f"{row.ctest}: a record of another machine"
    if len(rows) != document["selected"]:
        return f"{document['selected']} tests were selected, {len(rows)} have a record"
    if document["counts"] != (counts := records.counts(rows)):
        return f"run.json counts {document['counts']}, the records give {counts}"
    return None


def _clock(fleet: Document, document: Document) -> str | None:
    slack = datetime.timedelta(seconds=CLOCK_SECONDS)
    try:
        began = datetime.datetime.fromisoformat(fleet["started"]) - slack
        ended = now() if fleet["ended"] is None else _time(fleet["ended"])
        times = [_time(document[x]) for x in ("started", "finished") if document[x]]
    except (ValueError, TypeError):
        return "run.json has no valid time"
    if all(began <= time <= ended + slack for time in times):
        return None
    return (
        f"its run is of {document['started']}, outside the time of this fleet: "
        "an old run, or a clock that is wrong"
    )


# --- merge --------------------------------------------------------------------


def merge(
    fleet: Document, nodes: Sequence[Node], baseline: Path | None = None
) -> Merged:
    """One document for all nodes.

    Without a baseline the exit code is 1 if a test fails on any node, or if a node did
    not answer. A baseline is a results folder of `ipclab run`. With a baseline, a test
    fails the fleet only if it passed in the baseline, or if it is missing now. A node
    that did not answer still fails the fleet.
    """
    before = compare.read(baseline) if baseline is not None else None
    by_answers: dict[tuple[tuple[str, str], ...], list[Node]] = {}
    for node in nodes:
        if node.state == JUDGED:
            by_answers.setdefault(node.answers, []).append(node)
    alike = sorted(by_answers.values(), key=lambda x: (-len(x), _natural(x[0].name)))
    groups = [_group(members, alike[0], before) for members in alike]
    states: dict[str, list[str]] = {}
    for state in MEANING:
        if found := [node.name for node in nodes if node.state == state]:
            states[state] = found
    bad = any(x.failing if before is None else x.regressed for x in groups)
    absent = states.keys() - {JUDGED}
    return Merged(
        fleet={name: value for name, value in fleet.items() if name != "suite"},
        nodes=states,
        why={node.name: node.why for node in nodes if node.state != JUDGED},
        groups=groups,
        baseline=str(baseline) if baseline is not None else None,
        exit_code=1 if bad or absent or not groups else 0,
    )


def _group(
    members: list[Node], usual: list[Node], before: compare.Read | None
) -> Group:
    one = members[0]
    assert one.run is not None
    regressed = []
    if before is not None:
        found = compare.difference(
            before, (one.run, list(one.rows)), compare.by_verdict
        )
        regressed = [x.test for x in found.changes if x.what in compare.WORSE]
    return Group(
        nodes=[node.name for node in members],
        machine=str(one.run["machine"]),
        counts=records.counts(one.rows),
        failing=[row.ctest for row in one.rows if row.verdict in records.FAILING],
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
    ours, theirs = ([node.facts for node in x] for x in (here, usual))
    told = []
    for name in dict.fromkeys(fact for facts in [*ours, *theirs] for fact in facts):
        mine, usual_ones = (
            sorted({facts.get(name, "none") for facts in x}) for x in (ours, theirs)
        )
        if set(mine).isdisjoint(usual_ones):
            told.append((name, ", ".join(mine[:3]), ", ".join(usual_ones[:3])))
    return told


def facts_of(machine: Document) -> dict[str, str]:
    """The facts of a fingerprint that are equal on two machines of one kind."""
    gpus = machine.get("gpus", [])
    kinds = Counter(str(gpu.get("name")) for gpu in gpus)
    facts = {
        "driver": str(machine.get("driver")),
        "GPUs": ", ".join(f"{n} x {name}" for name, n in kinds.items()) or "none",
    }
    for field in ("compute_mode", "mig", "memory_bytes", "vbios"):
        if values := {str(gpu[field]) for gpu in gpus if field in gpu}:
            facts[f"GPU {field.replace('_', ' ')}"] = ", ".join(sorted(values))
    for name, value in machine.items():
        if name in PRIVATE or name == "driver":
            continue
        if isinstance(value, dict):
            facts |= {f"{name} {key}": str(x) for key, x in value.items()}
        else:
            facts[name.replace("_", " ")] = str(value)
    return facts


# --- show ---------------------------------------------------------------------


def show(out: Console, merged: Merged) -> None:
    """Print the merged answer: a table of groups, then the nodes without an answer."""
    total = sum(len(x) for x in merged.nodes.values())
    told = ", ".join(f"{len(x)} {state}" for state, x in merged.nodes.items())
    out.print(Text(f"{total} nodes: {told}"), soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("nodes", "which", "verdicts", "what differs"):
        table.add_column(name, overflow="fold")
    for group in merged.groups:
        table.add_row(
            str(len(group.nodes)),
            folded(group.nodes),
            ", ".join(f"{n} {verdict}" for verdict, n in group.counts.items()),
            Text(_told(group), style="bold red" if group.failing else ""),
        )
    out.print(table)
    for state, names in merged.nodes.items():
        if state == JUDGED:
            continue
        for why, alike in pages.grouped((merged.why[x], x) for x in names).items():
            line = f"{state}: {folded(alike)}: {why}"
            out.print(Text(line, style=COLOURS.get(state, "bold red")), soft_wrap=True)
    for group in merged.groups:
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
    models = [g.machine.startswith("reference model") for g in merged.groups]
    return pages.render(
        "fleet.html.j2",
        merged=merged,
        meaning=MEANING,
        on_model=pages.ON_MODEL if models and all(models) else None,
        folded=folded,
        grouped=pages.grouped,
        judged=JUDGED,
    )


def finish(out: Console, folder: Path, baseline: Path | None, to: Path | None) -> int:
    """Gather and merge the results in FOLDER, show them, and write merged.json and
    merged.html; return the exit code. If `to` is given, it gets a copy of merged.json.
    """
    merged = merge(*gather(folder), baseline)
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


def _time(text: str) -> datetime.datetime:
    time = datetime.datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=datetime.UTC)


def now() -> datetime.datetime:
    """The current time, with its time zone."""
    return datetime.datetime.now(datetime.UTC)
