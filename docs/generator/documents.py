"""Makes pages of the site from documents of the repository.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from generator.rules import link_to
from generator.text import plain, table
from ipclab import cli
from ipclab.trace.findings import RULES

# File below docs/ -> name of its page. The first line is the title.
PAGES = {
    "CONTRIBUTING.md": "contributing",
    "errata.md": "errata",
    "SECURITY.md": "security",
    "CHANGELOG.md": "changes",
}
LINK = re.compile(r"\[([^]]+)\]\((?!https?://)([^)#]+)\)")
# Target of a relative link -> page of the site that has the target's text.
SAME = {"../samples/README.md": "lessons", **PAGES}


def pages(docs: Path) -> dict[str, str]:
    """File name -> page: the document, with the name that links use."""
    found = {}
    for file, page in PAGES.items():
        title, _, body = (docs / file).read_text().partition("\n")
        found[f"{page}.md"] = f"{title} {{#{page}}}\n{LINK.sub(_link, body)}"
    return found


def _link(match: re.Match[str]) -> str:
    text, target = match[1], match[2]
    if page := SAME.get(target):
        return f'@ref {page} "{text}"'
    return f"{text} (`{target}`)"


def trace_rules() -> str:
    """The rules of `ipclab trace`, each with its row and what to do."""
    rows = [
        [f"`{rule}`", link_to(row), plain(advice)]
        for rule, (row, advice) in RULES.items()
    ]
    return table(["rule", "row", "what to do"], rows)


def runner() -> str:
    """The page of the command `ipclab`, made from the texts of its --help."""
    parser = cli._parser()
    text = (
        "/**\n@page runner The command ipclab\n"
        f"@brief {plain(parser.description or '')}\n\n"
        "In the source tree the command is `ci/ipclab`.\n\n"
    )
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            told = {x.dest: x.help or "" for x in action._choices_actions}
            for name, command in action.choices.items():
                text += _command(name, told[name], command)
    return text + "*/\n"


def _command(name: str, told: str, parser: argparse.ArgumentParser) -> str:
    options = [
        [f"`{_spelling(action)}`", plain((action.help or "") % vars(action))]
        for action in parser._actions
        if action.dest != "help"
    ]
    told = plain(told[:1].upper() + told[1:])
    return (
        f"@section runner_{name} ipclab {name}\n\n{told}.\n\n"
        + (table(["option", "what it says"], options) if options else "")
        + (f"{plain(parser.epilog)}.\n\n" if parser.epilog else "")
    )


def _spelling(action: argparse.Action) -> str:
    """As in --help: --results DIR, or the name of an argument."""
    if not action.option_strings:
        return str(action.metavar or action.dest)
    value = ""
    if action.nargs != 0:
        choices = "{" + ",".join(map(str, action.choices or ())) + "}"
        named = action.metavar or (choices if action.choices else action.dest.upper())
        value = " " + (named if isinstance(named, str) else " ".join(named))
    return ", ".join(option + value for option in action.option_strings)
