"""Epsilon by round of a simulation, which writes down only the last one.

The draw of clients for a round follows from the seed. Participation can therefore be drawn again, by the simulation's
own function. The algorithm can then be asked for its guarantees after any number of rounds. The last must be what the
summary says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from precad.clients.errors import ArgumentError, MissingDataError
from precad.deploy.configuration.sections import read_toml
from precad.deploy.errors import ConfigError
from precad.deploy.reporting.runs import Run, Statement, Trained, names_own
from precad.lab.simulation import SeededRandomness, Simulation
from precad.lab.simulation.simulate import resolve

POINTS: Final = 24
"""Rounds at which epsilon is computed, the last one among them."""
_TOLERANCE: Final = 1e-6
"""Relative: what another release of a numerical library may change."""


def with_epsilon_by_round(run: Run) -> Run:
    """Return the run, its statements with their curves where the configuration can be simulated here; else with a note.

    Raises ConfigError where the summary's epsilons are not those of its configuration and seeds.
    """
    if (what := names_own(run)) is not None:
        return _noted(run, f"its configuration names {what}")
    try:
        simulation = resolve(_offline(read_toml(run.folder / "config.toml"))).simulation(0)
    except MissingDataError:
        return _noted(run, f"its data set, {run.client.dataset}, is not on this machine")
    except ArgumentError as error:  # a device that is not here, for one
        return _noted(run, str(error))
    wanted = _some(max(len(trained.rounds) for trained in run.trainings))
    by_seed = [_epsilons(simulation, trained, wanted) for trained in run.trainings]
    return replace(run, statements=tuple(_with_curve(run, i, wanted, by_seed) for i in range(len(run.statements))))


def _offline(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration without leave to download its data set: a report asks nobody for anything."""
    return raw | {"client": {**raw.get("client", {}), "download": False}}


def _noted(run: Run, why: str) -> Run:
    return replace(run, notes=(*run.notes, f"Epsilon by round is not drawn: {why}."))


def _epsilons(simulation: Simulation, trained: Trained, wanted: Sequence[int]) -> list[list[float | None]]:
    """Return epsilon of each guarantee of one seed after each wanted number of rounds; after its end, as at its end."""
    assert trained.seed is not None  # of a simulation
    randomness, task = SeededRandomness(trained.seed), simulation.task
    ids, participation, drawn = sorted(task.clients), Counter[str](), 0
    found: list[list[float | None]] = []
    for rounds in wanted:
        done = min(rounds, len(trained.rounds))
        for t in range(drawn, done):
            participation.update(randomness.chosen(t, ids, task.client_rate))
        drawn = done
        found.append([guarantee.epsilon for guarantee in simulation.algorithm.guarantees(done, participation)])
    return found


def _some(n: int) -> list[int]:
    """Return at most POINTS of 1 .. n, evenly spread, with the last one."""
    return sorted({round(n * i / min(n, POINTS)) for i in range(1, min(n, POINTS) + 1)})


def _with_curve(
    run: Run, i: int, wanted: Sequence[int], by_seed: Sequence[Sequence[Sequence[float | None]]]
) -> Statement:
    """Return statement i with the largest epsilon of all seeds by round. Raises ConfigError."""
    statement, by_round = run.statements[i], list[tuple[int, float]]()
    for at, rounds in enumerate(wanted):
        known = [epsilon for seed in by_seed if (epsilon := seed[at][i] if i < len(seed[at]) else None) is not None]
        if known:
            by_round.append((rounds, max(known)))
    last = by_round[-1][1] if by_round else None
    stated = statement.epsilon if statement.realised is None else statement.realised
    if wanted and not _is_close(last, stated):
        raise ConfigError(
            f"{run.folder}: epsilon against {statement.against:.60}: expected {last!r}, as its configuration and seeds "
            f"say, found {stated!r}"
        )
    return replace(statement, by_round=tuple(by_round))


def _is_close(a: float | None, b: float | None) -> bool:
    return a == b or (a is not None and b is not None and abs(a - b) <= _TOLERANCE * max(a, b))
