"""The mistake of each small program is found, and nothing in its corrected version."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from traced import ON_GPU, PROGRAMS, Traced, cases, trace

from ipclab.trace.findings import RULES

CASES = cases()
PROFILES = {"no-path-to-owner": "no-peer"}  # the others: two-gpus
Traces = dict[tuple[str, str], "Future[Traced]"]


def machine(name: str) -> Sequence[str]:
    """The options that say where a program runs."""
    if ON_GPU:
        return ()
    return ("--backend", "model", "--profile", PROFILES.get(name, "two-gpus"))


@pytest.fixture(scope="module")
def traces(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Traces:
    """All requested programs, traced side by side."""
    asked = {
        str(item.callspec.params["name"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and "traces" in item.fixturenames
    }
    top: Path = tmp_path_factory.mktemp("traces")
    with ThreadPoolExecutor(max(2, min(8, os.cpu_count() or 2))) as pool:
        return {
            (name, which): pool.submit(
                trace, top / f"{name}.{which}", [PROGRAMS, name, which], *machine(name)
            )
            for name in CASES
            if name in asked
            for which in ("right", "wrong")
        }


def of(traces: Traces, name: str, which: str) -> Traced:
    """The trace of a program, unless this machine lacks the GPUs that it needs."""
    traced = traces[name, which].result()
    if ON_GPU and traced.code == 77:
        pytest.skip(traced.output.partition("SKIP: ")[2].splitlines()[0])
    return traced


@pytest.mark.nightly(6, "name")
@pytest.mark.parametrize("name", CASES)
def test_the_mistake_is_found(traces: Traces, name: str) -> None:
    traced = of(traces, name, "wrong")
    assert traced.code == 0, traced.output
    assert traced.rules == {name.partition(".")[0]}, traced.output


@pytest.mark.nightly(6, "name")
@pytest.mark.parametrize("name", CASES)
def test_nothing_is_found_in_its_twin(traces: Traces, name: str) -> None:
    traced = of(traces, name, "right")
    assert traced.code == 0, traced.output
    assert traced.document["findings"] == [], traced.output
    assert traced.document["unmatched_imports"] == 0
    assert any(process["recorder"] for process in traced.document["processes"])


def test_every_rule_has_a_program() -> None:
    assert {name.partition(".")[0] for name in CASES} == set(RULES)
