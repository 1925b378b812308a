"""Show the report of `precad experiment xie-defences`: a paragraph, a table and a figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from precad.deploy.shown.figures import at_most
from precad.dp.certificates.prediction import Method
from precad.lab.papers import runner
from precad.lab.papers.xie.classes import PublicStart, classes_of

_COLOURS: Final = (*runner.COLOURS, "#999999")


def paragraph(report: Mapping[str, Any], start: PublicStart | None) -> str:
    """Say what came out, beside what the paper says."""
    ks, certified = report["attackers"], report["certified"]
    found = "; ".join(_sentence(report, attack) for attack in report["attacks"])
    certain = ", ".join(f"{share:.3f}" for share in certified["estimate"][Method.EXACT])
    return (
        f"UserDP-FedAvg on {report['dataset']}, {classes_of(report['dataset']).words}, sigma = {report['sigma']:g} "
        f"(epsilon published {certified['epsilon_published']:.4f}, proved {at_most(certified['epsilon_proved'], 4)}), "
        f"{report['rounds']} round(s), {report['seeds']} training(s) of each case; FedAvg with each rule without "
        f"privacy, {report['rule_seeds']} training(s). Robust accuracy, the certification's by mean confidence. "
        f"Without attackers: {_accuracies(report, 'none', 0)}. {found}. Certified against k = "
        f"{', '.join(map(str, ks))} clients that are replaced, whatever they do, by the exact law if the mean "
        f"confidences were the expected ones: {certain}, an approximation. The paper says of CIFAR-10 that its "
        "certification is about as robust as the rules, or more, and that certified accuracy is below robust accuracy; "
        "the numbers of its Table 9 are not known to us." + ("" if start is None else f" {start.words}")
    )


def _sentence(report: Mapping[str, Any], attack: str) -> str:
    k = report["attackers"][-1]
    return f"{attack}, k = {k}: {_accuracies(report, attack, k)}"


def _accuracies(report: Mapping[str, Any], attack: str, k: int) -> str:
    cases = [case for case in report["cases"] if (case["attack"], case["k"]) == (attack, k)]
    return ", ".join(f"{case['defence']} {_robust(case):.3f}" for case in cases)


def _robust(case: Mapping[str, Any]) -> float:
    """Return robust accuracy by mean confidence where that is what predicts; the mean over the trainings elsewhere."""
    found: float = case.get("accuracy_of_mean_confidence", case["accuracy"])
    return found


def save(report: Mapping[str, Any], folder: Path) -> None:
    """Save robust-accuracy.png: by k, a panel for each attack."""
    runner.save_figure(lambda axes: _draw(axes, report), folder / "robust-accuracy.png", panels=len(report["attacks"]))


def _draw(axes: Any, report: Mapping[str, Any]) -> None:
    """Draw a line for each defence; what is certified is dotted, being an estimate."""
    ks: Sequence[int] = report["attackers"]
    defences = list(dict.fromkeys(case["defence"] for case in report["cases"]))
    for panel, attack in zip(axes, report["attacks"], strict=True):
        for colour, defence in zip(_COLOURS, defences, strict=False):
            by_k = {
                case["k"]: _robust(case)
                for case in report["cases"]
                if case["defence"] == defence and case["attack"] in (attack, "none")
            }
            shown = sorted(by_k)
            panel.plot(shown, [by_k[k] for k in shown], color=colour, marker="o", markersize=4, label=defence)
        estimate = report["certified"]["estimate"][Method.EXACT]
        panel.plot(ks, estimate, ":", color="black", marker="x", label="certified (exact, means as exact)")
        panel.set(xlabel="attackers k", ylabel="robust accuracy", title=attack, ylim=(-0.02, 1.02))


def print_report(console: Console, report: Mapping[str, Any]) -> None:
    """Print the report for people."""
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "attack": itemgetter("attack"),
        "k": lambda case: str(case["k"]),
        "drawn": lambda case: f"{case['attackers_drawn']:.1f}",
        "defence": lambda case: case["defence"] + (f" ({case['diverged']} diverged)" if case["diverged"] else ""),
        "trainings": lambda case: str(case["trainings"]),
        "robust accuracy": lambda case: f"{_robust(case):.3f}",
        "least": lambda case: f"{case['least']:.3f}",
        "most": lambda case: f"{case['most']:.3f}",
        "attack success": lambda case: runner.written(
            case.get("attack_success_of_mean_confidence", case["attack_success"]), "{:.3f}".format
        ),
    }
    title = f"Xie et al., robust accuracy by defence, {report['dataset']}"
    runner.print_table(console, report, title, report["cases"], columns, words=("attack", "defence"))
    console.print("drawn: attackers in the rounds of a training, mean over the trainings", highlight=False)
