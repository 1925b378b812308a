"""Sources of connections and requests: whose count together where nobody is known by more than an address."""

from __future__ import annotations

import ipaddress
from typing import Final

PREFIX_BITS_IPV6: Final = 64
"""Bits of an address that name its source: what one network has at its disposal is one source."""


def source_of(host: str | None) -> str:
    """Return what counts as one source: an IPv4 address, also within IPv6, or an IPv6 network of 64 bits.

    Empty for what is no address.
    """
    try:
        address = ipaddress.ip_address((host or "").partition("%")[0])
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, PREFIX_BITS_IPV6), strict=False))
