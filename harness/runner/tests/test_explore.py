"""`ipclab explore`: what it makes of the events of its explorers."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from conftest import NO_GPU, Build
from ipclab import explore

END = {
    "event": "end",
    "programs": 7,
    "steps": 700,
    "on_memory": 210,
    "processes": 3,
    "seconds": 1.0,
    "times": {"search": {"start": 3.0, "run": 1.0}},
}
FOUND = {
    "event": "failure",
    "row": "LMEM-01",
    "step": "read p=1 on=3 bytes=4",
    "operation": "read",
    "check": "bytes",
    "seen": "byte 0 of 4 is 0",
    "wanted": "7",
    "program": 3,
    "seconds": 0.5,
    "failed": 3,
    "of": 3,
    "story": "p0  m1 = cudaMalloc of 4096 bytes\n",
    "files": "",
}


def explorer(build: Build, body: str) -> None:
    """Put a program `explore` into the build; `body` has `options` and `tell()`."""
    path = build.folder / "harness" / "explore" / "explore"
    path.parent.mkdir(parents=True)
    path.write_text(
        f"#!{sys.executable} -IS\n"
        "import json, sys\n"
        "options = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
        f"END = {END!r}\nFOUND = {FOUND!r}\n"
        "def tell(event):\n    print(json.dumps(event), flush=True)\n"
        "def pairs(table):\n"
        "    open(options['--out'] + '/pairs.json', 'w').write(json.dumps(table))\n"
        + textwrap.dedent(body)
    )
    path.chmod(0o755)


def run(build: Build, *words: str) -> tuple[int, str]:
    """The exit code and the output of one call."""
    done = build.ipclab("explore", "--build", "build", "--seconds", "5", *words)
    return done.returncode, done.stdout


def document(build: Build) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((build.root / "out/explore.json").read_text())
    return read


def test_counts_of_all_explorers_are_joined(build: Build) -> None:
    explorer(
        build,
        """
        pairs({"table": {"a": 1, "b": 0, "c": int(options["--seed"] == "9")}})
        tell(END)
        """,
    )
    code, said = run(build, "--results", "out", "-j", "2", "--seed", "9", "-v")
    assert code == 0, said
    made = document(build)
    assert (made["programs"], made["explorers"], made["seed"]) == (14, 2, 9)
    assert made["pairs"] == {"table": {"reached": 2, "of": 3}}
    joined = json.loads((build.root / "out/pairs.json").read_text())
    assert joined == {"table": {"a": 2, "b": 0, "c": 1}}
    assert "missing: table: b" in said


def test_a_failure_fails_and_is_told_with_its_story(build: Build) -> None:
    explorer(
        build,
        """
        name = options["--out"] + "/failure-1"
        open(name + ".cu", "w").write("int main() {}\\n")
        tell({**FOUND, "files": name, "why": "the time was over"})
        tell(END)
        sys.exit(1)
        """,
    )
    code, said = run(build, "--results", "out", "-j", "1")
    assert code == 1
    assert "violates LMEM-01" in said
    assert "m1 = cudaMalloc" in said
    assert "not examined to the end: the time was over" in said
    assert "time of the explorers: start 75 %, run 25 %" in said
    assert '"operation": "read"' in said  # the form of an entry
    source = (build.root / "out/explorer-1/failure-1.cu").read_text()
    assert source.startswith("// LMEM-01: The sentence of LMEM-01.\n")


@pytest.mark.parametrize(
    ("changes", "verdict", "code"),
    [
        ({"failed": 1}, "flaky (1 of 3)", 1),
        ({"check": "hang"}, "hung", 1),
        ({"check": "died"}, "crashed", 1),
        ({"row": "OBS-01"}, "observed", 0),
    ],
)
def test_the_verdict_of_a_failure(
    build: Build, changes: dict[str, Any], verdict: str, code: int
) -> None:
    explorer(build, f"tell({{**FOUND, **{changes!r}}})\ntell(END)\nsys.exit(1)\n")
    assert run(build, "--results", "out", "-j", "1")[0] == code
    (failure,) = document(build)["failures"]
    assert failure["verdict"] == verdict


def test_known_deviations_of_this_driver_are_passed_on(build: Build) -> None:
    known = [{"operation": "read", "check": "code", "seen": ["one", "two"]}]
    build.deviation(explore=known)
    explorer(
        build,
        """
        lines = open(options["--known"]).read()
        wanted = "LMEM-01\\tread\\tcode\\tone\\nLMEM-01\\tread\\tcode\\ttwo\\n"
        tell({**END, "programs": int(lines == wanted)})
        """,
    )
    assert run(build, "--results", "out", "-j", "1")[0] == 0
    assert document(build)["programs"] == 1


def test_an_entry_for_another_driver_is_not_passed_on(build: Build) -> None:
    known = [{"operation": "read", "check": "code", "seen": ["one"]}]
    build.deviation(explore=known, driver={"from": "590.0", "to": "590.9"})
    explorer(build, 'tell({**END, "programs": len(open(options["--known"]).read())})')
    code, said = run(build, "--results", "out", "-j", "1")
    assert code == 3
    assert "no program has run" in said


def test_an_explorer_that_breaks_is_told(build: Build) -> None:
    explorer(build, 'tell(END)\nprint("the GPU is gone")\nsys.exit(3)')
    code, said = run(build, "--results", "out", "-j", "1")
    assert code == 3
    assert "the GPU is gone" in said


def test_bad_input_gets_one_clear_error(build: Build) -> None:
    code, said = run(build)
    assert code == 2
    assert "no program 'explore'" in said
    explorer(build, "tell(END)")
    (build.root / "out").mkdir()
    (build.root / "out/explorer-1").mkdir()
    assert run(build, "--results", "out", "-j", "1")[0] == 2
    with pytest.raises(SystemExit):
        explore_words = ["explore", "--processes", "9"]
        from ipclab.cli import main

        main(explore_words)


def test_without_a_gpu_and_a_model_nothing_is_explored(build: Build) -> None:
    build.probe(NO_GPU)
    explorer(build, "tell(END)")
    assert run(build, "--results", "out", "-j", "1")[0] == 3


def test_a_replay_tells_the_story(build: Build) -> None:
    explorer(
        build,
        """
        assert options["--times"] == "10"
        failed = 10 if "bad" in options["--replay"] else 0
        tell({**FOUND, "failed": failed, "of": 10})
        sys.exit(1 if failed else 0)
        """,
    )
    code, said = run(build, "--replay", "bad.program")
    assert code == 1
    assert "failed 10 of 10 times" in said
    assert "The sentence of LMEM-01" in said
    code, said = run(build, "--replay", "good.program")
    assert code == 0
    assert "as documented, 10 times" in said


def test_an_explorer_that_does_not_end_is_killed_and_its_find_is_kept(
    build: Build,
) -> None:
    explorer(
        build,
        """
        import time
        tell({**FOUND, "event": "found", "failed": None, "of": None})
        time.sleep(600)
        """,
    )
    begin = time.monotonic()
    code, said = run(build, "--results", "out", "-j", "1", "--seconds", "1")
    assert time.monotonic() - begin < 1 + 15
    assert code == 3
    assert "ended at the time limit" in said
    (failure,) = document(build)["failures"]
    assert failure["verdict"] == explore.UNCONFIRMED  # it was not run again
    assert explore.problems({"failures": [failure], "broken": None}) == []
    again = {**failure, "verdict": "crashed"}
    assert len(explore.problems({"failures": [again], "broken": None})) == 1


def test_a_run_of_the_suite_has_random_programs(build: Build) -> None:
    explorer(
        build,
        """
        assert options["--programs"] == "100"
        pairs({"table": {"a": 1, "b": 0}})
        if open(sys.argv[0] + ".fails").read() == "yes":
            tell(FOUND)
        tell(END)
        """,
    )
    build.conformance("record()", "Suite.A", "LMEM-01")
    fails = build.folder / "harness/explore/explore.fails"
    for answer, code in (("no", 0), ("yes", 1)):
        fails.write_text(answer)
        done = build.ipclab("run", "--build", "build", "--results", answer)
        assert done.returncode == code, done.stdout
        assert "random programs: 14 of seed 1, 1400 steps, 1 of 2 pairs" in done.stdout
        run = json.loads((build.root / answer / "run.json").read_text())
        assert run["explored"]["pairs"] == {"table": {"reached": 1, "of": 2}}
        page = (build.root / answer / "report.html").read_text()
        assert "<h2>Random programs</h2>" in page
    assert any("violates LMEM-01: read" in x for x in run["problems"])
    assert "m1 = cudaMalloc" in page
    done = build.ipclab("run", "--build", "build", "--results", "part", "-k", "Suite.A")
    assert "random programs" not in done.stdout  # only a part was wanted


def test_lines_that_come_in_pieces_are_whole_events() -> None:
    heard = explore.Explorer(Path(), 1)
    data = (json.dumps(END) + "\nno event\n" + json.dumps(FOUND) + "\n").encode()
    for i in range(len(data)):
        heard.hear(data[i : i + 1])
    assert heard.last == END
    assert heard.failures == [FOUND]
    assert heard.said == "no event"


def test_ctrl_c_ends_the_explorers(build: Build, tmp_path: Path) -> None:
    fifo = tmp_path / "started"
    os.mkfifo(fifo)
    explorer(
        build,
        f"""
        import os, time
        open({str(fifo)!r}, "w").write(str(os.getpid()))
        time.sleep(600)
        """,
    )
    process = build.start("explore", "--build", "build", "-j", "1", "--results", "out")
    explored = int(fifo.read_text())
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 3 and "interrupted" in said
    assert not psutil.pid_exists(explored)
