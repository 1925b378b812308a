"""`precad account`: what a training costs.

Everything here is a function from parameters to plain data (`accounting_shown` prints it). Every epsilon carries the
label of the accountant that made it; JSON has no infinity, so an infinite one is the string "inf".
"""

from __future__ import annotations

import functools
import math
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, Final

from precad.deploy.configuration.check_privacy import LEAST_NOISE_TAKEN, MOST_OF_EPSILON
from precad.deploy.configuration.sections import section_of
from precad.deploy.errors import ConfigError, flag_of, refusing
from precad.deploy.guarantees import conditions
from precad.deploy.guarantees.bins import account_of_bins
from precad.deploy.guarantees.training_plan import NO_DIM, TASK_FIELDS, TrainingPlan
from precad.deploy.shown.figures import plain
from precad.dp.accountants.bins_event import BinnedGaussian
from precad.dp.accountants.calibration import most_rounds, short_noise_multiplier, smallest_noise_multiplier
from precad.dp.accountants.composed import composed_epsilon
from precad.dp.accountants.pld import (
    Event,
    PrivacyStatement,
    Release,
    SampledGaussian,
    TwoStageSampledGaussian,
    View,
    effective_noise_multiplier,
)
from precad.dp.accountants.precad_client import client_noise_multiplier, participation_quantile
from precad.dp.accountants.renyi_accounting import OrderGridWarning
from precad.dp.accountants.side_by_side import accountant_of, side_by_side
from precad.dp.accountants.slack import least_with_slack, why_no_bound
from precad.dp.checks import require_count, require_positive
from precad.dp.queries.kinds import EVALUATION_DIM, RECORD_BOUND
from precad.protos.task.algorithms import BUDGETS_OF_VIEWS, names_default
from precad.protos.task.bin_fields import BINS
from precad.protos.task.core_fields import MOST_RECORDS
from precad.protos.task.evaluation import BY_CLIENTS, frac_bits_of
from precad.protos.task.grid import LARGEST, largest_frac_bits, with_largest_frac_bits
from precad.protos.task.proved_fields import MODE as PROVED
from precad.protos.task.target import TARGET, least_noise
from precad.protos.task.task import Task

EARLIER: Final = "earlier_ledgers"
"""Field of a server's section that names ledgers of finished tasks."""
CLIPPING: Final = "client_clipping"
"""Field of a simulation, false where clients do not clip their updates."""
_QUANTILE_SHARE: Final = 0.1
"""Share of delta that is spent on a client's taking part more often than the quantile."""
_NO_CLIP: Final = (
    "evaluation_clip: without it, or numbers of records in clients, a whole client has no bound, and no rounding of "
    "evaluations is counted"
)
_POINTS: Final = 48
"""Points of a curve by round."""
_COLUMNS: Final = {"bound": "pld", "approximation": "gdp_clt", "published": "precad"}


def account(
    plan: TrainingPlan, *, target_epsilon: float | None = None, is_by_round: bool = False, end_tells: bool = False
) -> dict[str, Any]:
    """Return both views by every accountant, the client level if both clips are known, and calibration for a target.

    With is_by_round also `epsilon_by_round`. end_tells: whether a budget of a view can end the task, so that its end
    tells who was drawn.

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
    if plan.evaluations and plan.evaluation_client_sigma is None:
        report["warnings"].append(_NO_CLIP)
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
        report |= _client_levels(plan, sigma_bar, end_tells=end_tells)
    if target_epsilon is not None:
        report["calibrated"] = {"target_epsilon": target_epsilon} | {
            view.value: _calibrated(plan, view, target_epsilon) for view in View
        }
    if is_by_round:
        report["by_round"] = epsilon_by_round(plan)
    return report


def _client_levels(plan: TrainingPlan, sigma_bar: float, *, end_tells: bool) -> dict[str, Any]:
    """Return the figures of a whole client: drawn visibly, see `precad.dp.task_privacy`, and where draws are hidden.

    Accountants' figures are of the rounds of the training alone. All others count evaluations, which draw as rounds do.
    Where the end tells who was drawn, no draw is hidden. Drawing then helps in the most rounds alone, a number that was
    fixed before.
    """
    at, counted = plan.evaluation_client_sigma, plan.most_rounds if end_tells else plan.rounds

    def drawn_visibly(sigma: float) -> Event:
        return TwoStageSampledGaussian(plan.q, 1.0, sigma)

    def drawn_secretly(sigma: float) -> Event:
        return SampledGaussian(plan.q, sigma)

    def figures(drawn: Callable[[float], Event]) -> dict[str, Any]:
        event, beside = drawn(sigma_bar), (None if at is None else drawn(at), plan.evaluations)

        def epsilon(rounds: int) -> float | str:
            composed = [(event, rounds), beside]
            return plain(least_with_slack(functools.partial(composed_epsilon, composed), plan.delta, plan.slack))

        of_rounds = side_by_side(event, counted, delta=plan.delta, view=View.CLIENTS_ONLY, slack=plan.slack)
        return {**_by_label(of_rounds), "bound": epsilon(counted), "if_discarded": epsilon(plan.most_rounds)}

    named = {
        "client_level": drawn_visibly,
        "client_level_if_draws_hidden": drawn_visibly if end_tells else drawn_secretly,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OrderGridWarning)
        return {name: {"noise_multiplier": sigma_bar, **figures(drawn)} for name, drawn in named.items()}


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
    share, mode = f"{rounded / exact - 1:.1%} of it", PROVED if plan.is_proved else None
    is_largest = plan.client_clip is not None and plan.frac_bits >= largest_frac_bits(mode, plan.client_clip)
    cure = (
        "lower client_clip or raise record_clip"
        if is_largest
        else f'"{LARGEST}", the most for client_clip, costs nothing'
    )
    return [f"frac_bits: {plan.frac_bits} add to epsilon {share}; {cure}"]


def _without_bound(plan: TrainingPlan, report: Mapping[str, Any]) -> list[str]:
    """Say why a figure of a record is infinite, where mode `proved` takes so much of delta."""
    of_views = [report[view.value] for view in View]
    figures = [
        figure["epsilon"] for found in of_views for figure in (found["accountants"]["pld"], found["if_discarded"])
    ]
    return [why_no_bound(plan.delta, plan.slack)] if plan.slack and "inf" in figures else []


def epsilon_by_round(plan: TrainingPlan) -> dict[str, Any]:
    """Return both views' proved bound, limit and published formula after some rounds, denser at the start.

    Rounds of the training; once a client's own number is known, rounds of that client. The bound counts the evaluations
    that there can be by then; all of them, from the first of a client's own rounds on.
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
            so_far = _after(plan, t)
            event, composed = so_far.composed(view)
            for name, accountant in _COLUMNS.items():
                made = so_far.accountant(view) if name == "bound" else accountant_of(accountant, plan.slack)
                found[view.value][name].append(plain(made.epsilon(event, composed, plan.delta)))
    return found


def _after(plan: TrainingPlan, t: int) -> TrainingPlan:
    """Return the training after t of its rounds, or of the client's own once their number is known."""
    if plan.participation is not None:
        return replace(plan, participation=t, evaluations=plan.evaluations if t else 0)
    due = math.ceil(plan.evaluations * t / plan.rounds) if plan.rounds else 0  # at least those of every k-th round
    return replace(plan, rounds=t, evaluations=due)


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
    task's own target takes what the task is resolved to. Without `dim` rounding is not counted, and a warning says so.
    """
    own_target = None if task is None else task.get(TARGET)
    flags = _flags_of(given, task)
    _require_complete(flags, has_target=own_target is not None or target_epsilon is not None)
    with refusing(ValueError):
        if "sigma" not in flags:
            unknown = TrainingPlan(**flags, sigma=1.0)
            flags["sigma"] = (
                _least_noise(unknown, math.nan if target_epsilon is None else target_epsilon)
                if own_target is None
                else _noise_of_task(unknown, own_target)
            )
        end_tells = task is not None and any(task.get(name) is not None for name in BUDGETS_OF_VIEWS)
        plan = TrainingPlan(**flags)
        report = account(plan, target_epsilon=target_epsilon, is_by_round=is_by_round, end_tells=end_tells)
    if "dim" not in flags:
        report["warnings"].append(NO_DIM)
    if rests_on := conditions.of_draft(task):
        report["rests_on"] = rests_on
    return report


def _flags_of(given: Mapping[str, Any], task: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields of `TrainingPlan` that flags give, the rest from a task. Raises ConfigError."""
    flags = {field.name: given[field.name] for field in fields(TrainingPlan) if given.get(field.name) is not None}
    if task is not None:
        flags = _of_task(task, flags) | flags
    return flags | _rate_of_bins(flags, given)


def _require_complete(flags: Mapping[str, Any], *, has_target: bool) -> None:
    """Raise ConfigError for each field that has no value. A target stands for sigma."""
    needed = ("q", "p", "rounds", "delta") if has_target else ("sigma", "q", "p", "rounds", "delta")
    missing = [name for name in needed if name not in flags]
    if missing:
        raise ConfigError("\n".join(f"{flag_of(name)}: expected a value, found none" for name in missing))


def _rate_of_bins(flags: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, float]:
    """Return p of a record that is in one of so many participations; nothing where none is. Raises ConfigError."""
    if (bins := flags.get("balls_in_bins")) is None:
        return {}
    if given.get("p") is not None:
        raise ConfigError(f"{flag_of('p')}: expected none beside --balls-in-bins, found {given['p']}")
    with refusing(ValueError):
        require_count("balls_in_bins", bins, at_least=1)
    return {"p": 1 / bins}


def _least_noise(plan: TrainingPlan, target_epsilon: float) -> float:
    """Return the least sigma that meets the target against one corrupted server that may discard draws."""
    least: float = _calibrated(plan, View.ONE_SERVER, target_epsilon)["smallest_sigma"]
    return least


def _noise_of_task(plan: TrainingPlan, target_epsilon: float) -> float:
    """Return the noise that a task with this target has (`precad.protos.task.target`)."""

    def event(sigma: float) -> Event:
        return plan.round_of(View.ONE_SERVER, sigma)

    floor = {} if plan.record_clip is None else {"at_least": least_noise(plan.record_clip, plan.frac_bits)}
    accountant = plan.accountant(View.ONE_SERVER)
    return short_noise_multiplier(target_epsilon, event, plan.rounds, plan.delta, accountant, **floor)


def task_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `[task]` section of a configuration. Raises ConfigError for an algorithm that no task has."""
    task, simulation = section_of(config, "task"), section_of(config, "simulation")
    if not names_default(simulation):
        raise ConfigError(
            "simulation.algorithm: expected none, as only tasks are accounted here, found "
            f"{simulation['algorithm']!r:.60}; precad simulate prints what its runs cost"
        )
    return task


def not_counted(config: Mapping[str, Any]) -> list[str]:
    """Return a line for each field of other sections that changes figures, and is counted in none here.

    Those are a server's earlier tasks, and a simulation's clients that do not clip their updates.
    """
    servers, simulation = (
        found if isinstance(found := config.get(name), Mapping) else {} for name in ("aggregator", "simulation")
    )
    named = {"aggregator": servers, **{f"aggregator.{party}": servers.get(party) for party in ("a", "b")}}
    lines = [
        f"{section}.{EARLIER}: not counted here; the ledger's figures, which precad check and simulate show, are larger"
        for section, found in named.items()
        if isinstance(found, Mapping) and found.get(EARLIER)
    ]
    if simulation.get(CLIPPING) is False:
        lines.append(f"simulation.{CLIPPING}: not counted here; a whole client has no bound in that simulation")
    return lines


def precad_task_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the section of a task of PRECAD whose rounds draw. Raises ConfigError for another's."""
    task = task_of(config)
    if BINS in task:
        raise ConfigError(
            f"task.{BINS}: expected none, found {task[BINS]!r:.60}, of which the command `precad account` has figures"
        )
    if not names_default(task):
        raise ConfigError(
            f"task.algorithm: expected precad, found {task['algorithm']!r:.60}, which the command `precad account` has"
        )
    return task


def _of_task(task: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a `[task]` section says with these flags in it. The file need not be complete, so that a draft can be
    accounted.

    What follows from other fields follows from the flags: fractional bits from C, evaluations from the rounds.
    Raises ConfigError, also where mode `proved` has no fractional bits for the bound.
    """
    given = {TASK_FIELDS[flag]: value for flag, value in flags.items() if flag in TASK_FIELDS}
    try:
        found = with_largest_frac_bits({"delta": Task.model_fields["delta"].default, **task, **given})
        derived = {flag: found[field] for flag, field in TASK_FIELDS.items() if field in found} | _evaluations_of(found)
    except ValueError as error:
        named = re.split(r"\W", str(error), maxsplit=1)[0]
        raise ConfigError(f"{error}" if named in given else f"task.{error}") from None
    return derived | ({"is_proved": True, "batches_ahead": 0} if task.get("mode") == PROVED else {})


def _evaluations_of(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a `[task]` section says of evaluations by clients. Raises ValueError."""
    if task.get("evaluation") != BY_CLIENTS:
        return {}
    every: Any = task.get("evaluation_every")
    noise: Any = task.get("evaluation_noise")
    of_client = None
    rounds: Any = task.get("rounds")
    require_count("evaluation_every", every, at_least=1)
    require_positive("evaluation_noise", noise)
    require_count("rounds", rounds)
    declared, clip = task.get("clients"), task.get("evaluation_clip")
    if clip is None and isinstance(declared, Mapping) and declared:
        for client, number in declared.items():
            require_count(f"clients.{client}", number, at_least=1, at_most=MOST_RECORDS)
        clip = float(max(declared.values()))
    if clip is not None:
        require_positive("evaluation_clip", clip)
        of_client = client_noise_multiplier(noise, RECORD_BOUND, clip)
        noise = effective_noise_multiplier(noise, RECORD_BOUND, EVALUATION_DIM, frac_bits_of(task.get("mode"), clip))
    return {"evaluations": rounds // every, "evaluation_sigma": noise, "evaluation_client_sigma": of_client}


def _view_report(plan: TrainingPlan, view: View) -> dict[str, Any]:
    event, rounds = plan.composed(view)
    report = _by_label(side_by_side(event, rounds, delta=plan.delta, view=view, slack=plan.slack))
    one_round = plan.round_of(view)
    pld = plan.accountant(view)
    if plan.evaluations:
        report["bound"] = plain(pld.epsilon(event, rounds, plan.delta))
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
    sigma.

    Where records are in bins, a round is one of theirs.
    """
    pld, bins = plan.accountant(view), plan.balls_in_bins

    def drawn(sigma: float) -> Release:
        one = plan.round_of(view, sigma)
        return one if bins is None else BinnedGaussian(bins, one.noise_multiplier)

    def expected(sigma: float) -> Event:
        return plan.composed(view, sigma)[0] if bins is None else drawn(sigma)

    least = functools.partial(smallest_noise_multiplier, target_epsilon, delta=plan.delta, accountant=pld)
    n_expected = plan.composed(view)[1] if bins is None else plan.expected_participation
    return {
        "smallest_sigma": least(drawn, plan.most_rounds),
        "smallest_sigma_if_no_draw_is_discarded": least(expected, n_expected),
        "most_rounds_of_a_client": most_rounds(target_epsilon, drawn(plan.sigma), plan.delta, pld),
    }
