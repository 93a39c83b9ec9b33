"""How a lesson is built with the line of its header, and what a lesson says if its
toolkit or its driver is too old. test_try_it.py builds all lessons.

If ci/toolkit has installed the newest toolkit and this machine has no driver, these
tests use the nvcc of that toolkit. On a machine with a driver they do not use it,
because the driver may be too old for it. The build of all lessons by CMake uses the
oldest toolkit.

SPDX-License-Identifier: Apache-2.0
"""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from ipclab import model
from test_repository import LESSONS, TOP, source, topic


def build_line(lesson: str) -> str:
    """The nvcc line of the lesson's header; a second line is indented further."""
    text = source(lesson).read_text().split("\n#include", 1)[0]
    found = re.search(r"^// (nvcc .*(?:\n//   .*)*)$", text, re.MULTILINE)
    assert found, f"{lesson}: no nvcc line in the header"
    return found[1].replace("\n//", "")


def profile(lesson: str) -> str:
    """The machine that the model has to simulate for the lesson."""
    call = (TOP / "samples" / lesson / "CMakeLists.txt").read_text()
    if named := re.search(r"\bPROFILE ([a-z0-9.-]+)", call):
        return named[1]
    return "two-gpus" if re.search(r"\bGPUS 2\b", call) else "one-gpu"


def toolkit(lesson: str) -> str:
    """The oldest toolkit that has the lesson's functions; empty for 12.0."""
    call = (TOP / "samples" / lesson / "CMakeLists.txt").read_text()
    named = re.search(r"\bTOOLKIT ([\d.]+)", call)
    return named[1] if named else ""


NEWER = [lesson for lesson in LESSONS if toolkit(lesson)]
# A program built with CUDA 13 meets no driver before 13: its runtime refuses it.
NEWER_THAN_13 = [lesson for lesson in NEWER if toolkit(lesson).startswith("13.")]


def has_toolkit(lesson: str, environment: dict[str, str]) -> bool:
    """Whether the nvcc of this environment has the lesson's functions."""
    told = subprocess.run(
        ["nvcc", "--version"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    release = re.search(r"release (\d+)\.(\d+)", told.stdout)
    assert release, told.stdout
    wanted = tuple(map(int, (toolkit(lesson) or "12.0").split(".")))
    return tuple(map(int, release.groups())) >= wanted


def with_nvcc() -> dict[str, str]:
    """The environment of a build. If the newest toolkit's nvcc is installed and the
    machine has no driver, PATH begins with its folder.
    """
    folder = Path(os.environ.get("IPCLAB_NEWEST_INCLUDE", "/nowhere")).parent / "bin"
    if not (folder / "nvcc").exists() or Path("/dev/nvidiactl").exists():
        return dict(os.environ)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def build(lesson: str, program: Path, environment: dict[str, str]) -> None:
    """Builds a lesson as its header says."""
    line = build_line(lesson)
    assert f"samples/{lesson}/{topic(lesson)}.cu" in line
    built = subprocess.run(
        [*shlex.split(line), "-o", str(program)],
        cwd=TOP,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert built.returncode == 0, built.stderr


def run(
    program: Path, machine: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a lesson, on this machine or on a machine of the model."""
    return subprocess.run(
        [program],
        env={**os.environ, **(machine or {})},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("lesson", NEWER)
def test_with_an_older_toolkit_a_lesson_says_which_it_needs(
    lesson: str, tmp_path: Path
) -> None:
    environment = dict(os.environ)
    if has_toolkit(lesson, environment):
        pytest.skip("the nvcc on PATH is new enough")
    program = tmp_path / "a.out"
    build(lesson, program, environment)
    ran = run(program)
    wanted = f"SKIP: build this lesson with CUDA Toolkit {toolkit(lesson)}\n"
    assert (ran.returncode, ran.stdout) == (77, wanted)


@pytest.mark.skipif("IPCLAB_MODEL" not in os.environ, reason="no build")
@pytest.mark.parametrize("lesson", NEWER_THAN_13)
def test_with_an_older_driver_a_lesson_says_which_it_needs(
    lesson: str, tmp_path: Path
) -> None:
    if not has_toolkit(lesson, with_nvcc()):
        pytest.skip(f"no nvcc of CUDA {toolkit(lesson)} here: ci/setup --toolkit 13.5")
    program = tmp_path / "a.out"
    build(lesson, program, with_nvcc())
    folder = Path(os.environ["IPCLAB_MODEL"])
    ran = run(program, model.environment(folder, "two-gpus"))
    wanted = f"SKIP: needs a driver of CUDA {toolkit(lesson)}\n"
    assert (ran.returncode, ran.stdout) == (77, wanted)
