"""`python3 -P -m ipclab`: the command without an installation."""
# SPDX-License-Identifier: Apache-2.0

import os
import sys

# Nothing is imported from the current folder, which may hold somebody's results. -P
# does this for the folder itself, but not for an empty part of PYTHONPATH.
_HERE = os.path.realpath("/proc/self/cwd")
if os.path.realpath(os.path.join(__file__, "../..")) != _HERE:  # noqa: PTH118
    sys.path[:] = [x for x in sys.path if os.path.realpath(x) != _HERE]

from ipclab.cli import main  # noqa: E402

sys.exit(main())
