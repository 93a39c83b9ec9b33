"""peers.json: this suite has every check of other suites, or the file says why not.

SPDX-License-Identifier: Apache-2.0
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

CONFORMANCE = Path(__file__).resolve().parents[3] / "conformance"
PEERS = json.loads((CONFORMANCE / "peers.json").read_text())
CHECKS = PEERS["checks"]


def names_of_tests() -> set[str]:
    """Every TEST as CTest calls it, without the prefix that all have."""
    return {
        f"{file.parent.name}.{suite}.{name}"
        for file in CONFORMANCE.glob("*/*_test.cu")
        for suite, name in re.findall(
            r"^TEST\((\w+),\s*(\w+)\)", file.read_text(), re.MULTILINE
        )
    }


def test_no_check_stands_twice() -> None:
    ids = [check["id"] for check in CHECKS]
    assert ids == sorted(set(ids))


def test_its_sections_are_the_ones_it_names() -> None:
    named = set(re.findall(r"\b([A-Z]) [a-z]", PEERS["about"]))
    assert {check["id"][0] for check in CHECKS} == named


def test_a_part_of_a_check_stands_beside_the_rest() -> None:
    ids = {check["id"] for check in CHECKS}
    assert {part[:3] for part in ids} <= ids


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check["id"]))
def test_a_check_is_covered_or_says_why_not(check: dict[str, Any]) -> None:
    assert check["check"] and check["suites"]
    if "not_here" in check:
        assert check["not_here"] and "tests" not in check
        return
    assert check["tests"], "neither tests nor a reason"
    gone = set(check["tests"]) - names_of_tests()
    assert not gone, f"no such test: {', '.join(sorted(gone))}"
