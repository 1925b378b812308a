"""Build each client's conduct: the protocol, an audit client's, or the attack that a configuration names for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from precad.clients.config import Attacking, ClientConfig
from precad.clients.errors import ArgumentError
from precad.clients.training.conduct import Conduct, Honest
from precad.deploy.errors import ConfigError
from precad.protos.task.task import Task

if TYPE_CHECKING:
    from precad.clients.attacks import Attack
    from precad.clients.attacks.shared_folder import Colluders
    from precad.clients.records.records import Records

HOARDING: Final = ("semantic-backdoor",)
"""Attacks for which honest clients have other records, so that processes of honest clients load them, too."""
NO_ATTACK: Final = Attacking(kind="none")
_PATIENCE: Final = 0.5
"""Share of `task.submit_timeout_s` that a colluder waits for the others' updates."""


def conducts_of(clients: Iterable[str], config: ClientConfig, task: Task) -> dict[str, Conduct]:
    """Return the conduct of each client, in order. Import `precad.clients.attacks` only if one of these clients has an
    attack, or another client one of `HOARDING`.

    Raises ConfigError if it does and this installation holds no attacks, as in a production image, or if a deployment
    cannot have the attack.
    """
    ours = list(clients)
    auditing = _audit_conducts(ours, config, task)
    for client in (*task.audit_clients, *task.real_audit_clients):
        if (found := config.attacks.get(client, NO_ATTACK)) != NO_ATTACK:
            raise ConfigError(f"client.attacks.{client}: expected none of an audit client, found {found.kind!r}")
    others = _others_conducts([client for client in ours if client not in auditing], config, task)
    return {client: auditing[client] if client in auditing else others[client] for client in ours}


def _audit_conducts(clients: list[str], config: ClientConfig, task: Task) -> dict[str, Conduct]:
    """Return the conduct of each of these clients that audits. Without one, PyTorch is not imported for it."""
    if not (ours := [c for c in clients if c in task.audit_clients or c in task.real_audit_clients]):
        return {}
    from precad.clients.auditing.conduct import Auditing
    from precad.clients.auditing.real_conduct import RealAuditing

    kinds = {client: Auditing if client in task.audit_clients else RealAuditing for client in ours}
    return {client: kind(client, task, config.state_dir) for client, kind in kinds.items()}


def _others_conducts(clients: list[str], config: ClientConfig, task: Task) -> dict[str, Conduct]:
    """Return the conduct of each client that does not audit. Raises ConfigError as `conducts_of`."""
    kinds = {client: attacking.kind for client, attacking in config.attacks.items()}
    own = [client for client in clients if kinds.get(client, "none") != "none"]
    if not own and not set(HOARDING).intersection(kinds.values()):
        return {client: Honest() for client in clients}
    if not own:  # of other clients' attacks only what takes records from honest ones
        hoarding = {client: attacking for client, attacking in config.attacks.items() if attacking.kind in HOARDING}
        config = config.model_copy(update={"attacks": hoarding})
    attacks = attacks_of(config, own, task)
    from precad.clients.attacks.deployed import InDeployment, Robbed, hoarders_of

    hoarders, n = hoarders_of(attacks), sum(not attack.follows_protocol for attack in attacks.values())
    honest: Conduct = Robbed(hoarders) if hoarders else Honest()
    return {
        client: InDeployment(attacks[client], client, task, n, _colluders(client, attacks, config, task))
        if client in attacks
        else honest
        for client in clients
    }


def attacks_of(config: ClientConfig, clients: Iterable[str], task: Task) -> Mapping[str, Attack]:
    """Return the attack of each client that has one. Raises ConfigError as `conducts_of`, which names one of
    `clients` where there are no attacks."""
    named = {client: kind for client, attacking in config.attacks.items() if (kind := str(attacking.kind)) != "none"}
    if not named:
        return {}
    try:
        import precad.clients.attacks  # noqa: F401 (whether there are any)
        from precad.clients.attacks.named import attacks_of as made_of
    except ImportError as error:
        if error.name != "precad.clients.attacks":  # they are here, and something that they need is not
            raise
        client = next((client for client in clients if client in named), next(iter(named)))
        raise ConfigError(
            f"client.attacks.{client}: expected 'none', as this installation holds no attacks "
            f"(precad.clients.attacks), found {named[client]!r}"
        ) from None
    config.look_around()
    try:
        attacks = made_of(config)
    except ArgumentError as error:
        raise ConfigError(str(error)) from None
    for client, attack in attacks.items():
        if (why := refusal(attack, named[client], config, task)) is not None:
            raise ConfigError(f"client.attacks.{client}: {why}")
    return attacks


def refusal(attack: Attack, kind: str, config: ClientConfig, task: Task) -> str | None:
    """Say why a deployment of this task cannot have an attack: expected and found; None where it can."""
    from precad.clients.attacks.attack import hoards

    how = ": sees = 'colluders' shows it the attackers' own" if attack.needs_company else ""
    wanted = (
        (attack.is_omniscient, f"an attack without other clients' updates, which a deployment hands to nobody{how}"),
        (attack.needs_proofs and not task.is_proved, f"an attack of mode {task.mode!r}, not of mode 'proved' only"),
        (
            attack.needs_company and config.colluders is None,
            "client.colluders, the folder that attackers share, beside this attack",
        ),
        (
            hoards(attack) and kind not in HOARDING,
            f"one of {', '.join(map(repr, HOARDING))} or an attack that hoards no records, as processes of honest "
            "clients load no other",
        ),
    )
    return next((f"expected {what}, found {kind!r}" for is_refused, what in wanted if is_refused), None)


def wanted_of(config: ClientConfig, task: Task, test: Records) -> Records | None:
    """Return the records on which the attackers' success is measured; None where nobody aims at any, or labels are no
    classes.

    Raises ConfigError where the test records show no success.
    """
    attacks = attacks_of(config, (), task)
    if not attacks or test.labels.ndim != 1 or test.labels.dtype.kind != "i":
        return None
    from precad.clients.attacks import named

    try:
        return named.wanted_of(attacks, test)
    except ArgumentError as error:
        raise ConfigError(f"client.attacks: {error}") from None


def needs_folder(config: ClientConfig) -> bool:
    """Return whether an attack of a local run needs a folder to share. False where this installation holds none."""
    if all(attacking.kind == "none" for attacking in config.attacks.values()):
        return False
    try:
        from precad.clients.attacks.named import attacks_of as made_of
    except ImportError:
        return False  # which `conducts_of` refuses
    config.look_around()
    try:
        return any(attack.needs_company for attack in made_of(config).values())
    except ArgumentError as error:
        raise ConfigError(str(error)) from None


def _colluders(client: str, attacks: Mapping[str, Attack], config: ClientConfig, task: Task) -> Colluders | None:
    """Return the folder as this client uses it. Those collude whose upload depends on the others."""
    from precad.clients.attacks.attack import crafts
    from precad.clients.attacks.shared_folder import Colluders

    if config.colluders is None or not crafts(attacks[client]):
        return None
    others = [name for name, one in attacks.items() if name != client and crafts(one)]
    return Colluders(config.colluders, client, others, task.dim, _PATIENCE * task.submit_timeout_s)
