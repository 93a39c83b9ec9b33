"""Check a value against our schemas, only with the standard library.

This module supports only the keywords of JSON Schema that our files use. The tests
compare its answers with those of the package jsonschema.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

Schema = dict[str, Any]


def _read(name: str) -> Schema:
    path = Path(__file__).parent / f"{name}.schema.json"
    schema: Schema = json.loads(path.read_text(encoding="utf-8"))
    return schema


RECORD, RUN, SENTENCES = _read("record"), _read("run"), _read("sentences")
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

_TYPES: dict[str, Any] = {
    "null": type(None),
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}


def error(value: Any, schema: Schema, where: str = "record") -> str | None:
    """The first error in `value`, with the field's name; None if `value` is valid."""
    if "$ref" in schema:
        schema = RECORD["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    if "anyOf" in schema:
        errors = [error(value, option, where) for option in schema["anyOf"]]
        return None if None in errors else errors[-1]
    return (
        _wrong_type(value, schema, where)
        or _wrong_value(value, schema, where)
        or _wrong_part(value, schema, where)
    )


def _wrong_type(value: Any, schema: Schema, where: str) -> str | None:
    if "type" not in schema:
        return None
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    for name in names:
        whole = name == "integer" and isinstance(value, float) and value.is_integer()
        fits = isinstance(value, _TYPES[name])
        if whole or (fits and isinstance(value, bool) == (name == "boolean")):
            return None
    return f"{where}: {_short(value)} is not of type {' or '.join(names)}"


def _wrong_value(value: Any, schema: Schema, where: str) -> str | None:
    allowed = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if allowed is not None and (isinstance(value, bool) or value not in allowed):
        return f"{where}: {_short(value)} is none of {', '.join(map(str, allowed))}"
    if "minimum" in schema and value < schema["minimum"]:
        return f"{where}: {value} is below {schema['minimum']}"
    if "minLength" in schema and len(value) < schema["minLength"]:
        return f"{where}: is empty"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        return f"{where}: {_short(value)} does not match {schema['pattern']}"
    return None


def _wrong_part(value: Any, schema: Schema, where: str) -> str | None:
    if isinstance(value, dict):
        properties: dict[str, Schema] = schema.get("properties", {})
        others: Schema | bool = schema.get("additionalProperties", True)
        for name in schema.get("required", []):
            if name not in value:
                return f"{where}.{name}: is missing"
        for name, part in value.items():
            of_part = properties.get(name, others)
            if of_part is False:
                return f"{where}.{name}: there is no such field"
            if of_part is True:
                continue
            assert isinstance(of_part, dict)
            if wrong := error(part, of_part, f"{where}.{name}"):
                return wrong
    if isinstance(value, list) and "items" in schema:
        for index, part in enumerate(value):
            if wrong := error(part, schema["items"], f"{where}[{index}]"):
                return wrong
    return None


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."
