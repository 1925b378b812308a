"""Draw what canaries of the mechanism in the clear look like, with faults if asked for."""

from __future__ import annotations

import numpy as np

from precad.dp.auditing.observed import Observed


def observed(
    rate: float,
    noise: float,
    *,
    m: int,
    T: int,
    seed: int,
    drawn_at: float | None = None,
    weight: float = 1.0,
    std: float | None = None,
) -> Observed:
    """Scores of m canaries in T rounds. drawn_at, weight and std: what happens in place of rate, 1 and noise."""
    draws = np.random.default_rng(seed)
    coins = draws.random(m) < 0.5
    is_drawn = (draws.random((T, m)) < (rate if drawn_at is None else drawn_at)) & coins
    contributions = weight * is_drawn.astype(np.float64)
    scores = contributions + draws.normal(0.0, noise if std is None else std, (T, m))
    return Observed(scores, contributions, np.ones((T, m), dtype=np.bool_), coins)
