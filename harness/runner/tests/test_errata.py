"""Compares docs/errata.md with the compiler: the wrong forms and the right forms.

SPDX-License-Identifier: Apache-2.0
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[3]
ROW = re.compile(r"^\| [^|]+ \| `(?P<wrong>[^`]+)` \| `(?P<right>[^`]+)` \| [^|]+ \|$")
NAMES = """
#include <cuda.h>
#include <cuda_runtime.h>
#include <cstdint>
struct Statistics { cuuint64_t used; };
struct Shared { cudaMemPoolPtrExportData ptrData; };
void listing(int device, int fd, void* ptr, unsigned flags, cudaStream_t stream,
             cudaEvent_t event, cudaIpcEventHandle_t* eventHandle,
             cudaMemPool_t memPool, cudaMemPoolProps poolProps,
             CUmemAllocationProp prop, Statistics* statistics, Shared* shmem) {
#line 1 "listing"
"""


def rows() -> list[tuple[str, str]]:
    """The wrong and the right form of each line of the table."""
    lines = (TOP / "docs/errata.md").read_text().splitlines()
    table = [line for line in lines if line.startswith("| ")][2:]
    found = [ROW.match(line) for line in table]
    assert all(found), "a line of the table has another form"
    return [(row["wrong"], row["right"]) for row in found if row]


def headers() -> str:
    """The folder of cuda.h."""
    folder = os.environ.get("IPCLAB_CUDA_INCLUDE")
    if folder is None:  # pytest was started by hand
        nvcc = shutil.which("nvcc")
        assert nvcc, "no nvcc in PATH"
        folder = str(Path(nvcc).resolve().parents[1] / "include")
    return folder


def errors(line: str) -> str:
    """What the compiler says about a listing that consists of this line."""
    compiler = os.environ.get("IPCLAB_CXX", "c++")
    options = ["-std=c++17", "-Wall", "-Wno-unused", "-Werror", "-fsyntax-only"]
    compiled = subprocess.run(
        [compiler, *options, f"-isystem{headers()}", "-xc++", "-"],
        input=f"{NAMES}{line}\n}}\n",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (compiled.returncode == 0) == ("error:" not in compiled.stderr)
    return compiled.stderr


@pytest.mark.parametrize(("wrong", "right"), rows())
def test_the_wrong_line_fails_and_the_right_one_does_not(
    wrong: str, right: str
) -> None:
    assert errors(right) == ""
    assert re.search(r"^listing:[12]:.* error:", errors(wrong), re.MULTILINE)
