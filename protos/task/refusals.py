"""Refuse parameters of a task that do not fit together. Each error names the field, what was expected and found."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from precad.protos.task.algorithms import OF_AN_ALGORITHM, QUANTILE_FIELDS, AlgorithmRules
from precad.protos.task.quantile import LEARNT, QuantileRule

MIN_NOISE_STD_ON_GRID, MAX_NOISE_STD_ON_GRID = 8.0, 2.0**40
"""With C * 2^f <= 9.4e7 and any number of clients below 9e10, the noisy sum then stays far from wrapping around."""


def refuse_wire_form(mode: str, *, accepts_weak: bool, fixed_word: str | None) -> None:
    """Refuse what is weaker unless the task accepts it by name, and an acceptance of nothing. Raises ValueError.

    fixed_word: the field, if any, whose bounds the servers check by words that no coin draws.
    """
    if mode == "shares" and not accepts_weak:
        raise ValueError(
            "accept_weak_wire_form: expected true with mode 'shares', in which a server that deviates reads "
            "coordinates of updates bit by bit (docs/explanation/threat-model.md), found false; mode 'masked' "
            "needs no consent"
        )
    if fixed_word is not None and not accepts_weak:
        raise ValueError(
            f"accept_weak_wire_form: expected true with {fixed_word}, as a server that deviates reads what they bound, "
            "a coordinate where they are of one, bit by bit (docs/reference/protocol-convex-sets.md), found false"
        )
    if mode != "shares" and fixed_word is None and accepts_weak:
        raise ValueError(
            f"accept_weak_wire_form is of mode 'shares', layer_clips and half_spaces only, found mode {mode!r}"
        )


def refuse_noise(rules: AlgorithmRules, std_on_grid: float) -> None:
    """Refuse noise that is too small or too large on the grid, whoever adds it. Raises ValueError.

    A task to which nobody adds noise is not refused.
    """
    share = " / sqrt(non_colluding)" if rules.clients_share_noise else ""
    if rules.is_private and not MIN_NOISE_STD_ON_GRID <= std_on_grid <= MAX_NOISE_STD_ON_GRID:
        raise ValueError(
            f"noise_multiplier * {rules.noise_clip}{share} * 2^frac_bits: expected a number in [8, 2^40], where the "
            f"noise on the grid is accounted as the Gaussian that it is rounded from, found {std_on_grid:.6g}"
        )


def refuse_group(rules: AlgorithmRules, records_per_person: int) -> None:
    """Refuse groups of records where no figure is of a record. Raises ValueError."""
    if records_per_person > 1 and (rules.protects_clients or not rules.is_private):
        raise ValueError(
            f"records_per_person: expected an algorithm that protects records, found {rules.name}, of which no figure "
            "is of a record"
        )


def refuse_rates(rates: Mapping[str, float], clients: Collection[str], most: float) -> None:
    """Refuse a record rate of nobody, or one above the rate that ledgers charge. Raises ValueError."""
    for name, rate in rates.items():
        if name not in clients:
            raise ValueError(f"record_rates: expected enrolled clients, found {name!r:.80}")
        if rate > most:
            raise ValueError(f"record_rates.{name}: expected at most record_rate, {most:g}, found {rate:g}")


def refuse_clip(client_clip: float, update_bound: float) -> None:
    """Refuse a client_clip that leaves no room for a client's own noise (`Task.update_bound`). Raises ValueError."""
    if not update_bound > 0:
        raise ValueError(
            f"client_clip: expected more than {client_clip - update_bound:.6g}, which leaves room for a client's own "
            f"noise, which is summed as it is, found {client_clip}"
        )


def refuse_step(learning_rate: float, divisor: float) -> None:
    """Refuse a W that float64 rounds to zero, or a step over W that it does not hold. Raises ValueError."""
    if not (divisor > 0 and math.isfinite(learning_rate / divisor)):
        raise ValueError(
            "learning_rate: expected a finite number once it is divided by W, what a round expects of clients and "
            f"their records, {divisor:.6g}, found {learning_rate:.6g}"
        )


def refuse_fields_of_others(rules: AlgorithmRules, given: Collection[str]) -> None:
    """Refuse fields that are given although this algorithm ignores them. Raises ValueError."""
    for name, algorithms in OF_AN_ALGORITHM.items():
        if name in given and rules.name not in algorithms:
            raise ValueError(f"{name} is of {' and '.join(algorithms)} only, found algorithm {rules.name!r}")


def refuse_budgets(rules: AlgorithmRules, given: Collection[str]) -> None:
    """Refuse budgets that nothing proved could exceed. Raises ValueError."""
    for name in rules.idle_budgets:
        if name in given:
            raise ValueError(f"{name}: {rules.name} proves nothing that it could limit, expected none")


def refuse_learnt_bound(rules: AlgorithmRules, update_clipping: str) -> None:
    """Refuse a bound that is learnt with the servers' noise where an algorithm learns none. Raises ValueError."""
    if update_clipping in LEARNT and not set(QUANTILE_FIELDS) <= set(rules.own_fields):
        raise ValueError(f"update_clipping: expected a fixed bound with algorithm {rules.name!r}, found a learnt one")


def refuse_quantile_fields(update_clipping: str, given: Collection[str]) -> None:
    """Refuse parameters of a learnt bound in a task that learns none. Raises ValueError."""
    for name in QUANTILE_FIELDS:
        if name in given:
            raise ValueError(f"{name} needs update_clipping = 'private-quantile', found {update_clipping!r}")


def refuse_quantile(rule: QuantileRule, dim: int) -> None:
    """Refuse a learnt bound whose count does not fit into the round. Raises ValueError.

    The count must leave the update a part of the noise budget, and must weigh a client at least 1 on the grid.
    """
    if not (2 * rule.count_noise > rule.noise_multiplier and rule.unit < rule.clip):
        raise ValueError(
            "quantile_noise: the count would need all of the round's budget, or more: expected more than half of "
            f"noise_multiplier, {rule.noise_multiplier / 2:g}, found {rule.count_noise:g}"
        )
    if not rule.unit > 0:
        raise ValueError(
            "quantile_noise: expected client_clip * noise_multiplier / (2 quantile_noise) * 2^frac_bits of at least 1, "
            f"what counts a client, found quantile_noise {rule.count_noise:g}"
        )
    if dim < 2:
        raise ValueError(f"dim: expected at least 2, the last one being the learnt bound, found {dim}")
