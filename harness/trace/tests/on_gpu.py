"""Tests the recorder on a machine with a GPU, in less than 150 s on 16 cores, and
prints each figure in one line at the end.

    on_gpu.py FOLDER [--only STEP …] [--others PROGRAM …]

Every trace and figures.json are in FOLDER. After a failed step the program continues;
then its exit code is 1. It also runs on the reference model, for development. --others
names programs that other people wrote, such as NVIDIA's samples, or a program of UCX.
Their findings are printed and do not count as failures; read whether each is true.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
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

JOBS = min(16, os.cpu_count() or 1)
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
    ran = len(jobs) - len(skipped)
    figure = f"programs: {ran - len(wrong)} of {ran} right, {len(skipped)} skipped"
    return {"programs": len(jobs), "skipped": skipped, "failed": wrong,
            "figures": [figure]}  # fmt: skip


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
    ran = len(names) - len(skipped)
    figure = f"lessons: {ran - len(failed)} of {ran} right, {len(skipped)} skipped"
    return {"lessons": len(names), "skipped": skipped, "failed": failed,
            "figures": [figure]}  # fmt: skip


def cost(folder: Path) -> dict[str, Any]:
    """Measure launches and the exchange of lesson 11, alternately without a trace, with
    one, and launches also with stacks. The fastest of some turns counts: so what else
    runs on the machine is left out.
    """
    launches, rounds, turns = (100_000, 20_000, 5) if ON_GPU else (2000, 200, 3)
    ways = [("launches", launches, False), ("launches", launches, True),
            ("exchange", rounds, False)]  # fmt: skip
    seen: dict[str, list[float]] = {}
    for turn in range(turns):
        for what, count, stacks in ways:
            command = [str(COST), what, str(count)]
            if not stacks:
                plain = subprocess.run(
                    command, env=plain_environment(),
                    capture_output=True, text=True, check=True,
                )  # fmt: skip
                seen.setdefault(f"{what} without", []).append(float(plain.stdout))
            name = f"{what} with stacks" if stacks else f"{what} with"
            took = _recorded(folder / f"{name} {turn}", command, stacks)
            seen.setdefault(name, []).append(float(took))
    best = {name: min(values) for name, values in seen.items()}
    ratio = best["exchange with"] / best["exchange without"]
    more = best["launches with"] - best["launches without"]
    stacked = best["launches with stacks"] - best["launches without"]
    failed = []
    if ON_GPU and ratio > 1.02:
        failed.append(f"the exchange takes {ratio:.3f} of the time without")
    if ON_GPU and more > 2:
        failed.append(f"a launch takes {more:.2f} us more")
    if ON_GPU and stacked > 10:
        failed.append(f"a launch with its stack takes {stacked:.2f} us more")
    return {
        "us": seen, "exchange ratio": ratio, "launch more us": more,
        "stack more us": stacked, "failed": failed,
        "figures": [
            f"launch: {more:.2f} us more (at most 2)",
            f"exchange: {ratio:.3f} of the time without a trace (at most 1.02)",
            f"stacks: {stacked:.2f} us more a call (at most 10)",
        ],
    }  # fmt: skip


def live(folder: Path) -> dict[str, Any]:
    """`--live` beside a program that launches as fast as it can: it keeps up, or says
    what it does not look at.
    """
    count = 300_000 if ON_GPU else 20_000
    traced = trace(folder / "launches", [COST, "launches", str(count)], "--live")
    took = re.findall(r"^(\d+\.\d+)$", traced.output, re.MULTILINE)
    rate = 1e6 / float(took[0]) if took else 0.0
    said = re.findall(
        r"(\d+) launches, copies and queries not looked at", traced.output
    )
    behind = re.findall(r"here, (\d+) lines behind", traced.output)
    left_out = max(map(int, said), default=0)
    failed = []
    if traced.code or not took:
        failed.append(traced.output[-2000:])
    elif ON_GPU and rate < 100_000:
        failed.append(f"only {rate:.0f} calls a second: this says nothing")
    last = int(behind[-1]) if behind else 0
    if last > count / 10:
        failed.append(f"{last} lines behind at the end")
    figure = f"live: {rate:.0f} calls a second, {left_out} of {count} said to be left "
    figure += f"out, {last} lines behind at the end"
    return {"calls a second": rate, "left out": left_out, "behind": last,
            "failed": failed, "figures": [figure]}  # fmt: skip


def _recorded(folder: Path, command: list[str], stacks: bool) -> str:
    """The output of a program that writes a trace, perhaps with stacks."""
    folder.mkdir(parents=True)
    request = recording.Request(
        [], folder, BUILD / "trace", plain_environment(), not ON_GPU, stacks
    )
    environment = {**os.environ, **recording.variables(request)}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout


def size(folder: Path) -> dict[str, Any]:
    """Many calls: the size of the trace, and the time to read and draw it."""
    count = 500_000 if ON_GPU else 20_000
    began = time.monotonic()
    traced = trace(folder / "many", [COST, "launches", str(count)], seconds=170)
    took = time.monotonic() - began
    written = sum(x.stat().st_size for x in (folder / "many").glob("*.trace"))
    page = (folder / "many" / "trace.html").stat().st_size
    failed = [] if written < 100 * count and traced.code == 0 else ["too large"]
    figure = f"size: {count} calls, {written / 1e6:.0f} MB, {took:.0f} s in all"
    return {"calls": count, "trace MB": written / 1e6, "page MB": page / 1e6,
            "all seconds": took, "failed": failed, "figures": [figure]}  # fmt: skip


def kills(folder: Path) -> dict[str, Any]:
    """SIGKILL at random moments: every call that had returned is in the trace."""
    count = 100 if ON_GPU else 10

    def one(number: int) -> tuple[int, str]:
        place = folder / str(number)
        kept, wrong = killed(place, number)
        shutil.rmtree(place)
        return kept, f"{number}: {wrong}" if wrong else ""

    with ThreadPoolExecutor(JOBS) as pool:
        told = list(pool.map(one, range(count)))
    entries = [kept for kept, _ in told]
    failed = [wrong for _, wrong in told if wrong]
    figure = f"kills: {count - len(failed)} of {count} traces have every call"
    return {"kills": count, "entries kept": [min(entries), max(entries)],
            "failed": failed, "figures": [figure]}  # fmt: skip


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
        return {"skipped": "needs a GPU and PyTorch", "failed": [],
                "figures": ["PyTorch: needs a GPU and PyTorch"]}  # fmt: skip
    program = [sys.executable, str(HERE / "share_tensor.py")]
    with ThreadPoolExecutor(2) as pool:
        made = pool.map(
            lambda x: trace(folder / x[0], [*program, *x[1:]]),
            (("good",), ("early", "early")),
        )
        good, early = made
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
    return {"handles": handles, "findings": told, "failed": failed,
            "figures": [f"PyTorch {x}: {handles} handles, findings: {told[x] or 'none'}"
                        for x in told]}  # fmt: skip


def nccl(folder: Path) -> dict[str, Any]:
    """NCCL between two processes, with descriptors and with legacy handles."""
    if not ON_GPU or importlib.util.find_spec("torch") is None or _gpus() < 2:
        return {"skipped": "needs two GPUs and PyTorch", "failed": [],
                "figures": ["NCCL: needs two GPUs and PyTorch"]}  # fmt: skip
    ways = {"descriptors": {"NCCL_CUMEM_ENABLE": "1"},
            "legacy": {"NCCL_CUMEM_ENABLE": "0"}}  # fmt: skip
    told: dict[str, Any] = {"failed": [], "figures": []}

    def one(name: str) -> Traced:
        meet = folder / f"meet.{name}"
        meet.mkdir(parents=True)
        command = [sys.executable, str(HERE / "nccl_ranks.py"), str(meet)]
        settings = [f"{key}={value}" for key, value in ways[name].items()]
        return trace(folder / name, ["env", *settings, *command])

    with ThreadPoolExecutor(len(ways)) as pool:
        made = list(pool.map(one, ways))
    for name, traced in zip(ways, made, strict=True):
        told[name] = _told(traced)
        found = told[name]["findings"] or "none"
        told["figures"].append(
            f"NCCL {name}: {told[name]['imports']} imports, findings: {found}"
        )
        if traced.code or not told[name]["imports"] or told[name]["unmatched"]:
            told["failed"].append(
                f"{name}: exit {traced.code}, {traced.output[-2000:]}"
            )
    return told


def others(folder: Path) -> dict[str, Any]:
    """Programs that other people wrote: what they share, and what is found in them."""
    told: dict[str, Any] = {"failed": [], "figures": []}
    if not any("ucx" in x.name for x in OTHERS):
        told["figures"].append("UCX: not traced; name a program of UCX with --others")
    for program in OTHERS:
        traced = trace(folder / program.name, [program])
        told[program.name] = _told(traced)
        found = told[program.name]["findings"] or "none"
        told["figures"].append(f"{program.name}: findings: {found}")
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
    "live": live,
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
    for step in figures.values():
        for line in step.get("figures", []):
            print(line)
    whole = sum(step["seconds"] for step in figures.values())
    print(f"time: {whole:.0f} s (at most 150 on 16 cores)", flush=True)
    (options.folder / "figures.json").write_text(json.dumps(figures, indent=1))
    return int(any(step["failed"] for step in figures.values()))


if __name__ == "__main__":
    sys.exit(main())
