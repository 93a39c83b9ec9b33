"""Files from outside: none of them makes a command fail in another way than by one
line, hang, or fill the memory.

Each kind of file is mutated from the seeds 0, 1, 2, …: 100 of them in ci/test, 2,000
with IPCLAB_NIGHTLY=1.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hostile
from conftest import SOURCE, Build
from ipclab import doctor, expect, fleet, fleet_node, manifest, reader
from ipclab.errors import HarnessError, UsageError
from test_fleet import Fleet

SEEDS = 2000 if os.environ.get("IPCLAB_NIGHTLY") == "1" else 100
MEMORY = 300 * 2**20  # bytes that a command may take for hostile files
TRACES = SOURCE.parents[2] / "docs/traces"
MACHINES = Path(__file__).parent / "machines"


def variants(good: bytes, seal: bool = False) -> Iterator[tuple[int, bytes]]:
    """The mutations of a JSON document, each with its seed."""
    value = json.loads(good)
    for seed in range(SEEDS):
        chance = random.Random(seed)
        if seed % 4 == 0:
            yield seed, hostile.mutated(good, chance)
            continue
        made = hostile.altered(value, chance)
        if seal and seed % 4 > 1 and isinstance(made, dict):
            with contextlib.suppress(UnicodeEncodeError, RecursionError):
                made = manifest.sealed(made)
        yield seed, json.dumps(made).encode()


def one_line(build: Build, seed: int, *words: str) -> None:
    """The command ends with a verdict, or with one line that says why not."""
    done = build.ipclab(*words)
    said = f"seed {seed}: {words}: {done.stdout[-2000:]}"
    incomplete = "not complete: " in done.stdout  # of a trace
    assert done.returncode in (0, 1, 2, *([3] if incomplete else [])), said
    assert "Traceback" not in done.stdout, said
    if done.returncode == 2:
        assert len(done.stdout.splitlines()) == 1, said
    assert not set(done.stdout) & {"\x1b", "\x07", "\u202e"}, said


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A qualified run with several verdicts in `good`."""
    build = Build(tmp_path_factory.mktemp("finished"))
    build.deviation(requirement="LMEM-02", test="Suite.B")
    build.conformance("record()", "Suite.A", "LMEM-01")
    build.conformance("violates()", "Suite.B", "LMEM-02")
    build.conformance("violates(reason='x')", "Suite.C", "LIM-01")
    build.sample("print('lesson')")
    build.ipclab("qualify", "--build", "build", "--results", "good")
    return build


def results_commands(build: Build, seed: int) -> None:
    """Every command that reads the results in `out`, one in three for each seed."""
    shutil.rmtree(build.root / "judged", ignore_errors=True)
    entries = str(build.source / "conformance/deviations.json")
    commands = (
        ("verify", "out"),
        ("report", "out"),
        ("compare", "out", "good", "--html", "page.html"),
        ("judge", "out", entries, "--results", "judged"),
        ("compare", "good", "out", "--fidelity"),
        ("rules", "LMEM-01", "--build", "build", "--results", "out"),
    )
    for words in commands[seed % 3 :: 3]:
        one_line(build, seed, *words)


def test_run_json(finished: Build) -> None:
    out = finished.root / "out"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(finished.root / "good", out)
    good = (out / "run.json").read_bytes()
    for seed, data in variants(good, seal=True):
        (out / "run.json").write_bytes(data)
        results_commands(finished, seed)


def test_records(finished: Build) -> None:
    out = finished.root / "out"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(finished.root / "good", out)
    good = (out / "records.jsonl").read_bytes()
    run = json.loads((out / "run.json").read_text())
    (out / "records.jsonl").unlink()
    path = out / "records.jsonl.gz"
    for seed in range(SEEDS):
        chance = random.Random(seed)
        lines = good.splitlines(keepends=True)
        number = chance.randrange(len(lines))
        if seed % 3:
            record = hostile.altered(json.loads(lines[number]), chance)
            lines[number] = json.dumps(record).encode() + b"\n"
        data = b"".join(lines) if seed % 3 else hostile.mutated(good, chance)
        seal = reader.Seal()
        seal.add(data)
        run["manifest"]["records"] = seal.document
        (out / "run.json").write_text(json.dumps(manifest.sealed(run)))
        packed = gzip.compress(data, 1)
        path.write_bytes(packed if seed % 7 else hostile.mutated(packed, chance))
        results_commands(finished, seed)


@pytest.mark.parametrize("file", ["run.json", "node.json"])
def test_nodes(tmp_path: Path, file: str) -> None:
    made = Fleet(tmp_path / "fleet", 2)
    path = made.node("n1") / file
    good = path.read_bytes()
    judged = 0
    for seed, data in variants(good, seal=True):
        path.write_bytes(data)
        node = fleet_node.read(made.folder, made.fleet, "n1", {})
        assert fleet_node.UNFORESEEN not in node.why, (seed, node.why)
        assert "\n" not in node.why and node.why == reader.plain(node.why), seed
        if node.state == fleet_node.JUDGED:
            judged += 1
            fleet.page(fleet.merge(made.fleet, [node]))
    assert judged < SEEDS / 2


def test_fleet_json(tmp_path: Path, finished: Build) -> None:
    made = Fleet(tmp_path / "fleet", 1)
    made.fleet["suite"] = {"tests": {"a": "b"}, "programs": {}, "data": {}}
    good = json.dumps(made.fleet).encode()
    for seed, data in variants(good):
        (made.folder / "fleet.json").write_bytes(data)
        done = finished.ipclab("fleet", str(made.folder))
        assert done.returncode in (2, 3), (seed, done.stdout)
        assert "Traceback" not in done.stdout
        assert done.returncode == 3 or done.stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("good", "read"),
    [
        (
            json.dumps({"machine": json.loads((MACHINES / "plain.json").read_text())}),
            lambda path: doctor.run(SILENT, doctor.Request(Path("x"), record=path)),
        ),
        (
            json.dumps(
                {"backend": "cuda", "gpus": 1, "peers": 0, "capabilities": ["a"],
                 "known": {"a": "why"}}
            ),
            expect.read,
        ),
    ],
    ids=["machine", "expect"],
)  # fmt: skip
def test_files_that_a_person_names(
    tmp_path: Path, good: str, read: Callable[[Path], Any]
) -> None:
    path = tmp_path / "file.json"
    for seed, data in variants(good.encode()):
        path.write_bytes(data)
        try:
            read(path)
        except (UsageError, HarnessError) as error:
            assert "\n" not in str(error), seed


def test_deviations(finished: Build) -> None:
    path = finished.root / "entries.json"
    good = (finished.source / "conformance/deviations.json").read_bytes()
    for seed, data in variants(good):
        path.write_bytes(data)
        shutil.rmtree(finished.root / "judged", ignore_errors=True)
        done = finished.ipclab("judge", "good", str(path), "--results", "judged")
        assert done.returncode in (0, 1, 3), (seed, done.stdout)
        assert "Traceback" not in done.stdout, (seed, done.stdout)
        assert done.returncode != 3 or done.stdout.count("\n") == 1


def trace_of(folder: Path, name: str) -> list[tuple[Path, bytes]]:
    """Copy a recorded trace into `folder`, unpacked; its files."""
    shutil.copytree(TRACES / name, folder)
    found = []
    for path in sorted(folder.glob("*.trace.gz")):
        data = gzip.decompress(path.read_bytes())
        path.unlink()
        path = path.with_suffix("")
        path.write_bytes(data)
        found.append((path, data))
    return found


@pytest.mark.parametrize("name", ["01_legacy_memory", "50_pool_ipc"])
def test_traces(finished: Build, tmp_path: Path, name: str) -> None:
    files = trace_of(tmp_path / "trace", name)
    read = ("trace", "--read", str(tmp_path / "trace"), "--check")
    assert "not complete" not in finished.ipclab(*read).stdout
    for seed in range(SEEDS // 2):
        chance = random.Random(seed)
        path, good = chance.choice(files)
        if seed % 3:
            lines = good.splitlines(keepends=True)
            number = chance.randrange(len(lines))
            line = hostile.altered(json.loads(lines[number]), chance)
            lines[number] = json.dumps(line).encode() + b"\n"
            path.write_bytes(b"".join(lines))
        else:
            path.write_bytes(hostile.mutated(good, chance))
        one_line(finished, seed, *read)
        path.write_bytes(good)


def test_a_cut_trace_is_not_taken_for_whole(finished: Build, tmp_path: Path) -> None:
    files = trace_of(tmp_path / "trace", "01_legacy_memory")
    read = ("trace", "--read", str(tmp_path / "trace"), "--check")
    for path, good in files:
        path.write_bytes(good[: len(good) // 2])
        done = finished.ipclab(*read)
        assert done.returncode in (1, 3)  # 1: the calls that are gone were the closes
        assert done.stdout.startswith("not complete: ")
        assert "nothing found: " not in done.stdout
        path.write_bytes(random.Random(1).randbytes(5000))
    done = finished.ipclab(*read)
    assert done.returncode == 2
    assert "no process can be read" in done.stdout


# --- special files ------------------------------------------------------------


@pytest.mark.parametrize("what", hostile.DOCUMENT)
def test_a_file_that_is_no_document(tmp_path: Path, what: str) -> None:
    path = tmp_path / "run.json"
    path.write_text("{}")
    hostile.DOCUMENT[what](path)
    with pytest.raises(UsageError, match=r"run\.json: ") as caught:
        reader.document(path, {"type": "object", "required": ["version"]})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("what", hostile.PACKED)
def test_a_file_that_has_no_lines(tmp_path: Path, what: str) -> None:
    path = tmp_path / "records.jsonl.gz"
    path.write_bytes(gzip.compress(b"{}\n"))
    hostile.PACKED[what](path)
    with pytest.raises(UsageError, match=r"records\.jsonl\.gz: "):
        list(reader.Lines(path))


def test_lines_and_their_seal(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    chance = random.Random(1)
    lines = [chance.randbytes(chance.randrange(3000)) for _ in range(1000)]
    data = b"".join(x.replace(b"\n", b"") + b"\n" for x in lines) + b"rest"
    path.write_bytes(data)
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(data))
    for one in (path, packed):
        found = reader.Lines(one)
        assert b"".join(found) == data
        assert found.seal.document == found.drain()
        assert found.seal.document["bytes"] == len(data)
        assert found.seal.document["count"] == 1000


def test_numbers_that_a_machine_has() -> None:
    assert reader.parse(b"[18446744073709551615, -1.5e-300]")
    for text in (b"1e999", b"-Infinity", b"NaN", b"1" * 21):
        with pytest.raises(ValueError, match="number"):
            reader.parse(text)


# --- a fleet of them ----------------------------------------------------------


@pytest.mark.nightly
def test_hostile_nodes_do_not_touch_the_others(tmp_path: Path) -> None:
    made = Fleet(tmp_path / "fleet", 3)
    for name in made.names:
        made.node(name)
    bad = list(hostile.nodes(made.folder, made.node))
    assert len(bad) >= 62
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "ipclab", "fleet", str(made.folder)],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        data = process.communicate(timeout=120)[0]
    said = data.decode()
    assert process.returncode == 3, said
    assert "Traceback" not in said and "\x1b" not in said
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    assert peak < MEMORY
    merged = json.loads((made.folder / "merged.json").read_text())
    [group] = merged["groups"]
    assert group["nodes"] == ["field-escape", *made.names], merged["why"]
    bad.remove("field-escape")  # the answers are good, only a name is not
    assert merged["why"].keys() == set(map(reader.plain, bad))
    assert fleet_node.UNFORESEEN not in said
    page = (made.folder / "merged.html").read_text(encoding="utf-8")
    assert "field-escape, n[1-3]" in page and "<b>" not in page


class _Silent:
    """A console that prints nothing."""

    def print(self, *_: object, **__: object) -> None:
        """Print nothing."""


SILENT: Any = _Silent()
