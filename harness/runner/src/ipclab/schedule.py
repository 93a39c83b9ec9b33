"""Run tests side by side and give each test the GPUs that it needs."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol, TypeVar

from ipclab import supervise
from ipclab.ctest import Case


class Job(Protocol):
    """One start of a program. Jobs can be hashed; no two jobs of a run are equal."""

    @property
    def case(self) -> Case:
        """The test; if the start is for several tests, the first of them."""


J = TypeVar("J", bound=Job)
R = TypeVar("R")
SIGNALS_EVERY = 0.5  # seconds until a signal counts, at the latest


def first(case: Case, gpus: int) -> tuple[bool, bool]:
    """The place of a test in the order of a run on a machine with `gpus` GPUs; the
    smallest is the first.

    First come the tests with several GPUs, because such a test waits while a test that
    must be alone has one of them. Then come the tests that must be alone: on a machine
    with several GPUs the others run beside them.
    """
    return min(case.visible_gpus, gpus) < 2, not case.alone


class Allocator:
    """Counts how many tests use each GPU.

    `jobs` is how many tests may run at once. If `jobs` is not greater than the number
    of GPUs, no GPU is shared, and a test waits for free GPUs. Otherwise a test gets the
    GPUs with the least load. A test that must be alone waits for GPUs that no other
    test uses, and no other test gets them until it ends. Such tests hold at most half
    of the GPUs, or the GPUs of one test, so the other tests can go on. If each test has
    its own simulated machine (`apart`), a test is always alone on its machine.
    """

    def __init__(self, uuids: list[str], jobs: int, apart: bool = False) -> None:
        self._apart = apart
        self._load = dict.fromkeys(uuids, 0)
        self._held: set[str] = set()  # by tests that are alone
        self._promised: set[str] = set()  # to tests that must be alone and wait
        self._single = jobs == 1
        self.exclusive = jobs <= max(len(uuids), 1)

    def forget_promises(self) -> None:
        """The tests that wait are asked again, from the first one on."""
        self._promised.clear()

    def take(self, wanted: int, alone: bool = False) -> list[str] | None:
        """GPUs for a test, at most as many as there are; None if the test must wait.

        A test that must be alone and waits is promised the GPUs with the least load:
        the tests that are asked after it get others.
        """
        alone = alone and not self._apart
        count = min(wanted, len(self._load))
        most_held = max(len(self._load) // 2, count)
        if alone and len(self._held) + count > most_held:
            return None
        left = [x for x in self._load if x not in self._held | self._promised]
        least = sorted(left, key=lambda uuid: self._load[uuid])[:count]
        if len(least) < count:
            return None
        if (alone or self.exclusive) and any(self._load[uuid] for uuid in least):
            if alone:
                self._promised.update(least)
            return None
        if alone:
            self._held.update(least)
        for uuid in least:
            self._load[uuid] += 1
        return least

    def give_back(self, uuids: list[str]) -> None:
        """The test has ended."""
        self._held.difference_update(uuids)  # a test that is alone shares no GPU
        for uuid in uuids:
            self._load[uuid] -= 1

    def visible(self, uuids: list[str]) -> str | None:
        """CUDA_VISIBLE_DEVICES of a test; None if the variable stays as it is."""
        if self._single or not uuids:
            return None
        return ",".join(uuid for uuid in self._load if uuid in uuids)


def run(
    jobs: Sequence[J],
    parallel: int,
    allocator: Allocator,
    execute: Callable[[J, str | None, bool], R],
    started: Callable[[J], None],
    finished: Callable[[J, R], None],
    wanted: Callable[[J], bool] = lambda _job: True,
    deadline: float | None = None,
    more: Callable[[], Sequence[J]] = lambda: (),
) -> bool:
    """Run the jobs in their order, at most `parallel` at once. While a job waits for
    its GPUs, later jobs can overtake it, but not on GPUs that are promised to it.

    Returns False if a signal stopped the function, or if time.monotonic() reached
    `deadline`. Then the function ends the running jobs, and does not call `finished`
    for them. `execute` gets the job, its CUDA_VISIBLE_DEVICES, and whether the job has
    the GPUs to itself. Each call of `execute` has its own thread; the other functions
    are called in the caller's thread. A job is left out if it is no longer `wanted`
    when its turn comes. When no job waits and there is room for one, `more` is asked
    for further jobs. If one of these functions raises an exception, the running jobs
    are ended, and the exception is passed on.
    """
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()
    waiting = list(jobs)
    running: dict[J, tuple[threading.Thread, list[str]]] = {}

    def work(job: J, uuids: list[str]) -> None:
        try:
            visible = allocator.visible(uuids)
            exclusive = allocator.exclusive or job.case.alone
            done.put((job, execute(job, visible, exclusive), None))
        except BaseException as error:  # raised again in the caller's thread
            done.put((job, None, error))

    def start_what_fits() -> None:
        start_what_waits()
        while not waiting and len(running) < parallel and (further := more()):
            waiting.extend(further)
            start_what_waits()

    def start_what_waits() -> None:
        kept: list[J] = []  # jobs that have to wait
        index = 0
        allocator.forget_promises()
        while index < len(waiting) and len(running) < parallel:
            job = waiting[index]
            index += 1
            if not wanted(job):
                continue
            if (uuids := allocator.take(job.case.visible_gpus, job.case.alone)) is None:
                kept.append(job)
                continue
            thread = threading.Thread(target=work, args=(job, uuids))
            running[job] = (thread, uuids)
            started(job)
            thread.start()
        waiting[:index] = kept

    def next_done() -> Any:
        # A signal that comes just before a wait does not end this wait, and its handler
        # runs only after the wait. So each wait is short.
        while True:
            left = math.inf if deadline is None else deadline - time.monotonic()
            try:
                return done.get(timeout=max(min(left, SIGNALS_EVERY), 0))
            except queue.Empty:
                if left <= SIGNALS_EVERY:
                    return None

    with _signals_into(done):
        try:
            start_what_fits()
            while running:
                if (entry := next_done()) is None:
                    return False
                job, result, error = entry
                allocator.give_back(running.pop(job)[1])
                if error is not None:
                    raise error
                finished(job, result)
                start_what_fits()
            return True
        finally:
            while any(thread.is_alive() for thread, _ in running.values()):
                supervise.stop_all()
                for thread, _ in running.values():
                    if thread.ident is not None:
                        thread.join(0.1)


@contextmanager
def _signals_into(done: queue.SimpleQueue[Any]) -> Iterator[None]:
    """Inside this context SIGINT, SIGTERM and SIGHUP become entries of the queue.

    The reason is that an exception from a signal handler could interrupt a write.
    """

    def handle(_number: int, _frame: FrameType | None) -> None:
        done.put(None)

    before = {
        x: signal.signal(x, handle)
        for x in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if x != signal.SIGHUP or signal.getsignal(x) != signal.SIG_IGN  # nohup
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
