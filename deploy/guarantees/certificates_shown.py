"""Print the report of `precad certify`, with every number's label."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from rich.console import Console

from precad.deploy.shown.figures import at_least, rounded_down, rounded_up, shown, within
from precad.deploy.shown.tables import titled
from precad.dp.accountants.pld import Label, Unit, unit_words


def print_certificates(console: Console, report: dict[str, Any]) -> None:
    """Print certified accuracy by number of attackers, one column per method; estimates in columns of their own."""
    if run := report.get("run"):
        _print_run(console, run)
    columns = {
        f"{name}\n({_words(report['labels'][name])})": curve for name, curve in report["certified_accuracy"].items()
    }
    if estimate := report.get("estimate"):
        columns |= {
            f"{name}\n({_words(estimate['label'])})": curve for name, curve in estimate["certified_accuracy"].items()
        }
    found = titled(f"accuracy certified against k attackers that {report['threat']}", "k", *columns)
    for k in range(max(map(len, columns.values()))):
        found.add_row(str(k), *(rounded_down(curve[k]) if k < len(curve) else "0.000" for curve in columns.values()))
    console.print(found)
    if (level := report.get("confidence")) is not None:
        at_least_so = _downwards(level)
        console.print(f"these bounds hold together with probability at least {at_least_so}", highlight=False)
    if estimate:
        console.print(f"approx.: {estimate['of']}, not a guarantee", highlight=False)
    if planned := report.get("plan"):
        _print_plan(console, planned)
    if cost := report.get("attack_cost"):
        if estimate and cost["known_to_be_in"] == [0, 1]:
            console.print("expected confidence in the true class: VACUOUS, the runs do not bound it", highlight=False)
            cost = estimate["attack_cost"] | {"labels": dict.fromkeys(cost["labels"], estimate["label"])}
        _print_attack_cost(console, cost, report["threat"])
    for method, tolerated in report["tolerated"].items():
        if not any(tolerated):
            console.print(f"{method}: VACUOUS, no prediction survives even one attacker", highlight=False)


def _downwards(level: float) -> str:
    """Return a probability with at most six decimals, rounded down."""
    return rounded_down(level, 6).rstrip("0").rstrip(".")


def _words(label: str) -> str:
    """Return a label as heads have it: seven columns fit into 80 without a break inside a word."""
    return label.replace("_", " ").replace("approximation", "approx.")


def _print_run(console: Console, run: dict[str, Any]) -> None:
    n = len(run["folders"])
    lines = [
        f"{n} run{'s' if n > 1 else ''} of {run['task']}: q = {run['q']:g}, at most {run['rounds']} draws, "
        f"noise over the clip of one client {run['noise_multiplier_of_one_client']:.4g}",
        f"confidences are means of {n} training{'s' if n > 1 else ''}, each {within(run['radius'])}; nothing can "
        f"follow from fewer than {run['runs_needed']}",
    ]
    if not run["sampling_claimed"]:
        lines.append("a budget may end the training, and when depends on who is drawn: q = 1 is accounted")
    if attacks := run["attacks_in_the_training"]:
        lines.append(f"attackers are counted beside those in the training: {', '.join(sorted(attacks))}")
    privacy = run["privacy_of_all_models"]
    if n > 1:
        of_server, size, unit = privacy["one_server"], privacy.get("records_per_person", 1), Unit(privacy["unit"])
        whose = f"{unit_words(unit, size)}, " if size > 1 or unit is Unit.CLIENT else ""
        lines.append(
            f"all {n} models together, {whose}one server corrupted, draws discarded or not: epsilon "
            f"{shown(of_server['epsilon_if_draws_are_discarded'], Label.BOUND)}; if no draw is discarded, a client in "
            f"{privacy['rounds_of_a_client']} rounds of all runs: {shown(of_server['epsilon'], Label.BOUND)}; at delta "
            f"= {privacy['delta']:g}"
        )
        if condition := of_server.get("rests_on"):
            lines.append(f"these epsilons rest on: {condition}")
    for line in [*lines, *(f"every certificate rests on: {condition}" for condition in run["rests_on"])]:
        console.print(line, highlight=False)


def _print_plan(console: Console, found: dict[str, Any]) -> None:
    FA, FB = found["lead"]
    title = f"least sigma for a prediction of {FA:.3f} against {FB:.3f}"
    plan = titled(title, "attackers", "sigma at least", f"epsilon of one unit,\n{against(found)}")
    for row in found["frontier"]:
        sigma = row["least_sigma"]
        cells = (
            ("none does", "-") if sigma is None else (at_least(sigma), shown(row["epsilon_of_one_unit"], Label.BOUND))
        )
        plan.add_row(str(row["attackers"]), *cells)
    console.print(plan)


def against(plan: Mapping[str, Any]) -> str:
    """Return against whom a plan's epsilons hold."""
    if n := plan.get("earlier_tasks", 0):
        return f"against clients, with {n} earlier task{'s' if n > 1 else ''}"
    return "if nobody learns who was drawn" if plan["hides_draws"] else "against clients, who may see draws"


def _print_attack_cost(console: Console, cost: dict[str, Any], threat: str) -> None:
    """Print the interval of J for some k, one column per method."""
    title = f"expected confidence in the true class, {cost['J']:.3f}, after k attackers that {threat}"
    made = titled(title, "k", *(f"{name}\n({_words(cost['labels'][name])})" for name in cost["bounds"]))
    last = len(next(iter(cost["bounds"].values()))) - 1
    for k in (k for k in (0, 1, 2, 4, 8, 12, 16, 20) if k <= last):
        cells = (found[k] for found in cost["bounds"].values())
        made.add_row(str(k), *(f"{rounded_down(low)} .. {rounded_up(high, 3)}" for low, high in cells))
    console.print(made)
    if (level := cost["confidence"]) is not None:
        alone, with_others = (_downwards(one) for one in (level, max(0.0, float(2 * Decimal(repr(level)) - 1))))
        console.print(
            f"these bounds hold together with probability at least {alone}, and with those above {with_others}",
            highlight=False,
        )
    for name, k in cost["halved_by"].items():
        needed = f"more than {last} attackers" if k is None else f"at least {k} attacker{'s' if k > 1 else ''}"
        console.print(f"{name} ({_words(cost['labels'][name])}): to halve it takes {needed}", highlight=False)
