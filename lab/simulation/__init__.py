"""Federated training in one process, for research: PRECAD's rounds, and what they are compared with.

    simulate         the same task in one process, for many seeds
    apps             clients given as objects, with records and a model of their own
    app_digests      digests of their records and code, by which a folder is continued with the same only
    progress         how far they are
    shown            what came out
    workers          trainings side by side
    config           What the operator of a simulation configures
    earlier          finished tasks of the same clients that servers' ledgers would count
    evaluations      Evaluations by clients, as in a deployment
    federation       The clients of a simulation
    holder_charge    what a training pays from holders' own ledgers, before it begins
    kept             the folder, held by one process, and what it keeps of each seed to go on from
    holder_key       the secret of a run folder that draws follow from, where holders pay
    guarantee        What an algorithm guarantees, to whom, against whom
    randomness       Where a simulation's draws come from: a seed, which protects nobody, or a secret key
    reported         Reads the folder of `precad simulate` for a report, and draws participation again for
                     epsilon by round. It belongs to the laboratory and joins by an entry point
    training         A whole training in one process: rounds of one algorithm on virtual clients, from a seed
    two_servers      Algorithm 1, lines 4 and 5, in one process
    attackers        attackers that see every honest update
    update_clipping  How a trusted server bounds whole updates, and what that costs
    algorithms/      The training algorithms that a simulation knows
    rules/           Aggregation rules of one server that sees every update, for comparison with PRECAD. One
                     idea a file

Reading order: `training`, `algorithms.precad`, `two_servers`, `federation`.
"""

from precad.lab.simulation.config import AttackSettings, SimulationSettings
from precad.lab.simulation.guarantee import Guarantee
from precad.lab.simulation.randomness import SeededRandomness, Sources
from precad.lab.simulation.training import Progress, RoundMetrics, Simulation, records_of

__all__ = [
    "AttackSettings",
    "Guarantee",
    "Progress",
    "RoundMetrics",
    "SeededRandomness",
    "Simulation",
    "SimulationSettings",
    "Sources",
    "records_of",
]
