"""Render Go's templates as far as ours go, of Helm and of step-ca; whatever else a template says is refused.

    {{ .Values.a.b }}                           a value that exists; Helm itself shows a missing one as nothing
    {{ if C }} {{ else if C }} {{ else }} {{ end }}
    eq V "text", ne V "text", and C.., or C..   in parentheses where one is within another
    V | toJson, V | sha256sum, V | trunc N, printf "%s" V.., fail "text"
    {{- and -}}                                 trim the blanks before or after

Source: Go, package text/template; Helm, "Template Function List". A test compares this with Helm itself.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

_ACTION: Final = re.compile(r"\{\{(-?)\s*(.*?)\s*(-?)\}\}", re.DOTALL)
_WORD: Final = re.compile(r'"[^"\\]*"|[()|]|[^\s()|"]+')


class UnknownTemplateError(Exception):
    """The template says what this renderer does not know."""


class TemplateFailedError(Exception):
    """The template refuses what it was given, by `fail`."""


def _fail(text: str) -> str:
    raise TemplateFailedError(text)


_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "eq": lambda left, right: left == right,
    "ne": lambda left, right: left != right,
    "and": lambda *given: next((value for value in given if not value), given[-1]),
    "or": lambda *given: next((value for value in given if value), given[-1]),
    "toJson": json.dumps,
    "sha256sum": lambda text: hashlib.sha256(text.encode()).hexdigest(),
    "trunc": lambda n, text: text[: int(n)],
    "printf": lambda form, *given: form % given,
    "fail": _fail,
}


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with those of a later file in their place, as Helm merges maps and replaces all else."""
    both = {name: merged(below[name], value) for name, value in above.items() if isinstance(value, dict)}
    return {**below, **above, **both}


def render(files: Mapping[str, str], *values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the documents of a chart's files, by path within it. values: later ones count."""
    found: dict[str, Any] = yaml.safe_load(files["values.yaml"])
    for given in values:
        found = merged(found, given)
    texts = [
        render_text(text, {"Values": found}) for name, text in files.items() if Path(name).parent.name == "templates"
    ]
    return [document for text in texts for document in yaml.safe_load_all(text) if document is not None]


def render_text(template: str, values: Mapping[str, Any]) -> str:
    """Return one rendered template. Raises UnknownTemplateError, TemplateFailedError."""
    out, start, branches, trims = "", 0, [_Branch(is_open=True, is_taken=True)], False
    for action in _ACTION.finditer(template):
        text = template[start : action.start()]
        text = text.lstrip() if trims else text
        out += (text.rstrip() if action[1] else text) if branches[-1].is_open else ""
        start, trims = action.end(), bool(action[3])
        if not _branched(action[2], branches, values) and branches[-1].is_open:
            out += str(_evaluate(action[2], values))
    if len(branches) != 1:
        raise UnknownTemplateError("expected an end for each if")
    return out + (template[start:].lstrip() if trims else template[start:])


@dataclass
class _Branch:
    """Hold where an `if` stands: whether text is written, and whether one of its branches was."""

    is_open: bool
    is_taken: bool


def _branched(words: str, branches: list[_Branch], values: Mapping[str, Any]) -> bool:
    """Enter, change or leave a branch. Return whether the action was one."""
    word, _, condition = words.partition(" ")
    if word == "if":
        is_open = branches[-1].is_open and bool(_evaluate(condition, values))
        branches.append(_Branch(is_open, is_taken=is_open or not branches[-1].is_open))
    elif word == "else" and len(branches) > 1:
        if condition and not condition.startswith("if "):
            raise UnknownTemplateError(words)
        now = not branches[-1].is_taken and (not condition or bool(_evaluate(condition[3:], values)))
        branches[-1] = _Branch(now, is_taken=branches[-1].is_taken or now)
    elif words == "end" and len(branches) > 1:
        branches.pop()
    else:
        return False
    return True


def _evaluate(expression: str, values: Mapping[str, Any]) -> Any:
    """Return the value of an action's words. Raises UnknownTemplateError."""
    if _WORD.sub("", expression).strip():
        raise UnknownTemplateError(expression)
    value, rest = _pipeline(_WORD.findall(expression), values)
    if rest:
        raise UnknownTemplateError(expression)
    return value


def _pipeline(words: list[str], values: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """Return what a pipeline comes to, and the words after it."""
    value, rest = _command(words, values, ())
    while rest[:1] == ["|"]:
        value, rest = _command(rest[1:], values, (value,))
    return value, rest


def _command(words: list[str], values: Mapping[str, Any], piped: tuple[Any, ...]) -> tuple[Any, list[str]]:
    """Return a function's result, whose last argument is what was piped; or one operand."""
    if words and words[0] in _FUNCTIONS:
        operands, rest = _operands(words[1:], values)
        return _FUNCTIONS[words[0]](*operands, *piped), rest
    operands, rest = _operands(words, values)
    if len(operands) != 1 or piped:
        raise UnknownTemplateError(" ".join(words))
    return operands[0], rest


def _operands(words: list[str], values: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
    found = []
    while words and words[0] not in ("|", ")"):
        if words[0] == "(":
            value, words = _pipeline(words[1:], values)
            if words[:1] != [")"]:
                raise UnknownTemplateError("a parenthesis that nothing closes")
        else:
            value = _operand(words[0], values)
        found.append(value)
        words = words[1:]
    return found, words


def _operand(word: str, values: Mapping[str, Any]) -> Any:
    if word.startswith('"') or word.isdecimal():
        return json.loads(word)
    if not re.fullmatch(r"(\.\w+)+", word):
        raise UnknownTemplateError(word)
    value: Any = values
    for name in word[1:].split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise UnknownTemplateError(f"{word}: no value {name}")
        value = value[name]
    return value
