"""The rules of the repository: names, sizes, pairs, rows.

SPDX-License-Identifier: Apache-2.0
"""

import ast
import graphlib
import itertools
import json
import os
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipclab import declarations, requirements, rules

TOP = Path(__file__).resolve().parents[3]
LESSONS = sorted(p.name for p in (TOP / "samples").glob("[0-9][0-9]_*"))
CATALOGUE = requirements.document(TOP / "conformance")
ROWS = requirements.read(TOP / "conformance")
OWN_FILES = {
    "35_fabric_handle": ["roles.h"],  # roles that are ranks of MPI
    "36_logical_endpoint": ["endpoint.h"],  # queries of the machine, and operands
    "64_mps": ["daemon.h"],  # the MPS control daemon
    # the broker, the namespaces, and how to start both in containers
    "65_pods": ["broker.h", "compose.yaml", "kubernetes.yaml", "pods.h"],
    "70_handle_cache": ["handle_cache.h"],
    "71_pytorch_tensor": ["producer.py", "tensor.h"],  # the other role, the format
    "72_all_reduce": ["all_reduce.h", "all_reduce_bench.cu", "ranks.h"],
    "73_cost_of_sharing": ["figures.h", "otherwise.h"],  # how the lesson measures
    "74_pipeline": ["pipeline_bench.cu", "ring.h", "ways.h"],
    "76_mpi_ranks": ["mpi_ranks.h"],  # ranks of MPI, or two processes that play them
}
MIRRORS = sorted((TOP / "conformance").glob("*/*_test.cu"))
COVERS = re.compile(r'covers\("([^"]+)"\)')


def topic(lesson: str) -> str:
    return lesson[3:]


def source(lesson: str) -> Path:
    return TOP / "samples" / lesson / f"{topic(lesson)}.cu"


def mirrors(lesson: str) -> list[Path]:
    """The tests of a lesson: topic_test.cu, and perhaps topic_subject_test.cu."""
    found = [x for x in MIRRORS if x.parent.name == lesson]
    assert TOP / "conformance" / lesson / f"{topic(lesson)}_test.cu" in found
    return found


def test_there_are_lessons() -> None:
    assert LESSONS


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_is_its_files_and_no_more(lesson: str) -> None:
    name = topic(lesson)
    files = sorted(p.name for p in (TOP / "samples" / lesson).iterdir())
    own = OWN_FILES.get(lesson, [])
    assert files == sorted(
        [
            "CMakeLists.txt",
            f"{name}.cu",
            f"{name}.dox",
            f"{name}.out",
            f"{name}.try.json",
            *own,
        ]
    )
    files = sorted(p.name for p in (TOP / "conformance" / lesson).iterdir())
    # A pattern's folder may have no rule of its own that a fault could break. Several
    # files of tests may share a header.
    allowed = rf"CMakeLists\.txt|{name}(_\w+)?_test\.cu|{name}_test\.h"
    assert {"CMakeLists.txt", f"{name}_test.cu", requirements.ROOM} <= set(files)
    assert all(
        x == requirements.ROOM or declarations.is_own(x) or re.fullmatch(allowed, x)
        for x in files
    )


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_fits_a_screen(lesson: str) -> None:
    lines = source(lesson).read_text().splitlines()
    assert len(lines) <= 160, "two lessons"
    assert max(map(len, lines)) <= 72
    assert lines[0].startswith(f"// Lesson {lesson[:2]}: ")
    assert "// SPDX-License-Identifier: Apache-2.0" in lines


def test_most_lessons_are_shorter_than_that() -> None:
    lengths = [len(source(lesson).read_text().splitlines()) for lesson in LESSONS]
    assert statistics.median(lengths) <= 105


@pytest.mark.parametrize(
    "file",
    [
        *(source(lesson) for lesson in LESSONS),
        *sorted((TOP / "samples/common").glob("*.h")),
    ],
    ids=lambda file: str(file.name),
)
def test_every_launch_is_checked(file: Path) -> None:
    """The statement after a launch asks for its error."""
    text = re.sub(r"//.*", "", file.read_text())
    statements = [part.strip() for part in re.split(r"[;{}]", text)]
    for launch, after in itertools.pairwise(statements):
        if "<<<" in launch:
            asks = r"CUDA_CHECK\(cudaGetLastError\(\)\)"
            keeps = r"(const )?cudaError_t code = cudaGetLastError\(\)"  # a fault
            assert re.fullmatch(f"{asks}|{keeps}", after), launch


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_cuda_call_of_a_lesson_is_looked_at(lesson: str) -> None:
    """A statement that begins with a CUDA call ignores the result of the call."""
    allowed = {"cudaGetLastError"}  # clears an error on purpose
    text = re.sub(r"//.*", "", source(lesson).read_text())
    for statement in re.split(r"[;{}]", text):
        found = re.match(r"\s*(?:DRIVER\()?(cu[A-Z]\w+|cuda[A-Z]\w+)\)?\(", statement)
        assert not found or found[1] in allowed, statement


@pytest.mark.skipif("IPCLAB_CUDA_INCLUDE" not in os.environ, reason="no build")
def test_the_driver_gives_the_form_of_a_function_that_the_header_declares() -> None:
    """A look-up by name returns the newest form of a function, which may have other
    parameters than the form in the header.
    """
    folder = Path(os.environ["IPCLAB_CUDA_INCLUDE"])
    header = (folder / "cuda.h").read_text()
    forms: dict[str, tuple[int, int]] = {}  # the newest: version, parameters
    pattern = r"\(CUDAAPI \*PFN_(cu\w+?)_v(\d+)\)\(([^)]*)\)"
    for name, version, given in re.findall(
        pattern, (folder / "cudaTypedefs.h").read_text()
    ):
        forms[name] = max(forms.get(name, (0, 0)), (int(version), count(given)))
    assert forms["cuCtxSynchronize"][1] == 1  # 0 in the form of the header
    used = set()
    for top in ("samples", "conformance", "harness"):
        for file in (TOP / top).rglob("*.[ch]*"):
            if file.suffix in {".h", ".cc", ".cu"}:
                used |= set(
                    re.findall(r"\bDRIVER(?:_CALL)?\((cu\w+)\)", file.read_text())
                )
    assert len(used) > 50
    for name in used & set(forms):
        # A macro may rename the function, or declare it by another name.
        renamed = re.search(rf"#define\s+{name}\s+(?:__CUDA_API_\w+\()?(\w+)", header)
        other = re.search(rf"#define\s+(\w+)\s+{name}\s", header)
        names = [renamed and renamed[1], name, other and other[1]]
        found = (
            re.search(rf"CUDAAPI {x}\(([^)]*)\)", header)
            for x in names
            if x is not None
        )
        declared = next(filter(None, found), None)
        assert declared and count(declared[1]) == forms[name][1], name


def count(parameters: str) -> int:
    """How many parameters a C function has."""
    return 0 if parameters.strip() in {"", "void"} else parameters.count(",") + 1


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_list_of_lessons_has_it(lesson: str) -> None:
    link = f"[{lesson}]({lesson}/{topic(lesson)}.cu)"
    assert link in (TOP / "samples/README.md").read_text()


def test_common_headers_stay_small() -> None:
    headers = sorted((TOP / "samples/common").iterdir())
    names = [
        "channel",
        "check",
        "data",
        "fabric",
        "gate",
        "named_socket",
        "pool",
        "require",
        "roles",
        "toolkit",
        "vmm",
    ]
    assert [h.name for h in headers] == [f"{name}.h" for name in names]
    assert sum(len(h.read_text().splitlines()) for h in headers) <= 1080


def test_every_test_judges_a_row() -> None:
    for file in MIRRORS:
        lesson, text = file.parent.name, file.read_text()
        tests = re.split(r"^TEST\(", text, flags=re.MULTILINE)[1:]
        assert tests
        for test in tests:
            rows = COVERS.findall(test)
            assert len(rows) == 1, f"{lesson}: {test.splitlines()[0]} covers {rows}"
            assert rows[0] in ROWS, f"{lesson}: {rows[0]} is no row of the catalogue"
            assert lesson in ROWS[rows[0]]["lessons"], f"{rows[0]} is not of {lesson}"


# Calls whose effects stay in the process after the role, and calls that measure what
# other roles change.
FRESH = re.compile(
    r"\b(free_memory|still_held|leaves_nothing|cudaDeviceReset|setrlimit|setenv"
    r"|unshare)\b"
)


def wrongly_shared(text: str, last: bool = False) -> str:
    """Why a TEST may not share its processes; empty if the TEST may share them, or if
    it does not share them. in_new_process() marks a role that may not get a used
    process. If the TEST is the `last` of its program, no later test gets its processes.
    """
    if "Scenario::kShared" not in text or ".in_new_process()" in text:
        return ""
    kind = ROWS[COVERS.findall(text)[0]]["kind"]
    if kind in ("OBSERVE", "UNDEF") and ".may_end_by(" in text and not last:
        return f"what is left behind by a role of kind {kind} that may die is not known"
    if wrong := FRESH.search(text):
        return f"{wrong.group()} is not for processes that others have used"
    return ""


@pytest.mark.parametrize("file", MIRRORS, ids=lambda file: file.stem)
def test_who_shares_processes_may(file: Path) -> None:
    tests = re.split(r"^(?=TEST\()", file.read_text(), flags=re.MULTILINE)[1:]
    bodies = [test.partition("\n}\n")[0] for test in tests]
    found = {
        x.splitlines()[0]: why
        for x in bodies
        if (why := wrongly_shared(x, last=x is bodies[-1]))
    }
    assert found == {}


def test_who_may_not_is_told() -> None:
    shared = 'covers("LMEM-01"); Scenario scenario(Scenario::kShared);'
    assert wrongly_shared(shared) == ""
    assert "free_memory" in wrongly_shared(f"{shared} free_memory();")
    crashes = f"{shared} .may_end_by(SIGSEGV)".replace("LMEM-01", "LMEM-22")
    assert "OBSERVE" in wrongly_shared(crashes)
    assert wrongly_shared(crashes, last=True) == ""
    assert wrongly_shared(f"{crashes}.in_new_process();") == ""
    assert wrongly_shared('covers("LMEM-22"); Scenario scenario;') == ""


def foreign_includes(lesson: str, text: str) -> list[str]:
    """The folders of other lessons from which a test includes a file."""
    found = re.findall(r'#include "(?:samples|conformance)/(\d\w*)/', text)
    return [folder for folder in found if folder != lesson]


@pytest.mark.parametrize("file", MIRRORS, ids=lambda file: file.stem)
def test_a_test_depends_on_no_other_lesson(file: Path) -> None:
    """Or else `ipclab mutants --resume` would not see that the test has changed."""
    assert foreign_includes(file.parent.name, file.read_text()) == []


def test_includes_of_other_lessons_are_found() -> None:
    text = '#include "samples/64_mps/daemon.h"'
    assert foreign_includes("64_mps", text) == []
    assert foreign_includes("63_exporter_dies", text) == ["64_mps"]


@pytest.mark.parametrize("file", MIRRORS, ids=lambda file: file.stem)
def test_no_test_is_longer_than_a_screen(file: Path) -> None:
    """A TEST has at most 60 lines; a longer TEST needs a function for a role."""
    long = {
        name: lines
        for name, lines in lengths_of_tests(file.read_text()).items()
        if lines > 60
    }
    assert long == {}


def test_the_length_of_a_test_is_counted_with_its_frame() -> None:
    text = "// why\nTEST(A, B) {\n  one();\n}\n\nTEST(A,\n     C) {\n}\n"
    assert lengths_of_tests(text) == {"A, B": 3, "A, C": 3}


def lengths_of_tests(text: str) -> dict[str, int]:
    """How many lines each TEST of a file has, from TEST to its closing brace."""
    found = re.finditer(r"^TEST\((.*?)\) \{\n.*?^\}$", text, re.MULTILINE | re.DOTALL)
    return {re.sub(r"\s+", " ", x[1]): x[0].count("\n") + 1 for x in found}


def told_in_rooms(conformance: Path) -> set[tuple[str, str, str]]:
    """Folder, `Suite.Name` and row of each test that has a paragraph."""
    found = set()
    for row in requirements.document(conformance)["rows"]:
        for name in row["tests"]:
            folder, _, test = name.rpartition("/")
            found.add((folder or row["lessons"][0], test, row["id"]))
    return found


def in_sources(conformance: Path) -> set[tuple[str, str, str]]:
    """The same of each test that covers a row."""
    found = set()
    for name, row in rules.read_tests(conformance):
        _, folder, test = name.split(".", 2)
        found.add((folder, test, row))
    return found


def test_every_test_has_its_paragraph_and_every_paragraph_its_test() -> None:
    told, tests = told_in_rooms(TOP / "conformance"), in_sources(TOP / "conformance")
    assert tests - told == set(), "a test has no paragraph in the rows.json of its row"
    assert told - tests == set(), "a paragraph has no test that covers its row"


def test_a_test_without_a_paragraph_is_found(tmp_path: Path) -> None:
    room = tmp_path / "01_one"
    room.mkdir()
    (tmp_path / requirements.SHARED).write_text('{"groups": {"A": "A"}}')
    test = 'TEST(Suite, Name) {\n  covers("A-01");\n}\n'
    (room / "one_test.cu").write_text(test + test.replace("Name", "Other"))
    tests = {"Suite.Name": "x", "02_two/Suite.Gone": "x"}
    row = {"id": "A-01", "statement": "x", "kind": "MUST", "tests": tests}
    (room / requirements.ROOM).write_text(json.dumps({"rows": [row]}))
    told, found = told_in_rooms(tmp_path), in_sources(tmp_path)
    assert found - told == {("01_one", "Suite.Other", "A-01")}
    assert told - found == {("02_two", "Suite.Gone", "A-01")}


def test_a_row_lives_beside_its_first_test() -> None:
    """No test in an earlier folder covers the row."""
    for row in ROWS.values():
        room, *further = row["lessons"]
        others = [name.rpartition("/")[0] for name in row["tests"]]
        assert "" in others, f"{row['id']} has no test in {room}"
        assert {x for x in others if x} <= set(further), row["id"]
        assert all(room < x for x in others if x), f"{row['id']} lives in {room}"


def test_rows_are_whole() -> None:
    for row in ROWS.values():
        assert row["kind"] in CATALOGUE["kinds"]
        assert row["source"] and row["tests"]
        assert set(row["lessons"]) <= set(LESSONS)


# Words that only the authors of the catalogue would understand.
PRIVATE = re.compile(
    r"\b[EI]\d?\b|\b\dP\dG\b|->|\u2192|\b(PASS|FAIL|REPORT|TEACH|SKIP|LIFTED)\b"
)


# A paragraph speaks of its own test; another test is called by its name.
COUNTED = re.compile(
    r"\b(second|third|fourth|fifth|further|another|other|more) tests?\b|\bboth tests\b"
)


def test_rows_are_written_in_sentences() -> None:
    for name, row in ROWS.items():
        for text in (row["statement"], *row["tests"].values()):
            assert not PRIVATE.search(text), name
            assert not COUNTED.search(text), name
            assert text.endswith((".", "?", ".)")), name


def imported(module: Path) -> Iterator[str]:
    """The modules of the runner that a module imports, also inside functions."""
    tree = ast.parse(module.read_text())
    only_types = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for part in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in only_types:
            yield from (f"{node.module}.{x.name}" for x in node.names)
            yield str(node.module)


def test_the_runner_has_no_circle() -> None:
    """A module may import those below it, and no module that needs it."""
    source = TOP / "harness/runner/src"
    modules = {
        ".".join(x.relative_to(source).with_suffix("").parts): x
        for x in source.rglob("*.py")
        if x.stem != "__init__"
    }
    needs = {name: modules.keys() & set(imported(x)) for name, x in modules.items()}
    assert needs["ipclab.ctest"] == {"ipclab.errors", "ipclab.packed"}
    graphlib.TopologicalSorter(needs).prepare()


def test_a_retired_id_never_comes_back() -> None:
    retired = [row["id"] for row in CATALOGUE["retired"]]
    assert len(retired) == len(set(retired))
    assert not set(retired) & set(ROWS)
    assert all(row["statement"] and row["became"] for row in CATALOGUE["retired"])


def test_nobody_synchronises_by_sleeping() -> None:
    pattern = re.compile(r"\b(usleep|nanosleep|sleep_for|sleep)\s*\(")
    for folder in ("samples", "conformance"):
        for file in (TOP / folder).rglob("*.cu"):
            assert not pattern.search(file.read_text()), file
