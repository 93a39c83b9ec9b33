"""Races that the reference model finds: `ipclab model --race -- PROGRAM`."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipclab.errors import UsageError

VARIABLE = "IPCLAB_MODEL_RACE"
SHOWN = 5  # findings that fit on one screen

# In LD_PRELOAD, this library of the model's folder sees messages between processes.
MESSAGES = Path("messages") / "libipclab_messages.so"

# The layout of `File` in harness/model/core/race_file.h.
_MAGIC = b"ipcrace\0"
_HEADER = struct.Struct("<8sIIIII")  # magic, lock, full, findings, streams, unseen
_FINDINGS, _FINDING, _KEY = 4096, 2048, 8


@dataclass(frozen=True)
class Races:
    """What a run showed."""

    findings: tuple[dict[str, Any], ...]
    used: bool  # did any process of the run use the model?
    full: bool  # the file had no room: not everything was looked at
    unseen: int = 0  # a process whose messages nobody saw


def watch(
    command: Sequence[str], variables: Mapping[str, str], quiet: bool = False
) -> tuple[int, Races]:
    """Run a program and its children, and look for races.

    With `quiet`, what the program prints goes to standard error. Returns the program's
    exit code (128 + number if a signal ended it) and the races.
    Raises UsageError if the program cannot start.
    """
    file = os.memfd_create("ipclab-race")
    try:
        path = f"/proc/{os.getpid()}/fd/{file}"
        try:
            program = subprocess.Popen(
                command,
                env={**variables, VARIABLE: path},
                stdout=sys.stderr if quiet else None,
            )
        except OSError as error:
            raise UsageError(f"{command[0]}: {error.strerror}") from None
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the program
        try:
            code = program.wait()
        finally:
            signal.signal(signal.SIGINT, before)
        return (128 - code if code < 0 else code), _read(file)
    finally:
        os.close(file)


def _read(file: int) -> Races:
    header = os.pread(file, _HEADER.size, 0)
    if len(header) < _HEADER.size:
        return Races((), False, False)
    magic, _, full, count, streams, unseen = _HEADER.unpack(header)
    found = []
    for number in range(count):
        at = _FINDINGS + number * _FINDING + _KEY
        text = os.pread(file, _FINDING - _KEY, at).split(b"\0", 1)[0]
        race = json.loads(text)
        race["accesses"].sort(key=lambda one: (one["place"], one["kind"]))
        found.append(race)
    found.sort(key=lambda one: [side["place"] for side in one["accesses"]])
    return Races(tuple(found), magic == _MAGIC and streams != 0, full != 0, unseen)


def report(races: Races, as_json: bool) -> int:
    """Print the races; returns 0 without a race, 1 with one, 3 if it is not known."""
    if as_json:
        print(
            json.dumps(
                {
                    "races": races.findings,
                    "complete": not races.full,
                    "messages": races.unseen == 0,
                }
            )
        )
    else:
        print(text(races), file=sys.stderr)
    if races.findings:
        return 1
    return 3 if races.full or not races.used else 0


def text(races: Races) -> str:
    """The report for a person, on one screen."""
    count = len(races.findings)
    lines = [f"ipclab: {count} race{'' if count == 1 else 's'} found"]
    if not races.used:
        lines = [
            "ipclab: no process used the reference model, so nothing was looked at "
            "(a program must use the shared CUDA runtime)"
        ]
    for number, finding in enumerate(races.findings[:SHOWN], 1):
        lines.append(f"{number}. {finding['memory']} memory, {finding['address']}")
        lines.extend(f"   {_side(side)}" for side in finding["accesses"])
        lines.append(f"   needed: {finding['needs']}")
    if count > SHOWN:
        lines.append(f"… and {count - SHOWN} more: --json has all")
    if races.unseen:
        lines.append(
            f"ipclab: nobody saw the messages of process {races.unseen}, so the order "
            "between hosts is the order of time: a race of two processes can be missed"
        )
    if races.full:
        lines.append(
            "ipclab: the program did more than the detector can remember; what came "
            "after that was not looked at"
        )
    return "\n".join(lines)


def _side(side: dict[str, Any]) -> str:
    thread = "".join(
        f", {name} {side[name]}" for name in ("block", "thread") if name in side
    )
    return (
        f"{side['kind']:6} {side['place']}: process {side['process']}, "
        f"GPU {side['gpu']}{thread}, {side['order']}"
    )
