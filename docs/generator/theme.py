"""The page header: Doxygen's own, which differs by version, with our scripts.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

SCRIPTS = """\
<link rel="icon" href="data:,"/>
<script src="$relpath^doxygen-awesome-darkmode-toggle.js"></script>
<script>
DoxygenAwesomeDarkModeToggle.init();
{  // paper is white
  const toggle = DoxygenAwesomeDarkModeToggle;
  const paper = matchMedia("print");
  const turn = () => toggle.enableDarkMode(!paper.matches && toggle.userPreference);
  paper.addEventListener("change", turn);
  turn();
}
</script>
"""


def header(default: str) -> str:
    """`default` is what `doxygen -w html` wrote."""
    before, end, after = default.partition("</head>")
    if not end:
        raise ValueError("doxygen -w html wrote a header without </head>")
    return before + SCRIPTS + end + after
