"""The answers of recorded machines are on the pages of rules and results.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conftest import TOP
from generator import (
    chapters,
    costs,
    documents,
    lessons,
    machines,
    recorded,
    rules,
    verdicts,
)
from ipclab import requirements
from ipclab.errors import UsageError
from ipclab.mutants.faults import Fault

ROW = {
    "id": "LMEM-01",
    "statement": "Memory is readable.",
    "kind": "MUST",
    "source": "cudaIpcOpenMemHandle",
    "lessons": ["01_legacy_memory", "99_planned"],
}
TODAY = {"LMEM-01"}  # the rows of the catalogue
SAME = "In every test they answered in the same way."
DEVIATION = {
    "requirement": "LMEM-01",
    "driver": {"from": "580.0", "to": "580.9"},
    "evidence": "Measured on one H200.",
    "expires": "2027-11-30",
}


def run(*found: tuple[str, str]) -> recorded.Run:
    """A recorded machine with one test for each (verdict, reason)."""
    records = [
        {
            "ctest": f"conformance.01_legacy_memory.A.B{i}",
            "suite": "conformance",
            "lesson": "01_legacy_memory",
            "requirement": "LMEM-01",
            "test": f"A.B{i}",
            "kind": "MUST",
            "verdict": verdict,
            "reason": reason,
            "deviation": DEVIATION if verdict == "deviates" else None,
        }
        for i, (verdict, reason) in enumerate(found)
    ]
    about = {
        "backend": "cuda",
        "machine": "NVIDIA H200, driver 580.1",
        "started": "2026-11-21T10:00:00+00:00",
        "fingerprint": {
            **{"os": "Ubuntu", "kernel": "6.1"},
            **{"runtime_version": 13000, "gpus": [{}]},
        },
    }
    return recorded.Run("h200", about, records)


def section(*runs: recorded.Run, deviations: list[dict[str, Any]] | None = None) -> str:
    evidence = rules.Evidence(
        {"01_legacy_memory"},
        {"LMEM-01": ["A.B"]},
        [Fault("a-fault", "named", "cudaFree", None, "breaks it", rows=("LMEM-01",))],
        deviations or [],
        list(runs),
    )
    return rules.rule_page(ROW, {"MUST": "documented guarantee"}, evidence)


def test_a_departure_of_two_tests_is_told_once() -> None:
    entries = [{**DEVIATION, "test": test} for test in ("A.B", "A.C")]
    one = [{**DEVIATION, "driver": {"from": "580.1", "to": "580.1"}}]
    assert section(deviations=entries).count("Measured on one H200.") == 1
    assert "(Known for driver 580.1; to be looked at again by 2027-11-30.)" in section(
        deviations=one
    )


def test_a_rule_names_the_rules_that_it_follows_from() -> None:
    evidence = rules.Evidence(set(), {}, [], [], [])
    row = {**ROW, "kind": "DERIVED", "follows_from": ["LMEM-06"]}
    text = rules.rule_page(row, {"DERIVED": "judged"}, evidence)
    assert '| **Follows from** | @ref rule_LMEM_06 "LMEM-06" |' in text
    assert "Follows from" not in section()


def test_a_rule_shows_all_that_is_known_of_it() -> None:
    text = section(run(("conforms", "")), deviations=[DEVIATION])
    for part in (
        "@page rule_LMEM_01 LMEM-01: Memory is readable",
        "> Memory is readable.",
        "MUST: documented guarantee",
        "cudaIpcOpenMemHandle",
        "`A.B`",
        "| `a-fault` | breaks it |",
        "| **NVIDIA H200, driver 580.1, CUDA 13.0** |",
        '<span class="verdict conforms">',
        "our wording of: cudaIpcOpenMemHandle",
        "Measured on one H200. (Known for drivers 580.0 to 580.9; ",
        "@ref lesson_01 |",
    ):
        assert part in text
    assert "lesson_99" not in text


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        ([("conforms", ""), ("conforms", "")], "conforms"),
        ([("conforms", ""), ("violates", "x")], "1 conforms, 1 violates"),
        ([], ""),
    ],
)
def test_verdicts_that_differ_are_counted(
    found: list[tuple[str, str]], shown: str
) -> None:
    assert rules.verdict(run(*found), "LMEM-01") == shown


def test_a_group_of_rules_counts_the_machines_of_each_answer() -> None:
    one, other = run(("conforms", "")), run(("conforms", ""), ("deviates", ""))
    conforms = '<span class="verdict conforms">conforms</span>'
    assert rules.answers([one, one], "LMEM-01") == conforms
    told = rules.answers([one, one, other], "LMEM-01")
    assert f"{conforms} 2" in told
    assert '<span class="verdict deviates">1 conforms, 1 deviates</span> 1' in told
    assert rules.answers([], "LMEM-01") == ""


def test_results_tell_what_a_reader_should_know() -> None:
    page = verdicts.page(
        [run(("conforms", ""), ("deviates", "raw text"), ("violates", "it | was not"))],
        TODAY,
    )
    assert "| chapter | conforms | violates | deviates |" in page
    assert '<a href="machines/h200/report.html">report</a>' in page
    assert "| **all** | **1** | **1** | **1** |" in page
    assert "Measured on one H200." in page and "raw text" not in page
    told = '`B2` @ref lesson_01 "lesson\N{NO-BREAK SPACE}01"'
    assert f'{told} | <span class="verdict violates' in page
    assert "| it \\| was not |" in page
    assert "`B0`" not in page  # it conforms
    assert "cannot show" not in page


def test_results_tell_what_could_not_be_judged() -> None:
    needs = ("not applicable", "needs 2 GPUs")
    page = verdicts.page([run(needs, ("conforms", ""), needs)], TODAY)
    assert '| needs 2 GPUs | @ref rule_LMEM_01 "LMEM-01" |' in page


def test_results_of_an_older_catalogue_are_shown() -> None:
    """A recorded run may lack tests, and may judge rows that no longer exist."""
    older = replace(run(("conforms", "")), name="older")
    newer = run(("conforms", ""), ("conforms", ""), ("lifted", "no limit"))
    page = verdicts.page([newer, older], TODAY)
    assert "Tests of each machine: h200 3, older 1." in page
    assert SAME in page and "`B1`" not in page
    page = verdicts.page([newer, older], ())
    assert "LMEM-01 (no rule today)" in page and "@ref rule_" not in page


def test_costs_are_told_with_their_ratio() -> None:
    cost = {"call": "a", "with_pool": "b", "mib": 2, "us": 30, "with_pool_us": 4}
    text = costs.part({"machine": "one H200", "rounds": 21, "costs": [cost]})
    assert "Medians of 21 rounds in one run of `pool_bench` on one H200" in text
    assert "| a | b | 2 MiB | 30.0 us | 4.0 us | 7.5 |" in text


def test_no_machine_is_no_result() -> None:
    assert "No machine is recorded yet." in verdicts.page([], TODAY)


def test_links_of_documents_lead_to_pages_or_name_files() -> None:
    made = documents.LINK.sub(
        documents._link, "[a](../samples/README.md) [b](x/y.md) [c](https://d)"
    )
    assert made == '@ref lessons "a" b (`x/y.md`) [c](https://d)'


def test_a_chapter_without_lessons_is_left_out() -> None:
    lesson = {
        "lesson": "70_pipeline",
        "title": "T",
        "gpus": 2,
        "needs": "",
        "profile": "two-gpus",
        "builds_on": [],
    }
    page = chapters.page([lesson], {"70_pipeline": "It <b>shows</b>."})
    assert "<h2>Patterns</h2>\n\n- 70 @subpage lesson_70 <br>\n" in page
    assert "It <b>shows</b>. " in page and "minutes, first, 2 GPUs<" in page
    assert "Legacy" not in page


def test_the_level_of_a_lesson_is_its_longest_chain() -> None:
    known = [
        {"lesson": "00_a", "builds_on": []},
        {"lesson": "01_b", "builds_on": ["00_a"]},
        {"lesson": "02_c", "builds_on": ["00_a", "01_b"]},
    ]
    assert chapters.depths(known) == {"00_a": 0, "01_b": 1, "02_c": 2}


def test_a_lesson_without_a_brief_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "samples/01_x").mkdir(parents=True)
    (tmp_path / "samples/01_x/x.dox").write_text("@page lesson_01 X\n")
    with pytest.raises(recorded.Missing, match=r"01_x/x\.dox: no @brief"):
        lessons.briefs(tmp_path, [{"lesson": "01_x"}])


def test_a_lesson_without_changes_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(recorded.Missing, match=r"01_x/x\.try\.json: no changes to try"):
        lessons.changes(tmp_path, "01_x")


def test_what_dot_cannot_draw_is_one_clear_error() -> None:
    with pytest.raises(recorded.Missing, match="dot cannot draw the map"):
        chapters.inline_svg("digraph {", "map", "map")


def test_the_command_is_told_with_all_options() -> None:
    page = documents.runner()
    assert "@section runner_run ipclab run" in page
    assert "| `--repeat N` |" in page and "| `--backend {auto,cuda,model}` |" in page


def test_a_rule_that_is_not_documented_is_not_called_so() -> None:
    observed = {**ROW, "kind": "OBSERVE"}
    told = rules.origin(observed)
    assert "not promised by the documentation" in told and "wording" not in told


def test_the_title_of_a_rule_is_short_and_whole() -> None:
    long = {**ROW, "statement": "A handle (an old one) " + "is opened " * 20 + "; x."}
    title = rules.summary(long)
    assert len(title) <= rules.LONGEST_TITLE + 1 and title.endswith("…")
    assert "(" not in title
    cut = {**ROW, "statement": f"A handle of {'old ' * 12}memory is at the address"}
    assert rules.summary(cut).endswith("memory…"), rules.summary(cut)


def test_a_rule_says_how_it_is_tested() -> None:
    told = {"A.One": "It exports 1 << 20 bytes.", "02_other/A.Two": "It is read."}
    tests = {"LMEM-01": ["A.One", "A.Two"]}
    evidence = rules.Evidence(set(), tests, [], [], [], places={"A.One": "x.html#L1"})
    page = rules.rule_page({**ROW, "tests": told}, {"MUST": "judged"}, evidence)
    assert (
        '<a href="x.html#L1"><code>A.One</code></a>\n\n'
        "It exports 1 &lt;&lt; 20 bytes.\n\n`A.Two`\n\nIt is read.\n\n"
    ) in page


def test_a_conclusion_names_its_source_once() -> None:
    row = {**ROW, "kind": "DERIVED", "source": "consequence of cudaFree"}
    assert rules.origin(row).endswith("our conclusion from: cudaFree")


def test_results_excuse_no_other_driver() -> None:
    """A record may have an older deviation, which named more drivers than today."""
    page = verdicts.page([run(("deviates", ""))], TODAY)
    assert "Measured on one H200." in page and "580.9" not in page


def fault(name: str, result: str) -> dict[str, Any]:
    """A fault of a kill matrix; the tests of LMEM-01 ran with it."""
    cell = {
        "row": "LMEM-01",
        "result": result,
        "test": "conformance.01_legacy_memory.A.B",
        "verdict": "violates" if result == "killed" else "conforms",
        "reason": "",
    }
    return {
        "name": name,
        "kind": "operator",
        "function": "cudaFree",
        "operator": "noop",
        "what": "does nothing",
        "profile": None,
        "result": result,
        "left": 0,
        "tests": 1,
        "fired": 1,
        "note": "",
        "cells": [cell],
        "why": "",
        "wrong": result != "killed",
    }


KILLS: dict[str, Any] = {
    "version": 2,
    "suite": "conformance",
    "backend": "cuda",
    "machine": "NVIDIA H200, driver 580.1",
    "made": "2026-11-22T10:00:00+00:00",
    "seconds": 1.5,
    "digest": "d",
    "partial": None,
    "problems": [],
    "unsound": [],
    "baseline": 1,
    "unproved": ["LMEM-01"],
    "rows": [
        {
            **{x: ROW[x] for x in ("id", "statement", "kind")},
            "lesson": "01_legacy_memory",
        }
    ],
    "faults": [fault("a-fault", "killed"), fault("cudaFree.late", "survived")],
}


def test_a_recorded_machine_shows_its_kill_matrix() -> None:
    told = verdicts.page([replace(run(("conforms", "")), kills=KILLS)], TODAY)
    assert "2 faults were put in front of this driver" in told
    assert "| killed | 1 | a test failed: the fault was noticed |" in told
    assert "| `cudaFree.late` | does nothing | survived |" in told
    assert "`a-fault`" not in told
    assert 'No fault made these rules fail here: @ref rule_LMEM_01 "LMEM-01"' in told
    assert "not the whole matrix" not in told
    part = {**KILLS, "partial": "-k LMEM"}
    told = verdicts.page([replace(run(("conforms", "")), kills=part)], TODAY)
    assert "This is not the whole matrix: -k LMEM." in told


def test_a_machine_without_a_kill_matrix_says_so() -> None:
    told = verdicts.page([run(("conforms", ""))], TODAY)
    assert "in front of this driver, one at a time" not in told
    assert "No kill matrix of this machine is recorded" in told
    assert "mutants.html" not in told
    rule = section(run(("conforms", "")))
    assert "No recorded machine has a kill matrix yet." in rule
    assert "mutants.html" not in rule


def test_a_rule_says_which_faults_its_tests_noticed_on_a_machine() -> None:
    rule = section(replace(run(("conforms", "")), kills=KILLS))
    assert "| fault | what it breaks | NVIDIA H200, driver 580.1, CUDA 13.0 |" in rule
    assert "| `a-fault` | breaks it | killed |" in rule
    assert "the tests of this rule noticed 1 fault:" in rule
    assert '<a href="machines/h200/mutants.html">kill matrix</a>' in rule
    assert "No recorded machine" not in rule
    other = {**KILLS, "faults": [fault("cudaFree.late", "killed")]}
    rule = section(replace(run(("conforms", "")), kills=other))
    assert "| `a-fault` | breaks it | not run |" in rule
    none = {**KILLS, "faults": [fault("a-fault", "survived")]}
    rule = section(replace(run(("conforms", "")), kills=none))
    assert "| `a-fault` | breaks it | survived |" in rule
    assert "the tests of this rule noticed no faults:" in rule


def recorded_folder(into: Path, kills: dict[str, Any] | None) -> Path:
    """A recorded machine as docs/results/README.md describes one."""
    folder = into / "h200-580.159"
    shutil.copytree(TOP / "docs/results/h200-580.159", folder)
    if kills is not None:
        (folder / "mutants.json").write_text(json.dumps(kills))
    return folder


@pytest.mark.parametrize("kills", [None, KILLS])
def test_every_file_that_a_machine_has_is_there(
    tmp_path: Path, kills: dict[str, Any] | None
) -> None:
    found = recorded.runs([recorded_folder(tmp_path, kills)])
    machines.write(found, tmp_path)
    links = re.findall(r'href="(machines/[^"]*)"', verdicts.page(found, TODAY))
    assert links and all((tmp_path / link).is_file() for link in links)
    assert ("machines/h200-580.159/mutants.html" in links) == (kills is not None)
    report = (tmp_path / "machines/h200-580.159/report.html").read_text()
    assert ('id="matrix"' in report) == (kills is not None)
    if kills:
        page = (tmp_path / "machines/h200-580.159/mutants.html").read_text()
        assert "cudaFree.late" in page and "LMEM-01" in page


@pytest.mark.parametrize(
    ("change", "why"),
    [({"backend": "model"}, "made with --backend model"), ({"rows": []}, "is missing")],
)
def test_a_kill_matrix_of_something_else_is_one_clear_error(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    folder = recorded_folder(tmp_path, {**KILLS, **change})
    with pytest.raises((recorded.Missing, UsageError), match=why):
        recorded.runs([folder])


def test_machines_stand_side_by_side_differences_first() -> None:
    one, other = run(("conforms", "")), run(("not applicable", "needs 2 GPUs"))
    page = verdicts.page([one, replace(other, name="other")], TODAY)
    differ = page.index("Where they differ")
    assert differ < page.index("Where the answer is not the documented one")
    cells = (
        '<span class="verdict conforms">conforms</span> | '
        '<span class="verdict not-applicable">not applicable</span>'
    )
    assert cells in page[differ:]
    assert "machines/h200-other.html" in page
    assert SAME in verdicts.page([one, replace(one, name="other")], TODAY)


def test_machines_of_two_suites_are_never_in_one_table() -> None:
    one, other = run(("conforms", "")), run(("not applicable", "needs 2 GPUs"))
    new = {**other.about["fingerprint"], "runtime_version": 12040}
    other = replace(other, name="old", about={**other.about, "fingerprint": new})
    page = verdicts.page([one, other], TODAY)
    assert "@section results_suite_13000_1 One GPU, programs of CUDA 13.0" in page
    assert "@section results_suite_12040_1 One GPU, programs of CUDA 12.4" in page
    assert "Where they differ" not in page and "machines/h200-old.html" not in page
    assert page.count("@subsection results_") == 4  # two suites: answers, and a machine
    assert other.machine == "NVIDIA H200, driver 580.1, CUDA 12.4"
    assert machines.pairs([one, other]) == []


def test_lessons_are_counted_apart() -> None:
    told = run(("conforms", ""), ("conforms", ""))
    told.records[1]["suite"] = "sample"
    assert "| **all** | **1** |" in verdicts.page([told], TODAY)


def test_a_machine_can_be_taken_along_as_a_table() -> None:
    lines = machines.rows_csv(run(("conforms", "a\nb"))).splitlines()
    assert lines[0] == "test,rule,kind,lesson,verdict,reason"
    assert lines[1].startswith("A.B0,LMEM-01,") and lines[1].endswith("conforms,a b")


def test_every_group_of_rules_has_a_title() -> None:
    """GROUPS has the prefix of every row's id."""
    rows = requirements.read(TOP / "conformance")
    assert {name.split("-")[0] for name in rows} == set(rules.GROUPS)
