"""One node of a fleet: its run, what it hands in, and whether that can be trusted.

A node runs the suite into FOLDER/nodes/NAME.part. When the run has finished, it packs
the records, writes node.json and renames the folder to FOLDER/nodes/NAME:

    run.json          of `ipclab run`
    records.jsonl.gz  all records; the merge compares their digest and unpacks nothing
    node.json         whose results these are, and the verdict of each test
    output.txt        what the run printed

The digests reveal accidents and careless edits; they do not stop a forger.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import datetime
import gzip
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipclab import fingerprint, manifest, probe, reader, records, results, schema
from ipclab.errors import HarnessError, UsageError
from ipclab.records import Row

Document = dict[str, Any]

JUDGED, MISSING, LATE, CUT_OFF, NO_DRIVER, REFUSED, BROKEN = (
    "judged",
    "missing",
    "late",
    "cut off",
    "no driver",
    "refused",
    "broken",
)
CLOCK_SECONDS = 120  # the error that a node's clock may have
GOODBYE_SECONDS = 60  # in which a run that was told to stop must have ended
PACKED = 32 * reader.MIB  # records of one attempt have 1 MB
REASON = 300  # letters of a reason that the merge shows
NAMES = ("IPCLAB_NODE", "SLURMD_NODENAME")
# Facts that differ on all nodes and explain nothing.
PRIVATE = ("id", "namespaces", "gpus")
RECORDS, NODE = "records.jsonl", "node.json"
SCHEMA: schema.Schema = {
    "type": "object",
    "properties": {
        "version": {"const": 2},
        "node": {"type": "string", "minLength": 1},
        "fleet": {"type": "string", "minLength": 1},
        "records": schema.RUN["properties"]["manifest"]["properties"]["records"],
        "packed": {"type": "string"},  # SHA-256 of records.jsonl.gz
        "answers": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "ctest": {"type": "string"},
                    "requirement": {"type": ["string", "null"]},
                    "verdict": {"enum": list(records.ORDER)},
                    "shown": {"type": "string"},
                    "reason": {"type": "string"},
                },
                "required": ["ctest", "requirement", "verdict", "shown", "reason"],
                "additionalProperties": False,
            },
        },
        "digest": {"type": "string"},
    },
    "required": [
        *("version", "node", "fleet", "records", "packed", "answers", "digest"),
    ],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Node:
    """The result of one node."""

    name: str
    state: str  # one of the words above
    why: str = ""
    run: Document | None = None  # parts of its run.json, if the node is judged
    rows: tuple[Row, ...] = ()
    key: bytes = b""  # equal for nodes with equal answers

    @property
    def backend(self) -> str:
        """cuda or model; of a node that is judged."""
        assert self.run is not None
        return str(self.run["backend"])


# --- on the node --------------------------------------------------------------


def name_here() -> str:
    """The name under which an engine knows this node."""
    return next((os.environ[x] for x in NAMES if x in os.environ), platform.node())


def run(
    fleet: Document,
    folder: Path,
    name: str,
    build: Path,
    options: Sequence[str],
) -> int:
    """Run the suite on this node, with the results in FOLDER/nodes/NAME; return 0 if
    there are results.

    Replaces unfinished results of an earlier attempt. The verdicts are in the results
    and not in the exit code: a node whose driver fails a row has not failed. Raises
    UsageError if the node already has its results, and HarnessError if the run has not
    finished.
    """
    whole, part = folder / "nodes" / name, folder / "nodes" / f"{name}.part"
    if whole.exists():
        raise UsageError(f"{whole}: this node has its results already")
    shutil.rmtree(part, ignore_errors=True)
    results.make_folder(part)  # from now on, the engine knows that the run has begun
    said = _suite(
        [
            *(sys.executable, "-P", "-m", "ipclab", "run"),
            *("--backend", fleet["backend"], "--build", str(build)),
            *("--results", str(part), *options),
        ]
    )
    last = said.strip().splitlines()[-1:] or ["nothing"]
    if not (part / "run.json").is_file():
        raise HarnessError(f"{name}: no results; the run said: {last[0]}")
    results.write(part / "output.txt", said)
    document = results.read_run(part)
    if document["state"] != "finished":
        state = document["state"]
        raise HarnessError(f"{name}: the run is {state}; it said: {last[0]}")
    _pack(part)
    made = {"node": name, "fleet": fleet["id"], **of_records(part)}
    results.write(part / NODE, json.dumps(manifest.sealed(made)) + "\n")
    part.rename(whole)
    return 0


def _suite(command: Sequence[str]) -> str:
    """What the run prints, until its end. If this process is told to stop, the run is
    told, too, and ends its tests.
    """
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            return process.communicate()[0]
        except BaseException:
            process.terminate()
            try:
                process.communicate(timeout=GOODBYE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
            raise


def _pack(folder: Path) -> None:
    """Replace records.jsonl by records.jsonl.gz."""
    plain = folder / RECORDS
    packed = plain.with_name(f"{RECORDS}.gz")
    try:
        with (
            plain.open("rb") as source,
            packed.open("xb") as target,
            gzip.GzipFile(RECORDS, "wb", fileobj=target, mtime=0) as stream,
        ):
            shutil.copyfileobj(source, stream, reader.MIB)
        packed.chmod(0o600)
        plain.unlink()
    except OSError as error:
        raise HarnessError(f"{packed}: {error.strerror}") from None


def of_records(folder: Path) -> Document:
    """The part of node.json that follows from the records of a results folder.

    Raises UsageError if they cannot be read.
    """
    lines = results.record_lines(folder)
    found, wrong = records.parse_lines(lines)
    if wrong:
        raise UsageError(f"{folder}: {RECORDS}: {wrong}")
    return {
        "version": 2,
        "records": lines.seal.document,
        "packed": reader.digest(folder / f"{RECORDS}.gz", PACKED),
        "answers": [
            {
                "ctest": row.ctest,
                "requirement": row.record["requirement"],
                "verdict": row.verdict,
                "shown": row.shown,
                "reason": row.reason.partition("\n")[0][:REASON],
            }
            for row in records.rows(found)
        ],
    }


# --- in the merge -------------------------------------------------------------


def read(
    folder: Path, fleet: Document, name: str, rows: dict[bytes, tuple[Row, ...]]
) -> Node:
    """What became of a node. No file of the node can make this function fail: results
    that cannot be read or trusted are refused.

    `rows` has the rows of other nodes by key; nodes with equal answers share them.
    """
    shown = reader.plain(name)
    try:
        state, why, document, node = _judge(folder, fleet, name)
    except UsageError as error:
        where = f"{folder / 'nodes' / name}/"
        return Node(shown, REFUSED, reader.plain(str(error).removeprefix(where)))
    except Exception as error:
        # A fault of ours; the other nodes still count. No test may reach this line.
        return Node(shown, REFUSED, f"{UNFORESEEN}{type(error).__name__}")
    if state != JUDGED:
        return Node(shown, state, reader.plain(why))
    told = [document["backend"], *document["problems"]]
    told += [part for x in node["answers"] for part in (x["ctest"], x["shown"])]
    key = hashlib.sha256("\0".join(told).encode()).digest()
    if key not in rows:
        rows[key] = tuple(map(_row, node["answers"]))
    return Node(
        shown,
        JUDGED,
        run={x: document[x] for x in ("backend", "digest", "problems")}
        | {
            "machine": reader.plain(document["machine"]),
            "facts": facts_of(document["fingerprint"]),
            "fingerprint": {},
            "strict": document["settings"]["strict"],
            "requirements": {},  # the catalogue of the fleet; its digest was compared
        },
        rows=rows[key],
        key=key,
    )


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
    # Of a thousand machines, most facts are equal.
    pairs = ((reader.plain(x), reader.plain(y)) for x, y in facts.items())
    return {sys.intern(x): sys.intern(y) for x, y in pairs}


UNFORESEEN = "ipclab cannot read it: "


def _judge(
    folder: Path, fleet: Document, name: str
) -> tuple[str, str, Document, Document]:
    """The state of a node, the reason, and run.json and node.json if it is judged."""
    whole, part = folder / "nodes" / name, folder / "nodes" / f"{name}.part"
    if not whole.is_dir():
        return *_absent(fleet, name, whole, part), {}, {}
    document = results.read_run(whole)
    node = reader.document(whole / NODE, SCHEMA)
    if why := _lie(fleet, name, whole, document, node):
        raise UsageError(why)
    if document["state"] != "finished":
        return CUT_OFF, f"its run is {document['state']}", document, node
    if document["backend"] == "none" or (
        document["backend"] == "cuda" and not document["probe"]["gpus"]
    ):
        why = probe.first_line({**document["probe"], "backend": "none"})
        return NO_DRIVER, why, document, node
    if document["backend"] != fleet["backend"]:
        raise UsageError(f"its run used {document['backend']}, not {fleet['backend']}")
    judged = (*records.JUDGED, *records.FAILING)
    if document["exit_code"] == 3 or document["counts"].keys().isdisjoint(judged):
        problems = document["problems"] or ["no test was judged"]
        return BROKEN, problems[0], document, node
    return JUDGED, "", document, node


def _absent(fleet: Document, name: str, whole: Path, part: Path) -> tuple[str, str]:
    """The state and the reason of a node without complete results."""
    if whole.exists() or whole.is_symlink():
        raise UsageError(f"{whole}: is not a folder")
    said = fleet["said"].get(name)
    if part.is_dir():
        told = _progress(part)
        state = LATE if name in fleet["late"] else CUT_OFF
        return state, f"{told}; {said}" if said else told
    why = fleet["expected"].get(name) or said or "nothing came back"
    return MISSING, why


_CTEST = re.compile(rb'^\{[^{}\[\]]{0,64}"ctest": "([^"]{1,512})"')


def _progress(part: Path) -> str:
    """How far an unfinished run came. Its lines are counted, not read."""
    try:
        selected = str(results.read_run(part)["selected"])
        found = (_CTEST.match(x) for x in results.record_lines(part) if x[-1:] == b"\n")
        tests = {x[1] for x in found if x}
    except UsageError:
        return "no test had ended"
    return f"{len(tests)} of {selected} tests had ended"


def _row(answer: Document) -> Row:
    name = sys.intern(answer["ctest"])
    verdict, shown = (
        sys.intern(answer["verdict"]),
        sys.intern(reader.plain(answer["shown"])),
    )
    record = {"requirement": answer["requirement"], "notes": []}
    return Row(name, verdict, shown, reader.plain(answer["reason"]), record, [])


def _lie(
    fleet: Document, name: str, folder: Path, document: Document, node: Document
) -> str | None:
    """Why the results of a node cannot be trusted; None if they can."""
    if node["fleet"] != fleet["id"]:
        return "the results are of another fleet"
    if node["node"] != name:
        return f"the results are of {node['node']}"
    if document["digest"] != manifest.of_document(document):
        return "run.json was edited: its digest does not match"
    if node["digest"] != manifest.of_document(node):
        return f"{NODE} was edited: its digest does not match"
    ran = document["manifest"]
    packed = reader.digest(folder / f"{RECORDS}.gz", PACKED)
    finished = document["state"] == "finished"
    if packed != node["packed"] or (finished and ran["records"] != node["records"]):
        return f"{RECORDS} was edited or damaged"
    machine = document["fingerprint"]
    if machine["id"] != fingerprint.identity(machine):
        return "the fingerprint was edited: its id does not match"
    suite = fleet["suite"]
    if ran["tests"] != suite["tests"] and not document["filtered"]:
        return "another list of tests"
    for part in ("programs", "data"):
        for file, digest in ran[part].items():
            if suite[part].get(file) != digest:
                return f"another suite: {file} is not the one of this fleet"
    return _clock(fleet, document) or _contradiction(document, node["answers"])


def _clock(fleet: Document, document: Document) -> str | None:
    """Whether the run is of the time from the beginning of the fleet until now."""
    slack = datetime.timedelta(seconds=CLOCK_SECONDS)
    began = datetime.datetime.fromisoformat(fleet["started"]) - slack
    ended = datetime.datetime.now(datetime.UTC) + slack
    for moment in (document["started"], document["finished"]):
        if moment and not began <= datetime.datetime.fromisoformat(moment) <= ended:
            return (
                f"its run is of {document['started']}, outside the time of this fleet: "
                "an old run, or a clock that is wrong"
            )
    return None


def _contradiction(document: Document, answers: list[Document]) -> str | None:
    """Why the answers contradict run.json, although all digests match; None if they do
    not.
    """
    tests = document["manifest"]["tests"]
    for answer in answers:
        name = answer["ctest"]
        if name not in tests:
            return f"{name}: an answer of a test that is not in the list"
        if answer["requirement"] != tests[name]:
            return f"{name}: an answer of another row of the catalogue"
    count = len({x["ctest"] for x in answers})
    if count != document["selected"] or count != len(answers):
        return f"{document['selected']} tests were selected, {count} have an answer"
    counts = dict(Counter(x["verdict"] for x in answers))
    if document["counts"] != counts:
        return f"run.json counts {document['counts']}, the answers give {counts}"
    return None
