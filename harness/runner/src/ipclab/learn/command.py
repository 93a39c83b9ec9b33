"""`ipclab learn`: hands out an exercise, watches its file and says what is wrong."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown
from rich.syntax import Syntax
from rich.table import Table

from ipclab import ctest
from ipclab.errors import UsageError
from ipclab.learn import exercises, lesson, paths, picture, progress, report
from ipclab.learn.check import UNANSWERED, Verdict, judge
from ipclab.learn.exercises import AS, KINDS, LEVELS, Exercise
from ipclab.learn.progress import Folder
from ipclab.learn.toolbox import Toolbox

LOOK = 0.2  # seconds between two checks of the file that is watched
KEYS = "h hint   n next   s solution   o lesson   l list   r run again   q quit"
ALONE = "self_study"  # the path if the student has chosen none


@dataclass(frozen=True)
class Request:
    """The command line."""

    build: Path
    folder: Path
    action: str
    exercise: str | None
    backend: str
    once: bool  # check once and do not watch
    show: bool  # show the solution even before the exercise has passed
    verify: bool
    report: Path | None
    path: str | None  # of paths.toml: which exercises, in which order


def run(out: Console, request: Request) -> int:
    """Run one command. Returns 0, or 1 if an exercise that was checked did not pass.

    With --report, returns 1 if a progress file is damaged. Raises UsageError for an
    exercise, folder or build that does not exist.
    """
    known = exercises.of_build(request.build)
    if request.report is not None:
        return report.run(out, request.report, known)
    folder = Folder(request.folder)
    ways = {x.name: x for x in paths.read(ctest.source_folder(request.build), known)}
    if request.path is not None:
        if request.path not in ways:
            raise UsageError(
                f"no path '{request.path}'; there are {', '.join(sorted(ways))}"
            )
        folder.choose(request.path)
    way = ways.get(folder.way or ALONE, ways[ALONE])
    known = [x for step in way.steps for x in step.exercises] + [
        x for x in known if all(x not in step.exercises for step in way.steps)
    ]
    on_way = sum(len(step.exercises) for step in way.steps)
    if request.verify:
        return _verify(out, request, folder, known)
    if request.action == "list":
        return _list(out, folder, known, on_way)
    exercise = (
        exercises.find(known, request.exercise)
        if request.exercise
        else _next(folder, known[:on_way])
    )
    if exercise is None:
        out.print(
            f"{way.title}: all {on_way} exercises are done. `{AS} --verify` runs them "
            "all again"
            + (f"; `{AS} --path {ALONE}` goes on." if way.name != ALONE else "."),
            markup=False,
        )
        return 0
    if request.action == "hint":
        return _hint(out, folder, exercise)
    if request.action == "solution":
        return _solution(out, folder, exercise, request.show)
    if request.action == "reset":
        kept = folder.reset(exercise)
        note = f"; your copy is {kept}" if kept else ""
        out.print(f"{exercise.name} is as it was handed out{note}", markup=False)
        return 0
    if request.action == "open":
        return _open(out, request.build, exercise, known)
    bench = Toolbox(request.build, request.backend)
    folder.flags(bench.options)
    if request.action == "check" or request.once or not sys.stdin.isatty():
        if request.action == "next":
            _task(out, folder, exercise, bench)
        return 0 if _check(out, bench, folder, exercise, known[:on_way]).passed else 1
    return _watch(out, bench, folder, exercise, request, known, on_way)


# --- one exercise -------------------------------------------------------------


def _next(folder: Folder, known: Sequence[Exercise]) -> Exercise | None:
    """The first exercise that has not passed; None if all have passed."""
    states = folder.read()
    for exercise in known:
        state = states.get(exercise.name)
        if state is None or state.passed is None:
            return exercise
    return None


def _task(out: Console, folder: Folder, exercise: Exercise, bench: Toolbox) -> None:
    out.rule(f"{exercise.number} {exercise.title}", characters="─")
    out.print(
        f"{KINDS[exercise.kind]}, {LEVELS[exercise.level]}, about "
        f"{exercise.minutes} minutes, lesson "
        f"{exercise.lesson[:2]}; runs on {bench.where(exercise.check.profile)}",
        style="dim",
        markup=False,
    )
    out.print(f"\n{exercise.task}\n", markup=False)
    if exercise.seen:
        out.print(f"Seen: {exercise.seen}\n", style="dim", markup=False)
    if news := folder.upgrade(exercise):
        out.print(news, style="yellow", markup=False)
    out.print(
        f"Your file: {folder.source(exercise)}",
        style="bold",
        markup=False,
        soft_wrap=True,
    )


def _check(
    out: Console,
    bench: Toolbox,
    folder: Folder,
    exercise: Exercise,
    on_way: Sequence[Exercise],
    watching: bool = False,
) -> Verdict:
    """Check the exercise, save the result and print it. If it passes, also print what
    to remember, and how many exercises of the path have passed.
    """
    source = folder.source(exercise)
    began = time.monotonic()
    # The digest of the source that was built, not of a later save.
    digest = progress.digest(source)
    verdict = judge(bench, exercise, source, folder.work)
    with folder.change(exercise) as state:
        state.last = verdict.complaint.kind if verdict.complaint else None
        if state.passed is None:
            state.runs += 1
        if verdict.passed:
            state.passed = state.passed or progress.now()
            state.digest = digest
    _say(out, exercise, verdict, time.monotonic() - began, watching)
    if verdict.passed:
        done = _passed(folder, on_way)
        out.print(f"Remember: {exercise.learned}", style="bold", markup=False)
        out.print(f"{done} of {len(on_way)} of your path.", style="dim", markup=False)
    return verdict


def _passed(folder: Folder, known: Sequence[Exercise]) -> int:
    """How many of these exercises have passed."""
    states = folder.read()
    return sum(1 for x in known if (s := states.get(x.name)) and s.passed)


def _say(
    out: Console, exercise: Exercise, verdict: Verdict, seconds: float, watching: bool
) -> None:
    complaint = verdict.complaint
    out.print()
    if verdict.output:
        out.print(verdict.output, markup=False, style="dim", highlight=False)
    drawn: list[str] = []
    if verdict.story:
        drawn = picture.lines(verdict.story, out.width, exercise.check.ignore)
    if UNANSWERED in verdict.output:
        drawn = []  # the picture would give the answers
    if drawn and (complaint is None or complaint.kind != "compile"):
        out.print()
        for line in drawn:
            out.print(
                line,
                markup=False,
                highlight=False,
                no_wrap=True,
                overflow="ellipsis",
                style="bold red" if "   <- " in line else "",
            )
    out.print()
    if complaint is None:
        out.print(
            f"{exercise.number} passes ({seconds:.1f} s)."
            + (" It also notices the wrong driver." if exercise.kind == "find" else "")
            + (
                ""
                if watching
                else f" `{AS} solution {exercise.number}` shows a solution to "
                f"compare with; `{AS}` goes on."
            ),
            style="bold green",
            markup=False,
        )
        return
    out.print(
        f"{exercise.number} does not pass yet ({seconds:.1f} s)",
        style="bold red",
        markup=False,
    )
    out.print(complaint.text, markup=False, highlight=False)
    if complaint.kind != "compile" and not watching:
        out.print(
            f"`{AS} hint {exercise.number}` helps; `{AS} open {exercise.number}` "
            f"shows lesson {exercise.lesson[:2]}.",
            style="dim",
            markup=False,
        )


def _hint(out: Console, folder: Folder, exercise: Exercise) -> int:
    folder.source(exercise)
    with folder.change(exercise) as state:
        state.hints = min(state.hints + 1, len(exercise.hints))
        shown = state.hints
    for number, hint in enumerate(exercise.hints[:shown], start=1):
        out.print(f"{number}. {hint}", markup=False, highlight=False)
    left = len(exercise.hints) - shown
    more = (
        f"{left} more {'hint' if left == 1 else 'hints'}" if left else "no more hints"
    )
    out.print(f"{exercise.number}: {more}", style="dim", markup=False)
    return 0


def _solution(out: Console, folder: Folder, exercise: Exercise, show: bool) -> int:
    with folder.change(exercise) as state:
        if state.passed is None and not show:
            raise UsageError(
                f"{exercise.name} has not passed yet: try `{AS} hint "
                f"{exercise.number}`; `{AS} solution {exercise.number} --show` shows "
                "it nevertheless"
            )
        state.shown = state.shown or state.passed is None
    for solution in exercise.solutions:
        out.print(f"{exercise.name}: {solution.what}", style="bold", markup=False)
        out.print(
            Syntax(exercise.difference(solution), "diff", background_color="default")
        )
    return 0


def site(build: Path) -> Path | None:
    """The folder with the pages of the site; None if the site was not built.

    `ci/docs` builds the site in build/dev, whatever build folder the exercises use. A
    packed suite contains the site if it was built.
    """
    places = (
        build.resolve() / "docs/html",
        ctest.source_folder(build) / "build/dev/docs/html",
        build.resolve() / "site",
    )
    return next((x for x in places if x.is_dir()), None)


def _open(
    out: Console, build: Path, exercise: Exercise, known: Sequence[Exercise]
) -> int:
    """Open the page of the lesson on a desktop. Elsewhere, or if there is no site,
    print its text. The last line is the place of the page or of the program.
    """
    number, _, topic = exercise.lesson.partition("_")
    source = ctest.source_folder(build)
    page = source / "samples" / exercise.lesson / f"{topic}.cu"
    if (pages := site(build)) is not None:
        page = pages / f"lesson_{number}.html"
    if pages and any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))):
        webbrowser.open(page.as_uri())
    elif text := lesson.markdown(source, exercise.lesson, known):
        out.print(Markdown(text))
        out.print()
    out.print(str(page), markup=False, highlight=False, soft_wrap=True)
    return 0


# --- all exercises ------------------------------------------------------------


def _list(out: Console, folder: Folder, known: Sequence[Exercise], on_way: int) -> int:
    """Print the exercises of the path in its order, then others that were begun."""
    states = folder.read()
    rows = [x for i, x in enumerate(known) if i < on_way or x.name in states]
    table = Table(box=None, pad_edge=False)
    for head in ("", "exercise", "lesson", "what to do", "level"):
        table.add_column(head)
    for head in ("minutes", "runs", "hints"):
        table.add_column(head, justify="right")
    for exercise in rows:
        state = states.get(exercise.name)
        mark, runs, hints = " ", "", ""
        if state is not None:
            mark = "✓" if state.passed else "…"
            mark += "*" if state.shown else ""
            runs, hints = str(state.runs), str(state.hints or "")
        table.add_row(
            mark,
            f"{exercise.number} {exercise.title}",
            exercise.lesson[:2],
            KINDS[exercise.kind],
            LEVELS[exercise.level],
            str(exercise.minutes),
            runs,
            hints,
        )
    out.print(table)
    if len(rows) < len(known):
        out.print(f"{len(known) - len(rows)} more exercises are not on this path")
    done = _passed(folder, known)
    left = sum(
        x.minutes
        for x in known[:on_way]
        if not ((s := states.get(x.name)) and s.passed)
    )
    note = (
        "; * with the solution shown" if any(x.shown for x in states.values()) else ""
    )
    out.print(
        f"{done} of {len(known)} passed{note}; about {left} minutes of the path are "
        f"left; {folder.path}",
        markup=False,
    )
    return 0


def _verify(
    out: Console, request: Request, folder: Folder, known: Sequence[Exercise]
) -> int:
    """Check again every exercise that counts as passed."""
    bench = Toolbox(request.build, request.backend)
    states = folder.read()
    passed = [x for x in known if (s := states.get(x.name)) and s.passed]
    if not passed:
        raise UsageError(f"{folder.path}: nothing has passed yet")
    failed = 0
    for exercise in passed:
        if not folder.has(exercise):
            answer = "its file is missing"
        else:
            source = folder.source(exercise)
            verdict = judge(bench, exercise, source, folder.work)
            complaint = verdict.complaint
            answer = complaint.seen.splitlines()[0] if complaint else ""
        failed += bool(answer)
        told = f"does not pass: {answer}" if answer else "passes"
        shown = ", solution shown" if states[exercise.name].shown else ""
        out.print(
            f"{exercise.number} {exercise.title}: {told}{shown}",
            style="red" if answer else "",
            markup=False,
            highlight=False,
        )
    out.print(
        f"{len(passed) - failed} of {len(passed)} solutions pass again, "
        f"of {len(known)} exercises; on {bench.where()}",
        style="bold",
        markup=False,
    )
    return 1 if failed else 0


# --- watching -----------------------------------------------------------------


def _watch(
    out: Console,
    bench: Toolbox,
    folder: Folder,
    exercise: Exercise,
    request: Request,
    known: Sequence[Exercise],
    on_way: int,
) -> int:
    """Check at each save until q is pressed; n goes on to the next exercise."""
    with _keys() as key:
        while True:
            _task(out, folder, exercise, bench)
            after = _watch_one(
                out, bench, folder, exercise, request, known, on_way, key
            )
            if after is None:
                return 0
            exercise = after


def _watch_one(
    out: Console,
    bench: Toolbox,
    folder: Folder,
    exercise: Exercise,
    request: Request,
    known: Sequence[Exercise],
    on_way: int,
    key: Callable[[float], str],
) -> Exercise | None:
    source = folder.source(exercise)
    seen = None
    while True:
        stamp = _stamp(source)
        if stamp != seen:
            seen = stamp
            _check(out, bench, folder, exercise, known[:on_way], watching=True)
            out.print(f"{KEYS}   (watching {source.name})", style="dim", markup=False)
        pressed = key(LOOK)
        if pressed in ("q", "\x03", "\x04"):
            return None
        if pressed == "h":
            _hint(out, folder, exercise)
        elif pressed == "l":
            _list(out, folder, known, on_way)
        elif pressed == "o":
            _open(out, request.build, exercise, known)
        elif pressed == "s":
            try:
                _solution(out, folder, exercise, show=False)
            except UsageError as error:
                out.print(str(error), markup=False)
        elif pressed == "r":
            seen = None
        elif pressed == "n":
            # First the exercises after this one, then those before it that were left
            # out.
            place = known.index(exercise)
            later = _next(folder, known[place + 1 :]) or _next(folder, known[:place])
            if later is not None:
                if known.index(exercise) < on_way <= known.index(later):
                    out.print("Your path is done. What follows is not on it.")
                return later
            out.print("There is no other exercise to do.")


def _stamp(path: Path) -> tuple[int, int] | None:
    """A value that changes at each save; None while an editor replaces the file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that waits some seconds for a key; it returns "" if no key comes."""
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def key(seconds: float) -> str:
        if not select.select([terminal], [], [], seconds)[0]:
            return ""
        return os.read(terminal, 1).decode(errors="replace") or "q"

    tty.setcbreak(terminal)
    try:
        yield key
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
