"""Addresses of links: HOST:PORT, read in one way, and whether one is free to listen on.

Nothing here imports gRPC, which whoever only reads a configuration does not wait for.
"""

from __future__ import annotations

import errno
import ipaddress
import re
import socket

from precad.protos.tls.files import TransportError

_ADDRESS = re.compile(r"(?:([A-Za-z0-9._-]+)|\[([0-9A-Fa-f:.]+)]):([0-9]{1,5})")


def split_address(address: str) -> tuple[str, int]:
    """Return host and port. gRPC reads more into an address (default ports, ports modulo 2^16, schemes); we refuse it.

    Raises: TransportError.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match[3]) > 65535:
        raise TransportError(f"address: expected HOST:PORT or [IPV6]:PORT with a port up to 65535, found {address!r}")
    return match[1] or match[2], int(match[3])


def is_loopback(address: str) -> bool:
    """Return whether nobody outside this machine reaches what listens at HOST:PORT.

    A name other than localhost may be anything. Raises: TransportError.
    """
    host, _ = split_address(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def with_port(address: str, port: int) -> str:
    """Return the address of the same host with another port."""
    return f"{address.rpartition(':')[0]}:{port}"


def require_free(address: str) -> None:
    """Require that no other process listens on any address that the name stands for. Raises TransportError.

    gRPC itself goes on when one of several is taken: localhost may be 127.0.0.1, in use, and ::1, free.
    """
    host, port = split_address(address)
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise TransportError(f"address: expected a host to listen on, found {address}: {error.strerror}") from None
    refusals = []
    for family, kind, protocol, _, endpoint in resolved:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(endpoint)
        except OSError as error:
            refusals.append(error)
    in_use = [error for error in refusals if error.errno == errno.EADDRINUSE]
    if in_use or len(refusals) == len(resolved):
        reason = (in_use or refusals)[0].strerror
        raise TransportError(f"address: expected a free one to listen on, found {address}: {reason}")
