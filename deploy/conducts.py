"""Build each client's conduct: the protocol, or the attack that an experiment's configuration names for the client."""

from __future__ import annotations

from collections.abc import Iterable

from precad.clients.config import ClientConfig
from precad.clients.training.conduct import Conduct, Honest
from precad.deploy.errors import ConfigError


def conducts_of(clients: Iterable[str], config: ClientConfig) -> dict[str, Conduct]:
    """Return the conduct of each client, in order. Import `precad.clients.attacks` only if the configuration names an
    attack.

    Raises ConfigError if it does and this installation holds no attacks, as in a production image.
    """
    return {client: _conduct(client, config.attacks.get(client, "none")) for client in clients}


def _conduct(client: str, kind: str) -> Conduct:
    if kind == "none":
        return Honest()
    try:
        from precad.clients.attacks import ATTACKS
    except ImportError as error:
        if error.name != "precad.clients.attacks":  # they are here, and something that they need is not
            raise
        raise ConfigError(
            f"client.attacks.{client}: expected 'none', as this installation holds no attacks "
            f"(precad.clients.attacks), found {kind!r}"
        ) from None
    return ATTACKS[kind]()
