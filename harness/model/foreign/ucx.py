#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One test of ucx_perftest between two processes, with memory of a GPU.

    ucx.py FOLDER TEST

FOLDER has the unpacked wheel libucx-cu13 (pip install --target FOLDER libucx-cu13).
Exit code 0: both processes end with 0, and the data went by CUDA IPC.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

DEADLINE = 100  # s
SIZE, ROUNDS = 4 << 20, 10  # bytes, messages


def main(folder: Path, test: str) -> int:
    """Runs server and client; returns the exit code."""
    ucx = folder / "libucx"
    program = ucx / "bin" / "ucx_perftest"
    if not program.is_file():
        print(f"{folder}: no libucx/bin/ucx_perftest: unpack the wheel libucx-cu13")
        return 1
    program.chmod(program.stat().st_mode | 0o111)  # a wheel does not keep this bit
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": f"{ucx / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}",
        "UCX_MODULE_DIR": str(ucx / "lib" / "ucx"),
        "UCX_TLS": "cuda_ipc,cuda_copy,sm,tcp,self",
        "UCX_NET_DEVICES": "lo",
        # Without this, the other process does the work of a get.
        "UCX_CUDA_IPC_ENABLE_GET_ZCOPY": "on",
        "UCX_PROTO_INFO": "y",
    }
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [str(program), "-p", port, "-t", test, "-m", "cuda"]
    command += ["-s", str(SIZE), "-n", str(ROUNDS), "-w", "2"]
    until = time.monotonic() + DEADLINE
    server = client = start(command, environment)
    said = ""
    try:
        while True:  # until the server listens
            client = start([*command, "127.0.0.1"], environment)
            said = client.communicate(timeout=until - time.monotonic())[0]
            if client.returncode == 0 or server.poll() is not None:
                break
            if "refused" not in said or time.monotonic() > until:
                break
            time.sleep(0.2)
        server.wait(timeout=10)
    except subprocess.TimeoutExpired:
        print(f"not done after {DEADLINE} s")
    finally:
        client.kill()
        server.kill()
        said += server.communicate()[0]
    print(said)
    if client.returncode or server.returncode:
        print(f"client: exit {client.returncode}, server: exit {server.returncode}")
        return 1
    if "cuda_ipc/cuda" not in said:
        print("no data went by CUDA IPC")
        return 1
    return 0


def start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    """Starts one of the two processes, with its output in a pipe."""
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
