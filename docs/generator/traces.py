"""The traces of the lessons, from which their pictures are drawn.

docs/traces/NN_topic/ is what `ipclab trace` wrote about the lesson, without the parts
that no picture needs. machine.txt names the machine. To record lessons again:

    python -m generator.traces --lessons lessons.json --build BUILD \\
        --newest BUILD [LESSON...]

This records on a GPU if there is one. A lesson that the machine cannot run is recorded
on the reference model. The program of a lesson that needs a newer toolkit comes from
the second build.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import argparse
import functools
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from generator.chapters import needs_newer_toolkit
from ipclab.errors import UsageError
from ipclab.trace import files, sequence
from ipclab.trace.files import Call
from ipclab.trace.sequence import Step
from ipclab.trace.story import Story, replay

TOP = Path(__file__).resolve().parents[2]
MACHINE = "machine.txt"
ON_MODEL = "the reference model"
MODELS_OWN = ("message", "message", "1 bytes, 1 descriptor")
SKIPPED = 77
# Most functions of the runtime have the name of the driver's function with cuda instead
# of cu. The functions in this table have other names.
RUNTIME = {
    "cuCtxSynchronize": ("cudaDeviceSynchronize",),
    "cuDevicePrimaryCtxReset": ("cudaDeviceReset",),
    "cuEventCreate": ("cudaEventCreateWithFlags", "cudaEventCreate"),
    "cuEventRecordWithFlags": ("cudaEventRecord",),
    "cuLaunchHostFunc": ("cudaLaunchHostFunc", "cudaStreamAddCallback"),
    "cuMemAlloc": ("cudaMalloc",),
    "cuMemAllocAsync": ("cudaMallocAsync",),
    "cuMemAllocFromPoolAsync": ("cudaMallocFromPoolAsync", "cudaMallocAsync"),
    "cuMemAllocManaged": ("cudaMallocManaged",),
    "cuMemAllocPitch": ("cudaMallocPitch",),
    "cuMemFree": ("cudaFree",),
    "cuMemFreeAsync": ("cudaFreeAsync", "cudaFree"),
    "cuMemcpy": ("cudaMemcpy", "cudaMemcpyAsync"),
    "cuMemcpyDtoH": ("cudaMemcpy", "cudaMemcpyAsync", "cudaMemcpyFromSymbol"),
    "cuMemcpyHtoD": ("cudaMemcpy", "cudaMemcpyAsync", "cudaMemcpyToSymbol"),
    "cuMemset": ("cudaMemset", "cudaMemsetAsync"),
    "cuStreamCreate": ("cudaStreamCreateWithFlags", "cudaStreamCreate"),
    "cuStreamCreateWithPriority": (
        "cudaStreamCreateWithPriority",
        "cudaStreamCreateWithFlags",
        "cudaStreamCreate",
    ),
}


class Missing(Exception):
    """A lesson has no trace; the text says what to do."""


@dataclass(frozen=True)
class Lesson:
    """A recorded lesson, replayed."""

    folder: str  # 01_legacy_memory
    machine: str
    story: Story

    @property
    def names(self) -> list[str]:
        """The processes, in the order in which they began."""
        return [process.name for process in self.story.trace.processes]


def read(lesson: str, top: Path = TOP / "docs/traces") -> Lesson:
    """The trace of a lesson. Raises Missing if there is none, and UsageError if the
    trace cannot be read.
    """
    folder = top / lesson
    if not (folder / MACHINE).is_file():
        raise Missing(
            f"{lesson}: no trace in docs/traces; record it: ci/docs --trace {lesson}"
        )
    machine = (folder / MACHINE).read_text("utf-8").strip()
    return Lesson(lesson, machine, replay(files.read(folder)))


def steps(lesson: Lesson, source: str) -> list[Step]:
    """The steps of a picture: the calls with the names in the lesson's source. The
    picture shows these calls even if they share nothing. Calls that the source does not
    name are left out, because the runtime makes them itself.
    """
    story = lesson.story
    story.concerns.update(
        id(entry)
        for entry in story.trace.entries
        if isinstance(entry, Call) and as_written(entry.name, source)
    )
    drawn: list[Step] = []
    for step in sequence.every_step(story, []):
        text, driver = step.text, ""
        if step.kind in ("call", "refused", "copy", "never") and text[:2] == "cu":
            text, driver = as_written(text, source), text
        if not text or step.kind == "end" or _models_own(lesson, step):
            continue
        before = next((x for x in reversed(drawn) if x.who == step.who), None)
        if before is not None and _tried_again(before, text):
            drawn.remove(before)
        if before is not None and step.detail == sequence.NOT_YET == before.detail:
            continue  # the lesson queries again and again until the work is done
        kept = step.kind in ("refused", "message") or step.detail == sequence.NOT_YET
        told = step.detail if kept else ""
        drawn.append(replace(step, text=text, detail=told, driver=driver))
    return sequence.without_rounds(drawn)


def _models_own(lesson: Lesson, step: Step) -> bool:
    """Is this a message by which the model passes the memory of a fabric handle?"""
    told = (step.kind, step.text, step.detail)
    return lesson.machine == ON_MODEL and told == MODELS_OWN


def _tried_again(before: Step, text: str) -> bool:
    """Did the runtime call without a context, create a context and call again? The
    program sees one call that succeeds."""
    no_context = before.detail == "CUDA_ERROR_INVALID_CONTEXT"
    return no_context and before.text == text


def as_written(name: str, source: str) -> str:
    """The name of a call in a source: the driver's or the runtime's; empty if the
    source has neither.

    >>> as_written("cuIpcGetMemHandle", "cudaIpcGetMemHandle(&handle, data)")
    'cudaIpcGetMemHandle'
    """
    if name.startswith("cuLaunch") and "<<<" in source:
        return name
    words = _words(source)
    for candidate in (name, *runtime(name), f"cuda{name.removeprefix('cu')}"):
        if candidate in words:
            return candidate
    return ""


def runtime(name: str) -> tuple[str, ...]:
    """The calls of the runtime that make this call of the driver, most likely first.

    >>> runtime("cuMemsetD32Async")
    ('cudaMemsetAsync', 'cudaMemset')
    """
    plain = name.removesuffix("Async") if name not in RUNTIME else name
    family = re.match("cuMem(cpy|set)", name)
    known = RUNTIME.get(plain) or RUNTIME.get(family[0] if family else "", ())
    if family and name.endswith("Async"):
        known = tuple(sorted(known, key=lambda x: not x.endswith("Async")))
    return known


@functools.cache
def _words(source: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", source))


@dataclass(frozen=True)
class Sources:
    """The source of a lesson."""

    program: str
    headers: tuple[str, str]  # the common headers, and the headers of the lesson

    @property
    def text(self) -> str:
        """The program and its headers in one text."""
        return self.program + "".join(self.headers)


def sources(lesson: str) -> Sources:
    """The program of a lesson, and what it includes."""
    program = TOP / "samples" / lesson / f"{lesson.partition('_')[2]}.cu"
    common, own = (
        "".join(path.read_text() for path in sorted(folder.glob("*.h")))
        for folder in (TOP / "samples/common", program.parent)
    )
    return Sources(program.read_text(), (common, own))


def record(lesson: Mapping[str, Any], build: Path, into: Path) -> str:
    """Trace a lesson and keep what pictures need. Returns the machine on which it
    ran. Raises Missing if the program or its recording fails; the old trace stays.
    """
    name = lesson["lesson"]
    program = build / "samples" / name / name.partition("_")[2]
    if not program.exists():
        raise Missing(f"{name}: there is no {program}: build it: ci/toolkit 13.5")
    gpu = _gpus()
    with tempfile.TemporaryDirectory(prefix="ipclab-trace-") as temporary:
        attempts = [["--backend", "cuda"]] if gpu else []
        attempts.append(["--profile", lesson["profile"]])
        for number, options in enumerate(attempts):
            folder = Path(temporary) / str(number)
            command = [
                sys.executable, "-P", "-m", "ipclab", "trace", "--build", build,
                "--out", folder, *options, "--", program,
            ]  # fmt: skip
            ended = subprocess.run(
                list(map(str, command)),
                cwd=TOP,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=300,
                check=False,
            )
            if ended.returncode == 0:
                machine = gpu if "cuda" in options else ON_MODEL
                keep(folder, into / name, machine)
                return machine
            if ended.returncode != SKIPPED:
                break
    raise Missing(f"{name}: exit {ended.returncode}\n{ended.stdout}")


def keep(folder: Path, into: Path, machine: str) -> None:
    """Copy a trace, without declarations of calls that were not made."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    for path in sorted(folder.glob("*.trace")):
        kept = _used(path.read_bytes().replace(b"\0", b"").splitlines())
        text = "".join(f"{line}\n" for line in kept).encode()
        (into / f"{path.name}.gz").write_bytes(gzip.compress(text, mtime=0))
    shutil.copy(folder / files.TRACER, into)
    (into / MACHINE).write_text(machine + "\n")


def _used(lines: list[bytes]) -> list[str]:
    documents = [json.loads(line) for line in lines]
    used = {x[4] for x in documents if isinstance(x, list)}
    used |= {x["call"] for x in documents if isinstance(x, dict) and "call" in x}
    kept = []
    for line, document in zip(lines, documents, strict=True):
        if isinstance(document, list) or document["what"] != "calls":
            kept.append(line.decode())
            continue
        for number, call in enumerate(document["calls"], start=document["first"]):
            if number in used:
                one = {"what": "calls", "first": number, "calls": [call]}
                kept.append(json.dumps(one))
    return kept


def _gpus() -> str:
    """The name of the GPUs (with their number if there are several) and the driver;
    empty without a GPU."""
    try:
        asked = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    found = asked.stdout.splitlines()
    name, _, driver = found[0].partition(", ")
    return (
        f"{len(found)} x {name}, driver {driver}"
        if len(found) > 1
        else (f"{name}, driver {driver}")
    )


def main() -> int:
    """Record lessons. Returns 1 if a lesson fails, 2 if no lesson has a given name."""
    parser = argparse.ArgumentParser(prog="generator.traces")
    parser.add_argument("--lessons", type=Path, required=True)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--newest", type=Path, required=True)
    parser.add_argument("--into", type=Path, default=TOP / "docs/traces")
    parser.add_argument("wanted", nargs="*", metavar="LESSON")
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = str(TOP / "harness/runner/src")
    lessons = json.loads(args.lessons.read_text())
    unknown = set(args.wanted) - {x["lesson"] for x in lessons}
    if unknown:
        print(f"traces: no lesson is called {', '.join(unknown)}", file=sys.stderr)
        return 2
    failed = False
    for lesson in lessons:
        if args.wanted and lesson["lesson"] not in args.wanted:
            continue
        try:
            build = args.newest if needs_newer_toolkit(lesson) else args.build
            machine = record(lesson, build, args.into)
            print(f"{lesson['lesson']}: {machine}", flush=True)
        except (Missing, UsageError) as error:
            failed = True
            print(f"traces: {error}", file=sys.stderr, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
