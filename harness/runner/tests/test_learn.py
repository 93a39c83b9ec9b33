"""Tests every exercise, and `ipclab learn` itself.

An exercise must fail as it is handed out, for the reason that its exercise.toml names.
Its solutions must pass, and its wrong solutions must fail with a message that helps.
With IPCLAB_LEARN_BACKEND=cuda all of them run on a GPU instead of the reference model.

SPDX-License-Identifier: Apache-2.0
"""

import concurrent.futures
import contextlib
import dataclasses
import errno
import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ipclab import ctest, reader
from ipclab.cli import main
from ipclab.errors import HarnessError
from ipclab.hold import Holder
from ipclab.learn import (
    ACTIONS,
    command,
    exercises,
    lesson,
    paths,
    picture,
    progress,
)
from ipclab.learn.check import WAITED, Verdict, judge
from ipclab.learn.exercises import Exercise
from ipclab.learn.progress import Folder
from ipclab.learn.toolbox import Toolbox
from test_repository import LESSONS, TOP

BUILD = (
    Path(os.environ["IPCLAB_MODEL"]).parent if "IPCLAB_MODEL" in os.environ else None
)
ALL = exercises.read(TOP)
BACKEND = os.environ.get("IPCLAB_LEARN_BACKEND", "model")
BY_NAME = {exercise.name: exercise for exercise in ALL}
SOURCES = TOP / "harness/runner/src"
LONGEST_TASK = 10  # lines

# The exercises whose pictures are tested.
PICTURED = (
    ("01_first_handle", "solution 1"),
    ("02_sent_too_early", "solution 3"),
    ("08_predict_the_count", "solution 1"),
    ("16_an_event_to_share", "solution 1"),
)

needs_build = pytest.mark.skipif(BUILD is None, reason="no build (IPCLAB_MODEL)")


def variants(exercise: Exercise) -> dict[str, str]:
    """The sources of all variants by the names of their tests."""
    found = {"handed out": exercise.source}
    for number, solution in enumerate(exercise.solutions, start=1):
        found[f"solution {number}"] = exercise.changed(solution)
    for number, wrong in enumerate(exercise.wrong, start=1):
        found[f"wrong {number}"] = exercise.changed(wrong)
    return found


CASES = [(x.name, variant) for x in ALL for variant in variants(x)]


@dataclasses.dataclass(frozen=True)
class Judged:
    """The verdict on one variant, and the time that it took."""

    verdict: Verdict
    processes: int  # of the traced run
    seconds: float


Judgements = dict[tuple[str, str], "concurrent.futures.Future[Judged]"]


class Summary:
    """What `judgements` did, printed at the end of the whole run."""

    def __init__(self, where: str, workers: int, judged: Judgements) -> None:
        self._where, self._workers, self._judged = where, workers, judged
        self._began = time.monotonic()
        self._seconds = 0.0
        for future in judged.values():
            future.add_done_callback(self._note)

    def _note(self, _: object) -> None:
        self._seconds = time.monotonic() - self._began

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> None:
        """Print how many variants were judged, and which took longest (a hook of
        pytest).
        """
        done = {
            case: future.result()
            for case, future in self._judged.items()
            if future.done() and not future.cancelled() and not future.exception()
        }
        terminalreporter.write_line(
            f"\n{len(done)} of {len(self._judged)} variants of "
            f"{len({name for name, _ in self._judged})} exercises judged on "
            f"{self._where}: {self._seconds:.0f} s, {self._workers} at a time, "
            f"{sum(x.processes for x in done.values())} processes in their traces"
        )
        slow = sorted(done, key=lambda case: -done[case].seconds)[:5]
        told = (f"{x[0]} ({x[1]}) {done[x].seconds:.1f} s" for x in slow)
        terminalreporter.write_line(f"the slowest: {', '.join(told)}")


def needs_the_gpu_alone(exercise: Exercise) -> bool:
    """Whether the exercise queries the free memory of a GPU: other programs change it.

    On the reference model each program has its own machine.
    """
    return BACKEND == "cuda" and "free_memory()" in exercise.source


@contextlib.contextmanager
def gpus_held(environment: Mapping[str, str]) -> Iterator[None]:
    """Hold the GPUs open, because CUDA starts faster then."""
    from test_hold import PROBE, case_of  # which needs a build

    holder = Holder(case_of(PROBE), environment)
    try:
        yield
    finally:
        holder.close()


@pytest.fixture(scope="module", autouse=True)
def judgements(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Judgements]:
    """Judges all requested variants, in threads, while other tests run."""
    if BUILD is None:
        yield {}
        return
    top = tmp_path_factory.mktemp("learn")
    toolbox = Toolbox(BUILD, BACKEND)

    def one(name: str, variant: str) -> Judged:
        began = time.monotonic()
        folder = top / name / variant.replace(" ", "_")
        folder.mkdir(parents=True)
        source = folder / exercises.SOURCE
        source.write_text(variants(BY_NAME[name])[variant])
        verdict = judge(toolbox, BY_NAME[name], source, folder / "work")
        processes = len(verdict.story.trace.processes) if verdict.story else 0
        return Judged(verdict, processes, time.monotonic() - began)

    parameters = [getattr(x, "callspec", None) for x in request.session.items]
    asked = {
        (x.params["name"], x.params["variant"])
        for x in parameters
        if x and "variant" in x.params
    }
    asked.update(PICTURED)
    workers = os.cpu_count() or 1
    if BACKEND == "cuda":
        # The driver initialises processes one after the other, and a role waits only
        # 10 s for the other role. With more processes at a time, a role could wait too
        # long.
        workers = min(workers, 8)
    with contextlib.ExitStack() as stack:
        if BACKEND == "cuda":
            stack.enter_context(gpus_held({}))
        pool = concurrent.futures.ThreadPoolExecutor(workers)
        stack.callback(pool.shutdown, cancel_futures=True)
        alone = concurrent.futures.ThreadPoolExecutor(1)
        stack.callback(alone.shutdown, cancel_futures=True)
        judged: Judgements = {}
        for case in CASES:
            if case in asked and not needs_the_gpu_alone(BY_NAME[case[0]]):
                judged[case] = pool.submit(one, *case)
        others = list(judged.values())

        def after_all_others(name: str, variant: str) -> Judged:
            concurrent.futures.wait(others)
            return one(name, variant)

        for case in CASES:
            if case in asked and case not in judged:
                judged[case] = alone.submit(after_all_others, *case)
        where = toolbox.where()
        request.config.pluginmanager.register(Summary(where, workers, judged))
        yield judged


def test_there_are_enough_exercises() -> None:
    numbers = [x.number for x in ALL]
    assert numbers == [f"{i:02}" for i in range(1, len(ALL) + 1)]


@pytest.mark.parametrize("name", BY_NAME)
def test_an_exercise_is_whole(name: str) -> None:
    exercise = BY_NAME[name]
    files = sorted(x.name for x in exercise.folder.iterdir())
    assert files == [exercises.SOURCE, exercises.FACTS]
    assert exercise.lesson in LESSONS
    assert len(exercise.hints) == 3
    assert exercise.solutions and exercise.wrong
    assert all(wrong.says for wrong in exercise.wrong)
    assert exercise.source.startswith(f"// Exercise {exercise.number}: ")
    assert 2 <= len(exercise.task.splitlines()) <= LONGEST_TASK
    assert max(map(len, exercise.source.splitlines())) <= 72
    assert "// SPDX-License-Identifier: Apache-2.0" in exercise.source
    # No solution equals the handed-out file or another solution.
    texts = list(variants(exercise).values())
    assert len(set(texts)) == len(texts)


def test_a_change_that_fits_nowhere_is_an_error() -> None:
    first = ALL[0]
    wrong = exercises.Variant("nothing", "", (("what nobody writes", ""),))
    with pytest.raises(HarnessError, match="is there 0 times"):
        first.changed(wrong)


@needs_build
def test_an_exporter_that_fails_lets_the_importer_end(tmp_path: Path) -> None:
    """The exporter's end kills the importer, unless the importer is already ending."""
    assert BUILD is not None
    mark = tmp_path / "ended"
    source = tmp_path / exercises.SOURCE
    slow_end = f"""
        #include <fcntl.h>
        struct SlowEnd {{
          ~SlowEnd() {{
            if (std::strcmp(role_name(), "importer") != 0) return;
            poll(nullptr, 0, 500);
            close(creat("{mark}", 0600));
          }}
        }} slow_end;
    """
    source.write_text(ALL[0].source + slow_end)
    toolbox = Toolbox(BUILD, BACKEND)
    assert toolbox.build(source, tmp_path / "program") == ""
    ran = toolbox.run(tmp_path / "program", None, trace=False)
    assert ran.ended.code == 1
    assert mark.exists()


# --- the command --------------------------------------------------------------


def learn(folder: Path, *words: str) -> tuple[int, str]:
    """Exit code and all that `ipclab learn` prints."""
    assert BUILD is not None
    said = io.StringIO()
    options = ["--folder", str(folder), "--build", str(BUILD), "--backend", "model"]
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(["learn", *words, "--once", *options])
    return code, said.getvalue()


def solve(folder: Path, exercise: Exercise) -> None:
    text = exercise.changed(exercise.solutions[0])
    (folder / exercise.name / exercises.SOURCE).write_text(text)


@needs_build
def test_a_student_goes_from_one_exercise_to_the_next(tmp_path: Path) -> None:
    first, second = ALL[:2]
    code, said = learn(tmp_path, "next")
    assert code == 1 and first.title in said and "does not pass yet" in said
    assert "importer failed first" in " ".join(said.split())  # it made no call
    assert learn(tmp_path, "check")[0] == 1
    solve(tmp_path, first)
    code, said = learn(tmp_path, "check")
    assert code == 0 and "passes" in said
    assert f"Remember: {first.learned}" in " ".join(said.split())
    assert f"1 of {len(ALL)} of your path." in said
    code, said = learn(tmp_path, "next")
    assert code == 1 and second.title in said
    state = json.loads((tmp_path / "progress.json").read_text())["exercises"]
    assert state[first.name]["passed"] and state[first.name]["runs"] == 3
    assert state[second.name]["passed"] is None
    assert f"1 of {len(ALL)} passed" in learn(tmp_path, "list")[1]


@needs_build
def test_hints_come_one_by_one(tmp_path: Path) -> None:
    hints = ALL[0].hints
    for count in (1, 2, 3, 3):
        said = " ".join(learn(tmp_path, "hint")[1].split())
        assert [hint in said for hint in hints] == [i < count for i in range(3)]


@needs_build
def test_a_solution_is_shown_after_it_passed_or_on_demand(tmp_path: Path) -> None:
    first, second = ALL[:2]
    learn(tmp_path, "check")
    code, said = learn(tmp_path, "solution", "1")
    assert code == 2 and "has not passed yet" in said
    solve(tmp_path, first)
    learn(tmp_path, "check", "1")
    assert learn(tmp_path, "solution", "1")[0] == 0
    assert learn(tmp_path, "solution", "2", "--show")[0] == 0
    state = json.loads((tmp_path / "progress.json").read_text())["exercises"]
    assert not state[first.name]["shown"] and state[second.name]["shown"]


@needs_build
def test_a_reset_keeps_the_own_copy(tmp_path: Path) -> None:
    first = ALL[0]
    learn(tmp_path, "check")
    source = tmp_path / first.name / exercises.SOURCE
    source.write_text("mine")
    assert learn(tmp_path, "reset")[0] == 0
    assert source.read_text() == first.source
    assert source.with_name("exercise.cu.1").read_text() == "mine"


@needs_build
@pytest.mark.nightly
def test_verify_runs_all_that_passed_again(tmp_path: Path) -> None:
    assert learn(tmp_path, "--verify")[0] == 2  # nothing to verify is no success
    for exercise in ALL[:2]:
        learn(tmp_path, "check", exercise.name)
        solve(tmp_path, exercise)
        assert learn(tmp_path, "check", exercise.name)[0] == 0
    assert learn(tmp_path, "--verify")[0] == 0
    (tmp_path / ALL[1].name / exercises.SOURCE).write_text(ALL[1].source)
    code, said = learn(tmp_path, "--verify")
    assert code == 1 and "1 of 2 solutions pass again" in said
    assert re.search("does not pass: (exit code 1|possible-race)", said)


@needs_build
def test_a_report_tells_of_a_class(tmp_path: Path) -> None:
    for name in ("one", "two"):
        learn(tmp_path / name, "check")
    solve(tmp_path / "two", ALL[0])
    learn(tmp_path / "two", "check")
    code, said = learn(tmp_path / "none", "--report", str(tmp_path))
    assert code == 0
    assert re.search(rf"one +0 of {len(ALL)}", said)
    assert re.search(rf"two +1 of {len(ALL)}", said)
    (tmp_path / "one/progress.json").write_text("{")
    code, said = learn(tmp_path / "none", "--report", str(tmp_path))
    assert code == 1 and "is not JSON" in said and re.search("two +1 of", said)
    assert learn(tmp_path / "none", "--report", str(tmp_path / "empty"))[0] == 2


@needs_build
def test_a_damaged_progress_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_text("{")
    code, said = learn(tmp_path, "check")
    assert code == 3 and "move it away" in said
    assert (tmp_path / "progress.json").read_text() == "{"


@needs_build
def test_open_finds_the_page_of_the_lesson(tmp_path: Path) -> None:
    """`ci/docs` builds the site in build/dev, and exercises use another folder."""
    build = tmp_path / "build/run"
    build.mkdir(parents=True)
    (build / "CMakeCache.txt").write_text(f"CMAKE_HOME_DIRECTORY:INTERNAL={tmp_path}\n")
    assert command.site(build) is None
    pages = tmp_path / "build/dev/docs/html"
    pages.mkdir(parents=True)
    assert command.site(build) == pages
    code, said = learn(tmp_path / "mine", "open", "1")
    assert code == 0
    page = Path(said.strip().splitlines()[-1])
    assert page.suffix in (".cu", ".html") and page.is_file()


def test_without_a_site_the_text_of_a_lesson_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "site", lambda build: None)
    monkeypatch.setattr(ctest, "source_folder", lambda build: TOP)
    out = Console(file=io.StringIO(), width=100)
    assert command._open(out, tmp_path, ALL[0], ALL) == 0
    said = out.file.getvalue()  # type: ignore[attr-defined]
    for part in ("What you will learn", "cudaIpcGetMemHandle(&handle", ALL[1].title):
        assert part in said
    assert said.splitlines()[-1] == str(
        TOP / "samples/01_legacy_memory/legacy_memory.cu"
    )


@pytest.mark.parametrize("name", sorted({x.lesson for x in ALL}))
def test_the_text_of_a_lesson_is_whole(name: str) -> None:
    text = lesson.markdown(TOP, name, ALL)
    assert text is not None
    assert not re.findall(r"^@\w+|@ref|</?b>", text, re.MULTILINE)
    assert not re.search(r"^## [^\n]*\n+(?=## |\Z)", text, re.MULTILINE)  # no empty one
    for exercise in ALL:
        assert (f" next {exercise.number}` " in text) is (exercise.lesson == name)
    assert lesson.markdown(TOP / "docs", name, ALL) is None


@needs_build
def test_wrong_names_are_one_clear_error(tmp_path: Path) -> None:
    code, said = learn(tmp_path, "check", "99")
    assert code == 2 and "no exercise '99'" in said
    code, said = learn(TOP / "samples/exercises", "check")
    assert code == 2 and "lies in the repository" in said


@needs_build
def test_what_does_not_compile_shows_the_compilers_line(tmp_path: Path) -> None:
    learn(tmp_path, "check")
    (tmp_path / ALL[0].name / exercises.SOURCE).write_text("int x = nothing;\n")
    code, said = learn(tmp_path, "check")
    assert code == 1 and "exercise.cu:1:9: error:" in said


@needs_build
def test_the_picture_shows_who_did_what(judgements: Judgements) -> None:
    verdict = judgements[PICTURED[0]].result().verdict
    assert verdict.story is not None
    drawn = picture.lines(verdict.story, 80)
    assert re.match(r" +exporter +importer$", drawn[0])
    assert any("cuIpcOpenMemHandle" in line for line in drawn)
    assert any("─ handle ─" in line and ">" in line for line in drawn)
    assert any("<" in line and "─ closed ─" in line for line in drawn)
    narrow = picture.lines(verdict.story, 50)
    assert max(map(len, narrow)) <= 50 < max(map(len, drawn))
    assert len(narrow) > len(drawn)  # a text that does not fit takes a second line


@needs_build
def test_the_picture_has_the_record_of_a_shared_event(judgements: Judgements) -> None:
    """The record is also drawn if it came before the export, because the importer waits
    for it.
    """
    story = judgements[PICTURED[3]].result().verdict.story
    assert story is not None
    drawn = "\n".join(picture.lines(story, 80))
    assert re.search(r"cuEventRecord\b.*\n.*cuIpcGetEventHandle", drawn)


@needs_build
def test_the_picture_has_a_wait_for_an_event_of_its_own(
    judgements: Judgements,
) -> None:
    story = judgements[PICTURED[1]].result().verdict.story
    assert story is not None
    drawn = "\n".join(picture.lines(story, 80))
    assert re.search(r"cuEventSynchronize \(memory 1\)", drawn)


@needs_build
def test_a_solved_exercise_has_no_mark_for_what_it_may_do(
    judgements: Judgements,
) -> None:
    exercise = exercises.find(ALL, "08")  # it closes too often on purpose
    story = judgements[PICTURED[2]].result().verdict.story
    assert story is not None
    assert any("   <- " in line for line in picture.lines(story, 80))
    drawn = picture.lines(story, 80, exercise.check.ignore)
    assert not any("   <- " in line for line in drawn)


@needs_build
def test_a_picture_does_not_answer_what_is_to_be_predicted(tmp_path: Path) -> None:
    predict = next(x for x in ALL if x.kind == "predict")
    code, said = learn(tmp_path, "check", predict.number)
    assert code == 1 and "not answered" in said
    assert "─ closed ─" not in said and "cuIpcCloseMemHandle" not in said
    solve(tmp_path, predict)
    code, said = learn(tmp_path, "check", predict.number)
    assert code == 0 and "─ closed ─" in said


# --- what happens in a room ----------------------------------------------------


class Terminal:
    """`ipclab learn` as a student sees it: on a terminal, watching."""

    def __init__(self, folder: Path) -> None:
        words = [sys.executable, "-m", "ipclab", "learn", "--folder", str(folder)]
        words += ["--build", str(BUILD), "--backend", "model"]
        self.pid, self._end = pty.fork()
        if self.pid == 0:
            os.execvpe(words[0], words, {**os.environ, "PYTHONPATH": str(SOURCES)})
        self.text = ""

    def until(self, wanted: str) -> None:
        """Read until this text is on the screen; fail after 4 minutes."""
        end = time.monotonic() + 240
        while wanted not in self.text:
            assert select.select([self._end], [], [], end - time.monotonic())[0]
            self.text += os.read(self._end, 65536).decode(errors="replace")
        self.text = self.text.partition(wanted)[2]

    def press(self, key: str) -> None:
        os.write(self._end, key.encode())

    def ended(self) -> int:
        """Wait for the end of the command; return its exit code."""
        with contextlib.suppress(OSError):  # the terminal is closed
            while os.read(self._end, 65536):
                pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@needs_build
@pytest.mark.parametrize("key", ["q", "\x03"])
def test_a_watched_exercise_is_checked_at_a_save_and_ends_at_a_key(
    tmp_path: Path, key: str
) -> None:
    seen = Terminal(tmp_path)
    seen.until("does not pass yet")
    seen.until("(watching exercise.cu)")
    solve(tmp_path, ALL[0])
    seen.until(f"{ALL[0].number} passes")
    seen.until("(watching exercise.cu)")
    seen.press("n")
    seen.until(ALL[1].title)
    seen.until("(watching exercise.cu)")
    seen.press(key)
    assert seen.ended() == (0 if key == "q" else 3)
    state = json.loads((tmp_path / "progress.json").read_text())["exercises"]
    assert state[ALL[0].name]["passed"] and state[ALL[1].name]["runs"] == 1


@needs_build
def test_a_path_says_which_exercise_is_next(tmp_path: Path) -> None:
    way = {x.name: x for x in paths.read(TOP, ALL)}["two_hours"]
    wanted = [x for step in way.steps for x in step.exercises]
    code, said = learn(tmp_path, "list", "--path", "two_hours")
    assert code == 0
    places = [said.index(f"{x.number} {x.title}") for x in wanted]
    assert places == sorted(places)
    assert f"{len(ALL) - len(wanted)} more exercises are not on this path" in said
    folder = Folder(tmp_path)
    for exercise in wanted[:-1]:
        with folder.change(exercise) as state:
            state.passed = progress.now()
    code, said = learn(tmp_path, "next")  # the choice is remembered
    assert code == 1 and wanted[-1].title in said
    with folder.change(wanted[-1]) as state:
        state.passed = progress.now()
    code, said = learn(tmp_path, "next")
    assert code == 0 and f"all {len(wanted)} exercises are done" in said
    code, said = learn(tmp_path, "list", "--path", "one_week")
    assert code == 2 and "no path 'one_week'" in said and "two_hours" in said


@needs_build
@pytest.mark.parametrize("changed", [False, True])
def test_progress_survives_a_new_version_of_an_exercise(
    tmp_path: Path, changed: bool
) -> None:
    first = ALL[0]
    older = dataclasses.replace(first, folder=tmp_path / "older")
    older.folder.mkdir()
    (older.folder / exercises.SOURCE).write_text(first.source + "// an older one\n")
    mine = tmp_path / "mine"
    folder = Folder(mine)
    source = folder.source(older)
    with folder.change(older) as state:
        state.hints = 2
    if changed:
        solve(mine, first)
    before = source.read_text()
    said = learn(mine, "next")[1]
    assert "There is a new version of the exercise" in said
    assert source.read_text() == (before if changed else first.source)
    assert folder.read()[first.name].hints == 2
    assert ("is a new version" in learn(mine, "next", "1")[1]) == changed


@needs_build
def test_progress_without_the_newer_fields_is_read(tmp_path: Path) -> None:
    """The file has neither a path nor the digests of the files that were handed out."""
    state: dict[str, object] = {
        "begun": "2026-01-01T00:00:00Z",
        "passed": "2026-01-01T00:09:00Z",
    }
    state |= {"runs": 3, "hints": 0, "shown": False, "digest": None, "last": None}
    document = {"format": 1, "exercises": {ALL[0].name: state, "99_gone": state}}
    (tmp_path / "progress.json").write_text(json.dumps(document))
    assert learn(tmp_path, "hint", "2")[0] == 0
    kept = json.loads((tmp_path / "progress.json").read_text())["exercises"]
    assert kept[ALL[0].name]["runs"] == 3 and "99_gone" in kept


@needs_build
def test_a_full_disk_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn(tmp_path, "hint")
    before = (tmp_path / "progress.json").read_bytes()

    write = Path.write_text

    def full(path: Path, text: str, *more: Any, **options: Any) -> int:
        if path.is_relative_to(tmp_path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return write(path, text, *more, **options)  # a call of `judgements`

    monkeypatch.setattr(Path, "write_text", full)
    code, said = learn(tmp_path, "hint")
    assert code == 3 and "No space left on device" in said
    assert (tmp_path / "progress.json").read_bytes() == before


@needs_build
def test_a_full_disk_is_no_mistake_in_the_exercise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "ld: final link failed: No space left on device"
    run = subprocess.run

    def full(words: Any, **options: Any) -> Any:
        if Path(options["cwd"]).is_relative_to(tmp_path):
            return subprocess.CompletedProcess(words, 1, "", said)
        return run(words, **options)  # a call of `judgements`

    monkeypatch.setattr(subprocess, "run", full)
    code, said = learn(tmp_path, "check")
    assert code == 3 and ".work: No space left on device" in said
    assert Folder(tmp_path).read()[ALL[0].name].runs == 0


# Damaged progress files by the names of their folders: the content of the file, and
# what the report says about it.
HOSTILE = {
    "broken": (b"{", "is not JSON"),
    "bytes": (b"\xff\xfe\x00", "is not UTF-8"),
    "deep": (b"[" * 200_000, "is nested too deeply"),
    "foreign": (b'{"name": "a package", "version": 1}', "progress.json.format"),
    "huge": (b" " * (reader.DOCUMENT + 1), "is larger than"),
    "list": (b"[]", "is not an object"),
    "number": (b'{"format": 1, "exercises": {"01": 7}}', "is not of type object"),
}


@needs_build
def test_a_report_of_thirty_bears_hostile_files(tmp_path: Path) -> None:
    for number in range(30):
        folder = Folder(tmp_path / f"student {number:02}")
        for exercise in ALL[: number % 5 + 1]:
            with folder.change(exercise) as state:
                state.passed = progress.now()
    for name, (content, _) in HOSTILE.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "progress.json").write_bytes(content)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe/progress.json")
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop/progress.json").symlink_to("progress.json")
    with Folder(tmp_path / "[red]\n\x1b[2J").change(ALL[0]) as state:
        state.last = "[/]\x1b[31m"

    code, said = learn(tmp_path / "student 00", "--report", str(tmp_path))
    assert code == 1
    said = " ".join(said.split())
    for number in range(30):
        assert f"student {number:02} {number % 5 + 1} of {len(ALL)}" in said
    for name, (_, told) in HOSTILE.items():
        assert re.search(rf"{name}/progress\.json: .{{0,99}}{re.escape(told)}", said), (
            name
        )
    assert "pipe/progress.json: is not a regular file" in said
    assert "[red]??[2J 0 of" in said and "\x1b[2J" not in said


# --- paths --------------------------------------------------------------------


def test_paths_take_the_time_that_they_say() -> None:
    ways = {way.name: way for way in paths.read(TOP, ALL)}
    assert set(ways) == {"two_hours", "one_day", "two_days", "self_study"}
    assert ways["two_hours"].minutes == 120
    alone = [x.name for step in ways["self_study"].steps for x in step.exercises]
    assert sorted(alone) == sorted(BY_NAME)  # each once
    for way in ways.values():
        for step in way.steps:
            assert step.block.lesson is None or step.block.lesson in LESSONS


def test_what_an_exercise_needs_comes_before_it(tmp_path: Path) -> None:
    for exercise in ALL:
        for number in exercise.after:
            assert exercises.find(ALL, number).number == number
    text = (TOP / paths.FILE).read_text()
    early = text.replace(
        'minutes = 40, exercises = ["01", "02"', 'minutes = 50, exercises = ["47", "02"'
    )
    file = tmp_path / paths.FILE
    file.parent.mkdir(parents=True)
    file.write_text(early.replace("minutes = 120", "minutes = 130"))
    with pytest.raises(HarnessError, match="two_hours: 47 comes before 04"):
        paths.read(tmp_path, ALL)


def test_the_readme_lists_all_exercises() -> None:
    text = (TOP / "samples/exercises/README.md").read_text()
    for exercise in ALL:
        assert (
            f"| [{exercise.name}]({exercise.name}/{exercises.SOURCE}) | "
            f"{exercise.title} |"
        ) in text


def test_the_development_container_starts_what_there_is() -> None:
    text = (TOP / ".devcontainer/devcontainer.json").read_text()
    file = json.loads(re.sub(r"(?m)^\s*//.*$", "", text))
    program, *words = file["postCreateCommand"].split()
    assert os.access(TOP / program, os.X_OK) and words[0] in ACTIONS
    assert "g++" in file["onCreateCommand"] and "python3" in file["onCreateCommand"]


# --- every variant ------------------------------------------------------------
# These tests are last: their variants are judged while the tests above run.


@needs_build
@pytest.mark.nightly(8, "name")
@pytest.mark.parametrize(("name", "variant"), CASES)
def test_a_variant_is_judged_as_it_has_to_be(
    name: str,
    variant: str,
    judgements: Judgements,
) -> None:
    exercise = BY_NAME[name]
    verdict = judgements[name, variant].result().verdict
    kind = verdict.complaint.kind if verdict.complaint else "passed"
    told = f"{kind}: {verdict.text}"
    if variant.startswith("solution"):
        assert kind == "passed", told
        return
    assert kind != "passed", told
    if variant == "handed out":
        fits, says = re.fullmatch(exercise.fails, kind) is not None, exercise.says
    else:
        fits, says = kind != "compile", exercise.wrong[int(variant.split()[1]) - 1].says
    assert fits, told
    # A message about a deadline helps only if the exercise is about that wait.
    assert WAITED not in told or WAITED in says
    found = re.search(says, verdict.text)
    assert found, f"it does not say {says}\n{told}"
