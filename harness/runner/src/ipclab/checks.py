"""One check for each reason why sharing can fail on a machine.

A check judges facts that `machine.gather` found on this or another machine. The check
does not look at the machine itself. `pains.json` says which checks answer a complaint.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ipclab import explain, fingerprint
from ipclab.machine import Machine
from ipclab.probe import Probe

Capability = dict[str, Any]

LEGACY = ("legacy_memory", "legacy_events")
DESCRIPTORS = ("vmm_fd", "pool_fd")
MEMORY = ("legacy_memory", "vmm_fd", "fabric", "pool_fd")
TRANSPORTS = ("legacy_memory", "legacy_events", "vmm_fd", "fabric", "pool_fd")

STATES = ("blocks", "limits", "unknown", "fine")  # worst first

# Inode numbers of the namespaces in which a machine starts (linux/proc_ns.h).
FIRST = {"ipc": "ipc:[4026531839]", "pid": "pid:[4026531836]"}

PYTORCH = r"expandable_segments:\s*true|backend:\s*cudamallocasync"
# Values of variables that select an allocator other than cudaMalloc.
ALLOCATORS = {
    "PYTORCH_ALLOC_CONF": PYTORCH,
    "PYTORCH_CUDA_ALLOC_CONF": PYTORCH,
    "TF_GPU_ALLOCATOR": "cuda_malloc_async",
}

SMALL_SHM = 64 * 2**20  # the default of a container
ROOM_IN_SHM = 16 * 2**20
FEW_FILES = 4096
ROOM_FOR_TASKS = 64  # the driver also starts threads in each process that uses CUDA
LITTLE_MEMORY = (
    2 * 2**30
)  # a context takes some hundred MiB, and a run has several contexts


@dataclass(frozen=True)
class Verdict:
    """The result of a check: its state, what was found and, unless it is fine, what
    this means and what to do.
    """

    state: str  # one of STATES
    found: str
    transports: tuple[str, ...] = ()  # the transports that the result concerns
    meaning: str = ""
    next: str = ""


@dataclass(frozen=True)
class Check:
    """A check: its name, its title, and the function that judges.

    The function returns None if the check does not apply. `asks` is the question of
    the check, for the pages.
    """

    id: str
    title: str
    judge: Callable[[Machine], Verdict | None]
    asks: str


@dataclass(frozen=True)
class Finding:
    """The verdict of one check on one machine."""

    check: str
    title: str
    verdict: Verdict


def judge(machine: Machine) -> list[Finding]:
    """The findings of all checks that apply, worst first."""
    findings = [
        Finding(check.id, check.title, verdict)
        for check in CHECKS
        if (verdict := check.judge(machine)) is not None
    ]
    return sorted(findings, key=lambda x: STATES.index(x.verdict.state))


def shared(machine: Machine) -> list[str]:
    """The transports that an attempt has shown to work."""
    return [
        x["name"]
        for x in machine.probe["capabilities"]
        if x["name"] in TRANSPORTS and x["available"]
    ]


def fine(found: str) -> Verdict:
    """Nothing prevents sharing here."""
    return Verdict("fine", found)


def unknown(found: str, next: str) -> Verdict:
    """The check could not find the answer here."""
    return Verdict("unknown", found, (), "", next)


def limits(found: str, transports: Iterable[str], meaning: str, next: str) -> Verdict:
    """The transports work under a condition."""
    return Verdict("limits", found, tuple(transports), meaning, next)


def blocks(found: str, transports: Iterable[str], meaning: str, next: str) -> Verdict:
    """The transports do not work."""
    return Verdict("blocks", found, tuple(transports), meaning, next)


# --- the GPU and its driver ---------------------------------------------------------


def _gpu(m: Machine) -> Verdict:
    gpus = m.probe["gpus"]
    if gpus:
        return fine(", ".join(gpu["name"] for gpu in gpus))
    reason = next((x["reason"] for x in m.probe["capabilities"] if x["reason"]), "")
    # Without a driver CUDA says that the driver is too old; another check covers that.
    advice = _what_to_do(reason) if m.probe.get("driver_version") else ""
    return blocks(
        reason or "CUDA sees none",
        TRANSPORTS,
        "nothing can be shared without a GPU",
        advice
        or "look at nvidia-smi; without a GPU the lessons run on the reference "
        "model: ipclab run --backend model",
    )


def _what_to_do(reason: str) -> str:
    """The dictionary's advice for a reason such as 'cudaErrorNoDevice (100): …'."""
    by_code = {entry.code: entry.do for entry in explain.read()}
    named = re.findall(r"cudaError\w+", reason)
    return next((by_code[code] for code in named if code in by_code), "")


def _driver(m: Machine) -> Verdict:
    driver = int(m.probe.get("driver_version") or 0)
    runtime = int(m.probe.get("runtime_version") or 0)
    found = f"driver {_branch(m)}{_cuda(driver)}, runtime {_cuda(runtime)}"
    if driver == 0:
        return blocks(
            found,
            TRANSPORTS,
            "there is no libcuda.so.1, or it finds no kernel module",
            "install the driver; for a container, install it on the host, and start "
            "the container with --gpus all",
        )
    found += f"; the driver runs {_programs(driver)}"
    if driver >= runtime:
        return fine(found)
    advice = (
        "update the driver, or use its compatibility package; see ipclab explain 35"
    )
    if driver // 1000 == runtime // 1000:
        return limits(
            found,
            TRANSPORTS,
            "the driver is older than the runtime: calls that are newer than the "
            "driver are refused",
            advice,
        )
    return blocks(
        found,
        TRANSPORTS,
        "the driver is older than the runtime: the runtime's first call fails",
        f"{advice}; or use programs of CUDA {driver // 1000}",
    )


def _branch(m: Machine) -> str:
    """The name of NVIDIA's branch, such as 'R580, '; '' on the model."""
    known = "" if m.probe["backend"] == "model" else str(m.probe.get("driver") or "")
    return f"R{known.split('.')[0]}, " if known else ""


def _programs(driver: int) -> str:
    """Which programs a driver runs.

    It runs the programs of all older versions of CUDA, and those of newer minor
    versions as far as they call nothing that is newer than the driver (CUDA
    Compatibility).
    """
    major = driver // 1000
    return f"programs of CUDA {major - 1} and {major}"


def _cuda(version: int) -> str:
    return f"CUDA {version // 1000}.{version % 1000 // 10}" if version else "none"


def _device_nodes(m: Machine) -> Verdict | None:
    if not m.driver.loaded or m.fingerprint["wsl"] or m.probe["backend"] == "model":
        return None
    gpus = [node for node in m.driver.nodes if node[-1].isdigit()]
    closed = [x for x in m.driver.nodes if m.driver.nodes[x] != "open"]
    usable = len(set(gpus) - set(closed))
    if not usable or not set(closed) <= set(gpus):
        return blocks(
            ", ".join(f"{x}: {m.driver.nodes[x]}" for x in closed) or "no /dev/nvidiaN",
            TRANSPORTS,
            "CUDA cannot reach a GPU without these device nodes",
            "run nvidia-modprobe -u -c 0 on the host; start the container with "
            "--gpus all, or give this user the permission",
        )
    if usable < m.driver.gpus:
        return limits(
            f"{usable} of {m.driver.gpus} GPUs",
            MEMORY,
            "memory of a GPU whose device node is not here cannot be imported",
            "give both containers all GPUs and choose with CUDA_VISIBLE_DEVICES",
        )
    return fine(f"{usable} of {m.driver.gpus} GPUs")


def _offered(m: Machine) -> Verdict | None:
    if not m.probe["gpus"] or _integrated(m):
        return None
    missing = [
        x["name"]
        for x in _asked(m)
        if not x["available"] and not _promised(x["attribute"])
    ]
    if not missing:
        return fine("all transports")
    return blocks(
        f"no {', '.join(missing)}",
        missing,
        "the GPU or the driver does not support this: the attribute is 0",
        "use another transport from the table above; ipclab explain 801",
    )


def _attempts(m: Machine) -> Verdict | None:
    if not m.probe["gpus"]:
        return None
    refused = {
        x["name"]: x["reason"]
        for x in _asked(m)
        if not x["available"] and _promised(x["attribute"])
    }
    if not refused:
        return fine("everything that the attributes promise works")
    reasons = "; ".join(refused.values())
    return blocks(
        reasons,
        refused,
        "the attribute promises something that the driver then refuses: trust the "
        "attempt",
        _what_to_do(reasons)
        or "use another transport from the table above; do not decide by the attribute "
        "alone",
    )


def _asked(m: Machine) -> list[Capability]:
    """The transports of the probe without fabric, which has its own check."""
    names = [x for x in TRANSPORTS if x != "fabric"]
    return [x for x in m.probe["capabilities"] if x["name"] in names]


def _promised(attribute: str) -> bool:
    value = re.search(r"= (-?\d+)$", attribute)
    return value is not None and int(value[1]) > 0


def _capability(document: Probe, name: str) -> Capability:
    """What the probe says about a capability; empty if it says nothing."""
    return next((x for x in document["capabilities"] if x["name"] == name), {})


def _each_gpu(m: Machine) -> Verdict | None:
    if len(m.each_gpu) < 2:
        return None
    able = [{x for x in names if x in TRANSPORTS} for names in m.each_gpu]
    some, every = set.union(*able), set.intersection(*able)
    if some == every:
        return fine("all share the same")
    gpus = [
        f"GPU {i} lacks {', '.join(sorted(some - names))}"
        for i, names in enumerate(able)
        if names != some
    ]
    return limits(
        "; ".join(gpus),
        sorted(some - every),
        "the GPUs differ in what they share",
        "choose a GPU that can share, and hide the others with CUDA_VISIBLE_DEVICES",
    )


def _wsl(m: Machine) -> Verdict:
    if not m.fingerprint["wsl"]:
        return fine("no")
    return limits(
        "yes",
        TRANSPORTS,
        "WSL does not support legacy IPC, or attributes promise what calls refuse",
        "trust the attempts in the table above; otherwise use native Linux, or one "
        "process with threads",
    )


def _integrated(m: Machine) -> bool:
    return bool(_capability(m.probe, "tegra").get("available"))


def _tegra(m: Machine) -> Verdict | None:
    if not m.probe["gpus"]:
        return None
    if not _integrated(m):
        return fine("no integrated GPU")
    return blocks(
        "an integrated GPU",
        MEMORY,
        "the GPU shares events, but not memory by a handle",
        "share host memory, which this GPU reads without a copy, and order the "
        "work by an interprocess event",
    )


def _mig(m: Machine) -> Verdict | None:
    if not m.probe["gpus"] and m.smi is None:
        return None
    instances = any(gpu.get("mig") for gpu in m.probe["gpus"])
    enabled = m.smi is not None and any(
        gpu.get("mig") == "Enabled" for gpu in m.smi.gpus
    )
    if not instances and not enabled:
        return fine("off")
    return limits(
        "on",
        MEMORY,
        "memory can be shared only inside one GPU instance; instances are not peers",
        "let both processes use compute instances of one GPU instance, or turn MIG "
        "off: nvidia-smi -mig 0",
    )


def _compute_mode(m: Machine) -> Verdict | None:
    modes = {str(gpu.get("compute_mode", "?")) for gpu in m.probe["gpus"]}
    if m.smi is not None:  # also for GPUs on which CUDA gets no context
        modes |= {x.get("compute_mode", "?") for x in m.smi.gpus}
    modes = {mode.lower().replace("_", " ") for mode in modes} - {"?", "unknown"}
    if not modes:
        return None
    found = ", ".join(sorted(modes))
    advice = "nvidia-smi -c DEFAULT"
    if "prohibited" in modes:
        return blocks(found, TRANSPORTS, "no process gets a context there", advice)
    if "exclusive process" not in modes:
        return fine(found)
    if m.probe.get("mps"):
        return limits(
            found,
            TRANSPORTS,
            "only clients of MPS get a context",
            f"start both processes under MPS, or {advice}",
        )
    meaning = "a second process gets no context"
    return blocks(found, TRANSPORTS, meaning, f"{advice}, or MPS")


def _mps(m: Machine) -> Verdict | None:
    if not m.probe["gpus"]:
        return None
    if not m.probe.get("mps"):
        return fine("off")
    return limits(
        "on",
        TRANSPORTS,
        "a fault of one client also ends the other clients; IPC between them is not "
        "documented",
        "give both processes the same CUDA_MPS_PIPE_DIRECTORY; to study faults, stop "
        "MPS: echo quit | nvidia-cuda-mps-control",
    )


def _peer_access(m: Machine) -> Verdict | None:
    gpus = m.probe["gpus"]
    if len(gpus) < 2:
        return None
    peers = {tuple(pair) for pair in m.probe.get("peers", [])}
    pairs = [(a, b) for a in range(len(gpus)) for b in range(len(gpus)) if a != b]
    apart = [f"{a} -> {b}" for a, b in pairs if (a, b) not in peers]
    enable = _capability(m.probe, "peer_access")
    if not apart and enable.get("available", True):
        return fine("every GPU reaches every other")
    hints = []
    if len({gpu["name"] for gpu in gpus}) > 1:
        hints.append("the GPUs are different models")
    if m.driver.iommu:
        hints.append("an IOMMU is on")
    found = f"no access: {', '.join(apart)}" if apart else str(enable.get("reason"))
    return limits(
        "; ".join([found, *hints]),
        (*MEMORY, "legacy_events"),
        "memory of one GPU cannot be mapped on the other; cudaIpcOpenMemHandle fails "
        "there with 205 or 217",
        "let both processes use one GPU or a pair of peers (nvidia-smi topo -p2p r); "
        "ask the administrator about IOMMU and PCIe ACS",
    )


READY = (
    "or let the driver wait longer (CUDA_FABRIC_INIT_TIMEOUT_MS); if it stays so: "
    "nvidia-smi -q, section Fabric, and the fabric manager"
)


def _imex(m: Machine) -> Verdict | None:
    fabric = _capability(m.probe, "fabric")
    if fabric.get("available"):
        return fine("a channel is open to this user")
    attribute = str(fabric.get("attribute", ""))
    if "=" not in attribute:
        return None  # the probe could not ask
    if not _promised(attribute):
        return blocks(
            "not supported",
            ["fabric"],
            "the GPU or the driver does not support fabric handles",
            "share inside one machine, by a descriptor",
        )
    ways = "until then share inside one machine, by a descriptor"
    if "FABRIC_NOT_READY" in str(fabric.get("attempt")):
        return blocks(
            str(fabric.get("attempt")),
            ["fabric"],
            "the driver says that the fabric is not ready yet",
            f"wait and try again, {READY}; {ways}",
        )
    if not m.driver.imex:
        return blocks(
            "the kernel module has no nvidia-caps-imex-channels",
            ["fabric"],
            "the GPU supports fabric handles, but no device gives the permission",
            f"load a driver with IMEX channels; {ways}",
        )
    if not m.driver.channels:
        return blocks(
            "no channel",
            ["fabric"],
            f"fabric handles need a node in {fingerprint.IMEX}",
            "make the node with mknod and the number of nvidia-caps-imex-channels in "
            f"/proc/devices, or pass the node into the container; {ways}",
        )
    names = ", ".join(m.driver.channels)
    if not any(m.driver.channels.values()):
        return blocks(
            f"{names}: no permission",
            ["fabric"],
            "this user may not open a channel",
            f"ask the administrator for your own channel; {ways}",
        )
    return blocks(
        f"{names}, but {fabric.get('attempt')}",
        ["fabric"],
        "the channel exists, but the fabric is not ready",
        f"nvidia-imex-ctl -N; nvidia-smi -q, section Fabric; {ways}",
    )


def _confidential(m: Machine) -> Verdict | None:
    if m.smi is None or m.smi.confidential is None:
        return None
    if not m.smi.confidential:
        return fine("off")
    return limits(
        "on",
        TRANSPORTS,
        "such a machine has one GPU and few contexts; CUDA reaches host memory "
        "indirectly",
        "trust the attempts in the table above; keep both processes on one GPU",
    )


# --- the process and its surroundings -----------------------------------------------


def _pid_namespace(m: Machine) -> Verdict:
    mine = m.fingerprint["namespaces"].get("pid", "?")
    meaning = "legacy handles need exporter and importer in the same PID namespace"
    advice = (
        "start both containers with --pid=host or --pid=container:NAME, or send "
        "descriptors over a socket on a common volume, as lesson 65 does"
    )
    if m.other is not None:
        theirs = m.other.namespaces.get("pid", "?")
        if "?" in (mine, theirs):
            return unknown(
                f"{mine} here, {theirs} there",
                "run the doctor as the user of that process or as root",
            )
        if mine != theirs:
            found = f"{mine} here, {theirs} there"
            return blocks(found, LEGACY, meaning, advice)
        return fine(f"{mine}, the same")
    if mine == "?":
        return unknown("cannot be read", "mount /proc")
    if mine == FIRST["pid"]:
        return fine(f"{mine}, the machine's own")
    return limits(f"{mine}, a private one", LEGACY, meaning, advice)


def _ipc_namespace(m: Machine) -> Verdict:
    mine = m.fingerprint["namespaces"].get("ipc", "?")
    theirs = m.other.namespaces.get("ipc") if m.other is not None else FIRST["ipc"]
    if mine == theirs:
        return fine(mine)
    if "?" in (mine, theirs or "?"):
        return unknown(
            mine,
            "mount /proc, or run the doctor as the user of that process or as root",
        )
    return limits(
        f"{mine}, a private one" if m.other is None else f"{mine}, there {theirs}",
        LEGACY,
        "CUDA works, but handles that are sent through shm_open or System V do not "
        "arrive",
        "start both containers with --ipc=host or --ipc=container:NAME, or send "
        "handles over a socket",
    )


def _container(m: Machine) -> Verdict:
    hints = m.fingerprint["container"]
    if not hints:
        return fine("no")
    return limits(
        ", ".join(hints),
        TRANSPORTS,
        "two containers share memory only if they see the same GPUs; legacy handles "
        "also need one --ipc and one --pid for both",
        "send descriptors over a socket on a common volume, as lesson 65 does; for "
        "legacy handles: docker run --gpus all --ipc=host --pid=host; Kubernetes: "
        "hostIPC and hostPID, or one Pod with shareProcessNamespace",
    )


def _dev_shm(m: Machine) -> Verdict:
    size, free = m.fingerprint["dev_shm_bytes"], m.shared_memory.free_bytes
    advice = (
        "start the container with --ipc=host or a larger --shm-size; "
        "mount -o remount,size=1G /dev/shm"
    )
    if size is None or free is None:
        return limits("missing", LEGACY, "shared host memory fails", advice)
    found = f"{_mib(size)}, {_mib(free)} free"
    if not m.shared_memory.writable:
        return limits(
            f"{found}, not writable",
            LEGACY,
            "shared host memory fails",
            "let all users write there: chmod 1777 /dev/shm",
        )
    if size <= SMALL_SHM:
        return limits(found, LEGACY, "there is little shared host memory", advice)
    if free < ROOM_IN_SHM:
        return limits(
            found,
            LEGACY,
            "/dev/shm is full: shared host memory fails, or ends in SIGBUS",
            "list the files with `ls -l /dev/shm`; remove those that no process uses",
        )
    return fine(found)


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


def _ptrace_scope(m: Machine) -> Verdict:
    scope = m.fingerprint["ptrace_scope"]
    if scope in (None, "0"):
        return fine("no Yama" if scope is None else "0")
    if m.process.pidfd_getfd == "allowed":
        return fine(f"{scope}, but pidfd_getfd is allowed here")
    return limits(
        scope,
        DESCRIPTORS,
        "pidfd_getfd between unrelated processes is refused: pass descriptors over "
        "a socket",
        "send them with SCM_RIGHTS, as lesson 30 does, or let the exporter allow "
        "the importer with prctl(PR_SET_PTRACER)",
    )


def _seccomp(m: Machine) -> Verdict:
    answer = m.process.pidfd_getfd
    if answer == "allowed":
        return fine("pidfd_getfd is allowed")
    if m.fingerprint["ptrace_scope"] not in (None, "0"):
        return unknown(
            f"pidfd_getfd: {answer}, because of the ptrace scope",
            "send descriptors with SCM_RIGHTS; nothing else is needed",
        )
    if m.process.seccomp:
        cause = "a seccomp filter"
    elif answer == "ENOSYS":
        cause = "a kernel before 5.6"
    else:
        cause = "a security module or the user's rights"
    return limits(
        f"pidfd_getfd: {answer}, by {cause}",
        DESCRIPTORS,
        "a descriptor cannot be fetched from another process",
        "send it with SCM_RIGHTS over a socket, as lesson 30 does"
        + (
            ""
            if answer == "ENOSYS"
            else "; or start the container with --cap-add=SYS_PTRACE, or with a "
            "seccomp profile that allows pidfd_getfd"
        ),
    )


def _open_files(m: Machine) -> Verdict:
    limit = m.fingerprint["limits"]["nofile"]
    if limit is None or limit >= FEW_FILES:
        return fine("unlimited" if limit is None else str(limit))
    return limits(
        str(limit),
        DESCRIPTORS,
        "few: each exported allocation costs a descriptor, and so does each import",
        "ulimit -n 65536, or --ulimit nofile=65536 of the container; close a "
        "descriptor after its import",
    )


def _address_space(m: Machine) -> Verdict:
    limit = m.fingerprint["limits"]["as"]
    if limit is None:
        return fine("unlimited")
    return limits(
        _mib(limit),
        ("vmm_fd", "pool_fd"),
        "the stream-ordered allocator does not support such a limit, because it "
        "reserves many addresses",
        "ulimit -v unlimited",
    )


def _pids_limit(m: Machine) -> Verdict:
    most, now = m.cgroup.pids_max, m.cgroup.pids_current
    if most is None:
        return fine("none")
    found = f"{most}, {now or 0} in use"
    if most - (now or 0) >= ROOM_FOR_TASKS:
        return fine(found)
    return limits(
        found,
        TRANSPORTS,
        "each process that uses CUDA starts several threads: a role may fail to start",
        "--pids-limit of the container, TasksMax= of the service",
    )


def _memory_limit(m: Machine) -> Verdict:
    limit = m.cgroup.memory_max
    if limit is None or limit >= LITTLE_MEMORY:
        return fine("none" if limit is None else _mib(limit))
    return limits(
        _mib(limit),
        TRANSPORTS,
        "each context takes some hundred MiB of host memory: the kernel ends a role "
        "by SIGKILL",
        "--memory of the container, MemoryMax= of the service",
    )


def _visible_devices(m: Machine) -> Verdict:
    mine = m.variables.get("CUDA_VISIBLE_DEVICES")
    meaning = (
        "each process numbers its GPUs itself: the same number can mean another GPU"
    )
    advice = (
        "send the UUID or the PCI address, and look up the ordinal in the other process"
    )
    if m.other is not None and m.other.variables is not None:
        theirs = m.other.variables.get("CUDA_VISIBLE_DEVICES")
        if mine != theirs:
            found = f"{_shown(mine)} here, {_shown(theirs)} there"
            return limits(found, TRANSPORTS, meaning, advice)
        return fine(f"{_shown(mine)}, the same")
    if mine is None:
        return fine("not set")
    return limits(_shown(mine), TRANSPORTS, meaning, advice)


def _shown(value: str | None) -> str:
    return "not set" if value is None else f"'{value}'"


def _allocator(m: Machine) -> Verdict:
    theirs = m.other.variables if m.other is not None else None
    hits = [
        f"{name}={variables[name]}{where}"
        for variables, where in ((m.variables, ""), (theirs or {}, " there"))
        for name, pattern in ALLOCATORS.items()
        if re.search(pattern, variables.get(name, ""), re.IGNORECASE)
    ]
    if not hits:
        return fine("nothing selects an allocator other than cudaMalloc")
    return limits(
        "; ".join(hits),
        ["legacy_memory"],
        "such memory does not come from cudaMalloc: cudaIpcGetMemHandle returns "
        "cudaErrorInvalidValue",
        "unset the variable in the exporter, or share by descriptor (lessons 30, 50); "
        "lesson 22 shows which transport shares which memory",
    )


def _leftovers(m: Machine) -> Verdict:
    processes = m.smi.processes if m.smi is not None else []
    stale = [f"/dev/shm/{name}" for name in m.shared_memory.stale]
    if not processes and not stale:
        return fine("none")
    return limits(
        "; ".join([*(f"process {x}" for x in processes), *stale]),
        MEMORY,
        "a process that maps shared memory keeps it allocated, even after its exporter "
        "has ended; a killed process leaves a stale name",
        "end your processes that are no longer needed, and remove the stale names",
    )


def _other_process(m: Machine) -> Verdict | None:
    if m.other is None:
        return None
    if m.other.pidfd_getfd == "allowed":
        return fine(f"{m.other.pid}: its descriptors may be taken")
    return limits(
        f"{m.other.pid} of user {m.other.uid}: pidfd_getfd: {m.other.pidfd_getfd}",
        DESCRIPTORS,
        "its descriptors cannot be fetched from here",
        "let that process send them with SCM_RIGHTS, or run both as one user",
    )


CHECKS = (
    Check("gpu", "GPU", _gpu, "Does CUDA see a GPU?"),
    Check(
        "driver",
        "driver and runtime",
        _driver,
        "Is there a driver, and is it new enough for the runtime?",
    ),
    Check(
        "device_nodes",
        "device nodes",
        _device_nodes,
        "May this user open the device nodes (/dev/nvidia0 …) of all GPUs?",
    ),
    Check(
        "offered",
        "what the GPU offers",
        _offered,
        "Which ways to share do the attributes of the GPU offer?",
    ),
    Check(
        "attempts",
        "attributes and attempts",
        _attempts,
        "Does a real attempt in two processes do what the attribute promises?",
    ),
    Check(
        "each_gpu",
        "GPUs compared",
        _each_gpu,
        "Can every GPU share what the others can?",
    ),
    Check("wsl", "WSL", _wsl, "Is this Linux inside Windows (WSL2)?"),
    Check("tegra", "Tegra", _tegra, "Is the GPU an integrated one, as on Jetson?"),
    Check("mig", "MIG", _mig, "Is the GPU divided into instances?"),
    Check(
        "compute_mode",
        "compute mode",
        _compute_mode,
        "May a second process have a context on the GPU?",
    ),
    Check(
        "mps",
        "MPS",
        _mps,
        "Does the Multi-Process Service stand between the processes and the GPU?",
    ),
    Check(
        "peer_access",
        "peer access",
        _peer_access,
        "Does every GPU reach the memory of every other?",
    ),
    Check(
        "imex",
        "fabric and IMEX",
        _imex,
        "Does the GPU support fabric handles, and may this user open an IMEX channel?",
    ),
    Check(
        "confidential",
        "confidential computing",
        _confidential,
        "Is confidential computing on, which limits GPUs and contexts?",
    ),
    Check(
        "pid_namespace",
        "PID namespace",
        _pid_namespace,
        "Do both processes see each other's process ids?",
    ),
    Check(
        "ipc_namespace",
        "IPC namespace",
        _ipc_namespace,
        "Do both processes see the same /dev/shm and System V objects?",
    ),
    Check(
        "container", "container", _container, "Does this process run in a container?"
    ),
    Check("dev_shm", "/dev/shm", _dev_shm, "Is there room for shared host memory?"),
    Check(
        "ptrace_scope",
        "ptrace scope",
        _ptrace_scope,
        "Does Yama forbid taking a descriptor from another process?",
    ),
    Check(
        "seccomp",
        "seccomp and pidfd_getfd",
        _seccomp,
        "Does a filter or the kernel refuse pidfd_getfd?",
    ),
    Check(
        "open_files",
        "open files",
        _open_files,
        "Are there enough descriptors for what is exported and imported?",
    ),
    Check(
        "address_space",
        "address space",
        _address_space,
        "Is there a limit of addresses (ulimit -v), under which pools fail?",
    ),
    Check(
        "pids_limit",
        "limit of processes",
        _pids_limit,
        "May the processes start the threads that CUDA needs?",
    ),
    Check(
        "memory_limit",
        "limit of host memory",
        _memory_limit,
        "Is there enough host memory for several contexts?",
    ),
    Check(
        "visible_devices",
        "CUDA_VISIBLE_DEVICES",
        _visible_devices,
        "Does the same number mean the same GPU in both processes?",
    ),
    Check(
        "allocator",
        "allocator",
        _allocator,
        "Does a variable select memory that has no legacy handle?",
    ),
    Check(
        "leftovers",
        "leftovers",
        _leftovers,
        "Does an old process or an old name in /dev/shm still hold memory?",
    ),
    Check(
        "other_process",
        "the other process",
        _other_process,
        "May a descriptor be taken from that process (with --with)?",
    ),
)
