"""Federated training in one process, for research: PRECAD's rounds, integer for integer, and what it is compared with.

Reading order: `simulation`, `algorithms.precad`, `two_servers`, `federation`.
"""

from clients.simulation.config import AttackSettings, SimulationSettings
from clients.simulation.guarantee import Guarantee
from clients.simulation.randomness import Randomness, SeededRandomness
from clients.simulation.simulation import Progress, RoundMetrics, Simulation, records_of

__all__ = [
    "AttackSettings",
    "Guarantee",
    "Progress",
    "Randomness",
    "RoundMetrics",
    "SeededRandomness",
    "Simulation",
    "SimulationSettings",
    "records_of",
]
