"""Read CTest's list, the only list of tests (harness/README.md, section 1)."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ipclab import packed
from ipclab.errors import HarnessError, UsageError

LISTING = 300  # seconds
SUITES = ("sample", "conformance", "probe", "harness", "docs")
FILTER = "--gtest_filter="
REQUIREMENT = re.compile(r"[A-Z][A-Z0-9]*-[0-9]+")


@dataclass(frozen=True)
class Case:
    """One test of CTest's list."""

    name: str
    command: tuple[str, ...]
    labels: tuple[str, ...]
    timeout: float  # seconds
    folder: str  # working directory
    skip_code: int
    suite: str
    lesson: str | None
    gpus: int  # how many the test needs
    alone: bool  # no other test may use its GPUs meanwhile
    requirement: str | None
    shared: bool = False  # may share processes with other such tests
    second_gpu: bool = False  # also judges a second GPU if there is one

    @property
    def visible_gpus(self) -> int:
        """How many GPUs the test sees, if the machine has that many."""
        return max(self.gpus, 2) if self.second_gpu else self.gpus

    @property
    def test(self) -> str:
        """`Suite.Name` of a conformance test; for any other test its name without the
        suite, such as `01_legacy_memory`.
        """
        if self.suite == "conformance" and self.lesson:
            return self.name.removeprefix(f"conformance.{self.lesson}.")
        return self.name.removeprefix(f"{self.suite}.")


def read(build: Path) -> list[Case]:
    """All tests of the build folder, or of a packed suite.

    Raises UsageError if there is no build or no ctest. Raises HarnessError if ctest
    prints no list, or, with the test's name, if a test does not follow the contract.
    """
    if (listed := packed.tests(build)) is not None:
        return [_case(build, test) for test in listed]
    if not (build / "CTestTestfile.cmake").is_file():
        raise _no_build(build)
    _refuse_moved(build)
    if shutil.which("ctest") is None:
        raise UsageError("ctest is not in PATH; install CMake 3.25 or newer")
    try:
        with _place_to_list(build) as folder:
            listing = subprocess.run(
                ["ctest", "--show-only=json-v1"],
                cwd=folder,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=LISTING,
            )
    except subprocess.TimeoutExpired:
        raise HarnessError(
            f"{build}: ctest --show-only does not end within {LISTING} s; a program "
            "that lists its tests hangs"
        ) from None
    try:
        tests = json.loads(listing.stdout)["tests"]
    except (ValueError, KeyError, TypeError):
        said = (listing.stderr or listing.stdout).strip().splitlines()
        raise HarnessError(
            f"{build}: ctest --show-only printed no list: "
            f"{said[0] if said else 'nothing at all'}"
        ) from None
    return [_case(build, test) for test in tests]


@contextlib.contextmanager
def _place_to_list(build: Path) -> Iterator[Path]:
    """A folder in which ctest lists the tests of the build folder.

    ctest writes a log even if it only lists the tests. So if we may not write into the
    build folder, ctest runs in a folder of our own that includes the build.
    """
    logs = build / "Testing/Temporary"
    if os.access(logs if logs.is_dir() else build, os.W_OK):
        yield build
        return
    with TemporaryDirectory(prefix="ipclab-ctest-") as own:
        file = Path(own, "CTestTestfile.cmake")
        file.write_text(f'subdirs("{build.resolve()}")\n', encoding="utf-8")
        yield Path(own)


def together(cases: Sequence[Case]) -> tuple[str, ...]:
    """The command that starts a program once for several of its tests.

    The commands of the tests differ only in GoogleTest's filter, and a filter can have
    many names. With this command one referee process runs all the tests. When a role
    has reached its end, the referee can use the role's process for a role of a later
    test.
    """
    names = ":".join(case.test for case in cases)
    return tuple(
        f"{FILTER}{names}" if word.startswith(FILTER) else word
        for word in cases[0].command
    )


def without_filter(case: Case) -> tuple[str, ...]:
    """The command without GoogleTest's filter: equal for all tests of one program."""
    return tuple(word for word in case.command if not word.startswith(FILTER))


def source_folder(build: Path) -> Path:
    """The source tree that the build folder was made from (CMakeCache.txt).

    For a packed suite, the folder with the files that the runner reads. Raises
    UsageError if there is no build, and HarnessError if CMakeCache.txt does not say it.
    """
    if (kept := packed.source(build)) is not None:
        return kept
    cache = build / "CMakeCache.txt"
    if not cache.is_file():
        raise _no_build(build)
    _refuse_moved(build)
    if source := _cached(build, "CMAKE_HOME_DIRECTORY"):
        return Path(source)
    raise HarnessError(f"{cache}: does not contain the path of the source tree")


def incomplete(build: Path, cases: Sequence[Case]) -> str | None:
    """What is wrong if programs of these tests are not built; None if all are there."""
    missing = [case.name for case in cases if not case.command]
    if not missing:
        return None
    return (
        f"{build}: the build is not complete: {len(missing)} of {len(cases)} tests and "
        f"lists of tests have no program (first: {missing[0]}); "
        f"{packed.remedy(build)}"
    )


def _refuse_moved(build: Path) -> None:
    """Raise UsageError if the build folder was made at another path.

    Its files contain the old path. If that path leads to the same folder, as a mount
    may do, everything works.
    """
    made = _cached(build, "CMAKE_CACHEFILE_DIR")
    if made is None or os.path.realpath(made) == os.path.realpath(build):
        return
    with contextlib.suppress(OSError):
        if Path(made).samefile(build):
            return
    raise UsageError(
        f"{build}: was built as {made}, and a build cannot be moved: remove it, and "
        "build again"
    )


def _cached(build: Path, name: str) -> str | None:
    """The value of a variable in CMakeCache.txt; None if it is not there."""
    try:
        text = (build / "CMakeCache.txt").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(rf"^{name}:\w+=(.+)$", text, re.MULTILINE)
    return found[1] if found else None


def _no_build(build: Path) -> UsageError:
    return UsageError(
        f"{build}: no build here; make one with: "
        f"cmake -S . -B {build} -G Ninja && cmake --build {build}"
    )


def _case(build: Path, test: dict[str, Any]) -> Case:
    name = str(test.get("name", "?"))
    properties = {p["name"]: p["value"] for p in test.get("properties", [])}
    labels = tuple(str(label) for label in properties.get("LABELS", []))
    suites = [label for label in labels if label in SUITES]
    if name.endswith("_NOT_BUILT"):  # stands for the tests of a program
        program = name.removesuffix("_NOT_BUILT")
        raise UsageError(
            f"{build}: {program} is not built; build the rest with: cmake --build "
            f"{build}"
        )
    if len(suites) != 1:
        raise HarnessError(f"{name}: needs one label of {', '.join(SUITES)}")
    if "TIMEOUT" not in properties:
        raise HarnessError(f"{name}: has no time limit (property TIMEOUT)")
    lessons = [x for x in labels if re.fullmatch(r"[0-9][0-9]_\w+", x)]
    gpus = [int(x[3:]) for x in labels if re.fullmatch(r"gpu[0-9]+", x)]
    if suites[0] in ("sample", "conformance") and (len(lessons) != 1 or len(gpus) != 1):
        raise HarnessError(f"{name}: needs its lesson's folder and gpuN as labels")
    requirements = [x for x in labels if REQUIREMENT.fullmatch(x)]
    if len(requirements) > 1:
        raise HarnessError(f"{name}: has two requirements: {', '.join(requirements)}")
    return Case(
        name=name,
        command=tuple(str(word) for word in test.get("command", [])),
        labels=labels,
        timeout=float(properties["TIMEOUT"]),
        folder=str(properties.get("WORKING_DIRECTORY", build)),
        skip_code=int(properties.get("SKIP_RETURN_CODE", 77)),
        suite=suites[0],
        lesson=lessons[0] if lessons else None,
        gpus=gpus[0] if gpus else 0,
        alone="alone" in labels,
        shared="shared" in labels,
        second_gpu="second_gpu" in labels,
        requirement=requirements[0] if requirements else None,
    )
