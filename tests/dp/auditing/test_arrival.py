"""How uploads arrive: one that counts twice, or not at all, and false alarms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from precad.dp.auditing import arrival
from precad.dp.auditing.observed import Observed
from tests.dp.auditing.canaries import observed


def of_clients(seed: int, m: int = 1000, T: int = 20, n_clients: int = 4) -> Observed:
    return replace(observed(0.25, 1.0, m=m, T=T, seed=seed), clients=np.arange(m) % n_clients)


@pytest.mark.parametrize("factor", [2.0, 0.0])
def test_one_upload_of_80_that_counts_twice_or_not_is_found_in_32_of_40_runs(factor: float) -> None:
    """About 31 of its canaries are drawn, so its factor is told to 0.18: with power 90 % at this chance.

    Fewer than 32 are found in 1 of 100 tests. Canaries of a client are no piece of all here, so the parts find fewer.
    """
    found = 0
    for seed in range(40):
        seen = of_clients(seed)
        added = seen.contributions.copy()
        added[7, seen.clients == 2] *= factor
        lines = list(arrival.uneven(replace(seen, scores=seen.residuals + added), 0.001))
        found += any(line.endswith("in round 7 of audit client 2") for line in lines)
    assert found >= 32


@pytest.mark.parametrize(("m", "T"), [(96, 3), (200, 20), (12, 40)])
def test_uploads_that_arrive_are_accused_in_at_most_17_of_200_runs(m: int, T: int) -> None:
    """At 5 %, by the factor of all, by parts, and by clients."""
    found = 0
    for seed in range(200):
        seen = of_clients(3000 + seed, m, T)
        low, high = arrival.overall(seen, 0.05)
        found += not low <= 1 <= high or any(arrival.uneven(seen, 0.05))
    assert found <= 17
