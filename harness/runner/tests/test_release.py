"""ci/release in a small repository, with stubs for site and wheel."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).parents[3]
REAL = (
    "ci/release",
    "ci/common.sh",
    "CMakeLists.txt",
    "conformance/deviations.json",
    "harness/runner/src/ipclab/__init__.py",
)
# The program of the second one is a matter of security.
FINDINGS = (
    "docs/findings/03_refused_pool_export/refused_pool_export.cu",
    "docs/findings/07_stale_handle/stale_handle.cu",
    "docs/findings/07_stale_handle/stale_handle.json",
)
STUBS = {
    # The site of a release names the new version.
    "ci/docs": "mkdir -p build/dev/docs/html; "
    "sed -n 's/^project(//p' CMakeLists.txt >build/dev/docs/html/index.html; "
    ": >build/dev/docs/ipclab-book.pdf",
    "ci/package": "mkdir -p dist; echo wheel > dist/ipclab.whl; [[ ! -e no_wheel ]]",
}


def call(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in a folder."""
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A committed tree whose change log begins with 7.8.9."""
    folder = tmp_path / "repository"
    for name in REAL:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(TOP / name, folder / name)
    for name, line in STUBS.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{line}\n")
        (folder / name).chmod(0o755)
    for name in FINDINGS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(TOP / name, folder / name)
    text = "# What changed\n\n## 7.8.9, not released\n\n- A thing.\n"
    (folder / "docs" / "CHANGELOG.md").write_text(text)
    (folder / ".gitignore").write_text("/build/\n/dist/\n/no_wheel\n")
    for command in (
        ["init", "-q"],
        ["config", "user.name", "test"],
        ["config", "user.email", "test@example.com"],
        ["add", "-A"],
        ["commit", "-qm", "All"],
    ):
        assert call(folder, "git", *command).returncode == 0
    return folder


def test_a_release(repository: Path) -> None:
    done = call(repository, "ci/release", "7.8.9")
    assert done.returncode == 0, done.stderr
    assert "## 7.8.9, 2" in (repository / "docs" / "CHANGELOG.md").read_text()
    assert "VERSION 7.8.9" in (repository / "CMakeLists.txt").read_text()
    version = repository / "harness/runner/src/ipclab/__init__.py"
    assert '__version__ = "7.8.9"' in version.read_text()
    assert call(repository, "git", "status", "--porcelain").stdout == ""
    assert call(repository, "git", "tag").stdout == "v7.8.9\n"
    site = repository / "build/dev/docs/html/index.html"
    assert "VERSION 7.8.9" in site.read_text()
    files = sorted(x.name for x in (repository / "dist").iterdir())
    sources = "ipclab-7.8.9.tar.gz"
    archive, book = "ipclab-7.8.9-site.tar.gz", "ipclab-7.8.9-book.pdf"
    assert files == ["SHA256SUMS", book, archive, sources, "ipclab.whl", "site"]
    check = subprocess.run(
        ["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=repository / "dist"
    )
    assert check.returncode == 0
    again = call(repository, "ci/release", "7.8.9")
    assert (again.returncode, again.stderr) == (
        3,
        "release: v7.8.9 is released already\n",
    )


@pytest.mark.parametrize("option", [(), ("--with-security",)])
def test_what_is_a_matter_of_security_is_held_back(
    repository: Path, option: tuple[str, ...]
) -> None:
    done = call(repository, "ci/release", "7.8.9", *option)
    assert done.returncode == 0, done.stderr
    packed = call(repository, "tar", "tf", "dist/ipclab-7.8.9.tar.gz").stdout
    kept = [name in packed for name in FINDINGS]
    assert kept == [True, bool(option), True]


@pytest.mark.parametrize(
    ("version", "code", "text"),
    [
        ("7.9", 2, "usage: ci/release VERSION"),
        ("7.9.0", 3, "must be '## 7.9.0, not released', not '7.8.9'"),
    ],
)
def test_a_version_that_cannot_be(
    repository: Path, version: str, code: int, text: str
) -> None:
    done = call(repository, "ci/release", version)
    assert done.returncode == code
    assert text in done.stderr


def test_nothing_is_released_from_changed_files(repository: Path) -> None:
    (repository / "new").touch()
    done = call(repository, "ci/release", "7.8.9")
    assert done.returncode == 3
    assert "changes that are not committed" in done.stderr


def test_without_a_wheel_nothing_changes(repository: Path) -> None:
    (repository / "no_wheel").touch()
    done = call(repository, "ci/release", "7.8.9")
    assert done.returncode == 3
    assert "nothing was changed" in done.stderr
    assert call(repository, "git", "status", "--porcelain").stdout == ""
    assert call(repository, "git", "tag").stdout == ""


def test_the_versions_agree() -> None:
    """Package and build agree; the log begins with this version or the next."""

    def found(expression: str, file: str) -> re.Match[str]:
        match = re.search(expression, (TOP / file).read_text(), re.MULTILINE)
        assert match, f"{file}: no {expression}"
        return match

    version = found(r'^__version__ = "(.*)"', "harness/runner/src/ipclab/__init__.py")
    project = found(r"^project\(ipclab VERSION (\S+)", "CMakeLists.txt")
    first = found(r"^## (\S+), (.*)$", "docs/CHANGELOG.md")
    assert version[1] == project[1]

    def number(text: str) -> list[int]:
        return [int(x) for x in text.split(".")]

    if first[2] == "not released":
        assert number(first[1]) > number(version[1])
    else:
        assert first[1] == version[1]
