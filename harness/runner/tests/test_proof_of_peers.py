"""What `ipclab doctor --peers` concludes from the answers of the probe."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ipclab import peers, probe
from ipclab.errors import HarnessError


def pair(one: int, two: int, promised: bool = True, failed: str = "") -> dict[str, Any]:
    proved = promised and not failed
    return {
        "from": one, "to": two, "promised": promised, "atomics": True,
        "proved": proved, "failed": failed, "said": failed and "1 of 2 wrong",
    }  # fmt: skip


def proof(monkeypatch: pytest.MonkeyPatch, **answer: Any) -> dict[str, Any]:
    document = {
        "pairs": [pair(0, 1), pair(1, 0)],
        "together": {"good": True, "said": ""},
        "problem": "",
        "milliseconds": 900,
        **answer,
    }
    monkeypatch.setattr(probe, "answer", lambda *_: document)
    return peers.prove([], {}, 2)


def text_of(found: dict[str, Any]) -> str:
    out = Console(file=io.StringIO(), width=100)
    for line in peers.told(found):
        out.print(line)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_a_promise_that_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    found = proof(monkeypatch)
    assert (found["verdict"], found["implies"]) == ("proved", [])
    assert "peers: proved, 2 pairs in 0.9 s" in text_of(found)


@pytest.mark.parametrize(
    "answer",
    [
        {"pairs": [pair(0, 1), pair(1, 0, failed="kernel reads")]},
        {"together": {"good": False, "said": "0 -> 1: 5 of 9 values are wrong"}},
        {"problem": "GPU 1 does not answer"},
    ],
)
def test_a_promise_that_does_not_hold(
    monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any]
) -> None:
    found = proof(monkeypatch, **answer)
    assert found["verdict"] == "broken"
    told = " ".join(text_of(found).split())
    assert "NCCL_P2P_DISABLE=1" in told
    assert "--disable-custom-all-reduce" in told
    assert "iommu=pt" in told
    assert any(x in told for x in ("kernel reads", "5 of 9", "does not answer"))


def test_no_promise_is_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = [pair(0, 1, promised=False), pair(1, 0, promised=False)]
    not_tried = {"good": False, "said": "not tried"}
    assert proof(monkeypatch, pairs=apart, together=not_tried)["verdict"] == "none"
    some = [pair(0, 1), pair(1, 0, promised=False)]
    assert proof(monkeypatch, pairs=some, together=not_tried)["verdict"] == "proved"
    assert peers.prove([], {}, 1)["verdict"] == "none"


def test_an_answer_of_another_form(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HarnessError):
        proof(monkeypatch, pairs=[{"from": 0}])


def bridge(folder: Path, control: int | None) -> None:
    """A PCI bridge; `control` None: this user may read only its first 64 bytes."""
    folder.mkdir(parents=True)
    (folder / "class").write_text("0x060400\n")
    data = bytearray(4096)
    struct.pack_into("<I", data, 0x100, 0x0001 | 1 << 16 | 0x150 << 20)
    struct.pack_into("<I", data, 0x150, peers.ACS | 1 << 16)
    struct.pack_into("<H", data, 0x156, control or 0)
    (folder / "config").write_bytes(data if control is not None else data[:64])


def test_the_facts_of_the_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert peers.facts(tmp_path)["iommu"] == ["off"]
    devices = tmp_path / "sys/bus/pci/devices"
    bridge(devices / "0000:00:01.0", 0x1D)
    bridge(devices / "0000:00:02.0", 0)
    group = tmp_path / "sys/kernel/iommu_groups/7"
    group.mkdir(parents=True)
    (group / "type").write_text("DMA-FQ\n")
    monkeypatch.setenv(peers.CHECK, "1")
    found = peers.facts(tmp_path)
    assert found == {
        "iommu": ["DMA-FQ"], "acs_bridges": ["0000:00:01.0"], peers.CHECK: "1"
    }  # fmt: skip
    bridge(devices / "0000:00:03.0", None)
    assert peers.facts(tmp_path)["acs_bridges"] is None
