"""`ipclab sample 01`: one lesson, narrated."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import NoReturn

from ipclab import backend, ctest, model, packed, probe, supervise
from ipclab.ctest import Case
from ipclab.errors import HarnessError, UsageError

# The name of the simulated machine that programs in two terminals share.
BY_HAND = "by hand"


def run(
    build: Path,
    wanted: str,
    choice: str,
    profile: str | None,
    role: tuple[str, str] | None = None,
) -> int:
    """Print what the lesson is, run it, say what its exit code means, and return the
    code.

    Returns 1 if the lesson hung or left processes behind, and 128 + N if signal N ended
    it. `choice` and `profile` have the same meaning as in backend.choose(). `role` has
    the name of a role and the path of a socket. With `role`, this process becomes that
    role. The other role is started in a second terminal, so there is nothing to
    supervise.
    """
    cases = ctest.read(build)
    case = find(cases, wanted)
    assert case.lesson is not None
    topic = case.lesson.partition("_")[2]
    source = ctest.source_folder(build) / "samples" / case.lesson / f"{topic}.cu"
    print(f"{case.lesson}\n\n{first_comment(source)}\n", flush=True)
    chosen = backend.choose(build, cases, choice, profile)
    print(f"on: {probe.first_line(chosen.probe)}\n", flush=True)
    if role is not None:
        become(build, case, role, chosen.environment)
    try:
        ended = supervise.run(
            case.command,
            timeout=case.timeout,
            folder=case.folder,
            environment={**os.environ, **chosen.environment},
            live=_show,
        )
    except (OSError, IndexError) as error:
        raise HarnessError(
            f"{case.name}: cannot be started; {packed.remedy(build)} ({error})"
        ) from None
    print(f"\n{meaning(case, ended)}", flush=True)
    if ended.timed_out or ended.survivors:
        return 1
    return ended.code if ended.code >= 0 else 128 - ended.code


def become(
    build: Path, case: Case, role: tuple[str, str], environment: dict[str, str]
) -> NoReturn:
    """Replace this process by one role of the lesson."""
    machine = {model.MACHINE: os.environ.get(model.MACHINE) or BY_HAND}
    try:
        os.execve(
            case.command[0],
            [*case.command, "--role", *role],
            {**os.environ, **environment, **machine},
        )
    except (OSError, IndexError) as error:
        raise HarnessError(
            f"{case.name}: cannot be started; {packed.remedy(build)} ({error})"
        ) from None


def find(cases: list[Case], wanted: str) -> Case:
    """The lesson called 01, 1, 01_legacy_memory or legacy_memory; UsageError if there
    is none.
    """
    samples = [x for x in cases if x.suite == "sample"]
    lessons = {x.lesson: x for x in samples if x.lesson and x.test == x.lesson}
    for lesson, case in lessons.items():
        number, _, topic = lesson.partition("_")
        if wanted in (lesson, topic) or (
            re.fullmatch("[0-9]+", wanted) and int(wanted) == int(number)
        ):
            return case
    known = ", ".join(sorted(lessons)) or "none"
    raise UsageError(f"no lesson '{wanted}'; this build has: {known}")


def first_comment(source: Path) -> str:
    """The comment at the beginning of a lesson, without its slashes and licence."""
    try:
        text = source.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise HarnessError(f"{source}: {error.strerror}") from None
    lines = []
    for line in text.splitlines():
        if not line.startswith("//"):
            break
        if "SPDX-License-Identifier" not in line:
            lines.append(line.removeprefix("//").removeprefix(" "))
    return "\n".join(lines).strip()


def meaning(case: Case, ended: supervise.Ended) -> str:
    """The meaning of the end of a lesson, in words."""
    if ended.timed_out:
        return f"It was still running after {case.timeout:g} s and was ended: it hung."
    if ended.survivors:
        return f"It left processes behind: {', '.join(ended.survivors)}."
    if ended.signal:
        return f"It crashed: {ended.how}."
    if ended.code == 0:
        return "Exit code 0: it did what the lesson says, and the data proves it."
    if ended.code == case.skip_code:
        return (
            f"Exit code {ended.code}: this machine cannot run it; the line SKIP says "
            f"why. `{packed.command()} doctor` says what to do."
        )
    return (
        f"Exit code {ended.code}: it did not do what the lesson says. "
        "A line that begins with -> says which error a call returned; "
        f"`{packed.command()} explain CODE` says what the error means."
    )


def _show(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
