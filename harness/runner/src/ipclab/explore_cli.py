"""The options of `ipclab explore`; needs Python and no package."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

HELP = "random programs of several processes, judged by the documentation"
MAX_SEED = 10**12  # the explorers of one command add to it


def add_to(commands: Any, build: Path, backends: tuple[str, ...]) -> None:
    """Add the command to the parsers of `ipclab`."""
    parser = commands.add_parser(
        "explore",
        help=HELP,
        description="Makes random programs of several processes whose results the "
        "documentation defines, runs them, compares, and shrinks what fails. Each "
        "failure is kept as a story, as a program to replay, and as one file of "
        "plain CUDA.",
        epilog="exit code: 0 nothing failed, 1 something did, 2 usage, 3 the harness "
        "is broken or the search was interrupted",
    )
    parser.add_argument(
        "--seconds",
        metavar="N",
        type=_number(1, 10**6),
        default=60,
        help="how long to search and to shrink; the command ends at most 15 seconds "
        "later (default: 60)",
    )
    parser.add_argument(
        "--seed",
        metavar="S",
        type=_number(0, MAX_SEED),
        default=1,
        help="the seed of the programs (default: 1)",
    )
    parser.add_argument(
        "--programs",
        metavar="N",
        type=_number(1, 10**9),
        default=None,
        help="end after so many programs; with --faults, programs under each fault "
        "(default: 200)",
    )
    parser.add_argument(
        "--processes",
        metavar="2..5",
        type=_number(2, 5),
        default=None,
        help="processes of each program (default: 2 to 4)",
    )
    parser.add_argument(
        "--gpus",
        metavar="1..2",
        type=_number(1, 2),
        default=None,
        help="GPUs that the processes use (default: 2 if two GPUs are peers)",
    )
    parser.add_argument(
        "-j",
        dest="jobs",
        metavar="N",
        type=_number(1, 64),
        default=None,
        help="explorers side by side (default: one for each processor, at most 4, "
        "on a GPU 2)",
    )
    parser.add_argument(
        "--replay",
        metavar="FILE",
        type=Path,
        default=None,
        help="run the program of this file instead, ten times, in new processes",
    )
    parser.add_argument(
        "--faults",
        metavar="N",
        type=_number(1, 300),
        default=None,
        help="instead, make the same programs under each of N named faults on the "
        "reference model, for --seconds at most, and say which faults are noticed, and "
        "why the others are not; always the same faults",
    )
    parser.add_argument(
        "--results",
        metavar="DIR",
        type=Path,
        default=None,
        help="a new folder for failures and counts (default: results/DATE-explore)",
    )
    parser.add_argument(
        "-v",
        dest="verbose",
        action="store_true",
        help="show where the time goes, and the pairs that no program has reached",
    )
    parser.add_argument(
        "--build", metavar="DIR", type=Path, default=build, help="the build folder"
    )
    parser.add_argument(
        "--backend",
        choices=backends,
        default="auto",
        help="a GPU or the reference model; auto: a GPU if there is one (default)",
    )
    parser.add_argument(
        "--profile",
        metavar="NAME",
        default=None,
        help="which machine the reference model imitates, for example two-gpus",
    )
    parser.set_defaults(call=run)


def run(options: argparse.Namespace) -> int:
    """Search; returns the exit code."""
    from ipclab import explore, explore_faults, terminal

    search = explore.run if options.faults is None else explore_faults.run
    return search(
        terminal.console(),
        explore.Request(
            build=options.build,
            seconds=options.seconds,
            seed=options.seed,
            programs=options.programs,
            processes=options.processes,
            gpus=options.gpus,
            jobs=options.jobs,
            replay=options.replay,
            faults=options.faults,
            results=options.results,
            verbose=options.verbose,
            backend=options.backend,
            profile=options.profile,
        ),
    )


def _number(least: int, most: int) -> Any:
    """An argument's type: a whole number between two bounds."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(
                f"'{text}' is not a number from {least} to {most}"
            )
        return number

    return read
