"""What a site on the web needs: descriptions, a page for wrong addresses, a feed and a
map of the site. docs/site.json says where the site is.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import json
import re
import subprocess
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from urllib.parse import urlsplit

from generator import frame
from generator.recorded import Missing
from ipclab.findings import Finding

FEED, NOT_FOUND = "findings.xml", "404"
LENGTH = 160  # characters of a description; a longer one is cut by those who show it
# What a description leaves out, and the elements that end a word.
SKIPPED = re.compile(r"<(svg|pre|template|table|details)\b.*?</\1>", re.DOTALL)
ENDS = re.compile(r"</?(?:p|div|li|[uo]l|h\d|br|figcaption|dd|dt)\b[^>]*>")
ADDRESS = re.compile(r'\b(href|src)="(?!https?:|#|data:)')


@dataclass(frozen=True)
class Place:
    """Where the site and the repository are; both may be empty."""

    address: str  # ends with a slash
    repository: str


def place(file: Path) -> Place:
    """The settings. Raises Missing if one of them is no address of the web."""
    settings = json.loads(file.read_text())
    for name in ("address", "repository"):
        if settings[name] and not urlsplit(settings[name]).netloc:
            raise Missing(
                f"{file}: {name}: write an address such as https://example.org/ipclab/"
                f", or nothing, not {settings[name]!r}"
            )
    address = settings["address"]
    return Place(address and address.rstrip("/") + "/", settings["repository"])


def description(body: str) -> str:
    """The beginning of a page as text, at most LENGTH characters of whole words.

    >>> description("<table><tr><td>fact</td></tr></table><p>One.</p><p>Two.</p>")
    'One. Two.'
    """
    text = frame.text_of(ENDS.sub(" ", SKIPPED.sub(" ", body)))
    if len(text) <= LENGTH:
        return text
    return text[: LENGTH - 1].rpartition(" ")[0].rstrip(",;:") + "…"


def not_found() -> frame.Page:
    """The page that a server shows if an address has no page."""
    return frame.Page(
        NOT_FOUND,
        "This page does not exist",
        "<p>The address is wrong, or the page has another name now. Search above for a "
        "word, a call or an error code, or begin here:</p>\n<ul>\n"
        '<li><a href="index.html">Start</a></li>\n'
        '<li><a href="lessons.html">All lessons</a></li>\n'
        '<li><a href="errors.html">Error dictionary</a></li>\n'
        '<li><a href="rules.html">All rules</a></li>\n</ul>\n',
    )


def from_everywhere(page: str, where: Place) -> str:
    """A page whose links are right at each address for which a server shows it."""
    return ADDRESS.sub(rf'\1="{where.address}', page) if where.address else page


def site_map(where: Place, names: Iterable[str]) -> str:
    """The addresses of all pages, for search engines."""
    listed = "".join(f"<url><loc>{where.address}{x}</loc></url>\n" for x in names)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n'
        f"{listed}</urlset>\n"
    )


def feed(where: Place, found: Iterable[Finding]) -> str:
    """The findings as an Atom feed, the newest first."""
    dated = sorted(((changed(x.folder), x) for x in found), key=lambda x: x[0])[::-1]
    entries = ""
    for when, finding in dated:
        page = f"{where.address}finding_{finding.number:02}.html"
        entries += (
            f"<entry>\n<title>{escape(finding.about['title'])}</title>\n"
            f"<id>{_identity(finding.topic)}</id>\n"
            f"<updated>{when}</updated>\n"
            f'<link href="{page}"/>\n'
            f"<summary>Severity: {escape(finding.severity)}. "
            f"{escape(finding.about['hit'])}</summary>\n</entry>\n"
        )
    latest = dated[0][0] if dated else datetime.fromtimestamp(0, UTC).isoformat()
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<feed xmlns="http://www.w3.org/2005/Atom">\n'
        "<title>ipclab: findings in real drivers</title>\n"
        f"<id>{_identity('findings')}</id>\n<updated>{latest}</updated>\n"
        "<author><name>The maintainers of ipclab</name></author>\n"
        f'<link rel="self" href="{where.address}{FEED}"/>\n'
        f'<link href="{where.address}findings.html"/>\n{entries}</feed>\n'
    )


def changed(folder: Path) -> str:
    """When a folder was last changed: the time of its commit, or, without a repository,
    of its newest file."""
    try:
        said = subprocess.run(
            ["git", "log", "-1", "--format=%ct", "--", "."],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout.strip()
    except OSError:  # no git
        said = ""
    seconds = int(said or max(x.stat().st_mtime for x in folder.iterdir()))
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _identity(name: str) -> str:
    """The same for the same name, wherever the site is."""
    return uuid.uuid5(uuid.NAMESPACE_OID, f"ipclab {name}").urn
