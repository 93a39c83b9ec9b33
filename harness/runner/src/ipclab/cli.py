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
from pathlib import Path
from types import FrameType

from ipclab import (
    __version__,
    explain,
    explore_cli,
    faults,
    findings,
    fleet_cli,
    model,
    packed,
    rules,
)
from ipclab.errors import HarnessError, UsageError
from ipclab.learn import ACTIONS, progress

BUILD = packed.default_build()
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
    words, rest = fleet_cli.split(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    if wrong := _mistyped(words):
        parser.error(wrong)
    options = parser.parse_args(words)
    options.run_options = rest
    broken = 4 if options.command in fleet_cli.COMMANDS else 3
    if isinstance(sys.stdout, io.TextIOWrapper):  # for names of files that are no text
        sys.stdout.reconfigure(errors="backslashreplace")
    # What `nohup` makes us ignore stays ignored.
    before = {
        number: signal.signal(number, _as_interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        if options.command == "explain":
            return explain.run(options.code)
        if options.command == "rules":
            return rules.run(options.build, options.row, options.results, options.json)
        if options.command == "findings":
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
        # Only here, because the commands above need Python and no package.
        from ipclab import commands

        return commands.run(options)
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


def _programs(command: argparse.ArgumentParser) -> None:
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


def _runtime(major: str) -> Path:
    try:
        return packed.of_runtime(major)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


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
    run = commands.add_parser(
        "run",
        help="the suite: samples and conformance",
        epilog="exit code: 0 nothing fails the run, 1 something does, 2 usage, "
        "3 the harness is broken or the run was interrupted",
    )
    run.add_argument(
        "-k",
        dest="expression",
        metavar="EXPR",
        default="",
        help="tests whose name, lesson or requirement matches (as in pytest)",
    )
    run.add_argument(
        "--gpus",
        metavar="N",
        type=_natural,
        default=None,
        help="only tests that need at most N GPUs",
    )
    run.add_argument(
        "--repeat",
        metavar="N",
        type=_positive,
        default=1,
        help="run each test N times; a test with different verdicts is flaky",
    )
    run.add_argument(
        "--seed",
        metavar="N",
        type=_natural,
        default=1,
        help="the seed of data patterns and orders (default: 1)",
    )
    run.add_argument(
        "--strict", action="store_true", help="a deviation also fails the run"
    )
    run.add_argument(
        "--require",
        metavar="FILE",
        type=Path,
        default=None,
        help="a list of rows, one on each line: if one of them is not judged here, the "
        "run fails",
    )
    run.add_argument(
        "--apart",
        action="store_true",
        help="no test shares its processes with another test: this is slower, and the "
        "verdicts are the same",
    )
    run.add_argument(
        "--delays",
        action="store_true",
        help="roles pause at random before their calls and steps; if the verdict of a "
        "test changes, the test depends on the speed of a role (use with --repeat)",
    )
    run.add_argument(
        "--requirements",
        metavar="FILE",
        type=Path,
        default=None,
        help="use the rows of this file (`ipclab rules --json` writes one) instead of "
        "those of conformance/",
    )
    run.add_argument(
        "--deviations",
        metavar="FILE",
        type=Path,
        default=None,
        help="use this file instead of conformance/deviations.json",
    )
    whole = commands.add_parser(
        "qualify",
        help="a run to submit: the whole suite three times, then verified",
        description="The whole suite, each test three times, with fixed options: "
        "what `ipclab verify` accepts. A test that the harness cannot judge, or "
        "that gives different verdicts, is not accepted.",
        epilog="exit code: as for `ipclab run`; also 1 if the run cannot be verified",
    )
    for command in (run, whole):
        command.add_argument(
            "-v",
            dest="verbose",
            action="store_true",
            help="show every row with its reason, and the slowest tests",
        )
        command.add_argument(
            "-j",
            dest="jobs",
            metavar="N",
            type=_positive,
            default=1,
            help="how many tests run at once; each test gets its own GPUs if there are "
            "enough",
        )
        command.add_argument(
            "--expect",
            metavar="FILE",
            type=Path,
            default=None,
            help="a file that says what this machine must be able to do: if the probe "
            "denies it, the run fails (`ipclab doctor --write-expect` writes the file)",
        )
        where = command.add_mutually_exclusive_group()
        where.add_argument(
            "--results",
            metavar="DIR",
            type=Path,
            default=None,
            help="the folder for the results (default: "
            "results/<UTC time>-<host>-<process id>; then results/latest points to it)",
        )
        where.add_argument(
            "--resume",
            metavar="DIR",
            type=Path,
            default=None,
            help="continue the run in this folder, which was stopped, with its "
            "options: give only -j, -v or --build again; machine, build and catalogue "
            "must be the same",
        )
    explore_cli.add_to(commands, BUILD, model.BACKENDS)
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
        type=_positive,
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
    seen = commands.add_parser(
        "trace",
        help="what a program and its children do with CUDA IPC, and what is wrong",
        description="Runs PROGRAM, records what it and its children do with CUDA IPC, "
        "draws this and checks the rules. On a driver the recorder uses CUPTI.",
        epilog="exit code: that of PROGRAM; with --check 1 if a rule is broken, "
        "PROGRAM failed or a part of the trace is missing; 2 usage, 3 the trace could "
        "not be written",
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
        "--check",
        action="store_true",
        help="exit with 1 if something was found or PROGRAM failed",
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
    guest = commands.add_parser(
        "model",
        help="any program on the reference model, on a simulated machine of its own",
        description="Runs PROGRAM and its children with the reference model instead of "
        "the driver and the CUDA runtime. PROGRAM may be a shell. A "
        "program must use the shared CUDA runtime and contain PTX; if it "
        "does not, the model says in one line what to do.",
        epilog="exit code: that of PROGRAM; 2 usage",
    )
    guest.add_argument("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM ARGS…")
    # Without --backend model or --profile the doctor asks this machine only.
    for command, default in (
        (run, "auto"),
        (seen, "auto"),
        (one, "auto"),
        (look, "cuda"),
    ):
        command.add_argument(
            "--backend",
            choices=model.BACKENDS,
            default=default,
            help="a GPU or the reference model; auto: a GPU if there is one "
            f"(default: {default})",
        )
    whole.add_argument(
        "--backend",
        choices=("cuda", "model"),
        default="cuda",
        help="the driver, or the reference model; without a working driver nothing is "
        "judged (default: cuda)",
    )
    for command in (run, seen, whole, one, look, guest):
        command.add_argument(
            "--profile",
            metavar="NAME",
            default=None,
            help="which machine the reference model imitates, for example two-gpus",
        )
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
        type=_positive,
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
        type=_positive,
        default=os.cpu_count() or 1,
        help="how many tests run at once (default: the number of cores)",
    )
    kill.add_argument(
        "--limit",
        metavar="SECONDS",
        type=_positive,
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
        type=_positive,
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
    what = commands.add_parser("explain", help="what an error code of CUDA means here")
    what.add_argument(
        "code",
        metavar="CODE",
        nargs="?",
        help="cudaErrorInvalidDevice, CUDA_ERROR_INVALID_DEVICE or 101 (default: all)",
    )
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
        help="only these, by number or name: 9, trim_to_largest",
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
    for command in (law, shown):
        command.add_argument(
            "--build",
            metavar="DIR",
            type=Path,
            default=None,
            help="build folder or packed suite (default: the source tree of this "
            "command)",
        )
    for command in (run, whole, one, kill, look, seen, guest, mend, documents):
        _programs(command)
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
    for command in fleet_cli.add(commands):
        _programs(command)
    again = commands.add_parser("report", help="write the page of a run again")
    again.add_argument("results", metavar="RESULTS", type=Path)
    return parser


def _shard(text: str) -> tuple[int, int]:
    part, _, count = text.partition("/")
    if not (part.isdigit() and count.isdigit() and 1 <= int(part) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text} is not K/N with K from 1 to N")
    return int(part), int(count)


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return number


def _natural(text: str) -> int:
    if (number := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return number


def _as_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _say(error: object, code: int) -> int:
    print(f"ipclab: {error}", file=sys.stderr, flush=True)
    return code
