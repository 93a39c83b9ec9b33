"""The drawings of docs/drawings: pictures of ideas, made by hand.

A drawing has no colours of its own. On a page the style sheet has them; the copy to
download has the lines of the style sheet that it needs.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import re
from html import escape, unescape
from pathlib import Path

from generator.recorded import Missing
from generator.text import plain

FOLDER = "drawings"  # of the source tree below docs/, and of the site
# A drawing that a page includes, and the name of this page.
INCLUDED = re.compile(r"^@htmlinclude\[block\] (\w+)\.svg$", re.MULTILINE)
PAGE = re.compile(r"^@page (\w+) (.*)", re.MULTILINE)
# The parts of the style sheet that a drawing needs: the colours and its own rules.
STYLE = re.compile(r"^:root \{.*?(?=^\*,)|^\.drawing .*?(?=^/\*)", re.DOTALL | re.M)
ABOUT = """/**
@page drawings Drawings
@brief Every drawing of these pages, to use in slides, courses and documents.

You may use, change and print the drawings under the licence of the project, the
<a href="LICENSE.txt">Apache License 2.0</a>; name *ipclab* as the source. Each drawing
is one SVG file that needs no other file. Its text stays text, so you can search and
translate it. Shown by `<img>`, a drawing follows the light or dark mode of its reader.

"""


def read(top: Path) -> dict[str, str]:
    """Name -> the SVG as it is in docs/drawings.

    Raises Missing if a drawing has no title or no description.
    """
    found = {}
    for path in sorted((top / "docs" / FOLDER).glob("*.svg")):
        found[path.stem] = path.read_text()
        for part in ("title", "desc"):
            if f"<{part}>" not in found[path.stem]:
                raise Missing(f"{path.relative_to(top)}: has no <{part}>")
    return found


def parts(drawings: dict[str, str]) -> dict[str, str]:
    """File name -> a figure with its caption, as HTML for a page."""
    return {
        f"{name}.svg": f"<figure>{svg}<figcaption>{_text(svg, 'title')}. "
        f'<a href="drawings.html#drawing_{name}">Use this drawing</a></figcaption>'
        "</figure>\n"
        for name, svg in drawings.items()
    }


def files(top: Path, drawings: dict[str, str]) -> dict[str, str]:
    """File name -> the drawing with its colours, to download."""
    style = "".join(STYLE.findall((top / "docs/theme/ipclab.css").read_text()))
    return {
        f"{name}.svg": svg.replace("<desc>", f"<style>\n{style}</style>\n<desc>", 1)
        for name, svg in drawings.items()
    }


def page(top: Path, drawings: dict[str, str]) -> str:
    """The page of all drawings, each with its description, its file and its pages."""
    users: dict[str, list[str]] = {}
    for path in sorted([*top.glob("samples/*/*.dox"), *top.glob("docs/pages/*.dox")]):
        text = path.read_text()
        if found := PAGE.search(text):
            for name in INCLUDED.findall(text):
                users.setdefault(name, []).append(f"@ref {found[1]}")
    told = ABOUT
    for name, svg in drawings.items():
        used = ", ".join(users.get(name, []))
        told += (
            f"@section drawing_{name} {plain(unescape(_text(svg, 'title')))}\n\n"
            f"@htmlonly[block]<figure>{svg}<figcaption>{_text(svg, 'desc')}"
            "</figcaption></figure>@endhtmlonly\n\n"
            f'<a href="{FOLDER}/{name}.svg" download>{name}.svg</a>'
            + (f", used in {used}\n\n" if used else "\n\n")
        )
    return f"{told}*/\n"


def _text(svg: str, element: str) -> str:
    """The text of an element, as HTML."""
    found = re.search(f"<{element}>(.*?)</{element}>", svg, re.DOTALL)
    return escape(" ".join(unescape(found[1]).split()), quote=False) if found else ""
