"""The commands other than `run`, and the answer of each command to bad input."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import copy
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from conftest import PROBE, Build
from ipclab import ctest, packed, records, results, terminal

CONFORMANCE = "source/conformance"
ROOM = "01_legacy_memory/rows.json"
ROW = (
    '{"rows": [{"id": "A-01", "statement": "It is so.", "kind": "MUST", '
    '"tests": {"Suite.Name": "How."}}]}'
)


def says(build: Build, code: int, text: str, *arguments: str) -> None:
    """The command ends with `code` and prints one line, which contains `text`."""
    done = build.ipclab(*arguments)
    assert done.returncode == code, done.stdout
    assert text in done.stdout
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize("command", [["run"], ["doctor"], ["sample", "01"]])
def test_no_build(build: Build, command: list[str]) -> None:
    says(build, 2, "make one with: cmake -S . -B none", *command, "--build", "none")


def test_no_ctest(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    says(build, 2, "ctest is not in PATH", "run", "--build", "build")


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--unknown"],
        ["run", "-j", "0"],
        ["run", "--repeat", "none"],
        ["run", "--gpus", "-1"],
        ["sample"],
        ["fly"],
        [],
    ],
)
def test_usage(build: Build, arguments: list[str]) -> None:
    done = build.ipclab(*arguments)
    assert done.returncode == 2
    assert "usage: ipclab" in done.stdout


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ("TIMEOUT 5", "bad: needs one label of sample, conformance"),
        ('LABELS "sample;probe" TIMEOUT 5', "bad: needs one label"),
        ('LABELS "sample;01_x;gpu1"', "bad: has no time limit"),
        ('LABELS "sample;gpu1" TIMEOUT 5', "bad: needs its lesson's folder and gpuN"),
        ('LABELS "sample;01_x" TIMEOUT 5', "bad: needs its lesson's folder and gpuN"),
        (
            'LABELS "conformance;01_x;gpu1;A-01;A-02" TIMEOUT 5',
            "bad: has two requirements: A-01, A-02",
        ),
    ],
)
def test_list_that_breaks_the_contract(
    build: Build, properties: str, text: str
) -> None:
    build.raw(
        f"add_test(bad true)\nset_tests_properties(bad PROPERTIES {properties})\n"
    )
    says(build, 3, text, "run", "--build", "build")


def test_a_program_that_is_not_built_is_named(build: Build) -> None:
    build.raw("add_test(legacy_memory_test_NOT_BUILT nothing)\n")
    says(build, 2, "legacy_memory_test is not built", "run", "--build", "build")


def test_list_that_ctest_cannot_read(build: Build) -> None:
    build.raw("add_test(\n")
    says(build, 3, "ctest --show-only printed no list", "run", "--build", "build")


def test_from_another_folder_the_build_is_that_of_the_own_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, tree = Path("build/run"), tmp_path / "tree"
    monkeypatch.setattr(packed, "TREE", tree)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    assert packed.default_build() == here  # nothing is built
    (tree / here).mkdir(parents=True)
    (tree / here / "CTestTestfile.cmake").write_text("")
    assert packed.default_build() == tree / here
    here.mkdir(parents=True)
    assert packed.default_build() == here


def test_the_list_of_a_build_that_is_somebody_elses(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    build.raw('add_test(good true)\nset_tests_properties(good PROPERTIES LABELS "probe"'
              " TIMEOUT 5)\n")  # fmt: skip
    wanted = ctest.read(build.folder)
    shutil.rmtree(build.folder / "Testing")  # ctest's log
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)
    assert ctest.read(build.folder) == wanted
    assert not (build.folder / "Testing").exists()
    assert "good" in [case.name for case in wanted]


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("pass", "probe: printed no JSON but: nothing"),
        ("print('hello')", "probe: printed no JSON but: hello"),
        ("print('{\"backend\": ')", "probe: printed no JSON"),
        ("print('{}')", "probe: its document has no valid 'backend'"),
        (
            'print(\'{"backend": "cuda", "gpus": [{}]}\')',
            "has no valid 'gpus[].name'",
        ),
        ("raise SystemExit('no memory')", "probe: exit 1; it said: no memory"),
        ("import os; os.kill(os.getpid(), 11)", "probe: killed by SIGSEGV"),
    ],
)
def test_bad_probe(build: Build, program: str, text: str) -> None:
    build.conformance("record()")
    build.probe(program)
    says(build, 3, text, "run", "--build", "build")
    assert not (build.root / "results").exists()


def test_hanging_probe(build: Build) -> None:
    build.raw(
        f'add_test(probe2 {sys.executable} -c "import time; time.sleep(60)")\n'
        "set_tests_properties(probe2 PROPERTIES LABELS probe TIMEOUT 0.3)\n"
    )
    says(build, 3, "has 2 tests 'probe', not one", "run", "--build", "build")
    text = (build.folder / "CTestTestfile.cmake").read_text()
    (build.folder / "CTestTestfile.cmake").write_text(
        text.partition("add_test(probe2")[1] + text.partition("add_test(probe2")[2]
    )
    says(build, 3, "probe: ended at the time limit", "run", "--build", "build")


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("catalogue.json", None, "catalogue.json: No such file"),
        (ROOM, "{", "is not JSON"),
        (ROOM, '{"rows": 3}', "rows: 3 is not of type array"),
        (ROOM, '{"rows": [{"id": "A-01"}]}', "rows[0].statement: is missing"),
        (
            ROOM,
            ROW.replace('"kind"', '"check": "x", "kind"'),
            "[0].check: there is",
        ),
        (ROOM, ROW.replace("]}", f", {ROW[10:]}"), "A-01 stands twice"),
        ("deviations.json", "[]", "is not an object"),
        ("deviations.json", '{"deviations": [{}]}', "deviations[0].requirement"),
    ],
)
def test_bad_data(build: Build, name: str, text: str | None, told: str) -> None:
    path = build.root / CONFORMANCE / name
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text)
    says(build, 3, told, "run", "--build", "build")


def test_deviation_with_an_impossible_date(build: Build) -> None:
    build.deviation(expires="2027-02-30")
    says(build, 3, "2027-02-30 is not a date", "run", "--build", "build")


def test_no_source_tree(build: Build) -> None:
    cache = build.folder / "CMakeCache.txt"
    cache.write_text("CMAKE_BUILD_TYPE:STRING=Release\n")
    without = "does not contain the path of the source tree"
    says(build, 3, without, "run", "--build", "build")
    cache.unlink()
    says(build, 2, "no build here; make one with", "run", "--build", "build")
    says(build, 2, "no build here; make one with", "rules", "--build", "build")


def test_bad_require_file(build: Build) -> None:
    says(build, 2, "No such file", "run", "--build", "build", "--require", "none")
    (build.root / "needed").write_text("GONE-01\n")
    arguments = ["run", "--build", "build", "--require", "needed"]
    says(build, 2, "GONE-01 is no row of the catalogue", *arguments)


def test_results_are_never_overwritten(build: Build) -> None:
    build.conformance("record()")
    assert build.run().code == 0
    arguments = ["run", "--build", "build", "--results", "out"]
    says(build, 2, "out: is not empty", *arguments)


def test_results_that_cannot_be_made(build: Build) -> None:
    arguments = ["run", "--build", "build", "--results", "/dev/null/x"]
    says(build, 2, "/dev/null/x: Not a directory", *arguments)


def test_default_results_and_latest(build: Build) -> None:
    build.conformance("record()")
    for _ in range(2):
        assert build.ipclab("run", "--build", "build").returncode == 0
    folders = [x for x in (build.root / "results").iterdir() if not x.is_symlink()]
    latest = build.root / "results" / "latest"
    assert len(folders) == 2
    assert latest.resolve() == max(folders, key=lambda x: x.stat().st_mtime)
    assert all(re.match(r"\d{8}T\d{6}Z", x.name) for x in folders)


# --- report ---------------------------------------------------------------------


def test_report_errors(build: Build) -> None:
    says(build, 2, "none: no such folder", "report", "none")
    (build.root / "empty").mkdir()
    says(build, 2, "run.json: No such file", "report", "empty")
    (build.root / "empty" / "run.json").write_text("{")
    says(build, 2, "run.json: is not JSON", "report", "empty")
    (build.root / "empty" / "run.json").write_text("{}")
    says(build, 2, "run.json.version: is missing", "report", "empty")


def test_report_shows_the_whole_story(build: Build) -> None:
    build.conformance(
        """
        record(
            outcome="violates",
            reason="the data is <wrong>",
            failures=[{"role": "importer", "step": "handle", "call": "cudaIpcOpen",
                       "expected": "cudaSuccess", "seen": "cudaErrorX (1)",
                       "message": "no mapping", "file": "a.cu", "line": 7}],
            roles=[{"name": "importer", "pid": 4711, "ended": "killed by SIGSEGV",
                    "last_step": "handle", "last_call": "cudaIpcOpen",
                    "output": "its last words"}],
            timeline=[
                {"t_us": 10, "role": "exporter", "kind": "send", "text": "handle",
                 "bytes": 64},
                {"t_us": 20, "role": "importer", "kind": "receive", "text": "handle",
                 "from": "exporter", "bytes": 64},
                {"t_us": 30, "role": "importer", "kind": "call", "text": "cudaIpcOpen"},
                {"t_us": 40, "role": "importer", "kind": "failure", "text": "none"},
            ],
        )
        sys.exit(1)
        """
    )
    outcome = build.run("-k", "LMEM-01")
    page = (outcome.folder / "report.html").read_text()
    for text in (
        "The sentence of LMEM-01.",
        "the data is &lt;wrong&gt;",
        "cudaErrorX (1)",
        "a.cu:7",
        "killed by SIGSEGV",
        "its last words",
        'class="message"',
        "handle, 64 bytes",
        'class="failure"',
        "Part of the suite only: -k &#39;LMEM-01&#39;.",
        outcome.json["fingerprint"]["id"],
        "NVIDIA H200",
    ):
        assert text in page
    assert page.count("handle, 64 bytes") == 1
    assert "exporter: sends handle" not in page  # the arrow already shows it
    assert "<wrong>" not in page
    assert not re.search(r'(src|href)="(?!#)', page)  # self-contained
    assert "reference model" not in page


def test_report_shows_tables_of_outcomes(build: Build) -> None:
    build.conformance(
        """
        def line(table, input, outcome, code):
            return dict(table=table, input=input, outcome=outcome, code=code)
        byte = [line("damaged <handle>", f"byte {i} inverted", "wrong success",
                     "cudaSuccess") for i in range(3)]
        byte += [line("damaged <handle>", "byte 3 inverted", "documented refusal",
                      "cudaErrorInvalidValue"),
                 line("other", "zeros", "hang", None)]
        byte += [line("damaged <handle>", "byte 4 inverted", "crash", "SIGSEGV")]
        record(outcomes=byte)
        """
    )
    build.conformance("record()", "Suite.Other", "LMEM-02")  # has no tables
    outcome = build.run()
    assert outcome.code == 0
    page = (outcome.folder / "report.html").read_text()
    for text in (
        "damaged &lt;handle&gt;",
        "3 wrong success, 1 documented refusal, 1 crash",
        "<td>byte 0 inverted … byte 2 inverted (3)</td>",
        "<td>byte 3 inverted</td>",
        '<td class="crash">crash</td><td>SIGSEGV</td>',
        '<td class="hang">hang</td><td></td>',
    ):
        assert text in page
    assert "byte 1 inverted" not in page
    assert page.count('<table class="outcomes">') == 2


def test_report_of_a_model_run_says_so(build: Build) -> None:
    build.probe({**PROBE, "backend": "model"})
    build.conformance("record()")
    outcome = build.run()
    assert outcome.text.startswith("reference model, 2 simulated GPUs; says nothing")
    page = (outcome.folder / "report.html").read_text()
    assert "Made on the reference model: it says nothing about a driver." in page
    assert outcome.only["backend"] == "model"


def test_first_line_without_a_gpu(build: Build) -> None:
    document = copy.deepcopy(PROBE)
    document.update(backend="none", gpus=[])
    document["capabilities"][0].update(available=False, reason="CUDA sees no GPU")
    build.probe(document)
    build.conformance("record(outcome='not applicable', reason='CUDA sees no GPU')")
    assert build.run().text.splitlines()[0] == "no GPU: CUDA sees no GPU"


# --- sample and doctor ------------------------------------------------------------


@pytest.mark.parametrize("name", ["01", "1", "01_legacy_memory", "legacy_memory"])
def test_sample_by_each_of_its_names(build: Build, name: str) -> None:
    lesson = build.source / "samples" / "01_legacy_memory"
    lesson.mkdir(parents=True)
    (lesson / "legacy_memory.cu").write_text(
        "// Lesson 01: lend memory.\n//\n//   a picture\n"
        "// SPDX-License-Identifier: Apache-2.0\n\n// not this\n"
    )
    build.sample("print('the lesson speaks')")
    labels = ("sample", "01_legacy_memory", "gpu1")
    build.add("sample.01_legacy_memory.mpi", "print('as two ranks')", *labels)
    done = build.ipclab("sample", name, "--build", "build")
    assert done.returncode == 0
    assert done.stdout == (
        "01_legacy_memory\n\nLesson 01: lend memory.\n\n  a picture\n\n"
        "on: 2 x NVIDIA H200, driver 580.1 (CUDA 13.0)\n\n"
        "the lesson speaks\n\n"
        "Exit code 0: it did what the lesson says, and the data proves it.\n"
    )


@pytest.mark.parametrize(
    ("program", "code", "text"),
    [
        ("sys.exit(77)", 77, "this machine cannot"),
        ("sys.exit(1)", 1, "it did not do what the lesson says"),
        ("os.kill(os.getpid(), 11)", 139, "It crashed: killed by SIGSEGV"),
        ("time.sleep(60)", 1, "it hung"),
    ],
)
def test_sample_ends(build: Build, program: str, code: int, text: str) -> None:
    lesson = build.source / "samples" / "01_legacy_memory"
    lesson.mkdir(parents=True)
    (lesson / "legacy_memory.cu").write_text("// A lesson.\n")
    build.sample(program, timeout=1 if "sleep" in program else 20)
    done = build.ipclab("sample", "01", "--build", "build")
    assert done.returncode == code
    assert text in done.stdout.splitlines()[-1]


def test_unknown_sample(build: Build) -> None:
    build.sample("pass")
    told = "no lesson '99'; this build has: 01_legacy_memory"
    says(build, 2, told, "sample", "99", "--build", "build")


def test_doctor(build: Build) -> None:
    done = build.ipclab("doctor", "--build", "build")
    assert done.returncode == 0
    text = " ".join(done.stdout.split())
    assert "legacy_memory yes" in text
    assert "fabric no no IMEX channel" in text
    assert text.endswith("can be shared: legacy_memory")
    for name in ("ptrace scope", "/dev/shm", "open files", "PID namespace", "WSL"):
        assert name in text


def test_doctor_of_a_machine_that_shares_nothing(build: Build) -> None:
    document = copy.deepcopy(PROBE)
    for entry in document["capabilities"]:
        entry.update(available=False, reason="CUDA sees no GPU")
    document.update(driver_version=12000, mps=True)
    document["gpus"][0].update(mig=True, compute_mode="exclusive process")
    build.probe(document)
    done = build.ipclab("doctor", "--build", "build")
    assert done.returncode == 1
    text = " ".join(done.stdout.split())
    for advice in (
        "nothing can be shared",
        "the driver is older than the runtime",
        "nvidia-smi -mig 0",
        "nvidia-smi -c DEFAULT",
        "a fault of one client",
    ):
        assert advice in text


# --- pytest alone, and the command as a process -------------------------------------


def test_plugin_without_the_command(build: Build) -> None:
    build.conformance("record()", "Suite.One", "LMEM-01")
    build.conformance("sys.exit(1)", "Suite.Two", "LMEM-02")

    def pytest_says(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "ipclab.plugin", *arguments],
            cwd=build.root,
            env=build.environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )

    one = pytest_says("--ctest-build", "build", "-k", "LMEM-01")
    assert (one.returncode, "1 passed" in one.stdout) == (0, True), one.stdout
    both = pytest_says("--ctest-build", "build", "--strict-markers", "-m", "gpu1")
    assert both.returncode == 1
    assert "1 failed, 1 passed" in both.stdout
    assert "wrote no record (exit 1)" in both.stdout
    none = pytest_says("--ctest-build", "none")
    assert (none.returncode, "no build here" in none.stderr) == (4, True)
    listed = pytest_says("--ctest-build", "build", "--collect-only", "-q")
    assert "Suite.One" in listed.stdout


def test_command_as_a_process(build: Build) -> None:
    build.conformance("record()")
    process = build.start("run", "--build", "build")
    text, _ = process.communicate(timeout=30)
    assert process.returncode == 0, text
    assert text.startswith("2 x NVIDIA H200, driver ")


@pytest.mark.parametrize("command", [["doctor"], ["run", "--results", "out"]])
def test_reader_that_goes_away(build: Build, command: list[str]) -> None:
    build.conformance("record()")
    read, write = os.pipe()
    os.close(read)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "ipclab", *command, "--build", "build"],
        cwd=build.root,
        env=build.environment(),
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(write)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 3
    assert "Traceback" not in errors
    if command[0] == "run":
        run = json.loads((build.root / "out" / "run.json").read_text())
        assert run["state"] == "interrupted"


def test_a_long_run_names_its_slowest_tests(build: Build) -> None:
    for number in range(21):
        build.conformance(
            f"record(duration_ms={number})",
            name=f"Suite.Name{number}",
        )
    told = build.run("-j", "4", "-v").text
    slowest = next(x for x in told.splitlines() if x.startswith("slowest: "))
    assert slowest.startswith("slowest: conformance.01_legacy_memory.Suite.Name20 ")
    assert slowest.count("conformance.") == 10


def test_a_run_ends_in_one_screen(build: Build) -> None:
    """The screen has a line for each chapter, the failures with the next step, the name
    of the page, and the sentence with the result.
    """
    for number in range(25):
        build.conformance("record()", name=f"Suite.Name{number}")
    build.conformance(
        "record(outcome='violates', reason='zeros were read'); sys.exit(1)",
        name="Suite.Wrong",
        row="LMEM-02",
    )
    build.sample("pass", lesson="30_vmm_fd")
    outcome = build.run("-j", "4")
    lines = [x for x in outcome.text.splitlines() if not x.startswith("[")]
    assert len(lines) <= 24 and max(map(len, lines)) <= 160, outcome.text
    assert "Suite.Name7" not in "\n".join(lines)
    [chapter] = [x for x in lines if x.startswith("0 Legacy memory handles")]
    assert chapter.split()[-2:] == ["25", "1"]
    at = lines.index("violates LMEM-02 Suite.Wrong")
    assert lines[at + 1] == "  zeros were read"
    assert lines[at + 2 : at + 4] == [
        "  rule: The sentence of LMEM-02.",
        "  expected answer: inferred: the call must be refused, but no sentence names "
        "the code",
    ]
    assert lines[at + 4] == (
        "  next: ci/ipclab rules LMEM-02; ci/ipclab run -v -k Wrong"
    )
    assert lines[-2].endswith("report.html")
    assert lines[-1] == (
        "FAILS: 1 of 27. 26 tests: 25 conform, 1 violates its rule. "
        "1 lesson run: 1 works."
    )
    page = (outcome.folder / "report.html").read_text()
    assert lines[-1] in page, "terminal and page have the same sentence"


def test_failures_leave_room_on_a_terminal_of_80_columns(build: Build) -> None:
    """A reason takes at most two lines there, and the next step is never cut."""
    for number in range(8):
        name = f"Suite.N{number}"
        build.conformance(f"violates(reason={'long ' * 60!r})", name=name)
    found = results.read(build.run("-j", "4").folder).records
    out = Console(width=80, file=io.StringIO(), highlight=False)
    row = {"statement": "long " * 60, "kind": "MUST"}
    terminal._worth_knowing(out, records.rows(found), False, {"LMEM-01": row})
    assert isinstance(out.file, io.StringIO)
    lines = out.file.getvalue().splitlines()
    assert sum(-(-len(line) // 80) for line in lines) <= 24, lines
    assert sum("-k N" in line for line in lines) == terminal.MOST_TOLD


def test_a_pipe_gets_the_result_and_no_progress(build: Build) -> None:
    """Progress goes to standard error, so standard output is only one screen."""
    build.conformance("record()", name="Suite.Name7")
    run = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "ipclab",
            "run",
            "--build",
            "build",
            "--results",
            "out",
        ],
        cwd=build.root,
        env=build.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout.splitlines()[-1].startswith("PASSES: "), run.stdout + run.stderr
    assert "Name7" not in run.stdout and "Name7: conforms" in run.stderr


def test_every_row_is_shown_with_v(build: Build) -> None:
    build.conformance("record()", name="Suite.Name7")
    told = build.run("-v").text
    assert re.search(r"^01_legacy_memory +LMEM-01 +Name7 +conforms", told, re.MULTILINE)
