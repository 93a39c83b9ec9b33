"""What a trace promises: it survives SIGKILL, and changes nothing."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from traced import (
    BUILD,
    COST,
    ON_GPU,
    PROGRAMS,
    killed,
    plain_environment,
    trace,
)

from ipclab.trace import files, recording
from ipclab.trace.story import replay

KILLS = int(os.environ.get("IPCLAB_KILLS", "20"))


def recorded(folder: Path, command: list[str | Path]) -> subprocess.Popen[str]:
    """Start a program that writes a trace, without `ipclab trace`."""
    folder.mkdir()
    request = recording.Request(
        [], folder, BUILD / "trace", plain_environment(), not ON_GPU
    )
    return subprocess.Popen(
        list(map(str, command)),
        env={**os.environ, **recording.variables(request)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.nightly(4, "number")
@pytest.mark.parametrize("number", range(KILLS))
def test_a_trace_survives_sigkill(tmp_path: Path, number: int) -> None:
    """Every call that has returned is in the trace."""
    kept, wrong = killed(tmp_path / "trace", number)
    assert kept
    assert not wrong


def test_the_program_sees_no_difference(tmp_path: Path) -> None:
    command: list[str | Path] = [PROGRAMS, "never-closed", "right"]
    plain = subprocess.run(
        command, env=plain_environment(), capture_output=True, text=True, check=False
    )
    process = recorded(tmp_path / "trace", command)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (plain.returncode, plain.stdout)


def test_without_the_variable_nothing_is_written(tmp_path: Path) -> None:
    name = "libipclab_trace.so" if ON_GPU else "libipclab_trace_model.so"
    environment = {**plain_environment(), "LD_PRELOAD": str(BUILD / "trace" / name)}
    environment.pop("IPCLAB_TRACE", None)
    subprocess.run(
        [PROGRAMS, "never-closed", "right"],
        env=environment,
        cwd=tmp_path,
        check=True,
        timeout=60,
    )
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_gone_is_told_and_does_no_harm(tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    process = recorded(folder, ["sh", "-c", f"rm -rf {folder}; exec {PROGRAMS}"])
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "is not recorded from here: No such file" in output


def test_the_exit_code_is_the_programs(tmp_path: Path) -> None:
    assert trace(tmp_path / "1", ["sh", "-c", "exit 7"]).code == 7
    assert trace(tmp_path / "2", ["sh", "-c", "kill -9 $$"]).code == 128 + 9
    assert trace(tmp_path / "3", ["/no/such/program"]).code == 2


def test_children_are_followed_and_their_ends_told(tmp_path: Path) -> None:
    """Children are followed through fork and exec, also as orphans: here the parent
    ends before its child.
    """
    script = "(sleep 2; kill -TERM $BASHPID) & exec true"
    traced = trace(tmp_path / "trace", ["bash", "-c", script])
    ends = {x["name"]: x["ended"] for x in traced.document["processes"]}
    assert "killed by SIGTERM" in ends.values(), ends
    assert ends["true"] == "exit 0"


def test_check_and_suppressions(tmp_path: Path) -> None:
    command: list[str | Path] = [PROGRAMS, "wrong-flags", "wrong"]
    assert trace(tmp_path / "1", command).code == 0
    assert trace(tmp_path / "2", command, "--check").code == 1
    silent = tmp_path / "silent"
    silent.write_text("# as documented\nwrong-flags:trace_prog*:*flags 0\n")
    option = ("--check", "--suppress", str(silent))
    traced = trace(tmp_path / "3", command, *option)
    assert traced.code == 0
    assert "nothing found, 1 suppressed" in traced.output
    silent.write_text("no-such-rule\n")
    traced = trace(tmp_path / "4", command, *option)
    assert traced.code == 2
    assert f"{silent}:1: no rule is called 'no-such-rule'" in traced.output


def test_a_full_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    traced = trace(tmp_path, ["true"])
    assert traced.code == 2
    assert "is not empty" in traced.output
    assert (tmp_path / "mine").read_text() == "kept"


def test_a_million_calls_stay_small(tmp_path: Path) -> None:
    """Less than 100 bytes for each of 100,000 calls (model: 10,000)."""
    count = 100_000 if ON_GPU else 10_000
    traced = trace(tmp_path / "trace", [COST, "launches", str(count)])
    assert traced.code == 0, traced.output
    size = sum(path.stat().st_size for path in (tmp_path / "trace").glob("*.trace"))
    assert size < 100 * count + 20_000


def test_all_views_are_written(tmp_path: Path) -> None:
    traced = trace(tmp_path / "trace", [PROGRAMS, "freed-while-open", "wrong"])
    page = (traced.folder / "trace.html").read_text("utf-8")
    assert "freed-while-open" in page
    assert "LMEM-42" in page
    perfetto = json.loads((traced.folder / "trace.perfetto.json").read_text("utf-8"))
    phases = {event["ph"] for event in perfetto["traceEvents"]}
    assert phases == {"M", "X", "s", "f", "i"}
    for name in ("sequence.svg", "memory.svg"):
        assert (traced.folder / name).read_text("utf-8").startswith("<svg")


def test_a_trace_without_calls_is_no_all_clear(tmp_path: Path) -> None:
    traced = trace(tmp_path / "1", ["true"], "--check")
    assert traced.code == 3
    said = "\nnot complete: no process of this trace has called CUDA"
    assert said in traced.output
    assert "nothing found" not in traced.output
    traced = trace(tmp_path / "2", ["true"], "--check", "--allow-empty")
    assert traced.code == 0, traced.output


def read_again(folder: Path) -> tuple[int, str]:
    """`ipclab trace --read --check`: exit code and output."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "ipclab", "trace", "--read", folder, "--check"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout


def test_a_file_that_was_cut_or_is_gone_is_missed(tmp_path: Path) -> None:
    folder = trace(tmp_path / "trace", [PROGRAMS, "never-closed", "right"]).folder
    assert read_again(folder)[0] == 0
    for path in folder.glob("*.trace"):
        whole = path.read_bytes()
        lines = whole.splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:-1]))  # at the end of a line
        code, output = read_again(folder)
        assert output.startswith(f"not complete: {path.name}: this file"), output
        assert code == 3 or "finding" in output
        path.unlink()
        code, output = read_again(folder)
        assert f"{path.name}: this file of the trace is missing" in output
        path.write_bytes(whole)
    assert read_again(folder)[0] == 0


def test_a_driver_that_was_loaded_by_dlopen_is_recorded(tmp_path: Path) -> None:
    """As bindings for Python do: all functions come from dlsym."""
    script = (
        "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); assert not cuda.cuInit(0);"
        "context = ctypes.c_void_p();"
        "assert not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0);"
        "assert not cuda.cuDevicePrimaryCtxRelease_v2(0)"
    )
    traced = trace(tmp_path / "trace", [sys.executable, "-c", script], "--check")
    assert traced.code == 0, traced.output
    text = "".join(x.read_text("latin-1") for x in traced.folder.glob("*.trace"))
    assert '"source"' in text
    assert "1 of 1 process used CUDA" in traced.output


def test_the_end_of_a_child_that_is_never_reaped(tmp_path: Path) -> None:
    """It ends when it dies, and not when somebody reaps it."""
    script = (
        "import os, signal, socket, time\n"
        "ends = socket.socketpair()\n"
        "if os.fork() == 0:\n"
        "    ends[0].sendmsg([b'here'])\n"
        "    time.sleep(0.5)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(2.5)\n"
    )
    traced = trace(tmp_path / "trace", [sys.executable, "-c", script])
    parent, child = traced.document["processes"]
    assert child["ended"] == "killed by SIGKILL"
    assert child["t"][1] < parent["t"][1] - 1e9


def test_a_call_refused_after_fork_is_found(tmp_path: Path) -> None:
    def process(number: int, parent: int, forked: bool) -> dict[str, object]:
        return {
            "what": "process", "format": 1, "process": number, "parent": parent,
            "began": number, "forked": forked, "command": ["program"],
        }  # fmt: skip

    calls = {"what": "calls", "first": 0, "calls": [["cuInit", "Flags"]]}
    ended = {"what": "exit", "t": 90, "code": 0, "open": []}
    refused = {"what": "refused", "t": 10, "name": "cudaMalloc", "result": 3}
    files_of = {
        1: [process(1, 0, False), calls, [1, 2, 0, 0, 0, 0, 0], ended],
        20: [process(20, 1, True), calls, refused, ended],
    }
    for number, lines in files_of.items():
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / f"{number}-{number}.trace").write_text(text)
    found = replay(files.read(tmp_path)).findings
    assert [x.rule for x in found] == ["cuda-after-fork"]
    assert "cudaMalloc" in found[0].text
    del files_of[1][2]  # the parent has not used CUDA, so the child may begin with it
    text = "".join(json.dumps(line) + "\n" for line in files_of[1])
    (tmp_path / "1-1.trace").write_text(text)
    assert replay(files.read(tmp_path)).findings == []


def test_process_1_of_two_containers_is_not_one_process(tmp_path: Path) -> None:
    """Each begins by a fork, whose parent is in another PID namespace: number 0."""
    calls = {"what": "calls", "first": 0, "calls": [["cuInit", "Flags"]]}
    ended = {"what": "exit", "t": 90, "code": 0, "open": []}
    for began in (1, 50):
        begins = {
            "what": "process", "format": 1, "process": 1, "parent": 0,
            "began": began, "forked": True, "command": ["program"],
        }  # fmt: skip
        lines = [begins, calls, [began, began + 1, 0, 0, 0, 0, 0], ended]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / f"1-{began}.trace").write_text(text)
    assert replay(files.read(tmp_path)).findings == []
