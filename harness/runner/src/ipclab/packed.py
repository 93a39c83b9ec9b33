"""A packed suite: programs, model, catalogue and lessons, without a build folder.

    bin/         the programs of lessons, tests and probe
    model/       the reference model
    faults/      the library of faults, and the program that lists the faults
    trace/       the recorder
    exercises/   the library that exercises are linked with, and how to build them
    source/      the files of the source tree that the runner reads
    site/        the pages, if they were built
    tests.json   CTest's list, with commands relative to this folder
    sources.json the digests of the sources from which the programs were built

The wheel has a packed suite in `ipclab/suite`, with programs of CUDA 13. In
`ipclab/suite12` it has a second one, with programs of CUDA 12 for older drivers. The
second suite has only what is built with a toolkit: bin, faults, trace, and the two
lists. The rest it takes from the first. Every command that takes a build folder
(`--build`) also takes a packed suite, which needs no CTest and no source tree.
`ci/package` makes the suite with packing.py.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

from ipclab.errors import HarnessError, UsageError

LIST = "tests.json"
SOURCES = "sources.json"
SUITE = Path(__file__).parent / "suite"
OLDER = SUITE.with_name("suite12")
# The source tree. In an installed wheel, TREE is some other folder, perhaps `/`.
TREE = Path(__file__).resolve().parent.joinpath(*[".."] * 4).resolve()


def default_build() -> Path:
    """A suite of the wheel, if this is a wheel; otherwise a build of the source tree.

    Of the suites it is the newest whose programs this machine's driver can run; the
    newest of all if there is no driver. Of the builds it is build/run in the current
    folder. If the current folder has no build/run, and build/run in the source tree of
    this command is built, it is that one.
    """
    if (SUITE / LIST).is_file():
        too_old = (OLDER / LIST).is_file() and 0 < driver_version() < 13000
        return OLDER if too_old else SUITE
    here = Path("build/run")
    built = (TREE / here / "CTestTestfile.cmake").is_file()
    return TREE / here if built and not here.is_dir() else here


def of_runtime(major: str) -> Path:
    """The suite of the wheel whose programs have this major version of CUDA's runtime:
    "12" or "13".

    Raises UsageError if it is not there.
    """
    suite = {"12": OLDER, "13": SUITE}.get(major)
    if suite is None:
        raise UsageError(f"--runtime {major}: there are programs of CUDA 12 and 13")
    if not (suite / LIST).is_file():
        raise UsageError(
            f"--runtime {major}: only the wheel has programs of several runtimes; "
            "from source, build with another toolkit and name that build by --build"
        )
    return suite


def driver_version() -> int:
    """The newest version of CUDA that this machine's driver knows, such as 12020 for
    CUDA 12.2 (cuDriverGetVersion); 0 if there is no driver.
    """
    version = ctypes.c_int(0)
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return 0
    return 0 if failed else version.value


def part(build: Path, name: str) -> Path:
    """The folder `name` of a build or of a packed suite; if a suite of older programs
    does not have it, that of the suite beside it.
    """
    path = build / name
    if path.exists() or not (build / LIST).is_file():
        return path
    return build.with_name(SUITE.name) / name


def command() -> str:
    """The name of the command `ipclab`, as a person types it here."""
    return "ipclab" if (SUITE / LIST).is_file() else "ci/ipclab"


def remedy(build: Path, target: str | None = None) -> str:
    """What to do if a file of a build or of a packed suite is missing."""
    if source(build) is not None:
        return "install the wheel again"
    return f"build it with: cmake --build {build}" + (
        f" --target {target}" if target else ""
    )


def tests(build: Path) -> list[dict[str, Any]] | None:
    """The tests of a packed suite as CTest would list them; None for another folder.

    Raises HarnessError if the list is damaged or a program is missing.
    """
    path = build / LIST
    if not path.is_file():
        return None
    try:
        found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        for test in found:
            program, *rest = test["command"]
            test["command"] = [str((build / program).resolve(strict=True)), *rest]
    except OSError as error:
        raise HarnessError(f"{error.filename}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise HarnessError(f"{path}: is not a list of a packed suite") from None
    return found


def source(build: Path) -> Path | None:
    """Where a packed suite has the source tree's files; None for another folder."""
    return part(build, "source") if (build / LIST).is_file() else None


def sources(build: Path) -> dict[str, str | None] | None:
    """The digest of each source file of a packed suite (manifest.of_sources); None for
    another folder.

    Raises HarnessError if the suite does not have them.
    """
    if source(build) is None:
        return None
    path = build / SOURCES
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HarnessError(f"{path}: {error.strerror}") from None
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all("/" in name for name in found):
        raise HarnessError(f"{path}: is not a list of a packed suite")
    return found
