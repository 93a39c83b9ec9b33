"""What a trace can find wrong with a program, and how findings are silenced."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ipclab import reader
from ipclab.errors import UsageError
from ipclab.trace.files import Entry, Process

# For each rule: the row of the catalogue that it follows from, and what
# to do. If a rule holds for several kinds of memory, a finding may name another row.
RULES: dict[str, tuple[str, str]] = {
    "freed-while-open": (
        "LMEM-42",
        "let every importer close the memory and report this; then free the memory",
    ),
    "exporter-ended-while-open": (
        "LIFE-04",
        "let the exporter wait until every importer has closed",
    ),
    "stale-handle": ("LMEM-07", "send the handle of memory that is still allocated"),
    "handle-of-ended-process": (
        "LIFE-05",
        "open the handle while its exporter runs, and let the exporter wait",
    ),
    "opened-in-exporter": (
        "LMEM-25",
        "use your own pointer or event; a handle is for another process",
    ),
    "second-context": ("LMEM-26", "open the handle in only one context of a device"),
    "wrong-flags": ("LMEM-19", "pass cudaIpcMemLazyEnablePeerAccess"),
    "unknown-handle": ("LMEM-24", "send all 64 bytes, unchanged"),
    "not-exportable": ("LMEM-21", "export memory of the kind that this handle is for"),
    "interior-pointer": (
        "LMEM-23",
        "also send the offset: a handle opens at the base of the allocation",
    ),
    "shared-with-neighbours": (
        "SUBA-03",
        "make the size of what you share a multiple of 2 MiB",
    ),
    "never-closed": ("LIFE-01", "close with cudaIpcCloseMemHandle, once for each open"),
    "closed-too-seldom": ("LMEM-09", "close once for each open"),
    "closed-too-often": ("LMEM-11", "close once for each open"),
    "closed-not-opened": ("LMEM-29", "close only what an open returned"),
    "import-freed": (
        "LMEM-28",
        "close what was opened from a handle; only the exporter frees memory",
    ),
    "use-after-close": ("LMEM-10", "close after the last use"),
    "pointer-of-another-process": (
        "LMEM-41",
        "send a handle and open it: addresses differ from process to process",
    ),
    "possible-race": (
        "LMEM-43",
        "let the process of the earlier work synchronise before it sends its message, "
        "or let the other process wait for an IPC event",
    ),
    "context-destroyed": ("LIFE-11", "close what is open before the context ends"),
    "cuda-after-fork": ("LIFE-10", "start children with exec, or fork before CUDA"),
    "event-not-exportable": (
        "LEVT-03",
        "create it with cudaEventInterprocess | cudaEventDisableTiming",
    ),
    "event-destroyed-while-open": (
        "LEVT-21",
        "destroy the event after every importer has destroyed its own event",
    ),
    "event-never-destroyed": ("LEVT-06", "release an imported event: cudaEventDestroy"),
    "never-released": ("VMM-15", "release each import: cuMemRelease"),
    "never-unmapped": ("VMM-30", "unmap what was imported: cuMemUnmap"),
    "used-without-access": ("VMM-17", "call cuMemSetAccess after cuMemMap"),
    "bad-descriptor": (
        "VMM-11",
        "import the descriptor that came through the socket, not its number",
    ),
    "descriptor-left-open": (
        "VMM-13",
        "close the descriptor after it was sent or imported",
    ),
    "pool-pointer-freed-early": (
        "POOL-18",
        "let every importer free its pointer before the exporter frees the memory",
    ),
    "pool-pointer-never-freed": ("POOL-15", "free an imported pointer: cudaFreeAsync"),
    "pool-pointer-imported-twice": (
        "IMPL-11",
        "import the pointer once: the first free unmaps both imports",
    ),
    "pool-not-exportable": (
        "POOL-02",
        "create the pool with the handle type that you export",
    ),
    "allocated-from-import": ("IMPL-01", "allocate in the exporter"),
}


@dataclass(frozen=True)
class Finding:
    """A broken rule: in which process, at which entry and time, and a text about it."""

    rule: str
    process: Process
    entry: Entry | None  # None: at the end of the process
    at: int  # nanoseconds of CLOCK_MONOTONIC
    text: str
    row: str = ""
    other: Entry | None = field(
        default=None, compare=False
    )  # the other entry of a conflict

    @property
    def requirement(self) -> str:
        """The row of the catalogue that the rule follows from."""
        return self.row or RULES[self.rule][0]

    @property
    def advice(self) -> str:
        """What to do."""
        return RULES[self.rule][1]


@dataclass(frozen=True)
class Suppression:
    """A line of a file of suppressions: RULE[:PROGRAM[:TEXT]], with wildcards."""

    rule: str
    program: str
    text: str

    def covers(self, finding: Finding) -> bool:
        """Whether this line silences the finding."""
        program = (
            Path(finding.process.command[0]).name if finding.process.command else ""
        )
        return (
            fnmatch.fnmatchcase(finding.rule, self.rule)
            and fnmatch.fnmatchcase(program, self.program)
            and fnmatch.fnmatchcase(finding.text, self.text)
        )


def suppressions(path: Path) -> list[Suppression]:
    """Read a file of suppressions; # begins a comment.

    Raises UsageError if it cannot be read or names a rule that does not exist.
    """
    found = []
    for number, line in enumerate(reader.text(path).splitlines(), start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        rule, program, words = [*text.split(":", 2), "*", "*"][:3]
        if not fnmatch.filter(RULES, rule):
            raise UsageError(f"{path}:{number}: no rule is called '{rule}'")
        found.append(Suppression(rule, program, words))
    return found


def split(
    found: Iterable[Finding], silenced: list[Suppression]
) -> tuple[list[Finding], list[Finding]]:
    """The findings that no suppression covers, and those that a suppression covers."""
    counted: list[Finding] = []
    covered: list[Finding] = []
    for finding in found:
        hushed = any(x.covers(finding) for x in silenced)
        (covered if hushed else counted).append(finding)
    return counted, covered
