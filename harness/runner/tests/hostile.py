"""Files that a damaged or hostile node could hand in: special files, JSON of another
form, names that are no text; and mutations of good files from a seed.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import copy
import gzip
import json
import os
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ipclab import manifest

Damage = Callable[[Path], None]
DEEP = "[" * 200_000
HUGE = 2 * 2**30  # bytes of a sparse file


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def listens(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as one:
        here = os.open(path.parent, os.O_RDONLY)  # the path may be too long
        one.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)


def link(target: str) -> Damage:
    def damage(path: Path) -> None:
        path.unlink()
        path.symlink_to(target)

    return damage


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def sparse(path: Path) -> None:
    os.truncate(path, HUGE)


def unreadable(path: Path) -> None:
    path.unlink()


def text(data: str | bytes) -> Damage:
    def damage(path: Path) -> None:
        path.write_bytes(data.encode() if isinstance(data, str) else data)

    return damage


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def utf16(path: Path) -> None:
    path.write_bytes(path.read_text().encode("utf-16"))


def field(value: Any, *steps: str | int, seal: bool = True) -> Damage:
    """Set a field of a JSON file, and perhaps compute its digest again."""

    def damage(path: Path) -> None:
        document = json.loads(path.read_text())
        part = document
        for step in steps[:-1]:
            part = part[step]
        part[steps[-1]] = value
        if seal:
            document = manifest.sealed(document)
        path.write_text(json.dumps(document))

    return damage


SPECIAL: dict[str, Damage] = {  # for every file
    "fifo": fifo,
    "socket": listens,
    "zeros": link("/dev/zero"),
    "terminal": link("/dev/tty"),
    "memory": link("/proc/self/mem"),
    "loop": link("loop/loop"),
    "dangling": link("nowhere"),
    "folder": folder,
    "sparse": sparse,
    "missing": unreadable,
    "empty": text(""),
    "half": half,
    "bytes": text(bytes(range(256)) * 100),
}
DOCUMENT: dict[str, Damage] = {  # for every JSON document
    **SPECIAL,
    "list": text("[1]"),
    "null": text("null"),
    "number": text("1e999"),
    "digits": text('{"version": ' + "9" * 5000 + "}"),
    "nan": text('{"version": NaN}'),
    "deep": text(DEEP),
    "deep objects": text('{"a":' * 100_000),
    "surrogate": text('{"version": "\\ud800"}'),
    "utf-16": utf16,
    "wide": text("[" + "[]," * 1_900_000 + "[]]"),
}
PACKED: dict[str, Damage] = {
    **SPECIAL,
    "bomb": text(gzip.compress(b"x" * 2**26)),
    "tail": text(gzip.compress(b"{}\n") + b"more"),
    "long name": text(b"\x1f\x8b\x08\x08" + bytes(6) + b"x" * 2**20),
}
FIELDS: dict[str, tuple[str, Damage]] = {
    "moment": ("run.json", field("2026-13-45T99:00:00+00:00", "started")),
    "moment and more": ("run.json", field("2026-01-01T00:00:00+00:00x", "started")),
    "early": ("run.json", field("0001-01-01T00:00:00+14:00", "started")),
    "reason": ("node.json", field(None, "answers", 0, "reason")),
    "escape": ("run.json", field("\x1b]0;title\x07\x1b[2J", "machine")),
    "digest": ("run.json", field("\u202e", "digest", seal=False)),
    "name": ("node.json", field("\x1b[2J", "node")),
    "tests": ("run.json", field({}, "manifest", "tests")),
    "programs": ("run.json", field({"../../x": "0"}, "manifest", "programs")),
    "problems": ("run.json", field([None], "problems")),
}
NAMES = (
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\x1b[31mred",
    b"a\nb",
    b".part",
    b"..part",
    b"x" * 255,
    b"-rf",
    b"<b>",
    b"9" * 200,
)


def nodes(folder: Path, good: Callable[[str], Path]) -> Iterator[str]:
    """Make hostile nodes in FOLDER/nodes; yields the name of each.

    `good` makes a good node of this name.
    """
    for file, damages in (
        ("run.json", DOCUMENT),
        ("node.json", DOCUMENT),
        ("records.jsonl.gz", PACKED),
    ):
        for what, damage in damages.items():
            name = f"{file.partition('.')[0]}-{what.replace(' ', '-')}"
            damage(good(name) / file)
            yield name
    for what, (file, damage) in FIELDS.items():
        name = f"field-{what.replace(' ', '-')}"
        damage(good(name) / file)
        yield name
    for number, raw in enumerate(NAMES):
        path = os.path.join(os.fsencode(folder / "nodes"), raw)  # noqa: PTH118
        if number % 2:
            os.mkdir(path)  # noqa: PTH102
        else:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        yield os.fsdecode(raw)
    for name, target in (("to-root", "/"), ("to-itself", "to-itself"), ("to-n1", "n1")):
        (folder / "nodes" / name).symlink_to(target)
        yield name


# --- mutations ----------------------------------------------------------------

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 2**53, 10**19, 1e300, -(10**18)),
    *("", "x", "x" * 5000, "\ud800", "\x00", "\x1b[2J", "\u202e", "../..", "{{ 1 }}"),
    *("2026-13-45T99:99:99+00:00", "0001-01-01T00:00:00+14:00", "580.\u0661"),
    *("2026-02-30", "9" * 400, "NaN", "<script>", [], {}, [[]], [None], {"": None}),
)


def mutated(data: bytes, chance: random.Random) -> bytes:
    """One damage to the bytes of a file."""
    at, end = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    match chance.randrange(5):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + data[end:]
        case 2:
            return data[:at] + data[at:end] * 2 + data[end:]
        case 3:
            return data[:at] + chance.randbytes(chance.randrange(1, 9)) + data[at:]
        case _:
            spot = chance.randrange(len(data))
            return data[:spot] + bytes([chance.randrange(256)]) + data[spot + 1 :]


def altered(value: Any, chance: random.Random) -> Any:
    """A copy of a JSON value in which one part is something odd, missing or new."""
    made = {"all": copy.deepcopy(value)}
    places: list[tuple[Any, Any]] = []
    left: list[Any] = [made]
    while left:
        part = left.pop()
        keys = list(part) if isinstance(part, dict) else list(range(len(part)))
        places += [(part, key) for key in keys]
        left += [part[key] for key in keys if isinstance(part[key], dict | list)]
    part, key = chance.choice(places)
    match chance.randrange(4):
        case 0 if part is not made:
            del part[key]
        case 1 if isinstance(part, dict) and part is not made:
            part[chance.choice(("", "more", "\x1b]0;\n", "id"))] = part.pop(key)
        case _:
            part[key] = copy.deepcopy(chance.choice(ODD))
    return made["all"]
