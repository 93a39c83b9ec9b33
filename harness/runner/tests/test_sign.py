"""`ipclab sign` and `ipclab verify --key`: whose results these are."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from conftest import Build
from ipclab import manifest, reader

pytestmark = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="no ssh-keygen (openssh-client)"
)


def new_key(path: Path, *options: str) -> Path:
    """Make a key without a passphrase."""
    command = ["ssh-keygen", "-q", "-N", "", "-C", "tester", "-f", str(path), *options]
    subprocess.run(command, check=True, timeout=60)
    return path


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A qualified run, signed by `mine`; somebody else has `other`."""
    build = Build(tmp_path_factory.mktemp("signed"))
    build.rows({"LMEM-01": "MUST"})
    build.conformance("record()")
    assert (
        build.ipclab("qualify", "--build", "build", "--results", "out").returncode == 0
    )
    new_key(build.root / "mine", "-t", "ed25519")
    new_key(build.root / "other", "-t", "ecdsa")
    done = build.ipclab("sign", "out", "--key", "mine")
    assert done.returncode == 0, done.stdout
    return build


@pytest.fixture
def handed_in(signed: Build, tmp_path: Path) -> Build:
    """A copy of the signed results and of the public keys."""
    shutil.copytree(signed.root / "out", tmp_path / "out")
    for key in ("mine.pub", "other.pub", "mine"):
        shutil.copy(signed.root / key, tmp_path / key)
    build = object.__new__(Build)
    build.root = tmp_path
    return build


def verify(build: Build, key: str) -> tuple[int, str]:
    """`ipclab verify out --key`: its exit code and output."""
    done = build.ipclab("verify", "out", "--key", key)
    return done.returncode, done.stdout


def test_results_of_the_owner_of_a_key(handed_in: Build) -> None:
    code, said = verify(handed_in, "mine.pub")
    assert code == 0, said
    proof, last = said.splitlines()
    assert "this key signed them: Good" in proof
    assert "Does not prove: that the tests ran on this machine, or when" in proof
    assert last.startswith("verified: ")
    (handed_in.root / "allowed").write_text(
        "# our people\n*@example.org " + (handed_in.root / "mine.pub").read_text()
    )
    assert verify(handed_in, "allowed")[0] == 0


def test_results_of_somebody_else(handed_in: Build) -> None:
    code, said = verify(handed_in, "other.pub")
    assert code == 1
    assert said == (
        "not verified: run.sig: is no signature of these results by a key of "
        "other.pub\n"
    )


def test_without_a_key_the_owner_is_not_known(handed_in: Build) -> None:
    done = handed_in.ipclab("verify", "out")
    assert done.returncode == 0
    assert "Does not prove: who made them (--key)" in done.stdout


def test_packing_and_layout_do_not_matter(handed_in: Build) -> None:
    folder = handed_in.root / "out"
    data = (folder / "records.jsonl").read_bytes()
    (folder / "records.jsonl.gz").write_bytes(gzip.compress(data))
    (folder / "records.jsonl").unlink()
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(run))
    assert verify(handed_in, "mine.pub")[0] == 0


def reseal(folder: Path, **changes: Any) -> None:
    """Edit the results, and compute all digests again."""
    lines = (folder / "records.jsonl").read_text().replace('"seed": 1', '"seed":  1')
    (folder / "records.jsonl").write_text(lines)
    seal = reader.Seal()
    seal.add(lines.encode())
    run = json.loads((folder / "run.json").read_text()) | changes
    run["manifest"]["records"] = seal.document
    (folder / "run.json").write_text(json.dumps(manifest.sealed(run)))


def test_a_forger_cannot_sign(handed_in: Build) -> None:
    """Digests do not stop a forger; the signature does."""
    reseal(handed_in.root / "out")
    assert handed_in.ipclab("verify", "out").returncode == 0
    code, said = verify(handed_in, "mine.pub")
    assert code == 1
    assert "is no signature of these results" in said


def test_no_signature_and_a_damaged_one(handed_in: Build) -> None:
    path = handed_in.root / "out/run.sig"
    text = path.read_text()
    path.write_text(text.replace("A", "B", 1))
    assert verify(handed_in, "mine.pub")[0] == 1
    path.unlink()
    code, said = verify(handed_in, "mine.pub")
    assert (code, "no such file; `ipclab sign` makes it" in said) == (1, True)
    os.mkfifo(path)
    code, said = verify(handed_in, "mine.pub")
    assert (code, said) == (2, "ipclab: out/run.sig: is not a regular file\n")


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "has no public keys"), ("ssh-ed25519 ???\n", "has no public keys")],
)
def test_a_file_without_keys(handed_in: Build, text: str, says: str) -> None:
    (handed_in.root / "keys").write_text(text)
    code, said = verify(handed_in, "keys")
    assert (code, said) == (2, f"ipclab: keys: {says}\n")


def test_a_private_key_is_refused(handed_in: Build) -> None:
    code, said = verify(handed_in, "mine")
    assert (code, "is a private key; name the public key" in said) == (2, True)


def test_only_a_whole_run_is_signed(handed_in: Build) -> None:
    (handed_in.root / "mine").chmod(0o600)
    for changes, says in (
        ({"problems": ["edited"]}, "was edited after the run"),
        ({"state": "interrupted"}, "the run is interrupted, not finished"),
    ):
        path = handed_in.root / "out/run.json"
        before = path.read_text()
        path.write_text(json.dumps(json.loads(before) | changes))
        done = handed_in.ipclab("sign", "out", "--key", "mine")
        path.write_text(before)
        assert done.returncode == 2
        assert says in done.stdout
    done = handed_in.ipclab("sign", "out", "--key", "nowhere")
    assert done.returncode == 2
    assert done.stdout.count("\n") == 1
