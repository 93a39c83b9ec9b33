"""What a machine must be able to do (`--expect FILE`), so that no skip hides a fault.

If a test says 'not applicable' because the probe denies a capability, the test does not
say whether the denial is right. FILE says what this machine can do. FILE also names the
capabilities whose attribute and attempt are known to disagree, with the reasons.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ipclab import reader, results, schema
from ipclab.errors import UsageError
from ipclab.probe import Probe

Expected = dict[str, Any]  # checked against SCHEMA

ABOUT = (
    "What this machine must be able to do: `ipclab run --expect` compares the probe "
    "with it. `known` are capabilities whose attribute and attempt disagree, and why."
)
SCHEMA: schema.Schema = {
    "type": "object",
    "properties": {
        "about": {"type": "string"},
        "backend": {"enum": ["cuda", "model"]},
        "gpus": {"type": "integer", "minimum": 1},
        "peers": {"type": "integer", "minimum": 0},  # ordered pairs
        "capabilities": {"type": "array", "items": {"type": "string"}},
        "known": {
            "type": "object",
            "additionalProperties": {"type": "string", "minLength": 1},
        },
    },
    "required": ["backend", "gpus", "peers", "capabilities", "known"],
    "additionalProperties": False,
}


def of_probe(probe: Probe) -> Expected:
    """What a machine can do, as its probe reports now. A person must check the result.

    Raises UsageError if the machine has no GPU, because then nothing can be expected.
    """
    if not probe["gpus"]:
        raise UsageError("no GPU here: nothing can be expected of this machine")
    return {
        "about": ABOUT,
        "backend": probe["backend"],
        "gpus": len(probe["gpus"]),
        "peers": len(probe.get("peers", [])),
        "capabilities": [x["name"] for x in probe["capabilities"] if x["available"]],
        "known": disagreements(probe),
    }


def read(path: Path) -> Expected:
    """Read the file; UsageError if it is not valid."""
    hint = "; `ipclab doctor --write-expect FILE` writes one"
    return reader.document(path, SCHEMA, "expect", hint)


def write(path: Path, probe: Probe) -> None:
    """Write what the probe says now. HarnessError if the file cannot be written,
    UsageError if the machine has no GPU.
    """
    text = json.dumps(of_probe(probe), indent=1, ensure_ascii=False) + "\n"
    results.write_into(path, text)


def findings(expected: Expected, probe: Probe) -> list[str]:
    """How the machine differs from the file; one line for each difference."""
    found = []
    if probe["backend"] != expected["backend"]:
        found.append(
            f"expected: backend {expected['backend']}; this is {probe['backend']}"
        )
    for what, there in (
        ("gpus", len(probe["gpus"])),
        ("peers", len(probe.get("peers", []))),
    ):
        if there < expected[what]:
            name = {"gpus": "GPUs", "peers": "pairs of peers"}[what]
            found.append(f"expected: {expected[what]} {name}; there are {there}")
    by_name = {x["name"]: x for x in probe["capabilities"]}
    for name in expected["capabilities"]:
        if name not in by_name:
            found.append(f"expected: {name}, which the probe does not know")
        elif not by_name[name]["available"]:
            found.append(f"expected: {name}; denied: {by_name[name]['reason']}")
    disagree = disagreements(probe)
    found += [
        f"{name}: attribute and attempt disagree: {how}"
        for name, how in disagree.items()
        if name not in (*expected["known"], *expected["capabilities"])
    ]
    found += [
        f"{name}: attribute and attempt agree; 'known' says that they do not: {why}"
        for name, why in expected["known"].items()
        if name not in disagree
    ]
    return found


def disagreements(probe: Probe) -> dict[str, str]:
    """The capabilities whose attribute and attempt disagree, each with both texts."""
    return {
        x["name"]: f"{x['attribute']}, {x['attempt']}"
        for x in probe["capabilities"]
        if _disagrees(x)
    }


def _disagrees(capability: dict[str, Any]) -> bool:
    attribute = str(capability.get("attribute", ""))
    value = attribute.rpartition(" = ")[2]
    attempt = str(capability.get("attempt", "none"))
    if not value.lstrip("-").isdigit() or attempt.startswith("none"):
        return False
    promised = int(value) > 0
    # If the attribute denies the capability and the attempt succeeds, the reason is
    # only the attribute.
    worked = capability["available"] if promised else capability["reason"] == attribute
    return bool(promised != worked)
