"""The parts of a lesson's page that come from data: facts, sentences, changes.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

from generator import rules, text, workshop
from generator.chapters import needs_newer_toolkit, page_of
from generator.lesson_page import MINUTES
from generator.recorded import Missing
from ipclab.learn import exercises

Lesson = dict[str, Any]
Row = dict[str, Any]


def parts(
    top: Path,
    lessons: list[Lesson],
    catalogue: dict[str, Any],
    tests: dict[str, list[str]],
) -> dict[str, str]:
    """File name -> text, for Doxygen's \\includedoc.

    `lessons` is lessons.json of the build, `catalogue` has the
    rows, `tests` the tests of each row.
    """
    known = exercises.read(top)
    made = {f"rule_{row['id']}.md": sentence(row) for row in catalogue["rows"]}
    for lesson in lessons:
        page = page_of(lesson["lesson"])
        rows = [r for r in catalogue["rows"] if lesson["lesson"] in r["lessons"]]
        made[f"{page}_head.md"] = facts(
            top, lesson, len(rows), workshop.links(known, lesson["lesson"])
        )
        made[f"{page}_foot.md"] = proof(rows, tests)
        made[f"{page}_try.md"] = changes(top, lesson["lesson"])
    return made


def briefs(top: Path, known: list[Lesson]) -> dict[str, str]:
    """Lesson -> the sentence under the title of its page.

    Raises Missing if a page has no such sentence.
    """
    found = {}
    for name in (x["lesson"] for x in known):
        file = top / "samples" / name / f"{name[3:]}.dox"
        told = re.search(r"^@brief (.*)$", file.read_text(), re.MULTILINE)
        if told is None:
            raise Missing(f"{file.relative_to(top)}: no @brief")
        found[name] = told[1]
    return found


def facts(top: Path, lesson: Lesson, rows: int, practice: str) -> str:
    """The table at the top of a page; `practice` links to the exercises."""
    need = "one GPU" if lesson["gpus"] == 1 else f"{lesson['gpus']} GPUs"
    if lesson["needs"]:
        need += f", {lesson['needs']}"
    command = f"ci/ipclab sample {lesson['lesson'][:2]}"
    run = f"`{command}`"
    if lesson["toolkit"]:
        need += f", CUDA Toolkit {lesson['toolkit']}"
    if needs_newer_toolkit(lesson):
        need += " and a driver that knows it"
        command += " --build build/13.5"
        build = f"ci/toolkit 13.5 -k {lesson['lesson']}"
        run = f"`{build}` once, to build it, then `{command}`"
    if lesson["profile"] != "one-gpu":
        run += (
            " or, on a machine that the model simulates, "
            f"`{command} --backend model --profile {lesson['profile']}`"
        )
    proof = f"{page_of(lesson['lesson'])}_proof"
    return text.facts(
        [
            ("You need", f"{need}; or the reference model"),
            ("Time", f"about {MINUTES} minutes with the changes to try"),
            ("You run", run),
            ("Source", f"`samples/{lesson['lesson']}/{lesson['lesson'][3:]}.cu`"),
            ("Build alone", f"`{build_line(top, lesson['lesson'])}`"),
            (
                "Builds on",
                ", ".join(f"@ref {page_of(name)}" for name in lesson["builds_on"])
                or "nothing",
            ),
            ("Exercises", practice),
            ("Proved by", f'@ref {proof} "the tests of {rows} rules"'),
        ]
    )


def build_line(top: Path, lesson: str) -> str:
    """The command in the header of a lesson, in one line; a test runs it.

    Raises Missing if the header has no such command.
    """
    program = (top / "samples" / lesson / f"{lesson[3:]}.cu").read_text()
    found = re.search(r"^// (nvcc .*(?:\n//   .*)*)$", program, re.MULTILINE)
    if found is None:
        raise Missing(f"{lesson}: no line `// nvcc …` in its header")
    return re.sub(r"\n//\s+", " ", found[1])


def sentence(row: Row) -> str:
    """A row of the catalogue, with the source of its words."""
    return f"> {text.plain(row['statement'])}\n>\n> {rules.origin(row)}\n\n"


def proof(rows: list[Row], tests: dict[str, list[str]]) -> str:
    """The rows of the lesson, with the tests of each row."""
    lines = []
    for row in rows:
        names = ", ".join(f"`{name}`" for name in tests.get(row["id"], []))
        told = text.plain(row["statement"])
        lines.append(f"- {rules.link(row)}: {told} {names}")
    return "\n".join(lines) + "\n\n"


def changes(top: Path, lesson: str) -> str:
    """The changes of NN_topic/topic.try.json; a test makes each change.

    Raises Missing if the lesson has no such file.
    """
    file = top / "samples" / lesson / f"{lesson[3:]}.try.json"
    if not file.exists():
        raise Missing(f"{file.relative_to(top)}: no changes to try; write two or three")
    program = file.with_suffix("").with_suffix(".cu").read_text()
    told = ""
    for i, change in enumerate(json.loads(file.read_text()), 1):
        old, new = whole_lines(program, change["replace"], change["by"])
        lines = [f"<del>- {html.escape(line)}</del>" for line in old]
        lines += [f"<ins>+ {html.escape(line)}</ins>" for line in new]
        told += (
            f"**{i}.** {text.commands(change['change'])}\n\n"
            '@htmlonly<pre class="change" tabindex="0" role="group" '
            f'aria-label="Change {i}">' + "\n".join(lines) + "</pre>"
            "<details><summary>What should happen</summary>@endhtmlonly\n\n"
            f"{text.commands(change['happens'])}\n\n@htmlonly</details>@endhtmlonly\n\n"
        )
    return told


def whole_lines(program: str, old: str, new: str) -> tuple[list[str], list[str]]:
    """The lines that a change affects, before and after; it may begin inside a line.

    >>> whole_lines("int a;\\nint b = 1;\\n", "1;", "2;")
    (['int b = 1;'], ['int b = 2;'])
    """
    start = program.index(old)
    begin = program.rfind("\n", 0, start) + 1
    end = start + len(old)
    if not old.endswith("\n"):
        end = program.find("\n", end) + 1 or len(program)
    touched = program[begin:end]
    changed = program[begin:start] + new + program[start + len(old) : end]
    return touched.splitlines(), changed.splitlines()
