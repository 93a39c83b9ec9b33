"""Ask the probe what this machine can share (harness/README.md, section 3)."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ipclab import supervise
from ipclab.ctest import Case
from ipclab.errors import HarnessError
from ipclab.fingerprint import PLANTED, kernel_module

Probe = dict[str, Any]


def ask(cases: Sequence[Case], environment: Mapping[str, str] | None = None) -> Probe:
    """Return the probe's document; raise HarnessError if there is no valid document.

    `environment` is added to our own. The probe always runs without a planted fault,
    because it has to describe the sound machine.
    """
    sound = {x: y for x, y in os.environ.items() if x not in PLANTED}
    document = answer(cases, (), {**sound, **(environment or {})})
    if bad := wrong(document):
        raise HarnessError(f"probe: its document has no valid '{bad}'")
    good: Probe = document
    return good


def answer(
    cases: Sequence[Case],
    options: Sequence[str],
    environment: Mapping[str, str],
    timeout: float | None = None,
) -> Any:
    """The JSON that the probe prints with these options; HarnessError if it prints
    none. Without `timeout` the limit is that of CTest's list.
    """
    probes = [case for case in cases if case.suite == "probe"]
    if len(probes) != 1:
        raise HarnessError(f"CTest's list has {len(probes)} tests 'probe', not one")
    case = probes[0]
    try:
        ended = supervise.run(
            [*case.command, *options],
            timeout=timeout or case.timeout,
            folder=case.folder,
            environment=environment,
        )
    except (FileNotFoundError, IndexError) as error:
        raise HarnessError(
            f"probe: cannot be started, the build is not complete ({error})"
        ) from None
    except OSError as error:
        raise HarnessError(f"probe: cannot be started ({error})") from None
    if ended.code != 0:
        raise HarnessError(f"probe: {ended.how}; it said: {_last_line(ended.output)}")
    try:
        start = max(ended.output.find("{"), 0)
        return json.JSONDecoder().raw_decode(ended.output, start)[0]
    except ValueError:
        raise HarnessError(
            f"probe: printed no JSON but: {_last_line(ended.output)}"
        ) from None


def driver(probe: Probe) -> str | None:
    """The driver's version, such as 580.65.06; None: unknown."""
    return probe.get("driver") or kernel_module()


def first_line(probe: Probe) -> str:
    """The line with which every run begins. It names the backend."""
    gpus = [str(gpu["name"]) for gpu in probe["gpus"]]
    names = ", ".join(
        name if gpus.count(name) == 1 else f"{gpus.count(name)} x {name}"
        for name in dict.fromkeys(gpus)
    )
    if probe["backend"] == "model":
        count = len(gpus)
        shown = f"{count} simulated GPU{'' if count == 1 else 's'}"
        return f"reference model, {shown}; says nothing about a driver"
    if probe["backend"] == "none":
        reasons = [x["reason"] for x in probe["capabilities"] if x["reason"]]
        return f"no GPU: {reasons[0] if reasons else 'CUDA sees none'}"
    version = driver(probe) or "of unknown version"
    return f"{names}, driver {version} (CUDA {cuda(probe) or '0.0'})"


def cuda(probe: Probe) -> str | None:
    """The driver's version of CUDA, such as 13.0; None: unknown."""
    version = int(probe.get("driver_version") or 0)
    return f"{version // 1000}.{version % 1000 // 10}" if version else None


def wrong(document: Any) -> str | None:
    """The first wrong field of a probe's document; None if all fields are right."""
    if not isinstance(document, dict):
        return "object"
    if document.get("backend") not in ("cuda", "model", "none"):
        return "backend"
    for field, needed in (
        ("gpus", {"name": str, "uuid": str}),
        ("capabilities", {"name": str, "available": bool, "reason": str}),
    ):
        entries = document.get(field)
        if not isinstance(entries, list):
            return field
        for entry in entries:
            for name, kind in needed.items():
                if not isinstance(entry, dict) or not isinstance(entry.get(name), kind):
                    return f"{field}[].{name}"
    return None


def _last_line(output: str) -> str:
    lines = output.strip().splitlines()
    return lines[-1] if lines else "nothing"
