"""The error dictionary: a table for each code, from the runner's errors.json.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import re

from generator.chapters import page_of
from generator.rules import link_to
from generator.text import facts, lines, plain, table
from ipclab import explain


def page() -> str:
    """The page: an index by number, then a section for each code."""
    text = (
        "/**\n@page errors Error dictionary\n"
        "@brief What an error code means when processes share memory or events.\n\n"
        "On the command line: `ci/ipclab explain 201`.\n\n"
        "@section errors_index All codes\n\n"
    )
    text += table(
        ("number", "runtime API", "driver API", "what it usually means here"),
        (
            [
                str(entry.number),
                f'@ref error_{entry.code} "{entry.code}"',
                f"`{entry.driver}`" if entry.driver else "",
                plain(re.split(r"(?<=[.;:]) ", entry.cause)[0].rstrip(".;:")),
            ]
            for entry in sorted(explain.read(), key=lambda x: x.number)
        ),
    )
    return text + "".join(map(section, explain.read())) + "*/\n"


def section(entry: explain.Entry) -> str:
    """One code."""
    return f"@section error_{entry.code} {entry.code} ({entry.number})\n\n" + facts(
        [
            ("CUDA says", plain(entry.says)),
            ("Driver API", f"`{entry.driver}`" if entry.driver else ""),
            ("Appears", lines(plain(x) for x in entry.appears)),
            ("Cause", plain(entry.cause)),
            ("Do", plain(entry.do)),
            ("Lessons", ", ".join(f"@ref {page_of(x)}" for x in entry.lessons)),
            ("Rules", ", ".join(link_to(x) for x in entry.rows)),
        ]
    )


def words() -> dict[str, str]:
    """Place of each code -> CUDA's text for it, because people search for this text."""
    return {f"errors#error_{x.code}": x.says for x in explain.read()}
