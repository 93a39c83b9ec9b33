"""A fresh clone answers in a minute: what needs no package and no build, what the
command builds, and what it says about a build that is moved or not complete."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import SOURCE, Build
from ipclab import cli, engines, hardware, packed, report, rules, summary
from ipclab.commands import fleet
from ipclab.records import Row

TOP = Path(__file__).resolve().parents[3]
ALONE = ("explain", "rules", "findings")  # these commands need Python and nothing else


# --- explain and rules --------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["explain", "201"], "CUDA_ERROR_INVALID_CONTEXT"),
        (["explain"], "cudaErrorMemoryAllocation"),
        (["rules"], "LMEM-08"),
        (["rules", "lmem-08"], "ReferenceCount.ASecondOpenReturnsTheSamePointer"),
        (["findings", "12"], "cudaMemPoolTrimTo with SIZE_MAX"),
        (["--help"], "my program fails"),
        (["explian"], "did you mean explain?"),
    ],
)
def test_python_is_enough(words: list[str], told: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-m", "ipclab", *words],  # -S: no packages
        cwd=tmp_path,
        env={"PYTHONPATH": str(SOURCE), "PATH": "/nowhere"},
        capture_output=True,
        text=True,
    )
    assert told in done.stdout + done.stderr
    assert done.returncode == (2 if words == ["explian"] else 0)


def test_without_packages_another_command_cannot_start() -> None:
    """This shows that -S hides the packages."""
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-m", "ipclab", "doctor"],
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
    )
    assert "ModuleNotFoundError" in done.stderr


def test_the_sources_have_every_test_with_its_row() -> None:
    files = (TOP / "conformance").glob("*/*_test.cu")
    written = sum(len(re.findall(r"^TEST\(", x.read_text(), re.M)) for x in files)
    assert len(dict(rules.read_tests(TOP / "conformance"))) == written > 400


def test_rules_of_a_build_are_those_of_its_source(build: Build) -> None:
    build.written()
    told = build.ipclab("rules", "--build", "build", "LMEM-01").stdout
    assert "conformance.01_legacy_memory.Suite.Name  not in the last run" in told


def test_a_row_that_no_gpu_has_judged_says_so(build: Build) -> None:
    build.written()
    words = ("rules", "--build", "build")
    assert hardware.ON_MODEL in build.ipclab(*words).stdout
    assert hardware.ON_MODEL in build.ipclab(*words, "LMEM-01").stdout
    judged = build.source / "conformance" / hardware.NAME
    judged.write_text('{"judged": ["LMEM-01"]}')
    assert hardware.ON_MODEL not in build.ipclab(*words, "LMEM-01").stdout
    model = {"backend": "model", "requirements": {"LMEM-01": {"kind": "MUST"}}}
    assert report._unseen(model, frozenset()).keys() == {"LMEM-01"}
    assert not report._unseen(model, frozenset({"LMEM-01"}))
    assert not report._unseen({**model, "backend": "cuda"}, frozenset())


def test_faults_are_known_from_the_library_or_from_their_declarations(
    build: Build,
) -> None:
    build.faults({"name": "bad", "rows": ["LMEM-01"]})
    words = ("rules", "--build", "build", "LMEM-01")
    assert "bad: is wrong" in build.ipclab(*words).stdout
    shutil.rmtree(build.folder / "faults")
    declared = build.source / "conformance/01_legacy_memory/faults.cc"
    declared.parent.mkdir(parents=True, exist_ok=True)
    declared.write_text(
        'FAULTS {\n  fault("worse", {"LMEM-01"}, "is worse").on({kOpen}, lost);\n}\n'
    )
    told = build.ipclab(*words).stdout
    assert "worse: is worse" in told and "bad" not in told


# --- the list of commands -----------------------------------------------------------


def test_help_lists_every_command_once_in_a_group() -> None:
    names = [name for group in cli.GROUPS.values() for name in group]
    text = cli._parser().format_help()
    assert len(names) == len(set(names))
    for name in names:
        assert len(re.findall(rf"^    {name}\b", text, re.M)) == 1, name
    [commands] = (
        x.choices for x in cli._parser()._actions if x.dest == "command" and x.choices
    )
    assert sorted(commands) == sorted(names)


def test_the_script_installs_packages_for_every_command_that_needs_them() -> None:
    text = (TOP / "ci/ipclab").read_text()
    found = re.search(r"case \$command in\n(.*?)\)\n", text, re.S)
    assert found
    names = {name for group in cli.GROUPS.values() for name in group}
    assert set(re.findall(r"\w+", found[1])) == names - set(ALONE)


def test_every_engine_is_an_option() -> None:
    assert sorted(fleet.ENGINES) == sorted(engines.ENGINES)


@pytest.mark.parametrize(
    ("word", "told"), [("docter", "did you mean doctor?"), ("fly", "the commands: ")]
)
def test_a_mistyped_command(build: Build, word: str, told: str) -> None:
    done = build.ipclab(word)
    assert done.returncode == 2
    assert f"no command '{word}'; {told}" in done.stdout


def test_the_wheel_names_its_own_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {"test": "Suite.Name", "requirement": "LMEM-01"}
    row = Row("conformance.Suite.Name", "violates", "violates", "", record, [record])
    assert summary.next_step(row).startswith("ci/ipclab rules LMEM-01; ci/ipclab run")
    (tmp_path / packed.LIST).write_text("[]")
    monkeypatch.setattr(packed, "SUITE", tmp_path)
    assert summary.next_step(row).startswith("ipclab rules LMEM-01; ipclab run")


def test_no_text_of_the_package_names_a_script_of_the_source_tree() -> None:
    """`packed.command()` knows the name; only comments for developers may have it."""
    for path in SOURCE.glob("ipclab/**/*.py"):
        code = re.sub(r'"""(?:.|\n)*?"""|#.*', "", path.read_text())
        if path.name != "packed.py":
            assert not re.search(r"\bci/(?!Containerfile)\w", code), path.name


# --- a folder of results brings no modules -------------------------------------------


def test_a_module_in_the_current_folder_is_not_loaded(tmp_path: Path) -> None:
    for name in ("json", "argparse", "importlib"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('loaded')\n")
    words = ["explain", "201"]
    done = subprocess.run(
        [TOP / "ci/ipclab", *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "loaded" not in done.stdout + done.stderr


def test_the_runner_never_starts_python_in_the_current_folder() -> None:
    for path in SOURCE.glob("ipclab/**/*.py"):
        assert not re.search(r'sys\.executable,\s*"-m"', path.read_text()), path


# --- a build that is moved or not complete -------------------------------------------


def cache(build: Build, made: Path) -> None:
    """Let the build say that it was made in this folder."""
    with (build.folder / "CMakeCache.txt").open("a") as stream:
        stream.write(f"CMAKE_CACHEFILE_DIR:INTERNAL={made}\n")


def test_a_moved_build(build: Build) -> None:
    build.conformance("record()")
    cache(build, build.root / "before")
    for command in ("run", "doctor"):
        done = build.ipclab(command, "--build", "build")
        assert done.returncode == 2
        assert done.stdout == (
            f"ipclab: build: was built as {build.root}/before, and a build cannot be "
            "moved: remove it, and build again\n"
        )
    (build.root / "before").symlink_to(build.root)
    (build.folder / "CMakeCache.txt").write_text(
        f"CMAKE_HOME_DIRECTORY:INTERNAL={build.source}\n"
    )
    cache(build, build.root / "before/build")  # another path to the same folder
    assert build.run().code == 0


def test_a_build_without_some_programs(build: Build) -> None:
    build.conformance("record()")
    build.raw(
        'add_test(conformance.62_dies.LIST "")\n'
        "set_tests_properties(conformance.62_dies.LIST PROPERTIES "
        'LABELS "conformance;62_dies;gpu0" TIMEOUT 10)\n'
    )
    done = build.ipclab("run", "--build", "build", "--results", "out")
    assert done.returncode == 2
    assert done.stdout == (
        "ipclab: build: the build is not complete: 1 of 2 tests and lists of tests "
        "have no program (first: conformance.62_dies.LIST); build it with: "
        "cmake --build build\n"
    )
    assert not (build.root / "out").exists()
    assert build.run("-k", "LMEM-01").code == 0
    selected = build.ipclab("run", "--build", "build", "-k", "62_dies")
    assert selected.returncode != 0
    assert "the build is not complete: 1 of 1" in selected.stdout
    assert "could not be judged" not in selected.stdout


# --- what the script builds ----------------------------------------------------------

CMAKE = """\
#!/bin/sh
echo "$*" >>"$LOG"
[ "$1" = --build ] || exit 0
[ -z "$FAILS" ] || { echo FAILED: a.o; echo "a.cc:1: error: no such thing"; exit 1; }
mkdir -p build/run/harness/scenario
cd build/run/harness/scenario
printf '#!/bin/sh\\necho {\\\\"backend\\\\":\\\\"none\\\\"}\\n' >probe
chmod +x probe
"""


class Clone:
    """The scripts of a fresh clone; its CMake only writes down its arguments."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "cmake.log"
        (root / "ci").mkdir(parents=True)
        for name in ("ipclab", "common.sh"):
            shutil.copy(TOP / "ci" / name, root / "ci")
        (root / "harness").mkdir()
        (root / "harness/runner").symlink_to(TOP / "harness/runner")
        for lesson in ("01_legacy_memory", "30_vmm_fd"):
            (root / "samples" / lesson).mkdir(parents=True)
        for name, text in {
            "ci/setup": "#!/bin/sh\n",
            "tools/cmake": CMAKE,
            "tools/ldconfig": "#!/bin/sh\necho $DRIVER\n",
        }.items():
            path = root / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)
        python = root / "tools/python3"
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)

    def ipclab(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Call the script."""
        self.log.write_text("")
        return subprocess.run(
            [self.root / "ci/ipclab", *words],
            cwd=self.root,
            env={
                "PATH": f"{self.root}/tools:/usr/bin:/bin",
                "LOG": str(self.log),
                "PYTHONDONTWRITEBYTECODE": "1",
                **variables,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    @property
    def built(self) -> list[str]:
        """The targets of each build."""
        return re.findall(r"^--build .*--target (.*) -- ", self.log.read_text(), re.M)


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    """A fresh clone."""
    return Clone(tmp_path / "clone")


MODEL = "ipclab_model_cudart"


@pytest.mark.parametrize(
    ("words", "driver", "targets"),
    [
        (["doctor"], "", ["probe"]),
        (["doctor", "--profile", "one-gpu"], "", [f"probe {MODEL}"]),
        (["sample", "1"], "", [f"probe legacy_memory {MODEL}"]),
        (["sample", "vmm_fd", "--backend", "cuda"], "", ["probe vmm_fd"]),
        # A driver without a GPU: only the probe can say this.
        (["sample", "01"], "libcuda.so.1", ["probe legacy_memory", MODEL]),
        (["sample", "99"], "", [f"probe {MODEL}"]),
        (["trace", "--", "sample", "01"], "", [f"probe harness/trace/all {MODEL}"]),
        (["model", "true"], "", [f"probe harness/model/all {MODEL}"]),
        (["sample", "01", "--build", "other"], "", []),
        (["doctor", "--machine", "facts.json"], "", []),
        (["trace", "--read", "folder"], "", []),
        (["sample", "--help"], "", []),
        (["explain", "201"], "", []),
        (["rules"], "", []),
        (["docter"], "", []),
        (["run"], "", []),
    ],
)
def test_a_command_builds_what_it_needs(
    clone: Clone, words: list[str], driver: str, targets: list[str]
) -> None:
    done = clone.ipclab(*words, DRIVER=driver)
    assert clone.built == targets, done.stderr
    assert ("building what" in done.stderr) == bool(targets)
    assert "building" not in done.stdout  # a program may read the output


def test_what_is_there_is_not_built_again(clone: Clone) -> None:
    clone.ipclab("doctor")
    assert clone.built == ["probe"]
    clone.ipclab("doctor")
    assert clone.built == []


def test_the_first_build_is_quick_and_a_whole_build_stays_as_it_is(
    clone: Clone,
) -> None:
    clone.ipclab("doctor")
    assert "-DIPCLAB_QUICK=ON" in clone.log.read_text()
    shutil.rmtree(clone.root / "build/run")
    (clone.root / "build/run").mkdir()
    whole = (
        f"IPCLAB_QUICK:BOOL=OFF\nCMAKE_CACHEFILE_DIR:INTERNAL={clone.root}/build/run\n"
    )
    (clone.root / "build/run/CMakeCache.txt").write_text(whole)
    clone.ipclab("doctor")
    assert clone.built == ["probe"] and "QUICK" not in clone.log.read_text()


def test_a_build_that_fails_ends_the_command(clone: Clone) -> None:
    done = clone.ipclab("sample", "01", FAILS="yes")
    assert done.returncode == 3
    told = done.stderr.splitlines()
    assert told[-2:] == [
        "a.cc:1: error: no such thing",
        "ipclab: the build failed; its whole output: build/run.log",
    ]
    assert "FAILED" not in done.stderr  # it is in the log
    assert done.stdout == ""


def test_a_copied_checkout_builds_again(clone: Clone) -> None:
    (clone.root / "build/run").mkdir(parents=True)
    (clone.root / "build/run/CMakeCache.txt").write_text(
        "CMAKE_CACHEFILE_DIR:INTERNAL=/elsewhere/build/run\n"
    )
    told = "build/run was built as /elsewhere/build/run; it is removed and built again"
    assert told in clone.ipclab("doctor").stderr
    assert not (clone.root / "build/run/CMakeCache.txt").exists()
    assert clone.built == ["probe"]


def test_a_build_in_the_current_folder_is_used(clone: Clone, tmp_path: Path) -> None:
    (tmp_path / "build/run").mkdir(parents=True)
    subprocess.run(
        [clone.root / "ci/ipclab", "doctor"],
        cwd=tmp_path,
        env={"PATH": f"{clone.root}/tools:/usr/bin:/bin", "LOG": str(clone.log)},
        capture_output=True,
    )
    assert not clone.log.exists()


def test_presets_of_whole_builds_are_not_quick() -> None:
    presets = json.loads((TOP / "CMakePresets.json").read_text())["configurePresets"]
    [run] = (x for x in presets if x["name"] == "run")
    assert run["cacheVariables"]["IPCLAB_QUICK"] == "OFF"
