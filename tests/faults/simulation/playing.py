"""Play a simulated task to its end, and compare what its servers hold on disk then."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from precad.servers.store import audit_log
from precad.servers.store.folder import store_path
from precad.servers.store.rounds import CommittedRound
from tests.faults.deployment import committed
from tests.faults.simulation.world import World
from tests.harness.pki import AGGREGATORS


class Playable(Protocol):
    """Run a whole task; raise what is found wrong."""

    def run(self) -> None: ...


P = TypeVar("P", bound=Playable)


def played(place: Path, make: Callable[[Path], P], assert_sound: Callable[[P], object] = lambda world: None) -> P:
    """Return a world whose task is over, made in a new folder, which is gone again. Raises what was found wrong."""
    folder = Path(tempfile.mkdtemp(dir=place))
    try:
        world = make(folder)
        world.run()
        assert_sound(world)
        return world
    finally:
        shutil.rmtree(folder)


def assert_as_seen(world: World) -> list[CommittedRound]:
    """Assert that both servers have on disk in the end what the oracle saw leave them. Return the rounds."""
    a, b = (committed(world.folder, world.task, role) for role in AGGREGATORS)
    assert [(r.number, r.chosen, r.accepted, r.rejected) for r in a] == [
        (r.number, r.chosen, r.accepted, r.rejected) for r in b
    ]
    assert len(a) == world.task.rounds
    rounds = {round.number: round for round in a}
    assert all(rounds.keys() == world.oracle.commits[role].keys() for role in AGGREGATORS)
    expected = world.oracle.in_the_clear(rounds)
    for role in AGGREGATORS:
        assert np.load(world.folder / role / "model.npy").tobytes() == expected.tobytes()
    logs = [audit_log.read(store_path(world.folder / role)) for role in AGGREGATORS]
    assert audit_log.compare(*logs) == world.task.rounds
    return a
