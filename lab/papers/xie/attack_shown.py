"""Show the report of `precad experiment xie-attack-cost`: a paragraph and a table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console

from precad.deploy.figures import within
from precad.deploy.tables import titled
from precad.dp.certificates.prediction import Method
from precad.lab.papers import runner
from precad.lab.papers.xie.attack_levels import LEVELS
from precad.lab.papers.xie.public_start import PublicStart
from precad.lab.papers.xie.two_classes import pair_of

PAPER_TRAININGS: Final = 100


def paragraph(report: Mapping[str, Any], start: PublicStart | None) -> str:
    """Say what came out, beside what the paper says."""
    level, words = LEVELS[report["level"]], pair_of(report["dataset"]).words
    figure = level.figure_of(report["dataset"])
    found = "; ".join(_sentence(case, report["C_bar"]) for case in report["cases"])
    is_paper = "the" if report["rounds"] == figure.rounds else "not the"
    beaten = "; ".join(report["beaten"]) or "none"
    cost = (
        "share of the records that attackers aim at which the model does not take for what they want"
        if report["cost_bound"] is None
        else f"cross-entropy on what attackers want, cut off at C_bar = {report['cost_bound']:g} (the paper's: "
        f"{figure.cost_bound:g})"
    )
    return (
        f"{level.algorithm}, {report['clients']} clients, on {report['dataset']}, {words}, {report['rounds']} round(s) "
        f"({is_paper} paper's {figure.rounds}), {report['clean_seeds']} training(s) without attackers and "
        f"{report['seeds']} of each attack (the paper has {PAPER_TRAININGS}). Cost: {cost}; k counts {level.words}. "
        f"{found}. Bounds from J with its radius hold for all of the run together with probability "
        f"{1 - report['psi']:g} over the trainings; from the "
        "mean as if it were J they are approximations, and the published formula is a reproduction, not a bound. "
        "Bounds that a measured cost is below, each with its radius, which a true bound escapes with probability "
        f"{1 - 2 * report['psi']:g} at least: {beaten}. The paper says that costs and bounds fall with k and "
        "rise as epsilon falls, that the bounds are tight for few attackers, and that under DP the kind of attack "
        "makes little difference." + ("" if start is None else f" {start.words}")
    )


def _sentence(case: Mapping[str, Any], largest: float) -> str:
    last = case["measured"][-1]
    bounds = {evidence: case["certified"][evidence] for evidence in ("radius", "estimate")}
    k, paired = last["k"], last["same_seeds_without"]
    poisoned = "" if last["poison_share"] == 1 else f", {last['poison_share']:g} of their records poisoned"
    without = "" if paired is None else f" ({paired:.3f} without attackers from the same seeds)"
    return (
        f"{case['attack']}, sigma = {case['sigma']:g} (epsilon published {case['epsilon_published']:.4f}): J = "
        f"{case['J']:.3f}, {within(case['radius'], largest)}, without attackers; with k = {k}{poisoned}, "
        f"{last['mean']:.3f} measured{without}, at least {_down(bounds['radius'][Method.EXACT][k])} certified (exact), "
        f"{_down(bounds['estimate'][Method.EXACT][k])} if the mean were J and "
        f"{_down(bounds['estimate'][Method.PUBLISHED][k])} by the published formula"
    )


def _down(value: float) -> str:
    return f"{math.floor(value * 1000) / 1000:.3f}"


def print_report(console: Console, report: Mapping[str, Any]) -> None:
    """Print the report for people."""
    measured = ("sigma", "attack", "k", "share", "accuracy", "success", "cost", "error", "without")
    certified = (f"{method.value}\n{evidence}" for evidence in ("radius", "estimate") for method in Method)
    title = f"Xie et al., what attacks cost, {report['level']} level"
    table = titled(title, *measured, *certified, words=("attack",))
    for case in report["cases"]:
        for row in case["measured"]:
            bounds = (
                case["certified"][evidence][method][row["k"]]
                for evidence in ("radius", "estimate")
                for method in Method
            )
            table.add_row(
                f"{case['sigma']:g}",
                case["attack"],
                str(row["k"]),
                "-" if row["poison_share"] is None else f"{row['poison_share']:g}",
                f"{row['accuracy']:.3f}",
                f"{row['attack_success']:.3f}",
                f"{row['mean']:.3f}",
                *(
                    "-" if row[name] is None else f"{row[name]:.3f}"
                    for name in ("standard_error", "same_seeds_without")
                ),
                *map(_down, bounds),
            )
    runner.print_result(console, table, report)
