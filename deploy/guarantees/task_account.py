"""`precad account` of a task with another algorithm than PRECAD, or with records in bins: what its ledgers will have.

`precad.dp.task_privacy` describes a round, for the ledgers and here. A draft is enough: what a task needs and no figure
depends on is made up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from precad.deploy.configuration.check_privacy import rounding_said
from precad.deploy.configuration.client_ids import ids_of
from precad.deploy.configuration.sections import parse_section
from precad.deploy.errors import ConfigError, refusing
from precad.deploy.guarantees.training_plan import TASK_FIELDS
from precad.deploy.shown.figures import plain, shown
from precad.deploy.shown.tables import titled
from precad.dp.accountants.pld import VIEW_WORDS, Label, Unit, View, unit_words
from precad.dp.accountants.precad_client import expected_participation
from precad.dp.accountants.task_cost import Level, TaskCost
from precad.dp.checks import require_count
from precad.dp.task_privacy import task_cost, task_privacy
from precad.protos.task.bin_fields import BINS, with_rate_of_bins
from precad.protos.task.convex_fields import CONVEX_FIELDS
from precad.protos.task.evaluation import BY_CLIENTS
from precad.protos.task.quantile import LEARNT
from precad.protos.task.target import TARGET
from precad.protos.task.task import Task

_NOISE: Final = "noise_multiplier"
_MADE_UP: Final = {"learning_rate": 1.0, "record_rate": 1.0, "dim": 1}
"""Fields of a draft that lacks them. No figure depends on the first."""
_DIM_OF_A_LEARNT_BOUND: Final = 2
"""The least d of a vector whose last number is the bound. No figure of a whole client depends on d."""
_MADE_UP_CLIENTS: Final = 2
_NO_DIM: Final = "dim: without it, rounding of one coordinate is counted; the task's own may cost more"
_LEVELS: Final = {
    Level.CLIENT: "a whole client, drawn for all to see",
    Level.HIDDEN_CLIENT: "a whole client, whose draw nobody else learns",
    Level.DRAWN_RECORD: "a record of any client, drawn or not",
}


def account_of_other(
    section: Mapping[str, Any], given: Mapping[str, Any], *, target_epsilon: float | None = None
) -> dict[str, Any]:
    """Return the account of a `[task]` section, with what the command line puts in its place.

    Without noise, a target takes the least that meets it. Raises ConfigError with every fault.
    """
    wanted = _wanted(section, given)
    least = None if target_epsilon is None else _task_of(_with_target(wanted, target_epsilon)).noise_multiplier
    task = _task_of(wanted if least is None or wanted.keys() & {TARGET, _NOISE} else {**wanted, _NOISE: least})
    report = account_of_task(task, given.get("participation"))
    is_rounded = task.rules.is_private and not task.rules.protects_clients
    report["warnings"] = _warnings(task, has_dim="dim" in wanted) if is_rounded else []
    if least is not None:
        report["calibrated"] = {"target_epsilon": target_epsilon, "smallest_sigma": least}
    return report


def _warnings(task: Task, *, has_dim: bool) -> list[str]:
    """Return what rounding takes of epsilon, where that is too much or not known."""
    if not has_dim:
        return [_NO_DIM]
    said = rounding_said(task)
    return [said] if said is not None and said.startswith("WARNING") else []


def _wanted(section: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section with the flags' values before its own. Raises ConfigError."""
    if given.get("balls_in_bins") is not None:
        found = f"{BINS} in the task" if BINS in section else f"{section['algorithm']!r:.60}"
        raise ConfigError(f"--balls-in-bins: expected precad, whose records it is of, found {found}")
    values = {TASK_FIELDS[name]: value for name, value in given.items() if name in TASK_FIELDS and value is not None}
    wanted = {**section, **values}
    if _NOISE in values:
        wanted.pop(TARGET, None)
    return wanted


def _with_target(wanted: Mapping[str, Any], target_epsilon: float) -> dict[str, Any]:
    return {name: value for name, value in wanted.items() if name != _NOISE} | {TARGET: target_epsilon}


def _task_of(wanted: Mapping[str, Any]) -> Task:
    """Return the task, validated as a deployment's. Raises ConfigError."""
    clients = wanted.get("clients", _MADE_UP_CLIENTS)
    if wanted.get("evaluation") == BY_CLIENTS and "evaluation_clip" not in wanted and not isinstance(clients, Mapping):
        raise ConfigError(
            "task.evaluation_clip: expected a number, as clients without their numbers of records do not say what one "
            "moves an evaluation by, found none"
        )
    declared = clients if isinstance(clients, Mapping) else dict.fromkeys(ids_of(clients), 1)
    return parse_section(Task, {**_completed(wanted), "clients": declared}, "task", base=Path())


def _completed(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return a draft with what it lacks made up, without a set of updates that a model or a file would complete."""
    found = {**_MADE_UP, **with_rate_of_bins(dict(wanted))}
    if "dim" not in wanted and wanted.get("update_clipping") in LEARNT:
        found["dim"] = _DIM_OF_A_LEARNT_BOUND
    if any(name in wanted for name in CONVEX_FIELDS) and not _has_whole_set(wanted):  # no figure depends on it
        left_out = {*CONVEX_FIELDS, *(() if wanted.get("mode") == "shares" else ("accept_weak_wire_form",))}
        found = {name: value for name, value in found.items() if name not in left_out}
    return found


def _has_whole_set(wanted: Mapping[str, Any]) -> bool:
    pairs = (("layer_clips", "layer_sizes"), ("half_spaces", "directions_sha256"))
    return "dim" in wanted and all((one in wanted) == (other in wanted) for one, other in pairs)


def account_of_task(task: Task, participation: int | None = None) -> dict[str, Any]:
    """Return both views' figures and every level's, as ledgers have them. Raises ConfigError.

    participation: rounds that the client was in, once known; None: the expected number of those that it can be in.
    """
    privacy, cost = task_privacy(task), _without_limits(task_cost(task))
    expected = expected_participation(task.client_rate, task.rounds_of_a_client)
    rounds = expected if participation is None else participation
    with refusing(ValueError):
        _require_participation(task, rounds)
    of_views = {
        view.value: {
            "bound": plain(privacy.epsilon(view, rounds, task.delta)),
            "if_discarded": {"epsilon": plain(cost.view_if_discarded(view, rounds)), "rounds": cost.most_of_a_client},
            "rests_on": privacy.rests_on[view],
        }
        for view in View
    }
    levels = {
        level.value: {
            "bound": plain(cost.of_level(level, task.rounds, task.most_evaluations)),
            "if_discarded": plain(cost.level_if_discarded(level, task.rounds)),
        }
        for level in privacy.every_round
    }
    return {
        "algorithm": task.algorithm,
        "noise_multiplier": task.noise_multiplier,
        "rounds": task.rounds,
        "delta": task.delta,
        "participation": rounds,
        "unit": privacy.unit.value,
        "records_per_person": privacy.group_size,
        **({} if task.record_bins is None else {BINS: task.record_bins}),
        "label": Label.BOUND.value,
        **of_views,
        "levels": levels,
    }


def _without_limits(cost: TaskCost) -> TaskCost:
    """Return the cost of all rounds, whatever they cost. A budget of a view is kept without a limit: an end still tells
    who was drawn."""
    return replace(cost, budgets={view: math.inf for view in cost.budgets if isinstance(view, View)})


def _require_participation(task: Task, rounds: int) -> None:
    """Require a number of rounds that says what a ledger counts. Raises ValueError.

    Records in bins are counted by epochs. Two rounds of a client may be of two, which their number does not say.
    """
    turns, bins = task.rounds_of_a_client, task.record_bins or 1
    require_count("participation", rounds)
    if rounds > (most := -(-turns // bins) * bins):
        raise ValueError(f"participation: expected at most {most}, the rounds that a client can be in, found {rounds}")
    if rounds % bins and rounds != turns:
        raise ValueError(
            f"participation: expected whole epochs with {BINS}, as ledgers count: a multiple of {bins}, found {rounds}"
        )


def print_task_account(console: Console, report: Mapping[str, Any]) -> None:
    """Print both views, with what each rests on, and the levels."""
    whose = unit_words(Unit(report["unit"]), report["records_per_person"])
    title = f"epsilon of {report['algorithm']} at delta = {report['delta']:g}, add/remove {whose}"
    heads = ("against", "in the rounds of a client", "if draws may be discarded")
    table = titled(title, *heads, words=heads[:1])
    for view, words in VIEW_WORDS.items():
        found = report[view.value]
        table.add_row(words, *(shown(one, Label.BOUND) for one in (found["bound"], found["if_discarded"]["epsilon"])))
    console.print(table)
    most = report[View.ONE_SERVER.value]["if_discarded"]["rounds"]
    console.print(
        f"a client in {report['participation']} of {report['rounds']} rounds; in at most {most} if draws may be "
        f"discarded; noise_multiplier {report['noise_multiplier']:g}",
        highlight=False,
    )
    if bins := report.get(BINS):
        console.print(
            f"each record in exactly one of {bins} rounds, by the client's secret draw; epochs of {bins} rounds count "
            f"whole, by the numbers of rounds, lost ones too: {-(-report['participation'] // bins)} begun, or "
            f"{most // bins} if draws may be discarded",
            highlight=False,
        )
    for view, words in VIEW_WORDS.items():
        console.print(f"  {words}: {report[view.value]['rests_on']}", highlight=False)
    for level, found in report["levels"].items():
        console.print(
            f"against clients, {_LEVELS[Level(level)]}: {shown(found['bound'], Label.BOUND)}; if draws may be "
            f"discarded: {shown(found['if_discarded'], Label.BOUND)}",
            highlight=False,
        )
    for warning in report["warnings"]:
        console.print(warning, highlight=False)
    if calibrated := report.get("calibrated"):
        console.print(
            f"epsilon <= {calibrated['target_epsilon']:g}, one server corrupted, a client in all of its rounds: sigma "
            f">= {calibrated['smallest_sigma']:g}",
            highlight=False,
        )
