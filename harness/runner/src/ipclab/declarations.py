"""What a fault depends on: its declaration, and the words and facts that this uses.

The results of a fault are kept under the digest of these texts. So a change of one
fault, of a word or of a fact runs only the faults again that use it, and a change of a
comment or of the layout runs none.

This module reads C++ as far as it needs: it splits a file into the definitions that
stand in no other one, knows each by its name, and follows the names.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path("harness/faults")
SHARED = ("world", "words")  # folders of it whose definitions every fault may use
WRITER = "note_"  # how functions begin that write facts after an accepted call
OWN = "faults.cc"  # files of faults beside the tests: faults.cc, subject_faults.cc

_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<macro>^[ \t]*\#(?:[^\n\\]|\\.|\\\n)*)
    |(?P<text>(?:u8?|U|L)?"(?:[^"\\\n]|\\.)*")
    |(?P<char>'(?:[^'\\\n]|\\.)+')
    |(?P<name>[A-Za-z_]\w*)
    |(?P<number>\.?\d(?:['\w.]|(?<=[eEpP])[+-])*)
    |(?P<other>::|->|&&|\|\||.)""",
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
_OPEN, _CLOSE = "({[", ")}]"
_NO_BODY = ("=", "struct", "class", "enum", "union", "using")
ROOM = "FAULTS"  # the macro before the body of a function that declares faults
_DECLARES = "fault"  # the function that declares a fault
_NO_NAMES = frozenset(
    [
        "alignas",
        "auto",
        "bool",
        "char",
        "class",
        "const",
        "constexpr",
        "double",
        "else",
        "enum",
        "extern",
        "float",
        "for",
        "if",
        "inline",
        "int",
        "long",
        "namespace",
        "operator",
        "return",
        "short",
        "signed",
        "sizeof",
        "static",
        "struct",
        "switch",
        "template",
        "thread_local",
        "typename",
        "unsigned",
        "using",
        "void",
        "volatile",
        "while",
    ]
)


@dataclass(frozen=True)
class Token:
    """A word of C++."""

    kind: str
    text: str


@dataclass(frozen=True)
class Item:
    """A definition, or the declaration of a fault."""

    name: str
    tokens: tuple[Token, ...]

    @property
    def uses(self) -> frozenset[str]:
        """The names in it. In a macro, every word is a name."""
        found = {x.text for x in self.tokens if x.kind == "name"}
        for x in self.tokens:
            if x.kind == "macro":
                found.update(re.findall(r"[A-Za-z_]\w*", x.text))
        return frozenset(found - _NO_NAMES - {self.name})


def texts(source: Path) -> dict[str, str]:
    """The files of a source tree on which named faults depend: path and text."""
    paths = [
        *(source / FOLDER).glob("*.cc"),
        *(path for folder in SHARED for path in (source / FOLDER / folder).glob("*")),
        *(source / "conformance").glob(f"*/*{OWN}"),
    ]
    return {
        path.relative_to(source).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(paths)
    }


def has(path: str) -> bool:
    """Whether texts() has the file of this path in a source tree."""
    parts = Path(path).parts
    if parts[0] == "conformance":
        return len(parts) == 3 and is_own(parts[2])
    if parts[:2] != FOLDER.parts:
        return False
    inner = parts[2:]
    return inner[0] in SHARED if len(inner) > 1 else path.endswith(".cc")


def is_own(name: str) -> bool:
    """Whether a file beside tests, by its name, declares faults."""
    return name == OWN or name.endswith(f"_{OWN}")


def digests(found: Mapping[str, str]) -> dict[str, str]:
    """The digest of each named fault of a source tree, by its name; `found` are its
    texts().

    Faults that one statement makes in a loop (the operators) are not in it.
    """
    shared: dict[str, list[Item]] = {}
    files: dict[str, list[Item]] = {}
    for path, text in found.items():
        items = definitions(text)
        if Path(path).parent.name in SHARED:
            for item in items:
                shared.setdefault(item.name, []).append(item)
        else:
            files[path] = items
    result: dict[str, str] = {}
    for items in files.values():
        own: dict[str, list[Item]] = {}
        for item in items:
            own.setdefault(item.name, []).append(item)
        for item in items:
            declared, constants = _declared(item)
            if declared:
                names = own | {x.name: [x] for x in constants}
                known = _Known(names, shared)
                result |= {name: known.digest(x) for name, x in declared}
    return result


@dataclass(frozen=True)
class Declared:
    """What a declaration says of its fault."""

    name: str
    what: str
    rows: tuple[str, ...]


def declared(found: Mapping[str, str]) -> list[Declared]:
    """The named faults of a source tree; `found` are its texts()."""
    result: list[Declared] = []
    for path, text in found.items():
        if Path(path).parent.name in SHARED:
            continue
        for item in definitions(text):
            for name, one in _declared(item)[0]:
                # fault("name", {"ROW", …}, "what")
                end = next(i for i, x in enumerate(one.tokens) if x.text == ")")
                strings = [
                    x.text[1:-1].replace('\\"', '"')
                    for x in one.tokens[:end]
                    if x.kind == "text"
                ]
                result.append(Declared(name, strings[-1], tuple(strings[1:-1])))
    return result


@dataclass(frozen=True)
class Word:
    """A condition, an effect or a fact that faults share."""

    name: str
    meaning: str  # its comment; empty if it has none
    faults: tuple[str, ...]  # those whose declaration or helpers name it


def words(found: Mapping[str, str]) -> list[Word]:
    """The vocabulary of the faults, sorted by name; `found` are the texts()."""
    shared: dict[str, str] = {}
    users: dict[str, list[str]] = {}
    for path, text in found.items():
        if Path(path).parent.name in SHARED:
            for item in definitions(text):
                if item.name:
                    shared.setdefault(item.name, _meaning(text, item.name))
            continue
        items = definitions(text)
        own = {item.name: item for item in items}
        for item in items:
            for name, one in _declared(item)[0]:
                for word in _named(one, own):
                    users.setdefault(word, []).append(name)
    return [
        Word(name, meaning, tuple(users.get(name, ())))
        for name, meaning in sorted(shared.items())
    ]


def _named(item: Item, own: Mapping[str, Item]) -> set[str]:
    """The names in a text and in the helpers of its file that it uses."""
    seen: set[str] = set()
    open_ = set(item.uses)
    while open_:
        name = open_.pop()
        if name not in seen:
            seen.add(name)
            open_ |= own[name].uses if name in own else set()
    return seen


def _meaning(text: str, name: str) -> str:
    """The comment above a definition, in one line."""
    above = re.search(
        rf"((?:^///? [^\n]*\n)+)(?:template[^\n]*\n)?[^\n/]*\b{name}\b",
        text,
        re.MULTILINE,
    )
    lines = above[1].splitlines() if above else []
    return " ".join(line.lstrip("/ ") for line in lines)


def main(source: Path) -> None:
    """Print the vocabulary of a source tree as a table in Markdown."""
    print("| word | meaning | faults |\n| --- | --- | --- |")
    for word in words(texts(source)):
        some = ", ".join(word.faults[:3]) + (" …" if len(word.faults) > 3 else "")
        meaning = word.meaning.replace("|", "\\|")
        print(f"| `{word.name}` | {meaning} | {len(word.faults)}: {some} |")


def tokens(text: str) -> Iterator[Token]:
    """The words of a text, without comments and layout. Neighbouring string literals
    are one word.
    """
    before: Token | None = None
    for match in _TOKEN.finditer(text):
        kind = str(match.lastgroup)
        if kind == "skip":
            continue
        token = Token(kind, match.group())
        if before and before.kind == kind == "text":
            before = Token("text", before.text[:-1] + token.text[1:])
            continue
        if before:
            yield before
        before = token
    if before:
        yield before


def definitions(text: str) -> list[Item]:
    """The definitions that stand in no other one. Namespaces are looked into."""
    found: list[Item] = []
    current: list[Token] = []
    depth = 0
    for token in tokens(text):
        if token.kind == "macro":
            if "define" in token.text:
                name = re.match(r"\s*#\s*define\s+(\w+)", token.text)
                found.append(Item(name[1] if name else "", (token,)))
            continue
        if depth == 0 and token.text == "{" and _is_namespace(current):
            current = []
            continue
        if depth == 0 and token.text == "}":  # of a namespace
            current = []
            continue
        current.append(token)
        if token.text in _OPEN:
            depth += 1
        elif token.text in _CLOSE:
            depth -= 1
        ends = token.text == ";" or (token.text == "}" and _is_body(current))
        if depth == 0 and ends:
            found.append(Item(_name(current), tuple(current)))
            current = []
    return found


class _Known:
    """Definitions by name: of one file, and of all words and facts."""

    def __init__(
        self, own: dict[str, list[Item]], shared: dict[str, list[Item]]
    ) -> None:
        self._own = own
        self._shared = shared
        self._direct = cache(self._items)
        self._writers = [
            item
            for name, items in sorted(shared.items())
            if name.startswith(WRITER)
            for item in items
        ]

    def digest(self, item: Item) -> str:
        """The digest of a text and of all that it uses, directly or not."""
        used: dict[str, None] = {}
        open_ = sorted(item.uses)
        while open_:
            name = open_.pop()
            if name in used or not self._direct(name):
                continue
            used[name] = None
            for one in self._direct(name):
                open_ += sorted(one.uses)
        lines = [_text(item.tokens)]
        for name in sorted(used):
            lines += [_text(one.tokens) for one in self._direct(name)]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def _items(self, name: str) -> tuple[Item, ...]:
        """The definitions of a name. Those of a fact include what writes it."""
        found = [*self._own.get(name, ()), *self._shared.get(name, ())]
        if any(_is_table(x) for x in self._shared.get(name, ())):
            found += [x for x in self._writers if name in x.uses]
        return tuple(found)


def _declared(item: Item) -> tuple[list[tuple[str, Item]], list[Item]]:
    """The faults that a function declares, each with its name and its statement; and
    the constants that the function defines for them.
    """
    found: list[tuple[str, Item]] = []
    constants: list[Item] = []
    current: list[Token] = []
    depth = 0
    for token in item.tokens:
        if token.text in _CLOSE:
            depth -= 1
        if depth >= 1:
            current.append(token)
        if depth == 1 and token.text == ";":
            statement = Item(_name(current), tuple(current))
            if name := _name_of_fault(current):
                found.append((name, Item("", statement.tokens)))
            else:
                constants.append(statement)
            current = []
        if token.text in _OPEN:
            depth += 1
            if depth == 1:
                current = []
    return found, constants


def _name_of_fault(statement: list[Token]) -> str | None:
    """The name of the fault that a statement declares; None if it declares none."""
    words = [x.text for x in statement[:3]]
    if words[:2] == [_DECLARES, "("] and statement[2].kind == "text":
        return words[2][1:-1]
    return None


def _is_table(item: Item) -> bool:
    return any(x.text in ("Table", "Marks") for x in item.tokens)


def _is_namespace(current: list[Token]) -> bool:
    words = [x.text for x in current]
    return "namespace" in words[:2] or words[:1] == ["extern"]


def _is_body(current: list[Token]) -> bool:
    """Whether the `}` at the end closes the body of a function, and not a list or a
    class, after which a `;` follows.
    """
    depth = angle = 0
    for i, token in enumerate(current):
        if depth == 0 and token.text in ("<", ">"):
            angle += 1 if token.text == "<" else -1
        elif depth == angle == 0 and token.text in _NO_BODY:
            return False
        elif token.text in _OPEN:
            if depth == 0 and token.text == "{":
                before = ["", *(x.text for x in current[:i])]
                return "->" in before or before[-1] in (
                    ")",
                    "const",
                    "noexcept",
                    ROOM,
                )
            depth += 1
        elif token.text in _CLOSE:
            depth -= 1
    return False


def _name(current: list[Token]) -> str:
    """The name that a definition gives: the last one before its `(`, `=`, `{` or `;`.
    A definition that only follows a template's list or attributes has the same one.
    """
    depth = angle = 0
    last = ""
    for i, token in enumerate(current):
        if depth == 0 and angle == 0 and token.text in ("=", "{", ";"):
            break
        plain = depth == 0 and angle == 0
        if plain and token.text == "(" and last not in ("", "__attribute__"):
            break
        if token.text in _OPEN:
            depth += 1
        elif token.text in _CLOSE:
            depth -= 1
        elif depth == 0 and token.text == "<" and i:
            angle += 1
        elif depth == 0 and token.text == ">" and angle:
            angle -= 1
        elif depth == 0 and angle == 0 and token.kind == "name":
            last = last if token.text in _NO_NAMES else token.text
    return last


def _text(found: Iterable[Token]) -> str:
    return " ".join(x.text for x in found)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
