"""The drawings of docs/drawings: small, without colours of their own, and used.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from conftest import TOP, Site
from generator import drawings, recorded

KNOWN = drawings.read(TOP)
LARGEST = 8192  # bytes of a file to download
# Elements and attributes that a drawing may have; colours come from the style sheet.
ELEMENTS = {"svg", "title", "desc", "text", "rect", "path"}
ATTRIBUTES = {
    *("class", "viewBox", "role"),
    *("x", "y", "width", "height", "rx", "d"),
}
DRAWN = "{http://www.w3.org/2000/svg}"
SIZE = re.compile(r"font(?:-size)?: (?:600 )?(\d+)px")


def wrong(name: str, svg: str, style: str) -> list[str]:
    """What is wrong with a drawing; `style` has the rules of its classes."""
    root = ElementTree.fromstring(svg)
    found = []
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    for part in root.iter():
        tag = part.tag.removeprefix(DRAWN)
        if tag not in ELEMENTS:
            found.append(f"{name}: element {tag}")
        found += [f"{name}: attribute {x}" for x in set(part.attrib) - ATTRIBUTES]
        for word in part.get("class", "").split():
            if f".{word} " not in style and f".{word}," not in style:
                found.append(f"{name}: class {word} has no rule")
        right = float(part.get("x", 0)) + float(part.get("width", 0))
        below = float(part.get("y", 0)) + float(part.get("height", 0))
        if part is not root and (right > width or below > height):
            found.append(f"{name}: {tag} is outside")
    for word in ("title", "desc"):
        if not (root.findtext(f"{DRAWN}{word}") or "").strip():
            found.append(f"{name}: no {word}")
    return found


def test_each_drawing_has_the_form_that_pages_need() -> None:
    style = (TOP / "docs/theme/ipclab.css").read_text()
    assert KNOWN
    found = [x for name, svg in KNOWN.items() for x in wrong(name, svg, style)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('class="block"', 'class="blok"', "class blok has no rule"),
        ("<text ", "<script/><text ", "element script"),
        ('class="head"', 'fill="#123456"', "attribute fill"),
        ('x="106"', 'x="306"', "rect is outside"),
        ("<desc>The", "<desc/><desc>The", "no desc"),
    ],
)
def test_a_fault_of_a_drawing_is_noticed(old: str, new: str, told: str) -> None:
    style = (TOP / "docs/theme/ipclab.css").read_text()
    planted = KNOWN["process_memory"].replace(old, new, 1)
    assert any(told in x for x in wrong("one", planted, style))


def test_text_is_large_enough_for_a_phone() -> None:
    """A drawing is 340 units wide, and a phone shows it 328 pixels wide."""
    style = drawings.files(TOP, KNOWN)["ring.svg"].partition("</style>")[0]
    rules = [x for x in style.splitlines() if x.startswith(".drawing")]
    sizes = [int(x) for rule in rules for x in SIZE.findall(rule)]
    assert sizes and min(sizes) >= 12
    assert {svg.partition('viewBox="0 0 ')[2][:3] for svg in KNOWN.values()} == {"340"}


def test_a_file_to_download_needs_no_other_file(site: Site) -> None:
    for name in KNOWN:
        file = site.folder / "drawings" / f"{name}.svg"
        text = file.read_text()
        assert file.stat().st_size < LARGEST, name
        assert "--ink: #1c2733" in text and "prefers-color-scheme: dark" in text
        used = set(re.findall(r"var\((--\w+)\)", text))
        assert used <= set(re.findall(r"(--\w+):", text)), name
        ElementTree.parse(file)


def test_each_drawing_is_on_a_page_and_on_the_page_of_drawings(site: Site) -> None:
    pages = {x.name: x.read_text() for x in site.pages if x.name != "book.html"}
    for name, svg in KNOWN.items():
        title = svg.partition("<title>")[2].partition("</title>")[0]
        having = {x for x, text in pages.items() if f"<title>{title}<" in text}
        assert "drawings.html" in having and len(having) > 1, f"{name}: {having}"


def test_a_drawing_without_a_description_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "docs/drawings"
    folder.mkdir(parents=True)
    (folder / "one.svg").write_text("<svg><title>One</title></svg>")
    with pytest.raises(recorded.Missing, match=r"one\.svg: has no <desc>"):
        drawings.read(tmp_path)
