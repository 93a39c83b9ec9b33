"""Links to NVIDIA's reference lead where NVIDIA's own pages have their anchors.

SPDX-License-Identifier: Apache-2.0
"""

import shutil
from pathlib import Path

import pytest

from generator import cuda_tags

# Function, manual, group and digest, as in public links to docs.nvidia.com.
PUBLISHED = """
cudaIpcGetMemHandle cuda-runtime-api CUDART__DEVICE 8a37f7dfafaca652391d0758b3667539
cudaIpcOpenMemHandle cuda-runtime-api CUDART__DEVICE 01050a29fefde385b1042081ada4cde9
cudaSetDevice cuda-runtime-api CUDART__DEVICE 159587909ffa0791bbe4b40187a4c6bb
cudaMalloc cuda-runtime-api CUDART__MEMORY 37d37965bfb4803b6d4e59ff26856356
cudaMallocAsync cuda-runtime-api CUDART__MEMORY__POOLS bbf70065888d61853c047513baa14081
cudaMemPoolTrimTo cuda-runtime-api CUDART__MEMORY__POOLS 0faf526bcfffd835aa95a4514fb2f7d5
cudaGetErrorString cuda-runtime-api CUDART__ERROR 4bc9e35a618dfd0877c29c8ee45148f1
cuMemCreate cuda-driver-api CUDA__VA 899d69a862bba36449789c64b430dc7c
cuMemMap cuda-driver-api CUDA__VA ff1d395423af5c5c75375516959dae56
cuCtxDestroy cuda-driver-api CUDA__CTX 27a365aebb0eb548166309f58a1e8b8e
"""


@pytest.fixture(scope="module")
def include() -> Path:
    nvcc = shutil.which("nvcc")
    assert nvcc, "no nvcc in PATH"
    return Path(nvcc).resolve().parents[1] / "include"


@pytest.mark.parametrize("line", PUBLISHED.split("\n")[1:-1])
def test_an_anchor_is_the_published_one(line: str, include: Path) -> None:
    name, manual, group, digest = line.split()
    function = cuda_tags.functions(include)[name]
    assert function.page == f"{manual}/group__{group}.html"
    assert function.anchor == f"group__{group}_1g{digest}"
