"""What these tests share with the tests of the runner: see nightly.py there."""
# SPDX-License-Identifier: Apache-2.0

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "runner" / "tests"))
from nightly import pytest_collection_modifyitems, pytest_configure  # noqa: F401
