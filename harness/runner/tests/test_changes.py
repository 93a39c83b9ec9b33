"""`ipclab mutants --changed`: which mutants a change concerns, and what is said."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from conftest import Build
from ipclab import changes, matrix
from test_backend import NO_GPU, NOTICES, machine

TOP = Path(__file__).resolve().parents[3]
ALL = {"first", "second", "third", "ok-fourth"}
ENTRIES = [
    {"name": "first", "rows": ["LMEM-01"]},
    {"name": "second", "rows": ["LMEM-02"]},
    {"name": "third", "rows": ["LMEM-01", "LMEM-02"]},
    {"name": "ok-fourth", "rows": ["LMEM-02"]},
]
FILES = {
    "conformance/01_legacy_memory/legacy_memory_test.cu": "// LMEM-01\n",
    "conformance/30_vmm_fd/vmm_fd_test.cu": "// no row of a mutant\n",
    "samples/01_legacy_memory/legacy_memory.cu": "// lesson\n",
    "samples/01_legacy_memory/legacy_memory.dox": "page\n",
    "harness/model/core/one.cc": 'if (mutant("first") || mutant("ok-fourth")) {}\n',
    "harness/model/core/two.cc": 'if (ipclab_model_mutant("second")) {}\n',
    "harness/model/core/plain.cc": "// names none\n",
    "harness/model/tests/one_test.cc": "// test\n",
    "harness/model/README.md": "text\n",
    "harness/scenario/scenario.h": "// shared\n",
    "harness/runner/src/ipclab/run.py": "# shared\n",
    "harness/runner/tests/test_run.py": "# test\n",
    "docs/page.md": "text\n",
    "conformance/deviations.json": '{"deviations": []}\n',
}


def git(build: Build, *arguments: str) -> str:
    """git in the planted source tree."""
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(
        ["git", "-C", build.source, *who, *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.fixture
def planted(build: Build) -> Build:
    """A build whose source tree is a repository; each mutant is noticed."""
    machine(build, NO_GPU)
    for name, text in FILES.items():
        write(build, name, text)
    entries = [{"entry": "IpcOpenMem", "what": "is wrong", **x} for x in ENTRIES]
    write(build, changes.MUTANTS, json.dumps(entries))
    for row, test in (("LMEM-01", "Suite.One"), ("LMEM-02", "Suite.Two")):
        build.conformance(
            f"{NOTICES}bad = m and not m.startswith('ok-')\n"
            "record(outcome='violates' if bad else 'conforms'); sys.exit(bool(bad))",
            name=test,
            row=row,
        )
        raw = build._tests[-1]
        if row == "LMEM-02":  # of another lesson
            build._tests[-1] = raw.replace("01_legacy_memory", "02_identity")
            (build.folder / "conformance.01_legacy_memory.Suite.Two.py").rename(
                build.folder / "conformance.02_identity.Suite.Two.py"
            )
            build.raw("")
    git(build, "init", "-q", "-b", "main")
    git(build, "add", "-A")
    git(build, "commit", "-qm", "before")
    return build


def write(build: Build, name: str, text: str) -> None:
    path = build.source / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def edit(build: Build, name: str, change: Any) -> None:
    """Let `change` work on the value of a JSON file."""
    path = build.source / name
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def ran(build: Build, *arguments: str) -> set[str]:
    """The mutants that ran; the others are told as not run, in words and data."""
    done = build.ipclab(
        "mutants", "--build", "build", "--results", "kills", "--changed", *arguments
    )
    assert done.returncode == 0, done.stdout
    document = json.loads((build.root / "kills/mutants.json").read_text())
    names = {
        mutant["name"]
        for mutant in document["mutants"]
        if not any(x["result"] == matrix.NOT_RUN for x in mutant["results"])
    }
    assert {x["name"] for x in document["mutants"]} == ALL
    said = f"{len(names)} of 4 mutants"
    if names == ALL:
        assert document["partial"] is None
        assert "NOT the whole matrix" not in done.stdout
    else:
        assert document["partial"]
        last = done.stdout.splitlines()[-1]
        assert last.startswith("NOT the whole matrix: ")
        assert last.endswith(said)
    return names


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("conformance/01_legacy_memory/legacy_memory_test.cu", {"first", "third"}),
        ("conformance/01_legacy_memory/new_file.h", {"first", "third"}),
        ("conformance/30_vmm_fd/vmm_fd_test.cu", set()),
        ("samples/01_legacy_memory/legacy_memory.cu", {"first", "third"}),
        ("samples/01_legacy_memory/legacy_memory.dox", set()),
        ("harness/model/core/one.cc", {"first", "ok-fourth"}),
        ("harness/model/core/two.cc", {"second"}),
        ("harness/model/core/plain.cc", ALL),
        ("harness/model/core/new.cc", ALL),
        ("harness/model/tests/one_test.cc", set()),
        ("harness/model/README.md", set()),
        ("harness/scenario/scenario.h", ALL),
        ("harness/runner/src/ipclab/run.py", ALL),
        ("harness/runner/tests/test_run.py", set()),
        ("docs/page.md", set()),
        ("conformance/deviations.json", ALL),
        ("CMakeLists.txt", ALL),
    ],
)
def test_a_file_concerns_its_mutants(
    planted: Build, file: str, names: set[str]
) -> None:
    path = planted.source / file
    write(planted, file, (path.read_text() if path.exists() else "") + "\n")
    assert ran(planted) == names


def test_what_a_source_named_before_counts_too(planted: Build) -> None:
    write(planted, "harness/model/core/one.cc", 'if (mutant("second")) {}\n')
    assert ran(planted) == {"first", "ok-fourth", "second"}


def test_a_source_that_is_gone_counts(planted: Build) -> None:
    (planted.source / "harness/model/core/two.cc").unlink()
    assert ran(planted) == {"second"}


def test_a_lesson_that_is_gone_concerns_the_rows_that_name_it(planted: Build) -> None:
    path = "conformance/requirements.json"
    edit(planted, path, lambda x: x["rows"][1].update(lessons=["30_vmm_fd"]))
    git(planted, "commit", "-qam", "LMEM-02 is shown in lesson 30")
    (planted.source / "conformance/30_vmm_fd/vmm_fd_test.cu").unlink()
    assert ran(planted) == {"second", "third", "ok-fourth"}


def test_only_the_entries_that_changed_count(planted: Build) -> None:
    edit(planted, changes.MUTANTS, lambda x: x[1].update(what="is wrong otherwise"))
    assert ran(planted) == {"second"}


def test_only_the_rows_that_changed_count(planted: Build) -> None:
    path = "conformance/requirements.json"
    edit(planted, path, lambda x: x["rows"][0].update(statement="Another."))
    assert ran(planted) == {"first", "third"}


def test_nothing_changed_is_not_the_whole_matrix(planted: Build) -> None:
    assert ran(planted) == set()


def test_a_branch_is_compared_with_where_it_began(planted: Build) -> None:
    git(planted, "checkout", "-qb", "work")
    write(planted, "harness/model/core/two.cc", 'mutant("second");  // mine\n')
    git(planted, "commit", "-qam", "work")
    git(planted, "checkout", "-q", "main")
    write(planted, "harness/scenario/scenario.h", "// theirs, later\n")
    git(planted, "commit", "-qam", "theirs")
    git(planted, "checkout", "-q", "work")
    write(planted, "docs/page.md", "not committed\n")
    assert ran(planted, "main") == {"second"}


def test_a_survivor_still_fails(planted: Build) -> None:
    write(planted, "conformance/01_legacy_memory/legacy_memory_test.cu", "//\n")
    program = planted.folder / "conformance.01_legacy_memory.Suite.One.py"
    program.write_text(program.read_text().replace("bad = m and", "bad = 0 and"))
    done = planted.ipclab("mutants", "--build", "build", "--changed")
    assert done.returncode == 1
    assert "LMEM-01 survived" in done.stdout
    assert "no mutant is killed by LMEM-01\n" in done.stdout


def test_a_row_that_a_left_out_mutant_may_prove_is_no_gap(planted: Build) -> None:
    edit(planted, changes.MUTANTS, lambda x: x[3].update(what="another variant"))
    assert ran(planted) == {"ok-fourth"}  # and exit 0: LMEM-02 has more mutants


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--changed", "gone"], "--changed: gone: "),
        (["first", "--changed"], "name mutants or say --changed, not both"),
    ],
)
def test_bad_input_is_one_line(planted: Build, arguments: list[str], text: str) -> None:
    done = planted.ipclab("mutants", "--build", "build", *arguments)
    assert done.returncode == 2
    assert text in done.stdout
    assert len(done.stdout.splitlines()) == 1
    assert not (planted.root / "results").exists()


def test_no_repository_is_told(planted: Build) -> None:
    (planted.source / ".git").rename(planted.source / "gone")
    done = planted.ipclab("mutants", "--build", "build", "--changed")
    assert done.returncode == 2
    assert "--changed: HEAD: fatal: not a git repository" in done.stdout


def test_every_mutant_is_named_by_a_source_of_the_model() -> None:
    """Or else a change of that source would leave it out."""
    model = TOP / changes.MODEL
    named = {
        name
        for path in model.rglob("*")
        if path.suffix in (".cc", ".h")
        and not {"tests", "bench"} & set(path.relative_to(model).parts)
        for name in changes.named(path.read_text())
    }
    entries = json.loads((TOP / changes.MUTANTS).read_text())
    assert {entry["name"] for entry in entries} <= named
