"""`precad experiment ptr-figures`: the curves of the PTR paper's Figures 1 to 5, and what the paper says of them.

The paper draws them and prints neither values nor most parameters. So ours are their own, and what is compared is what
the captions and Sec. 4 say. Theorem 4.4 applies in none of the paper's trainings (docs/explanation/privacy.md): it
needs sigma2 >= 4, which `SIGMA_1` gives at every tau of Figure 5.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from precad.deploy.shown.tables import titled
from precad.dp.accountants.ptr_privacy import subsampled_ptr_rdp_closed
from precad.dp.accountants.renyi_accounting import OrderGridWarning, eps_from_rdp
from precad.dp.published import propose_test_release as ptr
from precad.lab.papers import runner

DELTA: Final = 1e-5
"""As in all captions."""
ORDERS: Final = (1.1, 1.5, *range(2, 201))
"""Orders in [1, 200], as in the captions."""
NOISES: Final = (4.0, 8.0, 16.0)
DELTAS_0: Final = (1e-12, 1e-8, 1e-6, 5e-6, 9e-6, 9.9e-6)
LAPLACE, RATE, SIGMA_1, DELTA_0 = 8.0, 0.01, 48.0, 1e-8
TAU: Final = 0.5
TAUS: Final = (2 / 3, 1 / 3, 0.1)
"""Those of Figures 4 and 5."""
ROUNDS: Final = (1, 10, 100, 1000, 10_000)


def ptr_figures() -> dict[str, Any]:
    """Return the curves of each figure, and which statements about them hold."""
    figures = {
        "1": one_release(TAU),
        "2": by_order(),
        "3": after_rounds(TAU),
        "4": [row for tau in TAUS for row in one_release(tau)],
        "5": [row for tau in TAUS for row in after_rounds(tau)],
    }
    said = {"1": _said_of_release, "2": _said_of_orders, "3": _said_of_rounds}
    said |= {"4": _said_of_release, "5": _said_of_rounds}
    return {
        "experiment": "ptr-figures",
        "delta": DELTA,
        "figures": [
            {"figure": name, "statements": said[name](rows), "rows": rows} for name, rows in sorted(figures.items())
        ],
    }


def one_release(tau: float) -> list[dict[str, float]]:
    """Return epsilon of one release by delta0: Theorem 4.2, and Theorem 4.3 converted."""
    return [
        {
            "tau": tau,
            "sigma_1": sigma,
            "delta_0": delta_0,
            "direct": ptr.ptr_direct_dp(LAPLACE, sigma, delta_0, DELTA),
            "converted": eps_from_rdp(_release_of(sigma, tau, delta_0), DELTA, "balle", ORDERS),
        }
        for sigma in NOISES
        for delta_0 in DELTAS_0
    ]


def _release_of(sigma: float, tau: float, delta_0: float) -> Callable[[float], float]:
    return lambda order: ptr.ptr_rdp(order, sigma, tau, LAPLACE, delta_0)


def by_order() -> list[dict[str, float]]:
    """Return the divergence of one sampled release at powers of two as orders: by three bounds."""
    return [
        {
            "order": order,
            "white_box": ptr.subsampled_ptr_rdp_thm44(order, *_SAMPLED, TAU, LAPLACE, DELTA_0),
            "black_box": ptr.subsampled_ptr_rdp_blackbox(order, *_SAMPLED, TAU, LAPLACE, DELTA_0),
            "closed": subsampled_ptr_rdp_closed(order, *_SAMPLED, TAU, LAPLACE, DELTA_0),
        }
        for order in _orders(TAU)
        if order & (order - 1) == 0
    ]


_SAMPLED: Final = (RATE, SIGMA_1)


def _orders(tau: float) -> list[int]:
    """Return the integer orders at which Theorem 4.4 applies."""
    return [order for order in range(2, 65) if ptr.ptr_thm44_valid(order, *_SAMPLED, tau, LAPLACE, DELTA_0)]


def after_rounds(tau: float) -> list[dict[str, float]]:
    """Return epsilon after rounds: by the white box, the black box, and strong composition of Theorem 4.2."""
    orders = _orders(tau)
    bounds = {"white_box": ptr.subsampled_ptr_rdp_thm44, "black_box": ptr.subsampled_ptr_rdp_blackbox}
    losses = {
        name: {order: bound(order, *_SAMPLED, tau, LAPLACE, DELTA_0) for order in orders}
        for name, bound in bounds.items()
    }
    return [
        {
            "tau": tau,
            "rounds": rounds,
            **{name: _epsilon(loss, rounds, orders) for name, loss in losses.items()},
            "direct": composed_directly(rounds),
        }
        for rounds in ROUNDS
    ]


def _epsilon(losses: dict[int, float], rounds: int, orders: Sequence[int]) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OrderGridWarning)  # the theorem's region ends there
        return eps_from_rdp(lambda order: rounds * losses[int(order)], DELTA, "balle", orders)


def composed_directly(rounds: int) -> float:
    """Return epsilon of the rounds by Theorem 4.2, sampling and strong composition (Kairouz et al. '15, Thm 3.4).

    Half of delta pays the rounds, half the composition. Infinite where a round's delta is used up by delta0.
    """
    slack = DELTA / 2
    of_round = (DELTA - slack) / (rounds * RATE)
    if of_round <= DELTA_0:
        return math.inf
    one = ptr.ptr_direct_dp(LAPLACE, SIGMA_1, DELTA_0, min(of_round, 0.5))
    epsilon = math.log1p(RATE * math.expm1(one))
    drift, spread = rounds * epsilon * math.tanh(epsilon / 2), epsilon * math.sqrt(2 * rounds)
    log_small = math.log(math.e + math.sqrt(rounds) * epsilon / slack)
    return min(
        rounds * epsilon,
        drift + spread * math.sqrt(log_small),
        drift + spread * math.sqrt(math.log(1 / slack)),
    )


Rows = Sequence[dict[str, float]]


def _said_of_release(rows: Rows) -> dict[str, bool]:
    near = [row for row in rows if row["delta_0"] == DELTAS_0[-1]]
    far = [row for row in rows if row["delta_0"] == DELTAS_0[0]]
    return {
        "direct analysis is smaller where delta0 is far below delta": all(r["direct"] <= r["converted"] for r in far),
        "the converted bound is smaller where delta0 is close to delta": all(
            r["converted"] < r["direct"] for r in near
        ),
    }


def _said_of_orders(rows: Rows) -> dict[str, bool]:
    return {
        "the white box is below the black box at the largest order": rows[-1]["white_box"] < rows[-1]["black_box"],
        "the white box is below the black box at every order": all(r["white_box"] < r["black_box"] for r in rows),
    }


def _said_of_rounds(rows: Rows) -> dict[str, bool]:
    last = [row for row in rows if row["rounds"] == ROUNDS[-1]]
    first = [row for row in rows if row["rounds"] == ROUNDS[0]]
    return {
        "after many rounds the white box is below the black box": all(r["white_box"] < r["black_box"] for r in last),
        "after many rounds it is below strong composition": all(r["white_box"] < r["direct"] for r in last),
        "in the first round direct analysis is below it": all(r["direct"] < r["white_box"] for r in first),
    }


def print_ptr_figures(console: Console, report: dict[str, Any]) -> None:
    """Print a table for each figure, with what is said of it below."""
    for figure in report["figures"]:
        rows = figure["rows"]
        table = titled(f"PTR, Figure {figure['figure']}", *rows[0])
        for row in rows:
            table.add_row(*(f"{value:.4g}" for value in row.values()))
        console.print(table, highlight=False)
        for statement, holds in figure["statements"].items():
            console.print(f"{'holds' if holds else 'DOES NOT HOLD'}: {statement}", highlight=False)


_BOUNDS: Final = {
    "white_box": "Theorem 4.4, corrected",
    "black_box": "black box",
    "direct": "Theorem 4.2, corrected",
    "converted": "Theorem 4.3, converted",
    "closed": "proved, closed form",
}
"""Name the curves, corrected as `precad.dp.published.propose_test_release` says."""
_AXES: Final = {
    "delta_0": "δ₀",
    "order": "order α",
    "rounds": "rounds",
}


def save(report: dict[str, Any], folder: Path) -> None:
    """Draw each figure, a panel for each tau. The paper prints no values. Raises ConfigError without matplotlib."""
    for figure in report["figures"]:
        rows = figure["rows"]
        taus = list(dict.fromkeys(row.get("tau", TAU) for row in rows))
        path = folder / f"figure-{figure['figure']}.png"
        runner.save_figure(lambda axes, rows=rows, taus=taus: _draw(axes, rows, taus), path, panels=len(taus))  # type: ignore[misc]


def _draw(panels: Any, rows: Rows, taus: Sequence[float]) -> None:
    along = next(name for name in _AXES if name in rows[0])
    sigmas = list(dict.fromkeys(row.get("sigma_1", SIGMA_1) for row in rows))
    for axes, tau in zip(panels, taus, strict=True):
        for i, sigma in enumerate(sigmas):
            own = [row for row in rows if (row.get("tau", TAU), row.get("sigma_1", SIGMA_1)) == (tau, sigma)]
            for j, name in enumerate(name for name in _BOUNDS if name in rows[0]):
                colour = runner.COLOURS[i if len(sigmas) > 1 else j]
                label = _BOUNDS[name] + (f", σ₁ = {sigma:g}" if len(sigmas) > 1 else "")
                x, y = [row[along] for row in own], [row[name] for row in own]
                axes.plot(x, y, ("-", "--", ":")[j], color=colour, marker=".", label=label)
        measured = "Rényi divergence" if along == "order" else "ε at δ = 10⁻⁵"
        axes.set(
            xlabel=_AXES[along],
            ylabel=measured,
            xscale="log",
            yscale="log",
            title=f"τ = {tau:.3g}",
        )
        if along == "order":
            orders = [row[along] for row in rows]
            axes.set_xticks(orders, [f"{order:g}" for order in orders], minor=False)
            axes.set_xticks([], minor=True)
