"""The pictures of a lesson show what its trace has, as its source writes it.

SPDX-License-Identifier: Apache-2.0
"""

import gzip
import json
import re
from pathlib import Path

import pytest

from generator import diagrams, traces
from ipclab.trace import files, pictures
from ipclab.trace.sequence import Step

TOP = Path(__file__).resolve().parents[2]
LESSONS = [path.name for path in sorted((TOP / "samples").glob("[0-9]*"))]


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_has_a_picture_that_fits(lesson: str) -> None:
    recorded = traces.read(lesson)
    drawn = traces.steps(recorded, "".join(traces.sources(lesson)))
    assert len(drawn) >= 5, "too little to draw; record it again: ci/docs --trace"
    picture = pictures.sequence(drawn, recorded.names, "title", {})
    assert not re.search(r'[xy12]="-?[\d.]*\.', picture), "coordinates are whole pixels"
    assert not recorded.story.unmatched, "an import whose export is not in the trace"
    ends = {process.how for process in recorded.story.trace.processes}
    assert ends <= {"exit 0", "killed by SIGKILL", "killed by SIGTERM"}, ends


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_picture_is_of_the_lesson_as_it_is(lesson: str) -> None:
    """Its kernels have the names that stand in the source today."""
    text = "".join(traces.sources(lesson))
    for step in traces.steps(traces.read(lesson), text):
        if step.kind == "kernel":
            name = step.text.removeprefix("kernel ")
            assert name in text, f"no kernel {name}: record it again: ci/docs --trace"


@pytest.mark.parametrize(
    ("lesson", "told"),
    [
        ("01_legacy_memory", "exporter sends handle to importer"),
        ("05_legacy_refusals", "cudaIpcOpenMemHandle (CUDA_ERROR_"),
        ("30_vmm_fd", "importer: cuMemImportFromShareableHandle"),
        ("05_legacy_refusals", "cudaIpcGetMemHandle (CUDA_ERROR_INVALID_VALUE)"),
        ("10_event_handle", "cudaEventQuery (not ready)"),
        ("51_pool_stream_order", "importer: cudaMemcpyAsync"),
        ("61_namespaces", "importer: cuMemImportFromShareableHandle"),
        ("62_importer_dies", "importer: killed by SIGKILL"),
        ("63_exporter_dies", "exporter: killed by SIGKILL"),
        ("70_handle_cache", "importer: cudaIpcOpenMemHandle"),
        ("75_unrelated_processes", "importer 2: killed by SIGKILL"),
    ],
)
def test_a_picture_shows_what_its_page_says(lesson: str, told: str) -> None:
    sentences = [
        x.sentence
        for x in traces.steps(traces.read(lesson), "".join(traces.sources(lesson)))
    ]
    assert any(told in sentence for sentence in sentences), sentences


@pytest.mark.parametrize(
    ("name", "text", "written"),
    [
        ("cuIpcGetMemHandle", "cudaIpcGetMemHandle(", "cudaIpcGetMemHandle"),
        ("cuIpcGetMemHandle", "DRIVER(cuIpcGetMemHandle)", "cuIpcGetMemHandle"),
        ("cuMemcpyDtoH", "cudaMemcpy(", "cudaMemcpy"),
        ("cuMemsetD32Async", "cudaMemsetAsync(", "cudaMemsetAsync"),
        ("cuMemFree", "cudaFree(", "cudaFree"),
        ("cuMemMap", "DRIVER(cuMemMap)", "cuMemMap"),
        ("cuDevicePrimaryCtxRetain", "cudaFree(", ""),
    ],
)
def test_calls_have_the_names_of_the_source(name: str, text: str, written: str) -> None:
    assert traces.as_written(name, text) == written


def test_every_call_of_a_picture_leads_to_its_reference() -> None:
    drawn = [Step("a", "call", "cudaFree")]
    assert "<a href" not in pictures.sequence(drawn, ["a"], "title")
    linked = pictures.sequence(drawn, ["a"], "title", {"cudaFree": "u#v"})
    assert '<a href="u#v">' in linked


def test_a_long_name_stays_in_its_box() -> None:
    drawn = [Step("a", "call", "c" * 99, times=7)]
    [text] = re.findall(
        r'<text class="call"[^>]*>([^<]*)', pictures.sequence(drawn, ["a"], "")
    )
    assert len(text) == 40 and text.endswith("… ×7")  # noqa: RUF001


def test_the_caption_says_where_it_was_recorded() -> None:
    recorded = traces.read("01_legacy_memory")
    figure = diagrams.figure(recorded, *traces.sources("01_legacy_memory"), {})
    assert f"Drawn from a trace of this lesson: {recorded.machine}." in figure
    assert figure.count("<svg") == 2  # its memory, too


def test_a_lesson_without_a_trace_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(traces.Missing, match="ci/docs --trace 01_x"):
        traces.read("01_x", tmp_path)


def test_what_is_kept_reads_the_same(tmp_path: Path) -> None:
    """Only declarations of calls that nobody made are left out."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    lines = [
        {"what": "process", "format": 1, "process": 1, "parent": 0, "began": 5,
         "forked": False, "command": ["x"]},
        {"what": "calls", "first": 0, "calls": [["cuInit"], ["cuMemFree", "p"]]},
        [1, 2, 0, 0, 1, 0, 77],
    ]  # fmt: skip
    (old / "1-5.trace").write_text("".join(json.dumps(x) + "\n" for x in lines))
    (old / "tracer.jsonl").write_text("")
    traces.keep(old, new, "here")
    kept = gzip.decompress((new / "1-5.trace.gz").read_bytes()).decode()
    assert "cuInit" not in kept
    [call] = files.read(new).entries
    assert isinstance(call, files.Call)
    assert (call.name, call.arguments) == ("cuMemFree", {"p": 77})
