"""The pictures of a lesson show its trace, with the names in its source.

SPDX-License-Identifier: Apache-2.0
"""

import functools
import gzip
import json
import re
from html import escape
from pathlib import Path
from types import SimpleNamespace

import pytest

from generator import diagrams, traces
from ipclab.trace import files, pictures, sequence
from ipclab.trace.sequence import Step

TOP = Path(__file__).resolve().parents[2]
LESSONS = [path.name for path in sorted((TOP / "samples").glob("[0-9]*"))]

# A trace takes half a second to read, and many tests look at the same one.
read = functools.cache(traces.read)


@functools.cache
def steps(lesson: str) -> list[Step]:
    """The steps of the picture of a lesson."""
    return traces.steps(read(lesson), traces.sources(lesson).text)


@functools.cache
def figure(lesson: str) -> str:
    """The picture of a lesson, with its controls."""
    return diagrams.figure(read(lesson), traces.sources(lesson), {})


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_has_a_picture_that_fits(lesson: str) -> None:
    recorded, drawn = read(lesson), steps(lesson)
    assert len(drawn) >= 5, "too little to draw; record it again: ci/docs --trace"
    picture = pictures.sequence(drawn, recorded.names, "title", {})
    assert not re.search(r'[xy12]="-?[\d.]*\.', picture), "coordinates are whole pixels"
    assert not recorded.story.unmatched, "an import whose export is not in the trace"
    ends = {process.how for process in recorded.story.trace.processes}
    assert ends <= {"exit 0", "killed by SIGKILL", "killed by SIGTERM"}, ends


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_picture_is_of_the_lesson_as_it_is(lesson: str) -> None:
    """The kernels of the picture have their current names in the source."""
    text = traces.sources(lesson).text
    for step in steps(lesson):
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
    sentences = [x.sentence for x in steps(lesson)]
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
    assert len(text) == 37 and text.endswith("… ×7")  # noqa: RUF001


def memory_rows(lesson: str) -> list[str]:
    """The texts of a picture of memory, line by line."""
    picture = pictures.memory(read(lesson).story, "")
    return re.findall(r'<text class="(?:block|who|at|count)"[^>]*>([^<]*)', picture)


def test_a_descriptor_keeps_memory_when_nobody_has_a_handle() -> None:
    rows = memory_rows("32_vmm_lifetime")
    assert "descriptor" in rows
    counts = [int(x) for x in rows[rows.index("references") + 1 :]]
    assert counts[-1] == 0 and all(counts[:-1]), counts


def test_only_what_ends_with_a_killed_process_has_a_cross() -> None:
    """In lesson 63 these are two allocations and a mapping, but no descriptor."""
    lesson = read("63_exporter_dies")
    assert pictures.memory(lesson.story, "").count('class="cross"') == 3


@pytest.mark.parametrize("lesson", ["03_reference_count", "70_handle_cache"])
def test_a_text_stands_in_its_bar_or_after_it(lesson: str) -> None:
    picture = pictures.memory(read(lesson).story, "")
    bars = re.findall(
        r'<rect class="\w+" x="(\d+)" y="\d+" width="(\d+)"[^>]*/>'
        r'<text class="at" x="(\d+)" y="\d+">([^<]*)',
        picture,
    )
    assert len(bars) > 1
    width = int(re.findall(r'<svg class="memory"[^>]* width="(\d+)"', picture)[0])
    for left, wide, at, text in bars:
        end = int(at) + pictures.LETTER * len(text)
        inside = int(at) > int(left) and end <= int(left) + int(wide)
        assert inside or int(at) >= int(left) + int(wide), text
        assert end <= width, text


def test_the_caption_says_where_it_was_recorded() -> None:
    recorded, drawn = read("01_legacy_memory"), figure("01_legacy_memory")
    assert f"Drawn from a trace of this lesson: {recorded.machine}." in drawn
    assert drawn.count("<svg") == 2  # also of its memory


@pytest.mark.parametrize("lesson", ["01_legacy_memory", "04_many_importers"])
def test_a_narrow_screen_has_every_step_in_a_list(lesson: str) -> None:
    drawn = figure(lesson)
    [listed] = re.findall(r'<ol class="stack".*?</ol>', drawn)
    items = re.findall(r'<li class="(\w+) lane-(\d)">(.*?)</li>', listed)
    assert len(items) == drawn.count('class="step"')
    sent = [text for kind, _, text in items if kind == "message"]
    assert sent and all("\N{RIGHTWARDS ARROW} <b>" in text for text in sent)
    [processes] = re.findall(r'class="sequence steps lanes-(\d)"', drawn)
    assert {int(lane) for _, lane, _ in items} == set(range(int(processes)))


def test_memory_has_a_name_that_the_page_explains() -> None:
    """A block's number is its place in the picture, not its number in the trace."""
    lesson = "70_handle_cache"
    drawn = figure(lesson)
    blocks = re.findall(r'<text class="block"[^>]*>([^<]*)', drawn)
    assert len(blocks) > 3
    for i, name in enumerate(blocks, 1):
        assert name == f"block {i}, 4 MiB, cudaMalloc"
    assert not re.search(r"\bmemory \d", drawn)
    for word in ("A block is memory", "the first bar is the owner", "References"):
        assert word in drawn, "no legend"


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_step_names_the_memory_that_it_concerns(lesson: str) -> None:
    drawn = figure(lesson)
    groups = re.findall(
        r'<g class="group" data-memory="(\d+)">\s*<text class="block"[^>]*>([^<,]*)',
        drawn,
    )
    named = dict(groups)
    steps = re.findall(r'data-told="([^"]*)" data-memory="(\d+)"', drawn)
    assert bool(named) == bool(steps)
    for told, number in steps:
        assert told.endswith(f": {named[number]}"), told


@pytest.mark.parametrize(
    ("sent", "size", "told"),
    [
        (b"handle\0" + bytes(64), 71, "handle, 64 bytes"),
        (b"closed\0", 7, "closed"),
        (b"\1\2\3\4", 4, "message, 4 bytes"),
        (b"no end", 6, "no end, 6 bytes"),
    ],
)
def test_a_message_has_the_size_of_what_it_brings(
    sent: bytes, size: int, told: str
) -> None:
    """The name at the start of a message does not count: a handle has 64 bytes."""
    facts = {"bytes": sent.hex(), "size": size, "descriptors": []}
    event = SimpleNamespace(process=SimpleNamespace(name="a"), facts=facts)
    step = sequence._message(event, SimpleNamespace(name="b"), 0)  # type: ignore[arg-type]
    assert ", ".join(filter(None, (step.text, step.detail))) == told


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_death_is_drawn(lesson: str) -> None:
    """Each death of a trace is in the picture, even if other steps are left out."""
    recorded, drawn = read(lesson), figure(lesson)
    found = diagrams.located(recorded, traces.sources(lesson))[0]
    deaths = [x for x in found if x.kind == "death"]
    assert drawn.count('class="death"/>') + drawn.count('rect class="death') >= len(
        deaths
    )
    for death in deaths:
        assert f'data-told="{escape(death.sentence)}"' in drawn


def test_a_death_far_below_has_a_gap_before_it() -> None:
    """In lesson 74 the producer writes the word of a consumer that was killed."""
    drawn = figure("74_pipeline")
    told = re.findall(r'data-told="([^"]*)"', drawn)
    [gap] = [i for i, text in enumerate(told) if re.search(r"… \d+ steps later", text)]
    [death] = [i for i, text in enumerate(told) if "killed by SIGKILL" in text]
    assert diagrams.MOST_STEPS <= gap < death
    assert any("cuStreamWriteValue32" in text for text in told[gap:death])
    numbers = re.findall(r'data-step="(\d+)"', drawn)
    assert numbers == [str(i) for i in range(len(told))]


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
