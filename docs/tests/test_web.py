"""What the site needs on the web, and the figures of its front page.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import json
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from conftest import TOP, Site
from generator import frame, front, navigation, recorded, web
from generator import site as pages
from ipclab import findings

ATOM = "{http://www.w3.org/2005/Atom}"
HERE = web.Place("https://example.org/book/", "https://example.org/code")
LARGEST = 300_000  # bytes of the front page with all that it loads


def meta(page: str, name: str) -> str:
    """The content of a <meta> of a page; empty if it has none."""
    found = re.search(rf'<meta (?:name|property)="{name}" content="([^"]*)"', page)
    return unescape(found[1]) if found else ""


def test_a_description_has_whole_words() -> None:
    page = "<div>You need</div><p>one GPU.</p><svg><text>no</text></svg><p>Two.</p>"
    assert web.description(page) == "You need one GPU. Two."
    cut = web.description(f"<p>{'word ' * 60}</p>")
    assert len(cut) <= web.LENGTH and cut.endswith(" word…")


def test_every_page_has_a_title_and_a_description(site: Site) -> None:
    for path in site.pages:
        if path.name == "book.html":
            continue
        page = path.read_text()
        assert meta(page, "og:title"), path.name
        told = meta(page, "description")
        assert told == meta(page, "og:description"), path.name
        assert len(told) <= web.LENGTH and "MINUTES" not in told, path.name
    assert meta(site.text("lesson_21.html"), "description").startswith("A handle names")


def test_the_list_of_lessons_says_how_long_each_takes(
    site: Site, lessons: list[dict[str, Any]]
) -> None:
    page = site.text("lessons.html")
    told = re.findall(r"(\d+) minutes, (?:first|further|advanced), \d GPU", page)
    assert len(told) == len(lessons)
    assert f"about {told[0]} minutes" in site.text("lesson_00.html")


def test_an_address_is_an_address(tmp_path: Path) -> None:
    file = tmp_path / "site.json"
    settings = {"address": "https://example.org/book", "repository": HERE.repository}
    file.write_text(json.dumps(settings))
    assert web.place(file) == HERE
    file.write_text(json.dumps({"address": "example.org", "repository": ""}))
    with pytest.raises(recorded.Missing, match=r"address: write an address such as"):
        web.place(file)


def test_the_settings_of_the_repository_are_right() -> None:
    web.place(TOP / "docs/site.json")


def test_with_an_address_a_page_names_itself_and_the_repository() -> None:
    book = navigation.book({"five": "Five"}, [])
    template = pages._environment().get_template("page.html.j2")
    page = frame.Page("five", "Five", "<p>Text.</p>")
    text = pages.framed(template, book, page, "1", HERE)
    here = "https://example.org/book/five.html"
    assert f'<link rel="canonical" href="{here}">' in text
    assert meta(text, "og:url") == here
    assert meta(text, "og:image") == "https://example.org/book/preview.png"
    assert '<a href="https://example.org/code">Repository</a>' in text
    text = pages.framed(template, book, page, "1", web.Place("", ""))
    assert "canonical" not in text and "og:url" not in text
    assert "Repository" not in text


def test_the_page_for_wrong_addresses_is_right_everywhere() -> None:
    page = '<a href="#content"></a><a href="index.html"><link href="https://a/b">'
    assert web.from_everywhere(page, HERE) == (
        '<a href="#content"></a><a href="https://example.org/book/index.html">'
        '<link href="https://a/b">'
    )
    assert web.from_everywhere(page, web.Place("", "")) == page


def test_the_site_has_a_page_for_wrong_addresses(site: Site) -> None:
    page = site.text("404.html")
    assert "This page does not exist" in page and 'href="lessons.html"' in page
    assert '["404.html' not in site.text("index.js")


def test_the_map_of_the_site_has_whole_addresses() -> None:
    root = ElementTree.fromstring(web.site_map(HERE, ["index.html", "five.html"]))
    assert [x.text for x in root.iter() if x.tag.endswith("loc")] == [
        "https://example.org/book/index.html",
        "https://example.org/book/five.html",
    ]


def test_the_feed_has_each_finding_once(site: Site) -> None:
    known = findings.read(TOP)
    root = ElementTree.fromstring(site.text(web.FEED))
    entries = root.findall(f"{ATOM}entry")
    assert {x.findtext(f"{ATOM}title") for x in entries} == {
        x.about["title"] for x in known
    }
    names = [x.findtext(f"{ATOM}id") for x in entries]
    assert len(set(names)) == len(known)
    times = [str(x.findtext(f"{ATOM}updated")) for x in entries]
    assert times == sorted(times, reverse=True)
    assert root.findtext(f"{ATOM}updated") == times[0]
    for entry in entries:
        link = entry.find(f"{ATOM}link")
        assert link is not None and (site.folder / link.attrib["href"]).exists()


def test_a_change_has_the_time_of_its_commit(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    commit = [
        *("git", "-c", "user.name=a", "-c", "user.email=a@example.org", "commit"),
        *("-q", "-m", "a", "--date", "@1000000000 +0000"),
    ]
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "a"], cwd=tmp_path, check=True)
    subprocess.run(
        commit,
        cwd=tmp_path,
        check=True,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "GIT_COMMITTER_DATE": "@1000000000 +0000",
        },
    )
    assert web.changed(tmp_path) == "2001-09-09T01:46:40+00:00"


def test_the_picture_for_previews_has_the_size_that_they_need(site: Site) -> None:
    head = (site.folder / "preview.png").read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(head[16:20]), int.from_bytes(head[20:24])) == (1200, 630)


def test_the_front_page_is_small(site: Site) -> None:
    page = site.text("index.html")
    links = r'<(?:link rel="(?:icon|stylesheet)" href|script src)="(.*?)"'
    loaded = re.findall(links, page)
    assert len(loaded) == 3
    sizes = [(site.folder / x).stat().st_size for x in ["index.html", *loaded]]
    assert sum(sizes) < LARGEST


def test_the_figures_are_those_of_the_records() -> None:
    table = (
        "| 1 KiB | 2.11 | 5.64 | 0.37 | goal |\n| 1 MiB | 5.31 | 13.54 | 0.391 | x |\n"
        "| 2 MiB | 14.44 | 26.59 | 0.54 | - |\n"
    )
    assert front.all_reduce(table) == ("0.37", "0.391")
    with pytest.raises(recorded.Missing, match="lesson 72: no table of ratios"):
        front.all_reduce("| 2 MiB | 14.44 | 26.59 | 0.54 | - |\n")


def test_a_record_without_the_speeds_is_one_clear_error(tmp_path: Path) -> None:
    file = tmp_path / "sharing.jsonl"
    speeds = [("memory of its own", 10), ("legacy handle", 9)]
    lines = [
        json.dumps({"way": way, "gpu": 0, "mib": 2, "gb_per_s": speed})
        for way, speed in speeds
    ]
    file.write_text("\n".join(lines))
    assert front.bandwidth(file) == (9, 10)
    file.write_text(lines[0])
    with pytest.raises(recorded.Missing, match=r"no speed of a legacy handle"):
        front.bandwidth(file)
