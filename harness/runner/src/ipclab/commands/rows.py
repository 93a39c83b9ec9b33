"""`ipclab explain`, `rules`, `findings` and `catalogue`: what the suite knows."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
from pathlib import Path

from ipclab import model
from ipclab.commands.options import Commands, console, programs, source_tree


def add(commands: Commands) -> None:
    """Add the four commands."""
    what = commands.add_parser(
        "explain",
        help="what an error, a call or a symptom means here, and what to do",
        description="Explains what you paste: a code of CUDA, a line of a log of "
        "PyTorch, vLLM, NCCL or UCX, an errno, the name of a call, a switch, a kind of "
        "memory, a symptom (hang, slow, docker), a finding of `ipclab trace`.",
        epilog="exit code: 0, or 2 if nothing is known about the words; then it says "
        "what is near",
    )
    what.add_argument(
        "words",
        metavar="WORDS",
        nargs="*",
        help="cudaErrorInvalidDevice, 101, CUDA error: invalid argument, hang; - reads "
        "standard input (default: list everything)",
    )
    what.add_argument("--json", action="store_true", help="print it as JSON")
    what.set_defaults(call=explain)
    law = commands.add_parser("rules", help="the rows, their tests and faults")
    law.add_argument("row", metavar="ROW", nargs="?", help="explain this row: LMEM-08")
    law.add_argument(
        "--results",
        metavar="DIR",
        type=Path,
        default=None,
        help="verdicts of this run (default: results/latest)",
    )
    law.add_argument(
        "--json",
        action="store_true",
        help="all rows, with the paragraph of each test, as one JSON document",
    )
    source_tree(law)
    law.set_defaults(call=rules)
    shown = commands.add_parser(
        "findings",
        help="where this driver contradicts its documentation",
        description="Lists the findings that were measured on this machine's driver. "
        "With --run it runs the small program of each of them.",
        epilog="exit code: 0 listed, or no program shows its fault, 1 a program shows "
        "its fault, 2 usage, 3 a program ended in another way",
    )
    shown.add_argument(
        "names",
        metavar="FINDING",
        nargs="*",
        help="only these, by number or name: 12, trim_to_largest",
    )
    shown.add_argument(
        "--all", action="store_true", help="also the findings of other drivers"
    )
    shown.add_argument("--run", action="store_true", help="run their programs")
    shown.add_argument(
        "--record",
        action="store_true",
        help="with --run: write what each program printed into docs/findings",
    )
    shown.add_argument(
        "--backend",
        choices=model.BACKENDS,
        default="auto",
        help="where the programs run: a GPU or the reference model; auto: a GPU if "
        "there is a driver (default: auto)",
    )
    source_tree(shown)
    shown.set_defaults(call=findings)
    documents = commands.add_parser(
        "catalogue",
        help="does a toolkit's documentation still say what the rows are based on?",
        description="Compares conformance/sentences.json with the headers of a CUDA "
        "toolkit: which sentences are unchanged, changed, moved, gone or "
        "new, and what covers each.",
        epilog="exit code: 0 every sentence is unchanged, 1 something is different, 2 "
        "usage, "
        "3 sentences.json cannot be read",
    )
    documents.add_argument(
        "headers",
        metavar="INCLUDE",
        type=Path,
        help="the toolkit's include folder: /usr/local/cuda/include",
    )
    documents.add_argument(
        "--old",
        metavar="INCLUDE",
        type=Path,
        default=None,
        help="the include folder of an older toolkit: its old sentences are shown "
        "in full",
    )
    documents.add_argument(
        "--coverage",
        action="store_true",
        help="every sentence, with the rows that judge or observe it or the reason "
        "why none does",
    )
    documents.add_argument(
        "--runs",
        metavar="RESULTS",
        nargs="+",
        type=Path,
        default=(),
        help="also list the sentences whose function no test of their rows called "
        "in these runs",
    )
    documents.add_argument(
        "--write",
        action="store_true",
        help="with --runs: write the rows that these runs judged on GPUs into "
        "conformance/judged.json",
    )
    programs(documents)
    documents.set_defaults(call=catalogue)


def explain(options: argparse.Namespace) -> int:
    """Say what an error code means."""
    from ipclab import explain

    return explain.run(options.words, options.json)


def rules(options: argparse.Namespace) -> int:
    """List the rows, or explain one."""
    from ipclab import rules

    return rules.run(options.build, options.row, options.results, options.json)


def findings(options: argparse.Namespace) -> int:
    """List the findings, or run their programs."""
    from ipclab import findings

    return findings.run(
        findings.Request(
            options.build,
            tuple(options.names),
            options.all,
            options.run,
            options.record,
            options.backend,
        )
    )


def catalogue(options: argparse.Namespace) -> int:
    """Compare sentences.json with a toolkit."""
    from ipclab import catalogue, ctest

    return catalogue.run(
        console(),
        ctest.source_folder(options.build),
        options.headers,
        options.old,
        options.coverage,
        options.runs,
        options.write,
    )
