"""`ipclab explore --faults N`: how many wrong drivers does the search notice?

Each of N named faults of the library of faults (harness/faults) is put in front of the
reference model, and one explorer searches until it notices something or its time is
over. The faults are always the same ones, so two versions can be compared.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ipclab import model, results, supervise
from ipclab.errors import HarnessError, UsageError
from ipclab.explore import GRACE, Explorer, Request, choose, environment_of
from ipclab.mutants import faults

SEED, SAMPLE = 45, 300  # the faults are the first ones of this sample


@dataclass(frozen=True)
class Trial:
    """What one explorer did under a fault."""

    fault: str
    rows: tuple[str, ...]  # that the fault breaks
    fired: bool  # whether the fault took effect
    noticed: str  # what the explorer noticed: row, operation, check, value; or ""
    seconds: float
    programs: int
    ended: str  # why the explorer ended early, if it neither searched nor noticed


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
    seconds: int,
    seed: int,
    jobs: int,
    results_folder: Path,
) -> list[Trial]:
    """Search under each fault of the sample for `seconds` at most.

    Writes `faults.json` into the folder of results, and prints a line for each fault
    that was not noticed. HarnessError if an explorer leaves processes behind.
    """
    catalogue = faults.read(build)
    chosen = sample(catalogue.faults, count)
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
                *(seconds, seed, Path(temporary) / fault.name),
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
    out.print(summary(trials), highlight=False)
    return trials


def summary(trials: Sequence[Trial]) -> str:
    """How many faults were noticed, in one line."""
    noticed = sum(bool(x.noticed) for x in trials)
    fired = sum(x.fired for x in trials)
    share = 100 * noticed / max(1, len(trials))
    return (
        f"{noticed} of {len(trials)} faults noticed ({share:.0f} %); "
        f"{fired} took effect"
    )


def _tell(out: Console, trial: Trial) -> None:
    if trial.noticed:
        text = f"noticed: {trial.fault} after {trial.seconds:.0f} s: {trial.noticed}"
    else:
        effect = "took effect" if trial.fired else "had no effect"
        text = f"not noticed: {trial.fault} ({', '.join(trial.rows)}), {effect}"
        text += f"; {trial.ended}" if trial.ended else ""
    out.print(Text(text), soft_wrap=True)


def _try(
    program: Path,
    library: Path,
    base: Mapping[str, str],
    fault: faults.Fault,
    seconds: int,
    seed: int,
    folder: Path,
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
    if fault.profile is not None:
        environment["IPCLAB_PROFILE"] = fault.profile
    explorer = Explorer(folder, seed)
    ended = supervise.run(
        [
            str(program),
            *("--seconds", str(seconds), "--seed", str(seed), "--alone", "1"),
            *("--failures", "1", "--shrink-seconds", "0"),
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
    return Trial(
        fault=fault.name,
        rows=fault.rows,
        fired=log.read_text(errors="replace").startswith("fired "),
        noticed=""
        if failure is None
        else f"{failure['row']}: {failure['operation']}, {failure['check']}: "
        f"{failure['seen']}, not {failure['wanted']}",
        seconds=round(ended.seconds, 1),
        programs=int(explorer.last.get("programs", 0)),
        ended=""
        if ended.code in (0, 1)
        else f"{ended.how}; it said: {explorer.said or 'nothing'}",
    )
