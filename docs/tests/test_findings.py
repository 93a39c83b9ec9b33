"""The pages of the findings, and what a rule says about its tests.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from conftest import BUILD, TOP, Site
from generator import findings, rules, sources
from ipclab import findings as known
from ipclab.mutants import faults
from ipclab.mutants.faults import Fault
from test_verdicts import ROW, run

FOUND = known.read(TOP)
STALE = known.find(FOUND, "stale_handle")
TRIM = known.find(FOUND, "trim_to_largest")
PAGE = f"finding_{TRIM.number:02}"


def page(
    finding: known.Finding, *verdicts: str, with_security: bool = False
) -> tuple[str, dict[str, str]]:
    """The page of a finding, and the parts that it includes."""
    included = findings.parts([finding], with_security)
    recorded = run(*((x, "") for x in verdicts))
    for record in recorded.records:
        record["test"] = finding.entries[0]["test"]
    return findings.page(finding, [recorded], set(included)), included


def test_a_page_has_what_a_reader_needs() -> None:
    text, included = page(TRIM, "deviates", "deviates", "conforms")
    for said in (
        f"@page {PAGE} Finding {TRIM.number:02}: cudaMemPoolTrimTo with SIZE_MAX",
        "> minBytesToKeep: If the pool has less than minBytesToKeep reserved",
        "> cudaMemPoolTrimTo, CUDA 13.0",
        "| **Severity** | wrong number |",
        "| **Workaround** | Pass a number",
        "| **Seen on** | driver 580.159.04 on H100 and H200 |",
        "| **Rules** | @ref rule_SOMA_17",
        "| **Reported** | not yet |",
        '@ref rule_SOMA_17 "SOMA-17" | 2 of 3 |',
        f"@include {PAGE}.cu",
    ):
        assert said in text, said
    assert included[f"{PAGE}.cu"] == TRIM.file("cu").read_text()


def test_what_is_not_recorded_yet_is_said(tmp_path: Path) -> None:
    (tmp_path / "12_trim_to_largest").mkdir()
    copy = dataclasses.replace(TRIM, folder=tmp_path / "12_trim_to_largest")
    copy.file("cu").write_text("int main() {}\n")
    assert "is not recorded yet" in page(copy, "deviates")[0]
    copy.file("out").write_text("NVIDIA H200: exit code 1\n")
    text, included = page(copy, "deviates")
    assert f"@verbinclude {PAGE}.out" in text
    assert included[f"{PAGE}.out"] == "NVIDIA H200: exit code 1\n"


def test_a_matter_of_security_is_held_back() -> None:
    text, included = page(STALE, "deviates")
    assert included == {}
    assert "@include" not in text and "@ref security" in text
    marked = [x["evidence"] for x in STALE.entries if x.get("security")]
    assert marked and not any(x.split(":")[1][:40] in text for x in marked)
    text, included = page(STALE, "deviates", with_security=True)
    program = f"finding_{STALE.number:02}.cu"
    assert f"@include {program}" in text and program in included
    assert all(x.split(":")[1][:40] in text for x in marked)


def test_the_worst_finding_stands_first_on_the_list() -> None:
    evidence = rules.Evidence(set(), {}, [], [], [run(("conforms", ""))])
    text = findings.pages(FOUND, {"rows": [ROW]}, evidence, ())["findings.dox"]
    numbers = [line[2:4] for line in text.splitlines() if "@ref finding_" in line]
    assert numbers == [f"{x.number:02}" for x in FOUND]
    assert "Of 1 rules that a recorded machine could judge, 1 hold" in text


@pytest.mark.parametrize(
    ("verdict", "said"), [("conforms", False), ("not applicable", True)]
)
def test_a_rule_says_if_only_the_model_has_judged_it(verdict: str, said: bool) -> None:
    evidence = rules.Evidence(set(), {}, [], [], [run((verdict, ""))])
    rule = rules.rule_page(ROW, {"MUST": "documented guarantee"}, evidence)
    group = rules.group_page("LMEM", [ROW], evidence)
    assert ("so far it is judged on the reference model only" in rule) is said
    assert ("(judged on the reference model only)" in group) is said


def test_a_rule_links_to_the_lines_of_its_tests(tmp_path: Path) -> None:
    folder = tmp_path / "01_a"
    folder.mkdir()
    source = '// a < b\n\nTEST(A, B) {\n  covers("LMEM-01");\n}\n'
    (folder / "a_test.cu").write_text(source)
    (folder / "faults.cc").write_text('\n  fault("a-fault", {"LMEM-01"},\n')
    fault = Fault(
        *("a-fault", "named", "cudaFree", None, "breaks it"),
        rows=("LMEM-01",),
        file=f"{tmp_path.name}/01_a/faults.cc",
    )
    places = sources.places(tmp_path, [fault])
    assert places == {
        "A.B": "tests/01_a_test.html#L3",
        "a-fault": "tests/01_faults.html#L2",
    }
    shown = sources.pages(tmp_path)["01_a_test.html"]
    assert '<span id="L1">// a &lt; b</span>' in shown
    assert '<span id="L3">TEST(A, B) {</span>' in shown
    evidence: dict[str, Any] = {"tests": {"LMEM-01": ["A.B"]}, "places": places}
    made = rules.Evidence(set(), faults=[fault], deviations=[], runs=[], **evidence)
    text = rules.rule_page(ROW, {"MUST": "documented guarantee"}, made)
    assert '<a href="tests/01_a_test.html#L3"><code>A.B</code></a>' in text
    assert '<a href="tests/01_faults.html#L2"><code>a-fault</code></a>' in text


def test_every_named_fault_is_shown_where_it_is_declared() -> None:
    named = [x for x in faults.known(BUILD) if x.kind == faults.NAMED]
    places = sources.places(TOP / "conformance", named)
    assert {x.name for x in named} <= set(places)


def test_every_link_to_a_test_leads_to_its_first_line(site: Site) -> None:
    for test, address in sources.places(TOP / "conformance").items():
        file, _, anchor = address.partition("#")
        suite, name = test.split(".")
        shown = f'<span id="{anchor}">TEST({suite}, {name}) {{</span>'
        assert shown in (site.folder / file).read_text(), test
