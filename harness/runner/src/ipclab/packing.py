"""Makes what only a packed suite has (packed.py), from its build.

`python3 -m ipclab.packing BUILD SUITE` writes tests.json, sources.json and how to build
the exercises; `ci/package` calls it.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ipclab import ctest, manifest, packed
from ipclab.ctest import Case
from ipclab.errors import HarnessError, UsageError

PACKED = ("sample", "conformance", "probe")  # suites whose programs are packed


def listed(cases: Iterable[Case], suite: Path) -> list[dict[str, Any]]:
    """The list of the tests whose programs are packed into `suite`/bin.

    Raises HarnessError for a test whose program is not in that folder.
    """
    found = []
    for case in cases:
        # Programs that mpiexec starts are not packed: they need the machine's own MPI.
        if case.suite not in PACKED or case.name.endswith(".mpi"):
            continue
        program = Path("bin", Path(case.command[0]).name)
        if not (suite / program).is_file():
            raise HarnessError(f"{case.name}: {suite / program} is missing")
        properties = {
            "LABELS": list(case.labels),
            "TIMEOUT": case.timeout,
            "SKIP_RETURN_CODE": case.skip_code,
        }
        found.append(
            {
                "name": case.name,
                "command": [str(program), *case.command[1:]],
                "properties": [
                    {"name": name, "value": value} for name, value in properties.items()
                ],
            }
        )
    return found


def exercises(build: Path, suite: Path) -> None:
    """Write how to build an exercise when the suite and CUDA may be in any folder.

    `ipclab learn` replaces {suite} and {cuda} by their folders. If the build cannot
    build exercises, nothing is written.
    """
    path = Path("exercises/build.json")
    if not (build / path).is_file():
        return
    commands = json.loads((build / path).read_text(encoding="utf-8"))
    words = commands["compile"]
    plain = words[1 : words.index("-x")]
    folders = [f"{{cuda}}/{name}" for name in ("lib", "lib64")]
    made = {
        "compile": [
            "c++",
            *(word for word in plain if not word.startswith("-fmacro-prefix-map")),
            "-fmacro-prefix-map={suite}/source/=",
            *("-x", "c++", "-I{suite}/source/samples/exercises/common"),
            *("-isystem", "{cuda}/include"),
        ],
        "link": [
            *("-x", "none", "-L{suite}/exercises", "-lexercise"),
            *(f"-L{folder}" for folder in folders),
            "-l:libcudart.so.13",
            *(f"-Wl,-rpath,{folder}" for folder in folders),
        ],
    }
    (suite / path).parent.mkdir(parents=True, exist_ok=True)
    (suite / path).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


def main(build: Path, suite: Path) -> None:
    """Write the files that only a packed suite has, from its build."""
    if (suite / "exercises").is_dir():  # their library is only in the newest suite
        exercises(build, suite)
    digests = manifest.of_sources(ctest.source_folder(build))
    text = json.dumps(digests, indent=0) + "\n"
    (suite / packed.SOURCES).write_text(text, encoding="utf-8")
    lines = [json.dumps(test) for test in listed(ctest.read(build), suite)]
    if not lines:
        raise UsageError(f"{build}: has no tests that could be packed")
    (suite / packed.LIST).write_text(
        "[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8"
    )
    print(f"{suite / packed.LIST}: {len(lines)} tests")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    except (UsageError, HarnessError) as error:
        sys.exit(f"packing: {error}")
