"""`precad certify --plan` with a wish: which noise, clip and rounds reach it, or that none do, and the frontier."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from precad.deploy.figures import at_least, plain
from precad.dp.accountants.pld import Label
from precad.dp.certificates.planner import CentralTask, Plan, PrecadTask, Task, Wish, frontier, search

FRONTIER: Final = (1, 2, 4, 8, 16, 32)
"""Attackers whose best plan the frontier shows, beside the wished number."""
_SHOWN: Final = 8


def plan_wish(wish: Wish, task: Task) -> dict[str, Any]:
    """Return every alternative with the least sigma that reaches the wish, best first, and the best by number of
    attackers.

    `reached` says whether one leaves a signal, that is, has noise over signal of at most the wish's limit.
    """
    plans = [_plain(found, wish, task) for found in search(wish, task)]
    ks = sorted({*FRONTIER, wish.attackers})
    best = frontier(ks, wish, task)
    return {
        "wish": asdict(wish),
        "task": {"kind": _KINDS[type(task)], **_fields(task)},
        "label": Label.BOUND.value,
        "reached": bool(plans) and plans[0]["reaches"],
        "best": plans[0] if plans else None,
        "plans": plans,
        "frontier": [
            {"attackers": k, "plan": None if (found := best[k]) is None else _plain(found, wish, task)} for k in ks
        ],
    }


_KINDS: Final[dict[type, str]] = {PrecadTask: "precad", CentralTask: "central"}


def _fields(task: Task) -> dict[str, Any]:
    assert isinstance(task, PrecadTask | CentralTask)  # the tasks that there are
    return asdict(task)


def _plain(plan: Plan, wish: Wish, task: Task) -> dict[str, Any]:
    assert isinstance(task, PrecadTask | CentralTask)  # the tasks that there are
    return {
        "sigma": plan.sigma,
        "client_clip": plan.client_clip,
        "rounds": plan.rounds,
        "epsilon_counts_rounds": replace(task, rounds=plan.rounds).protected[1],
        "decided_by": plan.decided_by,
        "noise_to_signal": plain(plan.noise_to_signal),
        "reaches": plan.noise_to_signal <= wish.most_noise_to_signal,
    }


def print_wish(console: Console, report: dict[str, Any]) -> None:
    """Print the best plans, the verdict, and the frontier."""
    wish, best = report["wish"], report["best"]
    words = (
        f"{wish['attackers']} attackers to {wish['threat']}, epsilon <= {wish['epsilon']:g}, prediction of "
        f"{wish['FA']:.3f} against {wish['FB']:.3f}"
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
    if best is not None and report["task"]["kind"] == _KINDS[PrecadTask]:
        console.print(
            f"epsilon: of one record against one server, its client in {best['epsilon_counts_rounds']} of "
            f"{best['rounds']} rounds, expected if no draw is discarded; in more it is larger: `precad account`",
            highlight=False,
        )
    table = Table(title="the frontier: the best plan by number of attackers", title_justify="left")
    for column in ("attackers", "sigma", "C", "T", "noise over signal", "reach"):
        table.add_column(column, justify="right")
    for row in report["frontier"]:
        cells = ("none does", "", "", "", "") if row["plan"] is None else _cells(row["plan"])
        table.add_row(str(row["attackers"]), *cells)
    console.print(table)


def _table(title: str, plans: list[dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in ("sigma at least", "C", "T", "noise over signal", "reach", "decided by"):
        table.add_column(column, justify="right")
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
    return value if isinstance(value, str) else f"{value:.3g}"
