"""A fleet: which nodes answered, did not answer or gave false results, and how machines
differ."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import base64
import datetime
import functools
import gzip
import json
import os
import random
import resource
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import psutil
import pytest

from conftest import SOURCE, Build
from ipclab import (
    engines,
    fingerprint,
    fleet,
    fleet_node,
    manifest,
    reader,
    records,
    results,
)
from ipclab.errors import UsageError

Document = dict[str, Any]

RECORDED = Path(__file__).parents[3] / "docs" / "results" / "h200-580.159"


@functools.cache
def recorded() -> tuple[list[records.Record], dict[str, Any]]:
    """The first attempts of the recorded run, without what its roles did, and
    run.json. Nobody may change them.
    """
    lines = map(json.loads, results.record_lines(RECORDED))
    found = [{**x, "timeline": [], "roles": []} for x in lines]
    return (
        [x for x in found if x["attempt"] == 1],
        json.loads((RECORDED / "run.json").read_text()),
    )


class Fleet:
    """A folder of nodes that were made from one recorded run."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.records, self.document = recorded()
        (folder / "nodes").mkdir(parents=True)
        self.names = [f"n{i}" for i in range(1, count + 1)]
        self.started = fleet.now() - datetime.timedelta(minutes=10)
        ran = self.document["manifest"]
        self.fleet: dict[str, Any] = {
            "version": 2,
            "id": "f1",
            "engine": "slurm",
            "backend": "cuda",
            "started": self.started.isoformat(timespec="seconds"),
            "ended": fleet.now().isoformat(timespec="seconds"),
            "expected": dict.fromkeys(self.names),
            "said": {},
            "late": [],
            "suite": {x: ran[x] for x in ("tests", "programs", "data")},
        }
        self.save()

    def save(self) -> None:
        """Write fleet.json."""
        fleet.save(self.folder, self.fleet)

    def node(
        self,
        name: str,
        change: Callable[[dict[str, Any]], None] | None = None,
        verdicts: dict[str, str] | None = None,
        alter: Callable[[Document], None] | None = None,
        **facts: Any,
    ) -> Path:
        """Add a node. `change` edits run.json, `alter` node.json, before the seal."""
        folder = self.folder / "nodes" / name
        folder.mkdir()
        changed = [
            {**x, "verdict": verdicts[x["ctest"]], "reason": "planted"}
            if verdicts and x["ctest"] in verdicts
            else x
            for x in self.records
        ]
        machine = {**self.document["fingerprint"], **facts, "hostname": name}
        machine["id"] = fingerprint.identity(machine)
        changed = [{**x, "fingerprint": machine["id"]} for x in changed]
        counts = records.counts(records.rows(changed))
        data = b"".join(json.dumps(x).encode() + b"\n" for x in changed)
        packed = gzip.compress(data, 1)
        (folder / "records.jsonl.gz").write_bytes(packed)
        document = json.loads(json.dumps(self.document))
        document |= {"fingerprint": machine, "counts": counts}
        answers = fleet_node.of_records(folder)
        document["manifest"]["records"] = {**answers["records"]}
        for i, field in enumerate(("started", "finished"), 1):
            time = self.started + datetime.timedelta(minutes=i)
            document[field] = time.isoformat(timespec="seconds")
        if change:
            change(document)
        document.pop("digest")
        (folder / "run.json").write_text(json.dumps(manifest.sealed(document)))
        node = {"node": name, "fleet": "f1", **answers}
        if alter:
            alter(node)
        (folder / "node.json").write_text(json.dumps(manifest.sealed(node)))
        return folder

    def merged(self, baseline: Path | None = None) -> fleet.Merged:
        """The merged results of all nodes."""
        return fleet.merge(*fleet.gather(self.folder), baseline)


@pytest.fixture
def four(tmp_path: Path) -> Fleet:
    """Four nodes; the first three have given the same answer."""
    made = Fleet(tmp_path / "fleet", 4)
    for name in made.names[:3]:
        made.node(name)
    return made


def test_equal_answers_are_one_group(four: Fleet) -> None:
    four.node("n4")
    merged = four.merged()
    [group] = merged.groups
    assert group.nodes == ["n1", "n2", "n3", "n4"]
    assert group.counts["conforms"] > 200
    assert merged.exit_code == 0


def test_another_answer_is_told_by_what_differs_in_the_machines(four: Fleet) -> None:
    test = next(x["ctest"] for x in four.records if x["verdict"] == "conforms")
    four.node("n4", verdicts={test: "violates"}, driver="590.1", kernel="7.0")
    merged = four.merged()
    usual, other = merged.groups
    assert usual.nodes == ["n1", "n2", "n3"]
    assert (other.nodes, other.failing) == (["n4"], [test])
    [difference] = other.differences
    assert (difference.usual, difference.here) == ("conforms", "violates")
    assert difference.reason == "planted"
    told = {fact: here for fact, here, _ in other.machines}
    assert told["driver"] == "590.1" and told["kernel"] == "7.0"
    assert "os" not in told
    assert merged.exit_code == 1


def test_missing_cut_off_and_late(four: Fleet) -> None:
    assert four.merged().why == {"n4": "nothing came back"}
    assert four.merged().exit_code == 3
    part = four.node("n4").rename(four.folder / "nodes" / "n4.part")
    packed = part / "records.jsonl.gz"
    lines = gzip.decompress(packed.read_bytes()).splitlines(keepends=True)
    packed.unlink()
    (part / "records.jsonl").write_bytes(b"".join(lines[:10]) + b'{"half')
    merged = four.merged()
    assert merged.nodes["cut off"] == ["n4"]
    told = f"10 of {four.document['selected']} tests had ended"
    assert merged.why["n4"] == told
    four.fleet["late"] = ["n4"]
    four.fleet["said"] = {"n4": "slurm says: cancelled"}
    four.save()
    assert four.merged().nodes["late"] == ["n4"]
    assert four.merged().why["n4"] == f"{told}; slurm says: cancelled"
    shutil.rmtree(part)
    assert four.merged().why == {"n4": "slurm says: cancelled"}
    four.fleet["expected"]["n4"] = "Slurm says drained: a fan"
    four.save()
    assert four.merged().nodes["missing"] == ["n4"]
    assert four.merged().why == {"n4": "Slurm says drained: a fan"}


def edit(path: Path, old: str, new: str) -> None:
    """Replace text in a file, which must have it."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def other_program(document: dict[str, Any]) -> None:
    programs = document["manifest"]["programs"]
    programs[next(iter(programs))] = "0" * 64


def yesterday(document: dict[str, Any]) -> None:
    document["started"] = "2026-01-01T00:00:00+00:00"


def tomorrow(document: dict[str, Any]) -> None:
    document["finished"] = "2999-01-01T00:00:00+00:00"


def other_catalogue(document: dict[str, Any]) -> None:
    document["manifest"]["data"]["requirements.json"] = "0" * 64


def more_records(document: dict[str, Any]) -> None:
    document["manifest"]["records"]["count"] += 1


def other_machine(document: dict[str, Any]) -> None:
    document["fingerprint"]["driver"] = "590.1"


def fewer_tests(document: dict[str, Any]) -> None:
    document["manifest"]["tests"].popitem()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (other_program, "another suite"),
        (other_catalogue, "another suite: requirements.json"),
        (more_records, "records.jsonl was edited"),
        (yesterday, "outside the time of this fleet"),
        (tomorrow, "outside the time of this fleet"),
        (other_machine, "the fingerprint was edited"),
        (fewer_tests, "another list of tests"),
    ],
)
def test_a_lie_is_refused(
    four: Fleet, change: Callable[[dict[str, Any]], None], why: str
) -> None:
    four.node("n4", change)
    merged = four.merged()
    assert merged.nodes["refused"] == ["n4"]
    assert why in merged.why["n4"]
    assert merged.exit_code == 3


def fewer(node: Document) -> None:
    """Leave out an answer."""
    node["answers"].pop()


def twice(node: Document) -> None:
    node["answers"][0] = node["answers"][1]


def other_verdict(node: Document) -> None:
    good = next(x for x in node["answers"] if x["verdict"] == "conforms")
    good["verdict"] = "observed"


def other_row(node: Document) -> None:
    next(x for x in node["answers"] if x["requirement"])["requirement"] = "LMEM-99"


def other_test(node: Document) -> None:
    node["answers"][0]["ctest"] = "conformance.nothing"


def unknown(node: Document) -> None:
    node["answers"][0]["verdict"] = "perfect"


def no_text(node: Document) -> None:
    del node["answers"][0]["reason"]


def other_seal(node: Document) -> None:
    node["records"]["count"] += 1


def other_packed(node: Document) -> None:
    node["packed"] = "0" * 64


@pytest.mark.parametrize(
    ("alter", "why"),
    [
        (fewer, "{all} tests were selected, {left} have an answer"),
        (twice, "{all} tests were selected, {left} have an answer"),
        (other_verdict, "the answers give"),
        (other_row, "an answer of another row"),
        (other_test, "a test that is not in the list"),
        (unknown, 'node.json.answers[0].verdict: "perfect" is none of'),
        (no_text, "node.json.answers[0].reason: is missing"),
        (other_seal, "records.jsonl was edited or damaged"),
        (other_packed, "records.jsonl was edited or damaged"),
    ],
)
def test_a_lie_in_the_answers_is_refused(
    four: Fleet, alter: Callable[[Document], None], why: str
) -> None:
    """The node has sealed false answers, so the digests are right."""
    four.node("n4", alter=alter)
    count = four.document["selected"]
    assert why.format(all=count, left=count - 1) in four.merged().why["n4"]
    assert four.merged().exit_code == 3


@pytest.mark.parametrize(
    ("file", "old", "new", "why"),
    [
        ("node.json", '"conforms"', '"violates"', "node.json was edited"),
        ("run.json", '"conforms": ', '"conforms": 1', "run.json was edited"),
        ("node.json", '"f1"', '"f2"', "of another fleet"),
        ("node.json", '"n4"', '"n1"', "are of n1"),
    ],
)
def test_an_edit_is_refused(
    four: Fleet, file: str, old: str, new: str, why: str
) -> None:
    edit(four.node("n4") / file, old, new)
    assert why in four.merged().why["n4"]


def test_a_damaged_record_is_refused(four: Fleet) -> None:
    path = four.node("n4") / "records.jsonl.gz"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert four.merged().why == {"n4": "records.jsonl was edited or damaged"}


def test_one_run_handed_in_twice_is_refused(four: Fleet) -> None:
    copy = four.folder / "nodes" / "n4"
    shutil.copytree(four.folder / "nodes" / "n1", copy)
    node = json.loads((copy / "node.json").read_text()) | {"node": "n4"}
    (copy / "node.json").write_text(json.dumps(manifest.sealed(node)))
    assert four.merged().why == {"n4": "handed in the results of n1"}


def no_driver(document: Document) -> None:
    reason = {"name": "gpus", "available": False, "reason": "cudaErrorNoDevice (100)"}
    probe = {**document["probe"], "backend": "none", "gpus": []}
    document |= {"backend": "none", "probe": {**probe, "capabilities": [reason]}}


def on_model(document: Document) -> None:
    document["backend"] = "model"


def test_no_gpu_is_never_green(four: Fleet) -> None:
    four.node("n4", no_driver)
    merged = four.merged()
    assert merged.nodes["no driver"] == ["n4"]
    assert merged.why["n4"] == "no GPU: cudaErrorNoDevice (100)"
    assert merged.exit_code == 3
    shutil.rmtree(four.folder / "nodes" / "n4")
    four.node("n4", on_model)
    merged = four.merged()
    assert merged.why == {"n4": "its run used model, not cuda"}
    assert merged.exit_code == 3


def test_a_fleet_on_the_model_says_so(four: Fleet) -> None:
    shutil.rmtree(four.folder / "nodes")
    (four.folder / "nodes").mkdir()
    for name in four.names:
        four.node(name, on_model)
    four.fleet["backend"] = "model"
    four.save()
    merged = four.merged()
    assert merged.exit_code == 0
    assert [group.backend for group in merged.groups] == ["model"]
    assert "it says nothing about a driver" in fleet.page(merged)


def problem(document: Document) -> None:
    document["problems"] = ["LMEM-01 had to be judged here and was not"]


def test_what_fails_a_run_besides_its_tests_fails_the_fleet(four: Fleet) -> None:
    four.node("n4", problem)
    merged = four.merged()
    assert [group.problems for group in merged.groups] == [
        [],
        ["LMEM-01 had to be judged here and was not"],
    ]
    assert merged.exit_code == 1
    assert "LMEM-01 had to be judged" in fleet.page(merged)


def test_nodes_that_differ_do_not_agree(four: Fleet) -> None:
    test = next(x["ctest"] for x in four.records if x["verdict"] == "conforms")
    four.node("n4", verdicts={test: "not applicable"})
    assert four.merged().exit_code == 1
    assert four.merged(RECORDED).nodes == {"judged": four.names}


def test_only_regressions_fail_with_a_baseline(four: Fleet, tmp_path: Path) -> None:
    test = next(x["ctest"] for x in four.records if x["verdict"] == "conforms")
    four.node("n4", verdicts={test: "violates"})
    bad = tmp_path / "bad"
    shutil.copytree(four.folder / "nodes" / "n4", bad)
    good = tmp_path / "good"
    shutil.copytree(four.folder / "nodes" / "n1", good)
    assert four.merged().exit_code == 1
    assert four.merged(bad).exit_code == 0
    merged = four.merged(good)
    assert [group.regressed for group in merged.groups] == [[], [test]]
    assert merged.exit_code == 1


@pytest.mark.nightly
def test_many_nodes_are_one_small_page(tmp_path: Path) -> None:
    """50 nodes: most are equal, 5 have another driver, one is refused, and four do
    not answer.
    """
    made = Fleet(tmp_path / "fleet", 50)
    test = next(x["ctest"] for x in made.records if x["verdict"] == "conforms")
    for name in made.names[:40]:
        made.node(name)
    for name in made.names[40:45]:
        made.node(name, verdicts={test: "violates"}, driver="590.1")
    made.node("n46", yesterday)
    merged = made.merged()
    assert [len(group.nodes) for group in merged.groups] == [40, 5]
    assert merged.nodes["refused"] == ["n46"]
    assert len(merged.nodes["missing"]) == 4
    text = fleet.page(merged)
    assert "n[1-40]" in text and "n[41-45]" in text and "n[47-50]" in text
    assert "590.1" in text
    assert len(text.encode()) < 100_000


@pytest.mark.skipif(
    os.environ.get("IPCLAB_NIGHTLY") != "1", reason="a thousand nodes need a minute"
)
def test_a_thousand_nodes_need_little(tmp_path: Path) -> None:
    """At most 20 s of processor time and 300 MB; the records have their real size."""
    made = Fleet(tmp_path / "fleet", 1000)
    whole = [x for x in results.record_lines(RECORDED) if b'"attempt": 1,' in x[:400]]
    packed = tmp_path / "records.jsonl.gz"
    packed.write_bytes(gzip.compress(b"".join(whole)))
    assert packed.stat().st_size < 2e6
    digest = reader.digest(packed, packed.stat().st_size)
    test = next(x["ctest"] for x in made.records if x["verdict"] == "conforms")
    for number, name in enumerate(made.names):
        odd = {test: "violates"} if number % 50 == 0 else {}
        node = made.node(name, alter=lambda x: x.update(packed=digest), verdicts=odd)
        (node / packed.name).unlink()
        (node / packed.name).hardlink_to(packed)
    command = "from ipclab.cli import main; import sys; sys.exit(main(sys.argv[1:]))"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-P", "-c", command, "fleet", str(made.folder)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 1, done.stderr
    assert "read the results of" in done.stdout
    assert "1000 nodes, judging the driver: 1000 judged" in done.stdout
    used = sum(getattr(after, x) - getattr(before, x) for x in ("ru_utime", "ru_stime"))
    assert used < 20
    assert after.ru_maxrss * 1024 < 300e6


def test_the_command_merges_what_is_there(four: Fleet, build: Build) -> None:
    four.node("n4", verdicts={})
    done = build.ipclab("fleet", str(four.folder), "--json", "merged.json")
    assert done.returncode == 0, done.stdout
    assert "4 nodes, judging the driver: 4 judged" in done.stdout
    document = json.loads((build.root / "merged.json").read_text())
    assert document["nodes"] == {"judged": ["n1", "n2", "n3", "n4"]}
    assert (four.folder / "merged.html").read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["n1", "n2", "n3", "n7"], "n[1-3,7]"),
        (["n08", "n09", "n10"], "n[08-10]"),
        (["gpu-a", "n1"], "gpu-a, n1"),
        (["n1.site", "n2.site"], "n[1-2].site"),
    ],
)
def test_folded(names: list[str], text: str) -> None:
    assert fleet.folded(names) == text


# --- engines ------------------------------------------------------------------


def tool(folder: Path, name: str, program: str) -> None:
    """A program with this name, first on PATH."""
    path = folder / name
    path.write_text(f"#!{sys.executable}\n" + textwrap.dedent(program))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder at the front of PATH."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def request_of(build: Build, engine: str, **changes: Any) -> engines.Request:
    """A request for the fake build."""
    values: dict[str, Any] = {
        "engine": engine,
        "folder": build.root / "fleet",
        "build": build.folder,
        "backend": "cuda",
        "nodes": None,
        "limit": 60,
        "queue": 60,
        **changes,
    }
    return engines.Request(**values)


MPIRUN = """\
import os, subprocess, sys
words = sys.argv[1:]
host = words[words.index("--host") + 1]
command = words[words.index("-P") - 1:]
if host == "c":  # a line in a frame, then a general remark
    sys.exit("-" * 60 + "\\nno route to host c\\n" + "-" * 60 + "\\nmpirun ended")
if host == "d":
    import time
    print(os.getpid(), flush=True)
    time.sleep(60)
process = subprocess.Popen(command, env={**os.environ, "HOST": host})
import signal
signal.signal(signal.SIGTERM, lambda *_: process.terminate())
sys.exit(process.wait())
"""


@pytest.fixture
def mpirun(build: Build, tools: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """A fake mpirun for hosts that do what their name says."""
    for name, value in build.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    tool(tools, "mpirun", MPIRUN)
    return build


def test_mpi_runs_each_node_once(mpirun: Build) -> None:
    """One host cannot be reached."""
    mpirun.conformance("record()")
    said: list[str] = []
    request = request_of(mpirun, "mpi", nodes="a,b,c")
    engines.run(request, said.append)
    merged = fleet.merge(*fleet.gather(request.folder))
    assert said[0] == "mpi: starts on 3 of 3 nodes"
    assert merged.nodes == {"missing": ["c"], "judged": ["a", "b"]}, merged.why
    assert merged.why["c"] == "mpi says: no route to host c"
    [group] = merged.groups
    assert group.counts == {"conforms": 1}
    node = request.folder / "nodes" / "a"
    assert (node / "records.jsonl.gz").is_file()
    assert not (node / "records.jsonl").exists()
    assert stat.S_IMODE(node.stat().st_mode) == 0o700
    assert mpirun.ipclab("report", str(node)).returncode == 0


@pytest.mark.nightly
def test_a_node_in_the_queue_is_added_later(mpirun: Build) -> None:
    mpirun.conformance("record()")
    engines.run(request_of(mpirun, "mpi", nodes="a", queue=300), print)
    request = request_of(mpirun, "mpi", nodes="a,d", queue=5)
    engines.run(request, print)
    merged = fleet.merge(*fleet.gather(request.folder))
    assert merged.nodes == {"missing": ["d"], "judged": ["a"]}
    assert merged.why["d"].startswith("not begun after 5 s: ")
    # Now it has its turn.
    path = next(x for x in os.environ["PATH"].split(":") if "tools" in x)
    tool(Path(path), "mpirun", MPIRUN.replace('host == "d"', 'host == "x"'))
    said: list[str] = []
    engines.run(replace(request, queue=300), said.append)
    assert said[0] == "mpi: starts on 1 of 2 nodes"
    merged = fleet.merge(*fleet.gather(request.folder))
    assert merged.nodes == {"judged": ["a", "d"]}, merged.why
    assert merged.exit_code == 0


@pytest.mark.nightly
def test_a_late_node_is_stopped(mpirun: Build) -> None:
    mpirun.conformance("record()", "Suite.A")
    mpirun.conformance(
        "if os.environ['HOST'] == 'e': time.sleep(60)\nrecord()", "Suite.B", timeout=60
    )
    request = request_of(mpirun, "mpi", nodes="e", limit=4)
    engines.run(request, print)
    engines.run(request_of(mpirun, "mpi", nodes="a", limit=300), print)
    merged = fleet.merge(*fleet.gather(request.folder))
    assert merged.nodes == {"late": ["e"], "judged": ["a"]}, merged.why
    assert " had ended; not ended after 4 s: mpi says" in merged.why["e"]
    assert merged.exit_code == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_fleet_that_is_stopped_leaves_no_launch(mpirun: Build, number: int) -> None:
    mpirun.conformance("record()")
    words = ("fleet", "--mpi", "--nodes", "d", "--build", "build", "fleet")
    with mpirun.start(*words) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "mpi: starts on 1 of 1 nodes\n"
        log = mpirun.root / "fleet/engine/d.log"
        end = time.monotonic() + 60
        while not (log.exists() and log.read_text()):
            assert time.monotonic() < end
        process.send_signal(number)
        said = process.communicate(timeout=60)[0]
    assert (process.returncode, said) == (4, "ipclab: interrupted\n")
    assert not psutil.pid_exists(int(log.read_text()))
    document = json.loads((mpirun.root / "fleet/fleet.json").read_text())
    assert document["said"]["d"].startswith("interrupted: mpi says")


def test_an_engine_that_is_not_there(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    done = build.ipclab("fleet", "--slurm", "--build", "build")
    assert done.returncode == 2
    assert "sinfo is not in PATH" in done.stdout


def test_slurm_tells_why_a_node_is_not_asked(build: Build, tools: Path) -> None:
    tool(
        tools,
        "sinfo",
        """\
        for i, (state, reason) in enumerate(
            [("idle", "none"), ("drained", "a broken fan"), ("down*", "Not responding"),
             ("mixed", "none"), ("idle*", "none")], 1):
            print(f"n{i}".ljust(256) + state.ljust(64) + reason.ljust(256))
        """,
    )
    nodes = engines.slurm_nodes(request_of(build, "slurm"))
    assert nodes == {
        "n1": None,
        "n2": "Slurm says drained: a broken fan",
        "n3": "Slurm says down*: Not responding",
        "n4": None,
        "n5": "Slurm says idle*: none",
    }


def test_no_node_to_ask(build: Build) -> None:
    with pytest.raises(UsageError, match="no node can run: n1 drained"):
        folder = build.root / "fleet"
        fleet.begin(folder, build.folder, "slurm", "cuda", {"n1": "drained"})


def test_results_survive_the_log_of_a_pod(
    four: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    engines.print_node(four.folder / "nodes" / "n1")
    log = "something else\n" + capsys.readouterr().out
    shutil.rmtree(four.folder / "nodes" / "n1")
    engines.unprint(four.folder, "../n1", log)
    assert not (four.folder / "nodes" / "n1").exists()
    engines.unprint(four.folder, "n1", log)
    engines.unprint(four.folder, "n4", log[: len(log) // 2])
    merged = four.merged()
    assert merged.nodes == {"cut off": ["n4"], "judged": ["n1", "n2", "n3"]}


@pytest.mark.parametrize("seed", range(40))
def test_damaged_results_are_never_taken_for_whole(
    seed: int, four: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    """One letter of the log is another one: the archive's checksum must notice it."""
    engines.print_node(four.folder / "nodes" / "n1")
    log = capsys.readouterr().out
    shutil.rmtree(four.folder / "nodes" / "n1")
    chance = random.Random(seed)
    data = range(log.index("\n") + 1, log.index(engines.END))
    at = chance.choice([i for i in data if log[i].isalnum()])
    other = chance.choice([x for x in "ABCDEFGHabcdefgh" if x != log[at]])
    engines.unprint(four.folder, "n1", log[:at] + other + log[at + 1 :])
    assert not (four.folder / "nodes" / "n1").exists()
    assert (four.folder / "nodes" / "n1.part").is_dir()


def test_a_log_that_unpacks_to_more_than_any_results(four: Fleet) -> None:
    bomb = base64.encodebytes(gzip.compress(bytes(engines.PRINTED + 1))).decode()
    engines.unprint(four.folder, "n4", f"{engines.BEGIN}\n{bomb}{engines.END}\n")
    assert four.merged().nodes["cut off"] == ["n4"]


def test_kubernetes_from_nodes_to_results(
    build: Build, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake kubectl knows six nodes. The log of the pod on a is cut off, b's pod is
    out of time, c's waits for an image, d has no pod, e's is killed, f is cordoned.
    """
    monkeypatch.setattr(engines, "POLL_SECONDS", 0.1)
    tool(
        tools,
        "kubectl",
        """\
        import json, pathlib, sys
        words = sys.argv[1:]
        created = pathlib.Path(__file__).with_name("created.json")
        def node(name, **spec):
            return {"metadata": {"name": name}, "spec": spec, "status": {
                "allocatable": {"nvidia.com/gpu": "1"},
                "conditions": [{"type": "Ready", "status": "True"}]}}
        def pod(name, phase, **status):
            return {"metadata": {"name": f"p-{name}",
                                 "annotations": {"ipclab/node": name}},
                    "spec": {"nodeName": name}, "status": {"phase": phase, **status}}
        if words[:2] == ["get", "nodes"]:
            print(json.dumps({"items": [*map(node, "abcde"),
                                        node("f", unschedulable=True)]}))
        elif words[0] == "create":
            created.write_text(sys.stdin.read())
        elif words[:2] == ["get", "pods"]:
            def container(**state):
                return {"containerStatuses": [{"state": state}]}
            waiting = {"reason": "ImagePullBackOff", "message": "not found"}
            killed = {"reason": "OOMKilled", "exitCode": 137}
            print(json.dumps({"items": [
                pod("a", "Failed"), pod("b", "Failed", reason="DeadlineExceeded"),
                pod("c", "Pending", **container(waiting=waiting)),
                pod("e", "Failed", **container(terminated=killed)),
            ]}))
        elif words[:2] == ["logs", "p-a"]:
            print("-----BEGIN IPCLAB NODE-----\\nabc")
        elif words[0] == "delete":
            created.with_name("deleted").touch()
        """,
    )
    request = request_of(build, "kubernetes", image="example/ipclab:0", queue=1)
    engines.run(request, print)
    merged = fleet.merge(*fleet.gather(request.folder))
    assert merged.nodes == {"cut off": ["a"], "missing": ["b", "c", "d", "e", "f"]}
    assert merged.why["f"] == "Kubernetes says unschedulable"
    assert "DeadlineExceeded" in merged.why["b"]
    assert merged.why["c"] == (
        "not begun after 1 s: Kubernetes says ImagePullBackOff: not found"
    )
    assert merged.why["d"] == "not begun after 1 s: no pod was made"
    assert "OOMKilled" in merged.why["e"]
    jobs = json.loads((tools / "created.json").read_text())["items"]
    assert [x["metadata"]["annotations"]["ipclab/node"] for x in jobs] == [*"abcde"]
    assert (tools / "deleted").exists()


def test_each_node_has_its_own_job(build: Build) -> None:
    made = engines.jobs(request_of(build, "kubernetes", image="i"), ["a", "b"], "f1")
    for name, job in zip("ab", made["items"], strict=True):
        kubernetes_validate.validate(job, "1.31", strict=True)
        pod = job["spec"]["template"]["spec"]
        assert pod["activeDeadlineSeconds"] == 60  # begins when the pod has its node
        assert "activeDeadlineSeconds" not in job["spec"]
        [container] = pod["containers"]
        assert container["args"][:7] == [
            *("node", "--print", "f1", "--name", name, "--backend", "cuda")
        ]
    with pytest.raises(UsageError, match="--image"):
        engines.jobs(request_of(build, "kubernetes"), ["a"], "f1")


@pytest.mark.parametrize("option", ["--backend", "--results=x"])
def test_what_the_fleet_decides_is_no_option_of_its_runs(
    build: Build, option: str
) -> None:
    done = build.ipclab("fleet", "--mpi", "--build", "build", "--", option, "model")
    assert done.returncode == 2
    assert "is an option of `ipclab fleet`" in done.stdout


def test_a_fault_of_the_tool_is_no_failing_test(
    four: Fleet, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(fleet, "merge", fail)
    assert build.ipclab("fleet", str(four.folder)).returncode == 4


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "srun: job 5 queued\nsrun: error: Task launch failed on n2\nx",
            "srun: error: Task launch failed on n2",
        ),
        (
            "-----\nmpirun has detected an attempt to run as root.\n-----\n",
            "mpirun has detected an attempt to run as root.",
        ),
        ("all well\n", "all well"),
        ("----\n\x1b\n", ""),
    ],
)
def test_the_reason_of_an_engine(said: str, reason: str) -> None:
    assert engines.reason_of(said) == reason
