"""Lesson 71 with real PyTorch, if there is a Python with PyTorch that sees a GPU.

SPDX-License-Identifier: Apache-2.0
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from test_repository import TOP
from test_unrelated import program

PRODUCER = TOP / "samples/71_pytorch_tensor/producer.py"
TENSORS = 1000
READY = "import torch; torch.zeros(1, device='cuda')"


def python_with_torch() -> str | None:
    """IPCLAB_TORCH_PYTHON, or the first Python here that can use a GPU."""
    wanted = os.environ.get("IPCLAB_TORCH_PYTHON")
    for python in [wanted] if wanted else [sys.executable, shutil.which("python3")]:
        if python is None:
            continue
        tried = subprocess.run(
            [python, "-c", READY], capture_output=True, timeout=120, check=False
        )
        if tried.returncode == 0:
            return python
    return None


def share(path: Path, tensors: int, **environment: str) -> tuple[int, int, str]:
    """Exit codes of producer and importer, and what both have printed."""
    python = python_with_torch()
    if python is None:
        pytest.skip("no Python here has PyTorch and sees a GPU")
    producer = subprocess.Popen(
        [python, str(PRODUCER), str(path), str(tensors)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert producer.stdout is not None
        first = producer.stdout.readline()
        assert first == f"exporter  listens at [{path}]\n", first
        importer = subprocess.run(
            [program("71_pytorch_tensor"), "--role", "importer", str(path)],
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        said, _ = producer.communicate(timeout=60)
    finally:
        producer.kill()
        producer.wait(timeout=30)
    return (
        producer.returncode,
        importer.returncode,
        said + importer.stdout + importer.stderr,
    )


def test_tensors_of_pytorch_go_both_ways(tmp_path: Path) -> None:
    ours, theirs, said = share(tmp_path / "socket", TENSORS)
    assert (ours, theirs) == (0, 0), said
    assert (
        f"has lent and borrowed {TENSORS} tensors of PyTorch: 0 wrong, "
        "0 touched outside, 0 bytes in limbo, 0 counts above 0\n"
    ) in said


def test_expandable_segments_are_refused(tmp_path: Path) -> None:
    setting = "expandable_segments:True"
    ours, theirs, said = share(
        tmp_path / "socket",
        1,
        PYTORCH_CUDA_ALLOC_CONF=setting,
        PYTORCH_ALLOC_CONF=setting,
    )
    assert ours != 0 and theirs == 1, said
    assert "importer  cannot use memory of expandable segments\n" in said


def test_without_pytorch_the_producer_says_so(tmp_path: Path) -> None:
    blocked = tmp_path / "torch.py"
    blocked.write_text("raise ImportError\n")
    ran = subprocess.run(
        [sys.executable, str(PRODUCER), str(tmp_path / "socket")],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (77, "SKIP: needs PyTorch\n"), ran.stderr
