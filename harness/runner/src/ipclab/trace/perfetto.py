"""Writes a trace in the format that Perfetto and Chrome's tracing read."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ipclab import results
from ipclab.trace.files import Call
from ipclab.trace.findings import Finding
from ipclab.trace.names import result_name
from ipclab.trace.story import Story

MOST = 200_000  # if there are more calls, only the calls that concern IPC are written


def write(path: Path, story: Story, found: Iterable[Finding]) -> None:
    """Write the file: a row for each thread, an arrow from each export to its
    imports and from each message to its receiver. Raises HarnessError."""
    results.write(path, json.dumps(document(story, found)))


def document(story: Story, found: Iterable[Finding]) -> dict[str, Any]:
    """The document that `write` writes."""
    began = story.trace.processes[0].began if story.trace.processes else 0
    calls = [entry for entry in story.trace.entries if isinstance(entry, Call)]
    if len(calls) > MOST:
        calls = [call for call in calls if id(call) in story.concerns]
    events: list[dict[str, Any]] = [
        {
            "ph": "M",
            "name": "process_name",
            "pid": process.number,
            "args": {"name": process.name},
        }
        for process in story.trace.processes
    ]
    for call in calls:
        events.append(
            {
                "ph": "X",
                "name": call.name,
                "cat": "ipc" if id(call) in story.concerns else "cuda",
                "pid": call.process.number,
                "tid": call.thread,
                "ts": (call.began - began) / 1000,
                "dur": (call.ended - call.began) / 1000,
                "args": {
                    "result": "success" if call.ok else result_name(call.result),
                    **call.arguments,
                },
            }
        )
    flows = [
        ((handle.made.process.number, handle.made.thread, handle.made.began),
         (call.process.number, call.thread, call.began), handle.kind)
        for handle in story.handles for call in handle.imports
    ] + [
        ((message.sent.process.number, 0, message.sent.at),
         (message.received.process.number, 0, message.received.at), "message")
        for message in story.messages
    ]  # fmt: skip
    for number, (start, end, name) in enumerate(flows, start=1):
        for phase, (process, thread, at) in (("s", start), ("f", end)):
            events.append(
                {
                    "ph": phase,
                    "name": name,
                    "cat": "ipc",
                    "id": number,
                    "pid": process,
                    "tid": thread,
                    "ts": (at - began) / 1000,
                    **({"bp": "e"} if phase == "f" else {}),
                }
            )
    for finding in found:
        events.append(
            {
                "ph": "i",
                "s": "p",
                "name": f"{finding.rule}: {finding.text}",
                "cat": "finding",
                "pid": finding.process.number,
                "tid": 0,
                "ts": (finding.at - began) / 1000,
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ns"}
