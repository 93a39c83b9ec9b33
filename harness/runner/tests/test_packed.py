"""A packed suite can be used in place of a build, without CTest and source tree."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import hashlib
import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from conftest import SOURCE, Build
from ipclab import packed, packing
from ipclab.errors import HarnessError, UsageError
from ipclab.learn import toolbox


@pytest.fixture
def suite(build: Build) -> Path:
    """The fake build, packed; the build itself is gone."""
    build.conformance("record()")
    build.sample("print('done')")
    build.add("harness.own", "pass", "harness")
    source = build.source / "conformance/01_legacy_memory/test.cu"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text("one")
    folder = build.root / "suite"
    (folder / "bin").mkdir(parents=True)
    listing = build.folder / "CTestTestfile.cmake"
    text = listing.read_text()
    for program in build.folder.glob("*.py"):
        target = folder / "bin" / program.stem
        target.write_text(f"#!{sys.executable} -IS\n{program.read_text()}")
        target.chmod(0o755)
        if program.stem != "harness.own":
            text = text.replace(f"{sys.executable} -IS {program}", str(target))
    listing.write_text(text)
    done = pack(build.folder, folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(": 3 tests\n")
    shutil.copytree(build.source, folder / "source")
    shutil.rmtree(build.source)
    shutil.rmtree(build.folder)
    return folder


def test_exercises_are_built_wherever_it_lies(build: Build, tmp_path: Path) -> None:
    """A packed suite has no path of the build; the runner inserts the folders later."""
    here = build.folder / "exercises"
    here.mkdir()
    commands = {
        "compile": [
            *("/usr/bin/c++", "-std=c++17", "-O0", f"-fmacro-prefix-map={here}=x"),
            *(
                "-x",
                "c++",
                f"-I{here}",
                f"-I{build.source}",
                "-isystem",
                "/cuda/include",
            ),
        ],
        "link": ["-x", "none", f"-L{here}", "-lexercise", "-L/cuda/lib", "-lcudart"],
    }
    (here / "build.json").write_text(json.dumps(commands))
    suite = tmp_path / "site/ipclab/suite"
    packing.exercises(build.folder, suite)
    text = (suite / "exercises/build.json").read_text()
    assert "/usr" not in text and "/cuda/" not in text.replace("{cuda}/", "")
    assert str(build.root) not in text and '"-std=c++17"' in text

    with pytest.raises(UsageError, match="headers of CUDA 13 are missing"):
        toolbox.placed(json.loads(text)["compile"], suite, toolkits=())
    for header in ("cuda_runtime.h", "crt/host_defines.h"):
        path = tmp_path / "site/nvidia/cu13/include" / header
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    words = toolbox.placed(json.loads(text)["compile"], suite, toolkits=())
    assert f"-I{suite}/source/samples/exercises/common" in words
    assert str(tmp_path / "site/nvidia/cu13/include") in words


def test_a_build_without_exercises(build: Build, tmp_path: Path) -> None:
    packing.exercises(build.folder, tmp_path / "suite")
    assert not (tmp_path / "suite").exists()


def pack(build: Path, suite: Path) -> subprocess.CompletedProcess[str]:
    """Makes the list as ci/package does."""
    return subprocess.run(
        [sys.executable, "-m", "ipclab.packing", str(build), str(suite)],
        env={"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )


def test_it_runs_without_ctest(
    suite: Path, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    done = build.ipclab("run", "--build", "suite", "--results", "out")
    assert done.returncode == 0, done.stdout
    document = json.loads((build.root / "out" / "run.json").read_text())
    assert document["counts"] == {"conforms": 2}
    programs = document["manifest"]["programs"]
    assert sorted(programs) == [
        "bin/conformance.01_legacy_memory.Suite.Name",
        "bin/probe",
        "bin/sample.01_legacy_memory",
    ]
    assert all(programs.values())


def test_it_may_lie_anywhere(suite: Path, build: Build) -> None:
    suite.rename(build.root / "moved")
    done = build.ipclab("run", "--build", "moved", "--results", "out")
    assert done.returncode == 0, done.stdout


def test_a_program_that_is_missing(suite: Path, build: Build) -> None:
    (suite / "bin" / "probe").unlink()
    done = build.ipclab("run", "--build", "suite", "--results", "out")
    assert done.returncode == 3
    assert "bin/probe: No such file or directory" in done.stdout


@pytest.mark.parametrize("text", ["{", "[{}]", '[{"command": []}]', "3"])
def test_a_list_that_is_damaged(suite: Path, build: Build, text: str) -> None:
    (suite / "tests.json").write_text(text)
    done = build.ipclab("run", "--build", "suite", "--results", "out")
    assert done.returncode == 3
    assert "is not a list of a packed suite" in done.stdout


def test_it_knows_its_sources(suite: Path, build: Build) -> None:
    """The suite does not need the sources: it has their digests."""
    digest = hashlib.sha256(b"one").hexdigest()
    shutil.rmtree(suite / "source/conformance/01_legacy_memory")
    found = packed.sources(suite)
    assert found and found["conformance/01_legacy_memory/test.cu"] == digest
    assert packed.sources(build.root) is None


@pytest.mark.parametrize("text", ["[]", "{", '{"a": "b"}', None])
def test_sources_that_are_damaged(suite: Path, text: str | None) -> None:
    path = suite / packed.SOURCES
    path.write_text(text) if text else path.unlink()
    with pytest.raises(HarnessError, match=r"sources\.json"):
        packed.sources(suite)


def test_nothing_to_pack(tmp_path: Path, build: Build) -> None:
    done = pack(build.folder, tmp_path)
    assert done.returncode == 1
    assert "probe" in done.stderr and "is missing" in done.stderr


DRIVERS = {  # what cuDriverGetVersion says, and which programs then run
    12000: "suite12",
    12080: "suite12",
    13000: "suite",
    13010: "suite",
    None: "suite",  # no driver: the model runs all programs
}


@pytest.fixture
def wheel(suite: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The packed suite, in a wheel that also has programs of CUDA 12."""
    older = suite.with_name("suite12")
    older.mkdir()
    for name in ("bin", packed.LIST, packed.SOURCES):
        path = suite / name
        (shutil.copytree if path.is_dir() else shutil.copy)(path, older / name)
    monkeypatch.setattr(packed, "SUITE", suite)
    monkeypatch.setattr(packed, "OLDER", older)
    return suite


@pytest.mark.parametrize("version", DRIVERS)
def test_the_newest_programs_that_the_driver_can_run(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int | None
) -> None:
    if version is not None:
        driver = tmp_path / "libcuda.so.1"
        text = f"int cuDriverGetVersion(int* v) {{ *v = {version}; return 0; }}"
        subprocess.run(
            ["cc", "-shared", "-x", "c", "-", "-o", driver],
            input=text.encode(),
            check=True,
        )
        load = ctypes.CDLL
        monkeypatch.setattr(ctypes, "CDLL", lambda _: load(str(driver)))
    else:
        monkeypatch.setattr(ctypes, "CDLL", _no_library)
    assert packed.driver_version() == (version or 0)
    assert packed.default_build().name == DRIVERS[version]


def _no_library(name: str) -> None:
    raise OSError(f"{name}: cannot open shared object file")


def test_the_programs_of_an_older_runtime_share_the_rest(
    wheel: Path, build: Build
) -> None:
    older = packed.of_runtime("12")
    assert packed.of_runtime("13") == wheel
    assert packed.source(older) == wheel / "source"
    assert packed.part(older, "model") == wheel / "model"
    assert packed.part(older, "bin") == older / "bin"
    done = build.ipclab("run", "--build", str(older), "--results", "out")
    assert done.returncode == 0, done.stdout


def test_the_wheel_takes_both_sets() -> None:
    """setuptools packs only the folders that pyproject.toml names."""
    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())
    packs = project["tool"]["setuptools"]["package-data"]["ipclab"]
    assert {f"{x.name}/**" for x in (packed.SUITE, packed.OLDER)} <= set(packs)


@pytest.mark.parametrize(
    ("major", "message"),
    [("11", "CUDA 12 and 13"), ("12", "only the wheel"), ("x", "CUDA 12 and 13")],
)
def test_a_runtime_that_is_not_there(major: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        packed.of_runtime(major)


def test_the_command_takes_a_runtime(build: Build) -> None:
    done = build.ipclab("run", "--runtime", "12")
    assert done.returncode == 2 and "only the wheel" in done.stdout
