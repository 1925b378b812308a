"""Which noise reaches a wish: k attackers tolerated, at epsilon <= e, in a given training.

More noise helps both, so there is a least sigma for each, and the larger of the two reaches the wish. What noise costs
is accuracy; `noise_to_signal` says how much of it is left, before anybody trains.
"""

import math
from dataclasses import dataclass
from typing import Final

from dp.accounting import PldAccountant, SampledGaussian
from dp.calibration import smallest_noise_multiplier
from dp.certified_prediction import Threat, Training, is_certified
from dp.checks import require_count, require_positive, require_probability

LEAST_MULTIPLIER: Final = 0.25
"""Where the search for attackers starts: less noise is not looked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What is fixed: rates of clients and of their records, rounds, data, clips."""

    q: float
    p: float
    rounds: int
    n_records: int
    """Of all clients together, as declared."""
    record_clip: float
    client_clip: float
    delta: float

    def __post_init__(self) -> None:
        require_probability("q", self.q)
        require_probability("p", self.p)
        require_count("rounds", self.rounds, at_least=1)
        require_count("n_records", self.n_records, at_least=1)
        require_positive("record_clip", self.record_clip)
        require_positive("client_clip", self.client_clip)


@dataclass(frozen=True, slots=True)
class Plan:
    """The least sigma for the wish, which of the two asked for it, and what is left of the signal."""

    sigma: float
    decided_by: str
    noise_to_signal: float
    """Standard deviation of the noise of both servers, per coordinate, over the expected number of records times R."""


def least_multiplier_for_attackers(k: int, FA: float, FB: float, q: float, rounds: int, threat: Threat) -> float | None:
    """The least noise over an attacking unit's clip, to 1e-3 from above, with which a prediction survives k of them.

    None if there is none up to 10^4, or the lead is none; LEAST_MULTIPLIER if that suffices. Exact method, a bound.
    """
    require_count("k", k)
    if not FA > FB:
        return None

    def survives(multiplier: float) -> bool:
        return is_certified(FA, FB, k, Training(SampledGaussian(q, multiplier), rounds), threat)

    low = high = LEAST_MULTIPLIER
    while not survives(high):
        if high > 1e4:
            return None
        low, high = high, 2 * high
    while high > low * (1 + 1e-3):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if survives(middle) else (middle, high)
    return high


def least_sigma_for_attackers(k: int, FA: float, FB: float, task: Task, threat: Threat) -> float | None:
    """The same as a server's sigma. Against clients only: both servers' noise counts, sqrt(2) sigma R over C."""
    multiplier = least_multiplier_for_attackers(k, FA, FB, task.q, task.rounds, threat)
    return None if multiplier is None else multiplier * task.client_clip / (math.sqrt(2) * task.record_clip)


def plan(k: int, epsilon: float, FA: float, FB: float, task: Task, threat: Threat = Threat.ADD) -> Plan | None:
    """The least sigma that tolerates k attackers at that lead, with epsilon against one server; None if none does.

    epsilon is for a record of a client that takes part in the expected number of rounds.
    """
    for_attackers = least_sigma_for_attackers(k, FA, FB, task, threat)
    if for_attackers is None:
        return None
    for_epsilon = smallest_noise_multiplier(
        epsilon,
        lambda sigma: SampledGaussian(task.p, sigma),
        math.ceil(task.q * task.rounds),
        task.delta,
        PldAccountant(),
    )
    sigma = max(for_attackers, for_epsilon)
    expected_records = task.q * task.p * task.n_records
    noise_to_signal = math.sqrt(2) * sigma / expected_records if expected_records > 0 else math.inf
    return Plan(sigma, "attackers" if for_attackers > for_epsilon else "epsilon", noise_to_signal)


def frontier(
    ks: list[int], epsilon: float, FA: float, FB: float, task: Task, threat: Threat = Threat.ADD
) -> dict[int, Plan | None]:
    """The plan for each number of attackers."""
    return {k: plan(k, epsilon, FA, FB, task, threat) for k in ks}
