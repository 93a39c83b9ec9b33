"""What pools cost and save, from docs/results/costs.json.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

from typing import Any

from generator.text import plain, table


def part(measured: dict[str, Any]) -> str:
    """A table; its last column divides the time without a pool by the time with one."""
    rows = [
        [
            plain(cost["call"]),
            plain(cost["with_pool"]),
            f"{cost['mib']} MiB",
            f"{cost['us']:.1f} us",
            f"{cost['with_pool_us']:.1f} us",
            f"{cost['us'] / cost['with_pool_us']:.2g}",
        ]
        for cost in measured["costs"]
    ]
    return (
        f"Medians of {measured['rounds']} rounds in one run of `pool_bench` on "
        f"{plain(measured['machine'])}:\n\n"
        + table(
            ["without a pool", "with a pool", "size", "without", "with", "ratio"], rows
        )
    )
