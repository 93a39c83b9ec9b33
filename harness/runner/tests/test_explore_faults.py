"""`ipclab explore --faults`: which faults an explorer notices."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from ipclab import explore_faults
from ipclab.errors import UsageError
from ipclab.mutants import faults

# Notices the fault `b`, and says of each other fault only that it took effect.
PROGRAM = """
    import json, os, pathlib, sys
    fault = os.environ["IPCLAB_FAULT"]
    log = pathlib.Path(os.environ["IPCLAB_FAULT_LOG"])
    log.write_text(f"fired {fault} 1 cudaMalloc\\n")
    failure = {"event": "failure", "row": "LMEM-01", "operation": "read",
               "check": "bytes", "seen": "0", "wanted": "7"}
    if fault == "b":
        print(json.dumps(failure))
    print(json.dumps({"event": "end", "programs": 3}))
    sys.exit(fault == "b")
"""


def fault(name: str, kind: str = faults.NAMED) -> faults.Fault:
    return faults.Fault(name, kind, "cudaMalloc", None, "…", rows=("LMEM-01",))


def test_the_sample_is_always_the_same_whatever_the_order_is() -> None:
    known = [fault(f"fault-{i}") for i in range(400)]
    known += [fault("ok-different"), fault("op", faults.OPERATOR)]
    chosen = explore_faults.sample(known, 100)
    assert chosen == explore_faults.sample(reversed(known), 100)
    assert chosen[:10] == explore_faults.sample(known, 10)
    assert all(x.kind == faults.NAMED and not x.allowed for x in chosen)
    assert len({x.name for x in chosen}) == 100


def test_a_sample_of_few_faults_cannot_be_large() -> None:
    with pytest.raises(UsageError, match="the sample has 1 faults, not 2"):
        explore_faults.sample([fault("a"), fault("ok-b")], 2)


def test_what_is_noticed_is_told_and_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "explore"
    program.write_text(f"#!{sys.executable} -IS\n" + textwrap.dedent(PROGRAM))
    program.chmod(0o755)
    known: Sequence[faults.Fault] = (fault("a"), fault("b"))
    catalogue = faults.Catalogue(Path(), tmp_path, tuple(known), {}, {}, {}, {}, {}, ())
    monkeypatch.setattr(faults, "read", lambda build: catalogue)
    out = Console(record=True, width=200)
    trials = explore_faults.measure(
        *(out, tmp_path, program, {}),
        count=2,
        seconds=5,
        seed=1,
        jobs=2,
        results_folder=tmp_path / "results",
    )
    assert {x.fault: bool(x.noticed) for x in trials} == {"a": False, "b": True}
    assert all(x.fired and x.programs == 3 and not x.ended for x in trials)
    text = out.export_text()
    assert "not noticed: a (LMEM-01), took effect" in text
    assert "LMEM-01: read, bytes: 0, not 7" in text
    assert "1 of 2 faults noticed (50 %); 2 took effect" in text
    written = json.loads((tmp_path / "results" / "faults.json").read_text())
    assert [x["fault"] for x in written] == [x.fault for x in trials]
