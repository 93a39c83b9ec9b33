"""Digests of what a run used and of what it made: `manifest` in run.json.

`ipclab verify` compares a results folder with its manifest. All digests are SHA-256.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ipclab import ctest, declarations, packed, requirements
from ipclab.ctest import Case

DECLARED = "fault"  # before the name of a fault, in the digests of the sources

_known: dict[tuple[str, int, int, int, int], str] = {}


def of_file(path: Path) -> str | None:
    """The digest of a file; None if it cannot be read.

    A file is read once. It is read again only if the system says that it has changed.
    """
    try:
        with path.open("rb") as stream:
            now = os.fstat(stream.fileno())
            key = str(path), now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns
            if key not in _known:
                _known[key] = hashlib.file_digest(stream, "sha256").hexdigest()
            return _known[key]
    except OSError:
        return None


def of_data(rows: Path, entries: Path) -> dict[str, str | None]:
    """The digests of the catalogue as one text (requirements.json), and of
    deviations.json.
    """
    return {
        "requirements.json": requirements.digest(rows),
        "deviations.json": of_file(entries),
    }


def of_programs(
    build: Path, cases: Iterable[Case], backend: str
) -> dict[str, str | None]:
    """The digest of each program that the tests start, and on the model of its
    libraries.

    Every word of a test's command that is a file in the build or source folder counts
    as a program. Interpreters and libraries of the system have no digest here.
    """
    model = packed.part(build, "model").resolve()
    roots = [build.resolve(), model.parent, ctest.source_folder(build).resolve()]
    found: dict[str, Path] = {}
    for path in _files(build, cases, backend):
        for root in roots:
            if path.is_relative_to(root):
                found.setdefault(str(path.relative_to(root)), path)
                break
    return {name: of_file(found[name]) for name in sorted(found)}


def of_sources(source: Path) -> dict[str, str | None]:
    """The digest of each source file from which the programs are built, and of each
    named fault: its declaration with what it uses (`fault/NAME`).

    nvcc writes its process id into some programs, so the programs of two builds of the
    same sources can differ.
    """
    named = declarations.digests(declarations.texts(source))
    return {f"{DECLARED}/{name}": digest for name, digest in named.items()} | {
        str(path.relative_to(source)): of_file(path)
        for folder in ("samples", "conformance", "harness")
        for path in sorted((source / folder).rglob("*"))
        if path.suffix in (".cu", ".cc", ".h", ".inc", ".cmake")
        or path.name == "CMakeLists.txt"
    }


def sealed(document: dict[str, Any]) -> dict[str, Any]:
    """The document with its own digest added in the field `digest`."""
    return {**document, "digest": of_document(document)}


def of_document(document: dict[str, Any]) -> str:
    """The digest of a JSON document without its field `digest`; the layout of its text
    does not matter.
    """
    rest = {name: value for name, value in document.items() if name != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return of_bytes(text.encode())


def edits(document: dict[str, Any], seal: dict[str, Any]) -> Iterator[str]:
    """What of a run was edited or damaged since it has finished, one line each. `seal`
    is that of its records now.
    """
    if document["digest"] != of_document(document):
        yield "run.json: was edited after the run: its digest does not match"
        return
    written = document["manifest"]["records"]
    if document["state"] == "finished" and written is None:
        yield "run.json: finished, but without the digest of the records"
    elif written is not None and seal != written:
        yield (
            f"records.jsonl: was edited or damaged after the run: {_told(seal)}; "
            f"written were {_told(written)}"
        )


def _told(seal: dict[str, Any]) -> str:
    return f"{seal['count']} records, {seal['bytes']} bytes, {seal['sha256'][:12]}…"


def of_bytes(data: bytes) -> str:
    """The digest of these bytes."""
    return hashlib.sha256(data).hexdigest()


def _files(build: Path, cases: Iterable[Case], backend: str) -> Iterable[Path]:
    for case in cases:
        for word in case.command:
            path = Path(case.folder, word)
            if path.is_file():
                yield path.resolve()
    if backend == "model":
        yield from (x.resolve() for x in packed.part(build, "model").rglob("lib*.so*"))
