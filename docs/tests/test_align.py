"""Each step of a lesson's trace is assigned to the line of the program that makes it.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import functools
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
class Channel {
  void send(const char* step, const T& value) {
    sendmsg(socket, step, 0);
  }
  T receive(const char* step) { return recvmsg(socket, step, 0); }  // and waits
};
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
    found = align.places(steps, PROGRAM, [COMMON], first)
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


def test_a_helper_may_belong_to_a_class_and_a_function_to_a_type() -> None:
    program = "void f(Way way) {\n  way.make();\n}\nint main() {\n  f<Pool>(way);\n}\n"
    common = "struct Way {\n  void make() { cudaMalloc(&data, 4); }\n};\n"
    common += "struct Pool {\n  void make() {\n    cudaMemset(data, 0, 4);\n  }\n};\n"
    steps = [call("cudaMalloc"), call("cudaMemset")]
    found = align.places(steps, program, [common])
    assert [(place.line, place.helper) for place in found] == [(2, "make")] * 2


def test_a_message_may_have_its_name_in_a_helper() -> None:
    assert lines(call("pool", kind="message", to="importer"))[0][0] == 12


def test_who_does_not_come_through_main_does_not_ask_the_machine() -> None:
    asked = [call("cudaMalloc"), call("cudaIpcGetMemHandle")]
    assert [x for x, _ in lines(*asked, first="importer")] == [6, 2]


def test_what_no_line_can_be_is_on_none() -> None:
    assert lines(call("cudaHostAlloc")) == [(None, None)]
    assert lines(call("cudaMalloc", "stranger"), first="stranger") == [(20, None)]
    assert align.places([call("cudaMalloc")], "") == [align.Place(None)]


LESSONS = [x.name for x in sorted((TOP / "samples").glob("[0-9]*"))]


@functools.cache
def located(lesson: str) -> list[tuple[Step, align.Place]]:
    steps, where = diagrams.located(traces.read(lesson), traces.sources(lesson))
    return list(zip(steps, where, strict=True))


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_step_of_a_lesson_has_its_line(lesson: str) -> None:
    text = traces.sources(lesson).program.splitlines()
    lost = []
    for step, place in located(lesson):
        if step.kind in ("death", "more"):
            continue
        if place.line is None or (step.to and place.other is None):
            lost.append(step.sentence)
        elif step.kind == "kernel" and not place.helper:
            assert re.search(r"<<<|\w\(", text[place.line - 1]), step.sentence
    assert not lost


@pytest.mark.parametrize(
    ("lesson", "told", "code"),
    [
        ("21_suballocation_leak", "kernel forge", ["forge<<<kBlock"]),
        ("71_pytorch_tensor", "cudaMemcpyFromSymbol", ["wrong_so_far()"]),
        ("71_pytorch_tensor", "cudaMemcpyToSymbol", ["wrong_so_far()"]),
        ("72_all_reduce", "kernel push_and_sum", ["all_reduce<float>("]),
        ("72_all_reduce", "kernel sum_in_two_phases", ["all_reduce<float>("]),
        ("72_all_reduce", "place", ["Ranks ranks(argv"]),
        ("72_all_reduce", "cudaGraphLaunch", ["cudaGraphLaunch(replay"]),
        (
            "73_cost_of_sharing",
            "cudaIpcOpenMemHandle",
            ["CUDA_CHECK(cudaIpcOpenMemHandle(", "ask(channel)"],
        ),
        ("74_pipeline", "cuStreamWaitValue32", ["wait_for(stream, ring."]),
        (
            "74_pipeline",
            "cuStreamWriteValue32",
            ["write(stream, ring.", "write(other, ring.taken(c)"],
        ),
        ("75_unrelated_processes", "message", ["send_packet(connection, &input"]),
        (
            "76_mpi_ranks",
            "gather",
            ["see_gpus_in", "all_gather(card)", "say_in_turn(", "barrier()", "finish("],
        ),
    ],
)
def test_a_step_is_on_a_line_that_makes_it(
    lesson: str, told: str, code: list[str]
) -> None:
    """All steps with that text are on these lines, and each line has a step."""
    text = traces.sources(lesson).program.splitlines()
    met = [text[p.line - 1] for s, p in located(lesson) if s.text == told and p.line]
    assert {x for x in code if any(x in line for line in met)} == set(code)
    assert not [line for line in met if not any(x in line for x in code)]


def test_a_helper_of_the_lesson_may_have_the_name_of_a_common_one() -> None:
    """A helper of samples/common does not call the lesson's helper of the same name."""
    program = (
        'int main() {\n  wait("end");\n  wait_for(stream);\n  other.finish();\n}\n'
    )
    common = "inline void wait_for(int fd) {\n  poll(fd);\n}\n"
    common += "inline void wait(int fd) {\n  wait_for(fd);\n}\n"
    own = "inline void wait_for(Stream s) {\n  DRIVER(cuStreamWaitValue32)(s);\n}\n"
    [place] = align.places([call("cuStreamWaitValue32")], program, [common, own])
    assert place.line == 3


def test_a_function_of_the_lesson_is_not_the_helper_of_that_name() -> None:
    program = "void finish(int all) {\n  cudaFree(all);\n}\n"
    program += "int main() {\n  finish(all);\n  child.finish(3);\n}\n"
    common = "int finish(int mine) {\n  cudaDeviceSynchronize();\n}\n"
    steps = [call("cudaFree"), call("cudaDeviceSynchronize")]
    assert [x.line for x in align.places(steps, program, [common])] == [2, 6]


def test_a_constructor_is_called_by_a_declaration() -> None:
    program = "int main() {\n  Ranks ranks(argv, 2);\n  cudaFree(nullptr);\n}\n"
    common = "class Ranks {\n  explicit Ranks(char** argv) : rank(0) {\n"
    common += "    cudaMalloc(&data, 4);\n  }\n};\n"
    steps = [call("cudaMalloc"), call("cudaFree")]
    assert [x.line for x in align.places(steps, program, [common])] == [2, 3]


def test_a_second_call_of_a_helper_is_on_its_second_line() -> None:
    program = "int main() {\n  a = allocate(1);\n  b = allocate(2);\n}\n"
    common = "void* allocate(int n) {\n  cudaMalloc(&data, n);\n  cudaMemset(n);\n}\n"
    steps = [call("cudaMalloc"), call("cudaMemset")] * 2
    assert [x.line for x in align.places(steps, program, [common])] == [2, 2, 3, 3]


def test_a_step_has_the_name_that_its_line_has() -> None:
    program = "int main() {\n  cudaMemcpyFromSymbol(&a, b, 4);\n}\n"
    step = Step("exporter", "copy", "cudaMemcpy", driver="cuMemcpyDtoH")
    [place] = align.places([step], program)
    assert (place.line, place.name) == (2, "cudaMemcpyFromSymbol")
