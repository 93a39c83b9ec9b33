"""Which CUDA the programs use: the machine's own, or the reference model."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ipclab import model, probe
from ipclab.ctest import Case
from ipclab.errors import HarnessError, UsageError
from ipclab.probe import Probe


@dataclass(frozen=True)
class Backend:
    """What the probe said, and the variables that select this CUDA for a program."""

    probe: Probe
    environment: dict[str, str]


def choose(
    build: Path, cases: Sequence[Case], wanted: str = "auto", profile: str | None = None
) -> Backend:
    """The backend of a run: a GPU if there is one, otherwise the reference model.

    `wanted` is one of model.BACKENDS; if there is a `profile` (which machine the model
    imitates), the backend is the model. Without a GPU, the backend is `none` if
    `wanted` is "cuda" or the model is not built. Raises UsageError if the model was
    requested and is not built, and HarnessError if the probe fails or the programs do
    not load the model.
    """
    asked_for_model = wanted == "model" or profile is not None
    if not asked_for_model:
        native = probe.ask(cases)
        if wanted == "cuda" or native["backend"] != "none":
            return Backend(native, {})
    try:
        folder = model.folder(build)
    except UsageError:
        if asked_for_model:
            raise
        return Backend(native, {})
    environment = model.environment(folder, profile)
    document = probe.ask(cases, environment)
    _require_model(folder, document)
    # A profile may have no GPU; the backend is still the model.
    return Backend({**document, "backend": "model"}, environment)


def _require_model(folder: Path, document: Probe) -> None:
    """Raise HarnessError, with the cause, unless the model was loaded."""
    loaded = str(document.get("runtime_library") or "")
    if loaded and Path(loaded).resolve().parent == folder:
        return
    if "libcudart" not in Path(loaded).name:
        cause = "the programs contain the static CUDA runtime; link with -cudart shared"
    else:
        cause = (
            f"{loaded} was loaded instead; an RPATH or LD_PRELOAD goes before "
            "LD_LIBRARY_PATH"
        )
    raise HarnessError(f"the reference model was not loaded: {cause}")
