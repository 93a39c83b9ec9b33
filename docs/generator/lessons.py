"""What a lesson's page takes from data: facts, neighbours, sentences, changes.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from generator import rules, text
from generator.chapters import page_of
from generator.recorded import Missing

Lesson = dict[str, Any]
Row = dict[str, Any]


def parts(
    top: Path,
    lessons: list[Lesson],
    catalogue: dict[str, Any],
    tests: dict[str, list[str]],
) -> dict[str, str]:
    """File name -> text, for Doxygen's \\includedoc.

    `lessons` is lessons.json of the build, `catalogue` is requirements.json,
    `tests` names those of each row.
    """
    made = {f"rule_{row['id']}.md": sentence(row) for row in catalogue["rows"]}
    for i, lesson in enumerate(lessons):
        before = lessons[i - 1] if i else None
        after = lessons[i + 1] if i + 1 < len(lessons) else None
        around = neighbours(before, after)
        page = page_of(lesson["lesson"])
        rows = [r for r in catalogue["rows"] if lesson["lesson"] in r["lessons"]]
        made[f"{page}_head.md"] = around + facts(lesson, len(rows))
        made[f"{page}_foot.md"] = proof(rows, tests) + around
        made[f"{page}_try.md"] = changes(top, lesson["lesson"])
    return made


def neighbours(before: Lesson | None, after: Lesson | None) -> str:
    """Previous, all, next."""
    links = ['@ref lessons "All lessons"']
    if before:
        links.insert(0, f"@ref {page_of(before['lesson'])}")
    if after:
        links.append(f"@ref {page_of(after['lesson'])}")
    return "\n\n" + " · ".join(links) + "\n\n"


def facts(lesson: Lesson, rows: int) -> str:
    """The table at the top of a page."""
    need = "one GPU" if lesson["gpus"] == 1 else f"{lesson['gpus']} GPUs"
    if lesson["needs"]:
        need += f", {lesson['needs']}"
    command = f"ci/ipclab sample {lesson['lesson'][:2]}"
    run = f"`{command}`"
    if lesson["profile"] != "one-gpu":
        run += (
            " or, on a machine that the model plays, "
            f"`{command} --backend model --profile {lesson['profile']}`"
        )
    proof = f"{page_of(lesson['lesson'])}_proof"
    return text.facts(
        [
            ("You need", f"{need}; or the reference model"),
            ("You run", run),
            (
                "Builds on",
                ", ".join(f"@ref {page_of(name)}" for name in lesson["builds_on"])
                or "nothing",
            ),
            ("Proved by", f'@ref {proof} "the tests of {rows} documented sentences"'),
        ]
    )


def sentence(row: Row) -> str:
    """A row of the catalogue as a quotation."""
    statement, source = text.spelled(row["statement"]), text.spelled(row["source"])
    return f"> {statement}\n>\n> {rules.link(row)} · {source}\n\n"


def proof(rows: list[Row], tests: dict[str, list[str]]) -> str:
    """The rows that the lesson's mirror judges, and its tests of each."""
    lines = []
    for row in rows:
        names = ", ".join(f"`{name}`" for name in tests.get(row["id"], []))
        lines.append(f"- {rules.link(row)}: {text.spelled(row['statement'])} {names}")
    return "\n".join(lines) + "\n\n"


def changes(top: Path, lesson: str) -> str:
    """The exercises of NN_topic/topic.try.json; a test makes each change.

    Raises Missing if the lesson has none.
    """
    file = top / "samples" / lesson / f"{lesson[3:]}.try.json"
    if not file.exists():
        raise Missing(f"{file.relative_to(top)}: no changes to try; write two or three")
    told = ""
    for i, change in enumerate(json.loads(file.read_text()), 1):
        old = html.escape(change["replace"]).splitlines()
        new = html.escape(change["by"]).splitlines()
        lines = [f"<del>- {line}</del>" for line in old]
        lines += [f"<ins>+ {line}</ins>" for line in new]
        told += (
            f"**{i}.** {change['change']}\n\n"
            '@htmlonly[block]<pre class="change">' + "\n".join(lines) + "</pre>"
            "<details><summary>What should happen</summary>@endhtmlonly\n"
            f"{change['happens']}\n"
            "@htmlonly[block]</details>@endhtmlonly\n\n"
        )
    return told
