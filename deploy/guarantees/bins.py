"""`precad account --balls-in-bins`: what a record costs that is in exactly one of T participations of its client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from precad.deploy.shown.figures import plain, shown
from precad.dp.accountants.bins_event import BinnedGaussian
from precad.dp.accountants.pld import Label, View
from precad.dp.accountants.slack import least_with_slack


def account_of_bins(
    bins: int, multipliers: Mapping[View, float], participations: int, *, delta: float, slack: float
) -> dict[str, Any]:
    """Return both views' figures of a client that took part so often. multipliers: noise over one record, by view.

    Epochs count whole, as ledgers of tasks with `record_bins` charge them.
    Raises: ValueError naming a parameter outside its range.
    """

    def epsilon(multiplier: float) -> float:
        one = BinnedGaussian(bins, multiplier)
        return least_with_slack(lambda left: one.epsilon(participations, left), delta, slack)

    return {
        "bins": bins,
        "participations": participations,
        "epochs": -(-participations // bins),
        "label": Label.BOUND.value,
        **{view.value: plain(epsilon(multiplier)) for view, multiplier in multipliers.items()},
    }


def print_bins(console: Console, found: Mapping[str, Any], words: Mapping[str, str]) -> None:
    """Print the figures, and which tasks have them. words: for the views."""
    figures = ", ".join(f"{who} {shown(found[view], Label.BOUND)}" for view, who in words.items())
    console.print(
        f"each record in exactly one of {found['bins']} participations, whole epochs: {found['epochs']}: {figures}. "
        "Participations count, discarded or not. A task of client_rate 1 draws so with record_bins, by numbers of "
        "rounds",
        highlight=False,
    )
