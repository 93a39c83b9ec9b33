"""Options that several commands have."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipclab import model, packed
from ipclab.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

BUILD = packed.default_build()
Commands = Any  # what argparse's add_subparsers() returns
Parser = argparse.ArgumentParser


def programs(command: Parser) -> None:
    """Add the options that say which programs a command uses."""
    which = command.add_mutually_exclusive_group()
    which.add_argument(
        "--build",
        metavar="DIR",
        type=Path,
        default=BUILD,
        help=f"build folder or packed suite (default: {BUILD})",
    )
    which.add_argument(
        "--runtime",
        dest="build",
        metavar="N",
        type=_runtime,
        default=BUILD,
        help="of an installed wheel: the programs of CUDA 12 or of CUDA 13 (default: "
        "the newest that the driver can run)",
    )


def source_tree(command: Parser) -> None:
    """Add --build to a command that needs no build."""
    command.add_argument(
        "--build",
        metavar="DIR",
        type=Path,
        default=None,
        help="build folder or packed suite (default: the source tree of this command)",
    )


def backend(command: Parser, default: str = "auto") -> None:
    """Add --backend to a command that also runs without a GPU."""
    command.add_argument(
        "--backend",
        choices=model.BACKENDS,
        default=default,
        help="a GPU or the reference model; auto: a GPU if there is one "
        f"(default: {default})",
    )


def profile(command: Parser) -> None:
    """Add --profile."""
    command.add_argument(
        "--profile",
        metavar="NAME",
        default=None,
        help="which machine the reference model imitates, for example two-gpus",
    )


def program(options: argparse.Namespace) -> list[str]:
    """The words of `-- PROGRAM ARGS…`."""
    words: list[str] = options.program
    return words[1:] if words[:1] == ["--"] else words


def console() -> Console:
    """Standard output, for commands that need the package rich."""
    from ipclab import terminal

    return terminal.console()


def leave_out(name: str) -> UsageError:
    """The error if --resume is given with an option that the first call decided."""
    option = f"--{name}" if len(name) > 1 else f"-{name}"
    return UsageError(
        f"--resume keeps the options of the first call: leave out {option}"
    )


def positive(text: str) -> int:
    """An argument's type: a number from 1 on."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return number


def natural(text: str) -> int:
    """An argument's type: a number from 0 on."""
    if (number := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return number


def _runtime(major: str) -> Path:
    try:
        return packed.of_runtime(major)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
