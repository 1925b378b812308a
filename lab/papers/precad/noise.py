"""`precad experiment precad-noise`: the noise column of PRECAD's Table 1, measured.

At the same epsilon of a record, how much noise is in the sum? One round of each algorithm runs with m clients in it.
The noise is what the model moved by, less what the sum of the same updates without noise moves it by. Its unit is sigma
R. The table prints sqrt(2) for PRECAD, whose epsilon against one server is meant, and 1 for central DP. It prints
sqrt(m) for local and sqrt(m / tau) for distributed DP. Its n is called m here: the clients of the round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from rich.console import Console

from precad.deploy.shown.tables import titled
from precad.lab.simulation import Simulation, simulate

CLIENTS: Final = 64
TAU: Final = 16


@dataclass(frozen=True, slots=True)
class Row:
    """One line of Table 1."""

    words: str
    simulation: Mapping[str, Any]
    printed: str
    formula: Callable[[int], float]
    """Noise as a function of m, in units of sigma R."""
    trusts: str


_FREE: Final = {"client_clipping": False}
ROWS: Final = (
    Row("central DP", {"algorithm": "central-record-dp", **_FREE}, "1", lambda m: 1.0, "the server"),
    Row("local DP", {"algorithm": "local-dp", **_FREE}, "sqrt(m)", math.sqrt, "nobody"),
    Row(
        "distributed DP",
        {"algorithm": "distributed-dp", "non_colluding": TAU, **_FREE},
        "sqrt(m / tau)",
        lambda m: math.sqrt(m / TAU),
        f"tau = {TAU} clients of every round",
    ),
    Row("PRECAD", {"validation": False, **_FREE}, "sqrt(2)", lambda m: math.sqrt(2), "one server of two"),
)


def precad_noise(*, seed: int = 0) -> dict[str, Any]:
    """Return a line for each algorithm: noise by the formula, noise measured, the guarantee of that round."""
    rows = []
    for row in ROWS:
        simulation = simulate.resolve(_config(row)).simulation(seed)
        std, m = _noise(simulation)
        (guarantee, *_) = simulation.guarantees()
        rows.append(
            {
                "algorithm": row.words,
                "trusts": row.trusts,
                "printed": row.printed,
                "clients_in_round": m,
                "formula": row.formula(m),
                "measured": std,
                "epsilon_of_the_round": guarantee.epsilon,
                "guarantee": str(guarantee),
            }
        )
    return {
        "experiment": "precad-noise",
        "seeds": 1,
        "first_seed": seed,
        "tau": TAU,
        "dim": simulation.task.dim,
        "rows": rows,
    }


def _config(row: Row) -> dict[str, Any]:
    """Return the configuration: the bundled digits, and everybody is in the round."""
    return {
        "task": {
            "name": "noise",
            "clients": CLIENTS,
            "rounds": 1,
            "client_rate": 1.0,
            "record_rate": 0.2,
            "record_clip": 1.0,
            "client_clip": 8.0,
            "noise_multiplier": 1.0,
            "learning_rate": 1.0,
        },
        "simulation": {**row.simulation},
    }


def _noise(simulation: Simulation) -> tuple[float, int]:
    """Return standard deviation of a coordinate over sigma R, from one round, and how many clients were in it."""
    task, federation = simulation.task, simulation.federation
    before = simulation.progress.parameters.astype(np.float64)
    chosen = federation.randomness.chosen(0, sorted(task.clients), task.client_rate)
    exact = federation.gradients(
        0, simulation.progress.parameters, chosen, clip=federation.record_clip(), bound=math.inf
    )
    simulation.run_round()
    moved = (simulation.progress.parameters.astype(np.float64) - before) * task.divisor / task.learning_rate
    noise = moved - sum(exact.values())
    return float(np.std(noise)) / (task.noise_multiplier * task.record_clip), len(chosen)


def print_report(console: Console, report: Mapping[str, Any]) -> None:
    """Print the report for people."""
    title, words = "PRECAD, Table 1: noise in the sum at equal epsilon, in units of sigma R", ("algorithm", "trusts")
    table = titled(title, *words, "printed", "formula", "measured", words=words)
    for row in report["rows"]:
        table.add_row(
            row["algorithm"], row["trusts"], row["printed"], f"{row['formula']:.3f}", f"{row['measured']:.3f}"
        )
    console.print(table, highlight=False)
    m = report["rows"][0]["clients_in_round"]
    console.print(f"m = {m} clients in the round, tau = {report['tau']}, {report['dim']} coordinates", highlight=False)
    for row in report["rows"]:
        console.print(f"{row['algorithm']}: {row['guarantee']}", highlight=False, markup=False)
