"""The page of a trace, its pictures as files, and the trace as JSON."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ipclab import pages, results
from ipclab.trace import pictures
from ipclab.trace.files import Call, Process
from ipclab.trace.findings import Finding
from ipclab.trace.sequence import Step, steps
from ipclab.trace.story import Story

STYLE = Path(pages.__file__).parent / "templates" / "trace.css"
MOST = 3000  # steps of a page; a page with more steps would be slow


def write(folder: Path, story: Story, found: Sequence[Finding]) -> None:
    """Write trace.html, sequence.svg, memory.svg and trace.json.

    Raises HarnessError if that fails.
    """
    drawn = steps(story, found)
    title = _title(story)
    style = f"<style>{STYLE.read_text('utf-8')}</style>"
    names = [process.name for process in story.trace.processes]
    sequence = pictures.sequence(drawn, names, f"Sequence of {title}")
    memory = pictures.memory(story, f"Memory of {title}")
    for name, picture in (("sequence", sequence), ("memory", memory)):
        alone = picture.replace("<title>", f"{style}<title>", 1)
        results.write(folder / f"{name}.svg", alone)
    text = json.dumps(document(story, drawn, found), indent=1) + "\n"
    results.write(folder / "trace.json", text)
    results.write(folder / "trace.html", html(story, drawn, found, sequence, memory))


def html(
    story: Story,
    drawn: list[Step],
    found: Sequence[Finding],
    sequence: str,
    memory: str,
) -> str:
    """One page that needs no other file."""
    used = {step.who for step in drawn} | {step.to for step in drawn}
    lanes = [process for process in story.trace.processes if process.name in used]
    number = {process.name: i for i, process in enumerate(lanes)}
    began = story.trace.processes[0].began if story.trace.processes else 0
    shown = drawn[:MOST]
    return pages.render(
        "trace.html.j2",
        title=_title(story),
        on_model=pages.ON_MODEL if any(p.recorder == "calls" for p in lanes) else None,
        processes=story.trace.processes,
        lanes=lanes,
        lane=number,
        steps=shown,
        left_out=len(drawn) - len(shown),
        findings=found,
        began=began,
        memories=[x for x in story.memories if x.shared],
        handles=story.handles,
        unmatched=story.unmatched,
        calls=_counts(story),
        sequence=sequence,
        memory=memory,
    )


def document(
    story: Story, drawn: list[Step], found: Sequence[Finding]
) -> dict[str, Any]:
    """The trace as JSON for programs: processes, memory, handles, steps, findings."""
    began = story.trace.processes[0].began if story.trace.processes else 0
    number = {process: i for i, process in enumerate(story.trace.processes)}
    by_name = {process.name: i for process, i in number.items()}
    return {
        "format": 1,
        "processes": [
            {
                "name": p.name,
                "pid": p.number,
                "parent": p.parent,
                "command": p.command,
                "recorder": p.recorder,
                "problem": p.problem,
                "ended": p.how,
                "t": [p.began - began, p.ended - began],
            }
            for p in story.trace.processes
        ],
        "memory": [
            {
                "number": m.number,
                "kind": m.kind,
                "owner": number[m.owner],
                "address": m.address,
                "size": m.size,
                "openings": [
                    {
                        "process": number[o.process],
                        "address": o.address,
                        "opened": len(o.opens),
                        "closed": sum(1 for x in o.closes if _is_call(x)),
                    }
                    for o in m.openings
                ],
            }
            for m in story.memories
            if m.shared
        ],
        "handles": [
            {
                "kind": h.kind,
                "exporter": number[h.process],
                "t": h.made.ended - began,
                "bytes": h.key,
                "descriptor": h.descriptor,
                "imports": [
                    {
                        "process": number[c.process],
                        "t": c.ended - began,
                        "result": c.result,
                    }
                    for c in h.imports
                ],
            }
            for h in story.handles
        ],
        "unmatched_imports": len(story.unmatched),
        "steps": [
            {
                "t": s.at,
                "process": by_name.get(s.who),
                "kind": s.kind,
                "text": s.text,
                "detail": s.detail,
                "to": by_name.get(s.to),
                "memory": s.handle or None,
                "finding": s.finding or None,
                "times": s.times,
            }
            for s in drawn
        ],
        "findings": [
            {
                "rule": f.rule,
                "row": f.requirement,
                "process": number[f.process],
                "t": f.at - began,
                "text": f.text,
                "advice": f.advice,
                "places": f.places,
            }
            for f in found
        ],
    }


def _counts(story: Story) -> dict[Process, tuple[int, int]]:
    """How many calls each process made, and how many concern IPC."""
    counts = dict.fromkeys(story.trace.processes, (0, 0))
    for entry in story.trace.entries:
        if isinstance(entry, Call):
            every, drawn = counts[entry.process]
            counts[entry.process] = (every + 1, drawn + (id(entry) in story.concerns))
    return counts


def _is_call(entry: object) -> bool:
    return getattr(entry, "what", "") != "gone"


def _title(story: Story) -> str:
    first = story.trace.processes[0] if story.trace.processes else None
    return " ".join(first.command)[:120] if first else "an empty trace"
