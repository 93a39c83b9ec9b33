"""`ipclab model -- PROGRAM …`: programs that are not in this repository."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import PROBE, Build, machine
from ipclab import model

TOP = Path(__file__).resolve().parents[3]
PROGRAM = """\
#include <cstdio>
__global__ void answer(int* at) { *at = 42; }
int main() {
  int *at = nullptr, seen = 0;
  cudaMalloc(&at, sizeof seen);
  answer<<<1, 1>>>(at);
  cudaMemcpy(&seen, at, sizeof seen, cudaMemcpyDefault);
  std::printf("seen %d\\n", seen);
}
"""
# In place of NVIDIA's nvJitLink. What it links says with which options it was called.
LINKER = """\
#include <cstring>
#include <string>
static std::string options;
extern "C" {
int nvJitLinkCreate(void** handle, unsigned count, const char** all) {
  *handle = &options;
  for (unsigned k = 0; k < count; ++k) options += std::string(" ") + all[k];
  return 0;
}
int nvJitLinkAddData(void*, int, const void*, size_t, const char*) { return 0; }
int nvJitLinkComplete(void*) { return 0; }
int nvJitLinkGetLinkedPtxSize(void*, size_t* size) {
  *size = options.size() + 3;
  return 0;
}
int nvJitLinkGetLinkedPtx(void*, char* ptx) {
  std::strcpy(ptx, ("//" + options).c_str());
  return 0;
}
}
"""
LINK = """\
import ctypes, sys
front, kind, *options = sys.argv[1:]
link = ctypes.CDLL(front)
handle, size = ctypes.c_void_p(), ctypes.c_size_t()
texts = [x.encode() for x in options]
array = (ctypes.c_char_p * len(texts))(*texts)
assert link.nvJitLinkCreate(ctypes.byref(handle), len(texts), array) == 0
data = b".version 9.0" if kind == "2" else b"machine code"
assert link.nvJitLinkAddData(handle, int(kind), data, len(data), b"name") == 0
assert link.__getattr__("__nvJitLinkComplete_13_0")(handle) == 0
error = link.nvJitLinkGetLinkedCubinSize(handle, ctypes.byref(size))
if error == 0:
    image = ctypes.create_string_buffer(size.value)
    error = link.nvJitLinkGetLinkedCubin(handle, image)
    print(image.value.decode())
sys.exit(error)
"""
ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """A build folder that has the real model."""
    folder = os.environ.get("IPCLAB_MODEL")
    if folder is None:
        pytest.skip("CTest says where the model is")
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "model").symlink_to(folder)
    return tmp_path / "build"


def start(build: Build, *words: str) -> subprocess.CompletedProcess[str]:
    """`ipclab model` in a separate process, which becomes the program."""
    command = build.start("model", "--build", "build", *words)
    text, _ = command.communicate(timeout=60)
    return subprocess.CompletedProcess(words, command.returncode, text)


def compiled(folder: Path, *options: str) -> str:
    """PROGRAM, built with given options, as a user may have built it."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    source, program = folder / "answer.cu", folder / "answer"
    source.write_text(PROGRAM)
    done = subprocess.run(
        [nvcc, *options, "-o", str(program), str(source)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return str(program)


def on_model(
    build: Path,
    *command: str,
    packages: Path | None = None,
    way: tuple[str, ...] = ("model",),
) -> subprocess.CompletedProcess[str]:
    """Run a program on the model of a build, as a person does. `packages` is a folder
    with Python packages for the program.
    """
    folders = [Path(model.__file__).parents[1], *([packages] if packages else [])]
    return subprocess.run(
        [sys.executable, "-m", "ipclab", *way, "--build", build, "--", *command],
        env={**os.environ, "PYTHONPATH": ":".join(map(str, folders))},
        capture_output=True,
        text=True,
        timeout=240,
    )


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines that the model itself printed."""
    return [x for x in done.stderr.splitlines() if x.startswith("ipclab model [")]


def test_each_command_has_a_machine_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(model.MACHINE, raising=False)
    names = {model.environment(tmp_path, None)[model.MACHINE] for _ in range(10)}
    assert len(names) == 10


def test_a_command_inside_another_shares_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(model.MACHINE, "of the class")
    assert model.environment(tmp_path, None)[model.MACHINE] == "of the class"


def test_the_program_finds_the_model(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = machine(build, PROBE)
    (folder / "nvml").mkdir()
    monkeypatch.setenv("LD_LIBRARY_PATH", "/elsewhere")
    done = start(
        build, "--profile", "two-gpus", "--", sys.executable, "-c", ENVIRONMENT
    )
    assert done.returncode == 0, done.stdout
    first, line = (
        x for x in done.stdout.splitlines() if not x.startswith("ERROR: ld.so")
    )
    seen = json.loads(line)
    assert first.endswith("; says nothing about a driver")
    path = seen["LD_LIBRARY_PATH"].split(":")
    assert path == [str(folder), "/elsewhere", str(folder / "nvml")]
    assert seen["LD_PRELOAD"] == str(folder / "libcudart.so.13")
    assert (seen["IPCLAB_PROFILE"], "run " in seen[model.MACHINE]) == ("two-gpus", True)


def test_the_program_sees_files_of_pci_devices(build: Build) -> None:
    folder = machine(build, PROBE)
    library = folder / "pci" / "libipclab_pci.so"
    library.parent.mkdir()
    library.touch()
    done = start(build, "--", sys.executable, "-c", ENVIRONMENT)
    assert done.returncode == 0, done.stdout
    seen = json.loads(done.stdout.splitlines()[-1])
    assert str(library) in seen["LD_PRELOAD"].split(":")


def test_a_sanitizer_stays_the_first_library(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = machine(build, PROBE)
    library = folder / "pci" / "libipclab_pci.so"
    library.parent.mkdir()
    library.touch()
    loaded = f"libcudart.so.13 => {folder / 'libcudart.so.13'} (0x7f)\n"
    for more, wanted in (("", True), ("libasan.so.8 => /usr/libasan.so.8\n", False)):
        monkeypatch.setattr(model, "_listed", lambda *_, more=more: loaded + more)
        seen = model.for_program(folder, "any", None)
        assert (str(library) in seen.get("LD_PRELOAD", "")) == wanted


def test_its_exit_code_is_the_commands(build: Build) -> None:
    machine(build, PROBE)
    code = "import sys; sys.exit(7)"
    assert start(build, "--", sys.executable, "-c", code).returncode == 7


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "which program? ipclab model -- PROGRAM"),
        (("--",), "which program? ipclab model -- PROGRAM"),
        (("--", "no-such-program"), "no-such-program: no such program"),
    ],
)
def test_without_a_program(build: Build, words: tuple[str, ...], problem: str) -> None:
    machine(build, PROBE)
    done = start(build, *words)
    assert (done.returncode, problem in done.stdout) == (2, True), done.stdout


def test_without_a_model(build: Build) -> None:
    done = start(build, "--", "true")
    assert done.returncode == 2
    assert "no reference model here; build it with" in done.stdout


def test_a_shared_runtime_needs_no_preload(real: Path, tmp_path: Path) -> None:
    program = compiled(tmp_path, "-cudart", "shared")
    done = on_model(real, program)
    assert (done.stdout, said(done)) == ("seen 42\n", [])
    libraries = (real / "model").resolve()
    variables = {**os.environ, **model.environment(libraries, None)}
    assert model._loads(model._listed(str(program), variables), libraries)


def test_an_rpath_is_no_hindrance(real: Path, tmp_path: Path) -> None:
    program = compiled(
        tmp_path,
        *("-cudart", "shared", "-Xlinker", "--disable-new-dtags"),
        *("-Xlinker", "-rpath=/usr/local/cuda/lib64"),
    )
    done = on_model(real, program)
    assert (done.stdout, said(done)) == ("seen 42\n", [])
    # The same for a program that a script starts.
    assert on_model(real, "sh", "-c", program).stdout == "seen 42\n"
    # And under a trace.
    whole = (real / "model").resolve().parent
    if not (whole / "trace").is_dir():
        pytest.skip("no recorder: it needs CUPTI's headers")
    way = ("trace", "--backend", "model", "--out", str(tmp_path / "trace"))
    done = on_model(whole, "sh", "-c", program, way=way)
    assert "seen 42" in done.stdout, done.stderr
    assert re.search(r"1 of \d processes used CUDA", done.stdout)


def test_a_static_runtime_is_told_in_one_line(real: Path, tmp_path: Path) -> None:
    done = on_model(real, compiled(tmp_path, "-cudart", "static"))
    [line] = said(done)
    assert "brings NVIDIA's runtime: build it with '-cudart shared'" in line
    assert done.stdout == "seen 0\n"


def test_a_program_without_ptx_is_told_in_one_line(real: Path, tmp_path: Path) -> None:
    code = "-gencode=arch=compute_90,code=sm_90"
    done = on_model(real, compiled(tmp_path, "-cudart", "shared", code))
    [line] = said(done)
    assert "no PTX" in line and "build it with" in line
    assert done.stdout == "seen 0\n"


@pytest.mark.parametrize(
    ("kind", "options", "image"),
    [
        (2, ("-arch=sm_90",), ".version 9.0"),
        (3, ("-arch=sm_90", "-lto"), "// -arch=sm_90 -lto -ptx"),
        (2, ("-lto", "-ptx"), "// -lto -ptx.version 9.0"),
        (1, ("-arch=sm_90",), None),  # machine code
    ],
)
def test_nvjitlink_links_ptx(
    real: Path,
    tmp_path: Path,
    kind: int,
    options: tuple[str, ...],
    image: str | None,
) -> None:
    compiler = os.environ.get("IPCLAB_CXX") or "c++"
    library = tmp_path / "libnvJitLink.so.13"
    (tmp_path / "linker.cc").write_text(LINKER)
    build = [compiler, "-shared", "-fPIC", "-o", str(library)]
    build.append(str(tmp_path / "linker.cc"))
    subprocess.run(build, check=True, timeout=60)
    front = str(real / "model" / "nvrtc" / library.name)
    done = subprocess.run(
        [sys.executable, "-c", LINK, front, str(kind), *options],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    if image is None:
        assert done.returncode == 6 and "an input with machine code" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == image


def test_cuda_core_shares_a_buffer_and_compiles(real: Path) -> None:
    """NVIDIA's Python package, from wheels: IPC pool, IPC event, NVRTC."""
    wheels = TOP / ".venv" / "foreign"
    if not (wheels / "cuda").is_dir():
        pytest.skip("no cuda.core: ci/setup --nightly brings it")
    program = TOP / "harness" / "model" / "foreign" / "shared_buffer.py"
    done = on_model(real, sys.executable, str(program), packages=wheels)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "all data is right"
    assert said(done) == []
