"""What the roles of one test did, as steps of a sequence that pictures.py draws."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

from ipclab.failures import readable
from ipclab.trace import pictures
from ipclab.trace.sequence import Step

MOST = 200  # steps that are drawn

Entry = dict[str, Any]


def svg(entries: list[Entry], title: str) -> str:
    """The picture as an SVG element; empty text if nothing was recorded."""
    drawn = steps(entries)
    if not drawn:
        return ""
    names = dict.fromkeys(name for x in drawn for name in (x.who, x.to) if name)
    return pictures.sequence(drawn, names, title, most=MOST)


def steps(entries: list[Entry]) -> list[Step]:
    """The entries in the order of time, each message once. Each step says how many
    milliseconds after the first entry it was recorded.
    """
    shown = sorted(entries, key=lambda entry: int(entry["t_us"]))
    # A 'receive' shows the whole message, so its 'send' is left out.
    received = {(e.get("from"), e["text"]) for e in shown if e["kind"] == "receive"}
    return [
        _step(entry, (int(entry["t_us"]) - int(shown[0]["t_us"])) / 1000)
        for entry in shown
        if not (entry["kind"] == "send" and (entry["role"], entry["text"]) in received)
    ]


def _step(entry: Entry, after: float) -> Step:
    role, kind, text = entry["role"], entry["kind"], str(entry["text"])
    detail = f"{after:.1f} ms"
    source = entry.get("from")
    if kind == "receive" and source and source != role:
        size = f"{entry['bytes']} bytes, " if entry.get("bytes") else ""
        return Step(source, "message", text, detail=size + detail, to=role)
    if kind == "failure":
        return Step(
            role, kind, "a check fails", detail=readable(text).partition("\n")[0]
        )
    said = {
        "wait": f"waits for {text}",
        "send": f"sends {text}",
        "receive": f"receives {text}",
    }.get(kind, text)
    return Step(role, kind, said, detail=detail)
