"""The documented sentences of CUDA's headers, found by function and words.

A *topic* is what a comment of a header documents: a function, a constant, a group of
functions, or a type with its enumerators and fields. The sentences of a topic are the
sentences of the comment, without markup and with single blanks. So a sentence stays the
same if it moves to another line or if a line break is at another place. The description
of one parameter can have several sentences; a list of results counts as one sentence.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ipclab.errors import UsageError

HEADERS = ("cuda.h", "cuda_runtime_api.h", "driver_types.h")
LONGEST = 100_000  # characters; the longest declaration is the list of all error codes
WORDS = 9  # the words that a short quotation has of a longer sentence

_COMMENT = re.compile(r"/\*\*(?!/)(?P<trailing><?)(?P<text>.*?)\*/", re.DOTALL)
_FUNCTION = re.compile(r"\b(cu[A-Z]\w*|cuda[A-Z]\w*)\s*\(")
_BUILT_IN = r"(?:__device_builtin__\s+|CUDART_\w+\s+)*"
_BLOCK = re.compile(  # an enum or a struct, up to the brace in the first column
    rf"^(?P<typedef>typedef\s+)?{_BUILT_IN}(?:enum|struct|union)\s+{_BUILT_IN}"
    r"(?P<tag>\w+)?\s*\{(?P<body>.*?)^\}\s*(?P<alias>\w*)[^;]*;",
    re.MULTILINE | re.DOTALL,
)
_TYPES = ("enum", "struct", "union", "typedef")
_CONSTANT = re.compile(r"#define\s+(\w+)")
_IF, _ENDIF = r"^[ \t]*#[ \t]*if", r"^[ \t]*#[ \t]*endif"
_GROUP = re.compile(r"\\defgroup\s+(\w+).*")
_ALIAS = re.compile(r"typedef\s+[^;{}]*?\b(\w+)\s*;")
# A paragraph that begins with one of these commands is dropped: it is a reference, a
# remark that many functions share, or markup without a sentence.
_DROPPED = re.compile(
    r"^\\(sa|see|defgroup|addtogroup|ingroup|note_\w+|notefnerr|cond|endcond|name"
    r"|warning_\w+|if|endif|file|page|section|author|version|date|showlinks|hideinitializer)\b"
)
_COMMAND = re.compile(r"^\\(\w+)(?:\[[^\]]*\])?\s*(.*)$")
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|etc|vs|cf|resp|approx)|\bNo)\.$")


@dataclass(frozen=True)
class Sentence:
    """One sentence of a topic, as words with single blanks between them."""

    topic: str
    text: str

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits that change if a word of the sentence changes."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:8]

    @property
    def says(self) -> str:
        """The first words of a long sentence, or a short sentence as a whole."""
        words = self.text.split()
        return self.text if len(words) <= WORDS + 2 else " ".join(words[:WORDS]) + " …"


@dataclass(frozen=True)
class Documentation:
    """What the headers of one toolkit say."""

    include: Path
    toolkit: str  # such as 13.5
    topics: dict[str, list[Sentence]]
    functions: frozenset[str]  # the topics that are functions


def read(include: Path) -> Documentation:
    """All topics of the headers in an include folder.

    Raises UsageError if the headers are missing, incomplete or of two toolkits.
    """
    topics: dict[str, list[Sentence]] = {}
    functions: set[str] = set()
    texts = {name: _header(include / name) for name in HEADERS}
    version, runtime = (
        _version(include / name, texts[name], macro)
        for name, macro in (
            ("cuda.h", "CUDA_VERSION"),
            ("cuda_runtime_api.h", "CUDART_VERSION"),
        )
    )
    if version != runtime:
        raise UsageError(
            f"{include}: cuda.h is of CUDA {version}, cuda_runtime_api.h of {runtime}"
        )
    for text in texts.values():
        for topic, told in _topics(text):
            topics[topic] = list(dict.fromkeys([*topics.get(topic, []), *told]))
        functions |= {_unversioned(name) for name in _FUNCTION.findall(text)}
    return Documentation(include, version, topics, frozenset(functions & set(topics)))


def _header(path: Path) -> str:
    """The text of a header. UsageError if the header is missing or incomplete: missing
    sentences would count as removed.
    """
    wrong = None
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            wrong = "is not a file"  # reading a named pipe would wait for a writer
        else:
            data = path.read_bytes()
    except OSError as error:
        wrong = error.strerror
    if wrong:
        raise UsageError(
            f"{path}: {wrong}; name the include folder of a CUDA toolkit, such as "
            "/usr/local/cuda/include"
        )
    text = data.decode(errors="replace")
    if "\0" in text:
        raise UsageError(f"{path}: is not text; is this a header of CUDA?")
    begun, ended = (len(re.findall(x, text, re.M)) for x in (_IF, _ENDIF))
    if not begun or begun != ended:
        raise UsageError(
            f"{path}: has {begun} #if and {ended} #endif; a part of the header is "
            "missing"
        )
    return text


def _version(path: Path, text: str, macro: str) -> str:
    """A toolkit's version, such as 13.5; UsageError if the header does not say it."""
    found = re.search(rf"^#define {macro}\s+(\d{{4,6}})\s*$", text, re.M)
    if found is None:
        raise UsageError(f"{path}: does not define {macro} as a number such as 13050")
    major, minor = divmod(int(found[1]), 1000)
    return f"{major}.{minor // 10}"


def _topics(text: str) -> Iterator[tuple[str, list[Sentence]]]:
    """The topic and the sentences of each comment, in the order of the header. Comments
    without a topic are left out.
    """
    members = _members(text)
    for comment in _COMMENT.finditer(text):
        if comment.start() in members:
            topic, member = members[comment.start()]
            told = [f"{member}: {x}" for x in sentences(comment["text"])]
        elif comment["trailing"]:
            line = text[: comment.start()].rpartition("\n")[2]
            if not (constant := _CONSTANT.match(line)):
                continue
            topic, told = constant[1], sentences(comment["text"])
        elif group := _GROUP.search(comment["text"]):
            topic, told = group[1], sentences(comment["text"][group.end() :])
        elif name := _documented(text[comment.end() : comment.end() + LONGEST]):
            topic, told = name, sentences(comment["text"])
        else:
            continue
        yield topic, [Sentence(topic, x) for x in told]


def _documented(after: str) -> str | None:
    """The function or type that follows a comment; None if another comment or something
    else follows.
    """
    code = re.sub(r"^#.*\n", "", after[:4000], flags=re.MULTILINE).lstrip()
    if code.startswith("/*"):
        return None
    if code.startswith(_TYPES):
        whole = re.sub(r"^#.*\n", "", after, flags=re.MULTILINE).lstrip()
        if block := _BLOCK.match(whole):
            return _type(block)
        alias = _ALIAS.match(code)
        return _unversioned(alias[1]) if alias else None
    declaration = code.partition(";")[0]
    function = _FUNCTION.search(declaration)
    return _unversioned(function[1]) if function and "{" not in declaration else None


def _members(text: str) -> dict[int, tuple[str, str]]:
    """For each comment in an enum or a struct, by its start: the type, and the member
    that the comment documents.
    """
    found: dict[int, tuple[str, str]] = {}
    for block in _BLOCK.finditer(text):
        start, body = block.start("body"), block["body"]
        for comment in _COMMENT.finditer(body):
            if comment["trailing"]:
                before = re.sub(r"/\*.*?\*/", "", body[: comment.start()], flags=re.S)
                line = before.rstrip().rsplit("\n", 1)[-1]
            else:
                line = re.split(r"[;,\n]", body[comment.end() :].lstrip(), maxsplit=1)[
                    0
                ]
            if member := _member(line):
                found[start + comment.start()] = (_type(block), member)
    return found


def _type(block: re.Match[str]) -> str:
    """The name by which programs know an enum or a struct."""
    name = block["alias"] if block["typedef"] and block["alias"] else block["tag"]
    return _unversioned(name or "")


def _member(line: str) -> str | None:
    """The name that a line of an enum or a struct declares; None if there is none."""
    line = re.sub(r"\[[^\]]*\]", "", line.partition("=")[0])
    names = re.findall(r"\w+", line)
    return None if not names or names[0] in ("struct", "union") else names[-1]


def _unversioned(name: str) -> str:
    """A name without the suffixes that a header adds: _v2, _st, _enum."""
    return re.sub(r"(_v\d+|_st|_enum)+$", "", name)


def sentences(comment: str) -> list[str]:
    """The sentences of a comment, without its markup."""
    found: list[str] = []
    for paragraph in _paragraphs(comment):
        found += _split(paragraph)
    return found


def _paragraphs(comment: str) -> Iterator[str]:
    """The paragraphs; empty lines, commands and items of lists separate them."""
    words: list[str] = []
    dropping = False
    verbatim = False
    for raw in comment.split("\n"):
        line = re.sub(r"^\s*\*? ?", "", raw).strip().replace("___MANBRIEF___ ", "")
        line = re.sub(r"\(?___\w+___\)?|^@[{}]", "", line)
        if re.match(r"^\\(code|verbatim)", line):
            verbatim = True
        if verbatim:
            verbatim = not re.match(r"^\\end(code|verbatim)", line)
            continue
        command = _COMMAND.match(line)
        begins = (
            not line
            or line.startswith(("- ", "+ "))
            or (
                command is not None
                and command[1] not in ("p", "ref", "e", "b", "c", "em")
            )
        )
        if begins:
            if words:
                yield " ".join(words)
            words, dropping = (
                [],
                bool(_DROPPED.match(line)) or (dropping and bool(line) and not command),
            )
        if dropping or not line or (command and command[1] == "par"):
            # Only the title of \par is dropped: the lines after it may be sentences.
            dropping = dropping and bool(line)
            continue
        words.append(_without_command(command) if begins and command else line)
    if words:
        yield " ".join(words)


def _without_command(command: re.Match[str]) -> str:
    name, rest = command[1], command[2]
    if name == "param":
        parameter, _, text = rest.partition(" ")
        return f"{parameter}: {text.strip().lstrip('-').strip()}"
    if name in ("return", "returns", "result"):
        return f"Returns: {rest}"
    return str(rest).lstrip(": ")


def _split(paragraph: str) -> Iterator[str]:
    text = re.sub(r"\\(?:p|ref|e|b|c|em)\s+", "", paragraph)
    text = text.replace("::", " ::").replace("\\", "")
    text = re.sub(r"(^|[\s(\[,;&|!~-]|\w)\s?::(?=\w)", _unlinked, text)
    text = re.sub(r"</?[a-zA-Z]+/?>", " ", text)
    text = re.sub(r"^[-+]\s+", "", " ".join(text.split()))
    if text.startswith("Returns:"):
        yield text
        return
    begin = 0
    for end in re.finditer(r"[.?!][)\"']*(?=\s+(?:[A-Z0-9:\"'`]|cu))", text):
        piece = text[begin : end.end()].strip()
        if _ABBREVIATION.search(piece):
            continue
        if re.fullmatch(r"\d+\.", piece):  # the number of an item
            begin = end.end()
            continue
        yield piece
        begin = end.end()
    if rest := text[begin:].strip():
        yield rest


def _unlinked(found: re.Match[str]) -> str:
    """Removes Doxygen's :: in front of a name; the :: of a member stays."""
    before = found[1]
    return (
        f"{before}::"
        if re.match(r"\w", before) and "  " not in found[0]
        else before + " "
    )
