"""Post-quantum key exchange: the group by which a connection's keys were agreed, and its refusal.

Whoever records traffic today may break elliptic curves later. A hybrid group stays closed unless X25519 and ML-KEM are
both broken. gRPC offers it and shows a server the group of each call's connection. It shows a client none, so a client
has the server's word for it (`GROUP_HINT`), over a connection that both have authenticated. Certificates are signed by
elliptic curves: this is no help against somebody who breaks those while the task runs.
"""

from __future__ import annotations

from precad.protos.tls.identity import AuthenticatedCall, IdentityError

HYBRID_GROUP = "X25519MLKEM768"
"""The hybrid group of TLS 1.3 that gRPC's library knows, by its name there."""
GROUP_HINT = "precad-key-exchange"
"""The trailer in which a server names the group to whoever asks for a method that it lacks."""


class KeyExchangeRefusedError(IdentityError):
    """The peer proved who it is, over a connection whose keys no post-quantum exchange protects."""

    def __init__(self, found: str) -> None:
        super().__init__(f"require_pqc: expected a connection with the group {HYBRID_GROUP}, found {found or 'none'}")


def negotiated_group(context: AuthenticatedCall) -> str:
    """Return the name of the group of the call's connection; empty where gRPC names none."""
    names = tuple(context.auth_context().get("ssl_negotiated_key_exchange_group", ()))
    return bytes(names[0]).decode("ascii", "replace") if len(names) == 1 else ""


def require_hybrid(context: AuthenticatedCall) -> None:
    """Refuse a call whose connection was not opened with the hybrid group. Raises: KeyExchangeRefusedError."""
    if (found := negotiated_group(context)) != HYBRID_GROUP:
        raise KeyExchangeRefusedError(found)
