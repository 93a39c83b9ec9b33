"""The options of `ipclab fleet` and `ipclab node`."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ipclab.commands.options import Commands, console, programs
from ipclab.errors import UsageError

COMMANDS = ("fleet", "node")
# The fleet sets these options of `ipclab run`.
DECIDED = ("--backend", "--build", "--runtime", "--results", "--resume")
ENGINES = ("slurm", "mpi", "kubernetes")  # ipclab.engines has what they do


def add(commands: Commands) -> None:
    """Add both commands."""
    many = commands.add_parser(
        "fleet",
        help="the suite on many machines: start, gather, merge",
        usage="%(prog)s [--slurm | --mpi | --kubernetes] [options] [FOLDER] "
        "[-- options of ipclab run]",
        description="Starts one run on each node with an engine that the site has, "
        "waits, and merges the results. Nodes with equal answers are one line; the "
        "other nodes are listed with the differences between their machines. A node "
        "without valid results is listed with the reason. Without --slurm, --mpi or "
        "--kubernetes the command starts nothing and only merges the results that "
        "FOLDER has. With an engine and a FOLDER that is a fleet already, it starts "
        "the nodes that have no results yet. Slurm and MPI need FOLDER and ipclab at "
        "the same path on all nodes. Inside an allocation of Slurm, the nodes of the "
        "allocation run; outside, each node gets a job of its own.",
        epilog="exit code: 0 all nodes answered, agree and pass; 1 a test fails, or "
        "nodes answer differently; 2 usage; 3 a node did not answer or could not be "
        "read; 4 the tool failed or was interrupted",
    )
    for name in ENGINES:
        many.add_argument(
            f"--{name}",
            dest="engine",
            action="store_const",
            const=name,
            help=f"start with {name.capitalize() if name != 'mpi' else 'mpirun'}",
        )
    many.add_argument(
        "folder",
        metavar="FOLDER",
        type=Path,
        nargs="?",
        default=None,
        help="where the results are (default with an engine: a new folder in results/)",
    )
    many.add_argument(
        "--nodes",
        metavar="NODES",
        default=None,
        help="Slurm: n[1-4]; MPI: host,host; Kubernetes: a label, key=value "
        "(default: all that the engine has; MPI: this machine)",
    )
    many.add_argument(
        "--limit",
        metavar="SECONDS",
        type=int,
        default=1800,
        help="a node whose run has not ended after this time is late; the time in the "
        "engine's queue does not count (default: 1800)",
    )
    many.add_argument(
        "--queue",
        metavar="SECONDS",
        type=int,
        default=3600,
        help="a node whose run has not begun after this time is missing; it can be "
        "added later (default: 3600)",
    )
    many.add_argument(
        "--engine-option",
        metavar="OPTION",
        action="append",
        default=[],
        help="an option for srun or mpirun, such as --engine-option=--partition=gpu; "
        "may be given several times",
    )
    many.add_argument(
        "--image",
        metavar="IMAGE",
        default=None,
        help="Kubernetes: a container with the wheel (ci/Containerfile)",
    )
    many.add_argument(
        "--baseline",
        metavar="RESULTS",
        type=Path,
        default=None,
        help="fail only if a test that passed in this run fails now, or if a node does "
        "not answer; nodes may answer differently",
    )
    many.add_argument(
        "--json",
        metavar="FILE",
        type=Path,
        default=None,
        help="also write the merged results into this file, as JSON",
    )
    one = commands.add_parser(
        "node", help="what a fleet starts on each node; do not start it by hand"
    )
    one.add_argument("folder", metavar="FOLDER", help="the folder of the fleet")
    one.add_argument(
        "--name",
        metavar="NODE",
        default=None,
        help="the engine's name of this node (default: $IPCLAB_NODE, or Slurm's name)",
    )
    one.add_argument(
        "--print",
        dest="printed",
        action="store_true",
        help="FOLDER is the fleet's id; print the results instead of keeping them",
    )
    for command in (many, one):
        command.add_argument(
            "--backend",
            choices=("cuda", "model"),
            default="cuda",
            help="what is judged: the driver of each node, or the reference model; a "
            "node without a working driver has no answer (default: cuda; `node` takes "
            "it from FOLDER, except with --print)",
        )
        programs(command)
        command.set_defaults(call=run)


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments before `--`, and those after it, which are for `ipclab run`. Only
    the commands of COMMANDS have the latter.
    """
    words = list(words)
    if not words or words[0] not in COMMANDS or "--" not in words:
        return words, []
    end = words.index("--")
    return words[:end], words[end + 1 :]


def run(options: argparse.Namespace) -> int:
    """Run either command; returns its exit code."""
    from rich.text import Text

    from ipclab import engines, fleet, results

    for word in options.run_options:
        name = word.partition("=")[0]
        if name in DECIDED:
            raise UsageError(f"{name} is an option of `ipclab fleet`, not of its runs")
    if options.command == "node":
        return _node(options)
    if options.engine is None:
        if options.folder is None:
            raise UsageError("name an engine (--slurm, --mpi, --kubernetes) or FOLDER")
        return fleet.finish(console(), options.folder, options.baseline, options.json)
    folder = options.folder or results.default_folder("-fleet")
    out = console()
    request = engines.Request(
        engine=options.engine,
        folder=folder,
        build=options.build,
        backend=options.backend,
        nodes=options.nodes,
        limit=options.limit,
        queue=options.queue,
        engine_options=tuple(options.engine_option),
        image=options.image,
        run_options=tuple(options.run_options),
    )
    engines.run(request, lambda line: out.print(Text(line), soft_wrap=True))
    return fleet.finish(out, folder, options.baseline, options.json)


def _node(options: argparse.Namespace) -> int:
    from ipclab import engines, fleet, fleet_node

    name = options.name or fleet_node.name_here()
    arguments = (options.build, options.run_options)
    if not options.printed:
        folder = Path(options.folder)
        return fleet_node.run(fleet.read_fleet(folder), folder, name, *arguments)
    with tempfile.TemporaryDirectory(prefix="ipclab-node-") as scratch:
        folder = Path(scratch)
        (folder / "nodes").mkdir()
        document = fleet.create(options.folder, "kubernetes", options.backend, {}, {})
        code = fleet_node.run(document, folder, name, *arguments)
        engines.print_node(folder / "nodes" / name)
    return code
