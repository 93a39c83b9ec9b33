"""@pytest.mark.nightly(n, name): of all values of the test's parameter `name`, ci/test
runs a fixed part, one in n, and those that name a changed folder (IPCLAB_CHANGED,
separated by spaces). @pytest.mark.nightly, without values: ci/test leaves the test out.
With IPCLAB_NIGHTLY=1 all run. A conftest.py imports these hooks.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import hashlib
import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known to pytest (a hook of pytest)."""
    config.addinivalue_line(
        "markers", "nightly(n, name): ci/test runs one in n of the values, or none"
    )


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leave out what only ci/nightly runs (a hook of pytest)."""
    if os.environ.get("IPCLAB_NIGHTLY") == "1":
        return
    left_out = [x for x in items if not _runs(x)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [x for x in items if x not in left_out]


def _runs(item: pytest.Item) -> bool:
    mark = item.get_closest_marker("nightly")
    if mark is None:
        return True
    if not mark.args:
        return False
    assert isinstance(item, pytest.Function)
    number, name = mark.args
    value = str(item.callspec.params[name])
    if any(x in value for x in os.environ.get("IPCLAB_CHANGED", "").split()):
        return True
    digest = hashlib.sha256(value.encode()).digest()
    return int.from_bytes(digest[:8], "big") % int(number) == 0
