"""`ipclab explore --faults N`: how many wrong drivers does the search notice?

Each of N named faults of the library of faults (harness/faults) is put in front of the
reference model, and one explorer makes the same programs until it notices something.
The faults are always the same ones, so two versions can be compared. Each fault that
was not noticed has a kind, which says why.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import random
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ipclab import model, results, schema, supervise
from ipclab.errors import HarnessError, UsageError
from ipclab.explore import GRACE, Explorer, Request, choose, environment_of
from ipclab.mutants import faults

SEED, SAMPLE = 45, 300  # the faults are the first ones of this sample
PROGRAMS = 200  # under each fault, if the caller names no number
# Why no program can show a fault (in the source tree): by fault, row, subject of rows.
REACH = Path("harness/explore/reach.json")
_REACH: schema.Schema = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "why": {"type": "string", "minLength": 1},
            "rows": {"type": "array", "items": {"type": "string", "minLength": 1}},
            "faults": {"type": "array", "items": {"type": "string", "minLength": 1}},
        },
        "required": ["why", "rows", "faults"],
        "additionalProperties": False,
    },
}
# The kinds of faults that were not noticed.
NOTICED = "noticed"
NO_CALL = "no program makes the call"
RARE = "the call is made, the fault's condition did not come"
NO_LOOK = "it took effect, and no check saw it"
NO_TIME = "the time was over before the programs"


@dataclass(frozen=True)
class Trial:
    """What one explorer did under a fault."""

    fault: str
    rows: tuple[str, ...]  # that the fault breaks
    fired: bool  # whether the fault took effect
    noticed: str  # what the explorer noticed: row, operation, check, value; or ""
    kind: str  # NOTICED, why it cannot be reached (REACH), or one of the kinds
    seconds: float
    programs: int
    ended: str  # why the explorer ended early, if it neither searched nor noticed


class Reach:
    """Which faults no program can show, and why."""

    def __init__(self, path: Path) -> None:
        """Read the file; HarnessError if it is malformed."""
        try:
            self._entries = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise HarnessError(f"{path}: {error}") from None
        if wrong := schema.error(self._entries, _REACH, path.name):
            raise HarnessError(f"{path}: {wrong}")

    def why_not(self, fault: faults.Fault) -> str | None:
        """Why no program can show the fault; None if a program could."""
        named = {*fault.rows, *(row.partition("-")[0] for row in fault.rows)}
        for entry in self._entries:
            if fault.name in entry["faults"] or named & {*entry["rows"]}:
                return str(entry["why"])
        return None

    @property
    def faults(self) -> list[str]:
        """All faults that the file names."""
        return [x for entry in self._entries for x in entry["faults"]]


def sample(catalogue: Iterable[faults.Fault], count: int) -> list[faults.Fault]:
    """The first `count` faults of the sample; UsageError if it has not so many."""
    named = sorted(
        (x for x in catalogue if x.kind == faults.NAMED and not x.allowed),
        key=lambda x: x.name,
    )
    chosen = random.Random(SEED).sample(named, min(SAMPLE, len(named)))
    if count > len(chosen):
        raise UsageError(f"the sample has {len(chosen)} faults, not {count}")
    return chosen[:count]


def run(out: Console, request: Request) -> int:
    """Search under each fault of a sample; return the exit code of the command.

    UsageError if the reference model was not asked for.
    """
    assert request.faults is not None
    chosen, program = choose(out, request)
    if chosen.probe["backend"] != "model":
        raise UsageError("--faults needs the reference model: --backend model")
    measure(
        *(out, request.build, program, chosen.environment),
        count=request.faults,
        programs=request.programs or PROGRAMS,
        seconds=request.seconds,
        seed=request.seed,
        jobs=request.jobs or min(4, os.cpu_count() or 1),
        results_folder=request.results or results.default_folder("-explore"),
    )
    return 0


def measure(
    out: Console,
    build: Path,
    program: Path,
    base: Mapping[str, str],
    *,
    count: int,
    programs: int,
    seconds: int,
    seed: int,
    jobs: int,
    results_folder: Path,
) -> list[Trial]:
    """Make so many programs under each fault of the sample, for `seconds` at most.

    Writes `faults.json` into the folder of results, and prints a line for each fault
    and a table of their kinds. HarnessError if an explorer leaves processes behind.
    """
    catalogue = faults.read(build)
    chosen = sample(catalogue.faults, count)
    reach = Reach(catalogue.source / REACH)
    known = {x.name for x in catalogue.faults}
    if strange := [x for x in reach.faults if x not in known]:
        raise HarnessError(f"{REACH}: there is no fault {strange[0]}")
    # Entry points that a program does not name are never called by it.
    called = program.read_bytes()
    try:
        results_folder.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"{results_folder}: {error.strerror}") from None
    trials: list[Trial] = []
    with (
        tempfile.TemporaryDirectory() as temporary,
        ThreadPoolExecutor(jobs) as pool,
    ):
        running = [
            pool.submit(
                _try,
                *(program, catalogue.library, base, fault),
                *(programs, seconds, seed, Path(temporary) / fault.name),
                reach.why_not(fault),
                re.search(rb"\b%b\b" % fault.function.encode(), called) is not None,
            )
            for fault in chosen
        ]
        try:
            for one in running:
                trials.append(one.result())
                _tell(out, trials[-1])
        except BaseException:
            supervise.stop_all()  # the pool waits for its threads
            for one in running:
                one.cancel()
            raise
    results.write(
        results_folder / "faults.json",
        json.dumps([asdict(x) for x in trials], indent=1) + "\n",
    )
    out.print(table_of(trials))
    out.print(summary(trials), highlight=False)
    return trials


def table_of(trials: Sequence[Trial]) -> Table:
    """How many faults are of which kind, the most frequent kind first."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("faults", justify="right")
    table.add_column("kind")
    for kind, count in Counter(x.kind for x in trials).most_common():
        table.add_row(str(count), Text(kind))
    return table


def summary(trials: Sequence[Trial]) -> str:
    """How many faults were noticed, in one line."""
    noticed = sum(bool(x.noticed) for x in trials)
    fired = sum(x.fired for x in trials)
    within = sum(x.kind in (NOTICED, NO_CALL, RARE, NO_LOOK, NO_TIME) for x in trials)
    return (
        f"{noticed} of {len(trials)} faults noticed "
        f"({100 * noticed / max(1, len(trials)):.0f} %); {within} of them are within "
        f"reach ({100 * noticed / max(1, within):.0f} %); {fired} took effect"
    )


def _tell(out: Console, trial: Trial) -> None:
    if trial.noticed:
        text = (
            f"noticed: {trial.fault} after {trial.programs} programs, "
            f"{trial.seconds:.0f} s: {trial.noticed}"
        )
    else:
        effect = "took effect" if trial.fired else "had no effect"
        text = f"not noticed: {trial.fault} ({', '.join(trial.rows)}), {effect}"
        text += f" in {trial.programs} programs: {trial.kind}"
        text += f"; {trial.ended}" if trial.ended else ""
    out.print(Text(text), soft_wrap=True)


def _try(
    program: Path,
    library: Path,
    base: Mapping[str, str],
    fault: faults.Fault,
    programs: int,
    seconds: int,
    seed: int,
    folder: Path,
    why_not: str | None,
    is_called: bool,
) -> Trial:
    """Search under one fault; may be called in any thread."""
    state = folder / "state"
    state.mkdir(parents=True)
    log = folder / "log"
    log.touch()
    before = os.environ.get("LD_PRELOAD")
    environment = {
        **environment_of(base, 0),
        "LD_PRELOAD": f"{before}:{library}" if before else str(library),
        "IPCLAB_FAULT_STATE": str(state),
        "IPCLAB_FAULT_LOG": str(log),
        model.MACHINE: str(folder),
        **fault.environment,
    }
    if profile := fault.profile or ("two-gpus" if fault.gpus > 1 else None):
        environment["IPCLAB_PROFILE"] = profile
    explorer = Explorer(folder, seed)
    ended = supervise.run(
        [
            str(program),
            *("--seconds", str(seconds), "--seed", str(seed), "--alone", "1"),
            *("--failures", "1", "--shrink-seconds", "0", "--programs", str(programs)),
        ],
        timeout=seconds + GRACE,
        environment=environment,
        live=explorer.hear,
    )
    if ended.survivors:
        raise HarnessError(
            f"explore left processes behind: {', '.join(ended.survivors)}"
        )
    failure = explorer.failures[0] if explorer.failures else None
    fired = log.read_text(errors="replace").startswith("fired ")
    made = int(explorer.last.get("programs", 0))
    if failure is not None:
        kind = NOTICED
    elif why_not is not None:
        kind = why_not
    elif fired:
        kind = NO_LOOK
    elif not is_called:
        kind = NO_CALL
    else:
        kind = RARE if made >= programs else NO_TIME
    return Trial(
        fault=fault.name,
        rows=fault.rows,
        fired=fired,
        noticed=""
        if failure is None
        else f"{failure['row']}: {failure['operation']}, {failure['check']}: "
        f"{failure['seen']}, not {failure['wanted']}",
        kind=kind,
        seconds=round(ended.seconds, 1),
        programs=made,
        ended=""
        if ended.code in (0, 1)
        else f"{ended.how}; it said: {explorer.said or 'nothing'}",
    )
