"""Every lesson, built with the line of its header, prints what its page shows, and
every change that the page proposes does what the page promises.

SPDX-License-Identifier: Apache-2.0
"""

import concurrent.futures
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import test_build_lines
from ipclab import model, supervise
from test_build_lines import build_line, has_toolkit, profile, toolkit, with_nvcc
from test_repository import LESSONS, TOP, source, topic

Programs = dict[str, Future[Path]]
INCLUDE = re.compile(r"^#include .*$", re.MULTILINE)
MAIN = """
static int start(int (*main)(), int, char**) { return main(); }
static int start(int (*main)(int, char**), int argc, char** argv) {
  return main(argc, argv);
}
int main(int argc, char** argv) {
  switch (std::atoi(std::getenv("IPCLAB_CHANGE"))) {
%s  }
}
"""

FIELDS = {"change", "replace", "by", "happens", "exit", "prints"}


def changes(lesson: str) -> list[dict[str, Any]]:
    file = TOP / "samples" / lesson / f"{topic(lesson)}.try.json"
    return list(json.loads(file.read_text()))


def masked(text: str) -> str:
    """The output of a lesson, without the parts that differ between runs or drivers."""
    text = re.sub(r"0x[0-9a-f]+", "ADDRESS", text)
    text = re.sub(r"(?<=GPU 0: ).*", "NAME", text)
    text = re.sub(r"\[[^]]*\]", "[ANSWER OF THIS DRIVER]", text)
    return text


def changed(lesson: str, change: dict[str, Any]) -> str:
    """The lesson's source after the change."""
    text = source(lesson).read_text()
    assert text.count(change["replace"]) == 1, "the text to replace must occur once"
    return text.replace(change["replace"], change["by"])


def combined(lesson: str) -> str:
    """A source with the lesson after each of its changes and, last, as it is, each in
    its own namespace. IPCLAB_CHANGE is the number of the part that runs.

    Most of the time of a build is for the headers, which all parts share.
    """
    texts = [changed(lesson, change) for change in changes(lesson)]
    texts.append(source(lesson).read_text())
    includes = dict.fromkeys(x for text in texts for x in INCLUDE.findall(text))
    name = source(lesson).relative_to(TOP)
    parts = [
        f'namespace change_{i} {{\n#line 1 "{name}"\n{INCLUDE.sub("", text)}\n}}\n'
        for i, text in enumerate(texts)
    ]
    cases = "".join(
        f"    case {i}: return start(change_{i}::main, argc, argv);\n"
        for i in range(len(texts))
    )
    return "\n".join([*includes, "#include <cstdlib>", *parts, MAIN % cases])


def build(lesson: str, folder: Path) -> Path:
    """Build a lesson and all its changes as its header says; return the program."""
    shutil.copytree(TOP / "samples/common", folder / "samples/common")
    file = folder / source(lesson).relative_to(TOP)
    shutil.copytree(source(lesson).parent, file.parent)  # also the lesson's own headers
    file.write_text(combined(lesson))
    program = folder / "a.out"
    built = subprocess.run(
        [*shlex.split(build_line(lesson)), "-o", str(program)],
        cwd=folder,
        env=with_nvcc(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert built.returncode == 0, built.stderr
    return program


def run(lesson: str, program: Path, number: int) -> tuple[int, str]:
    """Run a change of a lesson; return its exit code and all that it prints. If this
    machine cannot run the program, the program runs on the model.
    """
    folder = os.environ.get("IPCLAB_MODEL")
    for environment in (
        {},
        model.environment(Path(str(folder)), profile(lesson)),
    ):
        environment = {**os.environ, **environment, "IPCLAB_CHANGE": str(number)}
        ran = supervise.run([str(program)], timeout=60, environment=environment)
        assert not ran.survivors
        if ran.code != 77 or folder is None:
            break
    return ran.code, ran.output


def kept(change: dict[str, Any], code: int, printed: str) -> bool:
    """Whether the program ended and printed as the page says."""
    return code == change["exit"] and bool(re.search(change["prints"], printed))


@pytest.fixture(scope="module")
def programs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Programs]:
    """Builds the programs of all requested lessons, in threads, while others run."""
    top = tmp_path_factory.mktemp("try")
    asked = [
        str(item.callspec.params["lesson"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and "programs" in item.fixturenames
    ]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {
            lesson: pool.submit(build, lesson, top / lesson)
            for lesson in dict.fromkeys(asked)
            if has_toolkit(lesson, with_nvcc())
        }
        pool.shutdown(cancel_futures=True)


@pytest.mark.nightly(16, "lesson")
@pytest.mark.parametrize("lesson", LESSONS)
def test_the_lesson_prints_what_its_page_shows(lesson: str, programs: Programs) -> None:
    if (built := programs.get(lesson)) is None:
        pytest.skip(f"no nvcc of CUDA {toolkit(lesson)} here: ci/setup --toolkit 13.5")
    number = {"IPCLAB_CHANGE": str(len(changes(lesson)))}
    ran = test_build_lines.run(built.result(), number)
    if ran.returncode == 77:  # this machine cannot run the lesson, which must say why
        assert re.fullmatch(r"SKIP: .+\n", ran.stdout)
        if (folder := os.environ.get("IPCLAB_MODEL")) is None:
            pytest.skip(f"this machine cannot show it: {ran.stdout.strip()}")
        machine = model.environment(Path(folder), profile(lesson))
        ran = test_build_lines.run(built.result(), {**number, **machine})
    printed = ran.stdout  # without what the model says on standard error
    if lesson == "61_namespaces" and ran.returncode == 77:
        # Here the user may not make namespaces, and the model cannot change this.
        assert re.fullmatch(r"SKIP: (unshare|mount) .+\n", printed)
        return
    assert ran.returncode == 0, printed + ran.stderr
    expected = (TOP / "samples" / lesson / f"{topic(lesson)}.out").read_text()
    if lesson == "00_query_support":
        # The answers depend on the machine; the questions belong to the lesson.
        def asked(text: str) -> list[str]:
            return [line[:14] for line in text.splitlines()[1:]]

        assert asked(printed) == asked(expected)
    else:
        assert masked(printed) == masked(expected)


@pytest.mark.nightly(16, "lesson")
@pytest.mark.parametrize(
    ("lesson", "number"),
    [(lesson, i) for lesson in LESSONS for i in range(len(changes(lesson)))],
)
def test_what_the_page_promises_happens(
    lesson: str, number: int, programs: Programs
) -> None:
    if (built := programs.get(lesson)) is None:
        pytest.skip(f"no nvcc of CUDA {toolkit(lesson)} here: ci/setup --toolkit 13.5")
    change = changes(lesson)[number]
    code, printed = run(lesson, built.result(), number)
    if code == 77 and "IPCLAB_MODEL" not in os.environ:
        pytest.skip(f"this machine cannot show it: {printed.strip()}")
    assert kept(change, code, printed), f"exit {code}\n{printed}"


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_proposes_two_or_three_changes(lesson: str) -> None:
    found = changes(lesson)
    assert 2 <= len(found) <= 3
    unchanged = (TOP / "samples" / lesson / f"{topic(lesson)}.out").read_text()
    for change in found:
        assert set(change) == FIELDS
        # If this were kept, what the page says would be true without the change.
        assert not kept(change, 0, unchanged), change["change"]
