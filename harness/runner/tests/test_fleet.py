"""A fleet: which nodes answered, did not answer or gave false results, and how machines
differ."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import datetime
import functools
import json
import os
import random
import shutil
import stat
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest

from conftest import Build
from ipclab import engines, fingerprint, fleet, manifest, records, results
from ipclab.errors import HarnessError, UsageError

RECORDED = Path(__file__).parents[3] / "docs" / "results" / "h200-580.159"


@functools.cache
def recorded() -> tuple[list[records.Record], dict[str, Any]]:
    """The first attempts of the recorded run, without what its roles did, and
    run.json. Nobody may change them.
    """
    lines, _ = results.read_lines(RECORDED)
    found = [{**x, "timeline": [], "roles": []} for x in map(json.loads, lines)]
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
            "version": 1,
            "id": "f1",
            "engine": "slurm",
            "started": self.started.isoformat(timespec="seconds"),
            "ended": fleet.now().isoformat(timespec="seconds"),
            "out_of_time": False,
            "expected": dict.fromkeys(self.names),
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
        alter: Callable[[list[records.Record]], None] | None = None,
        **facts: Any,
    ) -> Path:
        """Add a node. `change` edits run.json, `alter` the records, before the seal."""
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
        if alter:
            alter(changed)
        data = b"".join(json.dumps(x).encode() + b"\n" for x in changed)
        (folder / "records.jsonl").write_bytes(data)
        document = json.loads(json.dumps(self.document))
        document |= {"fingerprint": machine, "counts": counts}
        _, document["manifest"]["records"] = results.read_lines(folder)
        for i, field in enumerate(("started", "finished"), 1):
            time = self.started + datetime.timedelta(minutes=i)
            document[field] = time.isoformat(timespec="seconds")
        if change:
            change(document)
        document.pop("digest")
        (folder / "run.json").write_text(json.dumps(manifest.sealed(document)))
        (folder / "node.json").write_text(json.dumps({"node": name, "fleet": "f1"}))
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
    assert four.merged().exit_code == 1
    part = four.node("n4").rename(four.folder / "nodes" / "n4.part")
    lines = (part / "records.jsonl").read_bytes().splitlines(keepends=True)
    (part / "records.jsonl").write_bytes(b"".join(lines[:10]) + b'{"half')
    merged = four.merged()
    assert merged.nodes["cut off"] == ["n4"]
    assert merged.why["n4"] == f"10 of {len(four.records)} tests had ended"
    four.fleet["out_of_time"] = True
    four.save()
    assert four.merged().nodes["late"] == ["n4"]
    shutil.rmtree(part)
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
    assert merged.exit_code == 1


def fewer(lines: list[records.Record]) -> None:
    """Leave out a record."""
    lines.pop()


def foreign(lines: list[records.Record]) -> None:
    lines[0]["fingerprint"] = "another"


def unknown(lines: list[records.Record]) -> None:
    lines[0]["verdict"] = "perfect"


def other_verdict(lines: list[records.Record]) -> None:
    good = next(x for x in lines if x["verdict"] == "conforms")
    good["verdict"] = "observed"


def other_row(lines: list[records.Record]) -> None:
    next(x for x in lines if x["requirement"])["requirement"] = "LMEM-99"


def other_test(lines: list[records.Record]) -> None:
    lines[0]["ctest"] = "conformance.nothing"


def no_text(lines: list[records.Record]) -> None:
    del lines[0]["reason"]


@pytest.mark.parametrize(
    ("alter", "why"),
    [
        (fewer, "{all} tests were selected, {left} have a record"),
        (foreign, "a record of another machine"),
        (unknown, "perfect is not a verdict"),
        (other_verdict, "the records give"),
        (other_row, "a record of another row"),
        (other_test, "a test that is not in the list"),
        (no_text, "records.jsonl holds something else"),
    ],
)
def test_a_lie_in_the_records_is_refused(
    four: Fleet, alter: Callable[[list[records.Record]], None], why: str
) -> None:
    """The node has sealed false results, so the digests are right."""
    four.node("n4", alter=alter)
    count = len(four.records)
    assert why.format(all=count, left=count - 1) in four.merged().why["n4"]
    assert four.merged().exit_code == 1


@pytest.mark.parametrize(
    ("file", "old", "new", "why"),
    [
        ("records.jsonl", '"conforms"', '"violates"', "records.jsonl was edited"),
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


def test_one_run_handed_in_twice_is_refused(four: Fleet) -> None:
    copy = four.folder / "nodes" / "n4"
    shutil.copytree(four.folder / "nodes" / "n1", copy)
    edit(copy / "node.json", '"n1"', '"n4"')
    assert four.merged().why == {"n4": "handed in the results of n1"}


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


def test_many_nodes_are_one_small_page(tmp_path: Path) -> None:
    """200 nodes: most are equal, 15 have another driver, one is refused, and four do
    not answer.
    """
    made = Fleet(tmp_path / "fleet", 200)
    test = next(x["ctest"] for x in made.records if x["verdict"] == "conforms")
    for name in made.names[:180]:
        made.node(name)
    for name in made.names[180:195]:
        made.node(name, verdicts={test: "violates"}, driver="590.1")
    made.node("n196", yesterday)
    merged = made.merged()
    assert [len(group.nodes) for group in merged.groups] == [180, 15]
    assert merged.nodes["refused"] == ["n196"]
    assert len(merged.nodes["missing"]) == 4
    text = fleet.page(merged)
    assert "n[1-180]" in text and "n[181-195]" in text and "n[197-200]" in text
    assert "590.1" in text
    assert len(text.encode()) < 100_000


def test_the_command_merges_what_is_there(four: Fleet, build: Build) -> None:
    four.node("n4", verdicts={})
    done = build.ipclab("fleet", str(four.folder), "--json", "merged.json")
    assert done.returncode == 0, done.stdout
    assert "4 nodes: 4 judged" in done.stdout
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
        "nodes": None,
        "limit": 60,
        **changes,
    }
    return engines.Request(**values)


def test_mpi_runs_each_node_once(
    build: Build, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake mpirun starts the command for each host except one, which seems dead."""
    build.conformance("record()")
    tool(
        tools,
        "mpirun",
        """\
        import os, subprocess, sys
        words = sys.argv[1:]
        hosts = words[words.index("--host") + 1].split(",")
        command = words[words.index("-P") - 1:]
        for host in hosts:
            if host != "c":
                subprocess.run(command, env={**os.environ, "IPCLAB_NODE": host})
        """,
    )
    for name, value in build.environment().items():
        monkeypatch.setenv(name, value)
    said: list[str] = []
    request = request_of(build, "mpi", nodes="a,b,c")
    engines.run(request, said.append)
    merged = fleet.merge(*fleet.gather(request.folder))
    assert said[0] == "mpi: starts on 3 of 3 nodes"
    assert merged.nodes == {"missing": ["c"], "judged": ["a", "b"]}
    [group] = merged.groups
    assert group.counts == {"conforms": 1}


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
        fleet.begin(build.root / "fleet", build.folder, "slurm", {"n1": "drained"})


def test_an_engine_that_refuses_is_an_error(build: Build, tools: Path) -> None:
    tool(tools, "mpirun", "import sys; sys.exit('no such host')")
    with pytest.raises(HarnessError, match="mpirun ended with 1: no such host"):
        engines.run(request_of(build, "mpi", nodes="a"), print)


def test_results_survive_the_log_of_a_pod(
    four: Fleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPCLAB_NODE", "n1")
    engines.print_node(four.folder)
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
    seed: int,
    four: Fleet,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One letter of the log is another one: the archive's checksum must notice it."""
    monkeypatch.setenv("IPCLAB_NODE", "n1")
    engines.print_node(four.folder)
    log = capsys.readouterr().out
    shutil.rmtree(four.folder / "nodes" / "n1")
    chance = random.Random(seed)
    data = range(log.index("\n") + 1, log.index(engines.END))
    at = chance.choice([i for i in data if log[i].isalnum()])
    other = chance.choice([x for x in "ABCDEFGHabcdefgh" if x != log[at]])
    engines.unprint(four.folder, "n1", log[:at] + other + log[at + 1 :])
    assert not (four.folder / "nodes" / "n1").exists()
    assert (four.folder / "nodes" / "n1.part").is_dir()


def test_kubernetes_from_nodes_to_results(build: Build, tools: Path) -> None:
    """The fake kubectl knows three nodes. Node c is cordoned, the log of the pod on a
    is cut off, and b has no pod.
    """
    tool(
        tools,
        "kubectl",
        """\
        import json, sys
        words = sys.argv[1:]
        def node(name, **spec):
            return {"metadata": {"name": name}, "spec": spec, "status": {
                "allocatable": {"nvidia.com/gpu": "1"},
                "conditions": [{"type": "Ready", "status": "True"}]}}
        if words[:2] == ["get", "nodes"]:
            print(json.dumps({"items": [node("a"), node("b"),
                                        node("c", unschedulable=True)]}))
        elif words[:2] == ["get", "job"]:
            print(json.dumps({"status": {"failed": 2, "conditions": [
                {"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]}}))
        elif words[:2] == ["get", "pods"]:
            print(json.dumps({"items": [
                {"metadata": {"name": "p"}, "spec": {"nodeName": "a"}}]}))
        elif words[0] == "logs":
            print("-----BEGIN IPCLAB NODE-----\\nabc")
        """,
    )
    request = request_of(build, "kubernetes", image="example/ipclab:0")
    engines.run(request, print)
    merged = fleet.merge(*fleet.gather(request.folder))
    assert merged.nodes == {"late": ["a"], "missing": ["b", "c"]}
    assert merged.why["c"] == "Kubernetes says unschedulable"


def test_the_job_runs_once_on_each_node(build: Build) -> None:
    job = engines.job(request_of(build, "kubernetes", image="i"), ["a", "b"], "f1")
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    kubernetes_validate.validate(job, "1.31", strict=True)
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert container["args"][:3] == ["node", "--print", "f1"]
    with pytest.raises(UsageError, match="--image"):
        engines.job(request_of(build, "kubernetes"), ["a"], "f1")
