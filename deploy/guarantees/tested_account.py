"""`precad account --ptr`: what propose-test-release costs at one server that is trusted, and what its paper states.

The formulas are in `precad.dp.ptr_side_by_side`. Two servers have another threshold, and no sampling:
`precad account CONFIG` has their figures (`precad.dp.trimmed.two_servers`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console

from precad.deploy.errors import ConfigError, refusing
from precad.deploy.guarantees.plots import figure_in
from precad.deploy.shown.figures import plain, shown
from precad.deploy.shown.tables import titled
from precad.dp.accountants.pld import Label
from precad.dp.accountants.renyi_accounting import OrderGridWarning
from precad.dp.checks import require_count
from precad.dp.ptr_side_by_side import Bound, ptr_side_by_side

_NEEDED: Final = ("sigma", "delta")
_TAKEN: Final = (*_NEEDED, "q", "rounds", "plot", "as_json", "ptr")
_MOST_POINTS: Final = 12
"""Points of a picture's curves."""
_STYLES: Final[Mapping[Label, dict[str, Any]]] = {
    Label.BOUND: {"linestyle": "-", "linewidth": 2.2},
    Label.PUBLISHED_REPRODUCTION: {"linestyle": "--"},
}


def account_of_test(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return every bound on such rounds, proved and as printed, from the command's flags. Raises ConfigError."""
    tau, scale, failure = given["ptr"]
    if missing := [name for name in _NEEDED if given[name] is None]:
        raise ConfigError(f"--{missing[0]}: expected a value beside --ptr, found none")
    if beside := [name for name, value in given.items() if value is not None and name not in _TAKEN]:
        raise ConfigError(f"--ptr: expected none beside {beside[0]}, which is of other mechanisms, found a value")
    q, rounds = (1.0 if given["q"] is None else given["q"]), (1 if given["rounds"] is None else given["rounds"])
    parameters = {"sigma": given["sigma"], "tau": tau, "b": scale, "delta0": failure, "q": q, "delta": given["delta"]}
    bounds = ptr_side_by_side(**parameters)
    with refusing(ValueError):
        require_count("rounds", rounds, at_least=1)
        for bound, label in bounds.values():
            if label is Label.BOUND:
                _quietly(bound, 1)  # refuses parameters by name
    report = {**parameters, "rounds": rounds, "bounds": [_row(name, *bounds[name], rounds) for name in bounds]}
    if given.get("plot") is not None:
        report["by_round"] = _by_round(bounds, rounds)
    return report


def _row(name: str, bound: Bound, label: Label, rounds: int) -> dict[str, Any]:
    epsilon, reason = _of(bound, rounds)
    return {"name": name, "label": label.value, "epsilon": None if reason else plain(epsilon), "reason": reason}


def _of(bound: Bound, rounds: int) -> tuple[float, str]:
    """Return epsilon, and why there is none."""
    try:
        return _quietly(bound, rounds), ""
    except ValueError as error:
        return math.nan, str(error).removeprefix("Theorem 4.4 conditions violated: ")
    except ArithmeticError:
        return math.nan, "its numbers are beyond float64"


def _quietly(bound: Bound, rounds: int) -> float:
    """Return epsilon. Where the best order is the grid's last, another bound is smaller, or a theorem's region ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OrderGridWarning)
        return bound(rounds)


def _by_round(bounds: Mapping[str, tuple[Bound, Label]], rounds: int) -> dict[str, Any]:
    points = np.unique(np.geomspace(1, rounds, _MOST_POINTS).astype(int)).tolist()
    curves = {name: [_of(bound, t)[0] for t in points] for name, (bound, _) in bounds.items()}
    return {
        "rounds": points,
        **{name: [plain(v) if not math.isnan(v) else None for v in c] for name, c in curves.items()},
    }


def print_test_account(console: Console, report: Mapping[str, Any]) -> None:
    """Print each bound with its label, and why a theorem does not apply."""
    words = ("bound", "what it is")
    title = f"epsilon of {report['rounds']} tested releases at delta = {report['delta']:g}, add/remove one update"
    table = titled(title, *words, "epsilon", words=words)
    for row in report["bounds"]:
        label = Label(row["label"])
        found = "-" if row["epsilon"] is None else shown(row["epsilon"], label)
        table.add_row(row["name"], label.value.replace("_", " "), found)
    console.print(table)
    for row in report["bounds"]:
        if row["reason"]:
            console.print(f"{row['name']}: {row['reason']}", highlight=False)
    console.print(
        "at one server that is trusted; two servers have another threshold and no sampling (`precad account CONFIG`)",
        highlight=False,
    )


def plot_test_account(report: Mapping[str, Any], path: Path) -> None:
    """Draw epsilon by rounds, proved bounds as lines and the paper's theorems dashed."""
    found = report["by_round"]
    with figure_in(path) as (_, (axis,)):
        for row in report["bounds"]:
            label = Label(row["label"])
            values = [math.nan if v is None or isinstance(v, str) else v for v in found[row["name"]]]
            words = "proved bound" if label is Label.BOUND else "published, not a guarantee"
            axis.plot(found["rounds"], values, label=f"{row['name']}: {words}", marker=".", **_STYLES[label])
        axis.set(xlabel="rounds", ylabel=f"ε at δ = {report['delta']:g}", xscale="log", yscale="log")
        axis.set_title(
            f"σ = {report['sigma']:g}, τ = {report['tau']:g}, b = {report['b']:g}, δ0 = {report['delta0']:g}, "
            f"q = {report['q']:g}"
        )
        axis.grid(visible=True, alpha=0.25)
        axis.legend(fontsize=9)
