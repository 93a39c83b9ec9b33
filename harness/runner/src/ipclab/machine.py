"""The facts that `ipclab doctor` judges. They are collected once and can become JSON.

This module decides nothing. If a fact cannot be read, it is None or empty, or its text
says so. The facts of another machine are judged in the same way.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import csv
import ctypes
import errno
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ipclab import fingerprint, probe, schema
from ipclab.errors import UsageError
from ipclab.probe import Probe

VARIABLES = (  # variables of allocators, in addition to those of the fingerprint
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TF_GPU_ALLOCATOR",
)
NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
PIDFD_GETFD = 438  # the same number on every architecture; Python has no name for it
SMI_SECONDS = 20


@dataclass(frozen=True)
class Process:
    """What this process may do."""

    seccomp: int | None  # 0 off, 1 strict, 2 a filter
    pidfd_getfd: str  # "allowed" between unrelated processes, or the errno's name
    variables: dict[str, str]


@dataclass(frozen=True)
class SharedMemory:
    """/dev/shm; the fingerprint has its size."""

    free_bytes: int | None
    writable: bool
    stale: list[str]  # names that the driver made for processes that have ended


@dataclass(frozen=True)
class Cgroup:
    """The limits of this cgroup and of the cgroups above it; None means no limit.

    For processes this is the limit with the least room, for memory the lowest limit.
    """

    pids_max: int | None
    pids_current: int | None
    memory_max: int | None


@dataclass(frozen=True)
class Driver:
    """NVIDIA's kernel module, and which parts of it this process can use."""

    loaded: bool
    gpus: int  # GPUs that the kernel module knows
    nodes: dict[str, str]  # device node: "open", "no permission" or "missing"
    imex: bool  # the module registered IMEX channels
    channels: dict[str, bool]  # channel node: may this user open it?
    iommu: bool


@dataclass(frozen=True)
class Smi:
    """What nvidia-smi says."""

    gpus: list[dict[str, str]]  # name, compute_mode, mig
    processes: list[str]  # processes that hold GPU memory
    confidential: bool | None


@dataclass(frozen=True)
class Other:
    """Another process, with which this process is going to share memory."""

    pid: int
    uid: int
    namespaces: dict[str, str]
    variables: dict[str, str] | None  # None: cannot be read
    pidfd_getfd: str


@dataclass(frozen=True)
class Machine:
    """All facts; `probe` and `fingerprint` have the same form as in run.json."""

    probe: Probe
    fingerprint: dict[str, Any]
    each_gpu: list[list[str]]  # what each GPU can share
    process: Process
    shared_memory: SharedMemory
    cgroup: Cgroup
    driver: Driver
    smi: Smi | None  # None: no nvidia-smi, or the reference model
    other: Other | None

    @property
    def variables(self) -> dict[str, str]:
        """The variables of this process that matter to CUDA or to an allocator."""
        return {**self.fingerprint["variables"], **self.process.variables}


def gather(
    document: Probe, ask_gpu: Callable[[str], Probe], pid: int | None = None
) -> Machine:
    """The facts of this machine; UsageError if there is no process `pid`.

    `ask_gpu` runs the probe on one GPU alone, by its UUID.
    """
    return Machine(
        probe=document,
        fingerprint=fingerprint.of_machine(document),
        each_gpu=_each_gpu(document, ask_gpu),
        process=Process(
            seccomp=_status_number("/proc/self/status", "Seccomp"),
            pidfd_getfd=_pidfd_getfd_between_strangers(),
            variables={x: os.environ[x] for x in VARIABLES if x in os.environ},
        ),
        shared_memory=_shared_memory(Path("/dev/shm")),
        cgroup=_cgroup(),
        driver=_driver(),
        smi=None if document["backend"] == "model" else _smi(),
        other=None if pid is None else _other(pid),
    )


def to_json(machine: Machine) -> dict[str, Any]:
    """The value that `from_json` reads."""
    return asdict(machine)


def from_json(data: Any) -> Machine:
    """Read a machine from its facts, which keep to SCHEMA; UsageError if they are not
    valid.
    """
    machine = Machine(
        **{
            **data,
            "process": Process(**data["process"]),
            "shared_memory": SharedMemory(**data["shared_memory"]),
            "cgroup": Cgroup(**data["cgroup"]),
            "driver": Driver(**data["driver"]),
            "smi": data["smi"] and Smi(**data["smi"]),
            "other": data["other"] and Other(**data["other"]),
        }
    )
    if wrong := probe.wrong(machine.probe):
        raise UsageError(f"its probe has no valid '{wrong}'")
    return machine


_FINGERPRINT: schema.Schema = {
    **schema.RUN["properties"]["fingerprint"],
    "required": [
        *("variables", "wsl", "container", "namespaces", "ptrace_scope", "limits"),
        "dev_shm_bytes",
    ],
}
SCHEMA = schema.of_class(
    Machine, probe=schema.RUN["properties"]["probe"], fingerprint=_FINGERPRINT
)


def may_take_descriptors(pid: int) -> str:
    """Whether this process may take descriptors of process `pid` by pidfd_getfd:
    "allowed", or the name of the error.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "?")
    copy = libc.syscall(PIDFD_GETFD, pidfd, 0, 0)
    error_number = ctypes.get_errno()
    os.close(pidfd)
    if copy >= 0:
        os.close(copy)
    # The kernel returns EBADF only after the permission check has succeeded.
    if copy >= 0 or error_number == errno.EBADF:
        return "allowed"
    return errno.errorcode.get(error_number, "?")


def _pidfd_getfd_between_strangers() -> str:
    # Yama may allow a parent to trace its child, even if it forbids other processes to
    # trace each other. A child has no such right over its parent. So the child asks: it
    # is like an unrelated process.
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, may_take_descriptors(os.getppid()).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        answer = stream.read()
    os.waitpid(child, 0)
    return answer or "?"


def _each_gpu(document: Probe, ask_gpu: Callable[[str], Probe]) -> list[list[str]]:
    gpus = document["gpus"]
    if len(gpus) < 2:
        documents = [document] if gpus else []
    else:
        documents = [ask_gpu(gpu["uuid"]) for gpu in gpus]
    return [
        [x["name"] for x in found["capabilities"] if x["available"]]
        for found in documents
    ]


def _shared_memory(folder: Path) -> SharedMemory:
    try:
        status = os.statvfs(folder)
        names = sorted(x.name for x in folder.iterdir())
    except OSError:
        return SharedMemory(None, False, [])
    return SharedMemory(
        free_bytes=status.f_frsize * status.f_bavail,
        writable=os.access(folder, os.W_OK),
        stale=[name for name in names if _is_stale(name)],
    )


def _is_stale(name: str) -> bool:
    # The driver's names are cuda.shm.<user>.<pid, hexadecimal>.<number>.
    found = re.match(r"cuda\.shm\.\d+\.([0-9a-f]+)\.", name)
    return found is not None and not Path(f"/proc/{int(found[1], 16)}").exists()


def _cgroup() -> Cgroup:
    pids = [_numbers(x, "pids.max", "pids.current") for x in _cgroup_folders("pids")]
    memory = [
        _numbers(x, "memory.max", "memory.limit_in_bytes")
        for x in _cgroup_folders("memory")
    ]
    limited = [(most - (now or 0), most, now) for most, now in pids if most is not None]
    _, pids_max, pids_current = min(limited, default=(0, None, None))
    limits = [x for pair in memory for x in pair if x is not None]
    return Cgroup(pids_max, pids_current, min(limits, default=None))


def _cgroup_folders(controller: str) -> list[Path]:
    """The folders of this process from the leaf to the root, in cgroup version 1 or
    2."""
    folders = []
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = Path("/sys/fs/cgroup") / (controller if controllers else "")
        leaf = root / path.lstrip("/")
        folders += [x for x in (leaf, *leaf.parents) if x.is_relative_to(root)]
    return folders


def _numbers(folder: Path, first: str, second: str) -> tuple[int | None, int | None]:
    return _number(folder / first), _number(folder / second)


def _number(path: Path) -> int | None:
    """A limit; None for "max", for an empty text, and for the 2**63 of version 1."""
    text = _read(path).strip()
    return int(text) if text.isdigit() and int(text) < 2**62 else None


def _driver() -> Driver:
    channels = fingerprint.imex_channels()
    gpus = Path("/proc/driver/nvidia/gpus")
    iommu = Path("/sys/class/iommu")
    nodes = [*NODES, *sorted(str(x) for x in Path("/dev").glob("nvidia[0-9]*"))]
    return Driver(
        loaded=Path("/proc/driver/nvidia/version").exists(),
        gpus=len(list(gpus.iterdir())) if gpus.is_dir() else 0,
        nodes={node: _node(node) for node in nodes},
        imex="nvidia-caps-imex-channels" in _read("/proc/devices"),
        channels={
            name: os.access(fingerprint.IMEX / name, os.R_OK | os.W_OK)
            for name in channels
        },
        iommu=iommu.is_dir() and any(iommu.iterdir()),
    )


def _node(path: str) -> str:
    if not Path(path).exists():
        return "missing"
    return "open" if os.access(path, os.R_OK | os.W_OK) else "no permission"


def _smi() -> Smi | None:
    gpus = _ask_smi("--query-gpu=name,compute_mode,mig.mode.current")
    if gpus is None:
        return None
    processes = _ask_smi("--query-compute-apps=pid,process_name,used_memory")
    confidential = _call_smi("conf-compute", "-f") or ""
    found = re.search(r"CC status:\s*(ON|OFF)", confidential)
    return Smi(
        gpus=[
            dict(zip(("name", "compute_mode", "mig"), line, strict=False))
            for line in gpus
        ],
        processes=[" ".join(line) for line in processes or []],
        confidential=None if found is None else found[1] == "ON",
    )


def _ask_smi(query: str) -> list[list[str]] | None:
    text = _call_smi(query, "--format=csv,noheader")
    if text is None:
        return None
    lines = csv.reader(text.splitlines(), skipinitialspace=True)
    return [line for line in lines if len(line) > 1]


def _call_smi(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments],
            capture_output=True,
            text=True,
            timeout=SMI_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _other(pid: int) -> Other:
    folder = Path(f"/proc/{pid}")
    uid = _status_number(folder / "status", "Uid")
    if uid is None:
        raise UsageError(f"no process {pid} here")
    return Other(
        pid=pid,
        uid=uid,
        namespaces=fingerprint.namespaces(folder),
        variables=_variables(folder / "environ"),
        pidfd_getfd=may_take_descriptors(pid),
    )


def _variables(environ: Path) -> dict[str, str] | None:
    try:
        text = environ.read_bytes().decode(errors="replace")
    except OSError:
        return None
    pairs = (entry.partition("=") for entry in text.split("\0"))
    wanted = (*fingerprint.VARIABLES, *VARIABLES)
    return {name: value for name, _, value in pairs if name in wanted}


def _status_number(path: str | Path, field: str) -> int | None:
    found = re.search(rf"^{field}:\s+(\d+)", _read(path), re.MULTILINE)
    return int(found[1]) if found else None


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
