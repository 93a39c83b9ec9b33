"""The sources of tests and faults as pages whose lines a rule can link to.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from html import escape
from pathlib import Path

from ipclab.mutants.faults import Fault
from ipclab.rules import TEST

FOLDER = "tests"  # of the site
STYLE = (
    "body{margin:1rem;font:14px/1.5 monospace;color-scheme:light dark}"
    "pre{margin:0}pre span:target{background:Mark;color:MarkText}"
)


def places(conformance: Path, faults: Iterable[Fault] = ()) -> dict[str, str]:
    """`Suite.Name` of each test -> the address of its first line on the site; and the
    same for the name of each fault that a file of `conformance` declares.
    """
    found = {}
    for source in _sources(conformance):
        text = source.read_text()
        for test in TEST.finditer(text):
            found[f"{test[1]}.{test[2]}"] = _address(source, text, test.start())
    texts: dict[str, str] = {}
    for fault in faults:
        source = conformance.parent / fault.file
        if conformance not in source.parents:
            continue
        text = texts.setdefault(fault.file, source.read_text())
        declared = text.find(f'"{fault.name}"')
        if declared >= 0:
            found[fault.name] = _address(source, text, declared)
    return found


def _address(source: Path, text: str, at: int) -> str:
    """The address of the line of a source that has the character `at`."""
    line = text.count("\n", 0, at) + 1
    return f"{FOLDER}/{_page(source)}#L{line}"


def pages(conformance: Path) -> dict[str, str]:
    """File name -> HTML: the files of tests and faults of all lessons."""
    return {
        _page(source): page(source.name, source.read_text())
        for source in _sources(conformance)
    }


def page(name: str, text: str) -> str:
    """A source whose lines have the ids L1, L2 …"""
    lines = "\n".join(
        f'<span id="L{number}">{escape(line, quote=False)}</span>'
        for number, line in enumerate(text.splitlines(), 1)
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(name)}</title>"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head>\n<body><main><h1>{escape(name)}</h1>\n"
        f"<pre>{lines}</pre>\n</main></body></html>\n"
    )


def _page(source: Path) -> str:
    number = source.parent.name.partition("_")[0]
    return f"{number}_{source.stem}.html"


def _sources(conformance: Path) -> list[Path]:
    found = (conformance.glob(f"[0-9]*/*{x}") for x in ("_test.cu", "faults.cc"))
    return sorted(itertools.chain.from_iterable(found))
