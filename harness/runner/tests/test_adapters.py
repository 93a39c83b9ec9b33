"""ci/adapters: the suite under ReFrame, and as a plugin of Sonobuoy."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml  # type: ignore[import-untyped]

from conftest import NO_GPU, SOURCE, Build

ADAPTERS = SOURCE.parents[2] / "ci/adapters"


@pytest.fixture
def command(build: Build) -> Path:
    """The command `ipclab` for a build, on PATH as the wheel installs it."""
    folder = build.root / "path"
    folder.mkdir()
    command = folder / "ipclab"
    command.write_text(
        f"#!/bin/sh\nexport PYTHONPATH={SOURCE} PYTHONDONTWRITEBYTECODE=1\n"
        f'exec {sys.executable} -P -m ipclab "$@" --build {build.folder}\n'
    )
    command.chmod(0o755)
    return command


def reframe(build: Build, command: Path, *words: str) -> tuple[int, str, Any]:
    """Run one session of ReFrame; return its exit code, its output and its report."""
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("reframe")), "-r", "--nocolor"),
            *("-c", str(ADAPTERS / "reframe.py"), "--prefix", str(build.root / "rfm")),
            *("--report-file", str(build.root / "report.json")),
            *("-S", f"executable={command}", *words),
        ],
        cwd=build.root,
        env={
            **os.environ,
            "HOME": str(build.root),
            "TMPDIR": str(build.root),  # the folder where ReFrame leaves its log
            "RFM_ENABLE_RESULTS_STORAGE": "n",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    report = json.loads((build.root / "report.json").read_text())
    return done.returncode, done.stdout + done.stderr, report


def test_reframe_runs_it(build: Build, command: Path) -> None:
    build.conformance("record()")
    build.sample("print('done')")
    code, text, report = reframe(build, command)
    assert code == 0, text
    assert "PASSED" in text and "Ran 1/1 test case(s)" in text
    [case] = report["runs"][0]["testcases"]
    assert (case["name"], case["result"]) == ("IpclabSuite", "pass")
    [kept] = (build.root / "rfm/output").rglob("run.json")
    assert json.loads(kept.read_text())["counts"] == {"conforms": 2}


def test_reframe_fails_with_it(build: Build, command: Path) -> None:
    build.conformance("violates(reason='wrong data')")
    code, text, _ = reframe(build, command)
    assert code == 1
    assert "ipclab: finished, exit code 1: 1 violates" in text


def test_reframe_passes_options_on(build: Build, command: Path) -> None:
    build.conformance("record()")
    build.sample("sys.exit(1)")
    code, text, _ = reframe(build, command, "-S", "options=-k LMEM")
    assert code == 0, text


def test_reframe_judges_drivers(build: Build, command: Path) -> None:
    build.probe(NO_GPU)
    build.conformance("record(outcome='not applicable', reason='no GPU')")
    code, text, _ = reframe(build, command)
    assert code == 1
    assert "no working driver: no GPU: cudaErrorNoDevice (100)" in text


def test_reframe_takes_no_run_for_a_pass(build: Build, command: Path) -> None:
    command.write_text("#!/bin/sh\nexit 0\n")
    code, text, _ = reframe(build, command)
    assert code == 1
    assert "no results of ipclab" in text


# --- Sonobuoy ---------------------------------------------------------------------


def plugin() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ADAPTERS / "sonobuoy.yaml").read_text())
    return document


def test_the_plugin_makes_a_good_daemon_set() -> None:
    """The plugin's container goes into the pod. Sonobuoy adds its own worker."""
    made = plugin()
    assert made["sonobuoy-config"]["driver"] == "DaemonSet"
    assert made["sonobuoy-config"]["plugin-name"] == "ipclab"
    pod = made["podSpec"]
    pod["containers"] = [made["spec"]]
    pod["volumes"] = [*pod["volumes"], {"name": "results", "emptyDir": {}}]
    labels = {"app": "ipclab"}
    document = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "ipclab"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    kubernetes_validate.validate(document, "1.31", strict=True)
    mounted = {x["name"] for x in made["spec"]["volumeMounts"]}
    assert mounted == {x["name"] for x in pod["volumes"]}


def worker(folder: Path, path: str) -> Path:
    """Run the plugin's command; return the path that the file `done` contains."""
    folder.mkdir()
    done = subprocess.run(
        plugin()["spec"]["command"],
        env={
            **os.environ,
            "PATH": path,
            "RESULTS_DIR": str(folder),
            "IPCLAB_BACKEND": "cuda",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return Path((folder / "done").read_text())


def archive(named: Path) -> dict[str, bytes]:
    """The files that the plugin hands over."""
    with tarfile.open(named) as packed:
        return {
            x.name: stream.read() for x in packed if (stream := packed.extractfile(x))
        }


def test_the_plugin_hands_over_results(build: Build, command: Path) -> None:
    build.conformance("violates()")
    files = archive(
        worker(build.root / "out", f"{command.parent}:{os.environ['PATH']}")
    )
    assert {"run/run.json", "run/records.jsonl", "run/log.txt"} <= files.keys()
    for name in ("junit.xml", "exit.xml"):
        assert len(xml.fromstring(files[f"run/{name}"]).findall(".//failure")) == 1


def test_the_plugin_passes_with_the_run(build: Build, command: Path) -> None:
    build.conformance("record()")
    files = archive(
        worker(build.root / "out", f"{command.parent}:{os.environ['PATH']}")
    )
    for name in ("junit.xml", "exit.xml"):
        tree = xml.fromstring(files[f"run/{name}"])
        assert tree.findall(".//testcase") and not tree.findall(".//failure")


def test_a_node_without_a_driver_fails(build: Build, command: Path) -> None:
    """All tests are skipped, so the exit code of the run is what fails."""
    build.probe(NO_GPU)
    build.conformance("record(outcome='not applicable', reason='no GPU')")
    files = archive(
        worker(build.root / "out", f"{command.parent}:{os.environ['PATH']}")
    )
    assert not xml.fromstring(files["run/junit.xml"]).findall(".//failure")
    [failure] = xml.fromstring(files["run/exit.xml"]).findall(".//failure")
    assert failure.attrib["message"] == (
        "exit code 1: no working driver: no GPU: cudaErrorNoDevice (100)"
    )


def test_the_plugin_says_that_there_is_no_result(build: Build, command: Path) -> None:
    command.write_text("#!/bin/sh\necho 'a <b> & \"c\"'\nexit 3\n")
    files = archive(
        worker(build.root / "out", f"{command.parent}:{os.environ['PATH']}")
    )
    [failure] = xml.fromstring(files["run/exit.xml"]).findall(".//failure")
    assert failure.attrib["message"] == 'exit code 3: a <b> & "c"'
