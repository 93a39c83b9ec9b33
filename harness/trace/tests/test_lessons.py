"""Each lesson releases what it has made, and breaks rules only on purpose."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from ledger import KINDS, left, lost
from traced import BUILD, ON_GPU, ROOT, Traced, trace

from ipclab.trace import files
from ipclab.trace.findings import suppressions

LESSONS = {x["lesson"]: x for x in json.loads((BUILD / "lessons.json").read_text())}
SUPPRESSED = ROOT / "harness" / "trace" / "lessons.supp"
SKIPPED = 77
# Lessons in which a process is killed, or faults by a forbidden write, on purpose.
MEANT_TO_BE_LOST = {
    "21_suballocation_leak",  # only if a driver maps nothing beside the shared memory
    "31_vmm_access",
    "62_importer_dies",
    "63_exporter_dies",
    "74_pipeline",
    "75_unrelated_processes",
}

# The line that is removed from a copy of a lesson, and what is left because of that.
REMOVED = [
    ("01_legacy_memory", "CUDA_CHECK(cudaFree(data));", "device memory"),
    ("01_legacy_memory", "CUDA_CHECK(cudaIpcCloseMemHandle(data));", "opened handle"),
    ("10_event_handle", "CUDA_CHECK(cudaEventDestroy(event));", "event"),
    ("30_vmm_fd", "SYS_CHECK(close(fd));", "descriptor"),
    ("30_vmm_fd", "CU_CHECK(DRIVER(cuMemRelease)(memory));", "memory handle"),
    ("30_vmm_fd", "CU_CHECK(DRIVER(cuMemUnmap)(address, bytes));", "mapping"),
    ("30_vmm_fd", "CU_CHECK(DRIVER(cuMemAddressFree)(address, bytes));", "addresses"),
    ("40_stream_ordered", "CUDA_CHECK(cudaStreamDestroy(reader));", "stream"),
    ("50_pool_ipc", "CUDA_CHECK(cudaMemPoolDestroy(pool));", "pool"),
    ("06_contexts_and_apis", "CU_CHECK(DRIVER(cuCtxDestroy)(second));", "context"),
    (
        "36_logical_endpoint",
        "CU_CHECK(DRIVER(cuLogicalEndpointDestroy)(id));",
        "endpoint",
    ),
    (
        "36_logical_endpoint",
        "CU_CHECK(DRIVER(cuLogicalEndpointIdRelease)(id, 1));",
        "endpoint number",
    ),
]


def traced_lesson(lesson: str, program: Path, folder: Path) -> Traced:
    """Run a lesson under `ipclab trace`, on the machine that it needs."""
    options = ["--suppress", str(SUPPRESSED)]
    if not ON_GPU:
        options += ["--backend", "model", "--profile", LESSONS[lesson]["profile"]]
    traced = trace(folder, [program], *options)
    # A lesson skips if it was built with a toolkit that does not have its functions.
    newer = LESSONS[lesson]["toolkit"]
    if traced.code == SKIPPED and (ON_GPU or newer or lesson == "61_namespaces"):
        pytest.skip(traced.output.splitlines()[0])
    return traced


@pytest.mark.nightly(6, "lesson")
@pytest.mark.parametrize("lesson", LESSONS)
def test_nothing_is_left_at_the_end(lesson: str, tmp_path: Path) -> None:
    program = BUILD / "samples" / lesson / lesson.partition("_")[2]
    traced = traced_lesson(lesson, program, tmp_path / "trace")
    assert traced.code == 0, traced.output
    seen = files.read(traced.folder)
    gone = lost(seen)
    assert not gone or lesson in MEANT_TO_BE_LOST, traced.output
    remaining = {
        process.name: dict(things)
        for process, things in left(seen).items()
        if things and process not in gone
    }
    assert remaining == {}
    assert traced.document["findings"] == [], traced.output
    assert traced.document["unmatched_imports"] == 0


@pytest.mark.skipif(
    ON_GPU, reason="only the model's runtime answers without a call of the driver"
)
def test_a_fault_is_in_the_trace_however_it_shows(tmp_path: Path) -> None:
    """The check of the launch reports the fault, and no call of the driver follows."""
    late = (
        f'export LD_PRELOAD="$LD_PRELOAD:{BUILD}/faults/libipclab_faults.so" '
        'IPCLAB_FAULT=ok-launch-returns-late; exec "$0"'
    )
    program = BUILD / "samples/31_vmm_access/vmm_access"
    options = ["--suppress", str(SUPPRESSED), "--backend", "model"]
    traced = trace(tmp_path / "trace", ["sh", "-c", late, program], *options)
    assert (traced.code, traced.document["findings"]) == (0, []), traced.output


@pytest.mark.nightly(6, "kind")
@pytest.mark.parametrize(
    ("lesson", "line", "kind"), REMOVED, ids=[x[2].replace(" ", "-") for x in REMOVED]
)
def test_a_release_that_is_missing_is_seen(
    lesson: str, line: str, kind: str, tmp_path: Path
) -> None:
    program = build_without(lesson, line, tmp_path)
    traced = traced_lesson(lesson, program, tmp_path / "trace")
    things: Counter[str] = Counter()
    for of_process in left(files.read(traced.folder)).values():
        things += of_process
    assert things[kind] >= 1, traced.output


def test_each_kind_is_removed_once() -> None:
    assert sorted(kind for _, _, kind in REMOVED) == sorted(KINDS)


def test_suppressions_name_lessons() -> None:
    topics = {lesson.partition("_")[2] for lesson in LESSONS}
    assert {x.program for x in suppressions(SUPPRESSED)} <= topics


def build_without(lesson: str, line: str, folder: Path) -> Path:
    """Build a copy of a lesson in which the first such line is missing."""
    topic = lesson.partition("_")[2]
    shutil.copytree(ROOT / "samples" / "common", folder / "samples" / "common")
    copy = folder / "samples" / lesson / f"{topic}.cu"
    shutil.copytree(ROOT / "samples" / lesson, copy.parent)
    text = (ROOT / "samples" / lesson / copy.name).read_text("utf-8")
    assert line in text
    copy.write_text(text.replace(line, "", 1), "utf-8")
    program = folder / topic
    flags = shlex.split("nvcc -cudart shared -Wno-deprecated-gpu-targets")
    built = subprocess.run(
        [*flags, str(copy), "-o", str(program)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return program
