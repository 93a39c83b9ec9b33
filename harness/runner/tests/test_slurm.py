"""`ipclab fleet --slurm` with its own Slurm: seven nodes on this host.

The test needs Debian's slurm-wlm. It also needs root, because slurmd has to run as
root. Otherwise it is skipped.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import PROBE, Build

TOOLS = ("munged", "slurmctld", "slurmd", "sinfo", "srun", "scontrol")
LACKING = [x for x in TOOLS if shutil.which(x) is None]
NODES = 7
SECONDS = 60

CONFIGURATION = """\
ClusterName=ipclab
SlurmctldHost={host}
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
ReturnToService=2
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""

# The name of a node decides what it does.
PROGRAM = """\
node = os.environ["SLURMD_NODENAME"]
if node == "n4":  # dies in the middle: kills the two processes above this one
    def parent(pid):
        return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
    run = os.getppid()
    for pid in (parent(run), run):
        os.kill(pid, signal.SIGKILL)
    sys.exit(1)
record(outcome={"n1": "not applicable", "n2": "violates"}.get(node, "conforms"))
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Start a Slurm that knows n1 to n7, and end the daemon of n6 again, so that
    Slurm does not know yet that n6 is dead; return its folder.
    """
    if LACKING:
        pytest.skip(f"no {', '.join(LACKING)} (Debian: slurm-wlm)")
    if os.geteuid() != 0:
        pytest.skip("slurmd has to run as root")
    folder = tmp_path / "slurm"
    (folder / "state").mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(NODES + 1)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        ports = [one.getsockname()[1] for one in sockets]
    names = [f"n{i}" for i in range(1, NODES + 1)]
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 "
        f"Port={port} CPUs=1 RealMemory=100"
        for name, port in zip(names, ports[1:], strict=True)
    )
    (folder / "slurm.conf").write_text(
        CONFIGURATION.format(
            host=f"{socket.gethostname()}(127.0.0.1)",
            ports=ports,
            folder=folder,
            nodes=nodes,
        )
    )
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    files = [
        f"--{x}={folder}/munge.{x.partition('-')[0]}"
        for x in ("socket", "pid-file", "log-file", "seed-file")
    ]
    daemons = [
        ["munged", "--foreground", "--force", f"--key-file={key}", *files],
        ["slurmctld", "-D"],
        *(["slurmd", "-D", "-N", name] for name in names),
    ]
    with contextlib.ExitStack() as stack:
        for command in daemons:
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            stack.callback(process.wait, SECONDS)
            stack.callback(process.terminate)
            if command[-1] == "n6":
                dies = process
        # Slurm itself waits for its nodes: a step on all of them, with a deadline.
        subprocess.run(
            ["timeout", str(SECONDS), "srun", f"--nodes={NODES}", "true"], check=True
        )
        wait_for("n6", "idle")
        dies.kill()
        dies.wait(SECONDS)
        yield folder


def wait_for(node: str, state: str) -> None:
    """Wait until Slurm says this state of a node."""
    end = time.monotonic() + SECONDS
    ask = ["sinfo", "--noheader", f"--nodes={node}", "--format=%t"]
    while subprocess.check_output(ask, text=True).strip() != state:
        assert time.monotonic() < end


@contextlib.contextmanager
def busy(node: str) -> Iterator[None]:
    """Another job has this node."""
    with subprocess.Popen(
        ["srun", f"--nodelist={node}", "--exclusive", "sleep", "600"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as other:
        try:
            wait_for(node, "alloc")
            yield
        finally:
            other.terminate()


def test_seven_nodes_and_what_became_of_each(slurm: Path, build: Build) -> None:
    """n3 is drained, n4 dies in the middle, n6 before its launch, n7 is busy."""
    other = {**PROBE, "driver": "590.1"}
    build.probe(
        f"""import os
other = os.environ.get("SLURMD_NODENAME") == "n1"
print({json.dumps(other)!r} if other else {json.dumps(PROBE)!r})"""
    )
    build.conformance(PROGRAM)
    build.sample("pass")
    drain = ["scontrol", "update", "nodename=n3", "state=drain", "reason=broken fan"]
    subprocess.run(drain, check=True, timeout=SECONDS)
    fleet = ("fleet", "--slurm", "--build", "build", "--limit", "120", "fleet")
    with busy("n7"), build.start(*fleet, "--queue", "30") as done:
        text = done.communicate(timeout=300)[0]
    assert done.returncode == 1, text
    merged = json.loads((build.root / "fleet" / "merged.json").read_text())
    assert merged["nodes"] == {
        "cut off": ["n4"],
        "missing": ["n3", "n6", "n7"],
        "judged": ["n1", "n2", "n5"],
    }, text
    assert merged["why"]["n3"].endswith("broken fan")
    # Of the launch, unless Slurm has already noticed that the node is gone.
    assert merged["why"]["n6"].startswith(("slurm says: srun: error", "Slurm says"))
    assert merged["why"]["n7"].startswith("not begun after 30 s: slurm says: srun: job")
    answers = {group["nodes"][0]: group for group in merged["groups"]}
    assert answers["n1"]["counts"] == {"conforms": 1, "not applicable": 1}
    assert answers["n2"]["failing"] == ["conformance.01_legacy_memory.Suite.Name"]
    assert answers["n5"]["counts"] == {"conforms": 2}
    facts = dict(x[:2] for x in answers["n1"]["machines"] or answers["n5"]["machines"])
    assert "driver" in facts
    # The other job has ended: n7 is added, in an allocation this time.
    added = [sys.executable, "-P", "-m", "ipclab", *fleet, "--nodes", "n7"]
    ran = subprocess.run(
        ["salloc", "--nodelist=n7", *added],
        cwd=build.root,
        env=build.environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    merged = json.loads((build.root / "fleet" / "merged.json").read_text())
    assert merged["nodes"]["judged"] == ["n1", "n2", "n5", "n7"], ran.stdout
