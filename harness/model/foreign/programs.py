# SPDX-License-Identifier: Apache-2.0
"""Builds other people's programs and runs each on its own simulated machine.

It downloads nothing: the user names a checkout of NVIDIA/cuda-samples or of
NVIDIA/nvbandwidth, or the folder of the wheel libucx-cu13. The CMakeLists.txt of a
sample says which sources and libraries the sample needs. nvcc alone builds a program,
with two changes: the CUDA runtime is the shared one, and PTX is embedded instead of
machine code. A program with the static runtime or without PTX cannot run on the model.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

TOP = Path(__file__).resolve().parents[3]

# Libraries of the toolkit that a sample may need. A sample that needs another
# library (OpenGL, MPI, Vulkan …) is not built here.
TOOLKIT = {
    "cuda_driver": ["-lcuda"],
    "cudart": [],
    "nvrtc": ["-lnvrtc"],
    "OpenMP::OpenMP_CXX": ["-Xcompiler", "-fopenmp"],
    **{
        name: [f"-l{name}"]
        for name in ("cublas", "cufft", "curand", "cusolver", "cusparse", "nvjpeg")
    },
}
# NVIDIA's CUDA runtime is linked into these libraries, so their kernels cannot run on
# the model.
STATIC_RUNTIME = {"cublas", "cufft", "curand", "cusolver", "cusparse", "nvjpeg"}
ELSEWHERE = re.compile(
    r"OPENGL_|GLUT_|MPI_|EGL_|NVSCI|Vulkan|CUDA::npp|_static\b|WIN32"
)

UCX_TESTS = ("ucp_put_bw", "ucp_put_lat", "ucp_get", "tag_bw", "tag_lat")

PTX = ["-gencode", "arch=compute_90,code=compute_90"]
FLAGS = ["-O1", "-std=c++17", "--extended-lambda", "-cudart", "shared", "-w", *PTX]

EXIT_WAIVED = 2  # helper_string.h: the sample itself says that it cannot run here
# Lines that name a limit of the model. The model also prints other lines, such as a
# kernel's assertion.
MODEL_SAYS = re.compile(
    r"^ipclab model(?: \[\d+\])?: "
    r"(.*(?:reference model|not supported|brings NVIDIA's runtime"
    r"|no PTX|PTX text|NVRTC).*)$",
    re.M,
)
FAILED = re.compile(
    r"\b(?:test failed|result = fail|failed!|incorrect results?|verification failed)\b",
    re.I,
)

RIGHT = "right"
LIMIT = "not supported"
WAIVED = "skipped"
SLOW = "slow"
HUNG = "HUNG"
WRONG = "WRONG"
DIED = "died without a message"
UNBUILT = "not built"
BAD = (WRONG, DIED, HUNG)
ORDER = (RIGHT, WAIVED, LIMIT, SLOW, UNBUILT, WRONG, DIED, HUNG)


@dataclass
class Program:
    """A program that is built with nvcc and started with arguments."""

    name: str
    folder: Path
    sources: list[str]
    flags: list[str] = field(default_factory=list)
    modules: dict[str, str] = field(default_factory=dict)  # file: its source
    headers: list[str] = field(default_factory=list)  # of the toolkit, for NVRTC
    arguments: list[str] = field(default_factory=list)
    binary: str = ""


@dataclass
class Outcome:
    """The verdict on one program, its reason, and the processor time in seconds."""

    name: str
    verdict: str
    reason: str
    seconds: float


def cuda_samples(checkout: Path) -> Iterator[Program]:
    """All samples of a checkout that nvcc can build without other libraries.

    Raises SystemExit if the folder is not a checkout of NVIDIA/cuda-samples.
    """
    lists = sorted(checkout.glob("Samples/[0-6]_*/*/CMakeLists.txt"))
    if not lists:
        raise SystemExit(f"{checkout}: not a checkout of NVIDIA/cuda-samples")
    for list_file in lists:
        text = re.sub(r"#.*", "", list_file.read_text())
        if ELSEWHERE.search(text):
            continue
        found = re.search(r"add_executable\((\S+)([^)]*)\)", text)
        if found is None:
            continue
        libraries = {
            name
            for group in re.findall(r"CUDA::(\w+)|(OpenMP::\w+)", text)
            for name in group
            if name
        }
        flags = [f"-I{checkout / 'Common'}"]
        for folders in re.findall(r"target_include_directories\(([^)]*)\)", text):
            flags += [
                f"-I{list_file.parent / x}"
                for x in folders.replace("${CMAKE_CURRENT_SOURCE_DIR}/", "").split()
                if (list_file.parent / x).is_dir()
            ]
        for name in sorted(libraries):
            flags += TOOLKIT[name]
        kernel = re.search(r'CUDA_KERNEL_SOURCE "\S*?/(\w+\.cu)"', text)
        made = re.search(r'/([\w${}]+\.(?:fatbin|ptx))"', text)
        modules = {}
        if kernel is not None and made is not None:
            modules[made[1]] = kernel[1]
        headers = re.findall(r"\{CUDA_INCLUDE_DIR\}/([\w/.]+)", text)
        sources = found[2].split()
        yield Program(found[1], list_file.parent, sources, flags, modules, headers)


def nvbandwidth(checkout: Path) -> Iterator[Program]:
    """Each test case of nvbandwidth as a separate program.

    Raises SystemExit if the folder is not a checkout of NVIDIA/nvbandwidth.
    """
    main = checkout / "nvbandwidth.cpp"
    if not main.is_file():
        raise SystemExit(f"{checkout}: not a checkout of NVIDIA/nvbandwidth")
    sources = [
        x.name
        for x in sorted(checkout.glob("*.c*"))
        if x.suffix in (".cpp", ".cu") and not x.name.startswith("multinode")
    ]
    sources.append("json/jsoncpp.cpp")
    flags = ["-lcuda", "-lnvidia-ml", "-lboost_program_options", f"-I{checkout}"]
    cases = re.findall(r'Testcase\("(\w+)"', (checkout / "testcase.h").read_text())
    for name in (x for x in cases if not x.startswith("multinode")):
        yield Program(
            f"nvbandwidth {name}",
            checkout,
            sources,
            flags,
            arguments=["-t", name, "-b", "64", "-i", "1"],  # MiB, samples
        )


def ucx(folder: Path) -> Iterator[Program]:
    """Tests of ucx_perftest, from the wheel libucx-cu13: nothing is built.

    Raises SystemExit if the wheel is not unpacked there.
    """
    if not (folder / "libucx" / "bin" / "ucx_perftest").is_file():
        raise SystemExit(f"{folder}: pip install --target {folder} libucx-cu13")
    for test in UCX_TESTS:
        yield Program(
            f"ucx_perftest {test}",
            Path(__file__).parent,
            ["ucx.py"],
            arguments=[str(folder), test],
        )


def build(program: Program, work: Path) -> str:
    """Builds a program in its own folder, beside links to its files.

    An up-to-date program is kept, and a script needs no build. Returns "" or the first
    error of the compiler.
    """
    room = work / program.name.split()[0]
    binary = room / program.name.split()[0]
    program.binary = str(binary)
    if program.sources[0].endswith(".py"):
        room.mkdir(parents=True, exist_ok=True)
        binary.unlink(missing_ok=True)
        binary.symlink_to((program.folder / program.sources[0]).resolve())
        return ""
    sources = [program.folder / x for x in program.sources]
    newest = max(x.stat().st_mtime for x in sources)
    room.mkdir(parents=True, exist_ok=True)
    for header in program.headers:
        link = room / Path(header).name
        if not link.exists():
            link.symlink_to(toolkit() / "include" / header)
    if binary.is_file() and binary.stat().st_mtime >= newest:
        return ""
    for entry in program.folder.iterdir():
        link = room / entry.name
        if not link.exists() and entry.name != binary.name:
            link.symlink_to(entry.resolve())
    for made, kernel in program.modules.items():
        kind = "-fatbin" if made.endswith("fatbin") else "-ptx"
        target = ["-arch=compute_90"] if kind == "-ptx" else PTX
        command = ["nvcc", kind, *target, *program.flags[:1], "-w"]
        made = made.replace("${CMAKE_SYSTEM_NAME}", "Linux")
        error = compile_quietly([*command, "-o", made, kernel], room)
        if error:
            return error
    # One whole program without device linking: PTX cannot be linked in that way.
    return compile_quietly(
        ["nvcc", *FLAGS, *map(str, sources), *program.flags, "-o", str(binary)], room
    )


def toolkit() -> Path:
    """The folder of the CUDA Toolkit; SystemExit if no nvcc is on PATH."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise SystemExit("ci/foreign: no nvcc; run ci/setup first")
    return Path(nvcc).resolve().parents[1]


def compile_quietly(command: Sequence[str], folder: Path) -> str:
    """Runs a compiler; returns "" or its first error."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return ""
    said = done.stderr + done.stdout
    errors = [x for x in said.splitlines() if "error" in x or "undefined" in x]
    return (errors or said.splitlines() or ["nvcc failed"])[0].strip()


def run(program: Program, ipclab: Sequence[str], limit: int) -> Outcome:
    """Runs a program on its own simulated machine and judges how it ends.

    `limit` is the processor time, in seconds, that each of its processes may use. If
    all processes only wait for `limit` seconds, the program hangs, and its processes
    are killed. So other work on the machine does not make a program slow or hung.
    """

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    child = subprocess.Popen(
        [*ipclab, "--", program.binary, *program.arguments],
        cwd=Path(program.binary).parent,
        # The model's own limit for a kernel is wall time, so it must be long.
        env={**os.environ, "IPCLAB_MODEL_KERNEL_SECONDS": str(100 * limit)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=bounded,
    )
    output, hung = until_it_ends(child, limit)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    Path(program.binary).with_suffix(".out").write_text(output)
    if child.returncode == -signal.SIGXCPU:
        verdict, reason = SLOW, f"more than {limit} s of processor time"
    else:
        verdict, reason = judge(None if hung else child.returncode, output)
    return Outcome(program.name, verdict, reason, round(used, 1))


def until_it_ends(child: subprocess.Popen[str], limit: int) -> tuple[str, bool]:
    """Returns the output, and whether the program hung and was killed."""
    used, idle = 0.0, 0
    while True:
        try:
            return child.communicate(timeout=1)[0], False
        except subprocess.TimeoutExpired:
            now, runs = activity(child.pid)
            idle = 0 if runs or now != used else idle + 1
            used = now
        if idle >= limit:
            os.killpg(child.pid, signal.SIGKILL)
            return child.communicate()[0], True


def activity(group: int) -> tuple[float, bool]:
    """Processor time of a process group in seconds; can one of its processes run?"""
    used, runs = 0.0, False
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) != group:
                continue
            times = process.cpu_times()
            used += times.user + times.system
            runs = runs or process.status() != psutil.STATUS_SLEEPING
    return used, runs


def judge(code: int | None, output: str) -> tuple[str, str]:
    """The verdict and its reason, from output and exit code (None if it hung)."""
    model = MODEL_SAYS.findall(output)
    if code is None:
        return HUNG, last_line(output)
    if code == 0 and not FAILED.search(output):
        if model:
            return LIMIT, model[0]
        return RIGHT, ""
    if model:
        return LIMIT, model[0]
    if code == EXIT_WAIVED or re.search(r"\bwaiv|not supported", output, re.I):
        return WAIVED, last_line(output)
    if code < 0:
        return DIED, signal.Signals(-code).name
    found = FAILED.search(output)
    return WRONG, found[0] if found else f"exit {code}: {last_line(output)}"


def last_line(output: str) -> str:
    """The last line that is not empty; "" if there is none."""
    lines = [x.strip() for x in output.splitlines() if x.strip()]
    return lines[-1] if lines else ""


def markdown(outcomes: Iterable[Outcome]) -> str:
    """Counts and one table. The reasons contain no paths of this machine."""
    ordered = sorted(outcomes, key=lambda x: (ORDER.index(x.verdict), x.name))
    counts = Counter(x.verdict for x in ordered)
    lines = [
        ", ".join(f"{counts[x]} {x}" for x in ORDER if counts[x]) + ".",
        "",
        "| program | verdict | reason | processor time |",
        "| --- | --- | --- | --- |",
    ]
    for x in ordered:
        reason = re.sub(r"/\S*/", "", x.reason).replace("|", "\\|")
        lines.append(f"| {x.name} | {x.verdict} | {reason} | {x.seconds:g} s |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Returns 0 if no program was wrong, hung or died without a message, else 1."""
    parser = argparse.ArgumentParser(prog="ci/foreign", description=__doc__)
    parser.add_argument("programs", choices=("cuda-samples", "nvbandwidth", "ucx"))
    parser.add_argument("checkout", type=Path, help="the folder of the checkout")
    parser.add_argument(
        "-k", metavar="NAME", action="append", help="run only these programs"
    )
    parser.add_argument("--work", type=Path, default=TOP / "build" / "foreign")
    parser.add_argument("--build", type=Path, default=TOP / "build" / "dev")
    parser.add_argument("--limit", type=int, default=60, metavar="SECONDS")
    parser.add_argument(
        "--missing",
        action="store_true",
        help="run only the programs that have no result yet",
    )
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="write the table of all results"
    )
    options = parser.parse_args()
    checkout = options.checkout.resolve()
    work = options.work.resolve()
    kinds = {"cuda-samples": cuda_samples, "nvbandwidth": nvbandwidth, "ucx": ucx}
    ipclab = [
        str(TOP / "ci" / "ipclab"),
        "model",
        "--build",
        str(options.build.resolve()),
    ]
    ipclab += ["--profile", "two-gpus"]
    toolkit()

    table = work / f"{options.programs}.json"
    known = json.loads(table.read_text()) if table.is_file() else {}
    outcomes = {}
    for program in kinds[options.programs](checkout):
        old = known.get(program.name)
        if (options.k and program.name not in options.k) or (old and options.missing):
            if old:
                outcomes[program.name] = Outcome(**old)
            continue
        error = build(program, work)
        if error:
            outcome = Outcome(program.name, UNBUILT, error, 0)
        else:
            outcome = run(program, ipclab, options.limit)
        outcomes[program.name] = outcome
        known[program.name] = asdict(outcome)
        table.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
        print(
            f"{outcome.verdict:<24}{outcome.seconds:6.1f} s  {outcome.name:<32}"
            f"{outcome.reason[:110]}",
            flush=True,
        )
    counts = Counter(x.verdict for x in outcomes.values())
    print(", ".join(f"{counts[x]} {x}" for x in ORDER if counts[x]))
    print(f"the results are in {table}")
    if options.markdown:
        options.markdown.write_text(markdown(outcomes.values()))
    return 1 if any(counts[x] for x in BAD) else 0


if __name__ == "__main__":
    sys.exit(main())
