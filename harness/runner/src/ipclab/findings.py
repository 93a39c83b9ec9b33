"""`ipclab findings`: where a real driver contradicts its documentation.

A finding is a folder docs/findings/NN_name: a small program of plain CUDA that shows
the fault (name.cu), what a person wrote about it (name.json) and what the program
printed on a recorded driver (name.out). The facts come from the entries of
deviations.json that name the finding.

The command needs Python and no package.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipclab import deviations, lines, model, packed, schema
from ipclab.errors import HarnessError, UsageError
from ipclab.fingerprint import kernel_module

FOLDER = Path("docs/findings")
PROFILE = "two-gpus"  # the model's machine, if a finding names no other
LIMIT = 90.0  # seconds; every wait of a reproducer ends after 60 s
CONFORMS, SHOWN, SKIPPED = 0, 1, 77
MEANING = {
    CONFORMS: "documented behaviour",
    SHOWN: "SHOWS THE FAULT",
    SKIPPED: "cannot run here",
}
TEXT = {"type": "string", "minLength": 1}
WRITTEN = {  # the schema of name.json
    "type": "object",
    "properties": {
        "title": TEXT,
        "sentence": {
            "type": "object",
            "properties": {"topic": TEXT, "says": TEXT},
            "required": ["topic", "says"],
            "additionalProperties": False,
        },
        "hit": TEXT,
        "workaround": TEXT,
        "note": TEXT,
        "gpus": {"type": "integer", "minimum": 1},
        "profile": TEXT,
        "links": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"url": TEXT, "says": TEXT},
                "required": ["url", "says"],
                "additionalProperties": False,
            },
        },
        "reported": {"anyOf": [{"type": "null"}, TEXT]},
    },
    "required": ["title", "sentence", "hit", "workaround", "gpus", "links", "reported"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Finding:
    """One folder of docs/findings with its entries of deviations.json."""

    folder: Path
    about: dict[str, Any]  # name.json
    entries: tuple[deviations.Entry, ...]

    @property
    def name(self) -> str:
        """The name of the folder, such as 12_trim_to_largest."""
        return self.folder.name

    @property
    def number(self) -> int:
        """The number; findings with a lower number do more harm."""
        return int(self.name[:2])

    @property
    def topic(self) -> str:
        """The name without its number: that of the source and of the program."""
        return self.name[3:]

    @property
    def severity(self) -> str:
        """The worst severity of its entries."""
        known = {entry["severity"] for entry in self.entries}
        return next(x for x in deviations.SEVERITIES if x in known)

    @property
    def security(self) -> bool:
        """Whether a process reads or changes what is not its own. The reproducer of
        such a finding is in no release (docs/SECURITY.md).
        """
        return any(entry.get("security") for entry in self.entries)

    @property
    def rows(self) -> tuple[str, ...]:
        """The rows of its entries."""
        return tuple(dict.fromkeys(entry["requirement"] for entry in self.entries))

    def file(self, ending: str) -> Path:
        """One of its files: cu, json or out."""
        return self.folder / f"{self.topic}.{ending}"


@dataclass(frozen=True)
class Request:
    """The options of the command."""

    build: Path | None = None
    names: tuple[str, ...] = ()
    every: bool = False  # also those of other drivers
    run: bool = False
    record: bool = False
    backend: str = "auto"


def read(source: Path) -> list[Finding]:
    """The findings of a source tree, those with the most harm first.

    Raises HarnessError if a file is wrong, or if a finding has no entry.
    """
    entries = deviations.read_deviations(source / "conformance" / deviations.NAME)
    found = []
    for folder in sorted((source / FOLDER).glob("[0-9][0-9]_*")):
        if not any(folder.iterdir()):  # git leaves it when a finding gets a new number
            continue
        path = folder / f"{folder.name[3:]}.json"
        try:
            about = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise HarnessError(f"{path}: {error.strerror}") from None
        except ValueError as error:
            raise HarnessError(f"{path}: is not JSON ({error})") from None
        if wrong := schema.error(about, WRITTEN, path.stem):
            raise HarnessError(f"{path}: {wrong}")
        mine = tuple(x for x in entries if x.get("finding") == int(folder.name[:2]))
        if not mine:
            raise HarnessError(f"{folder}: no entry of {deviations.NAME} names it")
        found.append(Finding(folder, about, mine))
    return found


def run(request: Request) -> int:
    """List the findings, or run their reproducers; return the exit code.

    Without `names` these are the findings of this machine's driver, on the reference
    model all findings. The exit code is 1 if a reproducer shows its fault, and 3 if
    one ended in a way that says nothing. Raises UsageError if there is no such
    finding, or no program to run.
    """
    build = request.build or packed.default_build()
    source = packed.source(build) or packed.TREE
    every = read(source)
    if not every:
        raise UsageError(f"{source / FOLDER}: no findings here")
    driver, gpus = installed()
    on_model = request.backend == "model" or (request.backend == "auto" and not driver)
    if request.record and (on_model or not driver):
        raise UsageError("--record needs a driver: the model shows no fault")
    machine = (
        f"{', '.join(dict.fromkeys(gpus)) or 'GPUs of unknown name'}, driver {driver}"
        if driver
        else "no driver here"
    )
    chosen = [find(every, x) for x in request.names] or every
    if not (request.names or request.every or (on_model and request.run)) and driver:
        chosen = [x for x in every if concerns(x, driver, gpus)]
    if not request.run:
        print(f"{machine}\n")
        print("\n".join(_listed(chosen, driver, gpus)))
        return 0
    print("reference model; says nothing about a driver" if on_model else machine)
    kept = [x for x in chosen if not left_out(x)]
    programs = {x.name: program(build, x) for x in kept}
    for name in sorted({x.name for x in chosen} - programs.keys()):
        print(f"{name:26} left out of this release: docs/SECURITY.md")
    ended = []
    for finding in kept:
        variables = _variables(build, finding) if on_model else {}
        code, output = start(programs[finding.name], variables)
        print(f"{finding.name:26} {MEANING.get(code, f'says nothing: {code}')}")
        print("".join(f"    {line}\n" for line in output.splitlines()), end="")
        if request.record and code in (CONFORMS, SHOWN):
            text = f"{machine}: exit code {code}\n{output}"
            finding.file("out").write_text(text, encoding="utf-8")
        ended.append(code)
    told = [f"{ended.count(x)} {y.lower()}" for x, y in MEANING.items() if x in ended]
    others = sum(code not in MEANING for code in ended)
    print(", ".join([*told, *([f"{others} without an answer"] if others else [])]))
    return 3 if others else int(SHOWN in ended)


def find(every: Sequence[Finding], wanted: str) -> Finding:
    """The finding called 12, 12_trim_to_largest or trim_to_largest; UsageError if
    there is none.
    """
    for finding in every:
        if wanted in (finding.name, finding.topic) or (
            re.fullmatch("[0-9]+", wanted) and int(wanted) == finding.number
        ):
            return finding
    raise UsageError(f"no finding '{wanted}'; `ipclab findings --all` lists them")


def concerns(finding: Finding, driver: str, gpus: Sequence[str]) -> bool:
    """Whether a finding was measured on this driver and one of these GPUs."""
    return any(deviations.measured_on(x, driver, gpus) for x in finding.entries)


def installed() -> tuple[str | None, list[str]]:
    """The version of this machine's driver, such as 580.65.06, and the names of its
    GPUs; None and no names if there is no driver. NVIDIA's kernel module and nvidia-smi
    tell them; a container may lack one of them.
    """
    query = ["nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return kernel_module(), []
    told = [x.split(", ", 1) for x in done.stdout.splitlines() if ", " in x]
    if done.returncode or not told:
        return kernel_module(), []
    return told[0][0], [name for _, name in told]


def left_out(finding: Finding) -> bool:
    """Whether a release has left out the reproducer (docs/SECURITY.md)."""
    return finding.security and not finding.file("cu").exists()


def program(build: Path, finding: Finding) -> Path:
    """The built reproducer; UsageError, with what to do, if it is not there."""
    path = build / FOLDER / finding.topic
    if packed.source(build):
        raise UsageError(
            "the programs of the findings are not in the wheel: build them from the "
            "sources of this release, with the nvcc line in the head of each"
        )
    if not path.is_file():
        raise UsageError(f"{path}: is missing; {packed.remedy(build, 'findings')}")
    return path.resolve()


def start(path: Path, variables: dict[str, str]) -> tuple[int, str]:
    """Run a reproducer; its exit code (that of subprocess) and its output.

    Its children end with it. After LIMIT all of them are killed.
    """
    with subprocess.Popen(
        [path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **variables},
        start_new_session=True,
    ) as started:
        try:
            output = started.communicate(timeout=LIMIT)[0]
        except subprocess.TimeoutExpired:
            output = f"still running after {LIMIT:g} s\n"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
    return started.returncode, output


def _variables(build: Path, finding: Finding) -> dict[str, str]:
    profile = finding.about.get("profile", PROFILE)
    return model.environment(model.folder(build), profile)


def _listed(
    chosen: Sequence[Finding], driver: str | None, gpus: Sequence[str]
) -> list[str]:
    if not chosen:
        return [
            "No finding is known for this driver. --all lists those of other drivers,"
            " and --run --all tries them here."
        ]
    rows = [
        (
            f"{finding.number:02}",
            finding.severity,
            ("yes" if concerns(finding, driver, gpus) else "?") if driver else "–",  # noqa: RUF001
            ", ".join(finding.rows),
            finding.about["title"],
        )
        for finding in chosen
    ]
    head = ("", "severity", "here", "rows", "finding")
    return lines.table(rows, lines.width(), head)
