"""Look before a run writes anything whether this machine, and its clients' holders, have what it needs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from precad.clients.errors import HolderLimitReachedError
from precad.clients.payments import payments_of
from precad.deploy.conducts import wanted_of
from precad.deploy.configuration.check_holder import room_of
from precad.deploy.configuration.local import draft, resolve
from precad.deploy.configuration.sections import Deployment, Network
from precad.deploy.errors import ConfigError
from precad.deploy.run_files.folder import RunFolder
from precad.mpc.local.engines import make_engine
from precad.protos.tls.address import require_free
from precad.protos.tls.files import TransportError
from precad.protos.tls.identity import Role
from precad.servers.errors import SetupError
from precad.servers.rounds import memory
from precad.servers.rounds.dealt_form import require_set
from precad.servers.rounds.sum_function import require_function

_NOWHERE: Final = Path("/nowhere")


def require_engines_and_memory(deployment: Deployment) -> None:
    """Raise EngineUnavailableError or ConfigError unless this machine has what both aggregators need."""
    both = deployment.aggregator
    try:
        require_set(deployment.task)
    except SetupError as error:
        raise ConfigError(str(error)) from None
    for letter, role, server in (("a", Role.AGGREGATOR_A, both.a), ("b", Role.AGGREGATOR_B, both.b)):
        assert server is not None  # resolve() supplied it
        make_engine(server.engine)  # raises where this machine cannot run it
        try:
            require_function(deployment.task, server)
            memory.of_server(server, deployment.task, role)
        except SetupError as error:
            raise ConfigError(f"aggregator.{letter}.{error}") from None


def require_startable(raw: Mapping[str, Any]) -> None:
    """Raise what a run of this configuration raises before it starts a process. Starts and writes nothing.

    It asks for the task, the records, the attackers' aim, the engines and the memory.
    """
    folder, searched = RunFolder(_NOWHERE), [*sys.path]
    try:
        draft(raw, folder)
        _, deployment, split = resolve(raw, folder)
        assert deployment.client is not None  # resolve() supplied it
        wanted_of(deployment.client, deployment.task, split.test)
        require_engines_and_memory(deployment)
    finally:
        sys.path[:] = searched  # folders with modules of a user's own join it for good


def require_free_ports(network: Network) -> None:
    """Raise ConfigError unless every address of the network is free on this machine."""
    for name in ("aggregator_a", "aggregator_b", "dealer"):
        if (address := getattr(network, name)) is None:
            continue
        try:
            require_free(address)
        except TransportError as error:
            raise ConfigError(f"network.{name}: {str(error).removeprefix('address: ')}") from None


def require_room(deployment: Deployment) -> None:
    """Raise HolderLimitReachedError, ArgumentError where a client could not pay its first upload."""
    assert deployment.client is not None  # resolve() supplied it
    task = deployment.task
    for payments in payments_of(task, task.clients, deployment.client.holder).values():
        payments.require_room()


def remark_on_room(deployment: Deployment) -> str:
    """Say which clients' holders have no room for all rounds that they can be in; nothing where all have.

    Such a client takes part until then. The task goes on without it. Raises: ArgumentError, StateFileError.
    """
    assert deployment.client is not None  # resolve() supplied it
    task, short = deployment.task, []
    n_owed = -(-task.rounds_of_a_client // (task.record_bins or 1))
    for client, payments in payments_of(task, task.clients, deployment.client.holder).items():
        try:
            payments.for_rounds(n_owed, task.name).require_room()
        except HolderLimitReachedError:
            short.append(client)
    if not short:
        return ""
    room = room_of(task, deployment.client, short[:1])[short[0]]
    others = f", and {len(short) - 1} others likewise" if short[1:] else ""
    return f"client.holder: {short[0]} has {room}{others}; the task goes on without clients that reach their limit"


def require_trainer(deployment: Deployment) -> None:
    """Raise TrainerError where the first client's foreign trainer does not load as it will at its start."""
    if deployment.client is not None and deployment.client.trainer is not None:
        from precad.clients.external.training import tried_out

        tried_out(deployment.task, deployment.client, next(iter(deployment.task.clients)))
