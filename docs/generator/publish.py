"""Puts versions of the book side by side in one folder, for a server or a USB stick.

    python -m generator.publish HTML PDF FOLDER

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import re
import shutil
import sys
from html import escape
from pathlib import Path

VERSION = re.compile(r'<p class="version">Version ([^<]*?)\. <a')
BOOK = "ipclab-book.pdf"


def publish(html: Path, pdf: Path, folder: Path) -> Path:
    """Copy a site and its PDF to FOLDER/VERSION; write and return the list of versions.

    Raises ValueError if `html` is not a site of this project. A version that already
    exists is replaced.
    """
    found = VERSION.search((html / "index.html").read_text())
    if found is None:
        raise ValueError(f"{html}: its index.html names no version")
    into = folder / found[1]
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(html, into)
    shutil.copy(pdf, into / BOOK)
    shutil.copy(html / "ipclab.css", folder)
    index = folder / "index.html"
    index.write_text(_index(versions(folder)))
    return index


def versions(folder: Path) -> list[str]:
    """The versions in a folder, newest first."""
    names = [path.parent.name for path in folder.glob("*/index.html")]
    return sorted(names, key=lambda x: [int(n) for n in re.findall(r"\d+", x)])[::-1]


def _index(found: list[str]) -> str:
    items = "".join(
        f'<li><a href="{escape(x)}/index.html">ipclab {escape(x)}</a>, '
        f'<a href="{escape(x)}/{BOOK}">PDF</a></li>\n'
        for x in found
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<title>ipclab: versions</title>\n"
        '<link rel="stylesheet" href="ipclab.css">\n</head>\n<body class="whole">\n'
        f"<main>\n<h1>CUDA IPC, lesson by lesson</h1>\n<ul>\n{items}</ul>\n</main>\n"
        "</body>\n</html>\n"
    )


if __name__ == "__main__":
    html_folder, book, target = map(Path, sys.argv[1:])
    target.mkdir(parents=True, exist_ok=True)
    print(f"versions: {publish(html_folder, book, target)}")
