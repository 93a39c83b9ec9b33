"""`ipclab compare`, `verify`, `sign` and `judge`: the results of a run."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
from pathlib import Path

from ipclab.commands.options import Commands, console


def add(commands: Commands) -> None:
    """Add the four commands."""
    two = commands.add_parser(
        "compare",
        help="how the results of two runs differ",
        epilog="exit code: 0 nothing got worse, 1 a test regressed or disappeared, "
        "2 usage, 3 the harness is broken",
    )
    two.add_argument(
        "old", metavar="OLD", type=Path, help="results folder of the earlier run"
    )
    two.add_argument(
        "new", metavar="NEW", type=Path, help="results folder of the later run"
    )
    two.add_argument(
        "--json",
        metavar="FILE",
        type=Path,
        default=None,
        help="also write the differences into FILE as JSON",
    )
    two.add_argument(
        "--html",
        metavar="FILE",
        type=Path,
        default=None,
        help="also write the differences into FILE as a page",
    )
    two.add_argument(
        "--any-catalogue",
        action="store_true",
        help="compare even if a row's sentence or kind differs between the two runs",
    )
    two.add_argument(
        "--fidelity",
        action="store_true",
        help="one of the runs is on the reference model: does the model answer as the "
        "driver did?",
    )
    two.set_defaults(call=compare)
    check = commands.add_parser(
        "verify",
        help="is a submitted run complete and unedited?",
        description="Checks a run of `ipclab qualify` against its own digests, and "
        "with --key its signature. Says what this proves and what not.",
        epilog="exit code: 0 verified, 1 not, 2 the results cannot be read",
    )
    check.add_argument("results", metavar="RESULTS", type=Path)
    check.add_argument(
        "--build",
        dest="held_to",
        metavar="DIR",
        type=Path,
        default=None,
        help="also compare the run's programs, list of tests and catalogue with those "
        "of this build",
    )
    check.add_argument(
        "--key",
        metavar="FILE",
        type=Path,
        default=None,
        help="the results must be signed by a key of this file: public SSH keys, or "
        "allowed signers as in ssh-keygen(1)",
    )
    check.set_defaults(call=verify)
    own = commands.add_parser(
        "sign",
        help="sign a finished run with your SSH key",
        description="Writes run.sig into the folder, so that `ipclab verify --key` can "
        "tell whose results these are. Needs ssh-keygen.",
        epilog="exit code: 0 signed, 2 the run is not finished or was edited, or the "
        "key cannot sign, 3 the tool failed",
    )
    own.add_argument("results", metavar="RESULTS", type=Path)
    own.add_argument(
        "--key",
        metavar="KEY",
        type=Path,
        required=True,
        help="your private key, or your public key if an agent has the private one",
    )
    own.set_defaults(call=sign)
    afterwards = commands.add_parser(
        "judge",
        help="judge a finished run again with another deviations.json, without a GPU",
        description="Writes the run into a new folder with the verdicts that the "
        "entries give it. Each test whose verdict changes is named.",
        epilog="exit code: that of the run as it is judged now; 2 the run cannot be "
        "judged again, 3 the file of deviations is wrong",
    )
    afterwards.add_argument("run", metavar="RUN", type=Path, help="a finished run")
    afterwards.add_argument(
        "deviations",
        metavar="DEVIATIONS",
        type=Path,
        help="the entries to apply, for example conformance/deviations.json",
    )
    afterwards.add_argument(
        "--results",
        metavar="DIR",
        type=Path,
        required=True,
        help="the folder for the judged run",
    )
    afterwards.set_defaults(call=judge)


def compare(options: argparse.Namespace) -> int:
    """Tell how two runs differ."""
    from ipclab import compare

    request = compare.Request(
        options.json, options.html, options.any_catalogue, options.fidelity
    )
    return compare.run(console(), options.old, options.new, request)


def verify(options: argparse.Namespace) -> int:
    """Verify a run."""
    from ipclab import verify

    return verify.run(console(), options.results, options.held_to, options.key)


def sign(options: argparse.Namespace) -> int:
    """Sign a run."""
    from ipclab import sign

    return sign.sign(console(), options.results, options.key)


def judge(options: argparse.Namespace) -> int:
    """Judge a run again."""
    from ipclab import judge

    return judge.run(console(), options.run, options.deviations, options.results)
