"""The page of the Python functions that read what the commands have written.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from generator.text import plain
from ipclab import compare, findings, records, requirements, results, summary
from ipclab.trace import files, story

# Each part: its title and its functions and classes, in the order of the page.
PARTS: tuple[tuple[str, str, tuple[Callable[..., Any], ...]], ...] = (
    (
        "results",
        "Results of a run",
        (
            *(results.read, results.Contents, records.rows, records.Row),
            *(records.counts, summary.tests, summary.lessons, compare.difference),
        ),
    ),
    (
        "catalogue",
        "Rules and findings",
        (requirements.read, requirements.document, findings.read, findings.Finding),
    ),
    ("trace", "Traces", (files.read, files.Trace, story.replay)),
)
# A test runs it.
EXAMPLE = """\
from pathlib import Path
from ipclab import records, results, summary

run = results.read(Path("docs/results/h200-580.159"))
table = summary.tests(records.rows(run.records))
print(run.run["machine"], records.counts(table))
for row in table:
    if row.verdict == "deviates":
        print(row.record["requirement"], row.record["test"])
"""


def page() -> str:
    """The page: for each function its module, its signature and its docstring."""
    told = (
        "/**\n@page python_api The Python package ipclab\n"
        "@brief The functions that read results, rules, findings and traces.\n\n"
        "`ipclab run` and `ipclab trace` write files (@ref runner). With these "
        "functions your program reads them. The package is in `harness/runner/src` and "
        "in the wheel. It is typed, and needs Python 3.11 or newer.\n\n"
        f"@code{{.py}}\n{EXAMPLE}@endcode\n\n"
        "A function raises `ipclab.errors.UsageError` if the caller gave it something "
        "wrong, and `ipclab.errors.HarnessError` if the project itself is damaged.\n\n"
    )
    for name, title, members in PARTS:
        told += f"@section python_api_{name} {title}\n\n"
        told += "".join(map(_member, members))
    return f"{told}*/\n"


def _member(member: Callable[..., Any]) -> str:
    name = f"{member.__module__}.{member.__qualname__}"
    anchor = f"python_api_{name.replace('.', '_')}"
    kind = "class " if inspect.isclass(member) else ""
    paragraphs = inspect.getdoc(member) or ""
    return (
        f"@subsection {anchor} {name}\n\n"
        f"@code{{.py}}\n{kind}{member.__qualname__}{_signature(member)}\n@endcode\n\n"
        + "".join(f"{plain(x)}\n\n" for x in paragraphs.split("\n\n"))
    )


def _signature(member: Callable[..., Any]) -> str:
    """The parameters with their types, one a line if they are long."""
    signature = inspect.signature(member)
    if inspect.isclass(member):
        signature = signature.replace(return_annotation=signature.empty)
    text = str(signature).replace("'", "")
    if len(text) < 60:
        return text
    parts = ",\n".join(f"    {x}" for x in signature.parameters.values())
    end = text[text.rindex(")") :] if "->" in text else ")"
    return f"(\n{parts},\n{end}".replace("'", "")
