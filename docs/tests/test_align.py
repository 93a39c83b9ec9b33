"""Each step of a lesson's trace is laid on the line of the program that makes it.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import re

import pytest

from conftest import TOP
from generator import align, diagrams, traces
from ipclab.trace.sequence import Step

PROGRAM = """\
bool tries() {
  cudaIpcGetMemHandle(&handle, nullptr);
}
int exporter(Channel& channel) {
  tries();
  void* data = allocate_values(kCount);
  for (int i = 0; i < 2; i++) {
    add<<<1, 1>>>(data);
    cudaDeviceSynchronize();
  }
  channel.send("handle", handle);
  share(channel);
  cudaFree(data);
}
int importer(Channel& channel) {
  channel.receive("handle");
  cudaFree(nullptr);
}
int main() {
  require_ipc();
}
"""
COMMON = """\
template <class T>
void share(T& channel) {
  channel.send("pool", 1);
}
inline void* allocate_values(int count) {
  cudaMalloc(&data, count);  // cudaHostAlloc would not do
}
inline void require_ipc() {
  cudaMalloc(&data, 1);
  cudaIpcGetMemHandle(&handle, data);
  cudaFree(data);
}
"""


def call(text: str, who: str = "exporter", kind: str = "call", to: str = "") -> Step:
    return Step(who, kind, text, to=to)


def lines(*steps: Step, first: str = "exporter") -> list[tuple[int | None, int | None]]:
    found = align.places(steps, PROGRAM, COMMON, first)
    return [(place.line, place.other) for place in found]


def test_steps_go_down_the_program_of_their_role() -> None:
    told = lines(
        call("cudaMalloc"),
        call("kernel add", kind="kernel"),
        call("cudaDeviceSynchronize"),
        call("handle", kind="message", to="importer"),
        call("cudaFree", "importer"),
        call("cudaFree"),
    )
    assert told == [(6, None), (8, None), (9, None), (11, 16), (17, None), (13, None)]


def test_a_loop_goes_back() -> None:
    again = [call("kernel add", kind="kernel"), call("cudaDeviceSynchronize")]
    assert [x for x, _ in lines(*again, *again)] == [8, 9, 8, 9]


def test_a_function_of_the_lesson_stands_where_it_is_called() -> None:
    refused = call("cudaIpcGetMemHandle", kind="refused")
    asked = [call(f"cuda{x}") for x in ("Malloc", "IpcGetMemHandle", "Free")]
    found = lines(*asked, refused, call("cudaMalloc"))
    assert [line for line, _ in found] == [20, 20, 20, 2, 6]


def test_a_message_may_have_its_name_in_a_helper() -> None:
    assert lines(call("pool", kind="message", to="importer"))[0][0] == 12


def test_who_does_not_come_through_main_does_not_ask_the_machine() -> None:
    asked = [call("cudaMalloc"), call("cudaIpcGetMemHandle")]
    assert [x for x, _ in lines(*asked, first="importer")] == [6, 2]


def test_what_no_line_can_be_is_on_none() -> None:
    assert lines(call("cudaHostAlloc")) == [(None, None)]
    assert lines(call("cudaMalloc", "stranger"), first="stranger") == [(20, None)]
    assert align.places([call("cudaMalloc")], "", "") == [align.Place(None)]


# The ranks of 72 and 76 talk through a library of their own headers.
LESSONS = [x.name for x in sorted((TOP / "samples").glob("[0-6]*"))]


@pytest.mark.parametrize("lesson", LESSONS)
def test_nearly_every_step_of_a_lesson_has_its_line(lesson: str) -> None:
    program, common = traces.sources(lesson)
    steps, where = diagrams.located(traces.read(lesson), program, common)
    text = program.splitlines()
    lost = []
    for step, place in zip(steps, where, strict=False):
        if place.line is None and step.kind not in ("death", "more"):
            lost.append(step.sentence)
        elif place.line and step.kind == "kernel" and not place.helper:
            assert re.search(r"<<<|\w\(", text[place.line - 1]), step.sentence
    assert len(lost) <= 2, lost
