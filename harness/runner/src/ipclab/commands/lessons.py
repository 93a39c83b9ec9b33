"""`ipclab sample` and `ipclab learn`."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
from pathlib import Path

from ipclab import model, packed
from ipclab.commands.options import Commands, backend, console, profile, programs
from ipclab.learn import ACTIONS, progress


def add(commands: Commands) -> None:
    """Add both commands."""
    one = commands.add_parser("sample", help="one lesson, narrated")
    one.add_argument("lesson", help="01, 1, 01_legacy_memory or legacy_memory")
    one.add_argument(
        "--role",
        nargs=2,
        metavar=("exporter|importer", "PATH"),
        default=None,
        help="run only one role; PATH is an unused name for a socket; start the "
        "exporter first, and then the importer in a second terminal with the same path",
    )
    backend(one)
    profile(one)
    programs(one)
    one.set_defaults(call=sample)
    mend = commands.add_parser(
        "learn",
        help="exercises: fix broken IPC programs, with hints and a check",
        description="Puts the next exercise into your folder. Builds and checks it "
        "each time you save it, and says what was expected and what was seen.",
        epilog="ACTION is one of: "
        + "; ".join(f"{name}: {what}" for name, what in ACTIONS.items())
        + ". Exit code: 0 success; 1 an exercise that was checked does not pass; "
        "2 usage; 3 the harness is broken",
    )
    mend.add_argument(
        "action", metavar="ACTION", nargs="?", choices=ACTIONS, default="next"
    )
    mend.add_argument(
        "exercise",
        metavar="EXERCISE",
        nargs="?",
        help="the exercise: 03, 3 or its name (default: the first exercise that has "
        "not passed)",
    )
    mend.add_argument(
        "--folder",
        metavar="DIR",
        type=Path,
        default=progress.DEFAULT,
        help=f"your folder (default: {progress.DEFAULT})",
    )
    mend.add_argument(
        "--path",
        metavar="NAME",
        default=None,
        help="which exercises, in which order, from now on: two_hours, one_day, "
        "two_days, self_study (default)",
    )
    mend.add_argument("--once", action="store_true", help="check once, do not watch")
    mend.add_argument(
        "--show",
        action="store_true",
        help="show the solution even if the exercise has not passed",
    )
    mend.add_argument(
        "--verify", action="store_true", help="run again all exercises that have passed"
    )
    mend.add_argument(
        "--report",
        metavar="DIR",
        type=Path,
        default=None,
        help="for a teacher: show the progress of a class, from the folders below DIR",
    )
    mend.add_argument(
        "--backend",
        choices=model.BACKENDS,
        default="auto",
        help="a GPU or the reference model; auto: a GPU if there is one, and the model "
        "for exercises that the GPU cannot run",
    )
    programs(mend)
    mend.set_defaults(call=learn)


def sample(options: argparse.Namespace) -> int:
    """Run one lesson."""
    from ipclab import sample

    return sample.run(
        options.build, options.lesson, options.backend, options.profile, options.role
    )


def learn(options: argparse.Namespace) -> int:
    """Hand out or check an exercise."""
    from ipclab.learn import command

    return command.run(
        console(),
        command.Request(
            # Exercises are of CUDA 13. With an older driver they run on the model.
            build=packed.part(options.build, "exercises").parent,
            folder=options.folder,
            action=options.action,
            exercise=options.exercise,
            backend=options.backend,
            once=options.once,
            show=options.show,
            verify=options.verify,
            report=options.report,
            path=options.path,
        ),
    )
