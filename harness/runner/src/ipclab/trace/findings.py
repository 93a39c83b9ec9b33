"""What a trace can find wrong with a program, and how findings are silenced."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ipclab import packed, reader
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
    "no-path-to-owner": (
        "LMEM-31",
        "ask cudaDeviceCanAccessPeer first; open the handle on the owner's device; "
        f"`{packed.command()} doctor --peers` shows which pairs work. Without a path, "
        "copy through memory of the host",
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
    "event-without-time": (
        "LEVT-16",
        "measure time with a second event of your own, without cudaEventInterprocess",
    ),
    "waits-before-record": (
        "LEVT-11",
        "record the event before the message that lets the other process wait: one "
        "that was never recorded stands for no work",
    ),
    "event-destroyed-while-open": (
        "LEVT-21",
        "destroy the event after every importer has destroyed its own event",
    ),
    "event-never-destroyed": ("LEVT-06", "release an imported event: cudaEventDestroy"),
    "never-released": ("VMM-15", "release each import: cuMemRelease"),
    "never-unmapped": ("VMM-30", "unmap what was imported: cuMemUnmap"),
    "used-without-access": ("VMM-17", "call cuMemSetAccess after cuMemMap"),
    "mapped-with-another-size": (
        "VMM-23",
        "map the whole allocation at offset 0: send its size, which is a multiple of "
        "the granularity, together with the descriptor",
    ),
    "bad-descriptor": (
        "VMM-11",
        "import the descriptor that came through the socket, not its number",
    ),
    "descriptor-taken-over": (
        "VMM-13",
        "after an import of external memory the descriptor belongs to the driver: "
        "never close it or use it again, its number may be that of another file; to "
        "keep one, import a copy (dup). cuMemImportFromShareableHandle takes nothing "
        "over",
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
    "handle-of-zeros": (
        "LMEM-24",
        "exchange the number of handles first, and stop if the processes disagree; "
        "record buffers in the same order in every process. The error is about the "
        "bytes of the handle and not about the driver",
    ),
    "thread-without-context": (
        "LMEM-40",
        "call cuCtxSetCurrent with the primary context (or cudaSetDevice) at the start "
        "of every thread that exports or imports, or export once on the main thread "
        "and keep the handle. torch.cuda.device(0) binds no context in a new thread",
    ),
    "ordinal-of-another-process": (
        "RANK-02",
        "never send ordinals: send the UUID of the GPU, or do not select the peer's "
        "device at all and open the handle on your own one "
        "(cudaIpcMemLazyEnablePeerAccess maps memory of GPUs that are not visible)",
    ),
    "descriptor-not-taken": (
        "PLAT-12",
        "send the descriptor with SCM_RIGHTS over a Unix socket, which needs no right; "
        "or give the container --cap-add SYS_PTRACE, or a seccomp profile that allows "
        "pidfd_getfd. PyTorch: expandable_segments:False for what is shared",
    ),
    "kept-after-owners-end": (
        "VMM-30",
        "notice the end of the other process (end of file on the socket, or a pidfd) "
        "and release what came from it: cuMemUnmap, cuMemRelease, close. PyTorch: drop "
        "all references, then torch.cuda.ipc_collect()",
    ),
    "waits-for-dead-peer": (
        "FLAG-01",
        "a wait has no deadline, and CUDA does not report the end of the peer: watch "
        "its process (end of file on the socket, or a pidfd); when it is gone, write "
        "the word yourself from another stream (cuStreamWriteValue32), and report it",
    ),
    "events-without-end": (
        "LEVT-26",
        "interprocess events are a limited resource of the driver (4,096 in a process "
        "with driver 580), and 'out of memory' is not about memory here: keep a ring "
        "of events, or destroy an event when its buffer is used again; for many waits "
        "use words in shared memory and cuStreamWaitValue64",
    ),
    "reservations-without-end": (
        "VMM-44",
        "'out of memory' is about addresses here, and not about memory: reserve "
        "exactly the size that is imported, keep imports by their handle, and call "
        "cuMemAddressFree when an import is unmapped",
    ),
    "fault-beside-import": (
        "VMM-22",
        "a segment that grows is a new allocation with a handle of its own: the key of "
        "a cache of imports is (base, size); import every chunk of the range, and let "
        "the exporter send one descriptor for each chunk",
    ),
    "numa-node-refused": (
        "MNGD-15",
        "let all processes exchange what they can do, and take what all of them can; "
        "NCCL: NCCL_CUMEM_HOST_ENABLE=0 on every rank",
    ),
    "waits-in-a-cycle": (
        "FLAG-01",
        "let one of the processes write its word, or record its event, before it "
        "queues its wait; a write in the same stream after the wait cannot end it",
    ),
    "unsatisfied-wait": (
        "FLAG-01",
        "compare the value and the condition of the wait (GEQ, EQ, AND, NOR) with what "
        "the other process writes, and the address of the word in both processes; a "
        "word for EQ may have been passed over: use GEQ with a growing number",
    ),
    "waits-for-unset-word": (
        "FLAG-01",
        "set the words (cudaMemset, then synchronise) before the handle is sent, or "
        "before the message that lets the other process wait",
    ),
    "lost-in-capture": (
        "GRPH-02",
        "record it with cudaEventRecordWithFlags(cudaEventRecordExternal), or after "
        "the launch of the graph in the same stream",
    ),
    "called-in-host-function": (
        "LMEM-45",
        "let the function only set a flag or wake a thread, and make the call in that "
        "thread, after the stream has done its work",
    ),
    "opened-again-and-again": (
        "CACH-01",
        "keep the import open while its owner lends it, in a cache by the bytes of the "
        "handle: an open and a close change the address space each time, which costs "
        "far more than a small copy",
    ),
    "imports-without-end": (
        "LIFE-01",
        "keep one import for each handle, by the bytes of the handle or the identity "
        "of its descriptor, and release an import when its owner says that it is done",
    ),
    "used-on-another-device": (
        "LMEM-30",
        "launch on the device on which the memory was made or opened "
        "(cudaSetDevice), or call cudaDeviceEnablePeerAccess; open a handle with the "
        "device current that will use it",
    ),
    "stale-import": (
        "LMEM-06",
        "the key of a cache of imports is the handle and not the owner's address: when "
        "a newer handle comes for an address, close the old import and open the new "
        "handle",
    ),
    "closed-by-another-owner": (
        "LMEM-08",
        "all opens of a handle in a process give one pointer and share one count: each "
        "owner closes exactly as often as it has opened, or one place in the process "
        "opens and counts for all",
    ),
    "unexplained-refusal": (
        "LMEM-45",
        f"look the code up with `{packed.command()} explain`, and in the row of the "
        "call; if you expect the refusal, clear it with cudaGetLastError() and "
        "suppress this",
    ),
    "killed-at-exit": (
        "LIFE-01",
        "destructors of static objects and atexit handlers run after CUDA has shut "
        "down: release in main, and ignore cudaErrorCudartUnloading (4) there",
    ),
}

# Less urgent than other findings: an order that may be missing, and what is left over
# at the end; the others are refused, crash, hang or give wrong data.
LEFT_OVER = frozenset(
    (
        "never-closed",
        "closed-too-seldom",
        "event-never-destroyed",
        "never-released",
        "never-unmapped",
        "descriptor-left-open",
        "pool-pointer-never-freed",
    )
)
POSSIBLE = frozenset(
    ("possible-race", "shared-with-neighbours", "opened-again-and-again")
)

# What to use instead, for each kind of memory that has no legacy handle.
INSTEAD = {
    "managed": "copy managed memory into memory of cudaMalloc, and share this",
    "pool": "create a pool with cudaMemHandleTypePosixFileDescriptor, export the pool "
    "once, and each pointer by cudaMemPoolExportPointer; the default pool cannot be "
    "shared. PyTorch: not backend:cudaMallocAsync",
    "chunk": "export memory of cuMemCreate by cuMemExportToShareableHandle, and send "
    "the descriptor. PyTorch: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False",
    "import": "send the owner's handle on: only the owner can export its memory",
    "": "host memory, arrays and device variables have no handle: keep the data in "
    "memory of cudaMalloc or cuMemCreate",
}
# A refused call of the runtime leaves its error in the thread.
LEFT_BEHIND = (
    "; and call cudaGetLastError() directly after a refusal that you expect: otherwise "
    "a later check, often after a kernel, reports this error"
)


@dataclass(frozen=True)
class Finding:
    """A broken rule: in which process, at which entry and time, and a text about it."""

    rule: str
    process: Process
    entry: Entry | None  # None: at the end of the process
    at: int  # nanoseconds of CLOCK_MONOTONIC
    text: str
    row: str = ""
    instead: str = ""  # advice for this kind of memory
    other: Entry | None = field(
        default=None, compare=False
    )  # the other entry of a conflict
    places: tuple[str, ...] = field(default=(), compare=False)  # see stacks.located()

    @property
    def requirement(self) -> str:
        """The row of the catalogue that the rule follows from."""
        return self.row or RULES[self.rule][0]

    @property
    def rank(self) -> int:
        """0 for the most urgent findings, 2 for what is left over at the end."""
        return 2 if self.rule in LEFT_OVER else int(self.rule in POSSIBLE)

    @property
    def advice(self) -> str:
        """What to do."""
        return self.instead or RULES[self.rule][1]


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
