"""What a result depends on besides the code: driver, machine, limits, variables."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import resource
from pathlib import Path
from typing import Any

PLANTED = ("IPCLAB_FAULT", "IPCLAB_CHOICE")  # variables that select a fault
VARIABLES = (  # the variables that change what CUDA does; only these are recorded
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_MAX_COPY_CONNECTIONS",
    "CUDA_MODULE_LOADING",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_CACHE_DISABLE",
    "CUDA_DISABLE_PTX_JIT",
    "CUDA_FORCE_PTX_JIT",
    "NVIDIA_VISIBLE_DEVICES",
    "IPCLAB_PROFILE",
    "LD_PRELOAD",
    *PLANTED,
)
IMEX = Path("/dev/nvidia-caps-imex-channels")


def of_machine(probe: dict[str, Any], held_open: bool = False) -> dict[str, Any]:
    """The fingerprint; `id` is a short digest of all the rest.

    `held_open`: another process has the GPUs open while tests run (hold.py).
    """
    facts: dict[str, Any] = {
        "backend": probe["backend"],
        "driver_version": probe.get("driver_version"),
        "runtime_version": probe.get("runtime_version"),
        "driver": probe.get("driver") or kernel_module(),
        "gpus": probe["gpus"],
        "peers": probe.get("peers", []),
        "mps": probe.get("mps", False),
        "held_open": held_open,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "os": _os_name(),
        "cpus": os.cpu_count(),
        "container": container_hints(),
        "wsl": "microsoft" in platform.release().lower(),
        "namespaces": namespaces(),
        "ptrace_scope": _text("/proc/sys/kernel/yama/ptrace_scope"),
        "limits": {
            "nofile": _limit(resource.RLIMIT_NOFILE),
            "memlock": _limit(resource.RLIMIT_MEMLOCK),
            "as": _limit(resource.RLIMIT_AS),
        },
        "dev_shm_bytes": dev_shm_bytes(),
        "imex_channels": imex_channels(),
        "variables": {x: os.environ[x] for x in VARIABLES if x in os.environ},
    }
    return {"id": identity(facts), **facts}


def identity(facts: dict[str, Any]) -> str:
    """A short digest of all facts except the `id` itself."""
    rest = {name: value for name, value in facts.items() if name != "id"}
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def kernel_module() -> str | None:
    """The version of NVIDIA's kernel module, such as 580.65.06; None: unknown."""
    found = re.search(
        r"Kernel Module\D*([0-9]+(?:\.[0-9]+)+)",
        _text("/proc/driver/nvidia/version") or "",
    )
    return found[1] if found else None


def container_hints() -> list[str]:
    """The signs that this is a container; empty on a plain machine."""
    hints = [x for x in ("/.dockerenv", "/run/.containerenv") if Path(x).exists()]
    groups = _text("/proc/1/cgroup") or ""
    hints += [x for x in ("docker", "kubepods", "lxc", "libpod") if x in groups]
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        hints.append("kubernetes")
    return hints


def imex_channels() -> list[str]:
    """The names of the IMEX channel nodes; a fabric handle needs such a channel."""
    return sorted(x.name for x in IMEX.iterdir()) if IMEX.is_dir() else []


def dev_shm_bytes() -> int | None:
    """The size of /dev/shm, often 64 MiB in a container; None: there is none."""
    try:
        status = os.statvfs("/dev/shm")
    except OSError:
        return None
    return status.f_frsize * status.f_blocks


def namespaces(process: Path = Path("/proc/self")) -> dict[str, str]:
    """The namespaces of a process; empty if this process may not read them."""
    found: dict[str, str] = {}
    try:
        for link in sorted((process / "ns").iterdir()):
            found[link.name] = str(link.readlink())
    except OSError:
        pass
    return found


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return platform.system()


def _limit(which: int) -> int | None:
    soft = resource.getrlimit(which)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
