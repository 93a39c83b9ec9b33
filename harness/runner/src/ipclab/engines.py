"""How a fleet starts one run on each node: by Slurm, MPI or Kubernetes.

An engine says which nodes there are, starts `ipclab node FOLDER` on each node and
waits. Queues, limits and retries belong to the engine; this module has no daemon and no
scheduler. With Slurm and MPI all nodes write into one shared folder. With Kubernetes
the log of each pod has the results.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipclab import fleet
from ipclab.errors import HarnessError, UsageError

ASK_SECONDS = 60  # time limit of a query to the engine
GRACE_SECONDS = 60  # the time that the engine has to end after the limit of the runs
SLURM_USABLE = ("idle", "mixed", "allocated", "completing", "planned")
BEGIN, END = "-----BEGIN IPCLAB NODE-----", "-----END IPCLAB NODE-----"


@dataclass(frozen=True)
class Request:
    """What the caller requests."""

    engine: str  # a key of ENGINES
    folder: Path
    build: Path
    nodes: str | None  # as the engine writes nodes; None: all (MPI: this host)
    limit: int  # seconds
    engine_options: tuple[str, ...] = ()  # such as --partition=gpu
    image: str | None = None  # Kubernetes: a container with the wheel
    run_options: tuple[str, ...] = ()  # of `ipclab run`


Say = Callable[[str], None]


def run(request: Request, say: Say) -> None:
    """Start the runs, wait for them, and leave FOLDER ready for `fleet.finish`.

    Raises UsageError if the engine is not installed or no node can run, and
    HarnessError if the engine refuses. A node that fails is not an error here; its
    results show the failure.
    """
    expected, start = ENGINES[request.engine]
    nodes = expected(request)
    document = fleet.begin(request.folder, request.build, request.engine, nodes)
    asked = [name for name, why in nodes.items() if why is None]
    say(f"{request.engine}: starts on {len(asked)} of {len(nodes)} nodes")
    try:
        document["out_of_time"] = start(request, asked, say)
    finally:
        document["ended"] = fleet.now().isoformat(timespec="seconds")
        fleet.save(request.folder, document)


# --- Slurm --------------------------------------------------------------------


def slurm_nodes(request: Request) -> dict[str, str | None]:
    """The requested nodes, each with None, or with Slurm's reason if it cannot run."""
    which = [f"--nodes={request.nodes}"] if request.nodes else []
    partition = [x for x in request.engine_options if x.startswith("--partition")]
    form = "--Format=nodelist:.256,statelong:.64,reason:.256"
    lines = _ask(["sinfo", "--noheader", "--Node", form, *which, *partition])
    found: dict[str, str | None] = {}
    for line in lines.splitlines():
        name, state, *reason = line.split(None, 2)
        usable = state.rstrip("*~#!%$@^-+") in SLURM_USABLE and "*" not in state
        why = f"Slurm says {state}: {reason[0].strip() if reason else 'no reason'}"
        found[name] = None if usable else why
    return found


def start_slurm(request: Request, nodes: list[str], say: Say) -> bool:
    """Start one srun step with one task on each node. If one node fails, the tasks on
    the other nodes continue. Returns True if the time ran out.
    """
    command = [
        "srun",
        "--job-name=ipclab",
        f"--nodes={len(nodes)}",
        f"--nodelist={','.join(nodes)}",
        "--ntasks-per-node=1",
        "--exclusive",
        "--no-kill",
        "--kill-on-bad-exit=0",
        "--wait=0",
        f"--time={-(-request.limit // 60)}",
        "--export=ALL",
        *request.engine_options,
        *_node_command(request),
    ]
    return _wait(request, command, len(nodes), say)


# --- MPI ----------------------------------------------------------------------


def mpi_nodes(request: Request) -> dict[str, str | None]:
    """The hosts that were named, or this host."""
    names = request.nodes.split(",") if request.nodes else [os.uname().nodename]
    return {name: None for name in names if name}


def start_mpi(request: Request, nodes: list[str], say: Say) -> bool:
    """Start mpirun with one rank on each host. Returns True if the time ran out."""
    command = [
        "mpirun",
        *("--host", ",".join(nodes), "--map-by", "ppr:1:node"),
        *request.engine_options,
        *_node_command(request),
    ]
    return _wait(request, command, len(nodes), say)


# --- Kubernetes ---------------------------------------------------------------


def kubernetes_nodes(request: Request) -> dict[str, str | None]:
    """The nodes that have the label (`--nodes key=value`), or all that have a GPU; each
    with None, or with the reason if it cannot run.
    """
    which = ["--selector", request.nodes] if request.nodes else []
    listed = json.loads(_ask(["kubectl", "get", "nodes", "--output=json", *which]))
    found: dict[str, str | None] = {}
    for node in listed["items"]:
        gpus = node["status"].get("allocatable", {}).get("nvidia.com/gpu", "0")
        ready = {x["type"]: x["status"] for x in node["status"].get("conditions", [])}
        why = None
        if node["spec"].get("unschedulable"):
            why = "Kubernetes says unschedulable"
        elif ready.get("Ready") != "True":
            why = "Kubernetes says not ready"
        elif gpus == "0" and not request.nodes:
            continue
        found[node["metadata"]["name"]] = why
    return found


def job(request: Request, nodes: list[str], identity: str) -> dict[str, Any]:
    """The Indexed Job: one pod on each of these nodes, and never two on one node.

    Raises UsageError without an image.
    """
    if request.image is None:
        raise UsageError("--kubernetes needs --image, a container with the wheel")
    name = f"ipclab-{identity}"
    labels = {"app.kubernetes.io/name": "ipclab", "ipclab/fleet": identity}
    pod = {
        "restartPolicy": "Never",
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchFields": [
                                {
                                    "key": "metadata.name",
                                    "operator": "In",
                                    "values": [node],
                                }
                            ]
                        }
                        for node in nodes
                    ]
                }
            },
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": labels},
                    }
                ]
            },
        },
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "containers": [
            {
                "name": "ipclab",
                "image": request.image,
                "args": ["node", "--print", identity, "--", *request.run_options],
                "env": [
                    {
                        "name": "IPCLAB_NODE",
                        "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}},
                    },
                    {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
                ],
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
            }
        ],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "completionMode": "Indexed",
            "completions": len(nodes),
            "parallelism": len(nodes),
            "backoffLimitPerIndex": 0,
            "maxFailedIndexes": len(nodes),
            "activeDeadlineSeconds": request.limit,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def start_kubernetes(request: Request, nodes: list[str], say: Say) -> bool:
    """Create the Job, wait, take the results out of the pods' logs, delete the Job.
    Returns True if the time ran out.
    """
    identity = str(fleet.read_fleet(request.folder)["id"])
    manifest = job(request, nodes, identity)
    name = manifest["metadata"]["name"]
    select = ["--selector", f"ipclab/fleet={identity}"]
    _ask(["kubectl", "create", "--filename=-"], json.dumps(manifest))
    try:
        begin, told = time.monotonic(), -1
        while True:
            status = json.loads(_ask(["kubectl", "get", "job", name, "--output=json"]))[
                "status"
            ]
            done = int(status.get("succeeded", 0)) + int(status.get("failed", 0))
            if done != told:
                say(f"{done} of {len(nodes)} nodes have ended")
                told = done
            ended = any(
                x["type"] in ("Complete", "Failed") and x["status"] == "True"
                for x in status.get("conditions", [])
            )
            late = time.monotonic() - begin > request.limit + GRACE_SECONDS
            if ended or late:
                break
            # This returns when the Job is complete, or after 10 s.
            wait = ["kubectl", "wait", "--for=condition=Complete", "--timeout=10s"]
            _ask([*wait, f"job/{name}"], must=False)
        pods = json.loads(_ask(["kubectl", "get", "pods", "--output=json", *select]))
        for pod in pods["items"]:
            log = _ask(["kubectl", "logs", pod["metadata"]["name"]], must=False)
            unprint(request.folder, pod["spec"].get("nodeName", ""), log)
        reasons = [x.get("reason") for x in status.get("conditions", [])]
        return late or "DeadlineExceeded" in reasons
    finally:
        _ask(["kubectl", "delete", "job", name, "--wait=false"], must=False)


def print_node(folder: Path) -> None:
    """Print the results of this node; `unprint` takes them out of the log."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in sorted((folder / "nodes" / fleet.node_name()).iterdir()):
            archive.add(path, path.name)
    print(BEGIN, base64.encodebytes(packed.getvalue()).decode(), END, sep="\n")


def unprint(folder: Path, name: str, log: str) -> None:
    """Put the results that a node printed into FOLDER/nodes.

    Results that are cut off or damaged become NAME.part. If the log has no results,
    nothing is made.
    """
    _, began, rest = log.rpartition(BEGIN)
    if not began or not name or Path(name).name != name:
        return
    data, ended, _ = rest.partition(END)
    part, whole = folder / "nodes" / f"{name}.part", folder / "nodes" / name
    part.mkdir()
    if not ended:
        return
    try:
        # All at once: tarfile would stop before the checksum, which is at the end.
        packed = io.BytesIO(gzip.decompress(base64.b64decode(data)))
        with tarfile.open(fileobj=packed, mode="r:") as archive:
            for member in archive:
                if member.isfile() and Path(member.name).name == member.name:
                    data_of = archive.extractfile(member)
                    assert data_of is not None
                    (part / member.name).write_bytes(data_of.read())
    except (ValueError, tarfile.TarError, EOFError, OSError, zlib.error):
        return
    part.rename(whole)


# --- what the engines share ---------------------------------------------------


def _node_command(request: Request) -> list[str]:
    return [
        *(sys.executable, "-P", "-m", "ipclab", "node", str(request.folder.resolve())),
        *("--build", str(request.build.resolve()), "--", *request.run_options),
    ]


def _wait(request: Request, command: Sequence[str], nodes: int, say: Say) -> bool:
    """Run the engine's command and print the progress. Returns True if the time ran
    out.

    Raises HarnessError if the command failed and no node has begun.
    """
    log = request.folder / "engine.log"
    with log.open("wb") as stream:
        try:
            process = subprocess.Popen(command, stdout=stream, stderr=stream)
        except OSError as error:
            raise UsageError(f"{command[0]}: {error.strerror}") from None
        end = time.monotonic() + request.limit
        told = -1
        try:
            while process.poll() is None:
                left = end + GRACE_SECONDS - time.monotonic()
                if left < 0:
                    break
                try:
                    process.wait(min(left, 2.0))
                except subprocess.TimeoutExpired:
                    done = _whole(request.folder)
                    if done != told:
                        say(f"{done} of {nodes} nodes have ended")
                        told = done
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(GRACE_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
    late = time.monotonic() >= end
    if (
        not late
        and process.returncode
        and not any((request.folder / "nodes").iterdir())
    ):
        said = log.read_text(errors="replace").strip().splitlines()
        raise HarnessError(
            f"{command[0]} ended with {process.returncode}: "
            f"{said[-1] if said else 'it said nothing'}"
        )
    return late


def _whole(folder: Path) -> int:
    return sum(x.suffix != ".part" for x in (folder / "nodes").iterdir())


def _ask(command: Sequence[str], text: str | None = None, must: bool = True) -> str:
    if shutil.which(command[0]) is None:
        raise UsageError(f"{command[0]} is not in PATH: is this engine installed?")
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=ASK_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise HarnessError(f"{command[0]}: no answer within {ASK_SECONDS} s") from None
    if done.returncode and must:
        said = (done.stderr or done.stdout).strip().splitlines() or ["nothing"]
        raise HarnessError(f"{' '.join(command[:3])}: {said[-1]}")
    return done.stdout


Nodes = Callable[[Request], dict[str, str | None]]
Start = Callable[[Request, list[str], Say], bool]
ENGINES: dict[str, tuple[Nodes, Start]] = {
    "slurm": (slurm_nodes, start_slurm),
    "mpi": (mpi_nodes, start_mpi),
    "kubernetes": (kubernetes_nodes, start_kubernetes),
}
