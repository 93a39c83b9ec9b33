"""What decides the results under a fault, as digests: whether --resume may continue."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from ipclab import ctest, declarations, manifest, packed
from ipclab.mutants import faults
from ipclab.mutants.faults import Catalogue
from ipclab.run import Run

ON_MODEL = ("model", "trace")  # folders of harness/ that no test on a GPU uses


def of(
    catalogue: Catalogue, sound: Run, suite: str
) -> tuple[str, dict[str, str], dict[str, str]]:
    """What decides the results under a fault: the digest of everything that all
    tests and faults share, and for each test of a suite and each fault the digest
    of what is its own.

    They cover the sources and not the programs: the programs may be built again
    before --resume, and two builds of the same sources differ. The sources of the
    model and of the recorder decide nothing on a GPU. Of faults.json the digests
    cover only what changes a test's result, not what the result means.
    """
    source = ctest.source_folder(sound.settings.build)
    sources = packed.sources(sound.settings.build) or manifest.of_sources(source)
    on_model = sound.probe["backend"] == "model"
    shared: dict[str, str | None] = {}
    of_folder: dict[str, dict[str, str | None]] = defaultdict(dict)
    for name, digest in sources.items():
        top, folder, *rest = Path(name).parts
        if top == manifest.DECLARED or declarations.has(name):
            continue  # see `of_fault`
        if top in ("conformance", "samples") and rest and folder[0].isdigit():
            of_folder[folder][name] = digest
        elif "tests" not in rest and (on_model or folder not in ON_MODEL):
            shared[name] = digest
    common = {
        "sources": shared,
        "hooks": manifest.of_file(source / faults.OF_MODEL),
    }
    of_fault = {
        x.name: manifest.of_document(
            {
                "fault": [x.kind, x.function, x.operator, x.gpus, x.profile],
                "source": sources.get(
                    f"{manifest.DECLARED}/{x.name}", sources.get(x.file)
                ),
            }
        )
        for x in catalogue.faults
    }
    tests = {
        case.name: manifest.of_document(
            {
                "test": [*case.command[1:], case.timeout, case.gpus, case.alone],
                "sources": of_folder[case.lesson or ""],
                "kind": sound.catalogue.get(case.requirement or "", {}).get("kind"),
                "deviations": [
                    x for x in sound.deviations.entries if x["test"] == case.test
                ],
            }
        )
        for case in sound.everything
        if case.suite == suite
    }
    return manifest.of_document(common), tests, of_fault
