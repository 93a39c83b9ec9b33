"""The rules: a page a group, a section a row of the catalogue.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]

GROUPS = {
    "LMEM": "Legacy memory handles",
    "LEVT": "Legacy event handles",
    "MNGD": "Managed memory",
    "SUBA": "Sub-allocation",
    "VMM": "Virtual memory management",
    "FABR": "Fabric handles",
    "SOMA": "Stream-ordered allocator",
    "POOL": "IPC pools",
    "IMPL": "Imported pools",
    "LIFE": "Lifetime",
    "PLAT": "Platform",
}


def label(row: Row) -> str:
    """The anchor of a row: Doxygen's labels have no hyphen."""
    return "rule_" + row["id"].replace("-", "_")


def link(row: Row) -> str:
    """A reference to a row, shown as its name."""
    return f'@ref {label(row)} "{row["id"]}"'


def pages(catalogue: dict[str, Any]) -> dict[str, str]:
    """File name -> page."""
    by_group: dict[str, list[Row]] = {}
    for row in catalogue["rows"]:
        by_group.setdefault(row["id"].split("-")[0], []).append(row)
    listed = "\n".join(f"- @subpage rules_{group}" for group in by_group)
    made = {
        "rules.dox": "/**\n@page rules Rules\n@brief Each documented sentence, its source and its tests.\n\n"
        f"{listed}\n*/\n"
    }
    for group, rows in by_group.items():
        text = f"/**\n@page rules_{group} {GROUPS[group]}\n\n"
        for row in rows:
            text += f"@section {label(row)} {row['id']}\n{row['statement']}\n\n{row['source']}\n\n"
        made[f"rules_{group}.dox"] = text + "*/\n"
    return made
