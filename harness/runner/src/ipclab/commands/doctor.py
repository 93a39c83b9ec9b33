"""`ipclab doctor`."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
from pathlib import Path

from ipclab.commands.options import (
    Commands,
    backend,
    console,
    positive,
    profile,
    programs,
)


def add(commands: Commands) -> None:
    """Add the command."""
    look = commands.add_parser(
        "doctor",
        help="what this machine can share, and what prevents sharing",
        epilog="exit code: 0 something can be shared, 1 nothing can, 2 usage, "
        "3 the harness is broken",
    )
    look.add_argument(
        "--with",
        dest="pid",
        metavar="PID",
        type=positive,
        default=None,
        help="compare this process with process PID, with which it is going to share "
        "memory",
    )
    look.add_argument(
        "--json",
        metavar="FILE",
        type=Path,
        default=None,
        help="also write facts and findings into FILE; if FILE is -, print only these",
    )
    look.add_argument(
        "--write-expect",
        metavar="FILE",
        type=Path,
        default=None,
        help="write what this machine can do into FILE, for `ipclab run --expect`; "
        "read the file before you use it",
    )
    look.add_argument(
        "--machine",
        metavar="FILE",
        type=Path,
        default=None,
        help="judge facts that --json wrote, for example on another machine",
    )
    # Without --backend model or --profile the doctor asks this machine only.
    backend(look, "cuda")
    profile(look)
    programs(look)
    look.set_defaults(call=run)


def run(options: argparse.Namespace) -> int:
    """Say what this machine can share."""
    from ipclab import doctor

    return doctor.run(
        console(),
        doctor.Request(
            build=options.build,
            backend=options.backend,
            profile=options.profile,
            pid=options.pid,
            record=options.machine,
            json=options.json,
            expect=options.write_expect,
        ),
    )
