"""`python3 -m ipclab`: the command without an installation."""
# SPDX-License-Identifier: Apache-2.0

import sys

from ipclab.cli import main

sys.exit(main())
