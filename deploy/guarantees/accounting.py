"""`precad account`: what a training costs, for people and for programs.

Everything here is a function from parameters to plain data, and from that to tables. Every epsilon carries the label
of the accountant that made it; JSON has no infinity, so an infinite one is the string "inf".
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from rich.console import Console

from precad.deploy.configuration.check_privacy import LEAST_NOISE_TAKEN, MOST_OF_EPSILON
from precad.deploy.errors import ConfigError, flag_of, refusing_values
from precad.deploy.figures import at_least, plain, shown
from precad.deploy.guarantees import conditions
from precad.deploy.guarantees.bins import account_of_bins, print_bins
from precad.deploy.tables import titled
from precad.dp.accountants.calibration import most_rounds, short_noise_multiplier, smallest_noise_multiplier
from precad.dp.accountants.composed import Beside
from precad.dp.accountants.pld import (
    Event,
    Label,
    PldAccountant,
    PrivacyAccountant,
    PrivacyStatement,
    SampledGaussian,
    TwoStageSampledGaussian,
    Unit,
    View,
    effective_noise_multiplier,
    round_event,
    unit_words,
)
from precad.dp.accountants.precad_client import client_noise_multiplier, participation_quantile
from precad.dp.accountants.renyi_accounting import OrderGridWarning
from precad.dp.accountants.side_by_side import accountant_of, side_by_side
from precad.dp.accountants.slack import why_no_bound, with_slack
from precad.dp.checks import require_count, require_delta, require_positive, require_probability
from precad.dp.queries.kinds import EVALUATION_DIM, RECORD_BOUND
from precad.protos.task.algorithms import names_default
from precad.protos.task.evaluation import BY_CLIENTS, frac_bits_of
from precad.protos.task.grid import LARGEST, with_largest_frac_bits
from precad.protos.task.proved_fields import MODE as PROVED
from precad.protos.task.proved_fields import eta
from precad.protos.task.record_fields import MOST_PER_PERSON
from precad.protos.task.target import TARGET, least_noise

_QUANTILE_SHARE = 0.1  # of delta, spent on a client's taking part more often than the quantile
_NO_DIM: Final = "sigma: without dim no rounding is counted; the task's own may be larger, as `precad check` shows"
_POINTS = 48  # of a curve by round
_COLUMNS = {"bound": "pld", "approximation": "gdp_clt", "published": "precad"}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingPlan:
    """A training as its privacy sees it. Symbols are those of PRECAD's Algorithms 1 and 2."""

    sigma: float
    """Each server's noise over the record clip."""
    q: float
    """Probability that a client is in a round."""
    p: float
    """Probability that a record is in a round of its client."""
    rounds: int
    delta: float
    participation: int | None = None
    """Rounds that the client took part in, once they are known; None plans with the expected number, q * rounds."""
    record_clip: float | None = None
    client_clip: float | None = None
    dim: int | None = None
    """With record_clip and frac_bits: what rounding to fixed point adds to the sensitivity is counted."""
    frac_bits: int = 16
    lost_rounds: int | None = None
    """How many rounds the task may lose; None: as many as a task that does not say."""
    batches_ahead: int = 1
    """Rounds drawn while clients train: when a round is lost, those drawn ahead of it are too."""
    records_per_person: int = 1
    """Records of one person, all of one client, that a figure is of together."""
    is_proved: bool = False
    """Whether the task is of mode `proved`, which takes its own part of delta."""
    evaluations: int = 0
    """Evaluations by clients among the rounds, lost ones too."""
    evaluation_sigma: float | None = None
    """Each server's noise on an evaluation, over what a record adds to it."""
    balls_in_bins: int | None = None
    """Also account for a record that is in exactly one of so many participations of its client, where p is 1 in so
    many."""

    def __post_init__(self) -> None:
        """Refuse a field that is not a number in its range. The file need not be a valid deployment's. Raises
        ValueError."""
        require_positive("sigma", self.sigma)
        require_probability("q", self.q)
        require_probability("p", self.p)
        require_count("rounds", self.rounds)
        require_count("records_per_person", self.records_per_person, at_least=1)
        if self.records_per_person > MOST_PER_PERSON:
            raise ValueError(f"records_per_person must be <= {MOST_PER_PERSON}, got {self.records_per_person}")
        require_delta(self.delta)
        if self.lost_rounds is not None:
            require_count("lost_rounds", self.lost_rounds)
        require_count("batches_ahead", self.batches_ahead)
        require_count("evaluations", self.evaluations)
        if self.evaluations and self.evaluation_sigma is None:
            raise ValueError("evaluation_sigma must be given with evaluations, got None")
        if self.evaluation_sigma is not None:
            require_positive("evaluation_sigma", self.evaluation_sigma)
        if self.participation is not None:
            require_count("participation", self.participation)
            if self.participation > self.rounds:
                raise ValueError(f"participation must be <= rounds = {self.rounds}, got {self.participation}")
        if self.balls_in_bins is not None and (self.records_per_person > 1 or self.evaluations):
            raise ValueError("balls_in_bins must be given without records_per_person and evaluations, got one")

    @property
    def most_rounds(self) -> int:
        """Return rounds that a client can be in, if draws may be discarded: all of them, with those that may be
        lost."""
        most_lost = max(3 + self.rounds // 10, self.batches_ahead + 2) if self.lost_rounds is None else self.lost_rounds
        return self.rounds + most_lost + max(self.batches_ahead - 1, 0)

    @property
    def expected_participation(self) -> int:
        """Return rounds that a client takes part in: the realised number, or q * rounds, rounded up."""
        return math.ceil(self.q * self.rounds - 1e-9) if self.participation is None else self.participation

    @property
    def slack(self) -> float:
        """Return what the mode takes from delta (`precad.dp.accountants.slack`)."""
        return eta(self.rounds, self.evaluations) if self.is_proved else 0.0

    def accountant(self, view: View) -> PrivacyAccountant:
        """Return the accountant of every proved bound: all evaluations count beside the rounds that it is asked for."""
        if not self.evaluations or self.evaluation_sigma is None:
            return with_slack(PldAccountant(), self.slack)
        sigma = self.evaluation_sigma * (1.0 if view is View.ONE_SERVER else math.sqrt(2))
        one = SampledGaussian(1.0, sigma, self.records_per_person)
        return with_slack(Beside(one, self.evaluations), self.slack)

    def round_of(self, view: View, sigma: float | None = None) -> SampledGaussian:
        """Return one round of a client that takes part, as `view` sees it."""
        sigma = self.sigma if sigma is None else sigma
        if self.dim is None:
            return SampledGaussian(
                self.p, sigma if view is View.ONE_SERVER else math.sqrt(2) * sigma, self.records_per_person
            )
        if self.record_clip is None:
            raise ValueError("record_clip must be given with dim, got None")
        return round_event(
            view,
            record_sampling_rate=self.p,
            noise_multiplier=sigma,
            record_clip=self.record_clip,
            dim=self.dim,
            frac_bits=self.frac_bits,
            group_size=self.records_per_person,
        )

    def composed(self, view: View, sigma: float | None = None) -> tuple[Event, int]:
        """Return (event, rounds) that the view's epsilon is about.

        One server knows when the client took part. Its statement is therefore about a client that is in the expected,
        or realised, number of rounds. Clients who see models only get the number as well once it is given. Before, each
        round is one that the client visibly is in, or is not.
        """
        event = self.round_of(view, sigma)
        if view is View.ONE_SERVER or self.participation is not None:
            return event, self.expected_participation
        return TwoStageSampledGaussian(
            self.q, event.sampling_rate, event.noise_multiplier, event.group_size
        ), self.rounds


def account(plan: TrainingPlan, *, target_epsilon: float | None = None, is_by_round: bool = False) -> dict[str, Any]:
    """Return both views by every accountant, the client level if both clips are known, and calibration for a target.

    With is_by_round also `epsilon_by_round`.

    Raises: ValueError naming a parameter outside its range.
    """
    report: dict[str, Any] = {
        "sigma": plan.sigma,
        "q": plan.q,
        "p": plan.p,
        "rounds": plan.rounds,
        "delta": plan.delta,
        "participation": plan.expected_participation,
    }
    if plan.records_per_person > 1:
        report["records_per_person"] = plan.records_per_person
    if plan.evaluations:
        report["evaluations"] = {"most": plan.evaluations, "sigma": plan.evaluation_sigma}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", OrderGridWarning)
        for view in View:
            report[view.value] = _view_report(plan, view)
    report["warnings"] = sorted({f"rdp: {warning.message}" for warning in caught})
    report["warnings"] += [*_of_rounding(plan), *_without_bound(plan, report)]
    if plan.balls_in_bins is not None:
        report["balls_in_bins"] = account_of_bins(
            plan.balls_in_bins,
            {view: plan.round_of(view).noise_multiplier for view in View},
            plan.expected_participation,
            delta=plan.delta,
            slack=plan.slack,
        )
    if plan.record_clip is not None and plan.client_clip is not None:
        sigma_bar = client_noise_multiplier(plan.sigma, plan.record_clip, plan.client_clip)
        client = TwoStageSampledGaussian(plan.q, 1.0, sigma_bar)  # drawn visibly, see precad.dp.task_privacy
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OrderGridWarning)
            statements = side_by_side(client, plan.rounds, delta=plan.delta, view=View.CLIENTS_ONLY, slack=plan.slack)
            hidden = side_by_side(
                SampledGaussian(plan.q, sigma_bar),
                plan.rounds,
                delta=plan.delta,
                view=View.CLIENTS_ONLY,
                slack=plan.slack,
            )
        report["client_level"] = {"noise_multiplier": sigma_bar, **_by_label(statements)}
        report["client_level_if_draws_hidden"] = {"noise_multiplier": sigma_bar, **_by_label(hidden)}
    if target_epsilon is not None:
        report["calibrated"] = {"target_epsilon": target_epsilon} | {
            view.value: _calibrated(plan, view, target_epsilon) for view in View
        }
    if is_by_round:
        report["by_round"] = epsilon_by_round(plan)
    return report


def _of_rounding(plan: TrainingPlan) -> list[str]:
    """Return a line where rounding to fixed point adds more than a thousandth to epsilon against one server."""
    if plan.dim is None or plan.record_clip is None:
        return []
    unrounded = replace(plan, dim=None)
    left = plan.round_of(View.ONE_SERVER).noise_multiplier / plan.sigma
    if 1 - left < LEAST_NOISE_TAKEN:
        return []
    accountant = plan.accountant(View.ONE_SERVER)
    rounded, exact = (accountant.epsilon(*one.composed(View.ONE_SERVER), plan.delta) for one in (plan, unrounded))
    if rounded <= exact * (1 + MOST_OF_EPSILON):
        return []
    share = f"{rounded / exact - 1:.1%} of it"
    return [f'frac_bits: {plan.frac_bits} add to epsilon {share}; "{LARGEST}", the most for client_clip, costs nothing']


def _without_bound(plan: TrainingPlan, report: Mapping[str, Any]) -> list[str]:
    """Say why a figure of a record is infinite, where mode `proved` takes so much of delta."""
    of_views = [report[view.value] for view in View]
    figures = [
        figure["epsilon"] for found in of_views for figure in (found["accountants"]["pld"], found["if_discarded"])
    ]
    return [why_no_bound(plan.delta, plan.slack)] if plan.slack and "inf" in figures else []


def epsilon_by_round(plan: TrainingPlan) -> dict[str, Any]:
    """Return both views' proved bound, limit and published formula after some rounds, denser at the start.

    Rounds of the training; once a client's own number is known, rounds of that client.
    """
    is_realised = plan.participation is not None
    last = plan.expected_participation if is_realised else plan.rounds
    rounds = sorted({round(last * (i / _POINTS) ** 2) for i in range(_POINTS + 1)} | _before_each_step(plan))
    found: dict[str, Any] = {
        "is_realised": is_realised,
        "rounds": rounds,
    }
    for view in View:
        found[view.value] = {name: [] for name in _COLUMNS}
        for t in rounds:
            so_far = replace(plan, participation=t) if is_realised else replace(plan, rounds=t)
            event, composed = so_far.composed(view)
            for name, accountant in _COLUMNS.items():
                epsilon = accountant_of(accountant, plan.slack).epsilon(event, composed, plan.delta)
                found[view.value][name].append(plain(epsilon))
    return found


def _before_each_step(plan: TrainingPlan) -> set[int]:
    """Return rounds before and at which the expected participation rises, if that is seldom enough to be seen in a
    curve."""
    if plan.participation is not None or not 0 < plan.expected_participation <= _POINTS:
        return set()
    last_of = [math.floor(n / plan.q + 1e-9) for n in range(plan.expected_participation)]
    return {t for last in last_of for t in (last, last + 1) if t <= plan.rounds}


def account_of_flags(
    given: Mapping[str, Any],
    task: Mapping[str, Any] | None,
    *,
    target_epsilon: float | None = None,
    is_by_round: bool = False,
) -> dict[str, Any]:
    """Return `account` of what was given on the command line, the rest from a task. Raises ConfigError.

    Without sigma, a target takes the least one that meets it against one corrupted server that may discard draws. A
    task's own target takes what the task is resolved to, and a warning says where that depends on a `dim` that is not
    given.
    """
    flags = {field.name: given[field.name] for field in fields(TrainingPlan) if given.get(field.name) is not None}
    if task is not None:
        try:
            flags = _of_task(task) | flags
        except ValueError as error:
            raise ConfigError(f"task.{error}") from None
    flags |= _rate_of_bins(flags, given)
    own_target = None if task is None or "sigma" in flags else task.get(TARGET)
    if own_target is not None:
        flags["sigma"] = None
    if "sigma" not in flags and target_epsilon is not None:
        flags["sigma"] = None
    missing = [name for name in ("sigma", "q", "p", "rounds", "delta") if name not in flags]
    if missing:
        raise ConfigError("\n".join(f"{flag_of(name)}: expected a value, found none" for name in missing))
    with refusing_values():
        if flags["sigma"] is None:
            unknown = TrainingPlan(**(flags | {"sigma": 1.0}))
            if own_target is not None:
                flags["sigma"] = _noise_of_task(unknown, own_target)
            else:
                flags["sigma"] = _calibrated(unknown, View.ONE_SERVER, target_epsilon or math.nan)["smallest_sigma"]
        report = account(TrainingPlan(**flags), target_epsilon=target_epsilon, is_by_round=is_by_round)
    if own_target is not None and "dim" not in flags:
        report["warnings"].append(_NO_DIM)
    if rests_on := conditions.of_draft(task):
        report["rests_on"] = rests_on
    return report


def _rate_of_bins(flags: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, float]:
    """Return p of a record that is in one of so many participations; nothing where none is. Raises ConfigError."""
    if (bins := flags.get("balls_in_bins")) is None:
        return {}
    if given.get("p") is not None:
        raise ConfigError(f"{flag_of('p')}: expected none beside --balls-in-bins, found {given['p']}")
    with refusing_values():
        require_count("balls_in_bins", bins, at_least=1)
    return {"p": 1 / bins}


def _noise_of_task(plan: TrainingPlan, target_epsilon: float) -> float:
    """Return the noise that a task with this target has (`precad.protos.task.target`)."""

    def event(sigma: float) -> Event:
        return plan.round_of(View.ONE_SERVER, sigma)

    floor = {} if plan.record_clip is None else {"at_least": least_noise(plan.record_clip, plan.frac_bits)}
    accountant = plan.accountant(View.ONE_SERVER)
    return short_noise_multiplier(target_epsilon, event, plan.rounds, plan.delta, accountant, **floor)


def task_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `[task]` section of a configuration. Raises ConfigError for an algorithm that no task has."""
    for name in ("task", "simulation"):
        section = config.get(name, {})
        if not isinstance(section, Mapping):
            raise ConfigError(f"{name}: expected a section, found {section!r:.60}")
    if not names_default(config.get("simulation", {})):
        raise ConfigError(
            "simulation.algorithm: expected none, as only tasks are accounted here, found "
            f"{config['simulation']['algorithm']!r:.60}; precad simulate prints what its runs cost"
        )
    found: Mapping[str, Any] = config.get("task", {})
    return found


def precad_task_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the section of a task of PRECAD. Raises ConfigError for another algorithm's."""
    task = task_of(config)
    if not names_default(task):
        raise ConfigError(
            f"task.algorithm: expected precad, found {task['algorithm']!r:.60}, which the command `precad account` has"
        )
    return task


def _of_task(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a `[task]` section says of these flags. The file need not be complete, so that a draft can be
    accounted. Raises ValueError where mode `proved` has no fractional bits for the task's bound."""
    task = with_largest_frac_bits(task)
    names = {
        "noise_multiplier": "sigma",
        "client_rate": "q",
        "record_rate": "p",
        "rounds": "rounds",
        "delta": "delta",
        "record_clip": "record_clip",
        "client_clip": "client_clip",
        "dim": "dim",
        "frac_bits": "frac_bits",
        "lost_rounds": "lost_rounds",
        "records_per_person": "records_per_person",
        "batches_ahead": "batches_ahead",
    }
    of_mode = {"is_proved": True, "batches_ahead": 0} if task.get("mode") == PROVED else {}
    return {flag: task[field] for field, flag in names.items() if field in task} | of_mode | _evaluations_of(task)


def _evaluations_of(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a `[task]` section says of evaluations by clients. Raises ValueError."""
    if task.get("evaluation") != BY_CLIENTS:
        return {}
    every: Any = task.get("evaluation_every")
    noise: Any = task.get("evaluation_noise")
    rounds: Any = task.get("rounds")
    require_count("evaluation_every", every, at_least=1)
    require_positive("evaluation_noise", noise)
    require_count("rounds", rounds)
    declared, clip = task.get("clients"), task.get("evaluation_clip")
    if clip is None and isinstance(declared, Mapping) and declared:
        clip = float(max(declared.values()))
    if clip is not None:  # else nothing is known of rounding, which takes less than a millionth
        require_positive("evaluation_clip", clip)
        noise = effective_noise_multiplier(noise, RECORD_BOUND, EVALUATION_DIM, frac_bits_of(task.get("mode"), clip))
    return {"evaluations": rounds // every, "evaluation_sigma": noise}


def _view_report(plan: TrainingPlan, view: View) -> dict[str, Any]:
    event, rounds = plan.composed(view)
    report = _by_label(side_by_side(event, rounds, delta=plan.delta, view=view, slack=plan.slack))
    one_round = plan.round_of(view)
    pld = plan.accountant(view)
    if plan.evaluations:
        report["with_evaluations"] = plain(pld.epsilon(event, rounds, plan.delta))
    report["if_discarded"] = {
        "epsilon": plain(pld.epsilon(one_round, plan.most_rounds, plan.delta)),
        "rounds": plan.most_rounds,
    }
    if plan.participation is None:
        beta = _QUANTILE_SHARE * plan.delta
        most = participation_quantile(plan.rounds, plan.q, beta)
        visible = TwoStageSampledGaussian(plan.q, plan.p, one_round.noise_multiplier, one_round.group_size)
        report["bound_by_participation"] = {
            "expected": plain(pld.epsilon(one_round, plan.expected_participation, plan.delta)),
            "random": plain(pld.epsilon(visible, plan.rounds, plan.delta)),
            "quantile": plain(pld.epsilon(one_round, most, plan.delta - beta)),
            "quantile_rounds": most,
        }
    return report


def _by_label(statements: dict[str, PrivacyStatement]) -> dict[str, Any]:
    return {
        **{name: plain(statements[accountant].epsilon) for name, accountant in _COLUMNS.items()},
        "accountants": {
            name: {"epsilon": plain(made.epsilon), "label": made.label.value} for name, made in statements.items()
        },
    }


def _calibrated(plan: TrainingPlan, view: View, target_epsilon: float) -> dict[str, Any]:
    """Return least sigma for a client in the most rounds, and in the expected number; most rounds for this plan's
    sigma."""
    pld = plan.accountant(view)
    least = functools.partial(smallest_noise_multiplier, target_epsilon, delta=plan.delta, accountant=pld)
    return {
        "smallest_sigma": least(lambda sigma: plan.round_of(view, sigma), plan.most_rounds),
        "smallest_sigma_if_no_draw_is_discarded": least(
            lambda sigma: plan.composed(view, sigma)[0], plan.composed(view)[1]
        ),
        "most_rounds_of_a_client": most_rounds(target_epsilon, plan.round_of(view), plan.delta, pld),
    }


def print_account(console: Console, report: dict[str, Any]) -> None:
    """Print both views, every accountant, strongest label first."""
    words = {View.ONE_SERVER.value: "one server corrupted", View.CLIENTS_ONLY.value: "only clients corrupted"}
    whose, said = unit_words(Unit.RECORD, report.get("records_per_person", 1)), ("accountant", "what it is")
    title = f"epsilon at delta = {report['delta']:g}, add/remove {whose}"
    table = titled(title, *said, *words.values(), words=said)
    first, second = (report[view]["accountants"] for view in words)
    for label in Label:
        for name in first | second:
            of_views = [rows.get(name) for rows in (first, second)]
            if any(row is not None and row["label"] == label.value for row in of_views):
                cells = [shown(row["epsilon"], label) if row else "-" for row in of_views]
                table.add_row(name, label.value.replace("_", " "), *cells)
    console.print(table)
    console.print(
        f"one server: a client that takes part in {report['participation']} of {report['rounds']} rounds, if no draw "
        "is discarded",
        highlight=False,
    )
    _print_evaluations(console, report, words)
    if found := report.get("balls_in_bins"):
        print_bins(console, found, words)
    discarded = {who: report[view]["if_discarded"] for view, who in words.items()}
    most = report[View.ONE_SERVER.value]["if_discarded"]["rounds"]
    figures = ", ".join(f"{who} {shown(found['epsilon'], Label.BOUND)}" for who, found in discarded.items())
    console.print(f"draws discarded or not, a client in at most {most} rounds: {figures}", highlight=False)
    if found := report[View.ONE_SERVER.value].get("bound_by_participation"):
        console.print(
            f"  in a random number of rounds, seen: {shown(found['random'], Label.BOUND)}; in any number up to "
            f"{found['quantile_rounds']}: {shown(found['quantile'], Label.BOUND)}",
            highlight=False,
        )
    for warning in report["warnings"]:
        console.print(warning, highlight=False)
    if client := report.get("client_level"):
        hidden = shown(report["client_level_if_draws_hidden"]["bound"], Label.BOUND)
        console.print(
            f"a whole client, multiplier {client['noise_multiplier']:.3g}: {shown(client['bound'], Label.BOUND)}; "
            f"if no client learns who else is drawn (mode proved, task.round_period_s): {hidden}",
            highlight=False,
        )
    if found := report.get("calibrated"):
        for view, who in words.items():
            of_view = found[view]
            console.print(
                f"epsilon <= {found['target_epsilon']:g}, {who}, draws discarded or not: sigma >= "
                f"{at_least(of_view['smallest_sigma'])}; if no draw is discarded: sigma >= "
                f"{at_least(of_view['smallest_sigma_if_no_draw_is_discarded'])}; with this sigma "
                f"{of_view['most_rounds_of_a_client']} rounds of a client",
                highlight=False,
            )
    conditions.print_conditions(console, report, words)


def _print_evaluations(console: Console, report: dict[str, Any], words: Mapping[str, str]) -> None:
    """Print what evaluations by clients add, where there are any. words: for the views."""
    if (evaluations := report.get("evaluations")) is None:
        return
    both = ", ".join(f"{who} {shown(report[view]['with_evaluations'], Label.BOUND)}" for view, who in words.items())
    console.print(
        f"the table is of the rounds of the training; with {evaluations['most']} evaluations: {both}. Figures of a "
        "record below count these too",
        highlight=False,
    )
