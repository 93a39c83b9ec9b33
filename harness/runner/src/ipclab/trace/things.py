"""What a program has in CUDA: memory, handles, openings, events, pools."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import bisect
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ipclab.trace.files import Call, Entry, Process


@dataclass(eq=False)
class Memory:
    """Memory that one process made: an allocation, or a chunk of cuMemCreate."""

    kind: str  # malloc, managed, pool, chunk
    owner: Process
    address: int  # 0 for a chunk
    size: int
    made: Call
    number: int = 0  # number in its trace, for people
    handles: int = 0  # handle types of a chunk
    pool: Pool | None = None
    freed: Entry | None = None
    exports: list[Handle] = field(default_factory=list)
    openings: list[Opening] = field(default_factory=list)
    # Exports of a pointer into the middle, and how far from the base importers used it.
    inside: list[tuple[Call, int]] = field(default_factory=list)
    reached: int = 0
    writes: dict[tuple[Process, int], Work] = field(default_factory=dict)
    reads: dict[tuple[Process, int], Work] = field(default_factory=dict)
    uses: list[Call] = field(
        default_factory=list
    )  # launches, copies, and waits for them
    unset: bool = False  # exported before any work had written it
    set_by: set[Process] = field(default_factory=set)  # cuStreamWriteValue, since then

    @property
    def shared(self) -> bool:
        """Whether the memory was exported or opened."""
        return bool(self.exports or self.openings)

    @property
    def name(self) -> str:
        """The name for people: 'memory 3 (4 MiB)'."""
        return f"memory {self.number} ({size_text(self.size)})"


@dataclass(eq=False)
class Handle:
    """A handle that one process sends to another: bytes or a descriptor."""

    kind: str  # memory, event, chunk, pool, pointer, dma-buf
    process: Process
    of: Memory | SharedEvent | Pool
    made: Call
    key: str = ""  # the bytes; empty for a descriptor
    descriptor: dict[str, int] | None = None
    copies: int = 1  # copies of the descriptor, in all processes that have ever had one
    closes: list[Entry] = field(default_factory=list)  # closes of these copies
    imports: list[Call] = field(default_factory=list)

    @property
    def of_what(self) -> str:
        """What was exported, in words."""
        if isinstance(self.of, Memory):
            return self.of.name
        return "a pool" if isinstance(self.of, Pool) else "an event"

    @property
    def closed(self) -> Entry | None:
        """The close of the last copy of the descriptor; None while a copy is open."""
        return self.closes[-1] if len(self.closes) >= self.copies else None


@dataclass(eq=False)
class Opening:
    """Memory of another process that `process` has opened or imported."""

    process: Process
    memory: Memory | None  # None: its exporter is not in the trace
    handle: Handle | None
    kind: str  # memory, pointer, chunk
    address: int
    size: int
    context: int
    opens: list[Call] = field(default_factory=list)
    closes: list[Entry] = field(default_factory=list)
    before: int = 0  # how often this process has opened the same handle and closed it

    @property
    def open(self) -> bool:
        """Whether the memory was opened more often than closed."""
        return len(self.opens) > len(self.closes)

    @property
    def name(self) -> str:
        """The name for people."""
        return self.memory.name if self.memory else f"memory at {self.address:#x}"

    def taken_from(self, thread: int) -> str:
        """Who has closed what a thread had opened, in words; "" if this thread has
        closed as often as it has opened. All threads of a process have the same
        pointer and one count.
        """
        opens = Counter(x.thread for x in self.opens)
        closes = Counter(x.thread for x in self.closes if isinstance(x, Call))
        greedy = [x for x in closes if closes[x] > opens[x]]
        if opens[thread] <= closes[thread] or not greedy:
            return ""
        return ", ".join(
            f"thread {x} opened it {times(opens[x])} and closed it {times(closes[x])}"
            for x in (thread, greedy[0])
        )


@dataclass(eq=False)
class Mapping:
    """A chunk, mapped where this process reserved addresses."""

    process: Process
    chunk: Chunk
    address: int
    size: int
    made: Call
    access: Call | None = None  # cuMemSetAccess
    # Flags by device; None: not all of them are in the trace.
    rights: dict[int, int] | None = field(default_factory=dict)
    unmapped: Entry | None = None


@dataclass(eq=False)
class Chunk:
    """A handle of cuMemCreate or of an import, in one process."""

    process: Process
    memory: Memory | None
    opening: Opening | None  # None: the process made the chunk itself
    references: int = 1


@dataclass(eq=False)
class SharedEvent:
    """An event, in the process that made it."""

    owner: Process
    pointer: int
    flags: int
    made: Call
    destroyed: Entry | None = None
    exported: Call | None = None
    openings: list[EventOpening] = field(default_factory=list)
    recorded: Call | None = None  # the last record
    covers: list[Work] = field(default_factory=list)  # work before the last record
    # The last wait of each other process before the first record.
    early: dict[Process, Call] = field(default_factory=dict)
    told: dict[Process, int] = field(default_factory=dict)  # known at the last record
    waited: set[Process] = field(default_factory=set)  # for the last record


@dataclass(eq=False)
class EventOpening:
    """An event of another process that `process` has opened."""

    process: Process
    event: SharedEvent | None
    pointer: int
    opened: Call
    destroyed: Entry | None = None
    own: SharedEvent | None = None  # stands for the event if `event` is None


@dataclass(eq=False)
class Pool:
    """A memory pool, made or imported."""

    process: Process
    pointer: int
    handles: int
    made: Call
    original: Pool | None = None
    imported: bool = False
    default: bool = False
    destroyed: Entry | None = None
    device: int | None = None
    rights: dict[int, int] = field(default_factory=dict)  # flags by device, if known


@dataclass(eq=False)
class Work:
    """The last write, or the last read, of some memory by a process in a stream."""

    process: Process
    stream: int
    call: Call
    memory: Memory
    ordered_for: set[Process] = field(default_factory=set)
    done: dict[Process, int] = field(default_factory=dict)  # who saw it done, and when


@dataclass(frozen=True)
class Pinned:
    """Page-locked memory of the host."""

    address: int
    size: int


Range = Memory | Opening | Mapping
Item = TypeVar("Item", Range, Pinned)


class Addresses(Generic[Item]):
    """The ranges of addresses of one process. Ranges do not overlap."""

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._ranges: dict[int, Item] = {}

    def add(self, item: Item) -> None:
        """Add a range, or replace the range that has the same base."""
        if item.address not in self._ranges:
            bisect.insort(self._bases, item.address)
        self._ranges[item.address] = item

    def at(self, base: int) -> Item | None:
        """The range that begins at `base`; None if there is none."""
        return self._ranges.get(base)

    def holding(self, address: int) -> Item | None:
        """The range that contains an address; None if there is none."""
        index = bisect.bisect_right(self._bases, address) - 1
        if index < 0:
            return None
        found = self._ranges[self._bases[index]]
        return found if address < found.address + max(found.size, 1) else None

    def remove(self, base: int) -> None:
        """Remove the range that begins at `base`, if there is one."""
        if self._ranges.pop(base, None) is not None:
            del self._bases[bisect.bisect_left(self._bases, base)]

    def inside(self, base: int, size: int) -> list[Item]:
        """All ranges that begin inside the given range."""
        low = bisect.bisect_left(self._bases, base)
        high = bisect.bisect_left(self._bases, base + size)
        return [self._ranges[x] for x in self._bases[low:high]]


@dataclass
class Space:
    """The objects of one process at one moment of the replay."""

    process: Process
    # For each other process: the time up to which this process knows its actions, by
    # messages and events.
    knows: dict[Process, int] = field(default_factory=dict)
    addresses: Addresses[Range] = field(default_factory=Addresses)
    gone: Addresses[Range] = field(default_factory=Addresses)  # closed imports
    pinned: Addresses[Pinned] = field(default_factory=Addresses)
    chunks: dict[int, Chunk] = field(default_factory=dict)
    external: dict[int, Chunk] = field(default_factory=dict)  # external memory
    events: dict[int, SharedEvent | EventOpening] = field(default_factory=dict)
    pools: dict[int, Pool] = field(default_factory=dict)
    descriptors: dict[int, tuple[Handle | None, Any]] = field(default_factory=dict)
    # The import that has taken over the descriptor with a number.
    taken: dict[int, Call] = field(default_factory=dict)
    # The last export of a descriptor's number that was closed; what was sent with such
    # a number, by the number here; how many descriptors of how many a message has lost.
    closed: dict[int, Handle] = field(default_factory=dict)
    early: dict[int, Handle] = field(default_factory=dict)
    cut: tuple[int, int] | None = None
    openings: list[Opening] = field(default_factory=list)
    last_openings: dict[Handle, Opening] = field(default_factory=dict)
    mappings: list[Mapping] = field(default_factory=list)
    pending: dict[int, dict[tuple[int, bool], Work]] = field(
        default_factory=dict
    )  # by stream; then by memory and whether it writes
    primary: dict[int, int] = field(default_factory=dict)  # device to context
    devices: dict[int, int] = field(default_factory=dict)  # context to device
    # Which device may use the memory of which other device.
    peers: set[tuple[int, int]] = field(default_factory=set)
    calls: int = 0
    unseen: bool = False  # kernels may have written memory that no argument names
    faulted: bool = False  # a kernel has faulted: the context is lost

    def device(self, call: Call) -> int | None:
        """The device of the context in which a call was made; None: not known."""
        pointer = self.process.contexts.get(call.context)
        return None if pointer is None else self.devices.get(pointer)


def size_text(size: int) -> str:
    """4 MiB, 512 bytes."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << shift and size % (1 << shift) == 0:
            return f"{size >> shift} {unit}"
    return f"{size} bytes"


def memory_of(item: Range | None) -> Memory | None:
    """The memory to which a range of addresses leads."""
    if isinstance(item, Memory):
        return item
    if isinstance(item, Opening):
        return item.memory
    return item.chunk.memory if isinstance(item, Mapping) else None


def kind_of(item: Range | None) -> str:
    """The kind of memory, for INSTEAD."""
    if isinstance(item, Memory):
        return "" if item.freed or item.kind == "malloc" else item.kind
    if isinstance(item, Opening):
        return "import"
    return "chunk" if isinstance(item, Mapping) else ""


def range_text(item: Range | None) -> str:
    """The memory at an address, in words."""
    if isinstance(item, Memory):
        return {
            "malloc": "memory of cudaMalloc",
            "managed": "managed memory",
            "pool": "memory of a pool",
            "chunk": "a chunk",
        }[item.kind]
    if isinstance(item, Opening):
        return "memory that was opened from a handle"
    if isinstance(item, Mapping):
        return "memory of cuMemCreate"
    return "an address outside all allocations"


def times(count: int) -> str:
    """never, once, 3 times."""
    return ("never", "once")[count] if count < 2 else f"{count} times"
