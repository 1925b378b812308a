"""`precad certify --plan` with a wish: which noise, clip and rounds reach it, or that none do, and the frontier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from precad.deploy.errors import ConfigError, refusing
from precad.deploy.guarantees.certificates import FRONTIER
from precad.deploy.guarantees.training_plan import NO_DIM, TrainingPlan
from precad.deploy.shown.figures import at_least, plain, shown, three_digits_down
from precad.deploy.shown.tables import titled
from precad.dp.accountants.earlier_rounds import EarlierTask
from precad.dp.accountants.pld import Label, Unit, View, unit_words
from precad.dp.accountants.task_cost import TaskCost
from precad.dp.certificates.planner import (
    CentralTask,
    Plan,
    PrecadTask,
    Task,
    Wish,
    frontier,
    search,
)
from precad.dp.certificates.prediction import Threat
from precad.dp.task_privacy import budgets_of
from precad.protos.task.record_fields import MOST_PER_PERSON
from precad.protos.task.task import Task as ConfiguredTask

_SHOWN: Final = 8
"""Choices of T and C, the best ones, that are printed."""


@refusing(ValueError)
def plan_given(
    wish: Mapping[str, Any],
    task: ConfiguredTask | Mapping[str, Any],
    earlier: tuple[tuple[EarlierTask, ...], ...] = (),
    *,
    delta: float | None = None,
) -> dict[str, Any]:
    """Return the report on a wish in the task of a run, or in one of these parameters. Raises ConfigError.

    earlier: by server, finished tasks that ledgers of the runs count as well. delta: in place of the task's own.
    """
    found = task_of_run(task, earlier) if isinstance(task, ConfiguredTask) else _task_of(**task)
    if delta is not None:
        found = replace(found, delta=delta)
    return plan_wish(Wish(**{**wish, "threat": Threat(wish["threat"])}), found)


def _task_of(*, clients: int, records: int | None = None, **rest: Any) -> Task:
    """Return the task: PRECAD's, if records are spoken of, else central DP over users."""
    if records is None:
        return CentralTask(n_users=clients, **rest)
    if rest.get("records_per_person", 1) > MOST_PER_PERSON:
        raise ValueError(f"records_per_person: expected at most {MOST_PER_PERSON}, found {rest['records_per_person']}")
    return PrecadTask(n_clients=clients, n_records=records, **rest)


def task_of_run(task: ConfiguredTask, earlier: tuple[tuple[EarlierTask, ...], ...] = ()) -> PrecadTask:
    """Return the task to plan with, beside earlier ones by server. Raises ConfigError for another algorithm's."""
    if not task.rules.is_default:
        raise ConfigError(f"--run: expected runs of precad with --attackers, found {task.algorithm}")
    if task.sum_function is not None:
        raise ConfigError(f"--run: expected runs without task.sum_function with --attackers, found {task.sum_function}")
    if task.record_bins is not None:
        raise ConfigError(f"--run: expected runs whose every round draws records, found record_bins {task.record_bins}")
    require_no_evaluations(task, "--attackers")
    return PrecadTask(
        q=task.client_rate,
        p=task.record_rate,
        rounds=task.rounds,
        n_clients=len(task.clients) - len(task.audit_clients),
        n_records=sum(task.clients.values()) - task.n_canaries,
        record_clip=task.record_clip,
        client_clip=task.client_clip,
        delta=task.delta,
        lost_rounds=task.lost_rounds,
        batches_ahead=task.draws_ahead,
        end_tells=any(isinstance(key, View) for key in budgets_of(task)),
        slack=task.delta_slack,
        records_per_person=task.records_per_person,
        dim=task.dim,
        frac_bits=task.frac_bits,
        earlier=tuple(tuple(one.of_groups(task.records_per_person) for one in tasks) for tasks in earlier),
    )


def require_no_evaluations(task: ConfiguredTask, flag: str) -> None:
    """Refuse a task with evaluations, which plans do not count. Raises ConfigError."""
    if task.evaluation_round is not None:
        raise ConfigError(
            f"--run: expected runs without evaluations, which {flag} does not count, found task.evaluation "
            f"{task.evaluation!r}: precad account counts them"
        )


def plan_wish(wish: Wish, task: Task) -> dict[str, Any]:
    """Return every alternative with the least sigma that reaches the wish, best first, and the best by number of
    attackers.

    `reached` says whether one leaves a signal, that is, has noise over signal of at most the wish's limit. `privacy`
    is that of the best plan, in the rounds that the wish is about and in the most that a client can be in.
    """
    found_plans = search(wish, task)
    plans = [_plain(found, wish, task) for found in found_plans]
    ks = sorted({*FRONTIER, wish.attackers})
    best = frontier(ks, wish, task)
    return {
        "wish": asdict(wish),
        "task": {"kind": _KINDS[type(task)], **_fields_of(task)},
        "warnings": [NO_DIM] if isinstance(task, PrecadTask) and task.dim is None else [],
        "label": Label.BOUND.value,
        "reached": bool(plans) and plans[0]["reaches"],
        "best": plans[0] if plans else None,
        "privacy": _privacy(found_plans[0], wish, task) if plans and isinstance(task, PrecadTask) else None,
        "plans": plans,
        "frontier": [
            {"attackers": k, "plan": None if (found := best[k]) is None else _plain(found, wish, task)} for k in ks
        ],
    }


def _fields_of(task: Task) -> dict[str, Any]:
    """Return the task's fields; how many records a person has only where it is more than one, the grid where known."""
    unsaid = {("records_per_person", 1), ("dim", None), ("end_tells", False)}
    found = {field.name: getattr(task, field.name) for field in fields(task)}
    if most := max(map(len, found.pop("earlier", ())), default=0):
        found["earlier_tasks"] = most
    return {name: value for name, value in found.items() if (name, value) not in unsaid and name != "frac_bits"}


_KINDS: Final[dict[type, str]] = {PrecadTask: "precad", CentralTask: "central"}


def _plain(plan: Plan, wish: Wish, task: Task) -> dict[str, Any]:
    return {
        "sigma": plan.sigma,
        "client_clip": plan.client_clip,
        "rounds": plan.rounds,
        "epsilon_counts_rounds": replace(task, rounds=plan.rounds).protected[1],
        "decided_by": plan.decided_by,
        "noise_to_signal": plain(plan.noise_to_signal),
        "reaches": plan.noise_to_signal <= wish.most_noise_to_signal,
    }


def _privacy(plan: Plan, wish: Wish, task: PrecadTask) -> dict[str, Any]:
    """Return epsilon of one person's records against one server, without and with discarded draws, and the sigma for
    the wish if draws are discarded."""
    planned = TrainingPlan(
        sigma=plan.sigma,
        q=task.q,
        p=task.p,
        rounds=plan.rounds,
        delta=task.delta,
        lost_rounds=task.lost_rounds,
        batches_ahead=task.batches_ahead,
        records_per_person=task.records_per_person,
        record_clip=task.record_clip,
        dim=task.dim,
        frac_bits=task.frac_bits,
    )
    safe = task.least_sigma(wish.epsilon, planned.most_rounds, discarded=True)
    epsilon, if_discarded = (
        max(cost.of_view(View.ONE_SERVER, n, discarded=discarded) for cost in _costs(planned, task))
        for n, discarded in ((planned.expected_participation, False), (planned.most_rounds, True))
    )
    return {
        "rounds": planned.expected_participation,
        "epsilon": plain(epsilon),
        "if_discarded": {
            "rounds": planned.most_rounds,
            "epsilon": plain(if_discarded),
            "least_sigma": None if safe is None else max(safe, plan.sigma),
        },
    }


def _costs(planned: TrainingPlan, task: PrecadTask) -> list[TaskCost]:
    """Return what the plan's rounds cost, with the earlier tasks of each server."""
    events = {View.ONE_SERVER: planned.round_of(View.ONE_SERVER)}
    return [
        TaskCost(events=events, delta=task.delta, slack=task.slack, earlier=tasks) for tasks in task.earlier or ((),)
    ]


def print_wish(console: Console, report: dict[str, Any]) -> None:
    """Print the best plans, the verdict, and the frontier."""
    wish, best = report["wish"], report["best"]
    words = (
        f"{wish['attackers']} attackers to {wish['threat']}, epsilon <= {wish['epsilon']:g} at delta "
        f"{report['task']['delta']:g}, prediction of {wish['FA']:.3f} against {wish['FB']:.3f}"
    )
    if report["plans"]:
        console.print(_table(f"least sigma for {words}", report["plans"][:_SHOWN]))
        if len(report["plans"]) > _SHOWN:
            console.print(f"the best of {len(report['plans'])} choices of T and C", highlight=False)
    limit = wish["most_noise_to_signal"]
    if best is None:
        verdict = f"none does, whatever the noise: {words}"
    elif report["reached"]:
        clip = "" if best["client_clip"] is None else f", C = {best['client_clip']:g}"
        verdict = (
            f"reached by sigma >= {at_least(best['sigma'])}{clip}, T = {best['rounds']}, as long as the confidences "
            f"hold: certify anew what is trained"
        )
    else:
        verdict = f"none does: at best noise is {_ratio(best['noise_to_signal'])} of the largest signal, over {limit:g}"
    console.print(verdict, highlight=False)
    if (privacy := report["privacy"]) is not None:
        whose = unit_words(Unit.RECORD, report["task"].get("records_per_person", 1))
        if n := report["task"].get("earlier_tasks", 0):
            whose += f", with {n} earlier task{'s' if n > 1 else ''},"
        _print_privacy(console, privacy, whose, best["rounds"], wish["epsilon"])
    for warning in report["warnings"]:
        console.print(warning, highlight=False)
    title = "the frontier: the best plan by number of attackers"
    table = titled(title, "attackers", "sigma", "C", "T", "noise over signal", "reach")
    for row in report["frontier"]:
        cells = ("none does", "", "", "", "") if row["plan"] is None else _cells(row["plan"])
        table.add_row(str(row["attackers"]), *cells)
    console.print(table)


def _print_privacy(console: Console, privacy: dict[str, Any], whose: str, rounds: int, wished: float) -> None:
    """Print the rounds that the wished epsilon is about, and both figures of the best plan."""
    safe = privacy["if_discarded"]
    sigma = "none does" if safe["least_sigma"] is None else f"sigma >= {at_least(safe['least_sigma'])}"
    for line in (
        f"epsilon of {whose} against one server, its client in {privacy['rounds']} of {rounds} rounds, expected if "
        f"no draw is discarded: {shown(privacy['epsilon'], Label.BOUND)}; the wish is about these",
        f"draws discarded or not, in up to {safe['rounds']} rounds: {shown(safe['epsilon'], Label.BOUND)}; for "
        f"epsilon <= {wished:g} in these: {sigma}",
    ):
        console.print(line, highlight=False)


def _table(title: str, plans: list[dict[str, Any]]) -> Table:
    table = titled(title, "sigma at least", "C", "T", "noise over signal", "reach", "decided by")
    for plan in plans:
        table.add_row(*_cells(plan), plan["decided_by"])
    return table


def _cells(plan: dict[str, Any]) -> tuple[str, str, str, str, str]:
    return (
        at_least(plan["sigma"]),
        "-" if plan["client_clip"] is None else f"{plan['client_clip']:g}",
        str(plan["rounds"]),
        f">= {_ratio(plan['noise_to_signal'])}",
        "in reach" if plan["reaches"] else "out of reach",
    )


def _ratio(value: float | str) -> str:
    """Return three digits, rounded down: more noise over signal than that is certain."""
    return value if isinstance(value, str) else three_digits_down(value)
