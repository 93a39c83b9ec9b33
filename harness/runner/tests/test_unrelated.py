"""Lessons that two terminals run by hand, and a server whose clients are killed.

IPCLAB_CLIENT_SECONDS is how long clients come and go. The default is 5; use 60 to
qualify a machine.

SPDX-License-Identifier: Apache-2.0
"""

import contextlib
import ctypes
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from test_repository import TOP, topic

CLIENTS = min(32, 8 * (os.cpu_count() or 1))  # each has 10 s to be served
SECONDS = float(os.environ.get("IPCLAB_CLIENT_SECONDS", "5"))
BY_HAND = ["01_legacy_memory", "10_event_handle", "30_vmm_fd", "50_pool_ipc"]
SERVER = "75_unrelated_processes"
SLACK = 32 << 20  # bytes; one client has 2 MiB of its own

pytestmark = pytest.mark.skipif(
    "IPCLAB_MODEL" not in os.environ, reason="started by hand, without a build"
)


def program(lesson: str) -> str:
    build = Path(os.environ["IPCLAB_MODEL"]).parent
    return str(build / "samples" / lesson / topic(lesson))


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """The variables for the machine's GPU, or for the model if no GPU can share."""
    alone = subprocess.run([program(SERVER)], capture_output=True, timeout=60)
    if alone.returncode != 77:
        return dict(os.environ)
    return {
        **os.environ,
        "LD_LIBRARY_PATH": os.environ["IPCLAB_MODEL"],
        "IPCLAB_PROFILE": "one-gpu",
        "IPCLAB_MODEL_MACHINE": f"test_unrelated {os.getpid()}",
    }


STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def nobody_is_left() -> Iterator[None]:
    """Ends the processes that a failed test leaves running."""
    STARTED.clear()
    yield
    for process in STARTED:
        if process.poll() is None:
            process.kill()
            process.communicate(timeout=30)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A free name for a socket; the file is removed at the end."""
    yield tmp_path / "socket"
    assert not (tmp_path / "socket").exists()


def start(
    lesson: str, role: str, path: Path, environment: dict[str, str]
) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [program(lesson), "--role", role, str(path)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    STARTED.append(process)
    return process


def start_exporter(
    lesson: str, path: Path, environment: dict[str, str]
) -> subprocess.Popen[str]:
    """Start an exporter; return when it listens."""
    exporter = start(lesson, "exporter", path, environment)
    assert exporter.stdout is not None
    assert exporter.stdout.readline() == f"exporter  listens at [{path}]\n"
    return exporter


def test_a_client_that_never_reads_does_not_stop_the_broker(
    path: Path, environment: dict[str, str]
) -> None:
    """The answers to 2,000 requests are more than a socket keeps."""
    broker = start("65_pods", "broker", path, environment)
    assert broker.stdout is not None
    assert broker.stdout.readline() == f"broker    listens at [{path}]\n"
    take, no = 1, 5  # of What in broker.h
    request = struct.pack("i36s", take, b"0" * 32)
    with socket_to(path) as silent, socket_to(path) as other:
        with contextlib.suppress(TimeoutError):
            for _ in range(2000):
                silent.send(request)
        other.send(request)
        assert struct.unpack_from("i", other.recv(64)) == (no,)
    broker.terminate()
    assert broker.wait(30) == 0
    broker.stdout.close()
    path.unlink()


@pytest.mark.parametrize("first", ["the exporter", "the importer"])
def test_the_broker_tells_each_side_that_the_other_has_left(
    first: str, path: Path, environment: dict[str, str]
) -> None:
    """Whoever does not hear it waits for nobody."""
    broker = start("65_pods", "broker", path, environment)
    assert broker.stdout is not None
    assert broker.stdout.readline() == f"broker    listens at [{path}]\n"
    lend, take, yes, left = 0, 1, 4, 6  # of What in broker.h
    token = b"1" * 32

    def answer(connection: socket.socket) -> int:
        return int(struct.unpack_from("i", connection.recv(64))[0])

    with socket_to(path) as exporter, socket_to(path) as importer:
        packet = [struct.pack("i36s", lend, token)]
        with Path(os.devnull).open() as lent:
            socket.send_fds(exporter, packet, [lent.fileno()])
        assert answer(exporter) == yes
        importer.send(struct.pack("i36s", take, token))
        assert answer(importer) == yes
        if first == "the exporter":
            exporter.close()
            assert answer(importer) == left
        else:
            importer.close()
            assert answer(exporter) == left
    broker.terminate()
    assert broker.wait(30) == 0
    broker.stdout.close()
    path.unlink()


def socket_to(path: Path) -> socket.socket:
    """A connection on which each call waits for at most 5 s."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(5)
    connection.connect(str(path))
    return connection


@pytest.mark.parametrize("lesson", BY_HAND)
def test_two_terminals_run_a_lesson(
    lesson: str, path: Path, environment: dict[str, str]
) -> None:
    exporter = start_exporter(lesson, path, environment)
    importer = start(lesson, "importer", path, environment)
    theirs, _ = importer.communicate(timeout=30)
    ours, _ = exporter.communicate(timeout=30)
    assert (exporter.returncode, importer.returncode) == (0, 0), ours + theirs
    assert "exporter  " in ours and "importer  " not in ours
    assert "0 wrong" in theirs


def test_the_command_runs_a_role_in_each_of_two_terminals(path: Path) -> None:
    """Without a GPU, the two commands must choose the same simulated machine."""
    build = Path(os.environ["IPCLAB_MODEL"]).parent
    free = {k: v for k, v in os.environ.items() if k != "IPCLAB_MODEL_MACHINE"}

    def start_command(role: str) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "ipclab",
            "sample",
            "01",
            "--build",
            str(build),
        ]
        process = subprocess.Popen(
            [*command, "--role", role, str(path)],
            env={**free, "PYTHONPATH": str(TOP / "harness/runner/src")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        STARTED.append(process)
        return process

    exporter = start_command("exporter")
    assert exporter.stdout is not None
    while "listens at" not in (line := exporter.stdout.readline()):
        assert line, "the exporter does not listen"
    importer = start_command("importer")
    theirs, _ = importer.communicate(timeout=60)
    ours, _ = exporter.communicate(timeout=60)
    assert (exporter.returncode, importer.returncode) == (0, 0), ours + theirs
    assert "0 wrong" in theirs


@pytest.mark.parametrize("lesson", [*BY_HAND, SERVER])
def test_an_importer_says_that_its_exporter_is_missing(
    lesson: str, path: Path, environment: dict[str, str]
) -> None:
    importer = start(lesson, "importer", path, environment)
    said, _ = importer.communicate(timeout=30)
    assert importer.returncode == 2
    assert said == f"{path}: no exporter of this user listens; start it first\n"


def test_a_file_is_never_replaced(path: Path, environment: dict[str, str]) -> None:
    path.write_text("precious")
    exporter = start("01_legacy_memory", "exporter", path, environment)
    said, _ = exporter.communicate(timeout=30)
    assert exporter.returncode == 2
    assert said == f"{path}: in use; choose another path\n"
    assert path.read_text() == "precious"
    path.unlink()


def test_the_socket_of_a_killed_exporter_is_replaced(
    path: Path, environment: dict[str, str]
) -> None:
    killed = start_exporter("01_legacy_memory", path, environment)
    second = start("01_legacy_memory", "exporter", path, environment)
    said, _ = second.communicate(timeout=30)
    assert (second.returncode, said) == (2, f"{path}: in use; choose another path\n")
    killed.kill()
    killed.communicate(timeout=30)
    assert path.exists()
    third = start_exporter("01_legacy_memory", path, environment)
    third.send_signal(signal.SIGKILL)
    third.communicate(timeout=30)
    path.unlink()


def test_nobody_else_may_connect(path: Path, environment: dict[str, str]) -> None:
    exporter = start_exporter("01_legacy_memory", path, environment)
    assert path.stat().st_mode & 0o777 == 0o600
    exporter.kill()
    exporter.communicate(timeout=30)
    path.unlink()


@dataclass
class Visits:
    """The results of the clients."""

    left: int = 0
    killed: int = 0
    failed: list[str] = field(default_factory=list)

    def stay(
        self, path: Path, environment: dict[str, str], until: float, seed: int
    ) -> None:
        """Start one client after another. About every second client gets a random time
        and is killed if it has not ended by then.
        """
        chance = random.Random(seed)
        life = 1.0  # seconds that the last client took that was not killed
        while time.monotonic() < until:
            began = time.monotonic()
            client = start(SERVER, "importer", path, environment)
            try:
                limit = chance.uniform(0, life) if chance.random() < 0.5 else 60
                said, _ = client.communicate(timeout=limit)
                life = time.monotonic() - began
            except subprocess.TimeoutExpired:
                client.kill()
                said, _ = client.communicate(timeout=30)
            if client.returncode == 0:
                self.left += 1
            elif client.returncode == -signal.SIGKILL and limit < 60:
                self.killed += 1
            else:
                self.failed.append(f"exit {client.returncode}: {said}")


def visit(path: Path, environment: dict[str, str], seconds: float, seed: int) -> Visits:
    """Run all clients at once for this time."""
    visits = Visits()
    until = time.monotonic() + seconds
    threads = [
        threading.Thread(target=visits.stay, args=(path, environment, until, seed + i))
        for i in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return visits


def free_memory_of(environment: dict[str, str]) -> int:
    """Free bytes of device 0, queried by a process that then ends."""
    asked = subprocess.run(
        [sys.executable, __file__],
        env=environment | {"PYTHONPATH": str(TOP / "harness/runner/src")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return int(asked.stdout)


def held_by(pid: int, environment: dict[str, str]) -> tuple[int, int, int, int]:
    """What a process has (descriptors, mappings, bytes of address space), and the bytes
    of device memory that are free."""
    there = Path(f"/proc/{pid}")
    pages = int((there / "statm").read_text().split()[0])
    free = free_memory_of(environment)
    return (
        len(list((there / "fd").iterdir())),
        len((there / "maps").read_text().splitlines()),
        pages * os.sysconf("SC_PAGE_SIZE"),
        free,
    )


def see_all_go(lines: list[str], path: Path, environment: dict[str, str]) -> None:
    """Wait until the server, which printed these lines, has no client any more.

    This function starts one more client, which is served after all earlier clients.
    """
    last = start(SERVER, "importer", path, environment)
    said, _ = last.communicate(timeout=60)
    assert last.returncode == 0, said
    until = time.monotonic() + 60
    while True:
        heard = "".join(lines)
        if f"meets a client [{last.pid}]" in heard and heard.count(
            "meets a client"
        ) == heard.count("sees a client go"):
            return
        assert time.monotonic() < until, f"a client stays: {heard[-2000:]}"
        time.sleep(0.01)


def test_a_server_outlives_clients_that_are_killed(
    path: Path, environment: dict[str, str]
) -> None:
    """After the clients the server holds about as many resources as before them."""
    # glibc reserves 64 MiB of addresses for each further arena, and makes one
    # whenever two threads allocate at the same moment.
    environment = environment | {"MALLOC_ARENA_MAX": "1"}
    server = start_exporter(SERVER, path, environment)
    assert server.stdout is not None
    lines: list[str] = []
    reader = threading.Thread(target=lines.extend, args=(server.stdout,))
    reader.start()
    try:
        assert not visit(path, environment, 1, seed=1).failed  # then all code is loaded
        see_all_go(lines, path, environment)
        before = held_by(server.pid, environment)
        visits = visit(path, environment, SECONDS, seed=1000)
        see_all_go(lines, path, environment)
        after = held_by(server.pid, environment)
    finally:
        server.send_signal(signal.SIGINT)
        code = server.wait(timeout=60)
        reader.join()
    print(f"{visits.left} clients left, {visits.killed} were killed")
    assert code == 0 and lines[-1] == "exporter  stops\n"
    assert not visits.failed
    assert visits.left > 0 and visits.killed > 0
    said = "".join(lines)
    assert said.count("meets a client") == said.count("sees a client go")
    seen = f"before {before}, after {after}"
    assert after[0] == before[0], f"descriptors: {seen}"
    assert after[1] <= before[1] + CLIENTS, f"mappings: {seen}"
    assert after[2] <= before[2] + SLACK, f"addresses: {seen}"
    assert after[3] >= before[3] - SLACK, f"device memory: {seen}"
    print(seen)


def free_memory() -> int:
    """Free bytes of device 0."""
    runtime = ctypes.CDLL("libcudart.so.13")
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    code = runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
    if code != 0:
        raise SystemExit(f"cudaMemGetInfo: {code}")
    return free.value


if __name__ == "__main__":
    print(free_memory())
