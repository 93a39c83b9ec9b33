"""`ipclab model --race`: small programs, right and wrong, and the lessons."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from ipclab import races

TOP = Path(__file__).resolve().parents[3]

# Programs of harness/model/tests/programs/race.cu, with what a wrong one lacks.
BLOCK, WARP = "__syncthreads() between", "__syncwarp()"
GRID, STREAM = "a flag between the blocks", "one stream, cudaStreamWaitEvent"
COPY = "the end of the asynchronous copy"
PROCESSES, SCOPE = "an interprocess event", "the scope is too small"
PROGRAMS = {
    "shared_barrier": BLOCK,
    "global_barrier": BLOCK,
    "warp_barrier": WARP,
    "broadcast": BLOCK,
    "reduction": BLOCK,
    "named_barrier": BLOCK,
    "volatile_flag": GRID,
    "release_flag": GRID,
    "acquire_flag": GRID,
    "flag_scope": SCOPE,
    "fence_scope": GRID,
    "last_block": GRID,
    "block_then_flag": GRID,
    "many_release": BLOCK,
    "accumulate": GRID,
    "grid_barrier": GRID,
    "cluster_scope": "the scope is too small: both accesses need scope cluster",
    "copy_async": COPY,
    "copy_groups": COPY,
    "bulk_load": COPY,
    "bulk_store": COPY,
    "graph_branch": STREAM,
    "event": STREAM,
    "event_too_early": STREAM,
    "host": STREAM,
    "legacy_stream": STREAM,
    "copy": STREAM,
    "copy_of_old": STREAM,
    "copy_of_pageable": STREAM,
    "copy_twice": STREAM,
    "kernel_after_copy": STREAM,
    "memset": STREAM,
    "gpus_flag": SCOPE,
    "gpus_count": SCOPE,
    "processes_meet": PROCESSES,
    "processes_signal": PROCESSES,
    "processes_flag": SCOPE,
    "processes_event": PROCESSES,
    "processes_host": PROCESSES,
}

# Ways in which a host that has waited for its GPU tells another process, of
# harness/model/tests/programs/race_hosts.cu.
WAYS = [
    "pipe",
    "socket",
    "line",
    "futex",
    "semaphore",
    "file",
    "end",
    "relay",
    "start",
    "exit",
]
MESSAGE = "a message to the other process"

# The lesson that shows on purpose what happens without an order: its graphs wait for
# events that the other process may not have recorded yet.
WITHOUT_ORDER = {"77_graphs"}
LESSONS = sorted(x.name for x in (TOP / "samples").glob("[0-9][0-9]_*"))


@pytest.fixture(scope="module")
def libraries() -> Path:
    """The folder of the real model."""
    folder = os.environ.get("IPCLAB_MODEL")
    if folder is None:
        pytest.skip("CTest says where the model is")
    return Path(folder)


def run(
    libraries: Path, program: Path, *words: str, sees_messages: bool = True
) -> tuple[int, races.Races]:
    """Look for races of a program on a machine of its own."""
    return races.watch(
        [str(program), *words],
        {
            **os.environ,
            "LD_LIBRARY_PATH": str(libraries),
            "IPCLAB_PROFILE": "two-gpus",
            "IPCLAB_MODEL_MACHINE": f"races {os.getpid()} {secrets.token_hex(4)}",
            "LD_PRELOAD": str(libraries / races.MESSAGES) if sees_messages else "",
        },
    )


def program_of(libraries: Path, name: str = "race") -> Path:
    """A program with small cases."""
    return libraries.parent / "harness" / "model" / "tests" / name


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_right_program_has_no_race(libraries: Path, name: str) -> None:
    code, found = run(libraries, program_of(libraries), name, "right")
    assert (code, found) == (0, races.Races((), True, False)), races.text(found)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_wrong_program_has_one(libraries: Path, name: str) -> None:
    code, found = run(libraries, program_of(libraries), name, "wrong")
    assert code == 0 and found.findings and not found.full, races.text(found)
    needed = {one["needs"] for one in found.findings}
    assert any(PROGRAMS[name] in x for x in needed), needed
    for side in found.findings[0]["accesses"]:
        assert re.search(r"\(\S+:\d+\)$", side["place"]) or "a " in side["place"]


@pytest.mark.parametrize("name", ["processes_meet", "processes_signal"])
def test_a_barrier_that_a_library_lacks_is_found_each_time(
    libraries: Path, name: str
) -> None:
    """Two libraries had it: one thread signals before all threads have written."""
    for _ in range(20):
        _, found = run(libraries, program_of(libraries), name, "wrong")
        assert any(PROCESSES in one["needs"] for one in found.findings)


@pytest.mark.parametrize("way", WAYS)
def test_a_message_orders_two_processes(libraries: Path, way: str) -> None:
    code, found = run(libraries, program_of(libraries, "race_hosts"), way, "right")
    assert (code, found) == (0, races.Races((), True, False)), races.text(found)


# Whoever shares memory may use it at any time, unseen.
@pytest.mark.parametrize("way", [x for x in WAYS if x != "futex"])
def test_luck_orders_nothing(libraries: Path, way: str) -> None:
    """The same message, but too early: what comes first is a matter of time."""
    code, found = run(libraries, program_of(libraries, "race_hosts"), way, "wrong")
    assert code == 0 and found.findings and found.unseen == 0, races.text(found)
    needed = {one["needs"] for one in found.findings}
    assert any(MESSAGE in x or PROCESSES in x for x in needed), needed


def test_time_counts_where_messages_are_not_seen(libraries: Path) -> None:
    program = program_of(libraries, "race_hosts")
    code, found = run(libraries, program, "pipe", "right", sees_messages=False)
    assert code == 0 and not found.findings and found.unseen != 0
    assert f"the messages of process {found.unseen}" in races.text(found)


def test_the_command_sees_messages(libraries: Path) -> None:
    program = str(program_of(libraries, "race_hosts"))
    assert command(libraries, "--race", "--", program, "relay", "right").returncode == 0
    wrong = command(libraries, "--race", "--", program, "relay", "wrong")
    assert wrong.returncode == 1 and "nobody saw" not in wrong.stderr


@pytest.mark.nightly(16, "lesson")
@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_has_no_race(libraries: Path, lesson: str) -> None:
    folder = libraries.parent / "samples" / lesson
    code, found = run(libraries, folder / lesson.partition("_")[2])
    if code == 77:
        pytest.skip("the model cannot run this lesson")
    assert code == 0 and found.used and not found.full
    assert bool(found.findings) == (lesson in WITHOUT_ORDER), races.text(found)


def command(libraries: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`ipclab model`, in a separate process."""
    start = ["model", "--build", str(libraries.parent), *words]
    return subprocess.run(
        [sys.executable, "-m", "ipclab", *start],
        env={**os.environ, "PYTHONPATH": str(TOP / "harness/runner/src")},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_command_says_what_would_order_them(libraries: Path) -> None:
    program = str(program_of(libraries))
    wrong = command(libraries, "--race", "--", program, "global_barrier", "wrong")
    assert wrong.returncode == 1
    assert "ipclab: 1 race found" in wrong.stderr
    assert "needed: __syncthreads() between the two" in wrong.stderr
    right = command(libraries, "--race", "--", program, "global_barrier", "right")
    assert right.returncode == 0 and "ipclab: 0 races found" in right.stderr
    as_json = command(libraries, "--race", "--json", "--", program, "event", "wrong")
    (race,) = json.loads(as_json.stdout)["races"]
    assert as_json.returncode == 1
    assert {side["kind"] for side in race["accesses"]} == {"read", "write"}


def test_a_program_that_fails_keeps_its_exit_code(libraries: Path) -> None:
    program = str(program_of(libraries))
    done = command(libraries, "--race", "--", program, "no_such_case", "right")
    assert done.returncode == 2


def test_a_program_without_the_model_is_not_clean(libraries: Path) -> None:
    done = command(libraries, "--race", "--", "true")
    assert done.returncode == 3
    assert "no process used the reference model" in done.stderr


def test_json_needs_race(libraries: Path) -> None:
    done = command(libraries, "--json", "--", "true")
    assert done.returncode == 2 and "--json is for --race" in done.stderr


def test_another_file_is_never_changed(libraries: Path, tmp_path: Path) -> None:
    """IPCLAB_MODEL_RACE of another PID namespace can name any file."""
    other = tmp_path / "other"
    other.write_text("kept")
    done = subprocess.run(
        [str(program_of(libraries)), "event", "wrong"],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(libraries),
            races.VARIABLE: str(other),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and other.read_text() == "kept"
    assert "not the file of ipclab model --race" in done.stderr
