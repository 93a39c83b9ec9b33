"""Reads the files of the site without a browser.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from generator import links

IN_INDEX = re.compile(r'^\["([^"]+)"', re.MULTILINE)


class Names(HTMLParser):
    """Collects the addresses on a page, and the targets of fragments."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.fragments: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Looks at the attributes of an element."""
        for name, value in attrs:
            if value and name in ("href", "src", "xlink:href"):
                self.addresses.append(value)
            if value and (name == "id" or (tag == "a" and name == "name")):
                self.fragments.add(value)


class Unlinked(HTMLParser):
    """Collects the functions that the text of a page names outside of links."""

    def __init__(self, text: str, known: Mapping[str, str]) -> None:
        super().__init__()
        self.found: list[str] = []
        self._known = known
        self._inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        """Notes the beginning of an element in which no name becomes a link."""
        if tag in links.CLOSED or self.get_starttag_text() == links.TITLE:
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Notes where such an element ends."""
        if tag in self._inside:
            self._inside.remove(tag)

    def handle_data(self, data: str) -> None:
        """Looks at a piece of text."""
        if not self._inside:
            self.found += [x for x in links.NAME.findall(data) if x in self._known]


def dead_links(folder: Path) -> list[str]:
    """`page: address` for each dead link of the pages and of the search index.

    Links to other sites are not checked.
    """
    pages = {path.name: Names(path.read_text()) for path in folder.glob("*.html")}
    named = {name: page.addresses for name, page in pages.items()}
    named |= {x.name: IN_INDEX.findall(x.read_text()) for x in folder.glob("*.js")}
    found = []
    for name, addresses in named.items():
        for address in addresses:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = unquote(parts.path) or name
            if not (folder / target).exists() or (
                parts.fragment
                and target in pages
                and unquote(parts.fragment) not in pages[target].fragments
            ):
                found.append(f"{name}: {address}")
    return found
