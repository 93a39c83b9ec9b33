"""`ipclab doctor`: what this machine can share, and what prevents sharing."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ipclab import (
    backend,
    checks,
    ctest,
    expect,
    machine,
    peers,
    probe,
    reader,
    results,
)
from ipclab.backend import Backend
from ipclab.checks import Finding
from ipclab.ctest import Case
from ipclab.errors import UsageError
from ipclab.machine import Machine

COLOURS = {"blocks": "bold red", "limits": "yellow", "unknown": "blue", "fine": "green"}


RECORDED = {
    "type": "object",
    "properties": {"machine": machine.SCHEMA},
    "required": ["machine"],
}


@dataclass(frozen=True)
class Request:
    """What the caller requests."""

    build: Path
    backend: str = "cuda"
    profile: str | None = None
    pid: int | None = None  # compare with this process
    record: Path | None = None  # judge the machine whose facts are in this file
    expect: Path | None = None  # write what the machine can do into this file
    peers: bool = False  # move data between all GPUs
    json: Path | None = (
        None  # write facts and findings there; "-": print them, and no tables
    )


def run(out: Console, request: Request) -> int:
    """Print tables and findings; return 0 if something can be shared, 1 if not. With
    `peers`, return 1 if the GPUs do not reach each other as the driver promises.
    """
    proof: dict[str, Any] | None = None
    if request.record is not None:
        found = _recorded(request)
    else:
        cases = ctest.read(request.build)
        chosen = backend.choose(request.build, cases, request.backend, request.profile)
        found = _gather(request, cases, chosen)
        if request.peers:
            environment = {**os.environ, **chosen.environment}
            proof = peers.prove(cases, environment, len(found.probe["gpus"]))
    findings = checks.judge(found)
    shared = checks.shared(found)
    if request.expect is not None:
        expect.write(request.expect, found.probe)
    if request.json is not None:
        document = _document(found, findings, shared)
        if proof is not None:
            document["peers"] = proof
        _write(out, request.json, document)
    if request.json != Path("-"):
        _show(out, found, findings, shared)
        for line in peers.told(proof) if proof is not None else ():
            out.print(line)
    if proof is not None and proof["verdict"] == "broken":
        return 1
    return 0 if shared else 1


def _gather(request: Request, cases: list[Case], chosen: Backend) -> Machine:

    def ask_gpu(uuid: str) -> probe.Probe:
        alone = {**chosen.environment, "CUDA_VISIBLE_DEVICES": uuid}
        return probe.ask(cases, alone)

    return machine.gather(chosen.probe, ask_gpu, request.pid)


def _recorded(request: Request) -> Machine:
    path = request.record
    assert path is not None
    if request.pid is not None or request.profile is not None:
        raise UsageError("--machine cannot be combined with --with or --profile")
    if request.peers:
        raise UsageError("--machine cannot be combined with --peers")
    document = reader.document(
        path, RECORDED, hint="; `ipclab doctor --json` did not write this file"
    )
    return machine.from_json(document["machine"])


def _document(
    found: Machine, findings: list[Finding], shared: list[str]
) -> dict[str, Any]:
    return {
        "about": probe.first_line(found.probe),
        "shared": shared,
        "findings": [
            {"check": x.check, "title": x.title, **asdict(x.verdict)} for x in findings
        ],
        "machine": machine.to_json(found),
    }


def _write(out: Console, path: Path, document: dict[str, Any]) -> None:
    text = json.dumps(document, indent=1) + "\n"
    if path == Path("-"):
        out.file.write(text)
        return
    results.write_into(path, text)


def _show(
    out: Console, found: Machine, findings: list[Finding], shared: list[str]
) -> None:
    out.print(Text(probe.first_line(found.probe)), soft_wrap=True)
    out.print()
    if any(x["available"] for x in found.probe["capabilities"]):
        out.print(_transports(found.probe))
        out.print()
    out.print(_findings([x for x in findings if x.verdict.state != "fine"]))
    out.print(_fine([x for x in findings if x.verdict.state == "fine"]))
    out.print()
    count = Counter(x.verdict.state for x in findings)
    out.print(Text(", ".join(_counted(count[x], x) for x in checks.STATES if count[x])))
    out.print(
        Text(
            f"can be shared: {', '.join(shared)}" if shared else "nothing can be shared"
        )
    )


def _counted(number: int, state: str) -> str:
    return f"{number} {state if number == 1 else state.removesuffix('s')}"


def _transports(document: probe.Probe) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("transport", "here", "why not", "what it means"):
        table.add_column(name, overflow="fold")
    before = ""
    for entry in document["capabilities"]:
        here = entry["available"]
        reason = "" if here else str(entry["reason"])
        told = "as above" if reason and reason == before else reason
        before = reason
        table.add_row(
            Text(entry["name"]),
            Text("yes" if here else "no", style="green" if here else "yellow"),
            Text(told),
            Text(str(entry.get("meaning", ""))),
        )
    return table


def _findings(findings: list[Finding]) -> Table:
    """Each finding as a small block, so each line has only one text."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        verdict = finding.verdict
        table.add_row(
            Text(verdict.state, style=COLOURS[verdict.state]),
            Text.assemble((finding.title, "bold"), f": {verdict.found}"),
        )
        if verdict.meaning:
            everything = set(verdict.transports) == set(checks.TRANSPORTS)
            concerned = "all" if everything else ", ".join(verdict.transports)
            table.add_row("", Text(f"means: {verdict.meaning} ({concerned})"))
        table.add_row("", Text(f"next: {verdict.next}"))
        table.add_row("", "")
    return table


def _fine(findings: list[Finding]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        state, found = finding.verdict.state, finding.verdict.found
        table.add_row(Text(state, style=COLOURS[state]), finding.title, Text(found))
    return table
