"""Tests many times what the patterns of chapter 7 promise.

These tests take minutes, so CI does not run them; `ci/gpu FOLDER patterns` does. If
IPCLAB_PROFILE is set, they run on the reference model. The lessons are built with other
constants, so that they run long enough.

    IPCLAB_ITEMS        items that go through the ring of lesson 74, in each of its ways
                        (100000): on two GPUs to one consumer with its own GPU,
                        otherwise to two consumers
    IPCLAB_KILLS        consumers of lesson 74 that are killed (200)
    IPCLAB_RANK_KILLS   ranks of lesson 72 that are killed (25)
    IPCLAB_REPLAYS      sums of a run in which a rank is killed (20000)
    IPCLAB_SEED         seed of the moments at which processes are killed (17)

SPDX-License-Identifier: Apache-2.0
"""

import json
import os
import queue
import random
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from ipclab import model
from test_build_lines import build_line
from test_repository import TOP, source
from test_unrelated import free_memory_of

ITEMS = int(os.environ.get("IPCLAB_ITEMS", "100000"))
KILLS = int(os.environ.get("IPCLAB_KILLS", "200"))
RANK_KILLS = int(os.environ.get("IPCLAB_RANK_KILLS", "25"))
REPLAYS = int(os.environ.get("IPCLAB_REPLAYS", "20000"))
SEED = int(os.environ.get("IPCLAB_SEED", "17"))
LIMIT = 600  # seconds for one program: ends a program that hangs
SLACK = 32 << 20  # bytes of device memory
# What a rank says if another rank has ended: during a sum, or between two sums.
MESSAGES = (
    "has not answered",
    "the other role has ended",
    "ended the other process",
)


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """The variables for the GPUs of this machine, or for the model if a profile is
    requested.
    """
    profile = os.environ.get("IPCLAB_PROFILE")
    if profile is None:
        return dict(os.environ)
    folder = model.folder(TOP / "build/dev")
    return {**os.environ, **model.environment(folder, profile)}


@pytest.fixture(autouse=True)
def nothing_is_left(environment: dict[str, str]) -> Iterator[None]:
    """After each test, /dev/shm has no new names except names of the driver, and device
    memory is free again.
    """
    names, free = shared_names(), free_memory_of(environment)
    yield
    # The driver leaves files of killed processes; see remove_driver_names().
    new = {x for x in shared_names() - names if not x.startswith("cuda.shm.")}
    assert not new
    assert free_memory_of(environment) >= free - SLACK, "device memory"


def shared_names() -> set[str]:
    return {x.name for x in Path("/dev/shm").iterdir()}


Changes = dict[str, list[tuple[str, str]]]  # of a file: old text, new text


def build(lesson: str, changes: Changes, folder: Path) -> Path:
    """Change the lesson and build it as its header says; return the program. The old
    text of each change must occur once."""
    shutil.copytree(TOP / "samples/common", folder / "samples/common")
    copy = folder / "samples" / lesson
    shutil.copytree(source(lesson).parent, copy)
    for name, pairs in changes.items():
        text = (copy / name).read_text()
        for old, new in pairs:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        (copy / name).write_text(text)
    program = folder / "program"
    subprocess.run(
        [*shlex.split(build_line(lesson)), "-o", str(program)],
        cwd=folder,
        timeout=300,
        check=True,
    )
    return program


@dataclass
class End:
    """How a program ended; perhaps one of its processes was killed."""

    code: int
    said: str
    seconds: float
    killed: bool


def run(
    program: Path, environment: dict[str, str], victim: int = -1, after: float = 0
) -> End:
    """Run the program. If `victim` is not -1, kill the program's child of this number,
    `after` seconds after the start.

    When the program has ended, all its children must be gone.
    """
    began = time.monotonic()
    process = subprocess.Popen(
        [program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    children: list[psutil.Process] = []
    killed = False
    try:
        if victim >= 0:
            try:
                process.wait(timeout=after)
            except subprocess.TimeoutExpired:
                children = psutil.Process(process.pid).children()
                killed = (
                    len(children) > victim
                    and children[victim].status() != psutil.STATUS_ZOMBIE
                )
                if killed:
                    children[victim].send_signal(signal.SIGKILL)
        said, _ = process.communicate(timeout=LIMIT)
    except BaseException:
        process.kill()
        process.communicate(timeout=30)
        raise
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
    return End(process.returncode, said, time.monotonic() - began, killed)


def kill_often(
    program: Path, environments: list[dict[str, str]], victim: int, kills: int
) -> Iterator[End]:
    """Run the program again and again, until a child was killed in `kills` of the runs;
    each child is killed at a random moment. Yields how these runs ended.

    In each environment there is one run at a time.
    """
    chance = random.Random(SEED)
    whole = run(program, environments[0])
    assert whole.code == 0, whole.said
    moments = [chance.uniform(0, whole.seconds) for _ in range(20 * kills)]
    free: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
    for environment in environments:
        free.put(environment)

    def kill_once(after: float) -> End:
        environment = free.get(timeout=LIMIT)
        try:
            return run(program, environment, victim, after)
        finally:
            free.put(environment)

    done = 0
    workers = ThreadPoolExecutor(len(environments))
    try:
        for attempt, end in enumerate(workers.map(kill_once, moments), 1):
            if not end.killed:
                continue
            done += 1
            if done % 10 == 0:
                print(f"{done} killed", flush=True)
            yield end
            if done == kills:
                print(f"{done} killed in {attempt} runs of {whole.seconds:.2f} s")
                return
    finally:
        workers.shutdown(cancel_futures=True)
    raise AssertionError(f"{done} kills in {len(moments)} runs")


def probed(environment: dict[str, str]) -> Any:
    """What the probe says about this machine or the model."""
    told = subprocess.run(
        [TOP / "build/dev/harness/scenario/probe"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(told.stdout)


# There is only one consumer, on its own GPU. Processes on one GPU take turns: a turn
# takes some milliseconds and moves only four items, which is too slow for many items.
ONE_PROCESS_EACH: Changes = {
    "pipeline.cu": [
        ("kConsumers = 2;", "kConsumers = 1;"),
        (
            '  const int me = channel.receive<int>("number");\n',
            '  const int me = channel.receive<int>("number");\n'
            "  CUDA_CHECK(cudaSetDevice(1));\n",
        ),
        ("  consume<LegacyHandle>(channel, me, me == 1 ? kKilledAt : kItems);\n", ""),
        ("  wrong += produce<LegacyHandle>(consumers, true);\n", ""),
        ("  SYS_CHECK(waitpid(consumers[1].pid, nullptr, 0));  // was killed\n", ""),
    ],
    "ways.h": [
        (
            "    data = map_memory(memory, size);\n  }\n  void give_back()",
            "    data = map_memory(memory, size);\n"
            "    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 1},\n"
            "                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE};\n"
            "    CU_CHECK(DRIVER(cuMemSetAccess)(\n"
            "        reinterpret_cast<CUdeviceptr>(data), size, &access, 1));\n"
            "  }\n  void give_back()",
        ),
        (
            "    pool = receive_pool(channel);\n",
            "    pool = receive_pool(channel);\n"
            "    const cudaMemAccessDesc access{{cudaMemLocationTypeDevice, 1},\n"
            "                                   cudaMemAccessFlagsProtReadWrite};\n"
            "    CUDA_CHECK(cudaMemPoolSetAccess(pool, &access, 1));\n",
        ),
    ],
}


def test_items_pass_the_ring_three_ways(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """Items arrive in order, and no item is lost or doubled: each item has its own
    values, and every consumer checks the values of all items."""
    changes: Changes = {
        "pipeline.cu": [
            ("constexpr int kItems = 60;", f"constexpr int kItems = {ITEMS};"),
            ("steady_clock::now() + 20s", f"steady_clock::now() + {LIMIT}s"),
        ],
        # Smaller items, because the values of all items must fit into an int.
        "ring.h": [("kCount = 1 << 16;", "kCount = 1 << 12;")],
    }
    consumers = 2
    if probed(environment)["peers"]:
        consumers = 1
        changes["pipeline.cu"] += ONE_PROCESS_EACH["pipeline.cu"]
        changes["ways.h"] = ONE_PROCESS_EACH["ways.h"]
    end = run(build("74_pipeline", changes, tmp_path), environment)
    print(end.said, f"{end.seconds:.1f} s")
    assert end.code == 0, end.said
    ends = f"{consumers} of {consumers} importers end: 0 values"
    counted = re.findall(rf"(\d+) items by .*, {ends}", end.said)
    assert counted == [str(ITEMS)] * 3


def test_a_consumer_is_killed_and_the_others_go_on(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """Importer 1 is killed at any moment. Importer 0 gets every item, unless importer 1
    was killed so early that the exporter ends with a message.
    """
    changes: Changes = {
        "pipeline.cu": [
            ("constexpr int kItems = 60;", "constexpr int kItems = 120;"),
            ("  if (items < kItems) SYS_CHECK(kill(getpid(), SIGKILL));\n", ""),
            *[
                (f"  consume<{way}>(channel, me, kItems);\n", "")
                for way in ("LegacyHandle", "Descriptor", "Pool")
            ],
            ("me == 1 ? kKilledAt : kItems", "kItems"),
            ("int wrong = produce<LegacyHandle>(consumers, false);", "int wrong = 0;"),
            ("  wrong += produce<Descriptor>(consumers, false);\n", ""),
            ("  wrong += produce<Pool>(consumers, false);\n", ""),
        ],
        "ring.h": [("kCount = 1 << 16;", "kCount = 1 << 12;")],
    }
    program = build("74_pipeline", changes, tmp_path)
    # All processes of a run use one GPU, so each GPU can have its own runs.
    each = [
        {**environment, "CUDA_VISIBLE_DEVICES": str(gpu["index"])}
        for gpu in probed(environment)["gpus"]
    ]
    for end in kill_often(program, each, victim=1, kills=KILLS):
        alone = "1 of 2 importers end: 0 values wrong" in end.said
        before_it_was_told = "the other role has ended" in end.said
        if before_it_was_told:
            assert end.code == 1, end
        else:
            assert end.code == 0 and alone, end


def test_a_rank_is_killed_and_the_others_say_so(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """Rank 1 is killed at any moment: rank 0 ends with a message."""
    changes: Changes = {
        "all_reduce.cu": [
            ("kReplays = 5;", f"kReplays = {REPLAYS};"),
            ("kLimit = 5;", "kLimit = 1;"),
        ]
    }
    program = build("72_all_reduce", changes, tmp_path)
    said: Counter[str] = Counter()
    for end in kill_often(program, [environment], victim=0, kills=RANK_KILLS):
        messages = [x for x in MESSAGES if x in end.said]
        assert end.code == 1 and messages, end
        said[messages[0]] += 1
    print(dict(said))
