"""A loop is shown once: for all processes together, or for each process.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import itertools
import random
import time

from ipclab.trace.sequence import Step, without_rounds

A, B = "exporter", "importer"


def made(*told: tuple[str, str]) -> list[Step]:
    """Steps from pairs of process and text, one after the other. `text>` is a message
    to B.
    """
    return [
        Step(who, "message" if text[-1] == ">" else "call", text, at,
             to=B if text[-1] == ">" else "")
        for at, (who, text) in enumerate(told)
    ]  # fmt: skip


def told(steps: list[Step]) -> list[str]:
    return [step.sentence for step in without_rounds(steps)]


def mixed(seed: int, count: int = 20) -> list[tuple[str, str]]:
    """Rounds of two processes, each in its own order, mixed at random."""
    lanes = {who: [(who, text) for text in texts] * count for who, texts in LOOPS}
    order = [who for who, lane in lanes.items() for _ in lane]
    random.Random(seed).shuffle(order)
    turns = {who: iter(lane) for who, lane in lanes.items()}
    return [next(turns[who]) for who in order]


LOOPS = ((A, ("wait", "add", "write")), (B, ("wait", "check")))


def test_equal_steps_are_one_with_their_number() -> None:
    assert told(made((A, "x"), *[(A, "poll")] * 7, (A, "y"))) == [
        "exporter: x",
        "exporter: poll, 7 times",
        "exporter: y",
    ]
    assert len(told(made(*[(A, "poll")] * 2))) == 2


def test_a_round_of_both_is_told_once() -> None:
    rounds = [(A, "ping>"), (B, "wait"), (B, "step")] * 9
    assert told(made(*rounds, (A, "end"))) == [
        "exporter sends ping> to importer",
        "importer: wait",
        "importer: step",
        "these 3 steps 8 times more",
        "exporter: end",
    ]


def test_processes_in_step_stay_together() -> None:
    rounds = [(A, "add"), (A, "write"), (B, "wait"), (B, "check")] * 9
    assert told(made(*rounds))[4:] == ["these 4 steps 8 times more"]


def test_rounds_that_mix_by_chance_are_told_for_each() -> None:
    for seed in range(50):
        steps = made(*mixed(seed))
        seen = without_rounds(steps)
        for who, texts in LOOPS:
            lane = [step.text for step in seen if step.who == who]
            assert lane == [*texts, f"these {len(texts)} steps 19 times more"], seed
        assert [step.at for step in seen] == sorted(step.at for step in seen)


def test_a_message_divides_the_rounds() -> None:
    """What comes before a message is never shown after it."""
    loop = [(A, "add"), (A, "write"), (B, "check"), (A, "add"), (A, "write")] * 3
    seen = told(made(*loop, (A, "go>"), *loop))
    [at] = [i for i, text in enumerate(seen) if "sends go>" in text]
    assert seen[:at] == seen[at + 1 :]
    assert any("times more" in text for text in seen[:at])


def test_no_step_gets_lost() -> None:
    steps = made(*itertools.chain.from_iterable(mixed(seed, 7) for seed in range(3)))
    counted = 0
    for step in without_rounds(steps):
        words = step.text.split()
        more = step.kind == "more"
        counted += int(words[1]) * int(words[3]) if more else step.times
    assert counted == len(steps)


def test_many_equal_steps_take_seconds() -> None:
    """20,000 frames of three calls, without a message. A search at each step needed
    hours."""
    began = time.process_time()
    calls = ("create", "record", "export")
    steps = [Step("one", "call", calls[x % 3], x) for x in range(60_000)]
    first, *rest = without_rounds(steps)
    assert time.process_time() - began < 10
    assert first.text == "create"
    assert [x.text for x in rest] == [*calls[1:], "these 3 steps 19999 times more"]
