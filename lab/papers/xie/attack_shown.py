"""Show the report of `precad experiment xie-attack-cost`: a paragraph, a table and its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from precad.deploy.shown.figures import rounded_down, within
from precad.deploy.shown.tables import titled
from precad.dp.certificates.prediction import Method
from precad.lab.papers import runner
from precad.lab.papers.xie.attack_levels import LEVELS
from precad.lab.papers.xie.classes import TWO, PublicStart, classes_of

PAPER_TRAININGS: Final = 100


def paragraph(report: Mapping[str, Any], start: PublicStart | None) -> str:
    """Say what came out, beside what the paper says."""
    level, words = LEVELS[report["level"]], classes_of(report["dataset"], report["n_classes"]).words
    figure, prints = level.figure_of(report["dataset"], report["n_classes"]), report["n_classes"] == TWO
    found = "; ".join(_sentence(case, report["C_bar"]) for case in report["cases"])
    is_paper = "the" if report["rounds"] == figure.rounds else "not the"
    rounds = f"({is_paper} paper's {figure.rounds})" if prints else "(the paper states none)"
    beaten = "; ".join(report["beaten"]) or "none"
    cost = (
        "share of the records that attackers aim at which the model does not take for what they want"
        if report["cost_bound"] is None
        else f"cross-entropy on what attackers want, cut off at C_bar = {report['cost_bound']:g}"
        + (f" (the paper's: {figure.cost_bound:g})" if prints else "")
    )
    return (
        f"{level.algorithm}, {report['clients']} clients, on {report['dataset']}, {words}, {report['rounds']} round(s) "
        f"{rounds}, {report['clean_seeds']} training(s) without attackers and "
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
        f"{last['mean']:.3f} measured{without}, at least {rounded_down(bounds['radius'][Method.EXACT][k])} certified "
        f"(exact), {rounded_down(bounds['estimate'][Method.EXACT][k])} if the mean were J and "
        f"{rounded_down(bounds['estimate'][Method.PUBLISHED][k])} by the published formula"
    )


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
                *map(rounded_down, bounds),
            )
    runner.print_result(console, table, report)


_MARKERS = "osD^v"
_WORDS = {"radius": "J with its radius", "estimate": "the mean as J"}


def save(report: Mapping[str, Any], folder: Path) -> None:
    """Save cost-sigma-*.png: by k, a panel for each attack; with several sigmas, cost-by-epsilon.png; needed.png."""
    attacks = report["attacks"]
    for sigma in report["sigmas"]:
        cases = [case for case in report["cases"] if case["sigma"] == sigma]
        runner.save_figure(
            lambda axes, cases=cases: _by_k(axes, cases, report),  # type: ignore[misc]
            folder / f"cost-sigma-{sigma:g}.png",
            panels=len(attacks),
        )
    if len(report["sigmas"]) > 1:
        runner.save_figure(lambda axes: _by_epsilon(axes, report), folder / "cost-by-epsilon.png", panels=len(attacks))
    runner.save_figure(lambda axes: _needed(axes, report), folder / "needed.png", panels=len(attacks))


def _by_k(axes: Any, cases: Sequence[Mapping[str, Any]], report: Mapping[str, Any]) -> None:
    """Bounds solid, what rests on a published epsilon dashed, estimates dotted; measured costs with standard errors."""
    for panel, case in zip(axes, cases, strict=True):
        for colour, method in zip(runner.COLOURS, Method, strict=False):
            for evidence, words in _WORDS.items():
                bounds = case["certified"][evidence][method]
                style = ":" if evidence == "estimate" else "--" if method is Method.PUBLISHED else "-"
                panel.plot(range(len(bounds)), bounds, style, color=colour, label=f"{method.value}, {words}")
        for share, marker in zip(report["poison_shares"], cycle(_MARKERS), strict=False):
            ks, means, errors = _points(_of_share(case, share))
            label = "measured" if share == 1 else f"measured, {share:g} of an attacker's records poisoned"
            panel.errorbar(ks, means, errors, fmt=marker, color="black", capsize=3, mfc=f"{1 - share:g}", label=label)
        panel.set(xlabel="k", ylabel="cost of the attack", title=f"{case['attack']}, sigma = {case['sigma']:g}")
        panel.set_ylim(-0.02 * report["C_bar"], 1.05 * report["C_bar"])


def _points(rows: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float], list[float]]:
    """Return k, mean, standard error, which is drawn as none where there is one training."""
    return [row["k"] for row in rows], [row["mean"] for row in rows], [row["standard_error"] or 0.0 for row in rows]


def _of_share(case: Mapping[str, Any], share: float) -> list[Mapping[str, Any]]:
    """Return what was measured of attackers with that share, and without any."""
    return [row for row in case["measured"] if row["poison_share"] in (None, share)]


def _by_epsilon(axes: Any, report: Mapping[str, Any]) -> None:
    """Draw for each k, by the published epsilon: measured, of attackers who poison most, and what is certified if the
    mean were J."""
    share = report["poison_shares"][-1]
    for panel, attack in zip(axes, report["attacks"], strict=True):
        cases = sorted(
            (case for case in report["cases"] if case["attack"] == attack), key=lambda case: case["epsilon_published"]
        )
        epsilons = [case["epsilon_published"] for case in cases]
        for colour, i in zip(runner.COLOURS, range(len(report["attackers"]) + 1), strict=False):
            rows = [_of_share(case, share)[i] for case in cases]
            k, means, errors = rows[0]["k"], [row["mean"] for row in rows], [row["standard_error"] or 0 for row in rows]
            panel.errorbar(epsilons, means, errors, fmt="o-", color=colour, capsize=3, label=f"k = {k}, measured")
            for method, style in ((Method.EXACT, ":"), (Method.PUBLISHED, "--")):
                bounds = [case["certified"]["estimate"][method][k] for case in cases]
                if k > 0:
                    panel.plot(epsilons, bounds, style, color=colour, label=f"k = {k}, {method.value}, the mean as J")
        panel.set(xlabel="epsilon, published", ylabel="cost of the attack", title=attack)


def _needed(axes: Any, report: Mapping[str, Any]) -> None:
    """Draw the attackers that dividing J by tau takes, if the mean were J; points are missing where it takes more than
    20."""
    for panel, attack in zip(axes, report["attacks"], strict=True):
        cases = [case for case in report["cases"] if case["attack"] == attack]
        for colour, case in zip(runner.COLOURS, cases, strict=False):
            for method, style in ((Method.EXACT, "-"), (Method.PUBLISHED, "--")):
                found = zip(report["taus"], case["needed"]["estimate"][method], strict=True)
                shown = [(tau, k) for tau, k in found if k is not None]
                label = f"sigma = {case['sigma']:g}, {method.value}"
                panel.plot(
                    [tau for tau, _ in shown], [k for _, k in shown], style, marker=".", color=colour, label=label
                )
        panel.set(xlabel="tau", ylabel="attackers needed, at least", title=attack)
