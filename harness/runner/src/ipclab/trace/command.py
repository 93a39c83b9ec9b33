"""`ipclab trace`: record a program, show it, say what is wrong with it."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from ipclab import model
from ipclab.errors import HarnessError, UsageError
from ipclab.trace import files, findings, page, perfetto, recording
from ipclab.trace.findings import Finding
from ipclab.trace.story import Story, replay


@dataclass(frozen=True)
class Request:
    """The command line."""

    build: Path
    command: Sequence[str]  # empty: read `folder` again
    folder: Path | None
    backend: str  # auto, cuda or model
    profile: str | None
    check: bool
    suppressions: Sequence[Path]


def run(out: Console, request: Request) -> int:
    """Record, judge and draw; returns the exit code of `ipclab trace`.

    This is the exit code of the program. With --check it is 1 if something was found or
    the program failed. Raises UsageError or HarnessError if there is no trace.
    """
    silenced = [x for path in request.suppressions for x in findings.suppressions(path)]
    folder = request.folder or Path("traces") / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    code = 0
    if request.command:
        code = _record(out, request, folder)
    story = replay(files.read(folder))
    counted, covered = findings.split(story.findings, silenced)
    _draw(folder, story, counted)
    _say(out, folder, story, counted, covered)
    if request.check and (counted or code):
        return 1
    return code


def print_variables(request: Request) -> int:
    """Print the variables with which a program writes its trace into the folder.

    A container, a service or mpirun may start the program. Raises UsageError if the
    request has no folder.
    """
    if request.folder is None:
        raise UsageError("name a folder for the trace with --out")
    recording.make_folder(request.folder)
    on_model, environment = _backend(request)
    libraries = recording.libraries(request.build)
    wanted = recording.Request([], request.folder, libraries, environment, on_model)
    for name, value in recording.variables(wanted).items():
        print(f"export {name}={shlex.quote(value)}", flush=True)
    return 0


def _record(out: Console, request: Request, folder: Path) -> int:
    libraries = recording.libraries(request.build)
    on_model, environment = _backend(request)
    out.print(
        f"trace on {'the reference model' if on_model else 'the CUDA of this machine'}"
        f" in {folder}",
        highlight=False,
    )
    return recording.record(
        recording.Request(
            [model.find_program(request.command[0]), *request.command[1:]],
            folder,
            libraries,
            environment,
            on_model,
        ),
        lambda text: out.print(f"recording, {text}", highlight=False),
    )


def _backend(request: Request) -> tuple[bool, dict[str, str]]:
    """Whether the program uses the model, and the variables for that."""
    wanted = request.backend
    if wanted == "auto":
        there = request.profile is None and Path("/dev/nvidiactl").exists()
        wanted = "cuda" if there else "model"
    if wanted == "cuda":
        return False, {}
    folder = model.folder(request.build)
    if not request.command:
        return True, model.environment(folder, request.profile)
    program = model.find_program(request.command[0])
    return True, model.for_program(folder, program, request.profile)


def _draw(folder: Path, story: Story, counted: list[Finding]) -> None:
    try:
        page.write(folder, story, counted)
        perfetto.write(folder / "trace.perfetto.json", story, counted)
    except OSError as error:
        raise HarnessError(f"{folder}: {error.strerror}") from None


def _say(
    out: Console,
    folder: Path,
    story: Story,
    counted: list[Finding],
    covered: list[Finding],
) -> None:
    began = story.trace.processes[0].began if story.trace.processes else 0
    for process in story.trace.processes:
        if process.problem:
            out.print(f"{process.name}: not recorded: {process.problem}", markup=False)
    cuda = [process for process in story.trace.processes if process.recorder]
    if not cuda:
        out.print(
            "No process of this trace has called CUDA, or no process could be "
            "recorded.",
            markup=False,
        )
    imports = sum(len(handle.imports) for handle in story.handles)
    out.print(
        f"{len(cuda)} of {len(story.trace.processes)} processes used CUDA, "
        f"{len(story.handles)} exports, {imports} imports matched, "
        f"{len(story.unmatched)} not",
        highlight=False,
    )
    for finding in counted:
        at = (finding.at - began) / 1e6
        out.print(
            f"{finding.rule} ({finding.requirement}), {finding.process.name} "
            f"{finding.process.number} after {at:.3f} ms",
            style="bold",
            highlight=False,
            markup=False,
        )
        out.print(f"  {finding.text}", markup=False, highlight=False)
        out.print(f"  {finding.advice}", markup=False, highlight=False, style="dim")
    told = f"{len(counted)} findings" if counted else "nothing found"
    if covered:
        told += f", {len(covered)} suppressed"
    out.print(f"{told}: {folder / 'trace.html'}", highlight=False, markup=False)
