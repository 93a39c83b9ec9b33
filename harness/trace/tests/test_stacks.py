"""--stacks: a finding shows where in the program its calls are."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from pathlib import Path

import pytest
from traced import PROGRAMS, Traced, trace

from ipclab.trace import files, stacks
from ipclab.trace.findings import Finding
from ipclab.trace.story import replay

SOURCE = Path(__file__).parent / "programs" / "lifetimes.cu"


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    folder = tmp_path_factory.mktemp("stacks") / "trace"
    return trace(folder, [PROGRAMS, "freed-while-open", "wrong"], "--stacks")


def located(folder: Path) -> Finding:
    """The finding of a trace, with its places as they are found now."""
    return stacks.located(replay(files.read(folder)).findings)[0]


def line_of(text: str) -> int:
    lines = SOURCE.read_text().splitlines()
    return next(i for i, line in enumerate(lines, start=1) if text in line)


def test_a_finding_shows_its_line_its_callers_and_the_api(traced: Traced) -> None:
    freed, opened = traced.document["findings"][0]["places"]
    line = line_of("if (wrong) CUDA_CHECK(cudaFree(data));")
    assert freed.startswith("cudaFree at ")
    assert f"lifetimes.cu:{line} in frees_early(" in freed
    assert "called from " in freed
    assert " in main" in freed
    assert opened.startswith("cudaIpcOpenMemHandle at ")
    assert f"lifetimes.cu:{line_of('void* data = borrow(channel);')} in " in opened
    assert "    cudaFree at " in traced.output
    assert "lifetimes.cu" in (traced.folder / "trace.html").read_text("utf-8")


def test_without_symbols_it_shows_module_and_offset(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks.shutil, "which", lambda _: None)
    freed = located(traced.folder).places[0]
    assert freed.startswith("cudaFree at trace_programs!+0x")


def test_a_module_that_has_changed_is_not_read(traced: Traced, tmp_path: Path) -> None:
    for path in traced.folder.glob("*.trace"):
        text = path.read_text().replace('"modified":', '"modified":1')
        (tmp_path / path.name).write_text(text)
    assert located(tmp_path).places[0].startswith("cudaFree at trace_programs!+0x")


def test_without_the_option_there_are_none(tmp_path: Path) -> None:
    found = trace(tmp_path / "trace", [PROGRAMS, "freed-while-open", "wrong"])
    assert found.document["findings"][0]["places"] == []
    text = "".join(x.read_text() for x in found.folder.glob("*.trace"))
    assert '"what":"stack"' not in text
