"""Tests that share processes: which start of their program runs them, and their
verdicts when that program ends."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import sys

from conftest import FAILURE, LINE, PRELUDE, Build

NAMES = ("Suite.A", "Suite.B", "Suite.C")

# Runs the tests of its filter, like GoogleTest.
PROGRAM = """
names = sys.argv[-1].removeprefix("--gtest_filter=").split(":")
with open({starts!r}, "a") as stream:
    stream.write(" ".join(names) + "\\n")
failed = False
for name in names:
    {body}
    record(test=name)
sys.exit(failed)
"""


def three(
    build: Build,
    body: str = "pass",
    own: tuple[str, ...] = (),
    alone: tuple[str, ...] = (),
) -> None:
    """Three tests of one program; all except those in `own` share processes, and those
    in `alone` run alone.
    """
    path = build.folder / "program.py"
    path.write_text(
        PRELUDE.format(line=json.dumps(LINE), failure=json.dumps(FAILURE))
        + PROGRAM.format(starts=str(build.root / "starts"), body=body)
    )
    for name in NAMES:
        full = f"conformance.01_legacy_memory.{name}"
        labels = "conformance;01_legacy_memory;gpu1;LMEM-01"
        labels += "" if name in own else ";shared"
        labels += ";alone" if name in alone else ""
        build.raw(
            f"add_test({full} {sys.executable} -IS {path} --gtest_filter={name})\n"
            f'set_tests_properties({full} PROPERTIES LABELS "{labels}" TIMEOUT 20)\n'
        )


def starts(build: Build) -> list[str]:
    """The tests for which the program was started, for each start."""
    return sorted((build.root / "starts").read_text().splitlines())


def test_tests_that_share_are_one_start(build: Build) -> None:
    three(build)
    outcome = build.run()
    assert outcome.code == 0, outcome.text
    assert starts(build) == ["Suite.A Suite.B Suite.C"]
    assert tuple(x["test"] for x in outcome.records) == NAMES


def test_apart_each_is_a_start(build: Build) -> None:
    three(build)
    outcome = build.run("--apart")
    assert outcome.code == 0, outcome.text
    assert starts(build) == list(NAMES)


def test_a_test_without_the_label_has_a_start_of_its_own(build: Build) -> None:
    three(build, own=("Suite.B",))
    assert build.run().code == 0
    assert starts(build) == ["Suite.A Suite.C", "Suite.B"]


def test_tests_that_run_alone_share_with_each_other(build: Build) -> None:
    three(build, alone=("Suite.A", "Suite.C"))
    assert build.run().code == 0
    assert starts(build) == ["Suite.A Suite.C", "Suite.B"]


def test_what_is_not_asked_for_is_not_run(build: Build) -> None:
    three(build)
    assert build.run("-k", "not B").code == 0
    assert starts(build) == ["Suite.A Suite.C"]


def test_each_repetition_is_a_start(build: Build) -> None:
    three(build)
    outcome = build.run("--repeat", "2")
    assert outcome.code == 0, outcome.text
    assert starts(build) == ["Suite.A Suite.B Suite.C"] * 2


def test_a_failure_concerns_its_own_test_alone(build: Build) -> None:
    three(
        build,
        "if name == 'Suite.A':\n"
        "        failed = True\n"
        "        record(test=name, outcome='violates', failures=[FAILURE])\n"
        "        continue",
    )
    outcome = build.run()
    verdicts = [x["verdict"] for x in outcome.records]
    assert (outcome.code, verdicts) == (1, ["violates", "conforms", "conforms"])


def test_an_exit_code_without_a_failure_is_a_contradiction(build: Build) -> None:
    three(build, "failed = name == 'Suite.C'")
    outcome = build.run()
    assert [x["verdict"] for x in outcome.records] == ["conforms"] * 2 + ["broken"]
    assert (
        "'conforms', but the program ended with exit 1" in outcome.records[2]["reason"]
    )


def test_a_program_that_ends_early_breaks_the_test_it_was_in(build: Build) -> None:
    three(build, "len(names) == 3 and name == 'Suite.B' and os.kill(os.getpid(), 9)")
    outcome = build.run()
    verdicts = {x["test"]: x["verdict"] for x in outcome.records}
    assert verdicts == dict(zip(NAMES, ("conforms", "broken", "conforms"), strict=True))
    reason = next(x["reason"] for x in outcome.records if x["test"] == "Suite.B")
    assert "killed by SIGKILL" in reason
    # C was never begun and gets its own start; B was begun and is not started again.
    assert starts(build) == ["Suite.A Suite.B Suite.C", "Suite.C"]


def test_what_is_left_behind_breaks_the_last(build: Build) -> None:
    three(
        build,
        "name == 'Suite.C' and subprocess.Popen(['sleep', '30'], "
        "stdin=-3, stdout=-3, stderr=-3)",
    )
    outcome = build.run()
    assert [x["verdict"] for x in outcome.records] == ["conforms"] * 2 + ["broken"]
    assert "left behind: sleep" in outcome.records[2]["reason"]
