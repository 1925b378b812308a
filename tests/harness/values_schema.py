"""Check values by a JSON schema as far as the chart's goes; whatever else a schema says is refused.

Source: JSON Schema, draft 7. A test compares this with Helm itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_TYPES: Final = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
_NAMES: Final = frozenset(("$schema", "title", "definitions", "then", "else"))
"""Words that say nothing by themselves."""


class UnknownKeywordError(Exception):
    """The schema says what this checker does not know."""


def faults(schema: Mapping[str, Any], value: Any) -> list[str]:
    """Return the places at which a value is not as the schema says."""
    return list(_faults(schema, value, "", schema))


def _faults(schema: Mapping[str, Any], value: Any, place: str, root: Mapping[str, Any]) -> Iterator[str]:
    for keyword, said in schema.items():
        if keyword in _NAMES:
            continue
        if keyword == "$ref":
            yield from _faults(root["definitions"][said.removeprefix("#/definitions/")], value, place, root)
        elif keyword == "if":
            branch = "else" if list(_faults(said, value, place, root)) else "then"
            yield from _faults(schema.get(branch, {}), value, place, root)
        elif keyword == "oneOf":
            if sum(not list(_faults(one, value, place, root)) for one in said) != 1:
                yield f"{place}: expected one of the forms"
        elif keyword == "not":
            if not list(_faults(said, value, place, root)):
                yield f"{place}: expected another"
        elif keyword in ("properties", "additionalProperties", "items"):
            yield from _within(keyword, schema, value, place, root)
        elif not _holds(keyword, said, value):
            missing = sorted(set(said) - value.keys()) if keyword == "required" else ""
            yield f"{place}: expected {keyword} {missing or said}"


def _within(keyword: str, schema: Mapping[str, Any], value: Any, place: str, root: Mapping[str, Any]) -> Iterator[str]:
    said = schema[keyword]
    if keyword == "items":
        for i, one in enumerate(value if isinstance(value, list) else ()):
            yield from _faults(said, one, f"{place}/{i}", root)
    elif isinstance(value, dict):
        own = schema.get("properties", {})
        for name, one in value.items():
            if keyword == "properties" and name in own:
                yield from _faults(own[name], one, f"{place}/{name}", root)
            elif keyword == "additionalProperties" and name not in own:
                yield from (
                    [f"{place}/{name}: expected none"] if said is False else _faults(said, one, f"{place}/{name}", root)
                )


def _holds(keyword: str, said: Any, value: Any) -> bool:
    """Tell whether a keyword without schemas of its own holds; those of other types say nothing of a value."""
    is_text, is_object = isinstance(value, str), isinstance(value, dict)
    match keyword:
        case "type":
            return isinstance(value, _TYPES[said]) and not (said == "integer" and isinstance(value, bool))
        case "enum":
            return value in said
        case "const":
            return bool(value == said)
        case "required":
            return not is_object or set(said) <= value.keys()
        case "pattern":
            return not is_text or re.search(said, value) is not None
        case "minLength" | "maxLength":
            return not is_text or (len(value) >= said if keyword == "minLength" else len(value) <= said)
        case "minProperties":
            return not is_object or len(value) >= said
        case "minItems":
            return not isinstance(value, list) or len(value) >= said
        case "minimum" | "maximum":
            return not isinstance(value, int) or (value >= said if keyword == "minimum" else value <= said)
    raise UnknownKeywordError(keyword)
