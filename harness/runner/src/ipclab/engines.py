"""How a fleet starts one run on each node: by Slurm, MPI or Kubernetes.

An engine says which nodes there are and starts `ipclab node FOLDER` on each node. Each
node has a launch of its own, so a node that cannot start, dies or waits in the queue
does not touch the others. Queues and retries belong to the engine; this module has no
daemon and no scheduler. With Slurm and MPI all nodes write into one shared folder. With
Kubernetes the log of each pod has the results.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import base64
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ipclab import fleet, reader
from ipclab.errors import HarnessError, UsageError

ASK_SECONDS = 60  # time limit of a query to the engine
GRACE_SECONDS = 60  # the time that the engine has to end after the limit of the runs
LOOK_SECONDS = 0.2  # between two looks at the launches
POLL_SECONDS = 5.0  # between two questions to Kubernetes
AT_ONCE = 500  # launches that one host keeps
PRINTED = 16 * reader.MIB  # the results of a node in the log of its pod
SLURM_USABLE = ("idle", "mixed", "allocated", "completing", "planned")
BEGIN, END = "-----BEGIN IPCLAB NODE-----", "-----END IPCLAB NODE-----"


@dataclass(frozen=True)
class Request:
    """What the caller requests."""

    engine: str  # a key of ENGINES
    folder: Path
    build: Path
    backend: str  # cuda or model
    nodes: str | None  # as the engine writes nodes; None: all (MPI: this host)
    limit: int  # seconds for one run
    queue: int  # seconds until a run has begun
    engine_options: tuple[str, ...] = ()  # such as --partition=gpu
    image: str | None = None  # Kubernetes: a container with the wheel
    run_options: tuple[str, ...] = ()  # of `ipclab run`


@dataclass
class Told:
    """What the engine says about the nodes: fields of fleet.json."""

    said: dict[str, str] = field(default_factory=dict)  # about nodes that failed
    late: list[str] = field(default_factory=list)


Say = Callable[[str], None]


def run(request: Request, say: Say) -> None:
    """Start the runs, wait for them, and leave FOLDER ready for `fleet.finish`. Nodes
    that have their results already are not started again.

    Raises UsageError if the engine is not installed or no node can run, and
    HarnessError if the engine does not answer. A node that fails is not an error here;
    its results show the failure.
    """
    expected, start = ENGINES[request.engine]
    nodes = expected(request)
    document = fleet.begin(
        request.folder, request.build, request.engine, request.backend, nodes
    )
    asked = [
        name
        for name, why in nodes.items()
        if why is None and not (request.folder / "nodes" / name).exists()
    ]
    told = Told(
        {x: y for x, y in document["said"].items() if x not in asked},
        [x for x in document["late"] if x not in asked],
    )
    say(f"{request.engine}: starts on {len(asked)} of {len(nodes)} nodes")
    try:
        if asked:
            start(request, asked, told, say)
    finally:
        document |= {
            "ended": fleet.now().isoformat(timespec="seconds"),
            "said": told.said,
            "late": told.late,
        }
        fleet.save(request.folder, document)


# --- Slurm --------------------------------------------------------------------


def slurm_nodes(request: Request) -> dict[str, str | None]:
    """The requested nodes, those of this allocation, or all; each with None, or with
    Slurm's reason if it cannot run.
    """
    names = request.nodes or os.environ.get("SLURM_JOB_NODELIST")
    which = [f"--nodes={names}"] if names else []
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


def start_slurm(request: Request, nodes: list[str], told: Told, say: Say) -> None:
    """Start one srun for each node: a step of this allocation, or a job of its own."""
    inside = "SLURM_JOB_ID" in os.environ

    def command(node: str) -> list[str]:
        return [
            *("srun", "--job-name=ipclab", "--nodes=1", "--ntasks=1"),
            *(f"--nodelist={node}", "--kill-on-bad-exit=0", "--export=ALL"),
            "--overlap" if inside else "--exclusive",
            f"--time={-(-(request.limit + GRACE_SECONDS) // 60)}",
            *request.engine_options,
            *_node_command(request, node),
        ]

    _launch_each(request, nodes, command, told, say)


# --- MPI ----------------------------------------------------------------------


def mpi_nodes(request: Request) -> dict[str, str | None]:
    """The hosts that were named, or this host."""
    names = request.nodes.split(",") if request.nodes else [os.uname().nodename]
    return {name: None for name in names if name}


def start_mpi(request: Request, nodes: list[str], told: Told, say: Say) -> None:
    """Start one mpirun with one rank for each host."""

    def command(node: str) -> list[str]:
        return [
            *("mpirun", "--host", node, "-np", "1"),
            *request.engine_options,
            *_node_command(request, node),
        ]

    _launch_each(request, nodes, command, told, say)


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


def jobs(request: Request, nodes: list[str], identity: str) -> dict[str, Any]:
    """A list of Jobs, one for each node. A pod's time begins when it has its node.

    Raises UsageError without an image.
    """
    if request.image is None:
        raise UsageError("--kubernetes needs --image, a container with the wheel")
    items = [
        _job(request, node, f"ipclab-{identity}-{number}", identity)
        for number, node in enumerate(nodes)
    ]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _job(request: Request, node: str, name: str, identity: str) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "ipclab", "ipclab/fleet": identity}
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    pod = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": request.limit,
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        },
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "containers": [
            {
                "name": "ipclab",
                "image": request.image,
                "args": [
                    *("node", "--print", identity, "--name", node),
                    *("--backend", request.backend, "--", *request.run_options),
                ],
                "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
            }
        ],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels, "annotations": {NODE: node}},
        "spec": {
            "backoffLimit": 0,
            "template": {
                "metadata": {"labels": labels, "annotations": {NODE: node}},
                "spec": pod,
            },
        },
    }


NODE = "ipclab/node"  # the annotation that says for which node a pod is


def start_kubernetes(request: Request, nodes: list[str], told: Told, say: Say) -> None:
    """Create the Jobs, wait, take results out of the pods' logs, delete the Jobs."""
    identity = str(fleet.read_fleet(request.folder)["id"])
    select = ["--selector", f"ipclab/fleet={identity}"]
    _ask(
        ["kubectl", "create", "--filename=-"],
        json.dumps(jobs(request, nodes, identity)),
    )
    pods = ["kubectl", "get", "pods", "--output=json", *select]
    waits, asked = dict.fromkeys(nodes, "no pod was made"), time.monotonic()
    began: dict[str, float] = {}
    progress = _Progress(len(nodes), say)
    try:
        while waits:
            text = _ask(pods, must=False)  # one lost answer is no reason to stop
            for pod in json.loads(text)["items"] if text else []:
                name = pod["metadata"].get("annotations", {}).get(NODE)
                if name not in waits:
                    continue
                phase = pod["status"].get("phase", "Pending")
                if phase == "Pending":
                    waits[name] = _why_pending(pod)
                else:
                    began.setdefault(name, time.monotonic())
                if phase in ("Succeeded", "Failed"):
                    del waits[name]
                    _fetch(request.folder, name, pod, told)
            now = time.monotonic()
            for name, why in list(waits.items()):
                if name in began:
                    if now > began[name] + request.limit + GRACE_SECONDS:
                        told.late.append(name)
                        del waits[name]
                elif now > asked + request.queue:
                    told.said[name] = f"not begun after {request.queue} s: {why}"
                    del waits[name]
            progress.tell(len(nodes) - len(waits), len(began))
            if waits:
                threading.Event().wait(POLL_SECONDS)
    finally:
        _ask(["kubectl", "delete", "jobs", *select, "--wait=false"], must=False)


def _fetch(folder: Path, name: str, pod: dict[str, Any], told: Told) -> None:
    """Take the results of a pod that has ended, or the reason why there are none."""
    log = _ask(["kubectl", "logs", pod["metadata"]["name"]], must=False)
    unprint(folder, name, log)
    if (folder / "nodes" / name).exists():
        return
    status = pod["status"]
    if status.get("reason") == "DeadlineExceeded":
        told.late.append(name)
    states = [x.get("state", {}) for x in status.get("containerStatuses", [])]
    ends = [x["terminated"] for x in states if "terminated" in x]
    reasons = [str(x.get("reason")) for x in ends if x.get("reason") != "Completed"]
    reasons += [str(status[x]) for x in ("reason", "message") if status.get(x)]
    last = reader.plain(log.strip().rpartition("\n")[2][:300])
    told.said[name] = (
        f"Kubernetes says {': '.join(reasons) or 'ended'}; it said: {last}"
    )


def _why_pending(pod: dict[str, Any]) -> str:
    """Why Kubernetes does not start a pod."""
    states = pod["status"].get("containerStatuses", [])
    waiting = [x["state"]["waiting"] for x in states if "waiting" in x.get("state", {})]
    conditions = pod["status"].get("conditions", [])
    parts = [*waiting, *(x for x in conditions if x.get("status") == "False")]
    told = [
        ": ".join(str(x[y]) for y in ("reason", "message") if y in x) for x in parts
    ]
    return f"Kubernetes says {next((x for x in told if x), 'Pending')}"


FILES = ("node.json", "output.txt", "records.jsonl.gz", "run.json")


def print_node(folder: Path) -> None:
    """Print the results of this node; `unprint` takes them out of the log. The pages
    can be made again from them.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in FILES:
            if (folder / name).is_file():
                archive.add(folder / name, name)
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
    shutil.rmtree(part, ignore_errors=True)  # of an earlier attempt
    part.mkdir(mode=0o700)
    if not ended:
        return
    try:
        # All at once: tarfile would stop before the checksum, which is at the end.
        unpack = zlib.decompressobj(16 + zlib.MAX_WBITS)
        packed = unpack.decompress(base64.b64decode(data), PRINTED)
        if not unpack.eof:
            return
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as archive:
            for member in archive:
                if member.isfile() and member.name in FILES:
                    data_of = archive.extractfile(member)
                    assert data_of is not None
                    (part / member.name).write_bytes(data_of.read())
    except (ValueError, tarfile.TarError, EOFError, OSError, zlib.error):
        return
    part.rename(whole)


# --- what the engines share ---------------------------------------------------


def _node_command(request: Request, node: str) -> list[str]:
    return [
        *(sys.executable, "-P", "-m", "ipclab", "node", str(request.folder.resolve())),
        *("--name", node, "--build", str(request.build.resolve())),
        *("--", *request.run_options),
    ]


class _Progress:
    """A line whenever the numbers have changed, but not more often than SAY_SECONDS."""

    def __init__(self, nodes: int, say: Say) -> None:
        self._nodes, self._say = nodes, say
        self._told, self._last = 0.0, (0, 0)

    def tell(self, ended: int, began: int) -> None:
        """Say how many nodes have ended and how many have begun."""
        now = time.monotonic()
        if (ended, began) == self._last or now < self._told + fleet.SAY_SECONDS:
            return
        self._told, self._last = now, (ended, began)
        waiting = self._nodes - max(began, ended)
        queue = f", {waiting} have not begun" if waiting else ""
        self._say(f"{ended} of {self._nodes} nodes have ended{queue}")


class _Launch:
    """The engine's command for one node."""

    def __init__(self, request: Request, node: str, command: Sequence[str]) -> None:
        """Start it. Raises UsageError if the command is not there."""
        self.node = node
        self._request = request
        self._log = request.folder / "engine" / f"{node}.log"
        self._whole = request.folder / "nodes" / node
        self._part = self._whole.with_name(f"{node}.part")
        shutil.rmtree(self._part, ignore_errors=True)  # of an earlier attempt
        self._asked = time.monotonic()
        self._began: float | None = None
        self._stopped: float | None = None  # when, and why
        self._why = self._before = ""
        with self._log.open("wb") as stream:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    process_group=0,  # Ctrl-C comes to us, and we stop the launch
                )
            except OSError as error:
                raise UsageError(f"{command[0]}: {error.strerror}") from None

    @property
    def began(self) -> bool:
        """Whether the node has begun its run."""
        return self._began is not None

    def ended(self, told: Told) -> bool:
        """Whether the command has ended; if so, `told` gets what is to be said about a
        node without results. A command that is out of time is stopped.
        """
        now = time.monotonic()
        if self._began is None and (self._part.exists() or self._whole.exists()):
            self._began = now
        if self._process.poll() is not None:
            self._tell(told)
            return True
        request = self._request
        if self._stopped is not None:
            if now > self._stopped + GRACE_SECONDS:
                self._process.kill()
        elif self._began is None and now > self._asked + request.queue:
            self.stop(f"not begun after {request.queue} s: ")
        elif self._began is not None and now > self._began + request.limit:
            told.late.append(self.node)
            self.stop(f"not ended after {request.limit} s: ")
        return False

    def stop(self, why: str) -> None:
        """Tell the command to end."""
        if self._stopped is None:
            # What the engine says later is only about this stop.
            self._stopped, self._why, self._before = time.monotonic(), why, self._said()
            self._process.terminate()

    def _said(self) -> str:
        return reason_of(self._log.read_text(encoding="utf-8", errors="replace"))

    def _tell(self, told: Told) -> None:
        if not self._whole.exists():
            name, code = self._request.engine, self._process.returncode
            reason = self._before or self._said() or f"nothing; it ended with {code}"
            told.said[self.node] = f"{self._why}{name} says: {reason}"


def reason_of(said: str) -> str:
    """The line of an engine's output that says why it failed; empty if there is none.

    Engines draw frames of dashes, say several things, and repeat the most general one
    at the end.
    """
    lines = [x.strip() for x in said.splitlines() if re.search(r"\w", x)]
    telling = re.compile(
        r"error|fail|denied|cannot|could not|unable|refused|attempt|no ", re.I
    )
    found = [x for x in lines if telling.search(x)] or lines[-1:]
    return reader.plain(found[0])[:300] if found else ""


def _launch_each(
    request: Request,
    nodes: list[str],
    command: Callable[[str], Sequence[str]],
    told: Told,
    say: Say,
) -> None:
    """Start a command for each node and wait until all have ended or are out of time.

    An interrupt stops them all. Raises UsageError if the command is not there.
    """
    (request.folder / "engine").mkdir(exist_ok=True)
    left, running = nodes[::-1], list[_Launch]()
    ended = begun = 0
    progress = _Progress(len(nodes), say)
    try:
        while left or running:
            while left and len(running) < AT_ONCE:
                node = left.pop()
                running.append(_Launch(request, node, command(node)))
            over = [x for x in running if x.ended(told)]
            running = [x for x in running if x not in over]
            ended += len(over)
            begun += sum(x.began for x in over)
            progress.tell(ended, begun + sum(x.began for x in running))
            if running:
                threading.Event().wait(LOOK_SECONDS)
    except BaseException:
        for launch in running:
            launch.stop("interrupted: ")
        while running:
            running = [x for x in running if not x.ended(told)]
            threading.Event().wait(LOOK_SECONDS)
        told.said.update(dict.fromkeys(left, "interrupted before it was started"))
        raise


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
Start = Callable[[Request, list[str], Told, Say], None]
ENGINES: dict[str, tuple[Nodes, Start]] = {
    "slurm": (slurm_nodes, start_slurm),
    "mpi": (mpi_nodes, start_mpi),
    "kubernetes": (kubernetes_nodes, start_kubernetes),
}
