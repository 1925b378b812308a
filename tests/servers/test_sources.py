"""Tell sources of connections apart."""

from __future__ import annotations

import pytest

from precad.servers.sources import source_of


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::9", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("fe80::1%eth0", "fe80::2", True),
    ],
)
def test_a_source_is_an_ipv4_address_or_a_network_of_ipv6(one: str, other: str, is_same: bool) -> None:
    assert (source_of(one) == source_of(other)) is is_same


@pytest.mark.parametrize("host", [None, "", "localhost", "192.0.2.1:80", "/run/socket"])
def test_what_is_no_address_is_no_source(host: str | None) -> None:
    assert source_of(host) == ""
