"""`ipclab trace` and `ipclab model`: any program, recorded or on the model."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
from pathlib import Path

from ipclab import model
from ipclab.commands.options import (
    Commands,
    backend,
    console,
    profile,
    program,
    programs,
)
from ipclab.errors import UsageError


def add(commands: Commands) -> None:
    """Add both commands."""
    seen = commands.add_parser(
        "trace",
        help="what a program and its children do with CUDA IPC, and what is wrong",
        description="Runs PROGRAM, records what it and its children do with CUDA IPC, "
        "draws this and checks the rules. On a driver the recorder uses CUPTI.",
        epilog="exit code: that of PROGRAM; with --check 1 if a rule is broken or "
        "PROGRAM failed; with --check or --read 3 if nothing was found, but "
        "nothing was recorded or a part of the trace is missing; 2 usage, 3 the trace "
        "could not be written",
    )
    seen.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=None,
        help="an empty folder for the trace (default: a new folder in traces/)",
    )
    seen.add_argument(
        "--read",
        metavar="DIR",
        type=Path,
        default=None,
        help="run no program: judge and draw this trace again",
    )
    seen.add_argument(
        "--variables",
        action="store_true",
        help="run no program: print environment variables. A program that you start "
        "with these writes its trace into --out; then use --read",
    )
    seen.add_argument(
        "--live",
        action="store_true",
        help="show while PROGRAM runs who lends and borrows memory, who waits for "
        "whom, and findings; at a hang, or at Ctrl-C, the graph of the waits",
    )
    seen.add_argument(
        "--stacks",
        action="store_true",
        help="also record the callers of each call: findings show the source line",
    )
    seen.add_argument(
        "--check",
        action="store_true",
        help="exit with 1 if something was found or PROGRAM failed",
    )
    seen.add_argument(
        "--allow-empty",
        action="store_true",
        help="a program that does not call CUDA is no error",
    )
    seen.add_argument(
        "--suppress",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="findings to ignore: lines of RULE[:PROGRAM[:TEXT]] with * and ?",
    )
    seen.add_argument("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM ARGS…")
    backend(seen)
    profile(seen)
    programs(seen)
    seen.set_defaults(call=run)
    guest = commands.add_parser(
        "model",
        help="any program on the reference model, on a simulated machine of its own",
        description="Runs PROGRAM and its children with the reference model instead of "
        "the driver and the CUDA runtime. PROGRAM may be a shell. A "
        "program must use the shared CUDA runtime and contain PTX; if it "
        "does not, the model says in one line what to do.",
        epilog="exit code: that of PROGRAM; 2 usage; with --race: 1 if a race was "
        "found, 3 if the detector could not look at everything",
    )
    guest.add_argument(
        "--race",
        action="store_true",
        help="report accesses to memory that nothing orders, of all processes",
    )
    guest.add_argument(
        "--json", action="store_true", help="with --race: print the races as JSON"
    )
    guest.add_argument("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM ARGS…")
    profile(guest)
    programs(guest)
    guest.set_defaults(call=become)


def run(options: argparse.Namespace) -> int:
    """Record a program, or judge a trace."""
    from ipclab.trace import command

    words = program(options)
    if sum(map(bool, (words, options.read, options.variables))) != 1:
        raise UsageError(
            "trace what? ipclab trace -- PROGRAM ARGS…, --read DIR or --variables"
        )
    if options.live and not words:
        raise UsageError("--live needs a program: ipclab trace --live -- PROGRAM ARGS…")
    request = command.Request(
        build=options.build,
        command=words,
        folder=options.read or options.out,
        backend=options.backend,
        profile=options.profile,
        check=options.check,
        allow_empty=options.allow_empty,
        suppressions=options.suppress,
        live=options.live,
        stacks=options.stacks,
    )
    if options.variables:
        return command.print_variables(request)
    return command.run(console(), request)


def become(options: argparse.Namespace) -> int:
    """Replace this process by a program on the reference model, or watch it."""
    if options.json and not options.race:
        raise UsageError("--json is for --race")
    if options.race:
        return model.look_for_races(
            options.build, program(options), options.profile, options.json
        )
    model.become(options.build, program(options), options.profile)
