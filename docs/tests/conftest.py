"""The built site, and the tools of its tests.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import Browser
from generator import links

TOP = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("IPCLAB_BUILD", TOP / "build/dev"))


# Kind of similar pages -> n: the browser tests open every nth page of this kind.
ALIKE = {
    "rule_": 60,
    "class|struct|namespace|group__": 12,
    r".*_8h[.]html": 6,
    "lesson_": 6,
    "rules_": 8,
}


class Site:
    """A folder of pages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def pages(self) -> list[Path]:
        """All pages; slides are not pages of the book."""
        return sorted(set(self.folder.glob("*.html")) - set(self.slides))

    @property
    def slides(self) -> list[Path]:
        """The slides of the workshop, one file for each path."""
        return sorted(self.folder.glob("slides_*.html"))

    @property
    def some(self) -> list[Path]:
        """Every page that has no kind in ALIKE, and some pages of each kind.

        With IPCLAB_NIGHTLY=1 these are all pages. Then the tests need half an hour.
        """
        if os.environ.get("IPCLAB_NIGHTLY") == "1":
            return self.pages
        shown = []
        alike: dict[str, int] = {}
        for path in self.pages:
            kind = next((x for x in ALIKE if re.match(x, path.name)), "")
            alike[kind] = alike.get(kind, -1) + 1
            if not kind or alike[kind] % ALIKE[kind] == 0:
                shown.append(path)
        return shown

    def text(self, page: str) -> str:
        """The source of a page, for example lesson_01.html, without <wbr> in names."""
        return (self.folder / page).read_text().replace("<wbr>", "")

    def change(self, page: str, old: str, new: str) -> None:
        """Plants a fault: replaces `old`. Fails if the page does not have `old`."""
        text = (self.folder / page).read_text()
        assert old in text, f"{page} has no {old!r}"
        (self.folder / page).write_text(text.replace(old, new))


@pytest.fixture(scope="session")
def site() -> Site:
    """The site as it was built."""
    folder = BUILD / "docs/html"
    assert (folder / "index.html").exists(), f"no site in {folder}: run ci/docs"
    return Site(folder)


@pytest.fixture
def copy(site: Site, tmp_path: Path) -> Site:
    """A copy to plant faults in."""
    return Site(Path(shutil.copytree(site.folder, tmp_path / "html")))


@pytest.fixture(scope="session")
def lessons() -> list[dict[str, Any]]:
    """lessons.json of the build."""
    return list(json.loads((BUILD / "lessons.json").read_text()))


@pytest.fixture(scope="session")
def references() -> dict[str, str]:
    """The address of each function's reference."""
    return links.references(BUILD / "docs/generated/cuda.tag")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One headless Chromium for all tests of the session."""
    with Browser() as one:
        yield one
