"""`ipclab explore --faults`: which faults an explorer notices."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest
from rich.console import Console

from ipclab import explore_faults
from ipclab.errors import HarnessError, UsageError
from ipclab.explore_faults import NO_LOOK
from ipclab.mutants import faults

# Calls cudaMalloc. Notices the fault `b`; the fault `a` takes effect, too.
PROGRAM = """
    import json, os, pathlib, sys
    fault = os.environ["IPCLAB_FAULT"]
    if fault in ("a", "b"):
        log = pathlib.Path(os.environ["IPCLAB_FAULT_LOG"])
        log.write_text(f"fired {fault} 1 cudaMalloc\\n")
    failure = {"event": "failure", "row": "LMEM-01", "operation": "read",
               "check": "bytes", "seen": "0", "wanted": "7"}
    if fault == "b":
        print(json.dumps(failure))
    made = int(sys.argv[sys.argv.index("--programs") + 1])
    print(json.dumps({"event": "end", "programs": 2 if fault == "slow" else made}))
    sys.exit(fault == "b")
"""


def fault(
    name: str, kind: str = faults.NAMED, function: str = "cudaMalloc"
) -> faults.Fault:
    return faults.Fault(name, kind, function, None, "…", rows=("LMEM-01",))


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


def catalogue_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *known: faults.Fault
) -> None:
    """A build with these faults, and a file that says which are out of reach."""
    reach = folder / explore_faults.REACH
    reach.parent.mkdir(parents=True)
    entry = {"why": "out of reach: a test", "rows": ["FABR"], "faults": ["far"]}
    reach.write_text(json.dumps([entry]))
    catalogue = faults.Catalogue(Path(), folder, known, {}, {}, {}, {}, {}, (), ())
    monkeypatch.setattr(faults, "read", lambda build: catalogue)


def measured(folder: Path, out: Console, count: int) -> list[explore_faults.Trial]:
    program = folder / "explore"
    program.write_text(f"#!{sys.executable} -IS\n" + textwrap.dedent(PROGRAM))
    program.chmod(0o755)
    return explore_faults.measure(
        *(out, folder, program, {}),
        count=count,
        programs=3,
        seconds=5,
        seed=1,
        jobs=2,
        results_folder=folder / "results",
    )


def test_each_fault_has_a_kind_which_is_told_and_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = (
        *(fault("a"), fault("b"), fault("far"), fault("rare"), fault("slow")),
        fault("other", function="cudaMallocAsync"),
    )
    catalogue_of(tmp_path, monkeypatch, *known)
    out = Console(record=True, width=200)
    trials = measured(tmp_path, out, len(known))
    assert {x.fault: x.kind for x in trials} == {
        "a": explore_faults.NO_LOOK,
        "b": explore_faults.NOTICED,
        "far": "out of reach: a test",
        "rare": explore_faults.RARE,
        "slow": explore_faults.NO_TIME,
        "other": explore_faults.NO_CALL,
    }
    assert {x.fault for x in trials if x.fired} == {"a", "b"}
    text = out.export_text()
    assert f"not noticed: a (LMEM-01), took effect in 3 programs: {NO_LOOK}" in text
    assert "noticed: b after 3 programs" in text
    assert "LMEM-01: read, bytes: 0, not 7" in text
    assert "1 of 6 faults noticed (17 %); 5 of them are within reach (20 %)" in text
    assert "1  out of reach: a test" in text
    written = json.loads((tmp_path / "results" / "faults.json").read_text())
    assert [x["fault"] for x in written] == [x.fault for x in trials]


def test_a_reason_for_a_fault_that_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue_of(tmp_path, monkeypatch, fault("a"))
    with pytest.raises(HarnessError, match="there is no fault far"):
        measured(tmp_path, Console(), 1)


def test_a_row_or_its_subject_puts_a_fault_out_of_reach(tmp_path: Path) -> None:
    path = tmp_path / "reach.json"
    entry = {"why": "no fabric", "rows": ["FABR", "COST-01"], "faults": []}
    path.write_text(json.dumps([entry]))
    reach = explore_faults.Reach(path)
    by_row = {
        row: reach.why_not(faults.Fault("x", faults.NAMED, "f", None, "…", rows=(row,)))
        for row in ("FABR-04", "COST-01", "COST-02")
    }
    assert by_row == {"FABR-04": "no fabric", "COST-01": "no fabric", "COST-02": None}
    path.write_text('[{"why": ""}]')
    with pytest.raises(HarnessError):
        explore_faults.Reach(path)


def test_the_page_names_each_reason() -> None:
    root = Path(__file__).parents[3]
    page = (root / "docs" / "pages" / "explore.dox").read_text(encoding="utf-8")
    reasons = json.loads((root / explore_faults.REACH).read_text(encoding="utf-8"))
    missing = [x["why"] for x in reasons if f"- {x['why'][14:]}\n" not in page]
    assert not missing
    assert all(x["why"].startswith("out of reach: ") for x in reasons)
