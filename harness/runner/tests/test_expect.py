"""`--expect FILE`: a machine must not silently deny what the file expects of it."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from conftest import NO_GPU, PROBE, Build
from ipclab import expect

RESULTS = Path(__file__).resolve().parents[3] / "docs/results"
SKIPS = "record(outcome='not applicable', reason='denied')"


def with_capability(name: str, **changes: Any) -> dict[str, Any]:
    """The probe with another answer about a capability."""
    probe = copy.deepcopy(PROBE)
    for entry in probe["capabilities"]:
        if entry["name"] == name:
            entry.update(changes)
    return probe


DENIED = with_capability(
    "legacy_memory",
    available=False,
    attempt="cudaIpcGetMemHandle: cudaErrorNotSupported",
    reason="cudaDevAttrIpcEventSupport = 1, and yet cudaIpcGetMemHandle: …",
)
NO_CHANNEL = with_capability(
    "fabric",
    attribute="FABRIC_SUPPORTED = 1",
    attempt="cuMemCreate: CUDA_ERROR_NOT_PERMITTED",
    reason="FABRIC_SUPPORTED = 1, and yet cuMemCreate: CUDA_ERROR_NOT_PERMITTED",
)
LIES = with_capability(
    "fabric",
    attribute="FABRIC_SUPPORTED = 0",
    attempt="cuMemCreate: CUDA_SUCCESS",
    reason="FABRIC_SUPPORTED = 0",
)


def write(build: Build, probe: dict[str, Any] = PROBE, **changes: Any) -> None:
    """Write expect.json for a probe, with changes."""
    text = json.dumps({**expect.of_probe(probe), **changes})
    (build.root / "expect.json").write_text(text)


def run(build: Build, probe: dict[str, Any]) -> tuple[int, str, list[str]]:
    """Exit code, output and problems of a run on that machine."""
    build.probe(probe)
    build.conformance("record()", "Suite.Judged", "LMEM-02")
    outcome = build.run("--expect", "expect.json")
    return outcome.code, outcome.text, outcome.json["problems"]


def test_the_machine_that_was_written_down_is_as_expected(build: Build) -> None:
    build.probe(PROBE)
    arguments = ("--backend", "cuda", "--write-expect", "expect.json")
    done = build.ipclab("doctor", "--build", "build", *arguments)
    assert "Traceback" not in done.stdout
    written = json.loads((build.root / "expect.json").read_text())
    assert written == expect.of_probe(PROBE)
    assert (written["gpus"], written["peers"]) == (2, 2)
    assert written["capabilities"] == ["legacy_memory"]
    assert run(build, PROBE)[0::2] == (0, [])


def test_a_capability_that_is_denied_is_no_silent_skip(build: Build) -> None:
    """The driver refuses the probe's attempt. Without --expect, a test would skip."""
    write(build)
    build.conformance(SKIPS)
    code, said, problems = run(build, DENIED)
    assert code == 1
    assert problems[0].startswith("expected: legacy_memory; denied: cudaDevAttr")
    assert said.splitlines()[1] == problems[0]  # before the first test
    page = (build.root / "out/report.html").read_text()
    assert "expected: legacy_memory; denied" in page


@pytest.mark.parametrize(
    ("probe", "changes", "finding"),
    [
        (
            NO_CHANNEL,
            {},
            "fabric: attribute and attempt disagree: FABRIC_SUPPORTED = 1",
        ),
        (LIES, {}, "fabric: attribute and attempt disagree: FABRIC_SUPPORTED = 0"),
        ({**PROBE, "gpus": PROBE["gpus"][:1]}, {}, "expected: 2 GPUs; there are 1"),
        ({**PROBE, "peers": []}, {}, "expected: 2 pairs of peers; there are 0"),
        (PROBE, {"backend": "model"}, "expected: backend model; this is cuda"),
        (PROBE, {"capabilities": ["typo"]}, "expected: typo, which the probe does not"),
        (
            PROBE,
            {"known": {"fabric": "no channel"}},
            "fabric: attribute and attempt ag",
        ),
    ],
)
def test_each_difference_is_a_finding(
    build: Build, probe: dict[str, Any], changes: dict[str, Any], finding: str
) -> None:
    write(build, **changes)
    code, said, problems = run(build, probe)
    assert code == 1
    assert [x.startswith(finding) for x in problems] == [True]
    assert finding in said


def test_an_explained_disagreement_is_none(build: Build) -> None:
    write(build, NO_CHANNEL, known={"fabric": "this container has no IMEX channel"})
    assert run(build, NO_CHANNEL)[0::2] == (0, [])


def test_more_than_was_promised_is_fine(build: Build) -> None:
    write(build, gpus=1, peers=0, capabilities=[])
    assert run(build, PROBE)[0] == 0


def test_without_a_file_a_disagreement_is_told_and_fails_nothing(build: Build) -> None:
    build.probe(NO_CHANNEL)
    build.conformance("record()")
    outcome = build.run()
    assert outcome.code == 0
    assert "fabric: attribute and attempt disagree" in outcome.text.splitlines()[1]
    build.probe({**NO_CHANNEL, "backend": "model"})
    assert "disagree" not in build.run().text


def test_qualify_takes_the_file_too(build: Build) -> None:
    write(build, gpus=3)
    build.conformance("record()")
    arguments = ("--build", "build", "--results", "out", "--expect", "expect.json")
    done = build.ipclab("qualify", *arguments)
    assert done.returncode == 1
    assert "the run itself reports: expected: 3 GPUs; there are 2" in done.stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "expect.json: No such file or directory"),
        ("{", "is not JSON"),
        ("{" * 100000, "is not JSON"),
        ("[]", "is not an object"),
        ('{"backend": "cuda"}', "expect.gpus: is missing"),
    ],
)
def test_a_file_that_is_not_good(build: Build, text: str | None, said: str) -> None:
    build.conformance("record()")
    if text is not None:
        (build.root / "expect.json").write_text(text)
    outcome = build.ipclab("run", "--build", "build", "--expect", "expect.json")
    assert outcome.returncode == 2
    assert said in outcome.stdout


def test_nothing_is_expected_of_a_machine_without_gpus(build: Build) -> None:
    build.probe(NO_GPU)
    arguments = ("--backend", "cuda", "--write-expect", "expect.json")
    done = build.ipclab("doctor", "--build", "build", *arguments)
    assert done.returncode == 2
    assert "no GPU here" in done.stdout


@pytest.mark.parametrize(
    "folder", sorted(RESULTS.glob("*/")), ids=lambda folder: str(folder.name)
)
def test_each_recorded_machine_is_what_its_file_says(folder: Path) -> None:
    expected = expect.read(folder / "expect.json")
    probe = json.loads((folder / "run.json").read_text())["probe"]
    assert expect.findings(expected, probe) == []
    for name in expected["capabilities"]:
        denied = copy.deepcopy(probe)
        for entry in denied["capabilities"]:
            if entry["name"] == name:
                entry.update(available=False, reason="denied")
        assert any(name in x for x in expect.findings(expected, denied))
