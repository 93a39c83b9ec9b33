"""`ipclab explore`: random programs of several processes, judged by an oracle.

The program `explore` (harness/explore) makes, runs, judges and shrinks programs. This
command starts several of them side by side, shows what they do, joins their counts, and
says which rows of the catalogue a driver does not keep.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import datetime
import json
import os
import shutil
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ipclab import (
    backend,
    ctest,
    deviations,
    model,
    packed,
    probe,
    requirements,
    results,
    supervise,
)
from ipclab.deviations import Entry
from ipclab.errors import HarnessError, UsageError

if TYPE_CHECKING:
    from ipclab.run import Run

Event = dict[str, Any]
Document = dict[str, Any]
Pairs = dict[str, dict[str, int]]
# Seconds after its time until an explorer is killed. It ends by itself after 7 s, and
# needs up to 3 s to end its roles.
GRACE = 11.0
REPLAY_LIMIT = 600.0  # seconds
# What a run of the suite explores: the same programs on each machine.
# The verdict on a failure that did not come again when its program ran in new
# processes, or whose program could not run again in time: told, and no verdict.
UNCONFIRMED = "not confirmed"
CHAPTER = 200  # programs
CHAPTER_SECONDS = 30
# A driver starts processes one after the other, and each explorer needs up to nine.
GPU_JOBS = 2
REPLAYS = 10  # runs of --replay
STEP = 1_000_003  # between the seeds of two explorers


@dataclass(frozen=True)
class Request:
    """What the caller requests."""

    build: Path
    seconds: int = 60
    seed: int = 1
    programs: int | None = None
    processes: int | None = None
    gpus: int | None = None
    jobs: int | None = None
    replay: Path | None = None
    faults: int | None = None  # measure with so many faults instead
    results: Path | None = None  # None: a new folder under results/
    verbose: bool = False
    backend: str = "auto"
    profile: str | None = None


@dataclass
class Explorer:
    """What one program `explore` has told so far."""

    folder: Path
    seed: int
    last: Event = field(default_factory=dict)  # progress or end
    failures: list[Event] = field(default_factory=list)
    found: Event | None = None  # a failure that is examined at this moment
    known: list[Event] = field(default_factory=list)
    said: str = ""  # its last words that are no event
    _rest: bytes = b""

    def hear(self, data: bytes) -> None:
        """Take output as it comes; each whole line is an event."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            try:
                event = json.loads(line)
                kind = event["event"]
            except (ValueError, KeyError, TypeError):
                self.said = line.decode(errors="replace") or self.said
                continue
            if kind in ("progress", "end"):
                self.last = event
            elif kind == "found":
                self.found = event
            elif kind == "failure":
                self.found = None
                self.failures.append(event)
            elif kind == "known":
                self.known.append(event)


def choose(out: Console, request: Request) -> tuple[backend.Backend, Path]:
    """The driver or the model, which is told, and the program of the explorer.

    HarnessError if there is neither, or if the driver shows no GPU to these programs:
    the driver may be older than their toolkit.
    """
    cases = ctest.read(request.build)
    chosen = backend.choose(request.build, cases, request.backend, request.profile)
    program = find_program(request.build, cases)
    out.print(Text(probe.first_line(chosen.probe)), soft_wrap=True)
    if chosen.probe["backend"] == "none":
        raise HarnessError("there is no GPU and no reference model to explore")
    if not chosen.probe["gpus"]:
        raise HarnessError(
            f"these programs find no GPU: {packed.command()} doctor says why"
        )
    return chosen, program


def run(out: Console, request: Request) -> int:
    """Search, or replay one program; return the exit code of the command."""
    chosen, program = choose(out, request)
    source = ctest.source_folder(request.build) / "conformance"
    rows = requirements.read(source)
    if request.replay is not None:
        return _replay(out, request, program, chosen.environment, rows)
    folder = request.results or results.default_folder("-explore")
    here = _here(source / deviations.NAME, chosen.probe)
    found = _explore(out, request, program, chosen, rows, here.applicable, folder)
    _show(out, found.document, found.pairs, request.verbose)
    out.print(Text(str(folder)), soft_wrap=True)
    if found.broken:
        raise HarnessError(found.broken)
    return 1 if problems(found.document) else 0


def chapter(out: Console, run: Run) -> Document | None:
    """The chapter of a run of the suite: a fixed sequence of programs.

    The results are in the folder `explore` of the run. Returns None, and says why, if
    nothing can be explored here.
    """
    assert run.results is not None
    folder = run.results.folder / "explore"
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was stopped
    build = run.settings.build
    try:
        program = find_program(build, run.everything)
    except UsageError as error:
        out.print(Text(f"random programs: not run: {error}"), soft_wrap=True)
        return None
    if run.probe["backend"] == "none":
        return None
    request = Request(build, CHAPTER_SECONDS, jobs=GPU_JOBS, programs=CHAPTER)
    found = _explore(
        out, request, program, run, run.catalogue, run.deviations.applicable, folder
    )
    document = {
        name: found.document[name]
        for name in (
            *("seed", "explorers", "seconds", "programs", "steps", "pairs"),
            *("known", "failures"),
        )
    } | {"broken": found.broken}
    out.print(Text(summary_of(document)), soft_wrap=True)
    return document


def summary_of(document: Mapping[str, Any]) -> str:
    """What a search did, in one line."""
    here = sum(table["reached"] for table in document["pairs"].values())
    total = sum(table["of"] for table in document["pairs"].values())
    open_ = sum(x["verdict"].startswith(UNCONFIRMED) for x in document["failures"])
    return (
        f"random programs: {document['programs']} of seed {document['seed']}, "
        f"{document['steps']} steps, {here} of {total} pairs, "
        f"{len(document['failures'])} failures"
        + (f", {open_} of them not confirmed" if open_ else "")
    )


def problems(document: Mapping[str, Any]) -> list[str]:
    """What of a search fails a run, one line each: what was seen again in new
    processes.
    """
    found = [
        f"random programs: {x['verdict']} {x['row']}: {x['operation']}, {x['check']}: "
        f"{x['seen']}, not {x['wanted']}"
        for x in document["failures"]
        if x["verdict"] != "observed" and not x["verdict"].startswith(UNCONFIRMED)
    ]
    return found + (
        [f"random programs: {document['broken']}"] if document["broken"] else []
    )


@dataclass(frozen=True)
class _Found:
    """What a search has found."""

    document: Document
    pairs: Pairs
    broken: str | None  # why the harness is broken


class _Place(Protocol):
    """Where a search runs: what the probe says, and the variables of its programs."""

    @property
    def probe(self) -> probe.Probe: ...
    @property
    def environment(self) -> Mapping[str, str]: ...


def _explore(
    out: Console,
    request: Request,
    program: Path,
    place: _Place,
    rows: Mapping[str, Entry],
    entries: Sequence[Entry],
    folder: Path,
) -> _Found:
    """Search with several explorers side by side, and write down what they found."""
    most = 4 if place.probe["backend"] == "model" else GPU_JOBS
    jobs = request.jobs or min(most, os.cpu_count() or 1)
    explorers = [
        Explorer(folder / f"explorer-{i + 1}", request.seed + i * STEP)
        for i in range(jobs)
    ]
    try:
        for explorer in explorers:
            explorer.folder.mkdir(parents=True)
        known = folder / "known.tsv"
        lines = known_lines(entries)
        known.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}") from None
    begin = time.monotonic()
    broken = _search(out, request, program, place.environment, explorers, known)
    pairs = join_pairs(explorers)
    failures = judged(explorers, rows)
    for failure in failures:
        _explain_file(failure, rows)
    document = {
        "backend": place.probe["backend"],
        "machine": probe.first_line(place.probe),
        "seed": request.seed,
        "explorers": jobs,
        "seconds": round(time.monotonic() - begin, 1),
        **totals(explorers),
        "pairs": {
            name: {"reached": reached(table), "of": len(table)}
            for name, table in pairs.items()
        },
        "known": [_brief(x) for y in explorers for x in y.known],
        "failures": failures,
        "times": [x.last.get("times", {}) for x in explorers],
        "unfinished": [x.last.get("unfinished", "") for x in explorers],
        "slowest": [x.last.get("slowest", []) for x in explorers],
    }
    if not broken and not document["programs"]:
        broken = "no program has run"
    document["broken"] = broken
    results.write(folder / "explore.json", json.dumps(document, indent=1) + "\n")
    results.write(folder / "pairs.json", json.dumps(pairs, indent=1) + "\n")
    return _Found(document, pairs, broken)


def find_program(build: Path, cases: Sequence[ctest.Case]) -> Path:
    """The program `explore` of a build; UsageError if it is not built."""
    beside = [Path(x.command[0]).parent for x in cases if x.suite == "probe"]
    for folder in (build / "harness" / "explore", *beside):
        if (folder / "explore").is_file():
            return (folder / "explore").resolve()
    raise UsageError(f"no program 'explore'; {packed.remedy(build, 'explore')}")


def known_lines(entries: Sequence[Entry]) -> list[str]:
    """What the program `explore` has to accept, from the entries that apply here."""
    return [
        "\t".join((entry["requirement"], one["operation"], one["check"], seen))
        for entry in entries
        for one in entry.get("explore", [])
        for seen in one["seen"]
    ]


def join_pairs(explorers: Sequence[Explorer]) -> Pairs:
    """The counts of all explorers together."""
    joined: Pairs = {}
    for explorer in explorers:
        path = explorer.folder / "pairs.json"
        try:
            tables: Pairs = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        for name, table in tables.items():
            into = joined.setdefault(name, {})
            for pair, count in table.items():
                into[pair] = into.get(pair, 0) + count
    return joined


def reached(table: Mapping[str, int]) -> int:
    """How many pairs of a table some program has reached."""
    return sum(count > 0 for count in table.values())


def totals(explorers: Sequence[Explorer]) -> dict[str, int]:
    """The sums of what the explorers did."""
    return {
        name: sum(int(x.last.get(name, 0)) for x in explorers)
        for name in ("programs", "steps", "on_memory", "processes")
    }


def judged(
    explorers: Sequence[Explorer], rows: Mapping[str, Entry]
) -> list[dict[str, Any]]:
    """The failures, each with its verdict, the first of each kind only."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for explorer in explorers:
        for event in [
            *explorer.failures,
            *([explorer.found] if explorer.found else []),
        ]:
            row = str(event.get("shrunk_row") or event["row"])
            key = (row, event["operation"], event["check"])
            if key in found:
                found[key]["times"] += 1
                continue
            kind = rows[row]["kind"] if row in rows else "?"
            failed, of = event.get("failed"), event.get("of")
            if kind in deviations.UNJUDGED_KINDS:
                verdict = "observed"
            elif of == 0 or event["event"] == "found":
                verdict = UNCONFIRMED  # no time was left to run the program again
            elif failed == 0:
                verdict = f"{UNCONFIRMED} (0 of {of})"
            elif of is not None and failed != of:
                verdict = f"flaky ({failed} of {of})"
            elif event["check"] == "hang":
                verdict = "hung"
            elif event["check"] == "died":
                verdict = "crashed"
            else:
                verdict = "violates"
            found[key] = {**event, "row": row, "verdict": verdict, "times": 1}
    return list(found.values())


def entry_for(failure: Mapping[str, Any], document: Mapping[str, Any]) -> Entry:
    """The part of an entry of deviations.json that would name this failure."""
    return {
        "requirement": failure["row"],
        "explore": [
            {
                "operation": failure["operation"],
                "check": failure["check"],
                "seen": [failure.get("shrunk_seen") or failure["seen"]],
            }
        ],
        "evidence": f"ipclab explore, seed {document['seed']}: {document['machine']}",
    }


def _here(path: Path, document: probe.Probe) -> deviations.Deviations:
    """The known deviations of this driver."""
    return deviations.Deviations(
        deviations.read_deviations(path),
        document["backend"],
        probe.driver(document) if document["backend"] == "cuda" else None,
        [str(gpu["name"]) for gpu in document["gpus"]],
        datetime.datetime.now(tz=datetime.UTC).date(),
        document.get("runtime_version"),
    )


def environment_of(base: Mapping[str, str], number: int) -> dict[str, str]:
    """The variables of an explorer: on the model it has a machine of its own."""
    variables = {**os.environ, **base}
    # Kernels are loaded at the start, because a load may wait for held work.
    variables.setdefault("CUDA_MODULE_LOADING", "EAGER")
    if model.MACHINE in base:
        variables[model.MACHINE] = f"{base[model.MACHINE]} {number}"
    return variables


def _search(
    out: Console,
    request: Request,
    program: Path,
    environment: Mapping[str, str],
    explorers: Sequence[Explorer],
    known: Path,
) -> str | None:
    """Run the explorers side by side; return why the harness is broken, or None."""

    def explore(number: int, explorer: Explorer) -> supervise.Ended:
        command = [
            str(program),
            *("--seconds", str(request.seconds), "--seed", str(explorer.seed)),
            *("--out", str(explorer.folder), "--known", str(known)),
            # On the model, each explorer has a GPU of its own.
            *("--alone", "1" if model.MACHINE in environment else "0"),
        ]
        if request.programs is not None:
            each = -(-request.programs // len(explorers))
            command += ["--programs", str(each)]
        if request.processes is not None:
            command += ["--processes", str(request.processes)]
        if request.gpus is not None:
            command += ["--gpus", str(request.gpus)]
        return supervise.run(
            command,
            timeout=request.seconds + GRACE,
            environment=environment_of(environment, number),
            live=explorer.hear,
        )

    stop = threading.Event()
    ticker = threading.Thread(
        target=_tick, args=(out, explorers, stop, request.verbose)
    )
    ticker.start()
    try:
        with ThreadPoolExecutor(len(explorers)) as pool:
            ends = [
                pool.submit(explore, number, explorer)
                for number, explorer in enumerate(explorers)
            ]
            try:
                ended = [end.result() for end in ends]
            except KeyboardInterrupt:
                supervise.stop_all()  # the pool waits for its threads
                raise
    except OSError as error:
        raise HarnessError(f"{program}: {error.strerror}") from None
    finally:
        stop.set()
        ticker.join()
    for one, explorer in zip(ended, explorers, strict=True):
        if one.survivors:
            return f"explore left processes behind: {', '.join(one.survivors)}"
        if one.timed_out or one.code not in (0, 1):
            return f"explore: {one.how}; it said: {explorer.said or 'nothing'}"
    return None


def _tick(
    out: Console, explorers: Sequence[Explorer], stop: threading.Event, verbose: bool
) -> None:
    """Show the progress: each second on a terminal, else every 15 seconds.

    If `verbose`, every 5 seconds with what each explorer does and where its time went.
    """
    begin = time.monotonic()
    live = out.is_terminal and not verbose
    while not stop.wait(1.0 if live else 5.0 if verbose else 15.0):
        seconds = time.monotonic() - begin
        all_of = totals(explorers)
        rate = all_of["programs"] / seconds
        failures = sum(len(x.failures) for x in explorers)
        pairs = join_pairs(explorers)
        here = sum(reached(x) for x in pairs.values())
        total = sum(len(x) for x in pairs.values())
        out.print(
            f"{seconds:5.0f} s  {all_of['programs']} programs ({rate:.0f}/s), "
            f"{all_of['steps']} steps, {here} of {total} pairs, {failures} failures",
            end="\r" if live else "\n",
            highlight=False,
        )
        for explorer in explorers if verbose else ():
            out.print(Text(f"  {explorer.folder.name}: {_now(explorer)}"))
    if live:
        out.print(" " * (out.width - 1), end="\r")


def _now(explorer: Explorer) -> str:
    """What an explorer has done, where its time went, and what it does now."""
    last = explorer.last
    spent = ", ".join(_spent(last.get("times", {})))
    return (
        f"{last.get('programs', 0)} programs, {last.get('processes', 0)} processes; "
        f"{spent or 'nothing yet'}; now {last.get('doing') or 'the end'}"
    )


def _spent(times: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The seconds of each activity, with its phases: `shrink 9.1 s (run 6.0, …)`."""
    return [
        f"{activity} {sum(phases.values()):.1f} s ("
        + ", ".join(f"{name} {seconds:.1f}" for name, seconds in phases.items())
        + ")"
        for activity, phases in times.items()
    ]


def _shares(times: Sequence[Mapping[str, Mapping[str, float]]]) -> str:
    """Where the time of all explorers went, in percent of it."""
    spent: Counter[str] = Counter()
    for activities in times:
        for phases in activities.values():
            spent.update(phases)
    total = max(0.1, sum(spent.values()))
    return ", ".join(f"{x} {100 * y / total:.0f} %" for x, y in spent.most_common())


def _replay(
    out: Console,
    request: Request,
    program: Path,
    environment: Mapping[str, str],
    rows: Mapping[str, Entry],
) -> int:
    """Run one program several times, and tell its story if it fails."""
    assert request.replay is not None
    heard = Explorer(Path(), 0)
    events: list[Event] = []

    def hear(data: bytes) -> None:
        heard.hear(data)
        for line in data.splitlines():
            if line.startswith(b"{"):
                events.append(json.loads(line))

    ended = supervise.run(
        [str(program), "--replay", str(request.replay), "--times", str(REPLAYS)],
        timeout=REPLAY_LIMIT,
        environment=environment_of(environment, 0),
        live=hear,
    )
    if ended.code == 2:
        raise UsageError(ended.output.strip().splitlines()[0])
    if ended.timed_out or ended.code not in (0, 1) or not events:
        raise HarnessError(f"explore: {ended.how}; it said: {heard.said or 'nothing'}")
    event = events[-1]
    if ended.code == 0:
        out.print(f"as documented, {event['of']} times")
        return 0
    out.print(Text(event["story"]), soft_wrap=True)
    out.print(f"failed {event['failed']} of {event['of']} times")
    _print_row(out, event["row"], rows)
    return 1


def _print_row(out: Console, row: str, rows: Mapping[str, Entry]) -> None:
    if row in rows:
        out.print(Text(f"{row}: {rows[row]['statement']}"))


def _brief(event: Event) -> Event:
    return {x: event[x] for x in ("row", "operation", "check", "seen", "seconds")}


def _explain_file(failure: Mapping[str, Any], rows: Mapping[str, Entry]) -> None:
    """Put the row's statement at the top of the file of plain CUDA."""
    path = Path(f"{failure.get('files', '')}.cu")
    row = str(failure["row"])
    if not failure.get("files") or not path.is_file() or row not in rows:
        return
    statement = textwrap.wrap(f"{row}: {rows[row]['statement']}", 76)
    head = "".join(f"// {line}\n" for line in statement)
    results.write(path, head + path.read_text(encoding="utf-8"))


def _show(
    out: Console, document: Mapping[str, Any], pairs: Pairs, verbose: bool
) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("pairs of", "reached", "of", ""):
        table.add_column(name, justify="left" if name == "pairs of" else "right")
    for name, counts in pairs.items():
        share = 100 * reached(counts) / max(1, len(counts))
        table.add_row(name, str(reached(counts)), str(len(counts)), f"{share:.0f} %")
    out.print(table)
    if verbose:
        for number, (times, slowest) in enumerate(
            zip(document["times"], document["slowest"], strict=True), 1
        ):
            out.print(f"explorer {number}: {', '.join(_spent(times))}")
            for one in slowest:
                mean = 1000 * one["seconds"] / max(1, one["calls"])
                out.print(
                    f"  {one['operation']}: {one['calls']} calls, {mean:.2f} ms each, "
                    f"longest {1000 * one['longest']:.0f} ms",
                    highlight=False,
                )
        for name, counts in pairs.items():
            for pair in (x for x, count in counts.items() if count == 0):
                out.print(Text(f"missing: {name}: {pair}"), soft_wrap=True)
    seen = Counter((x["row"], x["operation"], x["seen"]) for x in document["known"])
    for (row, operation, value), _ in seen.items():
        out.print(Text(f"known deviation {row}: {operation}: {value}"))
    for failure in document["failures"]:
        out.print()
        out.print(
            Text.assemble(
                (f"{failure['verdict']} ", "bold red"),
                f"{failure['row']}: {failure['operation']}, {failure['check']}: "
                f"{failure['seen']}, not {failure['wanted']}",
            ),
            soft_wrap=True,
        )
        if "story" in failure:
            out.print(Text(failure["story"]), soft_wrap=True)
        if "why" in failure:
            out.print(Text(f"not examined to the end: {failure['why']}"))
        if failure.get("files"):
            out.print(Text(f"files: {failure['files']}.*"), soft_wrap=True)
        entry = json.dumps(entry_for(failure, document), indent=1)
        out.print(Text(f"as an entry: {entry}"), soft_wrap=True)
    for unfinished in filter(None, document["unfinished"]):
        out.print(Text(f"at the end of the time it waited for: {unfinished}"))
    out.print(Text(f"time of the explorers: {_shares(document['times'])}"))
    seconds = max(0.1, float(document["seconds"]))
    share = 100 * document["on_memory"] / max(1, document["steps"])
    out.print(
        f"{document['programs']} programs ({document['programs'] / seconds:.1f}/s), "
        f"{document['steps']} steps, {share:.0f} % of them work on memory, "
        f"{document['processes']} processes, {len(document['failures'])} failures",
        highlight=False,
    )
