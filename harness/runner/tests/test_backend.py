"""Which CUDA a run uses: that of a GPU, or the reference model."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pytest

from conftest import NO_GPU, PROBE, Build, machine
from ipclab import model


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


def test_each_run_has_a_simulated_machine_of_its_own(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(model.MACHINE, raising=False)
    machine(build, NO_GPU)
    seen = build.root / "machines"
    build.sample(
        f"open({str(seen)!r}, 'a').write(os.environ[{model.MACHINE!r}] + '\\n')"
    )
    for folder in ("one", "two"):
        build.ipclab("run", "--build", "build", "--results", folder)
    first, second = seen.read_text().splitlines()
    assert first.startswith("run ") and first != second


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
        (
            None,
            "the programs contain the static CUDA runtime; link with -cudart shared",
        ),
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
