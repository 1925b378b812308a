"""The page of what `precad run` refuses, and why, from `refusals.toml`; and that of last lines, from `endings.toml`.

A row of the first holds settings and never a message: each message comes from asking the code that a run asks before
it starts.
"""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from docs.generate.markdown import code, page, table

SOURCE: Final = Path(__file__).with_name("refusals.toml")
ENDINGS: Final = Path(__file__).with_name("endings.toml")
_INTRODUCTION: Final = """\
Everything that `precad run` refuses, asked for. Each message is what the command says to these settings, added to a
task of `precad` that runs. Whatever else the papers train and attack runs. [Simulation](../guides/simulation.md) says
what runs in one process."""
_PARTS: Final = {
    "computation": (
        "Needs secure computation that there is not",
        "The servers hold shares, add them up, and compare each norm with one bound. These wishes need more.",
        "secure computation that is missing",
    ),
    "proof": (
        "Needs another proof than mode `proved` has",
        "There, nobody deals, and clients prove one thing: that the whole update is within C. The last column runs.",
        "secure computation that is missing",
    ),
    "unbuilt": (
        "Not built",
        "These wishes need no further secure computation: nobody has written what they take. The last column runs.",
        "why not",
    ),
    "unaccounted": (
        "Not accounted",
        "These rounds could run, but no epsilon of them is proved. The last column runs.",
        "what is missing",
    ),
    "contradiction": (
        "Says two things at once",
        "No training is meant by these settings, or its label would be untrue. The last column runs.",
        "why",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One wish, by settings over the base."""

    part: str
    wish: str
    settings: Mapping[str, Any]
    configuration: Mapping[str, Any]
    """As a file for `precad run` has it."""
    why: str
    instead: Mapping[str, Any] | None
    """Settings that run and mean one of the things; None where nothing does."""
    runs: Mapping[str, Any] | None
    """`instead` as a file has it."""


def refusals(source: Path = SOURCE) -> list[Refusal]:
    """Return every row."""
    declared = tomllib.loads(source.read_text(encoding="utf-8"))
    return [_row(part, raw, declared["base"]) for part in _PARTS for raw in declared.get(part, ())]


def _row(part: str, raw: Mapping[str, Any], base: Mapping[str, Any]) -> Refusal:
    instead = raw.get("instead")
    return Refusal(
        part=part,
        wish=raw["wish"],
        settings=raw["set"],
        configuration=with_settings(base, raw["set"], raw.get("without", ())),
        why=raw.get("needs", raw.get("why", "")),
        instead=instead,
        runs=None if instead is None else with_settings(base, instead, raw.get("without_instead", ())),
    )


def with_settings(base: Mapping[str, Any], settings: Mapping[str, Any], without: Sequence[str] = ()) -> dict[str, Any]:
    """Return a configuration with settings by dotted name, and without others."""
    found = copy.deepcopy(dict(base))
    for name in without:
        *path, key = name.split(".")
        _at(found, path).pop(key, None)
    for name, value in settings.items():
        *path, key = name.split(".")
        _at(found, path)[key] = copy.deepcopy(value)
    return found


def _at(sections: dict[str, Any], path: Sequence[str]) -> dict[str, Any]:
    for name in path:
        sections = sections.setdefault(name, {})
    return sections


def asked(configuration: Mapping[str, Any]) -> str | None:
    """Return why `precad run` refuses a file, in its words; None where it would start. Starts and writes nothing."""
    from precad.deploy.errors import is_known
    from precad.deploy.localhost.needs import require_startable

    try:
        require_startable(configuration)
    except Exception as error:
        if not is_known(error):
            raise
        return str(error)
    return None


def refusals_page() -> str:
    """Return the page."""
    every, parts = refusals(), [_INTRODUCTION]
    for part, (title, introduction, reason) in _PARTS.items():
        rows = list(_rows([row for row in every if row.part == part]))
        if rows:
            runs = () if part == "computation" else ("what runs",)
            header = ("wish", "settings", "`precad run` says", reason, *runs)
            parts += [f"## {title}", introduction, table(header, rows)]
    return page("What a run refuses, and why", *parts)


def _rows(rows: Sequence[Refusal]) -> Iterator[tuple[str, ...]]:
    for row in rows:
        said = asked(row.configuration)
        if said is None:
            raise ValueError(f"{SOURCE.name}: {row.wish}: expected settings that are refused, found ones that run")
        cells = (row.wish, _shown(row.settings), _quoted(said), row.why)
        yield cells if row.instead is None else (*cells, _shown(row.instead) or "leave it out")


def _shown(settings: Mapping[str, Any]) -> str:
    return "; ".join(code(f"{name} = {_value(value)}") for name, value in settings.items())


def _value(value: Any) -> str:
    """Return a value as TOML has it, on one line."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{name} = {_value(inner)}' for name, inner in value.items())} }}"
    return f"[{', '.join(map(_value, value))}]" if isinstance(value, list) else json.dumps(value)


def _quoted(text: str) -> str:
    """Return text that Markdown leaves as it is, backticks included."""
    return f"`` {text} ``" if "`" in text else code(text)


def endings_page() -> str:
    """Return the page of exit codes and last lines. Tests look for their words in the programs."""
    found = tomllib.loads(ENDINGS.read_text(encoding="utf-8"))
    codes = ((str(one["number"]), one["meaning"], one["do"]) for one in found["code"])
    rows = ((code(one["says"]), str(one["code"]), one["do"]) for one in found["ending"])
    return page(
        "Endings",
        "A process's last line says why it ended; the other servers get the same words.",
        "## Exit codes",
        table(("code", "meaning", "do"), codes),
        "## Last lines",
        table(("the last line has", "code", "do"), rows),
    )
