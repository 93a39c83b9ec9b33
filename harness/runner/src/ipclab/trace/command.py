"""`ipclab trace`: record a program, show it, say what is wrong with it."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import shlex
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ipclab import model, reader, results
from ipclab.errors import HarnessError, UsageError
from ipclab.trace import files, findings, live, page, perfetto, recording, stacks
from ipclab.trace.files import when
from ipclab.trace.findings import Finding
from ipclab.trace.story import Story, replay

SHOWN = 3  # findings of one kind; the page has all
NOTHING = 3  # exit code: nothing was found, and the trace does not prove it
EMPTY = (
    "no process of this trace has called CUDA, or no call could be recorded; "
    "--allow-empty accepts this"
)


@dataclass(frozen=True)
class Request:
    """The command line."""

    build: Path
    command: Sequence[str]  # empty: read `folder` again
    folder: Path | None
    backend: str  # auto, cuda or model
    profile: str | None
    check: bool
    allow_empty: bool  # a trace without CUDA is no error
    suppressions: Sequence[Path]
    live: bool = False  # show what happens while the program runs
    stacks: bool = False  # record the callers of each call


def run(out: Console, request: Request) -> int:
    """Record, judge and draw; returns the exit code of `ipclab trace`.

    This is the exit code of the program. With --check it is 1 if something was found or
    the program failed. With --check or without a program it is NOTHING if nothing was
    found in a trace that is empty or incomplete: that proves nothing. Raises UsageError
    or HarnessError if there is no trace.
    """
    silenced = [x for path in request.suppressions for x in findings.suppressions(path)]
    folder = request.folder or results.default_folder(top="traces")
    if request.command:
        code = _record(out, request, folder, silenced)
        found = _judge(out, request, folder, silenced, None)
        if not request.check:
            return code
        return found if found else int(bool(code))
    try:
        # A call takes five times what the reader estimates for its line.
        found = _judge(out, request, folder, silenced, reader.MEMORY // 5)
        return found if request.check or found == NOTHING else 0
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
    """Replay a trace, draw it and say what was found. Returns 1 if something was found,
    NOTHING if nothing was found but the trace is empty or incomplete, and 0 otherwise.
    """
    with _progress(out):
        story = replay(files.read(folder, memory))
        counted, covered = findings.split(story.findings, silenced)
        counted = stacks.located(sorted(counted, key=lambda x: x.rank))
        _draw(folder, story, counted)
    missing = list(story.trace.incomplete)
    if not any(x.recorder for x in story.trace.processes) and not request.allow_empty:
        missing.insert(0, EMPTY)
    _say(out, folder, story, counted, covered, missing)
    return 1 if counted else NOTHING if missing else 0


@contextlib.contextmanager
def _progress(out: Console) -> Iterator[None]:
    """Say every two seconds that a long trace is being read."""
    began = time.monotonic()
    over = threading.Event()

    def tell() -> None:
        while not over.wait(2):
            seconds = time.monotonic() - began
            out.print(f"reading the trace, {seconds:.0f} s", highlight=False)

    threading.Thread(target=tell, daemon=True).start()
    try:
        yield
    finally:
        over.set()


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
    wanted = recording.Request(
        [], request.folder, libraries, environment, on_model, request.stacks
    )
    for name, value in recording.variables(wanted).items():
        print(f"export {name}={shlex.quote(value)}", flush=True)
    return 0


def _record(
    out: Console,
    request: Request,
    folder: Path,
    silenced: Sequence[findings.Suppression],
) -> int:
    libraries = recording.libraries(request.build)
    on_model, environment = _backend(request)
    out.print(
        f"trace on {'the reference model' if on_model else 'the CUDA of this machine'}"
        f" in {folder}",
        highlight=False,
    )
    wanted = recording.Request(
        [model.find_program(request.command[0]), *request.command[1:]],
        folder,
        libraries,
        environment,
        on_model,
        request.stacks,
    )
    if request.live:
        return live.record(out, wanted, silenced)
    return recording.record(
        wanted,
        recording.Progress(
            folder, lambda text: out.print(f"recording, {text}", highlight=False)
        ),
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
    missing: list[str],
) -> None:
    for line in missing:
        out.print(f"not complete: {reader.plain(line)}", markup=False, style="bold")
    began = story.trace.processes[0].began if story.trace.processes else 0
    cuda = [process for process in story.trace.processes if process.recorder]
    imports = sum(len(handle.imports) for handle in story.handles)
    out.print(
        f"{len(cuda)} of {_count(len(story.trace.processes), 'process')} used CUDA, "
        f"{_count(len(story.handles), 'export')}, {_count(imports, 'import')} matched, "
        f"{len(story.unmatched)} not",
        highlight=False,
    )
    for line in _checkpoints(story, began):
        out.print(line, highlight=False)
    for same in _grouped(counted):
        _say_group(out, same, began)
    nothing = "nothing judged" if not cuda else "nothing found"
    if missing and cuda:
        nothing = "nothing found in what is there"
    told = _count(len(counted), "finding") if counted else nothing
    if covered:
        told += f", {len(covered)} suppressed"
    out.print(f"{told}: {folder / 'trace.html'}", highlight=False, markup=False)


def _checkpoints(story: Story, began: int) -> list[str]:
    """When memory was shared: drivers before 610 do not support a checkpoint of a
    process that shares memory. Empty if none was shared.
    """
    begins: list[int] = []
    ends: list[int] = []
    sharing = set()
    for memory in story.memories:
        begins += [when(handle.made) for handle in memory.exports]
        if memory.exports:
            sharing.add(memory.owner)
            ends.append(when(memory.freed) if memory.freed else memory.owner.ended)
    for opening in story.openings:
        sharing.add(opening.process)
        begins += [when(call) for call in opening.opens]
        ends.append(opening.process.ended if opening.open else when(opening.closes[-1]))
    if not begins or not ends:
        return []
    first, last = ((at - began) / 1e9 for at in (min(begins), max(ends)))
    return [
        f"{_count(len(sharing), 'process')} shared memory from {first:.3f} s to "
        f"{last:.3f} s: with a driver before 610, checkpoint them before or after that "
        "(meanwhile the checkpoint may be accepted, and the restore then fails)"
    ]


def _count(number: int, what: str) -> str:
    """1 finding, 2 findings, 3 processes."""
    ending = "es" if what.endswith("s") else "s"
    return f"{number} {what if number == 1 else what + ending}"


def _grouped(found: list[Finding]) -> list[list[Finding]]:
    """The findings in their order, those of one rule with one advice together."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for x in found:
        groups.setdefault((x.rule, x.requirement, x.advice), []).append(x)
    return list(groups.values())


def _say_group(out: Console, same: list[Finding], began: int) -> None:
    times = f", {len(same)} times" if len(same) > 1 else ""
    first = same[0]
    out.print(
        f"{first.rule} ({first.requirement}){times}",
        style="bold",
        highlight=False,
        markup=False,
    )
    places: dict[tuple[str, ...], list[Finding]] = {}  # one of each place
    for x in same:
        places.setdefault(x.places or (x.text,), []).append(x)
    shown = [x[0] for x in places.values()][:SHOWN]
    for x in shown:
        at = (x.at - began) / 1e6
        out.print(
            f"  {x.process.name} {x.process.number} after {at:.3f} ms: {x.text}",
            markup=False,
            highlight=False,
        )
        for place in x.places:
            out.print(f"    {reader.plain(place)}", markup=False, highlight=False)
    if len(same) > len(shown):
        where = "here" if len(places) == 1 else "at these places and others"
        out.print(
            f"  … and {len(same) - len(shown)} more {where}",
            markup=False,
            highlight=False,
        )
    out.print(f"  do: {first.advice}", markup=False, highlight=False, style="dim")
