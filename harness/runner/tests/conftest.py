"""A fake build folder: CTest's list has small Python programs as tests."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ipclab.cli import main
from nightly import pytest_collection_modifyitems, pytest_configure  # noqa: F401

if TYPE_CHECKING:
    from browser import Browser

SOURCE = Path(__file__).parents[1] / "src"

LINE: dict[str, Any] = {
    "test": "Suite.Name",
    "requirement": "LMEM-01",
    "outcome": "conforms",
    "reason": "",
    "role": None,
    "step": None,
    "call": None,
    "expected": None,
    "seen": None,
    "notes": [],
    "failures": [],
    "roles": [],
    "timeline": [],
    "duration_ms": 1.5,
    "seed": 1,
}

FAILURE: dict[str, Any] = {  # `violates()` in a program writes it
    "role": "importer",
    "step": None,
    "call": "cudaIpcOpenMemHandle(&data, handle, 0)",
    "expected": "cudaErrorInvalidValue",
    "seen": "cudaSuccess",
    "message": "Value of: refused\n",
    "file": "a_test.cu",
    "line": 7,
}

PROBE: dict[str, Any] = {
    "backend": "cuda",
    "driver": "580.1",
    "driver_version": 13000,
    "runtime_version": 13000,
    "gpus": [
        {
            "index": i,
            "name": "NVIDIA H200",
            "uuid": f"GPU-{i}",
            "pci": f"0000:0{i}:00.0",
            "compute_capability": "9.0",
            "memory_bytes": 150754820096,
            "compute_mode": "default",
            "mig": False,
        }
        for i in range(2)
    ],
    "peers": [[0, 1], [1, 0]],
    "mps": False,
    "capabilities": [
        {
            "name": "legacy_memory",
            "available": True,
            "attribute": "cudaDevAttrIpcEventSupport = 1",
            "attempt": "cudaIpcGetMemHandle: cudaSuccess",
            "reason": "",
            "meaning": "lend memory of cudaMalloc to another process",
        },
        {
            "name": "fabric",
            "available": False,
            "attribute": "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED = 0",
            "attempt": "none",
            "reason": "no IMEX channel",
            "meaning": "share between nodes",
        },
    ],
}

NO_GPU = {
    **PROBE,
    "backend": "none",
    "gpus": [],
    "capabilities": [
        {"name": "gpus", "available": False, "reason": "cudaErrorNoDevice (100)"}
    ],
}
MODEL = {**PROBE, "backend": "model", "gpus": PROBE["gpus"][:1]}

ROWS = {
    "LMEM-01": "MUST",
    "LMEM-02": "ERROR",
    "LIM-01": "LIMIT",
    "OBS-01": "OBSERVE",
    "UND-01": "UNDEF",
}

PRELUDE = """\
import json, os, signal, subprocess, sys, time
LINE = json.loads({line!r})
def record(**changes):
    data = json.dumps({{**LINE, **changes}}) + "\\n"
    with open(os.environ["IPCLAB_RECORD"], "ab", buffering=0) as stream:
        stream.write(data.encode())
FAILURE = json.loads({failure!r})
def violates(**changes):
    reason = changes.pop("reason", "")
    record(outcome="violates", reason=reason, failures=[{{**FAILURE, **changes}}])
    sys.exit(1)
"""


# The work of the fault library. A fake test does this work itself, because it is not
# linked with CUDA.
UNDER_FAULTS = """\
import os
def log(variable, *words):
    if path := os.environ.get(variable):
        with open(path, "a") as stream:
            stream.write(" ".join(words) + "\\n")
def reaches(*functions):
    for name in functions:
        log("IPCLAB_FAULT_CENSUS", "called", str(os.getpid()), name)
def under(*names, fires=True):
    # Whether the fault is one of these, which then takes effect.
    chosen = os.environ.get("IPCLAB_FAULT")
    if chosen in names and fires:
        log("IPCLAB_FAULT_LOG", "fired", chosen, str(os.getpid()), "cudaFree")
    return chosen in names
"""


@functools.cache
def _library() -> Path:
    """A library that shows that it was loaded and breaks nothing."""
    folder = Path(tempfile.mkdtemp(prefix="ipclab-fake-faults-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "libipclab_faults.so"
    source = (
        "#include <stdlib.h>\n"
        "__attribute__((constructor)) static void load(void) {\n"
        '  setenv("FAKE_FAULTS", "loaded", 1);\n'
        "}\n"
    )
    command = [os.environ.get("IPCLAB_CXX", "c++"), "-shared", "-fPIC", "-xc", "-"]
    subprocess.run([*command, "-o", str(path)], input=source, text=True, check=True)
    return path


class Build:
    """A folder that looks like a build to CTest and the runner."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "build"
        self.source = root / "source"
        (self.source / "conformance").mkdir(parents=True)
        self.folder.mkdir()
        self.room = self.source / "conformance/01_legacy_memory/rows.json"
        self._tests: list[str] = []
        self.rows(ROWS)
        self.sentences({"cudaIpcOpenMemHandle": [("It opens.", "LMEM-01")]})
        (self.folder / "CMakeCache.txt").write_text(
            f"CMAKE_HOME_DIRECTORY:INTERNAL={self.source}\n"
        )
        self.probe(PROBE)

    def rows(self, kinds: dict[str, str]) -> None:
        """Write the catalogue."""
        rows = [
            {
                "id": name,
                "statement": f"The sentence of {name}.",
                "kind": kind,
                "source": f"the guide, {name}",
                "tests": {"Suite.Name": f"How {name} is tested."},
            }
            for name, kind in kinds.items()
        ]
        groups = {name.partition("-")[0]: "A group." for name in kinds}
        shared = self.source / "conformance" / "catalogue.json"
        shared.write_text(json.dumps({"groups": groups}))
        self.room.parent.mkdir(exist_ok=True)
        self.room.write_text(json.dumps({"rows": rows}))

    def sentences(self, cited: dict[str, list[tuple[str, str]]]) -> None:
        """Write the documented sentences of each function, each with its row."""
        document = {
            "about": "The sentences.",
            "read": ["13.0"],
            "concerned": ["cudaIpc.*"],
            "reasons": {},
            "sentences": {
                topic: [
                    {"says": says, "digest": f"{number:08x}", "rows": [row]}
                    for number, (says, row) in enumerate(told)
                ]
                for topic, told in cited.items()
            },
        }
        path = self.source / "conformance" / "sentences.json"
        path.write_text(json.dumps(document))

    def deviation(self, **changes: Any) -> None:
        """Write the entry of a test into deviations.json; by default it excuses
        FAILURE.
        """
        entry = {
            "requirement": "LMEM-01",
            "test": "Suite.Name",
            "severity": "wrong code",
            "failures": [{"check": FAILURE["call"], "seen": [FAILURE["seen"]]}],
            "vendor": "nvidia",
            "driver": {"from": "580.0", "to": "580.9"},
            "gpus": ["H200"],
            "evidence": "seen on two machines",
            "owner": "platform",
            "expires": "2999-12-31",
            **changes,
        }
        path = self.source / "conformance" / "deviations.json"
        before = json.loads(path.read_text())["deviations"] if path.exists() else []
        others = [x for x in before if x["test"] != entry["test"]]
        path.write_text(json.dumps({"deviations": [*others, entry]}))

    def probe(self, document: dict[str, Any] | str) -> None:
        """Let the probe print this document, or run this Python."""
        if isinstance(document, dict):
            document = f"print({json.dumps(json.dumps(document))})"
        self._tests = [x for x in self._tests if "add_test(probe " not in x]
        self.add("probe", document, "probe")

    def conformance(
        self,
        program: str,
        name: str = "Suite.Name",
        row: str | None = "LMEM-01",
        gpus: int = 1,
        extra: tuple[str, ...] = (),
        timeout: float = 20,
        lesson: str = "01_legacy_memory",
    ) -> None:
        """Add one TEST of a lesson; `record(...)` in `program` writes its line."""
        line = json.dumps({**LINE, "test": name, "requirement": row})
        labels = [
            "conformance",
            lesson,
            f"gpu{gpus}",
            *([row] if row else []),
            *extra,
        ]
        self.add(
            f"conformance.{lesson}.{name}",
            PRELUDE.format(line=line, failure=json.dumps(FAILURE))
            + UNDER_FAULTS
            + textwrap.dedent(program),
            *labels,
            timeout=timeout,
        )

    def written(self, name: str = "Suite.Name", row: str = "LMEM-01") -> None:
        """Write the source of a TEST of lesson 01, which `ipclab rules` reads."""
        words = name.replace(".", ", ")
        text = f'TEST({words}) {{\n  covers("{row}");\n}}\n'
        (self.room.parent / "legacy_memory_test.cu").write_text(text)

    def sample(
        self, program: str, lesson: str = "01_legacy_memory", timeout: float = 20
    ) -> None:
        """Add one lesson."""
        program = textwrap.dedent(program)
        program = f"{UNDER_FAULTS}import signal, sys, time\n{program}"
        self.add(f"sample.{lesson}", program, "sample", lesson, "gpu1", timeout=timeout)

    def add(self, name: str, program: str, *labels: str, timeout: float = 20) -> None:
        """Add one test to CTest's list."""
        path = self.folder / f"{name}.py"
        path.write_text(program)
        self.raw(
            f"add_test({name} {sys.executable} -IS {path})\n"
            f'set_tests_properties({name} PROPERTIES LABELS "{";".join(labels)}" '
            f"TIMEOUT {timeout} SKIP_RETURN_CODE 77)\n"
        )

    def faults(self, *faults: dict[str, Any], **decided: Any) -> None:
        """Write a library of these faults, and faults.json. Tests simulate the effect
        of the faults.
        """
        folder = self.folder / "faults"
        folder.mkdir(exist_ok=True)
        shutil.copy(_library(), folder / "libipclab_faults.so")
        listed = []
        for fault in faults:
            name, _, operator = fault["name"].partition(".")
            entry: dict[str, Any] = {"function": name if operator else "cudaFree"}
            entry |= {"kind": "operator", "operator": operator} if operator else {}
            entry = {
                "kind": "named",
                "what": "is wrong",
                "gpus": 1,
                "rows": [],
                "file": "harness/faults/bugs.cc",
                **entry,
                **fault,
            }
            listed.append(entry)
        lister = folder / "ipclab_faults"
        lister.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(listed)}\nEND\n")
        lister.chmod(0o755)
        document = {
            "equivalent": [],
            "expected_unfired": [],
            "same_as_driver": [],
            "first": {},
            "everywhere": [],
            "lessons": {},
            **decided,
        }
        path = self.source / "harness/faults/faults.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document))

    def raw(self, text: str) -> None:
        """Add these lines to CTestTestfile.cmake as they are."""
        self._tests.append(text)
        (self.folder / "CTestTestfile.cmake").write_text("".join(self._tests))

    def environment(self) -> dict[str, str]:
        """The environment of the command under test."""
        return {
            **os.environ,
            "PYTHONPATH": str(SOURCE),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(self.root),  # a run that is killed leaves its files there
        }

    def ipclab(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command in this process, from the root of the fake tree."""
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        with (
            contextlib.chdir(self.root),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(out),
        ):
            try:
                code = main(arguments)
            except SystemExit as exit:  # of argparse
                code = int(exit.code or 0)
        out.seek(0)
        return subprocess.CompletedProcess(arguments, code, out.read(), "")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Runs the command as a person does, in its own process."""
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "ipclab", *arguments],
            cwd=self.root,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str) -> Outcome:
        """Run `ipclab run` with the results in the folder `out`."""
        return Outcome(
            self.ipclab("run", "--build", "build", "--results", "out", *arguments),
            self.root / "out",
        )


def machine(build: Build, native: dict[str, Any], **model: Any) -> Path:
    """Make a model whose libraries are empty. The probe answers `native`, or, if the
    model's folder is first in LD_LIBRARY_PATH, as the model.
    """
    folder = build.folder / "model"
    folder.mkdir()
    (folder / "libcudart.so.13").touch()
    document = {
        **MODEL,
        "runtime_library": str(folder.resolve() / "libcudart.so.13"),
        **model,
    }
    build.probe(
        "import os\n"
        "front = os.environ.get('LD_LIBRARY_PATH', '').split(':')[0]\n"
        f"model = front == {str(folder.resolve())!r}\n"
        f"print({json.dumps(document)!r} if model else {json.dumps(native)!r})\n"
    )
    return folder


class Outcome:
    """What a run left."""

    def __init__(self, done: subprocess.CompletedProcess[str], folder: Path) -> None:
        self.code = done.returncode
        self.text = done.stdout + done.stderr
        self.folder = folder

    @property
    def json(self) -> dict[str, Any]:
        """run.json"""
        document: dict[str, Any] = json.loads((self.folder / "run.json").read_text())
        return document

    @property
    def records(self) -> list[dict[str, Any]]:
        """records.jsonl"""
        lines = (self.folder / "records.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    @property
    def only(self) -> dict[str, Any]:
        """The one record."""
        [record] = self.records
        return record


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """An empty fake build with a probe of two GPUs."""
    return Build(tmp_path)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One headless Chromium for all tests of the session."""
    from browser import Browser  # here, because machines with GPUs have no browser

    with Browser() as one:
        yield one
