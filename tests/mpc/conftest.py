"""Shared fixtures of several files: the gates, of which CrypTen's takes a second to load."""

import pytest

from precad.mpc.gate.top_bits import Gate
from precad.mpc.gate_names import make_gate


@pytest.fixture(scope="session", params=["crypten", "native"])
def gate(request) -> Gate:
    """Each gate in turn: what a test promises, it promises for both."""
    return make_gate(request.param)
