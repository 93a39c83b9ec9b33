"""ReFrame: the suite on one node, as one check (ReFrame 4, PyPI reframe-hpc).

    reframe -c ci/adapters/reframe.py -r
    reframe -c ci/adapters/reframe.py -r --distribute=idle   on all idle nodes
    … -S options="-k LMEM -j 2"                              options of `ipclab run`
    … -S backend=model                                       judge the reference model

A node without a working driver fails, unless the model is asked for.
The check needs `ipclab` on PATH (the wheel) or -S executable=/path/to/ci/ipclab.
Records and pages are kept in ReFrame's output folder. `ipclab fleet` makes one page of
many nodes.
"""
# SPDX-License-Identifier: Apache-2.0

import json
from pathlib import Path

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import run_before, sanity_function, variable


@rfm.simple_test
class IpclabSuite(rfm.RunOnlyRegressionTest):
    """One run, because a job for each row would exceed the limits of a queue."""

    descr = "does the driver of a node do what CUDA IPC promises?"
    valid_systems = ["*"]  # noqa: RUF012  (ReFrame wants lists)
    valid_prog_environs = ["*"]  # noqa: RUF012
    executable = "ipclab"
    options = variable(str, value="")
    backend = variable(str, value="cuda")
    time_limit = "30m"
    exclusive_access = True
    keep_files = ["results"]  # noqa: RUF012

    @run_before("run")
    def set_options(self):
        """Passes the value of `-S options=…` to `ipclab run`."""
        self.executable_opts = [
            *("run", "--backend", self.backend, "--results", "results", self.options)
        ]

    @sanity_function
    def passes(self):
        """The run has finished with exit code 0: rules were judged, and none fails."""
        path = Path(self.stagedir, "results", "run.json")
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            return sn.assert_true(False, msg=f"no results of ipclab: {error}")
        counts = ", ".join(f"{n} {name}" for name, n in document["counts"].items())
        state, code = document["state"], document["exit_code"]
        why = "; ".join(document["problems"]) or f"see {path.with_name('report.html')}"
        return sn.assert_eq(
            (document["backend"], state, code),
            (self.backend, "finished", 0),
            msg=f"ipclab: {state}, exit code {code}: {counts}: {why}",
        )
