"""Runs one test with the library of faults in front of the driver."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ipclab import records
from ipclab.ctest import Case
from ipclab.errors import HarnessError
from ipclab.mutants.faults import MODEL, Fault
from ipclab.run import Planted, Run

# A test that hangs ends so many seconds before its limit, and writes its record.
RECORDS_WITHIN = 4.0
EVERYBODY_PASSES = 0o711
UNKNOWN = "ipclab faults: no fault '"  # the library prints it and exits


@dataclass(frozen=True)
class Seen:
    """What one test did."""

    record: records.Record
    seconds: float
    reached: frozenset[str]  # without a fault: the functions, by their canonical names
    fired: bool | None  # None: without a fault, or for a fault inside the model
    where: str | None  # the function in which the fault first took effect

    @property
    def verdict(self) -> str:
        """The word for the result."""
        return str(self.record["verdict"])

    @property
    def reason(self) -> str:
        """Why the test has its verdict, in one line. If a check failed before the test
        hung, the line begins with this check.
        """
        text = str(self.record["reason"]).removeprefix("Failed\n").partition("\n")[0]
        # Other failures are the harness's.
        failed = [x for x in self.record["failures"] if x["file"]]
        if self.verdict != "hung" or not failed:
            return text
        check = str(failed[0]["message"]).partition("\n")[0]
        return f"{check}; then {text}"


@dataclass(frozen=True)
class Bench:
    """Where tests run with a library in front of the driver."""

    library: Path
    temporary: Path  # an existing folder, for files of the running tests
    backend: str

    def see(
        self,
        machine: Run,
        case: Case,
        fault: Fault | None,
        limit: float | None,
        visible: str | None,
        exclusive: bool,
        more: Mapping[str, str],
    ) -> Seen:
        """Run a test under a fault, or without one. May be called in any thread.

        `limit` is the time limit in seconds, None that of CTest's list. `visible` is
        CUDA_VISIBLE_DEVICES, and `more` are further variables. HarnessError if the
        library does not know the fault.
        """
        if self.backend == "model":  # a test sees no more GPUs than on a driver
            uuids = [str(gpu["uuid"]) for gpu in machine.probe["gpus"]]
            visible = ",".join(uuids[: case.visible_gpus]) or None
        folder = Path(tempfile.mkdtemp(dir=self.temporary))
        log, state = folder / "log", folder / "state"
        # A role may change its user, and must still be able to write to the log.
        log.touch()
        state.mkdir()
        folder.chmod(EVERYBODY_PASSES)
        log.chmod(0o666)
        state.chmod(0o777)
        before = os.environ.get("LD_PRELOAD")
        environment = {
            "LD_PRELOAD": f"{before}:{self.library}" if before else str(self.library),
            "IPCLAB_FAULT_STATE": str(state),
            "IPCLAB_MODEL_MACHINE": str(folder),  # a machine for this test alone
            **more,
        }
        if fault is None:
            environment["IPCLAB_FAULT_CENSUS"] = str(log)
        else:
            environment |= {"IPCLAB_FAULT_LOG": str(log), **fault.environment}
        if limit is not None:
            environment["IPCLAB_SECONDS"] = f"{limit - RECORDS_WITHIN:g}"
        began = time.monotonic()
        planted = Planted(environment, limit)
        record = machine.execute(case, 1, visible, exclusive, planted)
        seconds = round(time.monotonic() - began, 3)
        lines = _lines(log)
        shutil.rmtree(folder, ignore_errors=True)
        if any(UNKNOWN in role["output"] for role in record["roles"]):
            name = fault.name if fault else "none"
            raise HarnessError(
                f"{self.library}: does not know {name}, although its own "
                f"list has it: build both again"
            )
        fired = [x for x in lines if x[0] == "fired" and fault and x[1] == fault.name]
        return Seen(
            record,
            seconds,
            frozenset(x[2] for x in lines if x[0] == "called"),
            None if fault is None or fault.kind == MODEL else bool(fired),
            " ".join(fired[0][3:]) if fired else None,
        )


def _lines(path: Path) -> list[list[str]]:
    """The words of each complete line of a log that several processes wrote."""
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return []
    words = [line.split() for line in text.splitlines()]
    return [x for x in words if len(x) >= 3 and (x[0] != "fired" or len(x) >= 4)]
