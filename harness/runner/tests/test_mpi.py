"""Lesson 35 as two ranks of MPI: ranks that seem to be on two nodes, and the ways in
which a rank can fail.

SPDX-License-Identifier: Apache-2.0
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ipclab import supervise
from ipclab.supervise import Ended

TOP = Path(__file__).resolve().parents[3]
LESSON = TOP / "samples/35_fabric_handle"
SOURCE = LESSON / "fabric_handle.cu"
MODEL = os.environ.get("IPCLAB_MODEL")
DEADLINE = 20  # seconds, of samples/35_fabric_handle/roles.h
NO_CHANNEL = "SKIP: no IMEX channel: make /dev/nvidia-caps-imex-channels/channel0 "

pytestmark = [
    pytest.mark.skipif(
        shutil.which("mpicxx") is None or shutil.which("mpirun") is None,
        reason="no MPI: apt-get install libopenmpi-dev openmpi-bin",
    ),
    pytest.mark.skipif(MODEL is None, reason="IPCLAB_MODEL: no reference model"),
]

# A library may replace any function of MPI. This library ends or stops a rank when the
# rank has received a message, in the middle of the lesson.
PLANTED = """
#include <mpi.h>
#include <signal.h>
#include <stdlib.h>
int MPI_Recv(void* data, int count, MPI_Datatype type, int from, int tag,
             MPI_Comm ranks, MPI_Status* status) {
  const int code = PMPI_Recv(data, count, type, from, tag, ranks, status);
  raise(atoi(getenv("IPCLAB_PLANTED")));
  return code;
}
"""

Start = Callable[..., Ended]


def run(command: Sequence[str]) -> None:
    ran = subprocess.run(command, cwd=TOP, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The lesson, built as its header says."""
    header = SOURCE.read_text().split("\n#include", 1)[0]
    found = re.search(r"^// (nvcc .*)\n(?:.*\n)*// .* add (-.*)$", header, re.MULTILINE)
    assert found, "the header does not say how to build it for mpirun"
    built = tmp_path_factory.mktemp("mpi") / "lesson"
    run([*shlex.split(f"{found[1]} {found[2]}"), "-o", str(built)])
    return str(built)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library of PLANTED."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "planted.c").write_text(PLANTED)
    library = folder / "planted.so"
    run(["mpicc", "-shared", "-fPIC", "-o", str(library), str(folder / "planted.c")])
    return str(library)


@pytest.fixture
def mpirun(tmp_path: Path) -> Start:
    """Runs mpirun to its end; mpirun must leave no process and no file."""

    def start(*words: str, **environment: str) -> Ended:
        ended = supervise.run(
            ["mpirun", "--oversubscribe", *words],
            timeout=3 * DEADLINE,
            environment={
                **os.environ,
                "LD_LIBRARY_PATH": str(MODEL),
                "IPCLAB_PROFILE": "fabric",
                "OMPI_ALLOW_RUN_AS_ROOT": "1",
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                # Where Open MPI has its files, also those for shared memory.
                "TMPDIR": str(tmp_path),
                "OMPI_MCA_btl_vader_backing_directory": str(tmp_path),
                **environment,
            },
        )
        assert not ended.timed_out, ended.output
        assert ended.survivors == ()
        assert list(tmp_path.rglob("*")) == []
        return ended

    return start


def lines(output: str, role: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith(f"{role}  ")]


def told_the_story(ended: Ended) -> bool:
    """Whether the ranks succeeded and printed the lines of fabric_handle.out. The lines
    of one rank are in order; mpirun promises no order between ranks.
    """
    expected = (LESSON / "fabric_handle.out").read_text()
    return ended.code == 0 and all(
        lines(ended.output, role) == lines(expected, role)
        for role in ("exporter", "importer")
    )


def test_two_ranks_share_memory(mpirun: Start, program: str) -> None:
    ended = mpirun("-n", "2", program)
    assert told_the_story(ended), ended.output


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make namespaces")
def test_ranks_that_see_nothing_of_each_other(mpirun: Start, program: str) -> None:
    """Each rank has its own /proc and process ids, and MPI shares no memory."""
    node = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    ended = mpirun("-n", "2", "--mca", "btl", "self,tcp", *node, program)
    assert told_the_story(ended), ended.output


def test_wrong_data_is_seen(mpirun: Start, program: str) -> None:
    faults = Path(str(MODEL)).parent / "faults" / "libipclab_faults.so"
    ended = mpirun(
        *("-n", "2", "-x", f"LD_PRELOAD={faults}", program),
        IPCLAB_FAULT="vmm-import-fresh",
    )
    assert ended.code == 1
    assert "reads the exporter's values: 1048576 wrong" in ended.output


@pytest.mark.parametrize(
    ("profile", "reason"),
    [
        ("no-fabric", "SKIP: device 0 does not support fabric handles"),
        ("one-gpu", NO_CHANNEL),
    ],
)
def test_nodes_that_cannot(
    mpirun: Start, program: str, profile: str, reason: str
) -> None:
    ended = mpirun("-n", "2", program, IPCLAB_PROFILE=profile)
    assert ended.code == 77
    assert ended.output.count(reason) == 2


@pytest.mark.parametrize(("lacking", "other"), [(0, "importer"), (1, "exporter")])
def test_one_node_that_cannot(
    mpirun: Start, program: str, lacking: int, other: str
) -> None:
    nodes = [["-n", "1", program], ["-n", "1", program]]
    nodes[lacking][2:2] = ["-x", "IPCLAB_MODEL_IMEX_CHANNEL=none"]
    ended = mpirun(*nodes[0], ":", *nodes[1])
    assert ended.code == 77
    assert ended.output.count("SKIP: ") == ended.output.count(NO_CHANNEL) == 1
    assert f"{other}  skips: the other rank says what its node lacks" in ended.output


def test_a_call_that_fails_ends_both(mpirun: Start, program: str) -> None:
    foreign = ["-x", "IPCLAB_MODEL_IMEX_CHANNEL=5"]
    ended = mpirun("-n", "1", program, ":", "-n", "1", *foreign, program)
    assert ended.code == 1
    assert re.search(r"\[importer \d+\] .*cuMemImportFromShareable", ended.output)
    assert "-> CUDA_ERROR_NOT_PERMITTED" in ended.output
    assert ended.seconds < DEADLINE


@pytest.mark.parametrize("words", ["1 PROGRAM", "3 PROGRAM", "2 PROGRAM more"])
def test_wrong_usage(mpirun: Start, program: str, words: str) -> None:
    ended = mpirun("-n", *words.replace("PROGRAM", program).split())
    assert ended.code == 2
    said = f"two ranks, no arguments: mpirun -n 2 {program}"
    assert ended.output.count(said) == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed(
    mpirun: Start, program: str, planted: str, rank: int
) -> None:
    nodes = [["-n", "1", program], ["-n", "1", program]]
    nodes[rank][2:2] = plant(planted, signal.SIGKILL)
    ended = mpirun(*nodes[0], ":", *nodes[1])
    assert ended.code == 128 + signal.SIGKILL
    assert "exited on signal 9" in ended.output
    assert ended.seconds < DEADLINE


def test_a_rank_that_stops(mpirun: Start, program: str, planted: str) -> None:
    stopped = plant(planted, signal.SIGSTOP)
    ended = mpirun("-n", "1", program, ":", "-n", "1", *stopped, program)
    assert ended.code == 1
    said = r"^\[exporter \d+\] step 'closed': still waiting after 20 s$"
    assert re.search(said, ended.output, re.MULTILINE), ended.output
    assert "reads the importer's values" not in ended.output
    assert DEADLINE <= ended.seconds < 2 * DEADLINE


def test_a_rank_that_never_starts(mpirun: Start, program: str) -> None:
    ended = mpirun("-n", "1", program, ":", "-n", "1", "sleep", str(4 * DEADLINE))
    assert ended.code == 1
    said = r"^\[rank \d+\] step 'start': still waiting after 20 s$"
    assert re.search(said, ended.output, re.MULTILINE), ended.output
    assert DEADLINE <= ended.seconds < 2 * DEADLINE


def plant(library: str, number: int) -> list[str]:
    """The options of mpirun with which a rank gets this signal during the lesson."""
    return ["-x", f"LD_PRELOAD={library}", "-x", f"IPCLAB_PLANTED={int(number)}"]
