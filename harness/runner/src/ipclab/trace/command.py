"""`ipclab trace`: record a program, show it, say what is wrong with it."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ipclab import model, reader, results
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
    folder = request.folder or results.default_folder(top="traces")
    if request.command:
        code = _record(out, request, folder)
        found = _judge(out, request, folder, silenced, None)
        return 1 if found or (request.check and code) else code
    try:
        # A call takes five times what the reader estimates for its line.
        return _judge(out, request, folder, silenced, reader.MEMORY // 5)
    except (UsageError, HarnessError):
        raise
    except Exception as error:  # calls that no program can make
        reason = f"its calls cannot be replayed ({type(error).__name__})"
        raise UsageError(f"{folder}: {reason}; is it damaged?") from None


def _judge(
    out: Console,
    request: Request,
    folder: Path,
    silenced: list[findings.Suppression],
    memory: int | None,
) -> int:
    """Replay a trace, draw it and say what was found. With --check, returns 1 if
    something was found or a part of the trace is missing.
    """
    story = replay(files.read(folder, memory))
    counted, covered = findings.split(story.findings, silenced)
    _draw(folder, story, counted)
    _say(out, folder, story, counted, covered)
    return int(request.check and bool(counted or story.trace.incomplete))


def print_variables(request: Request) -> int:
    """Print the variables with which a program writes its trace into the folder.

    A container, a service or mpirun may start the program. Raises UsageError if the
    request has no folder.
    """
    if request.folder is None:
        raise UsageError("name a folder for the trace with --out")
    results.make_folder(request.folder, "name another folder with --out")
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
    page.write(folder, story, counted)
    perfetto.write(folder / "trace.perfetto.json", story, counted)


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
    missing = story.trace.incomplete
    for line in missing:
        out.print(f"not complete: {reader.plain(line)}", markup=False, highlight=False)
    nothing = "nothing found in what is there" if missing else "nothing found"
    told = f"{len(counted)} findings" if counted else nothing
    if covered:
        told += f", {len(covered)} suppressed"
    out.print(f"{told}: {folder / 'trace.html'}", highlight=False, markup=False)
