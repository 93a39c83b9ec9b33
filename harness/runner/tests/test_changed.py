"""Which faults concern a change: ipclab mutants --changed, --sample."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ipclab import declarations
from ipclab.errors import UsageError
from ipclab.mutants import changed
from ipclab.mutants.faults import Fault

ONE, TWO = "conformance/01_first/faults.cc", "conformance/02_second/faults.cc"
OPERATORS = "harness/faults/operators.cc"
ROOM, OTHER_ROOM = "conformance/01_first/rows.json", "conformance/02_second/rows.json"
TEST = "conformance/01_first/first_test.cu"
FAULTS = [
    Fault("first", "named", "f", None, "", rows=("ONE-01",), file=ONE),
    Fault("second", "named", "f", None, "", rows=("TWO-01",), file=TWO),
    Fault("third", "named", "f", None, "", rows=("TWO-02",), file=TWO),
    Fault("ok-fourth", "named", "f", None, "", rows=("TWO-03",), file=TWO),
    Fault("f.lost", "operator", "f", "lost", "", file=OPERATORS),
]
# The second fault uses a helper; the third uses a word, which reads a fact.
DECLARED = """
namespace ipclab::faults {
namespace {
int helper(Call& call) { return call.proceed(); }
FAULTS {
  fault("second", {"TWO-01"}, "is wrong").on({"f"}, helper);
  fault("third", {"TWO-02"}, "is wrong,"
             " too").on({"f"}, is_known, lost);
  fault("ok-fourth", {"TWO-03"}, "is slow").on({"f"}, slow);
}
}  // namespace
}  // namespace ipclab::faults
"""
WORDS = "constexpr auto is_known = WHEN(known.has(1));\nint unused(Call& call) {}\n"
WORLD = "inline Table<int> known;\nvoid note_known(Call& call) { known.put(1); }\n"


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree with one commit."""
    write(tmp_path / TEST, 'covers("ONE-01");\n')
    rows = [{"id": row, "tests": {}} for fault in FAULTS for row in fault.rows]
    write(tmp_path / ROOM, json.dumps({"rows": rows}))
    write(tmp_path / TWO, DECLARED)
    write(tmp_path / "harness/faults/words/words.h", WORDS)
    write(tmp_path / "harness/faults/world/known.h", WORLD)
    write(tmp_path / OPERATORS, "")
    write(tmp_path / "README.md", "")
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
    rows = json.loads((tree / ROOM).read_text())
    rows["rows"][2]["tests"]["Suite.Name"] = "A paragraph."
    write(tree / ROOM, json.dumps(rows))
    assert concerned(tree) == ["third"]


def test_a_row_that_moves_to_another_room_concerns_no_fault(tree: Path) -> None:
    rows = json.loads((tree / ROOM).read_text())["rows"]
    write(tree / ROOM, json.dumps({"rows": rows[:1]}))
    write(tree / OTHER_ROOM, json.dumps({"rows": rows[1:]}))
    git(tree, "add", OTHER_ROOM)
    assert concerned(tree) == []


@pytest.mark.parametrize(
    ("path", "old", "new", "found"),
    [
        (TWO, '{"f"}, helper', '{"g"}, helper', ["second"]),
        (TWO, "return call.proceed()", "return 1", ["second"]),
        (TWO, "int helper", "// A comment.\nint   helper", []),
        (TWO, 'is wrong,"\n             " too', "is wrong, too", []),
        ("harness/faults/words/words.h", "known.has(1)", "known.has(2)", ["third"]),
        ("harness/faults/words/words.h", "unused", "still_unused", []),
        ("harness/faults/world/known.h", "known.put(1)", "known.put(2)", ["third"]),
        (OPERATORS, "", "int changed;", ["f.lost"]),
    ],
)
def test_a_fault_changes_with_what_it_uses(
    tree: Path, path: str, old: str, new: str, found: list[str]
) -> None:
    write(tree / path, (tree / path).read_text().replace(old, new, 1))
    assert concerned(tree) == found


def test_a_large_change_is_cut(tree: Path) -> None:
    write(tree / TWO, DECLARED.replace('{"f"}', '{"g"}', 2))
    found, number = changed.concerned(tree, "HEAD", FAULTS, 1)
    assert (len(found), number) == (1, 2)


def test_declarations_are_read_without_a_build(tree: Path) -> None:
    found = declarations.declared(declarations.texts(tree))
    assert [(x.name, x.what, x.rows) for x in found] == [
        ("second", "is wrong", ("TWO-01",)),
        ("third", "is wrong, too", ("TWO-02",)),
        ("ok-fourth", "is slow", ("TWO-03",)),
    ]


def test_each_word_has_a_meaning_and_its_faults(tree: Path) -> None:
    path = tree / "harness/faults/words/words.h"
    write(path, f"/// Whether it is known.\n/// (Or not.)\n{WORDS}")
    found = {x.name: x for x in declarations.words(declarations.texts(tree))}
    assert found["is_known"].meaning == "Whether it is known. (Or not.)"
    assert found["is_known"].faults == ("third",)
    assert found["unused"].faults == ()


def test_the_sample_stays_when_faults_come() -> None:
    few = changed.sample(FAULTS[:4], 2)
    more = changed.sample(FAULTS, 3)
    assert len(few) == 2 and set(few) <= set(more)


def test_an_unknown_revision_is_told(tree: Path) -> None:
    with pytest.raises(UsageError, match=r"git diff: .*nowhere"):
        changed.concerned(tree, "nowhere", FAULTS, 1)
