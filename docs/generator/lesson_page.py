"""What a lesson's page has besides its text: facts at its top, steps.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from generator.frame import Page


def completed(page: Page, lesson: dict[str, Any], generated: Path) -> Page:
    """The page with them."""
    return page
