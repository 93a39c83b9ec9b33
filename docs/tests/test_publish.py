"""Versions of the book are side by side, each complete.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from conftest import Site
from generator import publish


def test_versions_are_listed_newest_first(site: Site, tmp_path: Path) -> None:
    pdf = tmp_path / "a.pdf"
    pdf.write_bytes(b"%PDF-")
    old = Path(shutil.copytree(site.folder, tmp_path / "old"))
    index = old / "index.html"
    index.write_text(re.sub(r"Version [\d.]+\.", "Version 0.0.9.", index.read_text()))
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    for html in (old, site.folder, site.folder):
        publish.publish(html, pdf, shelf)
    found = publish.versions(shelf)
    assert len(found) == 2 and found[1] == "0.0.9"
    page = (shelf / "index.html").read_text()
    assert page.index(f"{found[0]}/index.html") < page.index("0.0.9/index.html")
    for version in found:
        assert (shelf / version / "lesson_01.html").exists()
        assert (shelf / version / publish.BOOK).read_bytes() == b"%PDF-"


def test_a_folder_that_is_no_site_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("x")
    with pytest.raises(ValueError, match="names no version"):
        publish.publish(tmp_path, tmp_path / "a.pdf", tmp_path / "b")
