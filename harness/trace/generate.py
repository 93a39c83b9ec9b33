"""Makes the recorder's table of calls from calls.txt and CUPTI's headers.

    generate.py calls.txt generated_cuda_meta.h cupti_driver_cbid.h FOLDER

FOLDER/calls.inc has the table of calls and the functions that write their
arguments. FOLDER/wrappers.inc has the definitions for the reference model.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

WITHOUT_ARGUMENTS = ("cuCtxSynchronize",)
# Besides the calls that end in Synchronize: they may wait for what the process, and so
# perhaps another process, has still to do.
WAITS = ("cuMemFree", "cuMemcpy", "cuMemcpyDtoH", "cuMemcpyHtoD", "cuMemcpyDtoD")
TAKES = ("cuImportExternalMemory",)  # the descriptor that is given to them
SMALL = ("cuMemcpy2D", "cuMemcpy2DAsync", "cuMemcpy3D", "cuMemcpy3DAsync")


@dataclass(frozen=True)
class Call:
    """One symbol of the driver: cuMemAllocAsync_ptsz."""

    symbol: str
    fields: list[tuple[str, str]]  # type and name
    by_hand: list[str]  # the names that arguments.h writes
    only_refused: bool  # calls that succeed are not recorded

    @property
    def name(self) -> str:
        return base(self.symbol)

    @property
    def names(self) -> list[str]:
        return self.by_hand or [name for _, name in self.fields]


def base(symbol: str) -> str:
    """The name without version and form: cuMemcpyDtoH for cuMemcpyDtoH_v2_ptds."""
    return re.sub(r"(_v\d)?(_pts[zd]|_ptds)?$", "", symbol)


def listed(text: str) -> dict[str, list[str]]:
    """The names in calls.txt, each with its arguments that arguments.h writes. The name
    of a newer function ends in '?', that of a function of which only refused calls are
    recorded in '!'.
    """
    found = {}
    for line in text.splitlines():
        name, _, names = line.partition("#")[0].partition("=")
        if name.strip():
            found[name.strip()] = names.split()
    return found


def calls(wanted: dict[str, list[str]], meta: str, identifiers: str) -> list[Call]:
    """Every symbol of the headers that is a form of a wanted name, except the forms of
    CUDA 3. Ends the program if the headers lack a name that does not end in '?'.
    """
    structs = {
        name: [
            (" ".join(kind.split()), field)
            for kind, field in re.findall(r"([^;]*?[\s*])(\w+);", body)
        ]
        for body, name in re.findall(
            r"typedef struct \w+ \{([^}]*)\} (\w+)_params;", meta
        )
    }
    by_hand = {name.rstrip("?!"): names for name, names in wanted.items()}
    found = []
    for symbol in re.findall(r"CUPTI_DRIVER_TRACE_CBID_(cu\w+)", identifiers):
        name = base(symbol)
        if name not in by_hand:
            continue
        fields = structs.get(symbol)
        if fields is None and symbol not in WITHOUT_ARGUMENTS:
            continue  # the symbol is only a reserved number
        if any("_v1" in kind for kind, _ in fields or []) or symbol in SMALL:
            continue  # from CUDA 3: addresses and sizes of 32 bits
        refused = f"{name}!" in wanted
        found.append(Call(symbol, fields or [], by_hand[name], refused))
    old = {name.rstrip("!") for name in wanted if not name.endswith("?")}
    missing = old - {call.name for call in found}
    if missing:
        sys.exit(f"calls.txt: not in CUPTI's header: {', '.join(sorted(missing))}")
    return found


def table(found: list[Call]) -> str:
    """calls.inc: functions that write arguments, and the table."""
    parts = []
    for call in found:
        if not call.fields:
            continue
        if call.by_hand:
            body = f"  {call.name}(line, p, ok);\n"
        else:
            body = "".join(
                f"  line.comma().value(p.{n}, ok);\n" for _, n in call.fields
            )
        parts.append(
            f"void write_{call.symbol}(Line& line, const void* given, bool ok) {{\n"
            f"  auto& p = *static_cast<const {call.symbol}_params*>(given);\n"
            f"{body}}}\n"
        )
    rows = []
    for call in found:
        names = "".join(f', \\"{name}\\"' for name in call.names)
        writer = f"write_{call.symbol}" if call.fields else "nullptr"
        waits = call.name.endswith("Synchronize") or call.name in WAITS
        takes = call.name in TAKES
        flags = f"{waits}, {takes}, {call.only_refused}".lower()
        rows.append(
            f"    {{CUPTI_DRIVER_TRACE_CBID_{call.symbol}, {writer}, {flags},\n"
            f'     "[\\"{call.name}\\"{names}]"}},\n'
        )
    return "\n".join(parts) + "\nconst Call kCalls[] = {\n" + "".join(rows) + "};\n"


def wrappers(found: list[Call]) -> str:
    """wrappers.inc: WRAP(symbol, index, type, parameters, arguments) for each call,
    except the forms for per-thread default streams.
    """
    parts = []
    for index, call in enumerate(found):
        if "_pt" in call.symbol:  # the model has no per-thread default streams
            continue
        declared = ", ".join(
            f"{kind}{'' if kind.endswith('*') else ' '}{name}"
            for kind, name in call.fields
        )
        passed = ", ".join(name for _, name in call.fields)
        struct = f"{call.symbol}_params" if call.fields else "NoParameters"
        parts.append(
            f"WRAP({call.symbol}, {index}, {struct},\n     ({declared}), ({passed}))\n"
        )
    return "".join(parts)


def main() -> None:
    """Write each file, if its contents have changed."""
    wanted, meta, identifiers, folder = (Path(x) for x in sys.argv[1:])
    found = calls(listed(wanted.read_text()), meta.read_text(), identifiers.read_text())
    for name, text in (("calls", table(found)), ("wrappers", wrappers(found))):
        path = folder / f"{name}.inc"
        text = "// Written by generate.py; do not edit.\n" + text
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


if __name__ == "__main__":
    main()
