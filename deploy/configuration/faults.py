"""Say what is wrong with a configuration: a line a fault, with field, expected and found."""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError

from precad.deploy.shown.found import found_shown
from precad.protos.messages.spoken import shown

_OUR_WORDS: Final = {
    "Input should be ": "",
    "String should match pattern ": "a text of the pattern ",
    "String should have ": "a text of ",
    "List should have ": "a list of ",
    " after validation, not 0": "",
    "a valid dictionary": "a section",
}
"""Words of the library, and ours in their place."""
_OF_BOUNDS: Final = ("less_than", "less_than_equal", "greater_than", "greater_than_equal")
"""The library's faults of a number outside of its bounds."""
_LOCAL: Final = "precad check, run, query and simulate alone take names or a number"
_TWICE: Final = re.compile(r"Cannot overwrite a value \((?:at line ([0-9]+),|at end of document)")
_KEY: Final = re.compile(r"[ \t]*([A-Za-z0-9_-]+)[ \t]*=")
"""A key as it usually stands: bare, and first in its line."""
_LIKENESS: Final = 0.75
"""The least likeness, by difflib's ratio, of a key that may have been meant."""


def faults_of(error: ValidationError, kind: type[BaseModel], *section: str) -> Iterator[str]:
    """Yield a line a fault. kind: what was validated, found in that section, or the whole file."""
    for fault in error.errors(include_url=False):
        yield _line({**fault, "loc": (*section, *fault["loc"])}, meant=_meant(kind, fault["loc"]))


def toml_fault(error: Exception, text: str) -> str:
    """Return what is wrong with a file's text, with the key that stands twice where its line begins with it."""
    if isinstance(error, RecursionError):
        return "values nested too deeply"
    if not isinstance(error, tomllib.TOMLDecodeError | UnicodeDecodeError):  # Python's own bound of integers
        return "an integer of too many digits"
    if (twice := _TWICE.match(str(error))) is not None:
        keys = [None if (key := _KEY.match(line)) is None else key[1] for line in text.rstrip().split("\n")]
        found = keys[int(twice[1] or 0) - 1]
        if found is not None and keys.count(found) > 1:  # else it is a line of a longer value
            return f"{found} twice: {error}"
    return str(error)


def _line(error: Any, meant: str | None) -> str:
    field = shown(".".join(str(part) for part in error["loc"]))  # in one line, whatever a key holds
    message, found = str(error["msg"]), found_shown(error["input"], *error["loc"])
    match error["type"]:
        case "missing":
            return f"{field}: expected a value, found none"
        case "extra_forbidden" if field == "simulation":
            return f"{field}: expected none, as precad simulate alone reads this section, found one"
        case "extra_forbidden":
            return f"{field}: expected no such key{f', but perhaps {meant}' if meant else ''}, found {found}"
        case "model_type":  # its own text names a class of ours
            return f"{field}: expected a section, found {found}"
        case "value_error":
            text = message.removeprefix("Value error, ")
            return f"{field}: {text}" if field else text
        case kind if kind in _OF_BOUNDS and isinstance(error["input"], float) and math.isnan(error["input"]):
            message = "a finite number"
        case "path_type":  # its own text names a class of Python's
            message = "the name of a file"
        case "dict_type" if field == "task.clients":
            message = f"a number of records for each client, as {_LOCAL}"
    for of_library, ours in _OUR_WORDS.items():
        message = message.replace(of_library, ours)
    return f"{field}: expected {message}, found {found}"


def _meant(kind: type[BaseModel], path: Sequence[int | str]) -> str | None:
    """Return the key of that section that is nearest to the last part of a path."""
    *sections, key = path or ("",)
    kinds = [kind]
    for part in sections:
        fields = [one.model_fields[part].annotation for one in kinds if part in one.model_fields]
        kinds = [model for annotation in fields for model in _models_of(annotation)]
    names = [name for one in kinds for name in one.model_fields]
    return next(iter(difflib.get_close_matches(str(key), names, n=1, cutoff=_LIKENESS)), None)


def _models_of(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the sections that a field may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_of(part)
