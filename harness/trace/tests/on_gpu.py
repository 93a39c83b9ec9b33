"""Tests the recorder on a machine with a GPU, in three minutes, and prints figures.

    on_gpu.py FOLDER [--only STEP …] [--others PROGRAM …]

Every trace and figures.json are in FOLDER. After a failed step the program continues;
then its exit code is 1. It also runs on the reference model, for development. --others
names programs that other people wrote, such as NVIDIA's samples. Their findings are
printed and do not count as failures.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "runner" / "src")]

from traced import (  # noqa: E402
    BUILD,
    COST,
    ON_GPU,
    PROGRAMS,
    ROOT,
    Traced,
    cases,
    killed,
    plain_environment,
    trace,
)  # fmt: skip

from ipclab.trace import findings, recording  # noqa: E402

JOBS = min(8, os.cpu_count() or 1)
SUPPRESSED = HERE.parent / "lessons.supp"


def programs(folder: Path) -> dict[str, Any]:
    """The small programs: every mistake is found, and nothing in corrected versions."""
    jobs = [(name, which) for name in cases() for which in ("right", "wrong")]
    with ThreadPoolExecutor(JOBS) as pool:
        made = list(
            pool.map(lambda job: trace(folder / ".".join(job), [PROGRAMS, *job]), jobs)
        )
    wrong, skipped = [], []
    for (name, which), traced in zip(jobs, made, strict=True):
        if ON_GPU and traced.code == 77:  # it needs more GPUs
            skipped.append(f"{name} {which}")
            continue
        rule = {name.partition(".")[0]} if which == "wrong" else set()
        if traced.rules != rule or traced.code != 0:
            wrong.append(f"{name} {which}: exit {traced.code}, {sorted(traced.rules)}")
            print(traced.output[-1500:])
    return {"programs": len(jobs), "skipped": skipped, "failed": wrong}


def lessons(folder: Path) -> dict[str, Any]:
    """Each lesson: only mistakes on purpose are found, and all imports are matched."""
    names = sorted(x.name for x in (ROOT / "samples").glob("[0-9]*_*"))

    def one(name: str) -> Traced:
        program = BUILD / "samples" / name / name.partition("_")[2]
        return trace(folder / name, [program], "--suppress", str(SUPPRESSED))

    def alone(name: str) -> bool:  # the lesson measures the memory of the device
        return "ALONE" in (ROOT / "samples" / name / "CMakeLists.txt").read_text()

    names.sort(key=alone)
    together = [name for name in names if not alone(name)]
    with ThreadPoolExecutor(JOBS) as pool:
        made = list(pool.map(one, together))
    made += map(one, names[len(together) :])
    failed, skipped = [], []
    for name, traced in zip(names, made, strict=True):
        if traced.code == 77:
            skipped.append(name)
            continue
        unmatched = traced.document.get("unmatched_imports", -1)
        told = [
            f"{x['rule']}: {x['text']}" for x in traced.document.get("findings", [])
        ]
        if traced.code or unmatched or told:
            failed.append(f"{name}: exit {traced.code}, {unmatched} unmatched, {told}")
    return {"lessons": len(names), "skipped": skipped, "failed": failed}


def cost(folder: Path) -> dict[str, Any]:
    """Measure launches and the exchange of lesson 11, alternately with and without a
    trace.
    """
    launches, rounds = (100_000, 2000) if ON_GPU else (2000, 200)
    seen: dict[str, list[float]] = {}
    for turn in range(3):
        for what, count in (("launches", launches), ("exchange", rounds)):
            plain = subprocess.run(
                [COST, what, str(count)], env=plain_environment(),
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            seen.setdefault(f"{what} without", []).append(float(plain.stdout))
            place = folder / f"{what}{turn}"
            ended = _recorded(place, [str(COST), what, str(count)])
            seen.setdefault(f"{what} with", []).append(float(ended))
    medians = {name: statistics.median(values) for name, values in seen.items()}
    ratio = medians["exchange with"] / medians["exchange without"]
    more = medians["launches with"] - medians["launches without"]
    failed = []
    if ON_GPU and ratio > 1.10:
        failed.append(f"the exchange takes {ratio:.3f} of the time without")
    if ON_GPU and more > 2:
        failed.append(f"a launch takes {more:.2f} us more")
    return {"us": seen, "exchange ratio": ratio, "launch more us": more,
            "failed": failed}  # fmt: skip


def _recorded(folder: Path, command: list[str]) -> str:
    """The output of a program that writes a trace."""
    folder.mkdir(parents=True)
    request = recording.Request(
        [], folder, BUILD / "trace", plain_environment(), not ON_GPU
    )
    environment = {**os.environ, **recording.variables(request)}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout


def size(folder: Path) -> dict[str, Any]:
    """A million calls: the size of the trace, and the time to read and draw it."""
    count = 1_000_000 if ON_GPU else 20_000
    began = time.monotonic()
    traced = trace(folder / "million", [COST, "launches", str(count)], seconds=170)
    took = time.monotonic() - began
    written = sum(x.stat().st_size for x in (folder / "million").glob("*.trace"))
    page = (folder / "million" / "trace.html").stat().st_size
    failed = [] if written < 100 * count and traced.code == 0 else ["too large"]
    return {"calls": count, "trace MB": written / 1e6, "page MB": page / 1e6,
            "all seconds": took, "failed": failed}  # fmt: skip


def kills(folder: Path) -> dict[str, Any]:
    """SIGKILL at 200 random moments: every call that had returned is in the trace."""
    count = 200 if ON_GPU else 10

    def one(number: int) -> tuple[int, str]:
        place = folder / str(number)
        kept, wrong = killed(place, number)
        shutil.rmtree(place)
        return kept, f"{number}: {wrong}" if wrong else ""

    with ThreadPoolExecutor(JOBS) as pool:
        told = list(pool.map(one, range(count)))
    entries = [kept for kept, _ in told]
    return {"kills": count, "entries kept": [min(entries), max(entries)],
            "failed": [wrong for _, wrong in told if wrong]}  # fmt: skip


def static_runtime(folder: Path) -> dict[str, Any]:
    """Lesson 01 with the static runtime: CUPTI records the unchanged program."""
    if not ON_GPU:
        return {"skipped": "needs a GPU", "failed": []}
    folder.mkdir(parents=True)
    program = folder / "static"
    source = ROOT / "samples" / "01_legacy_memory" / "legacy_memory.cu"
    subprocess.run(["nvcc", "-cudart", "static", "-o", program, source], check=True)
    traced = trace(folder / "trace", [program])
    imports = [y for x in traced.document.get("handles", []) for y in x["imports"]]
    good = traced.code == 0 and len(imports) == 1
    return {"imports": imports, "failed": [] if good else [traced.output[-2000:]]}


def pytorch(folder: Path) -> dict[str, Any]:
    """Two processes of PyTorch that share a tensor, if PyTorch is installed."""
    if not ON_GPU or importlib.util.find_spec("torch") is None:
        return {"skipped": "needs a GPU and PyTorch", "failed": []}
    program = [sys.executable, str(HERE / "share_tensor.py")]
    good = trace(folder / "good", program)
    early = trace(folder / "early", [*program, "early"])
    told = {
        name: [f"{x['rule']}: {x['text']}" for x in traced.document.get("findings", [])]
        for name, traced in (("good", good), ("early", early))
    }
    handles = len(good.document.get("handles", []))
    failed = []
    if good.code or good.rules or not handles:
        failed.append(f"good: exit {good.code}, {good.output[-2000:]}")
    if "exporter-ended-while-open" not in early.rules:
        failed.append(f"early: exit {early.code}, {early.output[-2000:]}")
    return {"handles": handles, "findings": told, "failed": failed}


def nccl(folder: Path) -> dict[str, Any]:
    """NCCL between two processes, with descriptors and with legacy handles."""
    if not ON_GPU or importlib.util.find_spec("torch") is None or _gpus() < 2:
        return {"skipped": "needs two GPUs and PyTorch", "failed": []}
    ways = {"descriptors": {"NCCL_CUMEM_ENABLE": "1"},
            "legacy": {"NCCL_CUMEM_ENABLE": "0"}}  # fmt: skip
    told: dict[str, Any] = {"failed": []}
    for name, environment in ways.items():
        meet = folder / f"meet.{name}"
        meet.mkdir(parents=True)
        command = [sys.executable, str(HERE / "nccl_ranks.py"), str(meet)]
        settings = [f"{key}={value}" for key, value in environment.items()]
        traced = trace(folder / name, ["env", *settings, *command])
        told[name] = _told(traced)
        if traced.code or not told[name]["imports"] or told[name]["unmatched"]:
            told["failed"].append(
                f"{name}: exit {traced.code}, {traced.output[-2000:]}"
            )
    return told


def others(folder: Path) -> dict[str, Any]:
    """Programs that other people wrote: what they share, and what is found in them."""
    told: dict[str, Any] = {"failed": []}
    for program in OTHERS:
        traced = trace(folder / program.name, [program])
        told[program.name] = _told(traced)
        if traced.code or not told[program.name]["imports"]:
            told["failed"].append(f"{program.name}: {traced.output[-2000:]}")
    return told


def _told(traced: Traced) -> dict[str, Any]:
    handles = traced.document.get("handles", [])
    return {
        "exit": traced.code,
        "handles": len(handles),
        "imports": sum(len(x["imports"]) for x in handles),
        "unmatched": traced.document.get("unmatched_imports", -1),
        "findings": [
            f"{x['rule']}: {x['text']}" for x in traced.document.get("findings", [])
        ],
    }


def _gpus() -> int:
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*"))) or len(
        list(Path("/dev").glob("nvidia[0-9]*"))
    )


OTHERS: list[Path] = []
STEPS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "static_runtime": static_runtime,
    "programs": programs,
    "lessons": lessons,
    "cost": cost,
    "size": size,
    "kills": kills,
    "pytorch": pytorch,
    "nccl": nccl,
    "others": others,
}


def main() -> int:
    """Run the steps; return 1 if a step failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--others", nargs="*", type=Path, default=[])
    options = parser.parse_args()
    OTHERS.extend(path.resolve() for path in options.others)
    findings.suppressions(SUPPRESSED)
    figures: dict[str, Any] = {}
    for name in options.only:
        began = time.monotonic()
        try:
            figures[name] = STEPS[name](options.folder / name)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            figures[name] = {"failed": [f"{type(error).__name__}: {error}"]}
        figures[name]["seconds"] = round(time.monotonic() - began, 1)
        state = "FAILED" if figures[name]["failed"] else "ok    "
        print(f"{state} {name}: {json.dumps(figures[name])}", flush=True)
    (options.folder / "figures.json").write_text(json.dumps(figures, indent=1))
    return int(any(step["failed"] for step in figures.values()))


if __name__ == "__main__":
    sys.exit(main())
