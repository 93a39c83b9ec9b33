"""`ipclab doctor --peers`: do the GPUs reach each other, as the driver promises?"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from ipclab import probe, schema
from ipclab.ctest import Case
from ipclab.errors import HarnessError

CHECK = "CUDA_DISABLE_IOMMU_ACS_P2P_CAPABILITY_CHECK"
BRIDGE = "0x0604"  # class of a PCI bridge
ACS = 0x0D  # number of the extended capability Access Control Services
REDIRECT = 0x0C  # its control bits that send peer requests and answers upwards
SECONDS = 60  # until the processes have started; a step of a pair has its own limit
SECONDS_OF_PAIR = 20

SCHEMA: schema.Schema = {
    "type": "object",
    "properties": {
        "pairs": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "from": {"type": "integer"},
                    "to": {"type": "integer"},
                    "promised": {"type": "boolean"},
                    "atomics": {"type": "boolean"},
                    "proved": {"type": "boolean"},
                    "failed": {"type": "string"},
                    "said": {"type": "string"},
                },
                "required": ["from", "to", "promised", "proved", "failed", "said"],
            },
        },
        "together": {
            "type": "object",
            "properties": {
                "good": {"type": "boolean"},
                "said": {"type": "string"},
            },
            "required": ["good", "said"],
        },
        "problem": {"type": "string"},
        "milliseconds": {"type": "integer"},
    },
    "required": ["pairs", "together", "problem", "milliseconds"],
}


def prove(
    cases: Sequence[Case], environment: Mapping[str, str], gpus: int
) -> dict[str, Any]:
    """The verdict about the peers of this machine, with what it rests on.

    `verdict` is "proved" (everything that the driver promises holds), "broken" (a
    promise does not hold), or "none" (the driver promises nothing: no two GPUs, or no
    peers). Raises HarnessError if the probe cannot be asked.
    """
    if gpus < 2:
        nothing = {"good": True, "said": "not tried"}
        found: dict[str, Any] = {
            "pairs": [], "together": nothing, "problem": "", "milliseconds": 0
        }  # fmt: skip
    else:
        limit = SECONDS + SECONDS_OF_PAIR * gpus * (gpus - 1)
        found = probe.answer(cases, ("--peers", str(gpus)), environment, limit)
        if wrong := schema.error(found, SCHEMA, "probe --peers"):
            raise HarnessError(wrong)
    promised = [x for x in found["pairs"] if x["promised"]]
    apart = [x for x in found["pairs"] if not x["promised"]]
    broken = [x for x in promised if not x["proved"]]
    if found["problem"]:
        verdict = "broken"
    elif not promised:
        verdict = "none"
    else:
        whole = not apart and not broken
        sound = not broken and (found["together"]["good"] or not whole)
        verdict = "proved" if sound else "broken"
    return {
        "verdict": verdict,
        "implies": _implies(verdict),
        **found,
        "facts": facts(),
    }


def _implies(verdict: str) -> list[str]:
    """What the verdict means for frameworks and for the administrator."""
    if verdict != "broken":
        return []
    return [
        "NCCL: NCCL_P2P_DISABLE=1",
        "vLLM and SGLang: --disable-custom-all-reduce",
        "UCX: UCX_TLS=^cuda_ipc",
        "the administrator: iommu=pt (or iommu=off) for the kernel, and ACS off on the "
        "PCIe bridges between the GPUs (setpci, or the BIOS)",
        "in a virtual machine: pass the GPUs and their switch through together, or use "
        "no peers",
    ]


def facts(top: Path = Path("/")) -> dict[str, Any]:
    """What the system says about the way between the GPUs; None: cannot be read."""
    groups = sorted((top / "sys/kernel/iommu_groups").glob("*/type"))
    modes = {text for x in groups if (text := _read(x))}
    bridges: int | None = 0
    redirecting: list[str] = []
    for device in sorted((top / "sys/bus/pci/devices").glob("*")):
        if not _read(device / "class").startswith(BRIDGE):
            continue
        control = _acs(device / "config")
        if control is None:
            bridges = None
            break
        bridges = (bridges or 0) + 1
        if control & REDIRECT:
            redirecting.append(device.name)
    return {
        "iommu": sorted(modes) or ["off"],
        "acs_bridges": None if bridges is None else redirecting,
        CHECK: os.environ.get(CHECK),
    }


def _acs(config: Path) -> int | None:
    """The ACS control bits of a PCI device: 0 if it has no such capability, None if
    this user may not read them (more than 64 bytes are for the administrator).
    """
    try:
        data = config.read_bytes()
    except OSError:
        return None
    if len(data) < 256:
        return None
    place = 0x100
    for _ in range(64):
        if place < 0x100 or place + 8 > len(data):
            return 0
        (head,) = struct.unpack_from("<I", data, place)
        if head & 0xFFFF == ACS:
            return int(struct.unpack_from("<H", data, place + 6)[0])
        place = head >> 20
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def told(found: dict[str, Any]) -> list[Text | Table]:
    """What the doctor prints about it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("from", "to", "promised", "proved", "what failed"):
        table.add_column(name, overflow="fold")
    for x in found["pairs"]:
        why = f"{x['failed']}: {x['said']}" if x["promised"] and x["failed"] else ""
        proved = "yes" if x["proved"] else "NO" if x["promised"] else "-"
        style = {"yes": "green", "NO": "bold red", "-": ""}[proved]
        cells = (f"GPU {x['from']}", f"GPU {x['to']}")
        promised = "yes" if x["promised"] else "no"
        table.add_row(*cells, promised, Text(proved, style=style), Text(why))
    lines: list[Text | Table] = [table] if found["pairs"] else []
    if found["problem"]:
        lines.append(Text(f"peers: {found['problem']}"))
    if not found["together"]["good"]:
        lines.append(Text(f"all pairs at once: {found['together']['said']}"))
    known = found["facts"]
    bridges = known["acs_bridges"]
    acs = "cannot be read by this user" if bridges is None else ", ".join(bridges)
    lines.append(
        Text(
            f"IOMMU: {', '.join(known['iommu'])}; bridges whose ACS redirects peers: "
            f"{acs or 'none'}; {CHECK}: {known[CHECK] or 'not set'}"
        )
    )
    seconds = found["milliseconds"] / 1000
    meaning = {
        "proved": f"peers: proved, {len(found['pairs'])} pairs in {seconds:.1f} s",
        "broken": "peers: BROKEN. What the driver promises does not hold: data between "
        "these GPUs may be lost or wrong",
        "none": "peers: none. The driver promises no access between two GPUs here"
        if found["pairs"]
        else "peers: not tried, because this process does not see two GPUs",
    }
    lines.append(Text(meaning[found["verdict"]], style="bold"))
    lines += [Text(f"  {x}") for x in found["implies"]]
    return lines
