"""The findings: their files, their facts, and what their programs do on the model.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ipclab import deviations, documentation, findings
from ipclab.cli import main
from ipclab.errors import HarnessError, UsageError
from ipclab.findings import Finding

TOP = Path(__file__).resolve().parents[3]
FOUND = findings.read(TOP)
BUILD = (
    Path(os.environ["IPCLAB_MODEL"]).parent if "IPCLAB_MODEL" in os.environ else None
)
MOST = 40  # lines of a program, without its comments and empty lines
NAMES = [x.name for x in FOUND]


def find(name: str) -> Finding:
    return findings.find(FOUND, name)


def code(text: str) -> list[str]:
    """The lines of a program that are neither empty nor a comment."""
    return [x for x in text.splitlines() if x.strip() and not re.match(r"\s*//", x)]


@pytest.mark.parametrize("name", NAMES)
def test_a_program_is_short_and_stands_alone(name: str) -> None:
    finding = find(name)
    text = finding.file("cu").read_text()
    assert len(code(text)) <= MOST
    assert max(map(len, text.splitlines())) <= 100
    assert "// SPDX-License-Identifier: Apache-2.0\n" in text
    assert '#include "' not in text
    assert len(re.findall(r"\balarm\(", text)) == 1, "a wait without a deadline"
    assert "return 77" in text or "77; }" in text or ", 77;" in text


def test_the_lines_of_a_program_are_counted() -> None:
    assert code("// a\n\n  // b\nint c;  // d\n}\n") == ["int c;  // d", "}"]


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_has_its_files_and_no_more(name: str) -> None:
    topic = find(name).topic
    files = {x.name for x in find(name).folder.iterdir()} - {f"{topic}.out"}
    assert files == {f"{topic}.cu", f"{topic}.json"}


def test_the_worst_come_first() -> None:
    harm = [deviations.SEVERITIES.index(x.severity) for x in FOUND]
    assert harm == sorted(harm)
    assert [x.number for x in FOUND] == list(range(1, len(FOUND) + 1))


def test_every_entry_of_a_driver_belongs_to_a_finding() -> None:
    entries = deviations.read_deviations(TOP / "conformance" / deviations.NAME)
    told = [entry for finding in FOUND for entry in finding.entries]
    left = [x["test"] for x in entries if x["vendor"] == "nvidia" and x not in told]
    assert left == []


@pytest.mark.skipif("IPCLAB_CUDA_INCLUDE" not in os.environ, reason="no build")
def test_the_quoted_sentences_are_in_the_documentation() -> None:
    said = documentation.read(Path(os.environ["IPCLAB_CUDA_INCLUDE"]))
    if said.toolkit != "13.0":
        pytest.skip(f"the pages quote CUDA 13.0; this is {said.toolkit}")
    for finding in FOUND:
        sentence = finding.about["sentence"]
        known = [x.text for x in said.topics[sentence["topic"]]]
        assert sentence["says"] in known, finding.name


@pytest.mark.nightly(8, "name")
@pytest.mark.parametrize("name", NAMES)
def test_the_line_of_its_header_builds_it(name: str, tmp_path: Path) -> None:
    finding = find(name)
    line = re.search(r"^// (nvcc .*)$", finding.file("cu").read_text(), re.MULTILINE)
    assert line and line[1].startswith(f"nvcc -cudart shared {finding.topic}.cu")
    built = subprocess.run(
        [*shlex.split(line[1]), "-o", str(tmp_path / "a.out")],
        cwd=finding.folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert built.returncode == 0, built.stderr


@pytest.mark.skipif(BUILD is None, reason="no build")
def test_on_the_model_every_program_sees_what_is_documented(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended = main(
        ["findings", "--run", "--all", "--backend", "model", "--build", str(BUILD)]
    )
    said = capsys.readouterr().out
    assert ended == 0, said
    assert said.startswith("reference model; says nothing about a driver\n")
    assert said.endswith(f"{len(FOUND)} documented behaviour\n"), said


PLANTED = {  # faults of harness/faults that look like the finding
    "01_wait_in_context": "other-context-wait-refused",
    "04_second_destroy": "later-destroy-dies",
    "09_pending_record": "record-waits-for-pending",
    "10_blocking_sync": "blocking-event-spins",
    "11_used_after_free": "stats-wrong",
    "12_trim_to_largest": "trim-keeps-nothing",
    "13_pointer_device": "import-device-current",
    "14_atomic_capabilities": "link-atomics-none",
    "15_map_beyond": "map-beyond-reservation-ok",
    "16_access_over_hole": "ok-setaccess-hole",
    "18_import_statistics": "import-uses-nothing",
    "19_descriptor_zero": "import-number-0-refused",
    "20_pool_of_no_place": "location-pool-unchecked",
    "21_taken_descriptor": "external-refusal-closes",
    "22_unconverted_green": "green-context-as-context",
    "23_captured_event": "green-wait-for-captured-event",
}


@pytest.mark.skipif(BUILD is None, reason="no build")
@pytest.mark.parametrize(("name", "fault"), PLANTED.items())
def test_a_program_shows_a_fault_that_is_there(
    name: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert BUILD is not None
    library = BUILD / "faults/libipclab_faults.so"
    if not library.exists():
        pytest.skip("no library of faults here")
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("IPCLAB_FAULT", fault)
    ended = main(
        ["findings", name, "--run", "--backend", "model", "--build", str(BUILD)]
    )
    assert ended == 1


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes one finding whose program is a line of shell; returns its folder."""

    def make(line: str, **changes: object) -> Path:
        folder = tmp_path / "01_fake"
        folder.mkdir()
        (folder / "fake.cu").touch()
        entry = {**FOUND[0].entries[0], **changes}
        made = dataclasses.replace(FOUND[0], folder=folder, entries=(entry,))
        program = tmp_path / "build" / findings.FOLDER / "fake"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)
        monkeypatch.setattr(findings, "read", lambda _source: [made])
        here = ("580.159.04", ["NVIDIA H200"])
        monkeypatch.setattr(findings, "installed", lambda: here)
        return folder

    return make


def run(tmp_path: Path, *words: str) -> int:
    return main(["findings", "--build", str(tmp_path / "build"), *words])


@pytest.mark.parametrize(
    ("line", "ended", "said"),
    [
        ("echo seen; exit 0", 0, "documented behaviour\n    seen\n1 documented"),
        ("exit 1", 1, "SHOWS THE FAULT\n1 shows the fault"),
        ("echo SKIP: no GPU; exit 77", 0, "cannot run here\n    SKIP: no GPU\n"),
        ("exit 3", 3, "says nothing: 3\n1 without an answer"),
        ("kill -SEGV $$", 3, "says nothing: -11\n"),
    ],
)
def test_what_a_program_says_is_told(
    fake: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    line: str,
    ended: int,
    said: str,
) -> None:
    fake(line)
    assert run(tmp_path, "--run") == ended
    out = capsys.readouterr().out
    assert out.startswith("NVIDIA H200, driver 580.159.04\n")
    assert said in out


def test_a_program_that_hangs_is_ended(
    fake: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake("cat <&3 3</proc/self/fd/1 & read line </dev/zero")
    monkeypatch.setattr(findings, "LIMIT", 0.2)
    assert run(tmp_path, "--run") == 3
    assert "still running after 0.2 s" in capsys.readouterr().out


def test_the_output_is_recorded(fake: Callable[..., Path], tmp_path: Path) -> None:
    folder = fake("echo seen; exit 1")
    assert run(tmp_path, "--run", "--record") == 1
    recorded = "NVIDIA H200, driver 580.159.04: exit code 1\nseen\n"
    assert (folder / "fake.out").read_text() == recorded


def test_what_could_not_run_is_not_recorded(
    fake: Callable[..., Path], tmp_path: Path
) -> None:
    folder = fake("exit 77")
    assert run(tmp_path, "--run", "--record") == 0
    assert not (folder / "fake.out").exists()


def test_the_model_records_nothing(
    fake: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake("exit 0")
    assert run(tmp_path, "--run", "--record", "--backend", "model") == 2
    assert "--record needs a driver" in capsys.readouterr().err


def test_findings_of_other_drivers_are_left_out(
    fake: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake("exit 1", driver={"from": "590.1", "to": "590.9"})
    assert run(tmp_path) == 0
    assert "No finding is known for this driver." in capsys.readouterr().out
    assert run(tmp_path, "--run", "--all") == 1
    assert run(tmp_path, "--run", "1") == 1


def test_a_release_has_left_out_what_is_held_back(
    fake: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fake("exit 1", security=True)
    (folder / "fake.cu").unlink()
    assert run(tmp_path, "--run") == 0
    assert "left out of this release: docs/SECURITY.md" in capsys.readouterr().out


def test_an_unknown_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["findings", "99"]) == 2
    assert "no finding '99'" in capsys.readouterr().err


def test_a_missing_program_says_how_to_build_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--target findings"):
        findings.program(tmp_path, FOUND[0])


@pytest.mark.parametrize(
    ("text", "wrong"),
    [("{}", "is missing"), ("{", "is not JSON"), (None, "No such file")],
)
def test_a_wrong_file_is_told(tmp_path: Path, text: str | None, wrong: str) -> None:
    (tmp_path / "conformance").mkdir()
    (tmp_path / "conformance" / deviations.NAME).write_text('{"deviations": []}')
    folder = tmp_path / findings.FOLDER / "01_a"
    folder.mkdir(parents=True)
    (folder / "a.cu").touch()
    if text is not None:
        (folder / "a.json").write_text(text)
    with pytest.raises(HarnessError, match=wrong):
        findings.read(tmp_path)


def test_the_empty_folder_of_an_earlier_number_is_no_finding(tmp_path: Path) -> None:
    (tmp_path / "conformance").mkdir()
    (tmp_path / "conformance" / deviations.NAME).write_text('{"deviations": []}')
    (tmp_path / findings.FOLDER / "01_a").mkdir(parents=True)
    assert findings.read(tmp_path) == []
