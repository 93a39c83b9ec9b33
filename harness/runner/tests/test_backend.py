"""Which CUDA a run meets, and whether a mutant is told from a sound driver."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import PROBE, Build

NO_GPU = {
    **PROBE,
    "backend": "none",
    "gpus": [],
    "capabilities": [
        {"name": "gpus", "available": False, "reason": "cudaErrorNoDevice (100)"}
    ],
}
MODEL = {**PROBE, "backend": "model", "gpus": PROBE["gpus"][:1]}


def machine(build: Build, native: dict[str, Any], **model: Any) -> Path:
    """Let the probe answer `native`, and as the model where that is in front."""
    folder = build.folder / "model"
    folder.mkdir()
    (folder / "libcudart.so.13").touch()
    document = {
        **MODEL,
        "runtime_library": str(folder.resolve() / "libcudart.so.13"),
        **model,
    }
    build.probe(
        "import os\n"
        "front = os.environ.get('LD_LIBRARY_PATH', '').split(':')[0]\n"
        f"model = front == {str(folder.resolve())!r}\n"
        f"print({json.dumps(document)!r} if model else {json.dumps(native)!r})\n"
    )
    return folder


def test_a_gpu_goes_before_the_model(build: Build) -> None:
    machine(build, PROBE)
    build.sample("assert 'build/model' not in os.environ.get('LD_LIBRARY_PATH', '')")
    outcome = build.run()
    assert outcome.code == 0
    assert outcome.text.startswith("2 x NVIDIA H200")
    assert outcome.only["backend"] == "cuda"


def test_the_model_where_there_is_no_gpu(build: Build) -> None:
    machine(build, NO_GPU)
    build.sample("assert os.environ['LD_LIBRARY_PATH'].split(':')[0].endswith('model')")
    outcome = build.run()
    assert outcome.code == 0, outcome.text
    assert outcome.text.splitlines()[0] == (
        "reference model, 1 simulated GPU; says nothing about a driver"
    )
    assert outcome.only["backend"] == "model"
    assert outcome.json["fingerprint"]["backend"] == "model"


def test_no_gpu_and_no_model_judges_nothing(build: Build) -> None:
    build.probe(NO_GPU)
    build.sample("print('SKIP: no GPU'); sys.exit(77)")
    outcome = build.run()
    assert outcome.code == 1
    assert outcome.text.startswith("no GPU: cudaErrorNoDevice (100)")


def test_the_model_can_be_asked_for(build: Build) -> None:
    machine(build, PROBE)
    build.sample("assert 'IPCLAB_PROFILE' not in os.environ")
    assert build.run("--backend", "model").only["backend"] == "model"


def test_a_profile_asks_for_the_model(build: Build) -> None:
    machine(build, PROBE)
    build.sample("assert os.environ['IPCLAB_PROFILE'] == 'two-gpus'")
    outcome = build.run("--profile", "two-gpus")
    assert (outcome.code, outcome.only["backend"]) == (0, "model")


def test_a_profile_without_gpus_is_the_model_all_the_same(build: Build) -> None:
    machine(build, PROBE, backend="none", gpus=[])
    build.sample("print('SKIP: old driver'); sys.exit(77)")
    assert build.run("--profile", "old-driver").only["backend"] == "model"


def test_cuda_alone_can_be_asked_for(build: Build) -> None:
    machine(build, NO_GPU)
    build.sample("print('SKIP: no GPU'); sys.exit(77)")
    assert build.run("--backend", "cuda").only["backend"] == "none"


@pytest.mark.parametrize(
    ("loaded", "cause"),
    [
        (None, "the programs carry the CUDA runtime inside; link with -cudart shared"),
        (
            "/opt/cuda/lib/libcudart.so.13",
            "/opt/cuda/lib/libcudart.so.13 was loaded instead; an RPATH or LD_PRELOAD",
        ),
    ],
)
def test_another_library_than_the_model_is_told(
    build: Build, loaded: str | None, cause: str
) -> None:
    machine(build, NO_GPU, runtime_library=loaded)
    build.sample("pass")
    outcome = build.run()
    assert outcome.code == 3
    assert cause in outcome.text
    assert len(outcome.text.splitlines()) == 1


def test_a_model_that_is_not_built_cannot_be_asked_for(build: Build) -> None:
    build.sample("pass")
    outcome = build.run("--backend", "model")
    assert outcome.code == 2
    assert "no reference model here; build it with: cmake --build" in outcome.text


def test_a_lesson_says_where_it_runs(build: Build) -> None:
    machine(build, NO_GPU)
    source = build.source / "samples/01_legacy_memory"
    source.mkdir(parents=True)
    (source / "legacy_memory.cu").write_text("// Lesson 01: lend.\n")
    build.sample("pass")
    done = build.ipclab("sample", "01", "--build", "build")
    assert done.returncode == 0
    assert "on: reference model, 1 simulated GPU" in done.stdout


# --- mutants ----------------------------------------------------------------

NOTICES = "m = os.environ.get('IPCLAB_MUTANT')\n"


def mutants(build: Build, *entries: dict[str, Any]) -> None:
    """Write mutants.json."""
    folder = build.source / "harness/model"
    folder.mkdir(parents=True)
    full = [{"entry": "IpcOpenMem", "what": "is wrong", **entry} for entry in entries]
    (folder / "mutants.json").write_text(json.dumps(full))


def results_of(build: Build, folder: str) -> dict[str, dict[str, str]]:
    """Mutant, row: result; of the folder's mutants.json."""
    document = json.loads((build.root / folder / "mutants.json").read_text())
    return {
        mutant["name"]: {x["row"]: x["result"] for x in mutant["results"]}
        for mutant in document["mutants"]
    }


def test_a_mutant_is_killed_survives_or_is_open(build: Build) -> None:
    machine(build, NO_GPU)
    mutants(
        build,
        {"name": "noticed", "rows": ["LMEM-01", "LMEM-99"]},
        {"name": "unnoticed", "rows": ["LMEM-01"]},
        {"name": "seen", "rows": ["OBS-01"]},
        {"name": "ok-variant", "rows": ["LMEM-01"]},
    )
    build.conformance(
        f"{NOTICES}record(outcome='violates' if m == 'noticed' else 'conforms')\n"
        "sys.exit(m == 'noticed')"
    )
    build.conformance("record()", name="Suite.Seen", row="OBS-01")
    done = build.ipclab("mutants", "--build", "build", "--results", "kills")
    assert done.returncode == 1, done.stdout
    assert results_of(build, "kills") == {
        "noticed": {"LMEM-01": "killed", "LMEM-99": "open"},
        "unnoticed": {"LMEM-01": "survived"},
        "seen": {"OBS-01": "observed"},
        "ok-variant": {"LMEM-01": "passed"},
    }
    assert "4 mutants: 1 killed, 1 passed, 1 survived, 1 open" in done.stdout
    assert build.ipclab("mutants", "--build", "build", "noticed").returncode == 0


def noticed(build: Build) -> None:
    """One mutant, noticed by the one test of its row."""
    machine(build, NO_GPU)
    mutants(build, {"name": "bad", "rows": ["LMEM-01"]})
    build.conformance(
        f"{NOTICES}record(outcome='violates' if m else 'conforms'); sys.exit(bool(m))"
    )


def test_the_matrix_goes_into_the_page_of_a_run(build: Build) -> None:
    noticed(build)
    assert build.run().code == 0
    page = build.root / "out/report.html"
    assert "Kill matrix" not in page.read_text()
    for text in ("", "holds a kill matrix already; name another"):
        done = build.ipclab("mutants", "--build", "build", "--results", "out")
        assert done.returncode == (2 if text else 0)
        assert text in done.stdout
    assert "bad, LMEM-01: killed" in page.read_text()
    assert "Every judged row that has a test has failed" in page.read_text()


def test_a_matrix_of_its_own_has_a_folder(build: Build) -> None:
    noticed(build)
    done = build.ipclab("mutants", "--build", "build")
    assert done.returncode == 0
    (folder,) = (build.root / "results").iterdir()
    assert folder.name.endswith("Z-mutants")
    page = (folder / "mutants.html").read_text()
    assert "Made on the reference model" in page
    assert not re.search(r'(src|href)="(?!#)', page)  # self-contained
    assert f"results/{folder.name}/mutants.html" in done.stdout


def test_a_folder_that_cannot_be_made_is_told_at_once(build: Build) -> None:
    noticed(build)
    done = build.ipclab("mutants", "--build", "build", "--results", "/dev/null/x")
    assert done.returncode == 2
    assert "/dev/null/x: Not a directory" in done.stdout
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda x: x.pop("mutants"), "matrix.mutants: is missing"),
        (lambda x: x.update(seconds=-1), "matrix.seconds: -1 is below 0"),
        (lambda x: x["rows"].clear(), "matrix.rows: LMEM-01 is missing"),
        (
            lambda x: x["mutants"][0]["results"][0].update(result="good"),
            '"good" is none of killed',
        ),
        (None, "is no JSON"),
    ],
)
def test_a_damaged_matrix_is_told(
    build: Build, damage: Callable[[Any], Any] | None, text: str
) -> None:
    noticed(build)
    assert build.run().code == 0
    build.ipclab("mutants", "--build", "build", "--results", "out")
    path = build.root / "out/mutants.json"
    document = json.loads(path.read_text())
    before = (build.root / "out/report.html").read_text()
    if damage:
        damage(document)
    path.write_text(json.dumps(document) if damage else "{")
    done = build.ipclab("report", "out")
    assert done.returncode == 2
    assert text in done.stdout
    assert "remove it or make it again" in done.stdout
    assert (build.root / "out/report.html").read_text() == before


def test_a_flagged_variant_fails(build: Build) -> None:
    machine(build, NO_GPU)
    mutants(build, {"name": "ok-variant", "rows": ["LMEM-01"]})
    build.conformance(f"{NOTICES}record(outcome='crashed' if m else 'conforms')")
    done = build.ipclab("mutants", "--build", "build")
    assert done.returncode == 1
    assert "LMEM-01 flagged" in done.stdout


def test_a_test_that_cannot_judge_is_no_kill(build: Build) -> None:
    machine(build, NO_GPU)
    mutants(build, {"name": "bad", "rows": ["LMEM-01"]})
    build.conformance(f"{NOTICES}record(outcome='broken' if m else 'conforms')")
    done = build.ipclab("mutants", "--build", "build")
    assert done.returncode == 1
    assert "LMEM-01 broken" in done.stdout


def test_a_judged_row_that_no_mutant_fails_is_not_proved(build: Build) -> None:
    machine(build, NO_GPU)
    mutants(build, {"name": "ok-variant", "rows": ["LMEM-01"]})
    build.conformance("record()")
    build.conformance("record()", name="Suite.Limit", row="LIM-01")
    done = build.ipclab("mutants", "--build", "build")
    assert done.returncode == 1
    assert "no mutant is killed by LMEM-01\n" in done.stdout


def test_rules_name_what_proves_a_row(build: Build) -> None:
    mutants(build, {"name": "bad", "rows": ["LMEM-01"]})
    build.conformance("record()")
    assert build.run().code == 0
    done = build.ipclab("rules", "--build", "build")
    (line,) = (x for x in done.stdout.splitlines() if x.startswith("LMEM-01"))
    assert line.split()[:4] == ["LMEM-01", "MUST", "1", "1"]
    told = build.ipclab(
        "rules", "--build", "build", "--results", "out", "lmem-01"
    ).stdout
    assert "conformance.01_legacy_memory.Suite.Name  conforms" in told
    assert "bad: is wrong" in told
    done = build.ipclab("rules", "--build", "build", "LMEM-99")
    assert done.returncode == 2
    assert "no row 'LMEM-99'" in done.stderr + done.stdout


def test_a_mutant_has_its_profile(build: Build) -> None:
    machine(build, NO_GPU)
    mutants(build, {"name": "bad", "rows": ["LMEM-01"], "profile": "tegra"})
    build.conformance(
        f"{NOTICES}tegra = os.environ.get('IPCLAB_PROFILE') == 'tegra'\n"
        "bad = m and tegra\n"
        "record(outcome='violates' if bad else 'conforms'); sys.exit(bool(bad))"
    )
    assert build.ipclab("mutants", "--build", "build").returncode == 0


def test_the_sound_model_has_to_pass_first(build: Build) -> None:
    machine(build, NO_GPU)
    mutants(build, {"name": "bad", "rows": ["LMEM-01"]})
    build.conformance("record(outcome='violates'); sys.exit(1)")
    done = build.ipclab("mutants", "--build", "build")
    assert done.returncode == 3
    assert "violates on the sound model: mend that first" in done.stdout


def test_an_unknown_mutant_is_refused(build: Build) -> None:
    machine(build, NO_GPU)
    mutants(build, {"name": "bad", "rows": ["LMEM-01"]})
    done = build.ipclab("mutants", "--build", "build", "typo")
    assert done.returncode == 2
    assert "no mutant 'typo'" in done.stdout
