"""`ipclab trace --live`: what it shows while programs run, and that it keeps up."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from traced import BUILD, PROGRAMS, ROOT, trace

from ipclab.trace import live
from ipclab.trace.live import View
from ipclab.trace.tail import Tail

HANG = BUILD / "harness" / "trace" / "tests" / "trace_hang"
CALLS = [
    ["cuMemAlloc", "dptr", "bytesize"],
    ["cuIpcGetMemHandle", "pHandle", "dptr"],
    ["cuIpcOpenMemHandle", "pdptr", "handle", "Flags"],
    ["cuIpcCloseMemHandle", "dptr"],
    ["cuLaunchKernel", "kernel", "blocks", "threads", "stream", "pointers"],
    ["cuStreamSynchronize", "hStream"],
]
MIB = 1 << 20
SECOND = 1_000_000_000


class Writer:
    """Writes a file as the recorder does."""

    def __init__(self, folder: Path, process: int, **more: object) -> None:
        folder.mkdir(exist_ok=True)
        self.path = folder / f"{process}-1.trace"
        self.path.touch()
        head = {"what": "process", "format": 1, "process": process, "parent": 0}
        head |= {"began": 0, "forked": False, "command": [f"program{process}"], **more}
        calls = {"what": "calls", "first": 0, "calls": CALLS}
        self.write(head, calls, {"what": "source", "t": 0, "name": "calls"})

    def write(self, *lines: object) -> None:
        """Add lines."""
        text = "".join(json.dumps(x, separators=(",", ":")) + "\n" for x in lines)
        with self.path.open("r+b") as file:
            file.seek(0, os.SEEK_END)
            file.write(text.encode())


def lend(folder: Path) -> tuple[Writer, Writer]:
    """Two processes: 1 lends 4 MiB to 2."""
    one, two = Writer(folder, 1), Writer(folder, 2)
    handle = "ab" * 64
    one.write([1, 1, 0, 1, 0, 0, 1 << 40, 4 * MIB], [3, 1, 0, 1, 1, 0, handle, 1 << 40])
    two.write([5, 1, 0, 1, 2, 0, 1 << 41, handle, 1])
    return one, two


def shown(command: list[str | Path], folder: Path, until: str) -> Iterator[str]:
    """The lines of --live until one has `until`; then Ctrl-C, and the other lines."""
    arguments = [
        sys.executable, "-P", "-m", "ipclab", "trace", "--live",
        "--build", BUILD, "--out", folder, "--", *command,
    ]  # fmt: skip
    process = subprocess.Popen(
        list(map(str, arguments)),
        env={**os.environ, "PYTHONPATH": str(ROOT / "harness" / "runner" / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    interrupted = False
    with process:
        for line in process.stdout:
            yield line.rstrip()
            if until in line and not interrupted:
                interrupted = True
                os.killpg(process.pid, signal.SIGINT)
    yield f"exit code {process.returncode}"


@pytest.mark.parametrize("kind", ["words", "event"])
def test_a_cycle_is_shown_while_it_hangs(tmp_path: Path, kind: str) -> None:
    lines = list(shown([HANG, kind], tmp_path / "trace", "a cycle: "))
    text = "\n".join(lines)
    assert any("trace_hang 1" in x and "lends 1 (2 MiB)" in x for x in lines), text
    assert any("trace_hang 2" in x and "borrows 1 (2 MiB)" in x for x in lines), text
    arrows = [x for x in lines if " --> " in x and "cuStreamSynchronize since" in x]
    assert any("for a word in memory 1" in x for x in arrows), text
    assert any("for an event" in x for x in arrows) == (kind == "event"), text
    assert any("trace_hang 2" in x and x.endswith("has it open") for x in lines), text
    assert text.count("who waits for whom") >= 2, text  # at the hang, and at Ctrl-C
    assert lines[-1] == f"exit code {128 + signal.SIGINT}", text


def test_a_dead_peer_is_told_while_it_is_waited_for(tmp_path: Path) -> None:
    lines = list(shown([HANG, "killed"], tmp_path / "trace", "a dead peer: "))
    told = [number for number, x in enumerate(lines) if "waits-for-dead-peer" in x]
    dead = [number for number, x in enumerate(lines) if "a dead peer: " in x]
    assert told[0] < dead[0], "\n".join(lines)
    assert "trace_hang 2" in lines[dead[0]]
    assert "(killed by SIGKILL)" in lines[dead[0]]
    assert "a cycle" not in "\n".join(lines)


def test_code_and_report_are_those_without_live(tmp_path: Path) -> None:
    made = [
        trace(tmp_path / str(len(x)), [PROGRAMS, "freed-while-open", "wrong"], *x)
        for x in ((), ("--live",))
    ]
    assert made[0].code == made[1].code
    rules = [[x["rule"] for x in traced.document["findings"]] for traced in made]
    assert rules[0] == rules[1] == ["freed-while-open"]
    first = made[1].output.index("] freed-while-open: ")  # before the report
    assert first < made[1].output.index("2 of 2 processes used CUDA")


def test_on_a_terminal_there_is_a_table(tmp_path: Path) -> None:
    """The program keeps a terminal, and what it prints is above the table."""
    arguments = [
        sys.executable, "-P", "-m", "ipclab", "trace", "--live", "--build", BUILD,
        "--out", tmp_path / "trace", "--", "sh", "-c",
        f"test -t 1 && echo a terminal; {PROGRAMS} never-closed right; sleep 1; exit 5",
    ]  # fmt: skip
    os.environ["PYTHONPATH"] = str(ROOT / "harness" / "runner" / "src")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(sys.executable, list(map(str, arguments)))
    output = b""
    try:
        while data := os.read(terminal, 1 << 16):
            output += data
    except OSError:  # EIO: it has ended
        pass
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    text = output.decode("utf-8", "replace")
    assert os.waitstatus_to_exitcode(status) == 5, text
    assert "a terminal" in text
    assert "borrows" in text
    assert "nothing found" in text


def test_who_holds_memory(tmp_path: Path) -> None:
    one, two = lend(tmp_path)
    view = View(tmp_path)
    view.tick(SECOND)
    assert view.holders() == ["memory 1 (4 MiB) of program1 1: program2 2 has it open"]
    two.write([7, 1, 0, 1, 2, 0, 1 << 41, "ab" * 64, 1])
    (tmp_path / "tracer.jsonl").write_text(
        json.dumps({"process": 1, "status": 9, "at": 20}) + "\n"
    )
    view.tick(2 * SECOND)
    assert view.holders() == [
        "memory 1 (4 MiB) of program1 1, which has ended (killed by SIGKILL): "
        "program2 2 has it open 2 times"
    ]
    assert [x.rule for x in view.found] == ["exporter-ended-while-open"]
    two.write([30, 1, 0, 1, 3, 0, 1 << 41], [32, 1, 0, 1, 3, 0, 1 << 41])
    view.tick(3 * SECOND)
    assert view.holders() == []
    assert one.path.exists()


def test_a_line_that_is_being_written_waits(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 1)
    tail = Tail(writer.path)
    assert tail.load() == 3
    tail.entries(10)
    at = writer.path.stat().st_size
    writer.write([1, 1, 0, 1, 0, 0, 4096, MIB], [3, 1, 0, 1, 0, 0, 8192, MIB])
    with writer.path.open("r+b") as file:  # another thread has finished the second line
        file.seek(at)
        file.write(b"\0")
    assert tail.load() == 0
    with writer.path.open("r+b") as file:
        file.seek(at)
        file.write(b"[")
    assert tail.load() == 2
    assert len(tail.entries(10)) == 2
    tail.close()


def test_it_keeps_up_with_100000_calls_a_second(tmp_path: Path) -> None:
    """What is shared is never left out; frequent calls are, and they are counted."""
    one, two = lend(tmp_path)
    view = View(tmp_path)
    at, written, looked_at = 10, 0, 0
    replayed = view.replay.entry

    def counted(entry: live.Entry) -> None:
        nonlocal looked_at
        looked_at += 1
        replayed(entry)

    view.replay.entry = counted  # type: ignore[method-assign]
    view.tick(SECOND)
    shared = looked_at
    for tick in range(4):  # a second
        lines: list[object] = []
        for _ in range(12_500):
            at += 10
            lines.append([at, 1, 0, 1, 4, 0, 1, 1, 1, 0, [1 << 40]])
        one.write(*lines)
        handle = f"{tick:02x}" * 64
        two.write(*lines, [at + 1, 1, 0, 1, 0, 0, 1 << 42, 2 * MIB],
                  [at + 2, 1, 0, 1, 1, 0, handle, 1 << 42])  # fmt: skip
        written += 2 * len(lines) + 2
        view.tick(2 * SECOND + tick)
        assert len(view.shared()) == 2 + tick
    assert view.left_out > 0
    assert looked_at - shared + view.left_out + view.behind == written
    assert view.behind == 0
