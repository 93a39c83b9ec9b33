"""Tests of the fault library: its list, and how it replaces functions."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

BUILD = Path(os.environ["IPCLAB_BUILD"])
LIBRARY = BUILD / "faults" / "libipclab_faults.so"
NAMES = BUILD / "faults" / "names"
DATA = json.loads((Path(__file__).parents[1] / "faults.json").read_text())
TREE = Path(__file__).parents[3]
ALL = {
    fault["name"]: fault
    for fault in json.loads(
        subprocess.run(
            [BUILD / "faults" / "ipclab_faults"],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
    )
}
WAYS = ("linked", "next", "dlsym", "proc_address", "entry_point")


def run(way: str, fault: str | None, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the small program of this folder on the reference model."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("IPCLAB_")}
    environment["LD_LIBRARY_PATH"] = str(BUILD / "model")
    environment["LD_PRELOAD"] = str(LIBRARY)
    if fault is not None:
        environment["IPCLAB_FAULT"] = fault
    return subprocess.run(
        [NAMES, way],
        env=environment | more,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_every_named_fault_breaks_rows_that_exist() -> None:
    rows = {
        x["id"]
        for room in TREE.glob("conformance/*/rows.json")
        for x in json.loads(room.read_text())["rows"]
    }
    for name, fault in ALL.items():
        assert bool(fault["rows"]) == (fault["kind"] == "named"), name
        assert set(fault["rows"]) <= rows, name


def test_a_fault_stands_beside_the_tests_of_its_first_row() -> None:
    folders: dict[str, str] = {}
    for path in sorted(TREE.glob("conformance/*/*.cu")):
        for row in re.findall(r'covers\(\s*"([A-Z0-9-]+)"', path.read_text()):
            folders.setdefault(row, path.parent.name)
    wrong = {
        name: (fault["file"], fault["rows"][0])
        for name, fault in ALL.items()
        if fault["kind"] == "named"
        if not Path(fault["file"]).match(
            f"conformance/{folders[fault['rows'][0]]}/*faults.cc"
        )
    }
    assert wrong == {}


def test_only_known_faults_are_called_equivalent() -> None:
    operators = [x for x in ALL.values() if x["kind"] == "operator"]
    equivalent = [x["fault"] for x in DATA["equivalent"]]
    assert set(equivalent) <= ALL.keys()
    assert len(equivalent) == len(set(equivalent))
    assert all(x["why"].strip() for x in DATA["equivalent"])
    assert len(equivalent) <= 0.12 * len(operators)


def test_every_fault_says_what_it_breaks() -> None:
    assert len(ALL) > 700
    assert all(len(x["what"]) > 15 and x["function"] for x in ALL.values())


def test_an_unknown_fault_ends_the_program() -> None:
    ended = run("linked", "no-such-fault")
    assert ended.returncode == 127
    assert ended.stderr.splitlines() == [
        "ipclab faults: no fault 'no-such-fault'; see harness/faults/faults.json"
    ]


@pytest.mark.parametrize("way", WAYS)
def test_without_a_fault_nothing_changes(way: str) -> None:
    assert run(way, None).stdout == "0\n"


@pytest.mark.parametrize("way", WAYS)
def test_a_fault_meets_every_way_to_get_a_function(way: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    ended = run(way, "cudaMalloc.refuses-second", IPCLAB_FAULT_LOG=str(log))
    assert ended.stdout == "1\n", ended.stderr
    (line,) = log.read_text().splitlines()
    assert line.split()[:2] == ["fired", "cudaMalloc.refuses-second"]


def test_a_fault_that_does_not_fire_says_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert run("linked", "cuMemCreate.accepts", IPCLAB_FAULT_LOG=str(log)).stdout
    assert not log.exists()


def test_the_census_names_what_a_program_calls(tmp_path: Path) -> None:
    census = tmp_path / "census"
    run("dlsym", None, IPCLAB_FAULT_CENSUS=str(census))
    called = {line.split()[2] for line in census.read_text().splitlines()}
    assert called == {"cudaFree", "cudaMalloc", "cuMemAlloc"}


@pytest.mark.parametrize(
    ("fault", "runtime", "driver"),
    [
        ("cudaMallocAsync.refuses-second", "1\n", "1\n"),
        ("cuMemAllocAsync.refuses-second", "0\n", "1\n"),
    ],
)
def test_a_fault_meets_both_apis_or_the_driver_alone(
    fault: str, runtime: str, driver: str
) -> None:
    assert run("async_runtime", fault).stdout == runtime
    assert run("async_driver", fault).stdout == driver


# The faults that lose what a peer writes, and the step at which the probe notices them.
PEER_FAULTS = {
    "": "",
    "peer-store-lost": "kernel writes",
    **{x: "copy to the peer" for x in sorted(ALL) if x.startswith("peer-write-")},
}


@pytest.mark.parametrize("fault", PEER_FAULTS)
def test_the_doctor_sees_what_peers_lose(fault: str, tmp_path: Path) -> None:
    """`probe --peers` moves data, so it notices a driver whose promise is empty."""
    probe = BUILD / "harness" / "scenario" / "probe"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("IPCLAB_")}
    environment |= {
        "LD_LIBRARY_PATH": str(BUILD / "model"),
        "LD_PRELOAD": str(LIBRARY),
        "IPCLAB_FAULT": fault,
        "IPCLAB_FAULT_STATE": str(tmp_path),
        "IPCLAB_PROFILE": "two-gpus",
    }
    done = subprocess.run(
        [probe, "--peers", "2"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = json.loads(done.stdout)
    assert not found["problem"]
    pairs = {(x["from"], x["to"]): x for x in found["pairs"]}
    assert set(pairs) == {(0, 1), (1, 0)}
    for pair in pairs.values():
        assert pair["promised"]
        assert pair["proved"] == (not fault), pair
        assert pair["failed"] == PEER_FAULTS[fault]
    assert found["together"]["good"] == (not fault)


def test_there_are_five_ways_to_lose_a_peers_write() -> None:
    assert len(PEER_FAULTS) == 1 + 5
