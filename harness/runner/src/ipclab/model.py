"""`ipclab model -- PROGRAM …`: any program on the reference model."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ipclab import packed, races
from ipclab.errors import UsageError

MACHINE = "IPCLAB_MODEL_MACHINE"  # harness/model/README.md
BACKENDS = ("auto", "cuda", "model")  # what a command may run on
RUNTIMES = ("libcudart.so.13", "libcudart.so.12")
PCI = Path("pci") / "libipclab_pci.so"
DRIVER, COMPILERS = "libcuda.so.1", ("libnvrtc.so.13", "libnvJitLink.so.13")


def folder(build: Path) -> Path:
    """Where the model's libraries are in a build.

    Raises UsageError if they are not there.
    """
    path = packed.part(build, "model").resolve()
    if not (path / RUNTIMES[0]).is_file():
        raise UsageError(
            f"{path}: no reference model here; build it with: cmake --build {build}"
        )
    return path


def environment(folder: Path, profile: str | None) -> dict[str, str]:
    """The variables with which a program and its children use the model.

    These programs share a new simulated machine, unless IPCLAB_MODEL_MACHINE of this
    process already names one. The machine exists only in the memory of its processes
    and ends with them.
    """
    variables = {
        "LD_LIBRARY_PATH": _in_front("LD_LIBRARY_PATH", folder),
        "PATH": _in_front("PATH", folder / "mps"),  # nvidia-cuda-mps-control
        MACHINE: os.environ.get(MACHINE) or f"run {os.getpid()} {secrets.token_hex(4)}",
    }
    if profile is not None:
        variables["IPCLAB_PROFILE"] = profile
    return variables


def for_program(
    libraries: Path, program: str, profile: str | None, fronts: Sequence[Path] = ()
) -> dict[str, str]:
    """The variables with which a program that others built uses the model.

    These are the variables of `environment()`, with the folders of NVML and NVRTC. If
    the program would find another runtime (an RPATH), or loads CUDA only later (a
    script), LD_PRELOAD names the model's runtimes and NVRTC. It also names the library
    that shows the files of PCI devices for the model's GPUs, and `fronts`, other
    libraries of the folder that stand in front of the C library.
    """
    variables = environment(libraries, profile)
    if (libraries / "nvml").is_dir():
        variables["LD_LIBRARY_PATH"] += f":{libraries / 'nvml'}"
    listed = _listed(program, {**os.environ, **variables})
    loads = _loads(listed, libraries)
    runtimes = [libraries / x for x in RUNTIMES if (libraries / x).is_file()]
    early = [] if loads else runtimes
    compilers = [libraries / "nvrtc" / x for x in COMPILERS]
    if compilers[0].is_file():
        path = variables["LD_LIBRARY_PATH"]
        variables["LD_LIBRARY_PATH"] = f"{compilers[0].parent}:{path}"
        early += [x for x in compilers if x.is_file()] if early else []
    # The runtime of a sanitizer wants to be the first library.
    if re.search(r"lib[at]san\.so", listed) is None:
        named = (libraries / x for x in (PCI, *fronts))
        early += [x for x in named if x.is_file()]
    if early:
        before = os.environ.get("LD_PRELOAD")
        names = ":".join(map(str, early))
        variables["LD_PRELOAD"] = f"{before}:{names}" if before else names
    return variables


def become(build: Path, command: Sequence[str], profile: str | None) -> NoReturn:
    """Turn this process into a program on the model.

    Raises UsageError if there is no model or no such program.
    """
    program, variables = _prepare(build, command, profile)
    try:
        os.execve(program, list(command), variables)
    except OSError as error:
        raise UsageError(f"{program}: {error.strerror}") from None


def look_for_races(
    build: Path, command: Sequence[str], profile: str | None, as_json: bool
) -> int:
    """Run a program on the model and report its races.

    Returns 1 if there is one, 3 if that is not known, otherwise the program's exit
    code. Raises UsageError if there is no model or no such program.
    """
    program, variables = _prepare(build, command, profile, (races.MESSAGES,))
    code, found = races.watch([program, *command[1:]], variables, as_json)
    verdict = races.report(found, as_json)
    return (code or verdict) if not found.used else (verdict or code)


def _prepare(
    build: Path,
    command: Sequence[str],
    profile: str | None,
    fronts: Sequence[Path] = (),
) -> tuple[str, dict[str, str]]:
    """The path of a program and its variables, after a line that names them."""
    if not command:
        raise UsageError("which program? ipclab model -- PROGRAM ARGS…")
    libraries = folder(build)
    program = find_program(command[0])
    variables = {**os.environ, **for_program(libraries, program, profile, fronts)}
    print(
        f"ipclab: {Path(program).name} on the reference model "
        f"({variables.get('IPCLAB_PROFILE', 'default profile')}, machine "
        f"'{variables[MACHINE]}'); says nothing about a driver",
        file=sys.stderr,
        flush=True,
    )
    return program, variables


def find_program(name: str) -> str:
    """The path of a program; UsageError if there is no program of that name."""
    program = shutil.which(name)
    if program is None:
        raise UsageError(f"{name}: no such program")
    return program


def _in_front(variable: str, path: Path) -> str:
    before = os.environ.get(variable)
    return f"{path}:{before}" if before else str(path)


def _listed(program: str, variables: dict[str, str]) -> str:
    """Which libraries a program loads when it starts; "" if it is no program."""
    try:
        return subprocess.run(
            ["ldd", program],
            env={x: y for x, y in variables.items() if x != "LD_PRELOAD"},
            capture_output=True,
            text=True,
            check=False,
        ).stdout
    except OSError:
        return ""


def _loads(listed: str, libraries: Path) -> bool:
    """Whether a program that loads these libraries loads the model when it starts.

    False if an RPATH leads to another library. Also False if only a library that is
    loaded later needs CUDA, as in a script.
    """
    names = "|".join(re.escape(name) for name in (*RUNTIMES, DRIVER))
    found = re.findall(rf"(?:{names}) => (\S+)", listed)
    return bool(found) and all(libraries in Path(x).resolve().parents for x in found)
