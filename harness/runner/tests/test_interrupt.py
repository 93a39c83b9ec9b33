"""Runs that do not reach their end, and disks that are full."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from conftest import LINE, Build, Outcome
from ipclab import records
from ipclab.errors import HarnessError
from ipclab.results import Results


@contextmanager
def half_way(
    build: Build, tmp_path: Path
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start a run. When it has one verdict and its second test hangs, yield the process
    of the run and the pid of that test.
    """
    fifo = tmp_path / "started"
    os.mkfifo(fifo)
    build.conformance("record()", "Suite.A", "LMEM-01")
    build.conformance(
        f"""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open("{fifo}", "w").write(str(os.getpid()))
        time.sleep(60)
        """,
        "Suite.B",
        "LMEM-02",
        timeout=60,
    )
    build.conformance("record()", "Suite.C", "LIM-01")
    process = build.start("run", "--build", "build", "--results", "out")
    try:
        yield process, int(fifo.read_text())
    finally:
        process.kill()
        process.communicate(timeout=10)


def is_a_prefix(build: Build, state: str, count: int) -> None:
    """`ipclab verify` reports that `out` is an unfinished run with `count` records."""
    done = build.ipclab("verify", "out")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"not verified: the run is {state}, not finished: "
        f"{count} records of {count} of 3 tests"
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_run_keeps_what_was_judged(
    build: Build, tmp_path: Path, number: int
) -> None:
    with half_way(build, tmp_path) as (process, hanging):
        process.send_signal(number)
        text, _ = process.communicate(timeout=20)
        assert process.returncode == 3, text
        assert not psutil.pid_exists(hanging)
    folder = tmp_path / "out"
    outcome = Outcome(subprocess.CompletedProcess([], 3, text, ""), folder)
    assert outcome.only["test"] == "Suite.A"
    assert outcome.json["state"] == "interrupted"
    assert outcome.json["exit_code"] == 3
    assert "NOT FINISHED (interrupted): 2 of 3 have no verdict" in text
    assert text.splitlines()[-1].endswith("1 test: 1 conforms.")
    assert "Traceback" not in text
    assert "This run is interrupted: 1 of 3" in (folder / "report.html").read_text()
    assert (folder / "junit.xml").exists()
    is_a_prefix(build, "interrupted", 1)


def test_killed_run_leaves_a_valid_prefix(build: Build, tmp_path: Path) -> None:
    with half_way(build, tmp_path) as (process, hanging):
        process.kill()
        process.wait(10)
        os.kill(hanging, signal.SIGKILL)  # no process was left to end it
    folder = tmp_path / "out"
    is_a_prefix(build, "running", 1)
    with (folder / "records.jsonl").open("a") as stream:
        stream.write('{"version": 1, "ctest": "conf')
    report = build.ipclab("report", "out")
    assert report.returncode == 0
    assert "the run is running, 1 records" in report.stdout
    assert "the last line is cut off and is left out" in report.stdout
    page = (folder / "report.html").read_text()
    assert "has not ended, or was killed: 1 of 3 tests" in page
    assert "the last line is cut off" in page


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_run_continues(build: Build, tmp_path: Path, number: int) -> None:
    with half_way(build, tmp_path) as (process, hanging):
        process.send_signal(number)
        text, _ = process.communicate(timeout=20)
        if number == signal.SIGKILL:
            os.kill(hanging, signal.SIGKILL)  # no process was left to end it
        else:
            assert "same command with --resume out and no other option" in text
    folder = tmp_path / "out"
    begun = json.loads((folder / "run.json").read_text())["started"]
    before = (folder / "records.jsonl").read_bytes()
    with (folder / "records.jsonl").open("a") as stream:
        stream.write('{"version": 1, "ctest": "conf')
    # The second test still hangs; now its time limit ends it.
    program = next(build.folder.glob("*Suite.B*"))
    text = program.read_text()
    program.write_text(text + "# another program")
    done = build.ipclab("run", "--build", "build", "--resume", "out")
    assert (done.returncode, "other programs" in done.stdout) == (2, True), done.stdout
    program.write_text(text)
    done = build.ipclab("run", "--build", "build", "--resume", "out", "--seed", "2")
    assert done.returncode == 2
    assert "keeps the options of the first call: leave out --seed" in done.stdout
    (tmp_path / "started").unlink()
    (tmp_path / "started").mkdir()  # so the test fails at once
    done = build.ipclab("run", "--build", "build", "--resume", "out")
    assert "continues: 1 records are there already" in done.stdout
    data = (folder / "records.jsonl").read_bytes()
    assert data.startswith(before)
    tests = [json.loads(x)["test"] for x in data.splitlines()]
    assert tests == ["Suite.A", "Suite.B", "Suite.C"]
    document = json.loads((folder / "run.json").read_text())
    assert (document["state"], document["started"]) == ("finished", begun)
    assert document["manifest"]["records"]["count"] == 3
    assert (folder / "junit.xml").read_text().count("<testcase") == 3
    done = build.ipclab("run", "--build", "build", "--resume", "out")
    assert done.returncode == 2
    assert "this run is finished" in done.stdout


def test_resume_takes_the_options_of_the_first_call(build: Build) -> None:
    """`qualify` and `run` alike; only -j, -v and --build may be given again."""
    build.conformance("record()", "Suite.A", "LMEM-01")
    build.conformance("violates()", "Suite.B", "LMEM-02")
    seven = ("run", "--build", "build", "--seed", "7", "-k", "LMEM", "--results")
    whole = ("qualify", "--build", "build", "--results")
    for command, folder in ((seven, "seven"), (whole, "whole")):
        build.ipclab(*command, folder)
        path = build.root / folder / "run.json"
        run = json.loads(path.read_text())
        run["state"] = "interrupted"
        path.write_text(json.dumps(run))
        (path.parent / "records.jsonl").write_text("")
        again = (command[0], "--build", "build", "--resume", folder)
        done = build.ipclab(*again, "--profile", "two-gpus")
        assert (done.returncode, "leave out --profile" in done.stdout) == (2, True)
        assert build.ipclab(*again, "-j", "2").returncode == 1
        now = json.loads(path.read_text())
        assert now["state"] == "finished"
        for name in ("seed", "expression", "repeat", "backend"):
            assert now["settings"][name] == run["settings"][name]
    run = json.loads((build.root / "seven/run.json").read_text()) | {"state": "running"}
    (build.root / "seven/run.json").write_text(json.dumps(run))
    done = build.ipclab("qualify", "--build", "build", "--resume", "seven")
    assert (done.returncode, "did not begin it" in done.stdout) == (2, True)


def test_nohup_keeps_a_run_alive(build: Build) -> None:
    build.conformance("os.kill(os.getppid(), signal.SIGHUP); record()")
    program = "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
    program += "from ipclab.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, "run", "--build", "build"],
        cwd=build.root,
        env=build.environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_cut_or_foreign_line_is_no_result(build: Build) -> None:
    build.conformance("record()")
    good = (build.run().folder / "records.jsonl").read_bytes()
    assert records.parse_lines([good])[1] is None
    assert records.parse_lines([good[:-1]]) == (
        [],
        "the last line is cut off and is left out",
    )
    found, wrong = records.parse_lines([good, b"{}\n", good])
    assert len(found) == 1
    assert wrong == (
        "line 2: record.version: is missing; this line and all after it are left out"
    )


def test_full_device_is_one_line_and_no_record(tmp_path: Path) -> None:
    results = Results(tmp_path / "out")
    results.lines = Path("/dev/full")
    with pytest.raises(HarnessError, match=r"/dev/full: No space left on device"):
        results.append(LINE)


def test_failed_append_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Results(tmp_path / "out")
    results.append(LINE)

    def fail(_descriptor: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(HarnessError, match="No space left"):
        results.append(LINE)
    with pytest.raises(HarnessError, match="No space left"):
        results.write("run.json", "{}")
    assert json.loads(results.lines.read_text()) == LINE
    assert sorted(x.name for x in results.folder.iterdir()) == ["records.jsonl"]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB; the test is skipped if this user cannot mount it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
    )
    if mount.returncode:
        pytest.skip(f"cannot mount a tmpfs: {mount.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_ends_the_run(build: Build, tiny_disk: Path) -> None:
    build.conformance("record()", "Suite.A", "LMEM-01")
    build.conformance("record(notes=['x' * 100000])", "Suite.B", "LMEM-02")
    build.conformance("record()", "Suite.C", "LIM-01")
    out = str(tiny_disk / "out")
    done = build.ipclab("run", "--build", "build", "--results", out)
    assert done.returncode == 3
    told = [x for x in done.stdout.splitlines() if "No space left on device" in x]
    assert len(told) == 1
    assert "Traceback" not in done.stdout
    data = (tiny_disk / "out/records.jsonl").read_bytes()
    found, wrong = records.parse_lines(data.splitlines(keepends=True))
    assert wrong is None
    assert [x["test"] for x in found] == ["Suite.A"]
    done = build.ipclab("verify", out)
    assert done.returncode == 1
    assert "not finished: 1 records of 1 of 3 tests" in done.stdout


def test_a_file_that_may_not_grow_ends_the_run(build: Build) -> None:
    """Like a full disk, but without a mount: a limit for the size of files."""
    build.conformance("record()", "Suite.A", "LMEM-01")
    build.conformance("record(notes=['x' * 15000])", "Suite.B", "LMEM-02")
    build.conformance("record(notes=['x' * 15000])", "Suite.C", "LIM-01")
    limit = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (20000, 20000)); "
    command = "import sys; from ipclab.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["run", "--build", "build", "--results", "out"]
    done = subprocess.run(
        [sys.executable, "-c", limit + command, *arguments],
        cwd=build.root,
        env=build.environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 3, said
    assert said.count("File too large") == 1
    assert "Traceback" not in said
    data = (build.root / "out/records.jsonl").read_bytes()
    found, wrong = records.parse_lines(data.splitlines(keepends=True))
    assert wrong is None
    assert [x["test"] for x in found] == ["Suite.A", "Suite.B"]
    is_a_prefix(build, "broken", 2)


def test_where_no_end_can_be_written_the_run_has_none(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """run.json still says 'running' if it could not be replaced."""
    for name, row in (("A", "LMEM-01"), ("B", "LMEM-02"), ("C", "LIM-01")):
        build.conformance("record()", f"Suite.{name}", row)
    replace, count = Path.replace, 0

    def once(path: Path, target: Path) -> Path:
        nonlocal count
        count += path.name == ".run.json.draft"
        if count > 1:
            raise OSError(28, os.strerror(28))
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", once)
    outcome = build.run()
    assert outcome.code == 3
    assert outcome.text.count("No space left on device") == 1
    is_a_prefix(build, "running", 3)
