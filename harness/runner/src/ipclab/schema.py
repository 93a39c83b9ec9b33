"""Check a value against our schemas, only with the standard library.

This module supports only the keywords of JSON Schema that our files use. The tests
compare its answers with those of the package jsonschema.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import dataclasses
import datetime
import json
import re
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

Schema = dict[str, Any]


def _read(name: str) -> Schema:
    path = Path(__file__).parent / f"{name}.schema.json"
    schema: Schema = json.loads(path.read_text(encoding="utf-8"))
    return schema


RECORD, RUN, SENTENCES = _read("record"), _read("run"), _read("sentences")
GUIDES = _read("guides")
ADDED = (  # written by the runner; a program writes all other fields
    "version",
    "ctest",
    "suite",
    "lesson",
    "kind",
    "verdict",
    "backend",
    "fingerprint",
    "deviation",
    "attempt",
)
LINE: Schema = {
    **RECORD,
    "properties": {k: v for k, v in RECORD["properties"].items() if k not in ADDED},
    "required": [k for k in RECORD["required"] if k not in ADDED],
}
DEVIATION: Schema = RECORD["$defs"]["deviation"]

# A check returns None, or the place of the first error inside the value and its text.
Check = Callable[[Any], tuple[str, str] | None]
# The checks of the schemas that were used, by identity. The schemas are kept, so that
# no other schema gets the same identity.
_checks: dict[int, tuple[Schema, Check]] = {}
_TYPES: dict[str, type] = {
    "null": type(None),
    "string": str,
    "integer": int,
    "boolean": bool,
    "array": list,
    "object": dict,
}


def error(value: Any, schema: Schema, where: str = "record") -> str | None:
    """The first error in `value`, with the field's name; None if `value` is valid.

    `value` is what json.loads returns.
    """
    wrong = _check(schema)(value)
    if wrong is None:
        return None
    told = f"{where}{wrong[0]}: {wrong[1]}"
    # The name of a field may be anything.
    return told if told.isprintable() else told.encode("unicode_escape").decode()


def of_class(kind: Any, **fields: Schema) -> Schema:
    """The schema of what dataclasses.asdict makes of a class; `fields` are those whose
    schema the class does not give.
    """
    if kind is Any:
        return {}
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return {
            "type": "object",
            "properties": {x: fields.get(x) or of_class(y) for x, y in hints.items()},
            "required": list(hints),
            "additionalProperties": False,
        }
    parts = typing.get_args(kind)
    match typing.get_origin(kind) or kind:
        case types.UnionType:
            return {"anyOf": [of_class(part) for part in parts]}
        case builtin if builtin is list:
            return {"type": "array", "items": of_class(parts[0])}
        case builtin if builtin is dict:
            return {"type": "object", "additionalProperties": of_class(parts[1])}
    name = next(name for name, builtin in _TYPES.items() if builtin is kind)
    return {"type": name}


def _check(schema: Schema) -> Check:
    """The check of a schema. A record has more than a thousand values, so each schema
    is read only once.
    """
    if id(schema) not in _checks:
        _checks[id(schema)] = schema, _make(schema)
    return _checks[id(schema)][1]


def _make(schema: Schema) -> Check:
    if "$ref" in schema:
        named = RECORD["$defs"][schema["$ref"].removeprefix("#/$defs/")]
        return lambda value: _check(named)(value)  # it may contain itself
    if "anyOf" in schema:
        return _any_of([_check(option) for option in schema["anyOf"]])
    checks = [
        make(schema)
        for make, words in (
            (_type, {"type"}),
            (_allowed, {"enum", "const"}),
            (_bounds, {"minimum", "minLength", "pattern"}),
            (_time, {"format"}),
            (_fields, {"properties", "additionalProperties", "required"}),
            (_items, {"items"}),
        )
        if words & schema.keys()
    ]
    return checks[0] if len(checks) == 1 else _all_of(checks)


def _any_of(options: list[Check]) -> Check:
    def check(value: Any) -> tuple[str, str] | None:
        wrong = None
        for option in options:
            if (wrong := option(value)) is None:
                return None
        return wrong

    return check


def _all_of(checks: list[Check]) -> Check:
    def check(value: Any) -> tuple[str, str] | None:
        for one in checks:
            if wrong := one(value):
                return wrong
        return None

    return check


def _type(schema: Schema) -> Check:
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    fitting = {_TYPES[name] for name in names if name != "number"}
    if "number" in names:
        fitting |= {int, float}
    whole = "integer" in names  # 1.0 is an integer

    def check(value: Any) -> tuple[str, str] | None:
        if type(value) in fitting:
            return None
        if whole and isinstance(value, float) and value.is_integer():
            return None
        return "", f"{_short(value)} is not of type {' or '.join(names)}"

    return check


def _allowed(schema: Schema) -> Check:
    allowed = schema["enum"] if "enum" in schema else [schema["const"]]

    def check(value: Any) -> tuple[str, str] | None:
        if isinstance(value, bool) or value not in allowed:
            return "", f"{_short(value)} is none of {', '.join(map(str, allowed))}"
        return None

    return check


def _bounds(schema: Schema) -> Check:
    least, shortest = schema.get("minimum"), schema.get("minLength")
    # In a schema, $ is only the end; in Python, a newline may follow.
    pattern = re.sub(r"\$$", r"\\Z", schema.get("pattern", ""))

    def check(value: Any) -> tuple[str, str] | None:
        if least is not None and value < least:
            return "", f"{value} is below {least}"
        if shortest is not None and len(value) < shortest:
            return "", "is empty"
        if pattern and not re.search(pattern, value):
            return "", f"{_short(value)} does not match {schema['pattern']}"
        return None

    return check


_MOMENT = re.compile(
    r"[12]\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d([.]\d{1,6})?([+-]\d\d:\d\d|Z)\Z", re.ASCII
)


def _time(schema: Schema) -> Check:
    assert schema["format"] == "date-time"

    def check(value: Any) -> tuple[str, str] | None:
        try:
            if isinstance(value, str) and not _MOMENT.match(value):
                raise ValueError
            if isinstance(value, str):
                datetime.datetime.fromisoformat(value)
        except ValueError:
            return (
                "",
                f"{_short(value)} is not a time such as 2026-11-23T05:32:48+00:00",
            )
        return None

    return check


def _fields(schema: Schema) -> Check:
    required = schema.get("required", [])
    parts = {name: _check(x) for name, x in schema.get("properties", {}).items()}
    others = schema.get("additionalProperties", True)
    of_others = _check(others) if isinstance(others, dict) else None

    def check(value: Any) -> tuple[str, str] | None:
        if not isinstance(value, dict):
            return None
        for name in required:
            if name not in value:
                return f".{name}", "is missing"
        for name, part in value.items():
            if (of_part := parts.get(name, of_others)) is None:
                if others is False:
                    return f".{name}", "there is no such field"
            elif wrong := of_part(part):
                return f".{name}{wrong[0]}", wrong[1]
        return None

    return check


def _items(schema: Schema) -> Check:
    item = _check(schema["items"])

    def check(value: Any) -> tuple[str, str] | None:
        if isinstance(value, list):
            for index, part in enumerate(value):
                if wrong := item(part):
                    return f"[{index}]{wrong[0]}", wrong[1]
        return None

    return check


def _short(value: Any) -> str:
    if isinstance(value, list | dict) and value:
        return "a list" if isinstance(value, list) else "an object"
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
