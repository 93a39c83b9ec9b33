"""The command `ipclab`."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
import difflib
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType

from ipclab import __version__, explore_cli, model
from ipclab.commands import (
    doctor,
    fleet,
    lessons,
    mutants,
    options,
    results,
    rows,
    suite,
    trace,
)
from ipclab.errors import HarnessError, UsageError

GROUPS = {  # of --help
    "learn": ("sample", "learn"),
    "my program fails": ("explain", "doctor", "trace", "model"),
    "test a driver": (
        *("run", "explore", "rules", "findings", "compare", "report"),
        *("qualify", "sign", "verify", "judge", "fleet", "node"),
    ),
    "test the suite itself": ("mutants", "catalogue"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code (`--help` of a command explains it)."""
    words, rest = fleet.split(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    if wrong := _mistyped(words):
        parser.error(wrong)
    asked = parser.parse_args(words)
    asked.run_options = rest
    broken = 4 if asked.command in fleet.COMMANDS else 3
    if isinstance(sys.stdout, io.TextIOWrapper):  # for names of files that are no text
        sys.stdout.reconfigure(errors="backslashreplace")
    # What `nohup` makes us ignore stays ignored.
    before = {
        number: signal.signal(number, _as_interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        code: int = asked.call(asked)
        return code
    except UsageError as error:
        return _say(error, 2)
    except HarnessError as error:
        return _say(error, broken)
    except KeyboardInterrupt:
        return _say("interrupted", broken)
    except BrokenPipeError:  # the reader of our output has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return broken
    except Exception:  # a fault of ours is no failing test: not Python's exit code 1
        traceback.print_exc()
        return broken
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Grouped(argparse.HelpFormatter):
    """Lists the commands by GROUPS."""

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        told = {entry.dest: entry for entry in action._choices_actions}
        text = ""
        for title, names in GROUPS.items():
            text += f"{'':{self._current_indent}}{title}\n"
            self._indent()
            text += "".join(
                super(_Grouped, self)._format_action(told[x]) for x in names
            )
            self._dedent()
        return text


def _mistyped(words: Sequence[str]) -> str | None:
    """What is wrong with the command's name; None if it is right or missing."""
    known = [name for names in GROUPS.values() for name in names]
    if not words or words[0].startswith("-") or words[0] in known:
        return None
    close = difflib.get_close_matches(words[0], known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"the commands: {', '.join(known)}"
    return f"no command '{words[0]}'; {hint}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ipclab",
        formatter_class=_Grouped,
        description="CUDA interprocess communication: run, judge, report.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", title="commands", required=True
    )
    suite.add(commands)
    explore_cli.add_to(commands, options.BUILD, model.BACKENDS)
    lessons.add(commands)
    doctor.add(commands)
    trace.add(commands)
    mutants.add(commands)
    rows.add(commands)
    results.add(commands)
    fleet.add(commands)
    suite.add_report(commands)
    return parser


def _as_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _say(error: object, code: int) -> int:
    print(f"ipclab: {error}", file=sys.stderr, flush=True)
    return code
