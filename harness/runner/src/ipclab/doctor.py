"""`ipclab doctor`: what this machine can share, and what stands in the way."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ipclab import ctest, fingerprint, probe

TRANSPORTS = (  # capabilities that carry memory or order to another process
    "legacy_memory",
    "legacy_events",
    "vmm_fd",
    "fabric",
    "pool_fd",
)


def run(out: Console, build: Path) -> int:
    """Print both tables; 0 if something can be shared, 1 if not."""
    document = probe.ask(ctest.read(build))
    facts = fingerprint.of_machine(document)
    out.print(Text(probe.first_line(document)), soft_wrap=True)
    out.print()
    out.print(_transports(document))
    out.print()
    out.print(_facts(document, facts))
    shared = [x["name"] for x in document["capabilities"] if _shares(x)]
    out.print()
    out.print(
        Text(
            f"can be shared: {', '.join(shared)}" if shared else "nothing can be shared"
        )
    )
    return 0 if shared else 1


def _shares(capability: dict[str, Any]) -> bool:
    return bool(capability["name"] in TRANSPORTS and capability["available"])


def _transports(document: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("transport", "here", "why not", "what it means"):
        table.add_column(name, overflow="fold")
    for entry in document["capabilities"]:
        here = entry["available"]
        table.add_row(
            Text(entry["name"]),
            Text("yes" if here else "no", style="green" if here else "yellow"),
            Text("" if here else entry["reason"]),
            Text(str(entry.get("meaning", ""))),
        )
    return table


def _facts(document: dict[str, Any], facts: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("machine", "value", "what to know"):
        table.add_column(name, overflow="fold")
    for name, value, advice in _lines(document, facts):
        table.add_row(Text(name), Text(value), Text(advice))
    return table


def _lines(
    document: dict[str, Any], facts: dict[str, Any]
) -> list[tuple[str, str, str]]:
    driver = int(document.get("driver_version") or 0)
    runtime = int(document.get("runtime_version") or 0)
    older = 0 < driver < runtime
    shm, nofile = facts["dev_shm_bytes"], facts["limits"]["nofile"]
    scope = facts["ptrace_scope"]
    gpus = document["gpus"]
    modes = sorted({str(gpu.get("compute_mode", "?")) for gpu in gpus})
    mig = any(gpu.get("mig") for gpu in gpus)
    channels = facts["imex_channels"]
    container = facts["container"]
    return [
        (
            "driver, runtime",
            f"{_cuda(driver)}, {_cuda(runtime)}",
            "the driver is older than the runtime: update it, or use its "
            "compatibility package"
            if older
            else "",
        ),
        (
            "ptrace scope",
            "no Yama" if scope is None else scope,
            "pidfd_getfd between unrelated processes is refused: pass descriptors "
            "over a socket"
            if scope not in (None, "0")
            else "",
        ),
        (
            "/dev/shm",
            "missing" if shm is None else f"{shm / 2**20:.0f} MiB",
            "small for shared host memory: start the container with --ipc=host or "
            "a larger --shm-size"
            if shm is None or shm <= 64 * 2**20
            else "",
        ),
        (
            "open files",
            "unlimited" if nofile is None else str(nofile),
            "few: each exported allocation costs a descriptor (ulimit -n)"
            if nofile is not None and nofile < 4096
            else "",
        ),
        (
            "container",
            ", ".join(container) or "no",
            "processes of other containers share memory only with --ipc and --pid "
            "in common"
            if container
            else "",
        ),
        (
            "PID namespace",
            facts["namespaces"].get("pid", "?"),
            "legacy handles need exporter and importer in the same one",
        ),
        (
            "WSL",
            "yes" if facts["wsl"] else "no",
            "legacy IPC is not offered there" if facts["wsl"] else "",
        ),
        (
            "MIG",
            "on" if mig else "off",
            "memory is shared inside one GPU instance only" if mig else "",
        ),
        (
            "compute mode",
            ", ".join(modes) or "-",
            "a second process gets no context: nvidia-smi -c DEFAULT, or MPS"
            if any(mode not in ("default", "?") for mode in modes)
            else "",
        ),
        (
            "MPS",
            "on" if document.get("mps") else "off",
            "a fault of one client ends its neighbours" if document.get("mps") else "",
        ),
        (
            "IMEX channels",
            ", ".join(channels) or "none",
            "" if channels else f"fabric handles need a node in {fingerprint.IMEX}",
        ),
    ]


def _cuda(version: int) -> str:
    return f"CUDA {version // 1000}.{version % 1000 // 10}" if version else "none"
