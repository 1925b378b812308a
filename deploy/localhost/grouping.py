"""Decide which clients of a run share a process."""

from __future__ import annotations

from collections.abc import Sequence

from precad.deploy.configuration.sections import Deployment


def client_groups(deployment: Deployment) -> list[list[str]]:
    """Return the clients of each process: no attacker shares one with an honest client."""
    attacking = frozenset[str]() if deployment.client is None else deployment.client.attackers
    honest = [client for client in deployment.task.clients if client not in attacking]
    attackers = [client for client in deployment.task.clients if client in attacking]
    sizes = deployment.localhost
    of_attackers = sizes.attackers_per_process or sizes.clients_per_process
    return [*_cut(honest, sizes.clients_per_process), *_cut(attackers, of_attackers)]


def _cut(clients: Sequence[str], size: int) -> list[list[str]]:
    return [list(clients[start : start + size]) for start in range(0, len(clients), size)]
