"""Lets every process of a deployment draw from one seed, for tests/integration/test_three_places.py.

Python imports this file at its start when the folder is on PYTHONPATH. Commands, configurations and wire stay as they
are. Two draws decide a model if every client is in every round: records, at clients, and noise, at servers. Both are
those of a simulation with the seed $PRECAD_SEED. Joint coins, masks, tuples and keys stay the operating system's.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

SEED = int(os.environ["PRECAD_SEED"])


def seed_clients(module: ModuleType) -> None:
    """Let a trainer draw the records of a client's n-th update as a simulation does for round n."""
    from precad.lab.simulation.randomness import SeededRandomness

    draws = SeededRandomness(SEED)

    class Trainer(module.Trainer):  # type: ignore[misc, name-defined]
        """Train client by client, each with draws of its own."""

        def __init__(self, **given: Any) -> None:
            self._n_updates: Counter[str] = Counter()
            super().__init__(**given)

        def _updates(self, batch: Sequence[Any]) -> list[Any]:
            return [self._own_update(request) for request in batch]

        def _own_update(self, request: Any) -> Any:
            self._random_bytes = draws.records(self._n_updates[request.client], request.client)
            self._n_updates[request.client] += 1
            (update,) = super()._updates([request])
            return update

    module.Trainer = Trainer  # type: ignore[attr-defined]


def seed_servers(module: ModuleType) -> None:
    """Let an aggregator add the noise of a simulation."""
    from precad.servers.rounds.equipment import Randomness
    from tests.harness.seeded_servers import SeededNoise

    class Aggregator(module.Aggregator):  # type: ignore[misc, name-defined]
        """Serve with that noise."""

        def __init__(self, **given: Any) -> None:
            noise = SeededNoise(SEED, given["party"]).noise
            super().__init__(**given, randomness=Randomness(noise=noise))

    module.Aggregator = Aggregator  # type: ignore[attr-defined]


CHANGES = {"precad.clients.process": seed_clients, "precad.servers.aggregator": seed_servers}


class Seeding(MetaPathFinder):
    """Change these modules as soon as they are imported, and import nothing earlier than their process does."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find one of these modules, as Python does, and have it changed."""
        if name not in CHANGES or (spec := PathFinder.find_spec(name, path, target)) is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def changed(module: ModuleType) -> None:
            execute(module)
            CHANGES[name](module)

        spec.loader.exec_module = changed  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Seeding())
