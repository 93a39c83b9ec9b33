"""Pictures of memory for "CUDA IPC in five minutes": address spaces and blocks.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 720, 190
SPACE, BLOCK = 200, 150  # widths of an address space and of a physical block
LEFT, MIDDLE, RIGHT = 10, 285, 510


@dataclass(frozen=True)
class Scene:
    """The pointers, and where they lead."""

    title: str
    block: str  # label of the physical block
    exporter: str = ""  # text at the exporter's address; may be empty
    importer: str = ""
    broken: bool = False  # the importer's pointer leads to memory that was freed


SCENES = {
    "five_alone": Scene(
        "Only the exporter has a mapping", "physical block", "pointer 0x7f0a…"
    ),
    "five_shared": Scene(
        "Both processes have a mapping of one block",
        "physical block",
        "pointer 0x7f0a…",
        "pointer 0x7e51…",
    ),
    "five_early": Scene(
        "The exporter has freed too early: what the importer reads is undefined",
        "freed",
        "",
        "pointer 0x7e51…",
        True,
    ),
}


def figures() -> dict[str, str]:
    """File name -> HTML of each picture."""
    return {f"{name}.svg": figure(scene) for name, scene in SCENES.items()}


def figure(scene: Scene) -> str:
    """One picture with its caption."""
    style = "broken" if scene.broken else "block"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img"><title>{escape(scene.title)}'
        "</title>",
        _space("exporter", LEFT, scene.exporter),
        _space("importer", RIGHT, scene.importer),
        f'<rect class="{style}" x="{MIDDLE}" y="80" width="{BLOCK}" height="60" '
        'rx="5"/>',
        _text(MIDDLE + BLOCK // 2, 72, "GPU", "head"),
        _text(MIDDLE + BLOCK // 2, 115, scene.block),
    ]
    if scene.exporter:
        parts.append(_arrow(LEFT + SPACE - 14, MIDDLE - 4, style))
    if scene.importer:
        parts.append(_arrow(RIGHT + 14, MIDDLE + BLOCK + 4, style))
    return (
        f'<figure class="picture" tabindex="0">{"".join(parts)}</svg>'
        f"<figcaption>{escape(scene.title)}.</figcaption></figure>\n"
    )


def _space(name: str, x: int, pointer: str) -> str:
    """A process's address space with at most one mapping in it."""
    told = (
        f'<rect class="space" x="{x}" y="34" width="{SPACE}" height="146" rx="8"/>'
        + _text(x + SPACE // 2, 24, f"address space of the {name}", "head")
    )
    if pointer:
        told += (
            f'<rect class="mapping" x="{x + 14}" y="94" width="{SPACE - 28}" '
            f'height="32" rx="4"/>{_text(x + SPACE // 2, 115, pointer)}'
        )
    return told


def _arrow(start: int, end: int, style: str) -> str:
    way = 1 if end > start else -1
    return (
        f'<path class="lead {style}" d="M{start} 110H{end - 8 * way}"/>'
        f'<path class="tip" d="M{end} 110l{-10 * way} -5v10z"/>'
    )


def _text(x: int, y: int, text: str, style: str = "") -> str:
    return f'<text class="{style}" x="{x}" y="{y}">{escape(text)}</text>'
