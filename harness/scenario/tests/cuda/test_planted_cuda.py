"""A wrong value in a lesson, and in a test, must be found and reported.

The tests run on a GPU if there is one, or else on the reference model.

SPDX-License-Identifier: Apache-2.0
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    sample = os.environ["IPCLAB_PLANTED_SAMPLE"]
    if subprocess.run([sample], capture_output=True, timeout=60).returncode != 77:
        return dict(os.environ)
    return {**os.environ, "LD_LIBRARY_PATH": os.environ["IPCLAB_MODEL"]}


def test_the_lesson_sees_it(environment: dict[str, str]) -> None:
    ran = subprocess.run(
        [os.environ["IPCLAB_PLANTED_SAMPLE"]],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    seen = "exporter  reads the importer's values in its own memory: 1048576 wrong"
    assert seen in ran.stdout


def test_the_suite_sees_it(environment: dict[str, str], tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    ran = subprocess.run(
        [
            os.environ["IPCLAB_PLANTED_TEST"],
            "--gtest_filter=LegacyMemory.KernelOfTheImporterReadsWhatTheExporterWrote",
        ],
        env={**environment, "IPCLAB_RECORD": str(record)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    seen = json.loads(record.read_text())
    assert seen["requirement"] == "LMEM-01"
    assert (ran.returncode, seen["outcome"]) == (1, "violates")
    assert seen["role"] == "importer"
    assert seen["step"] == "handle"
    assert seen["call"] == "count_mismatches<<<>>>"
    value = re.compile(r"0x[0-9a-f]{8}")
    assert value.fullmatch(seen["expected"]) and value.fullmatch(seen["seen"])
    assert seen["expected"] != seen["seen"]
    for word in ("importer", "handle", seen["call"], seen["expected"], seen["seen"]):
        assert word in seen["reason"] and word in ran.stdout
