"""`precad query`: one number, or a few, about a column over all clients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from precad.deploy.cli.common import AggregatorLetter, ConfigFile, Json, Output, exit_codes, people, tell, write_json
from precad.deploy.errors import ConfigError
from precad.deploy.shown.error_bars import estimate_and_bar, percent
from precad.deploy.shown.figures import at_most
from precad.dp.accountants.pld import Unit, unit_words
from precad.dp.queries.estimates import MOST_LEVEL
from precad.dp.queries.kinds import Kind

_SHOWN_FACTOR: Final = 1.05
"""A grid that widens error bars by more is said."""


def query(
    config: ConfigFile,
    kind: Annotated[Kind, typer.Argument(help="Ask for this statistic.")],
    column: Annotated[str, typer.Option(help="Ask about this column; `label` of a data set.")],
    low: Annotated[float, typer.Option(help="Take smaller values for this one; a count leaves them out.")],
    high: Annotated[float, typer.Option(help="Take larger values for this one, likewise.")],
    bins: Annotated[int | None, typer.Option(help="Take so many equal bins of low to high.", min=2, max=4096)] = None,
    share: Annotated[float, typer.Option(help="Ask for the quantile that this share does not exceed.")] = 0.5,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Take the noise that costs a record this epsilon, if no draw is discarded."),
    ] = None,
    noise: Annotated[float | None, typer.Option(help="Let each server add noise of so many records instead.")] = None,
    most_records: Annotated[float | None, typer.Option(help="Let no client weigh more than so many records.")] = None,
    after: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Count what this run spent too, and keep its identities.")
    ] = None,
    level: Annotated[float, typer.Option(help="Draw error bars that cover the truth at this rate.")] = 0.95,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Ask all clients for a statistic of a column, in one private round on this machine."""
    with exit_codes():
        if (epsilon is None) == (noise is None):
            raise ConfigError(f"--epsilon, --noise: expected one of both, found {'none' if noise is None else 'both'}")
        _require_level(level)
        asked: dict[str, Any] = {"kind": kind.value, "column": column, "low": low, "high": high}
        if bins is not None:
            asked["bins"] = bins
        if share != 0.5:
            asked["share"] = share
        from precad.deploy.configuration.query import Question
        from precad.deploy.configuration.sections import read_local
        from precad.deploy.localhost.whole import complete, prepare_query

        question = Question(
            query=asked, epsilon=epsilon, noise_multiplier=noise, most_records=most_records, after=after
        )
        summary = complete(prepare_query(read_local(config), question, output, people, level=level))
        for line in lines_of(summary):
            tell(line)
        if as_json:
            write_json(summary)


@exit_codes()
def answer(
    config: ConfigFile,
    role: Annotated[AggregatorLetter | None, typer.Option(help="Read the folder of this one of two.")] = None,
    level: Annotated[float, typer.Option(help="Draw error bars that cover the truth at this rate.")] = 0.95,
    as_json: Json = False,
) -> None:
    """Show what a query over organisations found, from the folder of one server."""
    _require_level(level)
    from precad.deploy.exporting.answers import answer_at

    found = answer_at(config, None if role is None else role.value, level)
    for line in (*estimates_of(found), *costs_of(found)):
        tell(line)
    if as_json:
        write_json(found)


def _require_level(level: float) -> None:
    if not 0 < level <= MOST_LEVEL:
        raise ConfigError(f"--level: expected a number in (0, {MOST_LEVEL}], found {level!r}")


def lines_of(summary: Mapping[str, Any]) -> list[str]:
    """Return the answer for people: the estimate, who answered, and what it cost."""
    counts = ", ".join(f"{summary[name]} {name}" for name in ("accepted", "rejected", "missing"))
    return [
        *estimates_of(summary),
        f"{'answers':<18}{counts}; error bars are of the noise, for the records of those accepted",
        *costs_of(summary),
        f"{'run folder':<18}{summary['output']}",
    ]


def estimates_of(summary: Mapping[str, Any]) -> list[str]:
    """Return the estimate, or each bin, with its error bar."""
    asked, level = summary["query"], f"at {percent(summary['level'])}%"
    lines = []
    if (found := summary["estimate"]) is not None:
        name = f"{asked['kind']} of {asked['column']}"
        lines.append(f"{name:<18}  {_bar_of(found)} {level}")
    if asked["kind"] == Kind.HISTOGRAM:
        width = (asked["high"] - asked["low"]) / asked["bins"]
        for i, one in enumerate(summary["bins"]):
            place = f"{asked['low'] + i * width:.4g} to {asked['low'] + (i + 1) * width:.4g}"
            lines.append(f"{place:<18}{_bar_of(one)} {level}")
    return lines


def _bar_of(found: Mapping[str, float]) -> str:
    """Return an estimate and its error bar."""
    return "   ".join(estimate_and_bar(found["value"], found["low"], found["high"]))


def costs_of(summary: Mapping[str, Any]) -> list[str]:
    """Return what one client can do to the sum, and what a record paid, or all of a person's that count together."""
    wider = summary["grid_factor"]
    grid = f"widens error bars by {wider - 1:.0%}: --most-records allows no finer one"
    server, clients = (at_most(summary[f"epsilon_{view}"], 4) for view in ("one_server", "clients_only"))
    cost = f"epsilon {server} against one server, {clients}"
    together = summary.get("records_per_person", 1)
    whose = "a record" if together == 1 else unit_words(Unit.RECORD, together)
    return [
        f"{'one client':<18}moves the sum by at most {summary['most_of_a_client']:g} records",
        f"{whose:<17} {cost} against clients, at delta = {summary['delta']:g}, if draws may be discarded",
        *(f"{'':<18}rests on: {condition}" for condition in summary.get("rests_on", ())),
        *([f"{'the grid':<18}{grid}"] if wider > _SHOWN_FACTOR else []),
    ]
