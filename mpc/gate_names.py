"""The comparison gates, by the name that a configuration gives.

`crypten` runs CrypTen's circuit and is the default, the paper's choice. `native` is ours: stateless, without torch, in
two rounds instead of seven and a fifth of the traffic. Their carries are equal bit for bit, and what follows them is
common to both (`precad.mpc.gate.top_bits`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from precad.mpc.crypten.crypten_gate import CryptenGate
from precad.mpc.crypten.lookups import require_crypten
from precad.mpc.errors import GateUnavailableError
from precad.mpc.gate.native_gate import CarryGate
from precad.mpc.gate.top_bits import Gate

GATES: Mapping[str, Callable[[], Gate]] = {CryptenGate.name: CryptenGate, CarryGate.name: CarryGate}


def require_gate(name: str) -> None:
    """Raises GateUnavailableError when something that the gate needs is not installed. Loads nothing."""
    if name == CryptenGate.name:
        require_crypten()


def usual_gate() -> str:
    """Return the gate of a run that names none: the default, or `native` where CrypTen is not installed."""
    try:
        require_crypten()
    except GateUnavailableError:
        return CarryGate.name
    return CryptenGate.name


def make_gate(name: str) -> Gate:
    """Return the gate that a configuration names. Raises GateUnavailableError."""
    return GATES[name]()
