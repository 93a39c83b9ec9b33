"""Links to NVIDIA's reference: a tag file made from the headers of the toolkit.

Doxygen makes NVIDIA's pages. A page has the name of the \\defgroup (or \\addtogroup)
around the declaration. An anchor is the MD5 of the declaration. So page and anchor
follow from the header with which a lesson is compiled.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

MANUALS_AT = "https://docs.nvidia.com/cuda"
# Header -> the manual of its functions, below MANUALS_AT.
MANUALS = {
    "cuda_runtime_api.h": "cuda-runtime-api",
    "cuda.h": "cuda-driver-api",
}
GROUP = re.compile(r"\\(?:defgroup|addtogroup) (\w+)")
FUNCTION = re.compile(
    r"^(?:extern (?P<before>[^\n;]*)CUDARTAPI|CUresult CUDAAPI) (?P<name>\w+)"
    r"\s*\((?P<arguments>[^;{}]*)\);",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Function:
    """A function and the address of its reference."""

    name: str
    result: str
    arguments: str
    page: str  # below https://docs.nvidia.com/cuda
    anchor: str


def functions(include: Path) -> dict[str, Function]:
    """All functions of both APIs by name, read from the toolkit's headers."""
    found: dict[str, Function] = {}
    for header, manual in MANUALS.items():
        text = (include / header).read_text()
        groups = [(m.start(), m[1]) for m in GROUP.finditer(text)]
        for match in FUNCTION.finditer(text):
            within = [group for start, group in groups if start < match.start()]
            if within and match["name"] not in found:
                found[match["name"]] = _function(match, manual, within[-1])
    return found


def _function(match: re.Match[str], manual: str, group: str) -> Function:
    name = match["name"]
    result = "CUresult"
    if manual == "cuda-runtime-api":
        result = "const char*" if "const char*" in match["before"] else "cudaError_t"
        # The manual has __device__ in the place of __cudart_builtin__ in the header.
        builtin = "__cudart_builtin__" in match["before"]
        result = ("__host__ __device__ " if builtin else "__host__ ") + result
    arguments = re.sub(r"\s*__dv\(([^)]*)\)", r"=\1", match["arguments"])
    arguments = "(" + " ".join(arguments.split()) + ")"
    text = f"{result} {name}{name}{arguments}"  # Doxygen digests the name twice
    digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
    base = "group__" + group.replace("_", "__")
    page, anchor = f"{manual}/{base}.html", f"{base}_1g{digest}"
    return Function(name, result, arguments, page, anchor)


def tag_file(include: Path) -> str:
    """The functions as Doxygen's tag file, for TAGFILES = cuda.tag=URL."""
    by_page: dict[str, list[Function]] = {}
    for function in functions(include).values():
        by_page.setdefault(function.page, []).append(function)
    lines = ["<?xml version='1.0' encoding='UTF-8' standalone='yes'?>", "<tagfile>"]
    for page, members in by_page.items():
        lines.append(f'<compound kind="file"><name>{page}</name>')
        lines.append(f"<path>/</path><filename>{page}</filename>")
        for member in members:
            lines.append(
                f'<member kind="function"><type>{escape(member.result)}</type>'
                f"<name>{member.name}</name><anchorfile>{page}</anchorfile>"
                f"<anchor>{member.anchor}</anchor>"
                f"<arglist>{escape(member.arguments)}</arglist></member>"
            )
        lines.append("</compound>")
    lines.append("</tagfile>")
    return "\n".join(lines) + "\n"
