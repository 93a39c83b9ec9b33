"""`ipclab sign RESULTS --key KEY`, and what `ipclab verify --key` checks: an SSH
signature (ssh-keygen -Y) in run.sig, beside run.json.

Signed are the digest of run.json, which has the seal of the records, the digests of the
programs and the fingerprint of the machine; and the kill matrix, if there is one. The
layout of run.json and whether the records are packed do not matter.

A signature shows that the owner of the private key signed these results. It does not
show that this person ran the suite, on which machine or when: a person can also sign
results that are not true.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ipclab import manifest, reader, results
from ipclab.errors import HarnessError, UsageError
from ipclab.mutants import matrix

NAME = "run.sig"
NAMESPACE = "ipclab-results"  # a signature for another purpose does not count
SECONDS = 300  # in which a person may type a passphrase or touch a key
LARGEST = 64 * 1024  # bytes of a signature or of a file of keys
SUBMITTER = "submitter"  # the name of a key that has none
_KEY = re.compile(r"(ssh|ecdsa|sk-ssh|sk-ecdsa)-\S+ [A-Za-z0-9+/=]+")


def sign(out: Console, folder: Path, key: Path) -> int:
    """Sign a finished run; return 0.

    `key` is a private key, or a public key whose private key an agent has. Raises
    UsageError if the run cannot be read, is not finished or was edited, or if
    ssh-keygen does not sign.
    """
    contents = results.read(folder, timelines=False)
    run = contents.run
    wrong = contents.wrong or next(manifest.edits(run, contents.seal), None)
    if run["state"] != "finished":
        wrong = f"the run is {run['state']}, not finished"
    if wrong:
        raise UsageError(f"{folder}: {wrong}; only a finished run can be signed")
    done = _ssh_keygen(
        ["sign", "-f", str(key), "-n", NAMESPACE], _statement(folder, run["digest"])
    )
    if done.returncode:
        raise UsageError(f"{key}: {_said(done)}")
    results.write(folder / NAME, done.stdout.decode())
    out.print(Text(f"{folder / NAME}: signs {run['digest']}"), soft_wrap=True)
    return 0


def check(folder: Path, digest: str, key: Path) -> tuple[str | None, str | None]:
    """What is wrong with the signature of results, or whose it is.

    `key` has public keys, one a line, or is a file of allowed signers (ssh-keygen(1)).
    Raises UsageError if it cannot be read or has no key.
    """
    path = folder / NAME
    if not path.exists():
        return f"{NAME}: no such file; `ipclab sign` makes it", None
    allowed, signature = _allowed(key), reader.data(path, LARGEST)
    files = [_unnamed(allowed.encode()), _unnamed(signature)]
    try:
        names = [f"/proc/self/fd/{x}" for x in files]
        where = ["-f", names[0], "-s", names[1]]
        found = _ssh_keygen(["find-principals", *where], b"", files)
        for who in found.stdout.decode(errors="replace").splitlines():
            done = _ssh_keygen(
                ["verify", *where, "-n", NAMESPACE, "-I", who.strip()],
                _statement(folder, digest),
                files,
            )
            if done.returncode == 0:
                return None, reader.plain(done.stdout.decode(errors="replace").strip())
    finally:
        for file in files:
            os.close(file)
    return f"{NAME}: is no signature of these results by a key of {key}", None


def _statement(folder: Path, digest: str) -> bytes:
    """What is signed."""
    kills = folder / matrix.NAME
    other = reader.digest(kills, reader.DOCUMENT) if kills.exists() else "none"
    return f"run.json {digest}\n{matrix.NAME} {other}\n".encode()


def _allowed(path: Path) -> str:
    """The keys of a file as lines of allowed signers."""
    lines = reader.text(path, LARGEST).splitlines()
    told = [x.strip() for x in lines if x.strip() and not x.startswith("#")]
    if any("PRIVATE KEY" in x for x in told):
        raise UsageError(f"{path}: is a private key; name the public key, {path}.pub")
    if not told or not all(_KEY.search(x) for x in told):
        raise UsageError(f"{path}: has no public keys")
    return "".join(f"{SUBMITTER} {x}\n" if _KEY.match(x) else f"{x}\n" for x in told)


def _unnamed(data: bytes) -> int:
    """A file without a name: nothing is left behind, and nobody can exchange it."""
    descriptor = os.memfd_create("ipclab")
    os.write(descriptor, data)
    return descriptor


def _ssh_keygen(
    arguments: Sequence[str], text: bytes, files: Sequence[int] = ()
) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["ssh-keygen", "-Y", *arguments],
            input=text,
            capture_output=True,
            pass_fds=files,
            timeout=SECONDS,
        )
    except FileNotFoundError:
        raise UsageError("ssh-keygen is not on PATH (Debian: openssh-client)") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HarnessError(f"ssh-keygen: {error}") from None


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return (
        reader.plain(lines[-1]) if lines else f"ssh-keygen ended with {done.returncode}"
    )
