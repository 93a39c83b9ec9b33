"""The pages of documented sentences.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import re
from dataclasses import replace

from generator import coverage, rules
from ipclab.catalogue import Entry, Guide, Ledger

JUDGED = Entry("cudaFree", "It frees …", "00000001", None, None, ("LMEM-01",), None)
OPEN = Entry("cudaFree", "At once.", "00000002", "13.5", None, (), "untested")
IDLE = Entry("cudaFree", "See cudaMalloc.", "00000003", None, "13.4", (), "refers")
CITED = Entry("cudaMalloc", "Not cleared.", "00000004", None, None, ("LMEM-01",), None)
CLAIM = replace(JUDGED, topic="4.15", says="Handles go anywhere.")
UNSEEN = replace(CLAIM, topic="4.16", rows=("LMEM-02",))
LEDGER = Ledger(
    ["13.0", "13.5"],
    re.compile("cudaFree"),
    {
        "untested": {"class": "open", "says": "No test yet."},
        "refers": {"class": "no claim", "says": "It leads on."},
    },
    {"cudaFree": [JUDGED, OPEN, IDLE], "cudaMalloc": [CITED]},
    {"LMEM-01": "MUST", "LMEM-02": "MUST"},
    frozenset({"LMEM-01"}),
    (Guide("Guide", "13.x", (CLAIM, UNSEEN), "the last chapter"),),
)
PAGES = coverage.pages(LEDGER)


def test_sentences_are_counted_for_the_oldest_and_the_newest_toolkit() -> None:
    text = PAGES["coverage.dox"]
    assert re.search(r"\| judged: .* \| 1 \| 1 \| 1 \|", text)
    assert re.search(r"\| on the model: .* \| 0 \| 0 \| 1 \|", text)
    assert "can be judged** | **100.0 %** | **50.0 %** | **50.0 %** |" in text
    assert "model only** | **0.0 %** | **0.0 %** | **50.0 %** |" in text
    assert "| No test yet. | cudaFree (1) |" in text
    assert "| no claim | It leads on. |" in text


def test_each_sentence_of_the_subject_is_shown() -> None:
    text = PAGES["coverage_sentences.dox"]
    assert '| It frees … | judged | @ref rule_LMEM_01 "LMEM-01" |' in text
    assert "| At once. | open <br>since 13.5 | No test yet. |" in text
    assert "| See cudaMalloc. | no claim <br>until 13.4 | It leads on. |" in text
    assert '| Not cleared. | judged | @ref rule_LMEM_01 "LMEM-01" |' in text


def test_the_claims_of_a_guide_are_shown() -> None:
    text = PAGES["coverage_guides.dox"]
    line = '| 4.15 | Handles go anywhere. | judged | @ref rule_LMEM_01 "LMEM-01" |'
    assert line in text
    assert "| 4.16 | Handles go anywhere. | on the model |" in text
    assert "Nobody has read: the last chapter" in text


def test_a_rule_leads_to_its_sentences() -> None:
    evidence = rules.Evidence(set(), {}, [], [], [], {"LMEM-01": [JUDGED]})
    row = {"id": "LMEM-01", "statement": "It is.", "kind": "MUST", "source": ""}
    text = rules.rule_page({**row, "lessons": []}, {"MUST": "documented"}, evidence)
    assert '| **Documented** | @ref coverage_cudaFree "cudaFree" |' in text
