"""A diagram shows what was recorded: causes before effects, nothing of the harness.

SPDX-License-Identifier: Apache-2.0
"""

import re
from pathlib import Path
from typing import Any

import pytest

from generator import diagrams, recorded

TOP = Path(__file__).resolve().parents[2]
LESSONS = [path.name for path in sorted((TOP / "samples").glob("[0-9]*"))]
RECORDED = recorded.traces(recorded.recorded_folders())
KEPT = recorded.kept(TOP / "docs/traces.jsonl")


def entry(t_us: int, role: str, kind: str, text: str, **more: Any) -> dict[str, Any]:
    return {"t_us": t_us, "role": role, "kind": kind, "text": text, **more}


def told(*timeline: dict[str, Any]) -> list[str]:
    return [step.sentence() for step in diagrams.steps(timeline)]


def test_an_arrow_stands_before_what_its_sender_did_next() -> None:
    assert told(
        entry(1, "a", "call", "cudaIpcGetMemHandle(&handle, data)"),
        entry(2, "a", "send", "handle", bytes=64),
        entry(3, "a", "call", "cudaFree(data)"),
        entry(9, "b", "receive", "handle", bytes=64, **{"from": "a"}),
    ) == [
        "a calls cudaIpcGetMemHandle",
        "a sends handle of 64 bytes to b",
        "a calls cudaFree",
    ]


def test_clocks_do_not_put_an_effect_before_its_cause() -> None:
    assert told(
        entry(1, "b", "receive", "go", bytes=0, **{"from": "a"}),
        entry(2, "b", "call", "cudaFree(data)"),
        entry(5, "a", "call", "cudaMalloc(&data, bytes)"),
        entry(6, "a", "send", "go", bytes=0),
    ) == ["a calls cudaMalloc", "a sends go to b", "b calls cudaFree"]


def test_roles_that_write_to_each_other_at_once_are_drawn() -> None:
    lines = told(
        entry(1, "a", "send", "x", bytes=0),
        entry(1, "b", "send", "y", bytes=0),
        entry(2, "a", "receive", "y", bytes=0, **{"from": "b"}),
        entry(2, "b", "receive", "x", bytes=0, **{"from": "a"}),
    )
    assert sorted(lines) == ["a sends x to b", "b sends y to a"]


def test_checks_of_the_harness_are_told_in_words() -> None:
    assert told(
        entry(1, "a", "call", "cudaFree(nullptr)"),
        entry(2, "a", "call", "cudaMemcpyToSymbol(mismatches, &found, sizeof found)"),
        entry(3, "a", "call", "count_mismatches<<<>>>"),
        entry(4, "a", "call", "cudaGetLastError()"),
        entry(5, "a", "call", "cudaDeviceSynchronize()"),
        entry(6, "a", "call", "cudaMemcpyFromSymbol(&found, mismatches, sizeof found)"),
        entry(7, "a", "call", "DRIVER(cuMemRelease)(handle_)"),
        entry(8, "a", "call", "DRIVER(cuMemRelease)(other)"),
        entry(9, "a", "end", "killed by SIGKILL"),
    ) == [
        "a: checks every value",
        "a calls cuMemRelease 2 times",
        "a: killed by SIGKILL",
    ]


def test_rounds_are_told_once() -> None:
    timeline = []
    for i in range(4):
        timeline += [
            entry(4 * i, "a", "send", "look", bytes=0),
            entry(4 * i + 1, "b", "receive", "look", bytes=0, **{"from": "a"}),
            entry(4 * i + 2, "b", "call", "cudaStreamQuery(stream)"),
        ]
    assert told(*timeline) == [
        "a sends look to b",
        "b calls cudaStreamQuery",
        "the same 3 times more",
    ]


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_has_a_picture_that_fits(lesson: str) -> None:
    listed = (TOP / "conformance" / lesson / "CMakeLists.txt").read_text()
    named = re.search(r"DRAWN_FROM (\S+)\)", listed)
    assert named, "its test CMakeLists.txt says what the picture is drawn from"
    trace = recorded.trace([*RECORDED, *KEPT], lesson, named[1])
    drawn = diagrams.steps(trace.timeline)
    assert len(drawn) >= 5, "too little to draw; name another test in DRAWN_FROM"
    picture = diagrams.svg(drawn, trace.roles, "title", {})
    for text in re.findall(r'<text class="call"[^>]*>([^<]*)', picture):
        assert len(text) <= diagrams.NOTE_CHARACTERS
    assert not re.search(r'[xy12]="-?[\d.]*\.', picture), "coordinates are whole pixels"


def test_every_call_of_a_picture_leads_to_its_reference() -> None:
    drawn = [diagrams.Step("a", "call", "cudaFree")]
    assert "<a href" not in diagrams.svg(drawn, ["a"], "title", {})
    assert '<a href="u#v">' in diagrams.svg(drawn, ["a"], "title", {"cudaFree": "u#v"})


def test_a_long_name_stays_in_its_box() -> None:
    drawn = [diagrams.Step("a", "call", "c" * 99, times=7)]
    [text] = re.findall(
        r'<text class="call"[^>]*>([^<]*)', diagrams.svg(drawn, ["a"], "", {})
    )
    assert len(text) == diagrams.NOTE_CHARACTERS and text.endswith(
        f"… {diagrams.TIMES}7"
    )


def test_only_a_passing_run_is_drawn() -> None:
    record = {
        "lesson": "01_x",
        "test": "X.Y",
        "roles": [{"name": "a"}, {"name": "b"}],
        "timeline": [entry(1, "a", "call", "cudaFree(x)")],
    }
    about = {"backend": "cuda", "machine": "NVIDIA H200; a note"}
    good = recorded.Run("r", about, [{**record, "verdict": "conforms"}])
    bad = recorded.Run("r", about, [{**record, "verdict": "violates"}])
    assert recorded.trace(good.traces(), "01_x", "X.Y").machine == "NVIDIA H200"
    assert recorded.trace(good.traces(), "01_x", "").test == "X.Y"
    with pytest.raises(recorded.Missing, match=r"01_x: no recorded run of X\.Y"):
        recorded.trace(bad.traces(), "01_x", "X.Y")


def test_only_what_no_recorded_machine_shows_is_kept() -> None:
    shown = {(trace.lesson, trace.test) for trace in RECORDED}
    assert not shown & {(trace.lesson, trace.test) for trace in KEPT}, (
        "ci/docs --keep FOLDER drops them"
    )


def test_keeping_replaces_what_was_found_and_leaves_the_rest(tmp_path: Path) -> None:
    def one(lesson: str, machine: str) -> recorded.Trace:
        line = {**entry(1, "a", "call", "cudaFree(x)"), "unknown": 1}
        return recorded.Trace(lesson, "X.Y", machine, ["a"], [line])

    lessons = [{"lesson": x, "drawn_from": "X.Y"} for x in ("01_x", "02_x")]
    file = tmp_path / "traces.jsonl"
    recorded.keep(file, lessons, [], [one("01_x", "old"), one("02_x", "old")])
    recorded.keep(file, lessons, [], [one("02_x", "new")])
    assert [x.machine for x in recorded.kept(file)] == ["old", "new"]
    assert "unknown" not in file.read_text()
    before = file.read_text()
    with pytest.raises(recorded.Missing):
        recorded.keep(file, [*lessons, {"lesson": "03_x", "drawn_from": ""}], [], [])
    assert file.read_text() == before
    recorded.keep(file, lessons, [one("01_x", "recorded")], [])
    assert [x.machine for x in recorded.kept(file)] == ["new"]
