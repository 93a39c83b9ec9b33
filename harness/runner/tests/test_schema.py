"""The schemas. Our checker must give the same answers as jsonschema."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import pytest

from conftest import LINE, Build
from ipclab import schema

ROLE = {
    "name": "importer",
    "pid": 4711,
    "ended": "reached its end",
    "last_step": None,
    "last_call": "cudaFree",
    "output": "",
}
FAILURE = {
    "role": "importer",
    "step": "handle",
    "call": "cudaIpcOpenMemHandle",
    "expected": "cudaSuccess",
    "seen": "cudaErrorInvalidValue (1)",
    "message": "it failed",
    "file": "a.cu",
    "line": 7,
}
OUTCOME = {
    "table": "cudaIpcOpenMemHandle of a damaged handle",
    "input": "byte 17 inverted",
    "outcome": "documented refusal",
    "code": "cudaErrorInvalidValue",
}
RECEIVE = {
    "t_us": 1,
    "role": "importer",
    "kind": "receive",
    "text": "handle",
    "from": "exporter",
    "bytes": 64,
}
DEVIATION = {
    "requirement": "LMEM-01",
    "test": "Suite.Name",
    "severity": "wrong code",
    "failures": [{"check": "cudaFree(data)", "seen": ["cudaSuccess"], "steps": ["a"]}],
    "vendor": "nvidia",
    "driver": {"from": "580.0", "to": "580.999"},
    "gpus": ["H200"],
    "evidence": "seen",
    "owner": "platform",
    "expires": "2027-06-30",
}
FULL: dict[str, Any] = {
    "version": 2,
    "ctest": "conformance.01_legacy_memory.Suite.Name",
    "suite": "conformance",
    "lesson": "01_legacy_memory",
    "kind": "MUST",
    "verdict": "deviates",
    "backend": "cuda",
    "fingerprint": "abc",
    "deviation": DEVIATION,
    "attempt": 1,
    **LINE,
    "notes": ["seen"],
    "failures": [FAILURE],
    "roles": [ROLE],
    "timeline": [RECEIVE],
}


def both(value: Any, of: schema.Schema = schema.RECORD) -> str | None:
    """Our answer, after a check that jsonschema gives the same."""
    ours = schema.error(value, of)
    theirs = jsonschema.Draft202012Validator(of).is_valid(value)
    assert (ours is None) == theirs, ours
    return ours


def test_schema_is_a_schema_and_splits() -> None:
    jsonschema.Draft202012Validator.check_schema(schema.RECORD)
    assert set(schema.ADDED) < set(schema.RECORD["properties"])
    assert set(schema.LINE["required"]) == set(LINE)
    assert both(LINE, schema.LINE) is None
    assert both(FULL) is None


@pytest.mark.parametrize("field", sorted(FULL))
def test_each_field_is_needed_and_has_a_type(field: str) -> None:
    record = copy.deepcopy(FULL)
    record[field] = {"wrong": True}
    assert f"record.{field}" in (both(record) or "")
    del record[field]
    assert both(record) == f"record.{field}: is missing"


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (["outcomes"], {}, "record.outcomes"),
        (["outcomes", 0, "outcome"], "refused", "record.outcomes[0].outcome"),
        (["outcomes", 0, "input"], "", "record.outcomes[0].input: is empty"),
        (["outcomes", 0, "code"], 1, "record.outcomes[0].code"),
        (["version"], 3, "record.version: 3 is none of 1, 2"),
        (["version"], True, "record.version"),
        (["attempt"], 0, "record.attempt: 0 is below 1"),
        (["attempt"], 1.5, "record.attempt"),
        (["attempt"], True, "record.attempt"),
        (["verdict"], "flaky", "record.verdict"),
        (["outcome"], "observed", "record.outcome"),
        (["outcome"], None, "record.outcome"),
        (["kind"], "MAY", "record.kind"),
        (["ctest"], "", "record.ctest: is empty"),
        (["duration_ms"], -1, "record.duration_ms"),
        (["notes", 0], 3, "record.notes[0]"),
        (["roles", 0, "pid"], "4711", "record.roles[0].pid"),
        (["roles", 0, "more"], 1, "record.roles[0].more: there is no such field"),
        (["failures", 0, "line"], "7", "record.failures[0].line"),
        (["timeline", 0, "kind"], "think", "record.timeline[0].kind"),
        (["timeline", 0, "t_us"], -1, "record.timeline[0].t_us"),
        (["deviation", "vendor"], "amd", "record.deviation.vendor"),
        (["deviation", "driver"], "580", "record.deviation.driver"),
        (["deviation", "expires"], "soon", "record.deviation.expires"),
        (["more"], 1, "record.more: there is no such field"),
    ],
)
def test_bad_values_are_named(path: list[Any], value: Any, says: str) -> None:
    record = copy.deepcopy({**FULL, "outcomes": [OUTCOME]})
    part: Any = record
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    assert says in (both(record) or "")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["attempt"], 1.0),
        (["duration_ms"], 3),
        (["deviation"], None),
        (["deviation", "driver"], None),
        (["kind"], None),
        (["failures", 0, "file"], None),
        (["outcomes"], []),
        (["outcomes"], [OUTCOME, {**OUTCOME, "outcome": "hang", "code": None}]),
    ],
)
def test_good_values_are_taken(path: list[Any], value: Any) -> None:
    record = copy.deepcopy(FULL)
    part: Any = record
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    assert both(record) is None


@pytest.mark.parametrize("value", [None, 3, "x", [], [FULL]])
def test_what_is_no_record_at_all(value: Any) -> None:
    assert both(value) is not None


def test_every_record_of_a_run_keeps_to_it(build: Build) -> None:
    build.conformance("record()", "Suite.A", "LMEM-01")
    build.conformance("pass", "Suite.B", "LMEM-02")
    build.conformance("record(outcome='lifted', reason='x')", "Suite.C", "LIM-01")
    build.conformance("record(duration_ms=-1)", "Suite.D", "OBS-01")
    build.conformance("record()", "Suite.E", "NEW-01")
    build.conformance("record()", "Suite.F", None)
    build.sample("pass")
    build.sample("sys.exit(3)", "02_other")
    build.deviation(requirement="LIM-01")
    found = build.run().records
    assert len(found) == 8
    for record in found:
        assert both(record) is None


@pytest.fixture
def run(build: Build) -> dict[str, Any]:
    """run.json of a real run."""
    build.deviation()
    build.conformance("record()")
    return build.run().json


def test_a_run_keeps_to_its_schema(run: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema.RUN)
    assert both(run, schema.RUN) is None
    assert set(schema.RUN["required"]) == set(run)
    assert set(schema.RUN["properties"]) == set(run) | {"judged", "explored"}
    for field in run:
        rest = {x: y for x, y in run.items() if x != field}
        assert both(rest, schema.RUN) == f"record.{field}: is missing"
        assert f"record.{field}" in (both({**run, field: 1.5}, schema.RUN) or "")


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (["state"], "over", "record.state"),
        (["filtered"], 1, "record.filtered"),
        (["filtered"], "yes", "record.filtered"),
        (["selected"], True, "record.selected"),
        (["counts", "conforms"], "1", "record.counts.conforms"),
        (["requirements", "LMEM-01"], "text", "record.requirements.LMEM-01"),
        (["requirements", "X"], {"kind": "MUST"}, "requirements.X.statement"),
        (["manifest", "records"], {"count": 1}, "manifest.records.bytes"),
        (["manifest", "tests", "a"], 1, "manifest.tests.a"),
        (["manifest", "programs", "a"], [], "manifest.programs.a"),
        (["manifest", "more"], 1, "manifest.more: there is no such field"),
    ],
)
def test_bad_values_of_a_run_are_named(
    run: dict[str, Any], path: list[str], value: Any, says: str
) -> None:
    part = run
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    assert says in (both(run, schema.RUN) or "")
