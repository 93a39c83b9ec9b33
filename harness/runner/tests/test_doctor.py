"""The findings of `ipclab doctor`, on recorded machines and on this one."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from conftest import NO_GPU, PROBE, Build
from ipclab import checks, explain, machine
from ipclab.checks import CHECKS, STATES, TRANSPORTS, Verdict

FOLDER = Path(__file__).parent / "machines"
PLAIN: dict[str, Any] = json.loads((FOLDER / "plain.json").read_text())["machine"]
RECORDED = {
    path.stem: json.loads(path.read_text())
    for path in sorted(FOLDER.glob("*.json"))
    if path.stem != "plain"
}
PAINS = explain.pains()
IDS = {check.id for check in CHECKS}

# Runs a command under a seccomp filter that refuses pidfd_open and pidfd_getfd with
# EPERM.
UNDER_SECCOMP = """\
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
load, equal, give = 0x20, 0x15, 0x06
code = b"".join(
    struct.pack("HBBI", *line)
    for line in ((load, 0, 0, 0), (equal, 1, 0, 434), (equal, 0, 1, 438),
                 (give, 0, 0, 0x50001), (give, 0, 0, 0x7FFF0000)))
lines = ctypes.create_string_buffer(code, len(code))
program = struct.pack("HxxxxxxP", 5, ctypes.addressof(lines))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program, 0, 0) == 0, os.strerror(ctypes.get_errno())
os.execvp(sys.argv[1], sys.argv[1:])
"""

SMI = """\
#!/bin/sh
case "$1" in
--query-gpu=*)
  echo 'NVIDIA H200, Exclusive_Process, Enabled'
  echo 'NVIDIA H200, Prohibited, [N/A]' ;;
--query-compute-apps=*) echo '4711, ./exporter, 1024 MiB' ;;
conf-compute) echo 'CC status: ON' ;;
*) exit 2 ;;
esac
"""


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """The plain machine with these changes; capabilities by their name."""
    data = copy.deepcopy(PLAIN)
    for section, values in copy.deepcopy(changes).items():
        if not isinstance(values, dict) or data[section] is None:
            data[section] = values
            continue
        if section == "probe":
            by_name = values.pop("capabilities", {})
            for entry in data["probe"]["capabilities"]:
                entry.update(by_name.pop(entry["name"], {}))
            assert not by_name
        if section == "fingerprint":
            data["fingerprint"]["limits"].update(values.pop("limits", {}))
        assert set(values) <= set(data[section])
        data[section].update(values)
    return data


def verdicts(data: dict[str, Any]) -> dict[str, Verdict]:
    """What each check that applies says about a recorded machine."""
    findings = checks.judge(machine.from_json(data))
    return {x.check: x.verdict for x in findings}


def bad(found: dict[str, Any]) -> dict[str, str]:
    """The states that are not fine, of verdicts or of a printed document."""
    if "findings" in found:
        found = {x["check"]: Verdict(x["state"], "") for x in found["findings"]}
    return {name: x.state for name, x in found.items() if x.state != "fine"}


# --- recorded machines --------------------------------------------------------------


def test_nothing_stands_in_the_way_of_the_plain_machine() -> None:
    found = verdicts(PLAIN)
    assert bad(found) == {}
    assert checks.shared(machine.from_json(PLAIN)) == list(TRANSPORTS)
    # All checks ran except the one that needs a second process.
    assert set(found) == IDS - {"other_process"}


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_machine_shows_this_and_nothing_else(name: str) -> None:
    record = RECORDED[name]
    found = verdicts(changed(record["changes"]))
    assert bad(found) == record["findings"], record["about"]
    for check in record["findings"]:
        verdict = found[check]
        assert verdict.found and verdict.next
        if verdict.state != "unknown":
            assert verdict.meaning
            assert verdict.transports
            assert set(verdict.transports) <= set(TRANSPORTS)


def test_every_check_fires_somewhere_and_is_fine_somewhere() -> None:
    fired = {name for record in RECORDED.values() for name in record["findings"]}
    assert fired == IDS
    quiet = {
        name
        for record in RECORDED.values()
        for name, verdict in verdicts(changed(record["changes"])).items()
        if verdict.state == "fine"
    }
    assert quiet == IDS
    states = {x for record in RECORDED.values() for x in record["findings"].values()}
    assert states == set(STATES) - {"fine"}


def test_findings_come_worst_first() -> None:
    changes = {**RECORDED["no_proc"]["changes"], **RECORDED["mixed_gpus"]["changes"]}
    changes["driver"] = {"nodes": {}}
    findings = checks.judge(machine.from_json(changed(changes)))
    states = [x.verdict.state for x in findings]
    assert states == sorted(states, key=STATES.index)
    assert set(states) == set(STATES)


@pytest.mark.parametrize(
    ("name", "check", "text"),
    [
        ("no_fabric_manager", "gpu", "nvidia-fabricmanager"),
        ("no_driver", "gpu", "--backend model"),
        ("no_driver", "driver", "install the driver"),
        ("old_driver", "gpu", "compatibility package"),
        ("attribute_lies", "attempts", "PYTORCH_CUDA_ALLOC_CONF"),
        ("wsl2", "attempts", "Ask the attribute first"),
        ("imex_no_module", "imex", "load a driver with IMEX channels"),
        ("imex_no_channel", "imex", "mknod"),
        ("imex_no_permission", "imex", "your own channel"),
        ("imex_not_ready", "imex", "nvidia-imex-ctl"),
        ("fabric_not_ready", "imex", "CUDA_FABRIC_INIT_TIMEOUT_MS"),
        ("no_fabric", "imex", "by a descriptor"),
        ("exclusive", "compute_mode", "nvidia-smi -c DEFAULT"),
        ("seccomp", "seccomp", "SCM_RIGHTS"),
    ],
)
def test_the_next_step_fits_the_cause(name: str, check: str, text: str) -> None:
    assert text in verdicts(changed(RECORDED[name]["changes"]))[check].next


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("seccomp", "a seccomp filter"),
        ("old_kernel", "a kernel before 5.6"),
        ("security_module", "a security module"),
    ],
)
def test_who_refuses_pidfd_getfd(name: str, text: str) -> None:
    assert text in verdicts(changed(RECORDED[name]["changes"]))["seccomp"].found


def test_pains_and_errors_name_checks_that_exist() -> None:
    for pain in PAINS:
        assert set(pain.checks) <= IDS, pain.what
    for entry in explain.read():
        assert set(entry.checks) <= IDS, entry.code


# --- the command --------------------------------------------------------------------


def test_what_was_written_down_is_judged_elsewhere(build: Build) -> None:
    path = build.root / "machine.json"
    done = build.ipclab("doctor", "--build", "build", "--json", str(path))
    assert done.returncode == 0
    assert "can be shared: legacy_memory" in done.stdout
    first = json.loads(path.read_text())
    assert first["shared"] == ["legacy_memory"]
    assert first["about"] == done.stdout.splitlines()[0]
    assert {x["check"] for x in first["findings"]} <= IDS

    again = build.ipclab("doctor", "--machine", str(path), "--json", "-")
    assert again.returncode == 0
    assert json.loads(again.stdout) == first


def test_what_it_prints(build: Build) -> None:
    record = changed(
        {**RECORDED["few_files"]["changes"], **RECORDED["pids_limit"]["changes"]}
    )
    path = build.root / "machine.json"
    path.write_text(json.dumps({"machine": record}))
    done = build.ipclab("doctor", "--machine", str(path))
    assert done.returncode == 0
    lines = [" ".join(x.split()) for x in done.stdout.splitlines()]
    assert lines[0] == "2 x NVIDIA H200, driver 580.159.04 (CUDA 13.0)"
    at = lines.index("limits open files: 1024")
    assert lines[at + 1].startswith("means: few: each exported allocation costs")
    assert lines[at + 1].endswith("(vmm_fd, pool_fd)")
    assert lines[at + 2].startswith("next: ulimit -n 65536")
    assert lines[lines.index("limits limit of processes: 100, 90 in use") + 1].endswith(
        "(all)"
    )
    assert lines[-2:] == [
        "2 limit, 25 fine",
        "can be shared: legacy_memory, legacy_events, vmm_fd, fabric, pool_fd",
    ]


def test_without_a_gpu_the_remedy_comes_first(build: Build) -> None:
    """There is no table of transports, because all would have the same reason."""
    build.probe(NO_GPU)
    lines = build.ipclab("doctor", "--build", "build").stdout.splitlines()
    assert lines[1] == "" and lines[2].startswith("blocks  GPU: "), lines
    assert any("next:" in line and "--backend model" in line for line in lines[:6])
    assert "nothing can be shared" in lines[-1]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "No such file"),
        ("no json", "is not JSON"),
        ("[]", "`ipclab doctor --json` did not write this file"),
        (
            '{"machine": {}}',
            "machine.probe: is missing; `ipclab doctor --json` did not write this",
        ),
        ('{"machine": 7}', "`ipclab doctor --json` did not write this file"),
    ],
)
def test_a_bad_record_is_one_line(build: Build, text: str | None, told: str) -> None:
    path = build.root / "machine.json"
    if text is not None:
        path.write_text(text)
    done = build.ipclab("doctor", "--machine", str(path))
    assert done.returncode == 2
    assert told in done.stdout
    assert done.stdout.count("\n") == 1


def test_a_record_with_a_bad_probe(build: Build) -> None:
    data = changed({"probe": {"gpus": 7}})
    path = build.root / "machine.json"
    path.write_text(json.dumps({"machine": data}))
    done = build.ipclab("doctor", "--machine", str(path))
    assert done.returncode == 2
    assert "machine.probe.gpus: 7 is not of type array" in done.stdout


@pytest.mark.parametrize("option", [["--with", "1"], ["--profile", "tegra"]])
def test_a_record_and_this_machine_do_not_mix(build: Build, option: list[str]) -> None:
    done = build.ipclab("doctor", "--machine", str(FOLDER / "plain.json"), *option)
    assert done.returncode == 2
    assert "combined with --with or --profile" in done.stdout


def test_a_process_that_is_not_there(build: Build) -> None:
    done = build.ipclab("doctor", "--build", "build", "--with", "4194305")
    assert (done.returncode, done.stdout) == (2, "ipclab: no process 4194305 here\n")


def test_json_into_a_folder_that_is_not_there(build: Build) -> None:
    done = build.ipclab("doctor", "--build", "build", "--json", "none/x.json")
    assert done.returncode == 3
    assert done.stdout == "ipclab: none/x.json: No such file or directory\n"


# --- this machine, changed for each test --------------------------------------------


def doctor(
    build: Build,
    *options: str,
    before: tuple[str, ...] = (),
    variables: dict[str, str] | None = None,
) -> dict[str, Any]:
    """The JSON that the command prints; `before` are words in front of the command."""
    done = subprocess.run(
        [
            *before,
            *(sys.executable, "-m", "ipclab", "doctor"),
            *("--build", "build", "--json", "-", *options),
        ],
        cwd=build.root,
        env={**build.environment(), **(variables or {})},
        capture_output=True,
        text=True,
        timeout=60,
    )
    if before and before[0] == "unshare" and "unshare: " in done.stderr:
        pytest.skip(f"no namespaces here: {done.stderr.strip()}")
    assert done.returncode in (0, 1), done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.parametrize(
    ("kind", "options"),
    [("pid", ["--pid", "--fork", "--mount-proc"]), ("ipc", ["--ipc"])],
)
def test_a_namespace(build: Build, kind: str, options: list[str]) -> None:
    document = doctor(build, before=("unshare", "--map-root-user", *options))
    inside = document["machine"]["fingerprint"]["namespaces"][kind]
    assert inside != str(Path(f"/proc/self/ns/{kind}").readlink())
    [finding] = [x for x in document["findings"] if x["check"] == f"{kind}_namespace"]
    assert finding["state"] == "limits"
    assert finding["found"] == f"{inside}, a private one"


def after_mount(mount: str, commands: str = "") -> tuple[str, ...]:
    """The words that run a command after `mount`, which others do not see."""
    script = f'{mount} || {{ echo "unshare: no" >&2; exit; }}\n{commands}\nexec "$@"'
    return ("unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh")


def in_small_shm(commands: str) -> tuple[str, ...]:
    """The words that run a command with 8 MiB of /dev/shm, after `commands`."""
    return after_mount("mount -t tmpfs -o size=8m none /dev/shm", commands)


def test_a_small_dev_shm(build: Build) -> None:
    document = doctor(build, before=in_small_shm(""))
    [finding] = [x for x in document["findings"] if x["check"] == "dev_shm"]
    assert (finding["state"], finding["found"]) == ("limits", "8 MiB, 8 MiB free")


def test_what_a_killed_process_left(build: Build) -> None:
    how = in_small_shm("touch /dev/shm/cuda.shm.0.7ffffff0.1 /dev/shm/cuda.shm.0.1.1")
    document = doctor(build, before=how)
    assert document["machine"]["shared_memory"]["stale"] == ["cuda.shm.0.7ffffff0.1"]
    assert bad(document)["leftovers"] == "limits"


@pytest.mark.parametrize(
    ("limit", "check"),
    [("--nofile=256:", "open_files"), (f"--as={16 * 2**30}:", "address_space")],
)
def test_a_limit(build: Build, limit: str, check: str) -> None:
    assert bad(doctor(build, before=("prlimit", limit)))[check] == "limits"


def test_a_seccomp_filter(build: Build) -> None:
    how = (sys.executable, "-c", UNDER_SECCOMP)
    document = doctor(build, before=how)
    assert document["machine"]["process"] == {
        "seccomp": 2,
        "pidfd_getfd": "EPERM",
        "variables": {},
    }
    assert bad(document)["seccomp"] in ("limits", "unknown")  # unknown: Yama refuses


@pytest.mark.parametrize(
    ("variables", "check"),
    [
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, "visible_devices"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "allocator"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "container"),
    ],
)
def test_a_variable(build: Build, variables: dict[str, str], check: str) -> None:
    assert check in bad(doctor(build, variables=variables))


def test_what_nvidia_smi_says(build: Build) -> None:
    folder = build.root / "bin"
    folder.mkdir()
    (folder / "nvidia-smi").write_text(SMI)
    (folder / "nvidia-smi").chmod(0o755)
    path = {"PATH": f"{folder}:{os.environ['PATH']}"}
    document = doctor(build, variables=path)
    assert document["machine"]["smi"] == {
        "gpus": [
            {"name": "NVIDIA H200", "compute_mode": "Exclusive_Process"}
            | {"mig": "Enabled"},
            {"name": "NVIDIA H200", "compute_mode": "Prohibited", "mig": "[N/A]"},
        ],
        "processes": ["4711 ./exporter 1024 MiB"],
        "confidential": True,
    }
    found = bad(document)
    for check in ("mig", "compute_mode", "confidential", "leftovers"):
        assert check in found


def test_nvidia_smi_that_fails(build: Build) -> None:
    folder = build.root / "bin"
    folder.mkdir()
    (folder / "nvidia-smi").write_text("#!/bin/sh\necho no driver; exit 9\n")
    (folder / "nvidia-smi").chmod(0o755)
    path = {"PATH": f"{folder}:{os.environ['PATH']}"}
    assert doctor(build, variables=path)["machine"]["smi"] is None


def test_each_gpu_is_asked_alone(build: Build) -> None:
    lesser = copy.deepcopy(PROBE)
    lesser["capabilities"][0]["available"] = False
    build.probe(
        "import os\n"
        "alone = os.environ.get('CUDA_VISIBLE_DEVICES') == 'GPU-1'\n"
        f"print({json.dumps(lesser)!r} if alone else {json.dumps(PROBE)!r})\n"
    )
    document = doctor(build)
    assert document["machine"]["each_gpu"] == [["legacy_memory"], []]
    [found] = [x for x in document["findings"] if x["check"] == "each_gpu"]
    assert found["found"] == "GPU 1 lacks legacy_memory"


@pytest.fixture
def other(request: pytest.FixtureRequest) -> Iterator[int]:
    """The PID of a waiting process. The parameter has the words in front of its
    command.
    """
    starter = subprocess.Popen(
        [*request.param, "sh", "-c", "echo ready; exec cat"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert starter.stdout is not None
    try:
        if starter.stdout.readline() != "ready\n":
            pytest.skip(f"no namespaces here: {starter.communicate()[1].strip()}")
        process = psutil.Process(starter.pid)
        yield [process, *process.children(recursive=True)][-1].pid
    finally:
        starter.communicate("", timeout=10)


@pytest.mark.parametrize("other", [()], indirect=True)
def test_another_process(build: Build, other: int) -> None:
    document = doctor(build, "--with", str(other))
    assert document["machine"]["other"]["variables"]["CUDA_VISIBLE_DEVICES"] == "1"
    found = {x["check"]: x for x in document["findings"]}
    assert found["visible_devices"]["found"] == "not set here, '1' there"
    assert found["pid_namespace"]["found"].endswith("the same")
    assert found["other_process"]["state"] in ("fine", "limits")


@pytest.mark.parametrize(
    "other",
    [("unshare", "--map-root-user", "--pid", "--fork", "--kill-child")],
    indirect=True,
)
def test_a_process_of_another_pid_namespace(build: Build, other: int) -> None:
    document = doctor(build, "--with", str(other))
    assert bad(document)["pid_namespace"] == "blocks"


def test_the_narrowest_cgroup_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaf, top = tmp_path / "top" / "leaf", tmp_path / "top"
    leaf.mkdir(parents=True)
    for path, text in (
        (leaf / "pids.max", "1000"),
        (leaf / "pids.current", "10"),
        (leaf / "memory.max", "4294967296"),
        (top / "pids.max", "512"),
        (top / "pids.current", "500"),
        (top / "memory.limit_in_bytes", str(2**63 - 4096)),
        (tmp_path / "pids.max", "max"),
    ):
        path.write_text(f"{text}\n")

    def seen(*folders: Path) -> machine.Cgroup:
        monkeypatch.setattr(machine, "_cgroup_folders", lambda _: list(folders))
        return machine._cgroup()

    assert seen(leaf, top, tmp_path) == machine.Cgroup(512, 500, 4294967296)
    assert seen(top, tmp_path) == machine.Cgroup(512, 500, None)
    assert seen(tmp_path) == machine.Cgroup(None, None, None)


def test_a_descriptor_that_is_not_open_is_no_refusal() -> None:
    def answer(close: str) -> str:
        program = f"import os; os.dup2(0, 9); {close}print('ready'); os.read(9, 1)"
        process = subprocess.Popen(
            [sys.executable, "-uc", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        found = machine.may_take_descriptors(process.pid)
        process.communicate("\n", timeout=10)
        return found

    assert answer("os.close(0); ") == answer("") != "EBADF"


def test_a_stranger_is_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    me = os.getpid()
    monkeypatch.setattr(
        machine,
        "may_take_descriptors",
        lambda pid: "asked" if pid == me != os.getpid() else "not as a stranger",
    )
    assert machine._pidfd_getfd_between_strangers() == "asked"


# --- machines of the reference model -------------------------------------------------


@pytest.fixture
def model(build: Build) -> Build:
    """A build whose probe is the real one, beside the real reference model."""
    folder, program = os.environ.get("IPCLAB_MODEL"), os.environ.get("IPCLAB_PROBE")
    if folder is None or program is None:
        pytest.skip("CTest says where the model and the probe are")
    (build.folder / "model").symlink_to(folder)
    build.probe(f"import os\nos.execv({program!r}, [{program!r}])")
    return build


@pytest.mark.parametrize(
    ("backend", "driver", "version", "found", "programs"),
    [
        ("cuda", "580.65.06", 13000, "driver R580, CUDA 13.0", "12 and 13"),
        ("cuda", "550.54.15", 12040, "driver R550, CUDA 12.4", "11 and 12"),
        ("model", None, 12000, "driver CUDA 12.0", "11 and 12"),
    ],
)
def test_the_drivers_branch_and_its_programs(
    backend: str, driver: str | None, version: int, found: str, programs: str
) -> None:
    facts = {"backend": backend, "driver": driver, "driver_version": version}
    told = verdicts(changed({"probe": facts}))["driver"].found
    assert told == (
        f"{found}, runtime CUDA 13.0; the driver runs programs of CUDA {programs}"
    )


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ("two-gpus", {"imex": "blocks"}),
        ("fabric", {}),
        ("no-fabric", {"imex": "blocks"}),
        ("no-peer", {"imex": "blocks", "peer_access": "limits"}),
        ("tegra", {"imex": "blocks", "tegra": "blocks", "attempts": "blocks"}),
        ("no-ipc", {"imex": "blocks", "offered": "blocks"}),
        ("no-pools", {"imex": "blocks", "offered": "blocks"}),
        ("one-queue", {"imex": "blocks"}),
        ("driver-570", {"gpu": "blocks", "driver": "blocks"}),
    ],
)
def test_a_profile(model: Build, profile: str, expected: dict[str, str]) -> None:
    document = doctor(model, "--profile", profile)
    assert document["about"].startswith("reference model, ")
    of_gpu = [x.id for x in CHECKS[: [x.id for x in CHECKS].index("pid_namespace")]]
    found = {x: y for x, y in bad(document).items() if x in of_gpu}
    assert found == expected


@pytest.mark.parametrize(
    "before",
    [
        after_mount("mount -t tmpfs none /proc"),
        after_mount(
            "mount --bind /tmp /tmp && mount --bind {root} {root} && "
            "mount -o remount,bind,ro /tmp"
        ),
        (sys.executable, "-c", UNDER_SECCOMP),
    ],
    ids=["no /proc", "a read-only /tmp", "no pidfd"],
)
def test_the_doctor_survives_what_it_diagnoses(
    model: Build, before: tuple[str, ...]
) -> None:
    """Each way of sharing is tried as on the plain machine, with the same result."""

    def tried(document: dict[str, Any]) -> list[tuple[str, str, bool]]:
        return [
            (x["name"], x["attempt"], x["available"])
            for x in document["machine"]["probe"]["capabilities"]
        ]

    plain = doctor(model, "--profile", "one-gpu")
    how = tuple(x.replace("{root}", str(model.root)) for x in before)
    assert tried(doctor(model, "--profile", "one-gpu", before=how)) == tried(plain)
