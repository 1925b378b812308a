"""Describe charts as data: the page's script and matplotlib draw the same charts, and each comes with its table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from precad.deploy.reporting.answers import QueryAnswer
from precad.deploy.reporting.certificates import RunCertificate
from precad.deploy.reporting.numbers import Format, power_of_ten, shown
from precad.deploy.reporting.runs import Cost, Link, Round, Run, Statement
from precad.deploy.shown.error_bars import percent
from precad.deploy.shown.figures import LARGEST_USEFUL, rounded_down
from precad.dp.accountants.pld import Unit, View
from precad.dp.conditions import AGAINST

MOST_POINTS: Final = 400
"""Most points of a line. A longer line has one point in every so many rounds, and the last."""
MOST_COLUMNS: Final = 60
LEAST_ATTACKERS: Final = 5
"""Where the certificates' axis ends at least."""
Point = tuple[float, float | None]


class Kind(StrEnum):
    """How a chart looks."""

    LINES = "lines"
    STEPS = "steps"
    COLUMNS = "columns"
    """Stacked, one for each x."""
    BARS = "bars"
    """Horizontal, one for each category and series; x is the category's number."""
    INTERVALS = "intervals"
    """A column with its error bar for each x, the middle of a range, which a category names."""


class Dash(StrEnum):
    """How a line looks."""

    SOLID = "solid"
    DASHED = "dashed"
    DOTTED = "dotted"
    DASH_DOTTED = "dashdot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line, one layer of columns, or one colour of bars."""

    name: str
    """As tables and figures call it."""
    run: str
    """The run that the line belongs to."""
    what: str
    """The kind of line; a run may have several in a chart."""
    colour: int
    """Number in the palette."""
    points: tuple[Point, ...]
    """None where there is nothing to draw: an infinite epsilon, for one."""
    dash: Dash = Dash.SOLID
    band: tuple[tuple[float, float, float], ...] = ()
    """(x, lowest, highest): of several seeds, or the error bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart."""

    key: str
    """Its name in the page and of its PNG file."""
    title: str
    kind: Kind
    note: str
    x_label: str
    y_label: str
    format: Format
    series: tuple[Series, ...]
    categories: tuple[str, ...] = ()
    y_max: float | None = None
    """Where the axis ends; none: where the data do."""

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return (headings, rows) of the numbers that are drawn."""
        by_x = [dict(series.points) for series in self.series]
        bands = [{x: (low, high) for x, low, high in series.band} for series in self.series]
        rows = []
        for i, x in enumerate(sorted({x for points in by_x for x in points})):
            name = self.categories[i] if self.categories else shown(x, Format.COUNT)
            cells = (self._cell(points, band, x) for points, band in zip(by_x, bands, strict=True))
            rows.append([name, *cells])
        return [self.x_label, *(series.name for series in self.series)], rows

    def _cell(self, points: Mapping[float, float | None], band: Mapping[float, tuple[float, float]], x: float) -> str:
        if x not in points:
            return ""
        text = shown(points[x], self.format)
        if self.kind is not Kind.INTERVALS:
            return text
        return f"{text} [{', '.join(shown(end, self.format) for end in band[x])}]"

    def to_json(self) -> dict[str, Any]:
        """Return the chart for the script. JSON has no infinity, so that there is none in here."""
        return asdict(self)


def charts_of(runs: Sequence[Run], certificates: Sequence[RunCertificate | str]) -> tuple[Chart, ...]:
    """Return every chart that the runs have something for."""
    trained = [] if all(run.answer is not None for run in runs) else runs  # a query has one round: figures say it all
    made = (
        _answers(runs),
        _accuracy(runs),
        _public_accuracy(runs),
        _held_out_accuracy(runs),
        _epsilon(trained),
        _attack_success(runs),
        _uploads(trained),
        _certificates(runs, certificates),
        _seconds_by_phase(runs),
        _bytes_by_link(runs),
        _seconds_by_round(runs),
    )
    return tuple(chart for chart in made if chart is not None and chart.series)


def _answers(runs: Sequence[Run]) -> Chart:
    """Chart the bins of queries with their error bars."""
    answers = [(i, run, run.answer) for i, run in enumerate(runs) if run.answer is not None and run.answer.bins]
    names: dict[float, str] = {}
    made = []
    for i, run, answer in answers:
        columns = answer.columns
        for column in columns:
            names.setdefault(column.middle, column.name)
        points = tuple((column.middle, column.records.value) for column in columns)
        band = tuple((column.middle, column.records.low, column.records.high) for column in columns)
        name = run.label if len(runs) > 1 else "records"
        made.append(Series(name=name, run=run.label, what="records", colour=i, points=points, band=band))
    return Chart(
        key="bins",
        title="Records in each bin, estimated",
        kind=Kind.INTERVALS,
        note=_note_of_bins([answer for _, _, answer in answers]),
        x_label=", ".join(dict.fromkeys(answer.query.column for _, _, answer in answers)),
        y_label="records",
        format=Format.COUNT,
        series=tuple(made),
        categories=tuple(name for _, name in sorted(names.items())),
    )


def _note_of_bins(answers: Sequence[QueryAnswer]) -> str:
    levels = ", ".join(dict.fromkeys(f"{percent(answer.level)}\u00a0%" for answer in answers))
    note = (
        f"An estimate is of noise, too, and may be below zero. Error bars hold for each column by itself, at {levels}."
    )
    widest = max((answer.bins_together for answer in answers), default=1)
    return note + (f" A column adds up {widest} bins; all of them are in summary.json." if widest > 1 else "")


def _accuracy(runs: Sequence[Run]) -> Chart:
    note = _noted("Measured on the test records, which no client has.", runs, seeds="mean, lowest and highest")
    series = _over_seeds(runs, lambda done: done.accuracy, "accuracy")
    return _by_round("accuracy", "Test accuracy", note, "accuracy", Format.SHARE, series)


def _public_accuracy(runs: Sequence[Run]) -> Chart:
    """Chart what aggregators' operators measured, a line for each server."""
    note = (
        "Measured by the operators of the aggregators on public records of their own. While one model is measured, "
        "only the latest waits: others have no figure."
    )
    made = []
    for i, run in enumerate(runs):
        for number, (letter, dash) in enumerate((("a", Dash.SOLID), ("b", Dash.DASHED))):
            rounds = [done for done in run.trainings[0].rounds if letter in done.public_accuracy]
            if rounds:
                points = _thinned([(done.n_done, done.public_accuracy[letter]) for done in rounds])
                colour = i if len(runs) > 1 else number
                made.append(_series(runs, run, f"server {letter.upper()}", colour=colour, dash=dash, points=points))
    return _by_round("public", "Accuracy on public records", note, "accuracy", Format.SHARE, tuple(made))


def _held_out_accuracy(runs: Sequence[Run]) -> Chart:
    """Chart what clients found on records that they hold out, in the band of its error bars."""
    note = (
        "Summed over the held-out records of the clients that were accepted, with noise that every epsilon counts. The "
        "band is the 95\u00a0% error bar of that noise."
    )
    made = []
    for i, run in enumerate(runs):
        each = run.trainings[0].evaluations
        found = [(one.n_done, one.figures["accuracy"]) for one in each if "accuracy" in one.figures]
        if found and len(run.trainings) == 1:
            points = tuple((float(n), one.value) for n, one in found)
            band = tuple((float(n), one.low, one.high) for n, one in found)
            made.append(_series(runs, run, "held-out records", colour=i, points=points, band=band))
    title = "Accuracy on clients' held-out records"
    return _by_round("held-out", title, note, "accuracy", Format.SHARE, tuple(made))


def _attack_success(runs: Sequence[Run]) -> Chart:
    note = _noted(
        "How often the model does what the attackers aim at. An estimate of this one attack, not a "
        "guarantee: a cleverer one may do better.",
        runs,
        seeds="mean, lowest and highest",
    )
    series = _over_seeds(runs, lambda done: done.attack_success, "attack success")
    return _by_round("attack", "Attack success, an estimate", note, "attack success", Format.SHARE, series)


def _seconds_by_round(runs: Sequence[Run]) -> Chart | None:
    """Draw seconds by round if a run is a simulation, which has no phases. Deployments stand beside it."""
    if not any(run.is_simulation for run in runs):
        return None
    note = _noted("Without evaluation. A simulation has no network, and is no measure of one.", runs, seeds="mean")
    series = _over_seeds(runs, lambda done: done.seconds, "seconds", has_band=False)
    return _by_round("seconds", "Seconds by round", note, "seconds", Format.SECONDS, series)


def _by_round(key: str, title: str, note: str, y_label: str, kind: Format, series: tuple[Series, ...]) -> Chart:
    """Chart lines by round; the axis of a share ends at one."""
    return Chart(
        key=key,
        title=title,
        kind=Kind.LINES,
        note=note,
        x_label="rounds done",
        y_label=y_label,
        format=kind,
        series=series,
        y_max=1.0 if kind is Format.SHARE else None,
    )


def _over_seeds(
    runs: Sequence[Run], value: Callable[[Round], float | None], what: str, *, has_band: bool = True
) -> tuple[Series, ...]:
    """Return a line per run: its training, or the mean of its seeds in a band from the lowest to the highest."""
    made = []
    for i, run in enumerate(runs):
        by_round: dict[int, list[float]] = {}
        for trained in run.trainings:
            for done in trained.rounds:
                if (found := value(done)) is not None:
                    by_round.setdefault(done.n_done, []).append(found)
        whole = {x: ys for x, ys in by_round.items() if len(ys) == len(run.trainings)}  # of all seeds, or not at all
        if not whole:
            continue
        points = _thinned([(x, statistics.fmean(ys)) for x, ys in sorted(whole.items())])
        band = tuple((x, min(whole[int(x)]), max(whole[int(x)])) for x, _ in points)
        is_banded = has_band and len(run.trainings) > 1
        name = run.label if len(runs) > 1 else what
        shade = band if is_banded else ()
        made.append(Series(name=name, run=run.label, what=what, colour=i, points=points, band=shade))
    return tuple(made)


_DASHES: Final[Mapping[str, Dash]] = {AGAINST[View.ONE_SERVER]: Dash.SOLID, AGAINST[View.CLIENTS_ONLY]: Dash.DASHED}


def _epsilon(runs: Sequence[Run]) -> Chart | None:
    """Chart every statement that has a curve."""
    if not runs:
        return None
    drawn = [(i, run, s) for i, run in enumerate(runs) for s in run.statements if s.by_round]
    note = _noted(
        f"Proved upper bounds at δ = {power_of_ten(runs[0].task.delta)}, add or remove one record (one client, "
        "or records of one person, where it says so), of the rounds so far, for the client that was in most, if no "
        "draw is discarded. An ε "
        f"above {LARGEST_USEFUL:g} is no useful bound, and is not drawn.",
        runs,
        seeds="the largest",
    )
    series = tuple(
        _series(
            runs,
            run,
            _who(statement),
            colour=i if len(runs) > 1 else number,
            dash=_DASHES.get(statement.against, Dash.SOLID) if statement.unit is Unit.RECORD else Dash.DASH_DOTTED,
            points=_thinned([(x, y if y <= LARGEST_USEFUL else None) for x, y in statement.by_round]),
        )
        for number, (i, run, statement) in enumerate(drawn)
    )
    return _by_round("epsilon", "Privacy spent", note, "ε, at most", Format.EPSILON, series)


def _who(statement: Statement) -> str:
    whose = f"{statement.whose}, " if statement.unit is Unit.CLIENT or statement.group_size > 1 else ""
    return f"{whose}against {statement.against}"


def _series(runs: Sequence[Run], run: Run, what: str, name: str | None = None, **looks: Any) -> Series:
    """Return a line of one of the runs, named `name`, or as what it is, and by its run where there are several."""
    said = name or what
    return Series(name=said if len(runs) == 1 else f"{run.label}: {said}", run=run.label, what=what, **looks)


_FATES: Final = (("accepted", 0), ("rejected", 1), ("missing", 5))


def _uploads(runs: Sequence[Run]) -> Chart | None:
    """Chart one training as a column a round. Several are cumulated, on the same axes."""
    if not runs:
        return None
    if len(runs) == 1 and len(runs[0].trainings) == 1:
        return _upload_columns(runs[0])
    made = []
    for i, run in enumerate(runs):
        for (fate, _), dash in zip(_FATES, (Dash.SOLID, Dash.DASHED, Dash.DOTTED), strict=True):
            points = _cumulated(run, fate)
            if fate == "missing" and not any(y for _, y in points):
                continue
            made.append(_series(runs, run, fate, colour=i, dash=dash, points=points))
    return Chart(
        key="uploads",
        title="Uploads, accepted and rejected",
        kind=Kind.LINES,
        note=_noted("Since the first round.", runs, seeds="mean"),
        x_label="rounds done",
        y_label="uploads",
        format=Format.COUNT,
        series=tuple(made),
    )


def _upload_columns(run: Run) -> Chart:
    rounds = run.trainings[0].rounds
    width = math.ceil(len(rounds) / MOST_COLUMNS) or 1
    bins = [rounds[max(0, end - width) : end] for end in range(len(rounds), 0, -width)][::-1]
    return Chart(
        key="uploads",
        title="Uploads, accepted and rejected",
        kind=Kind.COLUMNS,
        note="Missing: chosen for the round, and nothing came."
        + (f" Each column is the mean of {width} rounds, named by the last." if width > 1 else ""),
        x_label="rounds done",
        y_label="uploads of a round",
        format=Format.COUNT,
        series=tuple(
            Series(
                name=fate,
                run=run.label,
                what=fate,
                colour=colour,
                points=tuple((some[-1].n_done, statistics.fmean(_count(done, fate) for done in some)) for some in bins),
            )
            for fate, colour in _FATES
            if rounds
        ),
    )


def _cumulated(run: Run, fate: str) -> tuple[Point, ...]:
    """Return mean over the seeds of the uploads since the first round, as far as all seeds go."""
    totals = [0] * len(run.trainings)
    points: list[Point] = []
    for together in zip(*(trained.rounds for trained in run.trainings), strict=False):
        totals = [total + _count(done, fate) for total, done in zip(totals, together, strict=True)]
        points.append((together[0].n_done, statistics.fmean(totals)))
    return _thinned(points)


def _count(done: Round, fate: str) -> int:
    return {"accepted": done.n_accepted, "rejected": done.n_rejected, "missing": done.n_missing}[fate]


def _certificates(runs: Sequence[Run], certificates: Sequence[RunCertificate | str]) -> Chart:
    """Chart the certificates that prove something. A note of the run says why another has no line."""
    made = []
    drawn = [(i, c) for i, c in enumerate(certificates) if isinstance(c, RunCertificate) and c.tolerated > 0]
    conditions = "".join(f", if {one}" for one in dict.fromkeys(it for _, found in drawn for it in found.rests_on))
    longest = max(
        [LEAST_ATTACKERS + 1, *(len(curve) for _, found in drawn for curve in (found.proved, found.estimated))]
    )
    for i, found in drawn:
        run = runs[i]
        models = "1 model" if found.n_trainings == 1 else f"{found.n_trainings} models"
        curves = (
            ("proved", "proved", Dash.SOLID, found.proved),
            ("estimate, no guarantee", f"estimate from {models}, no guarantee", Dash.DOTTED, found.estimated),
        )
        for what, name, dash, curve in curves:
            points = tuple((k, float(rounded_down(share))) for k, share in enumerate(_ended(curve, longest)))
            made.append(_series(runs, run, what, name, colour=i, dash=dash, points=points))
    return Chart(
        key="certificate",
        title="Certified accuracy under poisoning",
        kind=Kind.STEPS,
        note="Right predictions of the expected model that k further malicious clients, who join, cannot change, "
        f"whatever they send{conditions}. Solid: proved. Dotted: as if the models' confidences were the "
        "expected ones, an estimate.",
        x_label="k attackers",
        y_label="certified accuracy",
        format=Format.SHARE,
        series=tuple(made),
        y_max=1.0,
    )


def _ended(curve: Sequence[float], length: int) -> list[float]:
    """Return the curve with the zeros that follow its first; one that does not fall to zero ends with the search."""
    return [*curve, *[0.0] * (length - len(curve))] if curve[-1] == 0 else list(curve)


_LINKS: Final[Mapping[Link, str]] = {
    "clients_to_a": "clients to A",
    "clients_to_b": "clients to B",
    "a_to_b": "A to B",
    "b_to_a": "B to A",
    "dealer_to_a": "dealer to A",
    "dealer_to_b": "dealer to B",
}


def _links_of(run: Run, cost: Cost) -> dict[str, float]:
    """Return the bytes by link. In mode `proved` there is no dealer, and no bar for one."""
    found = cost.bytes_by_link.items()
    return {_LINKS[link]: n for link, n in found if not (run.task.is_proved and link.startswith("dealer_"))}


def _bytes_by_link(runs: Sequence[Run]) -> Chart:
    return Chart(
        key="bytes",
        title="Bytes of a round",
        kind=Kind.BARS,
        note="Mean over the rounds, as the servers count: messages, and what their own connection for MPC carries.",
        x_label="from and to",
        y_label="bytes",
        format=Format.BYTES,
        **_bars(runs, {run.label: _links_of(run, run.cost) for run in runs if run.cost}, "bytes"),
    )


def _seconds_by_phase(runs: Sequence[Run]) -> Chart:
    return Chart(
        key="phases",
        title="Seconds of a round, by phase",
        kind=Kind.BARS,
        note="Mean over the rounds, by server A's clock. Collect: clients train and upload.",
        x_label="phase",
        y_label="seconds",
        format=Format.SECONDS,
        **_bars(runs, {run.label: run.cost.seconds_by_phase for run in runs if run.cost}, "seconds"),
    )


def _bars(runs: Sequence[Run], amounts: Mapping[str, Mapping[str, float]], what: str) -> dict[str, Any]:
    categories = tuple(dict.fromkeys(name for found in amounts.values() for name in found))
    made = tuple(
        Series(
            name=run.label if len(runs) > 1 else what,
            run=run.label,
            what=what,
            colour=i,
            points=tuple((at, amounts[run.label].get(name, 0.0)) for at, name in enumerate(categories)),
        )
        for i, run in enumerate(runs)
        if run.label in amounts
    )
    return {"series": made, "categories": categories}


def _noted(note: str, runs: Sequence[Run], *, seeds: str) -> str:
    """Return the note, and how several seeds and many rounds are drawn."""
    if any(len(run.trainings) > 1 for run in runs):
        note += f" Of several seeds: {seeds}."
    longest = max((len(trained.rounds) for run in runs for trained in run.trainings), default=0)
    return note + (f" At most {MOST_POINTS} rounds of a line are drawn." if longest > MOST_POINTS else "")


def _thinned(points: Iterable[Point]) -> tuple[Point, ...]:
    """Return at most MOST_POINTS of them, the last among them."""
    found = list(points)
    step = math.ceil(len(found) / MOST_POINTS) or 1
    return tuple(found[::-1][::step][::-1])
