"""`ipclab run`, `qualify` and `report`: the suite, and the page of a run."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipclab.commands.options import (
    Commands,
    backend,
    console,
    leave_out,
    natural,
    positive,
    profile,
    programs,
)
from ipclab.errors import HarnessError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from ipclab.results import Contents
    from ipclab.run import Run, Settings

CHANGEABLE = ("build", "results", "resume", "jobs")  # settings of one call only


def add(commands: Commands) -> None:
    """Add `run` and `qualify`."""
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
        type=natural,
        default=None,
        help="only tests that need at most N GPUs",
    )
    run.add_argument(
        "--repeat",
        metavar="N",
        type=positive,
        default=1,
        help="run each test N times; a test with different verdicts is flaky",
    )
    run.add_argument(
        "--seed",
        metavar="N",
        type=natural,
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
            type=positive,
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
    backend(run)
    whole.add_argument(
        "--backend",
        choices=("cuda", "model"),
        default="cuda",
        help="the driver, or the reference model; without a working driver nothing is "
        "judged (default: cuda)",
    )
    for command, call in ((run, run_suite), (whole, qualify)):
        profile(command)
        programs(command)
        command.set_defaults(call=call)


def add_report(commands: Commands) -> None:
    """Add `report`, the last command."""
    again = commands.add_parser("report", help="write the page of a run again")
    again.add_argument("results", metavar="RESULTS", type=Path)
    again.set_defaults(call=report)


def run_suite(options: argparse.Namespace) -> int:
    """Run the tests."""
    return _run(_settings(options, {}), _is_latest(options), options.verbose)


def qualify(options: argparse.Namespace) -> int:
    """Make a run with fixed options, and verify it at its end."""
    from ipclab import verify

    settings = _settings(options, verify.FIXED)
    assert settings.results is not None
    code = _run(settings, _is_latest(options), options.verbose)
    verified = verify.run(console(), settings.results, options.build)
    return code or verified


def report(options: argparse.Namespace) -> int:
    """Write the page of a run."""
    from ipclab import results

    folder: Path = options.results
    contents = results.read(folder)
    path = folder / "report.html"
    results.write(path, _page_of(contents, folder))
    if (state := contents.run["state"]) != "finished":
        number = len(contents.records)
        print(f"{folder}: the run is {state}, {number} records", flush=True)
    if contents.wrong:
        print(f"{folder}: {contents.wrong}", flush=True)
    print(path, flush=True)
    return 0


def page(folder: Path) -> str:
    """The page of the run in a folder."""
    from ipclab import results

    return _page_of(results.read(folder), folder)


def _page_of(contents: Contents, folder: Path) -> str:
    from ipclab import report
    from ipclab.mutants import matrix

    kills = matrix.read(folder)
    return report.page(contents.run, contents.records, contents.wrong, kills)


def _settings(options: argparse.Namespace, fixed: dict[str, Any]) -> Settings:
    """What was requested, or with --resume what the first call requested. `fixed` are
    the settings that are no options of this command.
    """
    from ipclab import results
    from ipclab.run import Settings

    names = [x.name for x in dataclasses.fields(Settings) if x.name not in CHANGEABLE]
    asked = {x: getattr(options, x, getattr(Settings, x)) for x in names} | fixed
    if options.resume is not None:
        usual = {x: getattr(Settings, x) for x in names} | fixed
        if options.command == "qualify":
            usual["backend"] = "cuda"
        for name in names:
            if asked[name] != usual[name]:
                raise leave_out("k" if name == "expression" else name)
        begun = results.read_run(options.resume)["settings"]
        for name, value in fixed.items():
            if begun.get(name) != value:
                raise UsageError(f"{options.resume}: `ipclab qualify` did not begin it")
        asked = {x: begun.get(x, getattr(Settings, x)) for x in names}
        for name in ("require", "requirements", "deviations", "expect"):
            asked[name] = asked[name] and Path(asked[name])
    if asked["backend"] == "cuda" and asked["profile"] is not None:
        raise UsageError("--profile is of the reference model: add --backend model")
    return Settings(
        build=options.build,
        results=options.resume or options.results or results.default_folder(),
        resume=options.resume is not None,
        jobs=options.jobs,
        **asked,
    )


def _is_latest(options: argparse.Namespace) -> bool:
    """Whether results/latest shall point to the results of this run."""
    return options.results is None and options.resume is None


def _run(settings: Settings, latest: bool, verbose: bool) -> int:
    """Run the tests; show and keep the results.

    With `latest`, results/latest points to them.
    """
    from ipclab import explore, manifest, report, terminal
    from ipclab.mutants import matrix
    from ipclab.run import Run

    out = console()
    run = Run(settings)
    assert run.results is not None
    try:
        terminal.first_line(out, run)
        if not run.filtered and run.explored is None:
            run.explored = explore.chapter(out, run)
        code = _pytest(run, out)
    finally:
        if run.state == "running":  # pytest's session has not begun
            run.close("interrupted")
    try:
        if latest:
            run.results.link_latest()
        kills = matrix.read(run.results.folder)
        document = manifest.sealed(run.document())
        page = report.page(document, run.records, None, kills)
        run.results.write("report.html", page)
        (run.results.folder / "junit.xml").chmod(0o600)  # pytest has written it
    except (HarnessError, OSError) as error:
        run.error = run.error or str(error)
    terminal.final(out, run, verbose)
    return code or run.exit_code


def _pytest(run: Run, out: Console) -> int:
    """Let pytest run the tests.

    Returns 2 or 3 if pytest could not do its work; otherwise 0, even if tests failed.
    """
    import pytest

    from ipclab import terminal
    from ipclab.plugin import Plugin

    assert run.results is not None
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        os.environ.pop(name, None)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    arguments = [
        f"-c{os.devnull}",  # ignore a pytest.ini in the current folder
        f"--rootdir={run.settings.build}",
        "--noconftest",
        f"--junitxml={run.results.folder / 'junit.xml'}",
        "--override-ini=junit_family=xunit1",  # xunit2 does not allow properties
        "--override-ini=junit_suite_name=ipclab",
        f"-k={run.settings.expression}",
        "-s",
        *(f"-pno:{name}" for name in ("terminal", "cacheprovider", "faulthandler")),
    ]
    try:
        code = pytest.main(arguments, plugins=[Plugin(run, terminal.Live(out))])
    except OSError as error:  # junit.xml cannot be written, as on a full disk
        run.error = run.error or f"{run.results.folder}: {error.strerror}"
        run.close("broken")
        return 3
    if run.state == "running":  # pytest ended before its session began
        run.close("broken")
        return 2 if code == pytest.ExitCode.USAGE_ERROR else 3
    return 2 if code == pytest.ExitCode.USAGE_ERROR else 0
