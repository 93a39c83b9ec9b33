"""Names for people: of kernels and of result codes."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import functools
import re

from ipclab import explain


def plain_name(mangled: str) -> str:
    """The last name of a mangled kernel: add of _Z3addPii, f of _ZN2ns1fIiEEvv."""
    match = re.match(r"_ZN?K?((?:\d+[A-Za-z_]\w*)+)", mangled)
    if not match:
        return mangled
    rest, name = mangled[2:].lstrip("NK"), ""
    while digits := re.match(r"\d+", rest):
        size = int(digits[0])
        name = rest[len(digits[0]) : len(digits[0]) + size]
        rest = rest[len(digits[0]) + size :]
    return name or mangled


@functools.cache
def _names() -> dict[int, str]:
    return {x.number: x.driver or x.code for x in explain.read()}


def result_name(code: int) -> str:
    """CUDA_ERROR_INVALID_VALUE for 1."""
    return _names().get(code, f"error {code}")
