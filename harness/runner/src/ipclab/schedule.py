"""Run tests side by side and give each the GPUs it wants."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from ipclab import supervise
from ipclab.ctest import Case
from ipclab.records import Record


@dataclass(frozen=True)
class Job:
    """One attempt at one test."""

    case: Case
    attempt: int


class Allocator:
    """Which GPU is used by how many tests.

    With no more jobs than GPUs each test has its GPUs to itself and waits for
    them; with more jobs it gets those with the least load, and only a test
    that wants to be alone waits.
    """

    def __init__(self, uuids: list[str], jobs: int) -> None:
        self._load = dict.fromkeys(uuids, 0)
        self._running = 0
        self._held = False  # by a test that wants to be alone
        self._single = jobs == 1
        self.exclusive = jobs <= max(len(uuids), 1)

    def take(self, wanted: int, alone: bool = False) -> list[str] | None:
        """GPUs for a test, at most as many as there are; None: not now."""
        if self._held or (alone and self._running):
            return None
        count = min(wanted, len(self._load))
        least = sorted(self._load, key=lambda uuid: self._load[uuid])[:count]
        if self.exclusive and any(self._load[uuid] for uuid in least):
            return None
        self._running += 1
        self._held = alone
        for uuid in least:
            self._load[uuid] += 1
        return least

    def give_back(self, uuids: list[str]) -> None:
        """The test has ended."""
        self._running -= 1
        self._held = False  # one that is alone is the only one that can end
        for uuid in uuids:
            self._load[uuid] -= 1

    def visible(self, uuids: list[str]) -> str | None:
        """CUDA_VISIBLE_DEVICES of a test; None where nothing has to be set."""
        if self._single or not uuids:
            return None
        return ",".join(uuid for uuid in self._load if uuid in uuids)


Execute = Callable[[Case, int, str | None, bool], Record]
Interruption = tuple[None, None]
Done = tuple[Job, Record | BaseException]


def run(
    jobs: list[Job],
    parallel: int,
    allocator: Allocator,
    execute: Execute,
    started: Callable[[Job], None],
    finished: Callable[[Job, Record], None],
) -> bool:
    """Run all jobs, at most `parallel` at once; False if a signal ended that.

    `started` and `finished` are called here, in the caller's thread. If one
    raises, or `execute` does, what runs is ended and the exception goes on.
    """
    done: queue.SimpleQueue[Done | Interruption] = queue.SimpleQueue()
    # First those that wait until nothing runs: later that may never be.
    waiting = sorted(jobs, key=lambda job: not job.case.alone)
    running: dict[Job, tuple[threading.Thread, list[str]]] = {}

    def work(job: Job, uuids: list[str]) -> None:
        try:
            visible = allocator.visible(uuids)
            exclusive = allocator.exclusive or job.case.alone
            record = execute(job.case, job.attempt, visible, exclusive)
            done.put((job, record))
        except BaseException as error:  # goes on in the caller's thread
            done.put((job, error))

    def start_what_fits() -> None:
        for job in list(waiting):
            if len(running) >= parallel:
                return
            if (uuids := allocator.take(job.case.gpus, job.case.alone)) is None:
                continue
            waiting.remove(job)
            thread = threading.Thread(target=work, args=(job, uuids))
            running[job] = (thread, uuids)
            started(job)
            thread.start()

    with _signals_into(done):
        try:
            start_what_fits()
            while running:
                job, result = done.get()
                if job is None:
                    return False
                allocator.give_back(running.pop(job)[1])
                if isinstance(result, BaseException):
                    raise result
                assert result is not None
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
    """While in here, SIGINT and SIGTERM are entries of the queue.

    An exception raised by a handler could strike in the middle of a write.
    """

    def handle(_number: int, _frame: FrameType | None) -> None:
        done.put((None, None))

    before = {x: signal.signal(x, handle) for x in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
