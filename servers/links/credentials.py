"""Credentials of an aggregator on its links: what it shows and trusts, as its files said last that could be used.

An operator replaces certificates, keys and pins while the server runs (`precad.protos.tls.renewable`). Connections
that stand go on; whatever connects from then on meets the new ones.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Self

from precad.mpc.sharing import Party
from precad.protos.tls.files import Pins, TlsMaterial, renewable, renewable_pins
from precad.protos.tls.identity import Role
from precad.protos.tls.renewable import LastGood
from precad.servers.config import AggregatorConfig, require_own_role
from precad.servers.links.lane import lane_context

ROLES: tuple[Role, Role] = (Role.AGGREGATOR_A, Role.AGGREGATOR_B)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials of one aggregator."""

    tls: LastGood[TlsMaterial]
    peer: LastGood[Pins]
    dealer: LastGood[Pins]
    lane: LastGood[ssl.SSLContext]

    @classmethod
    def read(cls, config: AggregatorConfig, party: Party) -> Self:
        """Every certificate that will be needed is there and fits. Raises: TlsFileError, TransportError."""
        require_own_role(config.tls, ROLES[party])
        return cls(
            renewable(config.tls),
            renewable_pins(config.peer_certificate, ROLES[1 - party]),
            renewable_pins(config.dealer_certificate, Role.DEALER),
            lane_context(party, config.tls, config.peer_certificate).renewable(),
        )
