"""The page of every figure and table of the five papers beside ours, from `docs/results/papers/`.

`rows.toml` declares a row for each. A row says what the paper prints, which command repeats it, and where in a result
our number is. It also says how far that may be off, and why it differs. It holds no number of ours: its texts have no
digits but those of names and settings. Its place and rounds are compared with its records. Numbers come from result
files alone:

    NAME.json     a record that `python -m docs.generate.record` wrote: command, date, machine, configuration, report
    ../data/*.csv  a table of an older run, whose date and machine are not on file

A row counts as reproduced if each of its numbers is within its stated spread in at least two records of different
seeds. One record is enough for arithmetic, which draws nothing.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from docs.generate.markdown import code, page, table
from docs.generate.results import DATA

FOLDER: Final = DATA.parent / "papers"
STATUSES: Final = ("reproduced", "trend", "not reproduced", "not run")
PLACES: Final = ("simulation", "two servers", "arithmetic", "-")
ERRORS: Final = 3
"""Standard errors of a mean over trainings that belong to its spread."""
_TITLES: Final = {
    "precad": "PRECAD",
    "xie": "Xie et al., CCS '23",
    "xie-preprint": "Xie et al., the preprint's appendix",
    "ptr": "PTR, NeurIPS '22",
    "naseri": "Naseri et al.",
}
_INTRODUCTION: Final = """\
Every figure and table of the five papers. The column *Within* is the spread that was stated for a number: a constant,
and three standard errors where the result has them. The column *Records* names result files. Each holds its
configuration, machine and date. A row is **reproduced** if all its numbers are within their spread on two disjoint sets
of seeds. One record is enough for arithmetic, which draws nothing. A row is a **trend** if only the order or shape is
the paper's. [Experiments](experiments.md) interprets the results."""
_MEASURED: Final = re.compile(r"\d+\.\d+|\d+ ?%")
"""Numbers as results are written, which no text of a row may have."""
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")
_IDENTIFIER: Final = re.compile(
    r"`[^`]*`|\b(?:Figures?|Tables?|Theorems?|Algorithm) \d+[a-e]?\b|\b\d+[a-e]\b|\b(?:CCS|NeurIPS|NDSS) '\d\d"
    r"|\b(?:CIFAR-100?|Sent(?:iment)?140|VGG11|ResNet18|delta0)\b|[\w/-]+\.(?:md|svg|png)\b"
)
"""Names that have digits: code, figures and tables and their panels, conferences, data sets, models and files."""
_PROSE: Final = ("item", "shows", "reason")


class RowError(ValueError):
    """Name a row that says something else than its result files."""


@dataclass(frozen=True, slots=True)
class Number:
    """One number of the paper, ours by record, and how far ours may be off."""

    name: str
    paper: str
    """As the page shows it."""
    ours: Sequence[float | bool | str]
    within: Sequence[float]
    holds: bool | None
    """Whether each of ours is where the paper has it; None where the paper prints nothing to compare."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure or table."""

    raw: Mapping[str, Any]
    records: Mapping[str, Mapping[str, Any]]
    numbers: Sequence[Number]

    def check(self) -> None:
        """Raise RowError for a status that the result files do not bear out."""
        name, status = self.raw["id"], self.raw["status"]
        if status not in STATUSES or self.raw["where"] not in PLACES:
            raise RowError(f"{name}: expected a status of {STATUSES} and a place of {PLACES}, found {self.raw}")
        if (status == "not run") != (not self.numbers):
            raise RowError(f"{name}: expected numbers exactly if it was run, found {len(self.numbers)} and {status!r}")
        if self.raw.get("no_result") and status != "not run":
            raise RowError(f"{name}: expected 'not run' of what reports no result, found {status!r}")
        if not self.raw.get("no_result") and not self.raw.get("command"):
            raise RowError(f"{name}: expected a command, as it reports a result, found none")
        if status != "reproduced" and not self.raw.get("reason"):
            raise RowError(f"{name}: expected a reason, as it is {status!r}, found none")
        self._check_prose()
        self._check_origin()
        if status == "reproduced":
            self._check_reproduced()

    def _check_prose(self) -> None:
        """Raise RowError for a number in a text that neither the command nor a record's configuration has."""
        settings = _settings(self.raw, self.records)
        for field in _PROSE:
            text = _IDENTIFIER.sub("", self.raw.get(field, ""))
            written = _MEASURED.search(text)
            unknown = next((found for found in _NUMBER.findall(text) if float(found) not in settings), None)
            if written or unknown:
                found = written[0] if written else unknown
                raise RowError(f"{self.raw['id']}: expected numbers from result files, found {found!r} in {field!r}")

    def _check_origin(self) -> None:
        """Raise RowError for a place, seeds or rounds that are not the records'. A table has none to compare."""
        name, where = self.raw["id"], self.raw["where"]
        places = {_place(record) for record in self.records.values()} or {"simulation" if self.numbers else "-"}
        if places != {where}:
            raise RowError(f"{name}: expected the place of its result, {', '.join(sorted(places))}, found {where!r}")
        if "seeds" in self.raw and (self.records or not _SEEDS.fullmatch(self.raw["seeds"])):
            raise RowError(f"{name}: expected seeds such as '0 to 9' of a table alone, found {self.raw['seeds']!r}")
        for record, found in self.records.items():
            report = found["report"]
            rounds = {report["rounds"]} if "rounds" in report else _rounds(report)
            if "rounds" in self.raw and self.raw["rounds"] not in rounds:
                raise RowError(f"{name}: expected the rounds of {record}.json, found {self.raw['rounds']}")
            if "rounds" in report and "rounds" not in self.raw:
                raise RowError(f"{name}: expected the rounds of {record}.json, found none")

    def _check_reproduced(self) -> None:
        name = self.raw["id"]
        off = [number.name for number in self.numbers if number.holds is False]
        if all(number.holds is None for number in self.numbers):
            raise RowError(f"{name}: expected a number of the paper to compare, found none")
        if off:
            raise RowError(f"{name}: expected each number within its spread, found {off[0]} outside")
        if self.raw["where"] == "arithmetic" and self.records and not any(r["seeds"] for r in self.records.values()):
            return
        drawn = [r for r in self.records.values() if not _is_fresh(r)]
        seeds = [set(range(r["first_seed"], r["first_seed"] + r["seeds"])) for r in drawn]
        shared = any(one & other for one, other in itertools.combinations(seeds, 2))
        if len(self.records) < 2 or shared or not all(seeds):
            raise RowError(f"{name}: expected two records of other seeds, found {list(self.records)}")


_COUNTS: Final = re.compile("rounds|^steps$")
_SEEDS: Final = re.compile(r"\d+(?: to \d+)?")


def _place(record: Mapping[str, Any]) -> str:
    """Return where a record's numbers come from."""
    return "arithmetic" if not record["seeds"] else "two servers" if _is_fresh(record) else "simulation"


def _settings(raw: Mapping[str, Any], records: Mapping[str, Mapping[str, Any]]) -> set[float]:
    """Return the numbers of the commands, and those that stand in a report beside its results."""
    commands = [raw.get("command", ""), *(record["ran"] for record in records.values())]
    found = {float(number) for command in commands for number in _NUMBER.findall(command)}
    for record in records.values():
        for value in record["report"].values():
            each = value if isinstance(value, list) else [value]
            found |= {float(one) for one in each if isinstance(one, int | float)}
    return found


def _rounds(report: Any) -> set[int]:
    """Return every value that a report calls rounds, or steps of a figure's accounting, in any of its parts."""
    if isinstance(report, list):
        return set().union(*map(_rounds, report))
    if not isinstance(report, Mapping):
        return set()
    own = {value for name, value in report.items() if _COUNTS.search(name) and isinstance(value, int)}
    return own.union(*map(_rounds, report.values()))


def rows(folder: Path = FOLDER) -> list[Row]:
    """Return all rows, each with its records and numbers. Raises RowError."""
    found = [_row(folder, one) for one in tomllib.loads((folder / "rows.toml").read_text(encoding="utf-8"))["row"]]
    for row in found:
        row.check()
    return found


def _row(folder: Path, raw: Mapping[str, Any]) -> Row:
    records = {name: _record(folder, raw, name) for name in raw.get("records", ())}
    tables = [folder.parent / "data" / raw["table"]] if "table" in raw else []
    sources = [record["report"] for record in records.values()] + [_cells(path) for path in tables]
    return Row(raw, records, [_number(raw["id"], one, sources) for one in raw.get("number", ())])


def _record(folder: Path, raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    record: Mapping[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    if record["command"] != raw["command"]:
        raise RowError(f"{raw['id']}: expected {raw['command']!r} in {name}.json, found {record['command']!r}")
    return record


def _cells(path: Path) -> dict[str, Any]:
    """Return the rows of a table as a report has them."""
    with path.open(newline="", encoding="utf-8") as file:
        return {"rows": list(csv.DictReader(file))}


def _number(row: str, raw: Mapping[str, Any], sources: Sequence[Any]) -> Number:
    ours = [_value(find(source, raw["at"], row)) for source in sources]
    errors = [float(find(source, raw["errors"], row)) if "errors" in raw else 0.0 for source in sources]
    within = [raw.get("within", 0.0) + ERRORS * error for error in errors]
    paper, holds = _compared(raw, ours, within)
    return Number(raw["name"], paper, ours, within, holds)


def _compared(
    raw: Mapping[str, Any], ours: Sequence[float | bool | str], within: Sequence[float]
) -> tuple[str, bool | None]:
    """Return what the paper says, and whether it is so of each of ours."""
    if all(isinstance(value, bool) for value in ours):
        return "stated", all(ours)
    numbers = [value if not isinstance(value, str) else math.nan for value in ours]
    if "above" in raw:
        return f"> {raw['above']:g}", all(value > raw["above"] for value in numbers)
    if "below" in raw:
        return f"< {raw['below']:g}", all(value < raw["below"] for value in numbers)
    if "paper" in raw:
        pairs = zip(numbers, within, strict=True)
        return f"{raw['paper']:.6g}", all(abs(value - raw["paper"]) <= spread for value, spread in pairs)
    return "not printed", None


def find(report: Any, path: str, row: str = "") -> Any:
    """Return a value of a report. Steps are separated by `/`: a key, an index, or `key=value` for a list's entry.

    Raises RowError where the report has no such value.
    """
    at = report
    for step in path.split("/"):
        try:
            if isinstance(at, list) and "=" in step:
                conditions = [condition.split("=", 1) for condition in step.split("&")]
                (at,) = [one for one in at if all(str(one[name]) == value for name, value in conditions)]
            else:
                at = at[int(step)] if isinstance(at, list) else at[step]
        except (KeyError, IndexError, ValueError, TypeError):
            raise RowError(f"{row}: expected a result at {path!r}, found none at {step!r}") from None
    return at


def _value(found: Any) -> float | bool | str:
    """Return a number; a cell of a table begins with it. Text without a number stays text."""
    if isinstance(found, str):
        number = re.match(r"[*]*(-?\d+(\.\d+)?)", found)
        return float(number[1]) if number else found
    return found if isinstance(found, bool) else float(found)


def papers_page() -> str:
    """Return the page: for each paper the summary of its rows, then every number."""
    every = rows()
    parts = [_INTRODUCTION, "## Summary", _count(every)]
    for paper, title in _TITLES.items():
        parts += [f"## {title}", _summary([row for row in every if row.raw["paper"] == paper])]
    parts += ["## Numbers", _numbers(every), "## Records", _records(every)]
    return page("The papers' figures and tables", *parts)


def _count(every: Sequence[Row]) -> str:
    counts = [[status, str(sum(row.raw["status"] == status for row in every))] for status in STATUSES]
    n_without = sum(row.raw.get("no_result", False) for row in every)
    counts[-1][1] += f", {n_without} of them without a result in the paper"
    return table(("status", "rows"), counts)


def _summary(of_paper: Sequence[Row]) -> str:
    header = ("item", "what it shows", "status", "where", "rounds", "seeds", "command", "reason for any difference")
    lines = []
    for row in of_paper:
        raw = row.raw
        seeds = ", ".join(_seeds(record) for record in row.records.values()) or raw.get("seeds", "-")
        command = code(raw["command"]) if raw.get("command") else "-"
        lines.append(
            (raw["item"], raw["shows"], f"**{raw['status']}**", raw["where"], str(raw.get("rounds", "-")), seeds,
             command, raw.get("reason", ""))
        )  # fmt: skip
    return table(header, lines)


def _is_fresh(record: Mapping[str, Any]) -> bool:
    """Tell whether real servers and clients drew everything from the operating system: no two records share a draw."""
    return bool(record["report"].get("deployed"))


def _seeds(record: Mapping[str, Any]) -> str:
    if not record["seeds"]:
        return "none drawn"
    if _is_fresh(record):
        return f"{record['seeds']}, fresh"
    first, number = record["first_seed"], record["seeds"]
    return str(first) if number == 1 else f"{first} to {first + number - 1}"


def _numbers(every: Sequence[Row]) -> str:
    header = ("item", "number", "paper", "ours, by record", "within", "as in the paper")
    lines = []
    for row in every:
        for number in row.numbers:
            ours = ", ".join(_shown(value) for value in number.ours)
            spread = ", ".join(dict.fromkeys(_shown(value) for value in number.within if value)) or "-"
            verdict = {True: "yes", False: "**no**", None: "-"}[number.holds]
            whose = _TITLES[row.raw["paper"]].partition(",")[0]
            item = f"{whose}{', preprint' if row.raw['paper'].endswith('preprint') else ''}, {row.raw['item']}"
            lines.append((item, number.name, number.paper, ours, spread, verdict))
    return table(header, lines)


def _shown(value: float | bool | str | None) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else f"{value:.4g}"


def _records(every: Sequence[Row]) -> str:
    lines: dict[str, tuple[str, ...]] = {}
    for row in every:
        for name, record in row.records.items():
            machine = record["machine"]
            on = f"{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}"
            link = f"[{name}.json](papers/{name}.json)"
            lines[name] = (link, record["date"], record["version"], on, code(record["ran"]))
    return table(("record", "date", "version", "machine", "ran"), lines.values())
