"""Which faults concern a change: ipclab mutants --changed, --sample."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ipclab import changed
from ipclab.errors import UsageError
from ipclab.faults import Fault

TEST = "conformance/01_first/first_test.cu"
FAULTS = [
    Fault("first", "named", "f", None, "", rows=("ONE-01",), file="one.cc"),
    Fault("second", "named", "f", None, "", rows=("TWO-01",), file="two.cc"),
    Fault("third", "named", "f", None, "", rows=("TWO-02",), file="two.cc"),
    Fault("ok-fourth", "named", "f", None, "", rows=("TWO-03",), file="three.cc"),
]


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree with one commit."""
    write(tmp_path / TEST, 'covers("ONE-01");\n')
    rows = [{"id": row, "check": "x"} for fault in FAULTS for row in fault.rows]
    write(tmp_path / changed.ROWS, json.dumps({"rows": rows}))
    named = [{"name": x.name, "rows": list(x.rows)} for x in FAULTS]
    write(tmp_path / "harness/faults/faults.json", json.dumps({"named": named}))
    write(tmp_path / "harness/faults/two.cc", "")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def concerned(tree: Path, most: int = 100) -> list[str]:
    found, number = changed.concerned(tree, "HEAD", FAULTS, most)
    assert number >= len(found)
    return [x.name for x in found]


def test_no_change_concerns_no_fault(tree: Path) -> None:
    assert concerned(tree) == []


def test_a_test_concerns_the_faults_of_its_rows(tree: Path) -> None:
    write(tree / TEST, 'covers("ONE-01");  // another\n')
    assert concerned(tree) == ["first"]


def test_a_row_concerns_its_faults_alone(tree: Path) -> None:
    rows = json.loads((tree / changed.ROWS).read_text())
    rows["rows"][2]["check"] = "y"
    write(tree / changed.ROWS, json.dumps(rows))
    assert concerned(tree) == ["third"]


def test_a_decision_concerns_its_fault_alone(tree: Path) -> None:
    path = tree / "harness/faults/faults.json"
    decided = json.loads(path.read_text())
    decided["named"][3]["rows"] = ["ONE-01"]
    write(path, json.dumps(decided))
    assert concerned(tree) == ["ok-fourth"]


def test_a_source_concerns_its_faults(tree: Path) -> None:
    write(tree / "harness/faults/two.cc", "// another")
    assert concerned(tree) == ["second", "third"]


def test_a_large_change_is_cut(tree: Path) -> None:
    write(tree / "harness/faults/two.cc", "// another")
    found, number = changed.concerned(tree, "HEAD", FAULTS, 1)
    assert (len(found), number) == (1, 2)


def test_the_sample_stays_when_faults_come() -> None:
    few = changed.sample(FAULTS[:3], 2)
    more = changed.sample(FAULTS, 3)
    assert len(few) == 2 and set(few) <= set(more)


def test_an_unknown_revision_is_told(tree: Path) -> None:
    with pytest.raises(UsageError, match=r"git diff: .*nowhere"):
        changed.concerned(tree, "nowhere", FAULTS, 1)
