"""`precad experiment tightness`: what each method certifies of the same trainings, and the attack that ends it.

Five settings of Xie et al.'s tables, a prediction with F_A = .95 against F_B = .05. Each threat has one table line,
with the attackers certified by every method. It says what the worst simulated attack
(`precad.dp.certificates.attack_simulation`) leaves of the prediction at each of these numbers. It also says with how
many attackers the attack succeeds. No certificate may reach that number.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Column, Table

from precad.deploy.shown.figures import rounded_up
from precad.dp.accountants.pld import Label, PldAccountant, SampledGaussian
from precad.dp.accountants.renyi_accounting import OrderGridWarning
from precad.dp.accountants.side_by_side import RdpAccountant
from precad.dp.certificates.attack_simulation import SimulatedAttack, attackers_that_succeed, simulate
from precad.dp.certificates.monte_carlo import hoeffding_radius
from precad.dp.certificates.prediction import (
    Method,
    Threat,
    Training,
    best_certified_k,
    certified_integer,
    certify,
    published_epsilon,
    xie_certified_k,
)

FA: Final = 0.95
FB: Final = 0.05
Setting = tuple[str, str, float, int, float]
"""(what, client rate q, sigma, rounds T, delta)."""

SETTINGS: Final[tuple[Setting, ...]] = (
    ("user, MNIST", "20/200", 1.8, 3, 0.0029),
    ("user, CIFAR-10", "40/200", 2.3, 1, 0.0029),
    ("user, Sent140", "10/805", 2.0, 3, 1e-6),
    ("instance, MNIST", "50/1266", 5.0, 78, 1e-5),
    ("instance, CIFAR-10", "50/1000", 8.0, 100, 1e-5),
)
"""A row of each of the public tables."""

N_DRAWS: Final = 1_000_000
FAILURE: Final = 1e-9
"""Failure probability of Hoeffding's radius, for every single simulated share."""
_SEED: Final = 2023
_AT_MOST: Final = 1024
_METHODS: Final = {
    "published": Label.PUBLISHED_REPRODUCTION,
    "rdp": Label.BOUND,
    "pld": Label.BOUND,
    "exact": Label.BOUND,
}


def tightness(settings: Sequence[Setting] = SETTINGS, *, n_draws: int = N_DRAWS, quick: bool = False) -> dict[str, Any]:
    """Return one row for each setting; with `quick` the attack is simulated for the first one only."""
    rows = [_row(*setting, n_draws=n_draws if i == 0 or not quick else None) for i, setting in enumerate(settings)]
    return {
        "FA": FA,
        "FB": FB,
        "labels": {name: label.value for name, label in _METHODS.items()},
        "n_draws": n_draws,
        "failure_of_each_share": FAILURE,
        "radius": hoeffding_radius(n_draws, FAILURE),
        "rows": rows,
        "beaten": [
            f"{row['setting']}, {threat}, {name}"
            for row in rows
            for threat, found in row["threats"].items()
            for name, attack in found["attacked"].items()
            if attack["has_surely_succeeded"]
        ],
    }


def _row(what: str, q: str, sigma: float, rounds: int, delta: float, *, n_draws: int | None) -> dict[str, Any]:
    event = SampledGaussian(float(Fraction(q)), sigma)
    training = Training(event, rounds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OrderGridWarning)  # a bound all the same
        epsilons = {
            "published": published_epsilon(training, delta),
            "rdp": RdpAccountant().epsilon(event, rounds, delta),
            "pld": PldAccountant().epsilon(event, rounds, delta),
        }
    at_one_point = {name: xie_certified_k(FA, FB, epsilon, delta) for name, epsilon in epsilons.items()}
    return {
        "setting": what,
        "q": q,
        "sigma": sigma,
        "rounds": rounds,
        "delta": delta,
        "epsilon": epsilons,
        "K_at_this_delta": at_one_point,
        "K_over_the_curve": best_certified_k(FA, FB, training.one_unit_curve()),
        "threats": {
            threat.value: _of_threat(training, threat, delta, K_rdp=at_one_point["rdp"], n_draws=n_draws)
            for threat in Threat
        },
    }


def _of_threat(
    training: Training, threat: Threat, delta: float, *, K_rdp: float, n_draws: int | None
) -> dict[str, Any]:
    """Return attackers tolerated by method, and what the simulated attack does at each of these numbers."""
    tolerated = {
        method.value: certify(FA, FB, training, method=method, threat=threat, delta=delta, at_most=_AT_MOST).tolerated
        for method in Method
    } | {"rdp": int(certified_integer(K_rdp, threat))}
    tolerated = {name: tolerated[name] for name in _METHODS}
    found: dict[str, Any] = {"tolerated": tolerated, "attacked": {}, "attack_succeeds": None}
    if n_draws is None:
        return found

    def attack(k: int) -> SimulatedAttack:
        return simulate(k, FA, training, threat, n_draws=n_draws, failure=FAILURE, seed=_SEED + k)

    attacks = {k: attack(k) for k in set(tolerated.values()) if k > 0}
    found["attacked"] = {name: _plain(attacks[k]) for name, k in tolerated.items() if k > 0}
    success = attackers_that_succeed(
        FA, training, threat, at_least=max(1, tolerated["exact"]), n_draws=n_draws, failure=FAILURE, seed=_SEED
    )
    found["attack_succeeds"] = _plain(success)
    return found


def _plain(attack: SimulatedAttack) -> dict[str, Any]:
    return {
        "attackers": attack.k,
        "benign": attack.benign,
        "attacked": attack.attacked,
        "radius": attack.radius,
        "has_surely_succeeded": attack.has_surely_succeeded,
    }


def print_tightness(console: Console, report: dict[str, Any]) -> None:
    """Print epsilons and certificates, two lines for each setting; below, what was simulated and with what
    confidence."""
    title = f"attackers that a prediction of {report['FA']:g} against {report['FB']:g} tolerates"
    table = Table(
        *(Column(head, no_wrap=True) for head in ("setting", "q", "sigma", "T", "delta")),
        *(Column(f"epsilon\n{name}", justify="right", no_wrap=True) for name in ("published", "rdp", "pld")),
        Column("threat", no_wrap=True),
        *(Column(method, justify="right", no_wrap=True) for method in _METHODS),
        *(Column(head, justify="right") for head in ("left by\nattack", "attack\nneeds")),
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    for row in report["rows"]:
        epsilon = row["epsilon"]
        cells = (
            row["setting"],
            row["q"],
            f"{row['sigma']:g}",
            str(row["rounds"]),
            f"{row['delta']:g}",
            f"~{epsilon['published']:.4f}",
            f"<={rounded_up(epsilon['rdp'], 4)}",
            f"<={rounded_up(epsilon['pld'], 4)}",
        )
        for i, (threat, found) in enumerate(row["threats"].items()):
            exact, success = found["attacked"].get("exact"), found["attack_succeeds"]
            table.add_row(
                *(cells if i == 0 else ("",) * len(cells)),
                threat,
                *(str(found["tolerated"][name]) for name in _METHODS),
                "-" if exact is None else f"{exact['attacked']:.3f}",
                "-" if success is None else str(success["attackers"]),
            )
    console.print(table)
    lines = (
        "published: published reproduction, not a guarantee; rdp, pld, exact: proved bounds. rdp is one (epsilon, "
        "delta), pld the whole curve, exact the law of k sampled units.",
        f"attack: {report['n_draws']} trainings of a one-dimensional mechanism for each share, within "
        f"{report['radius']:.4f} but for probability {report['failure_of_each_share']:g}; the prediction changes where "
        "less than one half of it is left. `left by attack` is at the exact method's number of attackers.",
        "certificates that the attack beats: " + ("; ".join(report["beaten"]) or "none"),
    )
    for line in lines:
        console.print(line, highlight=False)
