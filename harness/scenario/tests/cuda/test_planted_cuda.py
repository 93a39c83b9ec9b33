"""A wrong value in a lesson, and in a test, must be seen and told.

SPDX-License-Identifier: Apache-2.0
"""

import json
import os
import re
import subprocess
from pathlib import Path


def test_the_lesson_sees_it() -> None:
    ran = subprocess.run(
        [os.environ["IPCLAB_PLANTED_SAMPLE"]],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if ran.returncode == 77:  # no GPU: nothing was shared, and nothing is claimed
        assert ran.stdout.startswith("SKIP: ")
        return
    assert ran.returncode == 1
    assert "exporter  value 0 is 2000001, expected 2000000" in ran.stdout
    assert "exporter  finds WRONG values in its own allocation" in ran.stdout


def test_the_suite_sees_it(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    ran = subprocess.run(
        [
            os.environ["IPCLAB_PLANTED_TEST"],
            "--gtest_filter=LegacyMemory.KernelOfTheImporterReadsWhatTheExporterWrote",
        ],
        env={**os.environ, "IPCLAB_RECORD": str(record)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    seen = json.loads(record.read_text())
    assert seen["requirement"] == "LMEM-01"
    if seen["outcome"] == "not applicable":
        assert ran.returncode == 0 and seen["reason"].startswith("needs 1 GPU, found 0")
        return
    assert (ran.returncode, seen["outcome"]) == (1, "violates")
    assert seen["role"] == "importer"
    assert seen["step"] == "handle"
    assert seen["call"].startswith("cudaMemcpy(&seen")
    value = re.compile(r"0x[0-9a-f]{8}")
    assert value.fullmatch(seen["expected"]) and value.fullmatch(seen["seen"])
    assert seen["expected"] != seen["seen"]
    for word in ("importer", "handle", seen["call"], seen["expected"], seen["seen"]):
        assert word in seen["reason"] and word in ran.stdout
