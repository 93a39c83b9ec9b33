"""`ipclab mutants`."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ipclab.commands import suite
from ipclab.commands.options import Commands, console, leave_out, positive, programs
from ipclab.mutants import faults


def add(commands: Commands) -> None:
    """Add the command."""
    kill = commands.add_parser(
        "mutants",
        help="break the driver on purpose: does the suite notice the fault?",
        description="A library in front of the driver (the reference model or NVIDIA's "
        "driver) breaks one behaviour at a time. All tests run once without a fault; "
        "then each fault runs with the tests that it concerns. Each result is kept at "
        "once: a command that was stopped continues with --resume.",
        epilog="exit code: 0 every fault is noticed, every ok-* passes and every "
        "judged row was seen to fail, 1 otherwise, 2 usage, 3 the harness is broken or "
        "the command was stopped before its end",
    )
    kill.add_argument(
        "--faults", metavar="NAME", nargs="+", default=[], help="only these faults"
    )
    kill.add_argument(
        "--function",
        dest="functions",
        metavar="F",
        nargs="+",
        default=[],
        help="only faults of these functions, such as cudaIpcOpenMemHandle",
    )
    only = kill.add_mutually_exclusive_group()
    only.add_argument(
        "--operators",
        dest="kind",
        action="store_const",
        const=faults.OPERATOR,
        help="only the systematic faults",
    )
    only.add_argument(
        "--named",
        dest="kind",
        action="store_const",
        const=faults.NAMED,
        help="only the other faults",
    )
    only.add_argument(
        "--legal",
        dest="kind",
        action="store_const",
        const=faults.LEGAL,
        help="only legal answers (ok-…) that no test at all may flag (`everywhere` of "
        "faults.json), each with all tests that call its function",
    )
    kill.add_argument(
        "--shard",
        metavar="K/N",
        type=_shard,
        default=None,
        help="run only part K of N equal parts",
    )
    kill.add_argument(
        "--changed",
        metavar="COMMIT",
        default=None,
        help="only faults whose rows, tests or source changed since this commit",
    )
    kill.add_argument(
        "--sample",
        metavar="N",
        type=positive,
        default=None,
        help="only N faults, always the same ones; with --changed in addition to those",
    )
    kill.add_argument(
        "--lessons",
        nargs="?",
        choices=(faults.CENTRAL, faults.EVERY),
        const=faults.CENTRAL,
        default=None,
        help="run the lessons: does the check of each lesson notice the faults that "
        "break its central statement? With 'all': which faults does each check notice?",
    )
    kill.add_argument(
        "-j",
        dest="jobs",
        metavar="N",
        type=positive,
        default=os.cpu_count() or 1,
        help="how many tests run at once (default: the number of cores)",
    )
    kill.add_argument(
        "--limit",
        metavar="SECONDS",
        type=positive,
        default=None,
        help="stop after this time, and say what is left",
    )
    kill.add_argument(
        "--results",
        metavar="DIR",
        type=Path,
        default=None,
        help="the folder for the matrix; if it has the results of a run, the page of "
        "the run shows the matrix (default: a new folder in results/)",
    )
    kill.add_argument(
        "--resume",
        metavar="DIR",
        type=Path,
        default=None,
        help="continue with the results in this folder, with the same build",
    )
    kill.add_argument(
        "--like",
        metavar="RESULTS",
        type=Path,
        default=None,
        help="an earlier matrix, also an incomplete one: a fault first runs with the "
        "tests that noticed it there",
    )
    kill.add_argument(
        "--twin",
        metavar="OLD",
        type=Path,
        default=None,
        help="instead, compare each fault on the model with its form in this earlier "
        "library of faults (libipclab_faults.so), by all tests of its folder",
    )
    kill.add_argument(
        "--tests",
        metavar="N",
        type=positive,
        default=None,
        help="with --twin: at most N tests for a fault, those of its rows first",
    )
    kill.add_argument(
        "--baseline",
        metavar="RESULTS",
        type=Path,
        default=None,
        help="a run without the library: its verdicts must be those of the tests with "
        "the library and no fault",
    )
    kill.add_argument(
        "--backend",
        choices=("model", "cuda"),
        default="model",
        help="the reference model or a GPU (default: model)",
    )
    programs(kill)
    kill.set_defaults(call=run)


def run(options: argparse.Namespace) -> int:
    """Run the faults; the page of a run in the same folder shows the matrix."""
    from ipclab import results
    from ipclab.mutants import command
    from ipclab.mutants.plan import Request

    asked = [
        option
        for name, option in (
            ("faults", "faults"),
            ("functions", "function"),
            ("kind", "operators" if options.kind == faults.OPERATOR else "named"),
            ("shard", "shard"),
            ("changed", "changed"),
            ("sample", "sample"),
            ("results", "results"),
        )
        if getattr(options, name)
    ]
    if options.resume and asked:
        raise leave_out(asked[0])
    folder = options.resume or options.results
    request = Request(
        build=options.build,
        backend=options.backend,
        jobs=options.jobs,
        results=folder,
        resume=options.resume is not None,
        names=tuple(options.faults),
        functions=tuple(options.functions),
        kind=options.kind,
        shard=options.shard,
        changed=options.changed,
        sample=options.sample,
        lessons=options.lessons,
        seconds=options.limit,
        baseline=options.baseline,
        like=options.like,
        twin=options.twin,
        tests=options.tests,
    )
    code = command.run(console(), request)
    if folder and (folder / "run.json").exists():
        results.write(folder / "report.html", suite.page(folder))
    return code


def _shard(text: str) -> tuple[int, int]:
    part, _, count = text.partition("/")
    if not (part.isdigit() and count.isdigit() and 1 <= int(part) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text} is not K/N with K from 1 to N")
    return int(part), int(count)
