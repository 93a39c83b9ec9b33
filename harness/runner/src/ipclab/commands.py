"""What the commands of `ipclab` do that need more than Python (see cli.py)."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ipclab import (
    catalogue,
    compare,
    ctest,
    doctor,
    explore,
    faults,
    fleet_cli,
    judge,
    manifest,
    matrix,
    model,
    mutants,
    packed,
    report,
    results,
    sample,
    sign,
    terminal,
    verify,
)
from ipclab.errors import HarnessError, UsageError
from ipclab.learn import command as learn
from ipclab.plugin import Plugin
from ipclab.run import Run, Settings
from ipclab.trace import command as trace


def run(options: argparse.Namespace) -> int:
    """Run the command that `options` has; return its exit code."""
    build = options.build if "build" in options else packed.default_build()
    if options.command == "run":
        return _run(_settings(options, {}), _is_latest(options), options.verbose)
    if options.command == "qualify":
        return _qualify(options)
    if options.command == "verify":
        return verify.run(
            terminal.console(), options.results, options.held_to, options.key
        )
    if options.command == "sign":
        return sign.sign(terminal.console(), options.results, options.key)
    if options.command == "judge":
        return judge.run(
            terminal.console(), options.run, options.deviations, options.results
        )
    if options.command == "sample":
        return sample.run(
            build, options.lesson, options.backend, options.profile, options.role
        )
    if options.command == "mutants":
        return _mutants(options)
    if options.command == "doctor":
        return doctor.run(
            terminal.console(),
            doctor.Request(
                build=build,
                backend=options.backend,
                profile=options.profile,
                pid=options.pid,
                record=options.machine,
                peers=options.peers,
                json=options.json,
                expect=options.write_expect,
            ),
        )
    if options.command == "explore":
        return explore.run(
            terminal.console(),
            explore.Request(
                build=build,
                seconds=options.seconds,
                seed=options.seed,
                programs=options.programs,
                processes=options.processes,
                jobs=options.jobs,
                replay=options.replay,
                results=options.results,
                verbose=options.verbose,
                backend=options.backend,
                profile=options.profile,
            ),
        )
    if options.command in fleet_cli.COMMANDS:
        return fleet_cli.run(terminal.console(), options)
    if options.command == "model":
        model.become(build, _program(options), options.profile)
    if options.command == "trace" and options.variables:
        return trace.print_variables(_trace(options))
    if options.command == "trace":
        return trace.run(terminal.console(), _trace(options))
    if options.command == "learn":
        return learn.run(
            terminal.console(),
            learn.Request(
                # Exercises are of CUDA 13. With an older driver they run on the model.
                build=packed.part(build, "exercises").parent,
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
    if options.command == "catalogue":
        return catalogue.run(
            terminal.console(),
            ctest.source_folder(build),
            options.headers,
            options.old,
            options.coverage,
            options.runs,
        )
    if options.command == "compare":
        return compare.run(
            terminal.console(),
            options.old,
            options.new,
            compare.Request(
                options.json, options.html, options.any_catalogue, options.fidelity
            ),
        )
    return _report(options.results)


def _program(options: argparse.Namespace) -> list[str]:
    words: list[str] = options.program
    return words[1:] if words[:1] == ["--"] else words


def _trace(options: argparse.Namespace) -> trace.Request:
    program = _program(options)
    if sum(map(bool, (program, options.read, options.variables))) != 1:
        raise UsageError(
            "trace what? ipclab trace -- PROGRAM ARGS…, --read DIR or --variables"
        )
    return trace.Request(
        build=options.build,
        command=program,
        folder=options.read or options.out,
        backend=options.backend,
        profile=options.profile,
        check=options.check,
        allow_empty=options.allow_empty,
        suppressions=options.suppress,
    )


def _mutants(options: argparse.Namespace) -> int:
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
        raise _leave_out(asked[0])
    folder = options.resume or options.results
    code = mutants.run(
        terminal.console(),
        mutants.Request(
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
        ),
    )
    if folder and (folder / "run.json").exists():
        results.write(folder / "report.html", _page(folder))
    return code


def _settings(options: argparse.Namespace, fixed: dict[str, Any]) -> Settings:
    """What was requested, or with --resume what the first call requested. `fixed` are
    the settings that are no options of this command.
    """
    names = [x.name for x in dataclasses.fields(Settings) if x.name not in CHANGEABLE]
    asked = {x: getattr(options, x, getattr(Settings, x)) for x in names} | fixed
    if options.resume is not None:
        usual = {x: getattr(Settings, x) for x in names} | fixed
        if options.command == "qualify":
            usual["backend"] = "cuda"
        for name in names:
            if asked[name] != usual[name]:
                raise _leave_out("k" if name == "expression" else name)
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


CHANGEABLE = ("build", "results", "resume", "jobs")  # settings of one call only


def _leave_out(name: str) -> UsageError:
    option = f"--{name}" if len(name) > 1 else f"-{name}"
    return UsageError(
        f"--resume keeps the options of the first call: leave out {option}"
    )


def _qualify(options: argparse.Namespace) -> int:
    """Make a run with fixed options, and verify it at its end."""
    settings = _settings(options, verify.FIXED)
    assert settings.results is not None
    code = _run(settings, _is_latest(options), options.verbose)
    verified = verify.run(terminal.console(), settings.results, options.build)
    return code or verified


def _is_latest(options: argparse.Namespace) -> bool:
    """Whether results/latest shall point to the results of this run."""
    return options.results is None and options.resume is None


def _run(settings: Settings, latest: bool, verbose: bool) -> int:
    """Run the tests; show and keep the results.

    With `latest`, results/latest points to them.
    """
    out = terminal.console()
    run = Run(settings)
    assert run.results is not None
    try:
        terminal.first_line(out, run)
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


def _report(folder: Path) -> int:
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


def _page(folder: Path) -> str:
    return _page_of(results.read(folder), folder)


def _page_of(contents: results.Contents, folder: Path) -> str:
    kills = matrix.read(folder)
    return report.page(contents.run, contents.records, contents.wrong, kills)
