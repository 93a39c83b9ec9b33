"""Several tests at once: who gets which GPU."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import PROBE, Build, machine
from ipclab import schedule, supervise
from ipclab.ctest import Case
from ipclab.schedule import Allocator

HOLD = """
# Each test holds a lock file for each of its GPUs: a second holder is seen.
mine = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
try:
    held = [os.open(f"{folder}/{{x}}", os.O_CREAT | os.O_EXCL) for x in mine]
except FileExistsError:
    record(outcome="violates", reason="another test has my GPU")
    sys.exit(1)
time.sleep(0.15)  # long enough to meet a neighbour
for name in mine:
    os.unlink(f"{folder}/{{name}}")
record(notes=[",".join(mine), str(os.environ.get("IPCLAB_EXCLUSIVE"))])
"""

# Each test waits for the other, so neither could end alone.
MEET = """
open("{folder}/{mine}", "w").close()
until = time.monotonic() + 10
while not os.path.exists("{folder}/{other}"):
    if time.monotonic() > until:
        sys.exit(1)
    time.sleep(0.01)
record(notes=[str(os.environ.get(x)) for x in {variables}])
"""


def test_no_gpu_is_given_to_two_tests_at_once(build: Build) -> None:
    for i in range(6):
        build.conformance(
            HOLD.format(folder=build.root), f"Suite.T{i}", gpus=2 if i == 2 else 1
        )
    outcome = build.run("-j", "2")
    assert outcome.code == 0, outcome.text
    seen = {x["test"]: x["notes"] for x in outcome.records}
    assert seen["Suite.T2"] == ["GPU-0,GPU-1", "1"]
    assert {notes[0] for notes in seen.values()} == {"GPU-0", "GPU-1", "GPU-0,GPU-1"}
    assert {notes[1] for notes in seen.values()} == {"1"}


def test_more_jobs_than_gpus_share_and_say_so(build: Build) -> None:
    for i in range(4):
        build.conformance(
            """
            names = ["CUDA_VISIBLE_DEVICES", "IPCLAB_EXCLUSIVE"]
            record(notes=[str(os.environ.get(x)) for x in names])
            """,
            f"Suite.T{i}",
        )
    outcome = build.run("-j", "4")
    assert outcome.code == 0
    assert sorted(x["notes"] for x in outcome.records) == [
        ["GPU-0", "None"],
        ["GPU-0", "None"],
        ["GPU-1", "None"],
        ["GPU-1", "None"],
    ]


def test_tests_really_run_side_by_side(build: Build, tmp_path: Path) -> None:
    for mine, other in (("a", "b"), ("b", "a")):
        program = MEET.format(folder=tmp_path, mine=mine, other=other, variables=[])
        build.conformance(program, f"Suite.{mine}")
    assert build.run("-j", "2").code == 0


@pytest.mark.parametrize("jobs", [1, 2])
def test_test_that_wants_more_gpus_than_there_are_still_runs(
    build: Build, jobs: int
) -> None:
    build.conformance("record(outcome='not applicable', reason='2 of 4')", gpus=4)
    assert build.run("-j", str(jobs)).only["verdict"] == "not applicable"


def test_machine_without_gpus_runs_in_parallel(build: Build) -> None:
    build.probe({**PROBE, "backend": "none", "gpus": []})
    for i in range(3):
        build.conformance("record()", f"Suite.T{i}")
    outcome = build.run("-j", "3")
    assert (outcome.code, len(outcome.records)) == (0, 3)


NO_PROGRAM = Case("x", (), (), 1, "", 77, "sample", None, 0, False, None)


@dataclass(frozen=True)
class Numbered:
    """A job of no program."""

    number: int
    case: Case = NO_PROGRAM


@pytest.mark.parametrize("parallel", [1, 3])
def test_further_jobs_come_when_no_job_waits(parallel: int) -> None:
    """Job 9 ends last of the first jobs. With room for others, further jobs do not
    wait for its end.
    """
    left = [[Numbered(10), Numbered(11)], [], [Numbered(12)]]
    ended: list[int] = []
    further = threading.Event()

    def execute(job: Numbered, _visible: str | None, _exclusive: bool) -> None:
        if job.number == 9 and parallel > 1:
            assert further.wait(10)
        if job.number == 11:
            further.set()

    assert schedule.run(
        [Numbered(8), Numbered(9)],
        parallel,
        Allocator([], parallel),
        execute,
        lambda _job: None,
        lambda job, _result: ended.append(job.number),
        more=lambda: left.pop(0) if left else [],
    )
    assert sorted(ended) == ([8, 9, 10, 11] if parallel == 1 else [8, 9, 10, 11, 12])
    assert (ended.index(9) < ended.index(10)) == (parallel == 1)


def place_of_main_thread() -> tuple[str, int]:
    """The function in which the main thread is, and the place of its instruction."""
    main = threading.main_thread().ident
    assert main is not None
    frame = sys._current_frames()[main]
    return frame.f_code.co_name, frame.f_lasti


@pytest.mark.parametrize("seconds", [None, 60.0])
def test_a_signal_that_ends_no_wait_stops_the_run(
    monkeypatch: pytest.MonkeyPatch, seconds: float | None
) -> None:
    """The signal comes in the job's thread, so it does not end the wait of the main
    thread. This is also what a signal does that comes just before the wait.
    """
    stopped = threading.Event()
    monkeypatch.setattr(supervise, "stop_all", stopped.set)

    def execute(_job: Numbered, _visible: str | None, _exclusive: bool) -> bool:
        place, before = place_of_main_thread(), None
        until = time.monotonic() + 20
        while place[0] != "next_done" or place != before:  # it does not wait yet
            assert time.monotonic() < until, place
            stopped.wait(0.01)
            place, before = place_of_main_thread(), place
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        return stopped.wait(20)

    ended: list[bool] = []
    assert not schedule.run(
        [Numbered(1)],
        1,
        Allocator([], 1),
        execute,
        lambda _job: None,
        lambda _job, result: ended.append(result),
        deadline=seconds and time.monotonic() + seconds,
    )
    assert stopped.is_set()
    assert not ended


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_second_gpu_is_seen_only_by_tests_that_judge_it(
    build: Build, gpus: int
) -> None:
    build.probe({**PROBE, "gpus": PROBE["gpus"][:gpus]})
    for name, extra in (("One", ()), ("Both", ("second_gpu",))):
        build.conformance(
            "record(notes=[os.environ['CUDA_VISIBLE_DEVICES']])",
            f"Suite.{name}",
            extra=extra,
        )
    seen = {x["test"]: x["notes"] for x in build.run("-j", "3").records}
    assert seen["Suite.Both"] == ["GPU-0,GPU-1" if gpus == 2 else "GPU-0"]
    assert seen["Suite.One"] in (["GPU-0"], ["GPU-1"])


def test_allocator_takes_the_least_loaded() -> None:
    gpus = Allocator(["a", "b"], jobs=3)
    assert not gpus.exclusive
    first = gpus.take(1)
    assert first == ["a"]
    assert gpus.take(1) == ["b"]
    gpus.give_back(first)
    assert gpus.take(1) == ["a"]
    assert gpus.take(0) == []
    assert gpus.visible([]) is None


def test_allocator_lets_nobody_join_a_test_that_is_alone() -> None:
    gpus = Allocator(["a", "b"], jobs=3)
    one = gpus.take(1, alone=True)
    assert one == ["a"]
    assert gpus.take(1) == gpus.take(1) == ["b"]
    assert gpus.take(2) is None
    assert gpus.take(1, alone=True) is None
    gpus.give_back(one)
    assert gpus.take(1) == ["a"]


def test_allocator_promises_a_gpu_to_a_test_that_must_be_alone() -> None:
    gpus = Allocator(["a", "b"], jobs=3)
    assert gpus.take(1) == ["a"]
    both = gpus.take(2)
    assert both == ["b", "a"]
    assert gpus.take(1, alone=True) is None
    assert gpus.take(1) == ["a"]
    assert gpus.take(2) is None
    gpus.give_back(both)
    assert gpus.take(1) == ["a"]
    gpus.forget_promises()
    assert gpus.take(1, alone=True) == ["b"]


def test_tests_that_are_alone_hold_at_most_half_of_the_gpus() -> None:
    gpus = Allocator(["a", "b", "c", "d"], jobs=8)
    assert gpus.take(1, alone=True) == ["a"]
    assert gpus.take(2, alone=True) is None
    one = gpus.take(1, alone=True)
    assert one == ["b"]
    assert gpus.take(1, alone=True) is None
    assert gpus.take(2) == ["c", "d"]
    gpus.give_back(one)
    assert gpus.take(1, alone=True) == ["b"]
    all_of_them = Allocator(["a", "b"], jobs=8)
    assert all_of_them.take(3, alone=True) == ["a", "b"]
    assert all_of_them.take(1) is None


def test_a_test_that_is_alone_shares_no_gpu(build: Build) -> None:
    """Each test writes when it began and ended. Only the test that runs alone overlaps
    with no other test.
    """
    build.probe({**PROBE, "gpus": PROBE["gpus"][:1]})
    stay = "began = time.time(); time.sleep(0.3)\n"
    stay += "record(notes=[os.environ.get('IPCLAB_EXCLUSIVE', '0'), "
    stay += "str(began), str(time.time())])"
    for i in range(3):
        build.conformance(stay, f"Suite.T{i}")
    build.conformance(stay, "Suite.Alone", extra=("alone",))
    outcome = build.run("-j", "4")
    assert outcome.code == 0
    notes = {x["test"]: x["notes"] for x in outcome.records}
    exclusive, began, ended = notes.pop("Suite.Alone")
    assert exclusive == "1"
    for other in notes.values():
        assert other[0] == "0"
        assert float(other[1]) >= float(ended) or float(other[2]) <= float(began)


def test_others_run_beside_a_test_that_is_alone(build: Build, tmp_path: Path) -> None:
    """With two GPUs, a test that must be alone meets another test: neither could end
    without the other. Only the former has its GPU to itself.
    """
    wanted = ["CUDA_VISIBLE_DEVICES", "IPCLAB_EXCLUSIVE"]
    for mine, other in (("a", "b"), ("b", "a")):
        program = MEET.format(folder=tmp_path, mine=mine, other=other, variables=wanted)
        extra = ("alone",) if mine == "a" else ()
        build.conformance(program, f"Suite.{mine}", extra=extra)
    outcome = build.run("-j", "3")
    assert outcome.code == 0, outcome.text
    seen = {x["test"]: x["notes"] for x in outcome.records}
    assert [seen["Suite.a"][1], seen["Suite.b"][1]] == ["1", "None"]
    assert seen["Suite.a"][0] != seen["Suite.b"][0]


@pytest.mark.parametrize("gpus", [1, 2])
def test_tests_with_several_gpus_come_first(build: Build, gpus: int) -> None:
    build.probe({**PROBE, "gpus": PROBE["gpus"][:gpus]})
    program = "record(notes=[str(time.time())])"
    for name, extra in (("One", ()), ("Alone", ("alone",)), ("Both", ("second_gpu",))):
        build.conformance(program, f"Suite.{name}", extra=extra)
    outcome = build.run("-j", "1")
    began = {x["test"]: float(x["notes"][0]) for x in outcome.records}
    order = sorted(began, key=lambda name: began[name])
    assert order.index("Suite.Alone") == (1 if gpus == 2 else 0)
    assert gpus == 1 or order[0] == "Suite.Both"


def test_allocator_makes_tests_wait_for_their_own() -> None:
    gpus = Allocator(["a", "b"], jobs=2)
    assert gpus.exclusive
    one = gpus.take(1)
    assert one is not None
    assert gpus.take(2) is None
    gpus.give_back(one)
    assert gpus.take(9) == ["a", "b"]
    assert gpus.take(1) is None
    assert gpus.visible(["b", "a"]) == "a,b"


def test_a_test_with_a_machine_of_its_own_is_alone_there() -> None:
    apart = Allocator(["a"], 4, apart=True)
    assert apart.take(1, alone=True) == ["a"]
    assert apart.take(1, alone=True) == apart.take(1) == ["a"]
    apart.give_back(["a"])
    assert apart.take(1, alone=True) == ["a"]


def test_on_the_model_a_test_that_is_alone_has_a_machine_to_itself(
    build: Build, tmp_path: Path
) -> None:
    """Two tests that must run alone wait for each other. They can end only if they run
    at once, on two machines.
    """
    machine(build, PROBE)
    wanted = ["IPCLAB_MODEL_MACHINE", "IPCLAB_EXCLUSIVE"]
    build.conformance(f"record(notes=[str(os.environ.get(x)) for x in {wanted}])")
    for mine, other in (("a", "b"), ("b", "a")):
        program = MEET.format(folder=tmp_path, mine=mine, other=other, variables=wanted)
        build.conformance(program, f"Suite.{mine}", extra=("alone",))
    outcome = build.run("-j", "3", "--backend", "model")
    assert outcome.code == 0, outcome.text
    machines, alone = zip(*(x["notes"] for x in outcome.records), strict=True)
    assert len(set(machines)) == 3
    assert sorted(alone) == ["1", "1", "None"]
