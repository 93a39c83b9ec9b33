"""What the doctor checks, and the answer for each symptom: all in one table, and those
of each page about a program that fails.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import html

from generator.chapters import page_of
from generator.text import plain, table
from ipclab import checks, explain

BREAK = "@htmlonly</p><p>@endhtmlonly"  # ends a paragraph


def parts(lessons: set[str]) -> dict[str, str]:
    """File name -> table; `lessons` are the existing lessons."""
    pages = sorted({page for pain in explain.pains() for page in pain.pages})
    return {
        "doctor_checks.md": _checks(),
        "doctor_symptoms.md": _symptoms(lessons),
        **{f"{page}_causes.md": _causes(page, lessons) for page in pages},
    }


def _checks() -> str:
    rows = [[f"<b>{plain(x.title)}</b>", plain(x.asks)] for x in checks.CHECKS]
    return table(("check", "question"), rows)


def _symptoms(lessons: set[str]) -> str:
    titles = {check.id: check.title for check in checks.CHECKS}
    rows = []
    for pain in explain.pains():
        read = [f"@ref {x}" for x in pain.pages[:1]]
        read += [f"@ref {page_of(x)}" for x in pain.lessons if x in lessons]
        read += [f'@ref error_{x} "{x}"' for x in pain.errors]
        looked = ", ".join(plain(titles[x]) for x in pain.checks)
        looked = looked or "nothing: the program decides this"
        rows.append([plain(pain.what), looked, ", ".join(read)])
    return table(("symptom", "the doctor looks at", "read"), rows)


def _causes(page: str, lessons: set[str]) -> str:
    """The complaints of a page, first those for which no other page is better; each has
    a heading of its own, so that the search finds it. (Doxygen leaves out headings of
    an included file, and makes one paragraph of its text.)
    """
    found = [pain for pain in explain.pains() if page in pain.pages]
    told = ""
    for pain in sorted(found, key=lambda x: x.pages.index(page)):
        title = html.escape(_capital(pain.what), quote=False)
        read = ", ".join(f"@ref {page_of(x)}" for x in pain.lessons if x in lessons)
        told += (
            f"@htmlonly</p><h3>{title}</h3><p>@endhtmlonly\n\n{plain(pain.cause)}\n\n"
            f"{BREAK}\n\n**What to do.** {plain(pain.do)}\n\n"
        )
        told += f"{BREAK}\n\nRead: {read}.\n\n" if read else ""
    return told


def _capital(text: str) -> str:
    """A heading begins with a capital letter, if it does not begin with a name."""
    first = text.split()[0].rstrip(":,")
    return text[0].upper() + text[1:] if first.isalpha() and first.islower() else text
