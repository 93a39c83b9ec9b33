"""Where in the program a finding is: source lines and callers, from recorded stacks."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ipclab.trace.files import Call, Code, Entry, Event, Process
from ipclab.trace.findings import Finding

CALLERS = 3  # shown for an entry
SECONDS = 60  # for one module; a library may have gigabytes of symbols
AT_ONCE = 500  # addresses in one command line
ET_EXEC = 2  # a program whose addresses are absolute
# The frames between the program and the driver.
CUDA = re.compile(r"lib(cuda|cudart|cupti|ipclab_trace)[._]")
API = re.compile(r"(cu|cuda)[A-Z]\w*")
AROUND_MAIN = ("__libc_start", "_start")
LIBC = "libc.so.6"


Codes = dict[int, tuple[int, Code]]  # of one module: offset to address and code


@dataclass(frozen=True)
class Frame:
    """One function of a stack."""

    module: str  # the name of its file
    function: str  # "" if not known
    after: int | None  # bytes from its begin on; None: not known
    line: str = ""  # FILE:LINE

    @property
    def name(self) -> str:
        """The function without types: two() of int two<f(bool)::{lambda()#1}>(int);
        of a function of CUDA, the bare name.
        """
        return _plain(self.function)

    @property
    def text(self) -> str:
        """exporter.cu:61 in lend(), or libtorch.so!function+0x12."""
        function = self.name
        if self.line:
            return f"{self.line} in {function}" if function else self.line
        after = "" if self.after is None else f"+{self.after:#x}"
        return f"{self.module}!{function}{after}"

    @property
    def is_api(self) -> bool:
        """Whether it belongs to CUDA, and not to the program."""
        return bool(CUDA.match(self.module) or API.fullmatch(self.name))


def _plain(function: str) -> str:  # see Frame.name
    function = function.replace("(anonymous namespace)::", "")
    if "operator" in function:
        head, _, _ = function.partition("(")
        return function if head.endswith("operator") else f"{head}()"
    depth, name = 0, ""
    for letter in function:
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and not depth:
            return name if API.fullmatch(name) else f"{name}()"
        if letter == " " and not depth:
            name = ""  # before it was the type of the result
        elif letter != ">" and not depth:
            name += letter
    return name


def located(found: Iterable[Finding]) -> list[Finding]:
    """The findings with the places in the program of their calls, in words; findings
    without a recorded stack stay as they are.

    Uses llvm-symbolizer or addr2line if there is one, and otherwise what the loader of
    the process knew. A module that has changed since then is not read.
    """
    found = list(found)
    wanted: dict[str, Codes] = {}
    for finding in found:
        for entry in (finding.entry, finding.other):
            for address, code in _stack(entry):
                wanted.setdefault(code.module, {})[code.offset] = address, code
    known: dict[tuple[str, int], list[Frame]] = {}
    for module, codes in wanted.items():
        for offset, frames in _resolve(module, codes).items():
            known[module, offset] = frames
    return [
        replace(
            finding,
            places=tuple(
                text
                for entry in (finding.entry, finding.other)
                if (text := _text(entry, known))
            ),
        )
        for finding in found
    ]


def _stack(entry: Entry | None) -> list[tuple[int, Code]]:
    """The addresses of an entry's stack of which something is known."""
    if entry is None:
        return []
    number = entry.facts.get("stack", 0) if isinstance(entry, Event) else entry.stack
    process: Process = entry.process
    return [
        (address, process.code[address])
        for address in process.stacks.get(number, ())
        if address in process.code
    ]


def _text(entry: Entry | None, known: dict[tuple[str, int], list[Frame]]) -> str:
    frames = [x for _, code in _stack(entry) for x in known[code.module, code.offset]]
    own = 0
    while own < len(frames) and frames[own].is_api:
        own += 1
    called = [x.name for x in frames[:own] if API.fullmatch(x.name)]
    rest = []
    for frame in frames[own:]:
        if frame.function.startswith(AROUND_MAIN) or frame.module == LIBC:
            break
        rest.append(frame.text)
        if frame.function.split("(")[0] == "main" or len(rest) == CALLERS:
            break
    if not rest:
        return ""
    name = called[-1] if called else entry.name if isinstance(entry, Call) else "call"
    return f"{name} at {', called from '.join(rest)}"


def _resolve(module: str, codes: Codes) -> dict[int, list[Frame]]:
    """The frames at each offset: several if functions were inlined."""
    name = Path(module).name
    found = {
        offset: [Frame(name, code.function, code.after if code.function else offset)]
        for offset, (_, code) in codes.items()
    }
    tool = _tool()
    if not tool or not _is_the_same(module, next(iter(codes.values()))[1]):
        return found
    absolute = _is_absolute(module)
    asked = {a if absolute else offset: offset for offset, (a, _) in codes.items()}
    every = [hex(x) for x in asked]
    for first in range(0, len(every), AT_ONCE):
        command = [*tool, module, *every[first : first + AT_ONCE]]
        for place, frames in _ask(command, name).items():
            if frames and place in asked:
                found[asked[place]] = frames
    return found


def _tool() -> list[str]:
    """The command that finds lines, up to its module; nothing if there is none."""
    options = ["-a", "-f", "-C", "-i", "-e"]
    if path := shutil.which("llvm-symbolizer"):
        return [path, "--output-style=GNU", *options]
    path = shutil.which("addr2line")
    return [path, *options] if path else []


def _ask(command: list[str], module: str) -> dict[int, list[Frame]]:
    """The frames that the command prints: an address, then for each function two lines
    with its name and with FILE:LINE.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
            env={**os.environ, "DEBUGINFOD_URLS": ""},  # ask no server
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    found: dict[int, list[Frame]] = {}
    frames: list[Frame] = []
    function = None
    for line in done.stdout.splitlines():
        if function is None and re.fullmatch("0x[0-9a-f]+", line):
            frames = found.setdefault(int(line, 16), [])
        elif function is None:
            function = "" if line == "??" else line
        else:
            place = line.partition(" (discriminator")[0]
            known = not place.startswith("??") and not place.endswith((":0", ":?"))
            if function or known:
                frames.append(
                    Frame(module, function, None, _short(place) if known else "")
                )
            function = None
    return found


def _short(place: str) -> str:
    """FILE:LINE, from the current folder on if it is in there."""
    file, _, line = place.rpartition(":")
    with_parts = Path(os.path.normpath(file))
    if with_parts.is_relative_to(Path.cwd()):
        with_parts = with_parts.relative_to(Path.cwd())
    return f"{with_parts}:{line}"


def _is_the_same(module: str, code: Code) -> bool:
    """Whether a module is the file that the process used."""
    try:
        return (
            module.startswith("/") and Path(module).stat().st_mtime_ns == code.modified
        )
    except (OSError, ValueError):
        return False


def _is_absolute(module: str) -> bool:
    try:
        with Path(module).open("rb") as file:
            return file.read(18)[16:17] == bytes([ET_EXEC])
    except OSError:
        return False
