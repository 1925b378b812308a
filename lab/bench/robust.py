"""`precad bench robust`: robust sums on shares, beside the check of norms that every round has.

All are run as `precad.lab.bench.validation` runs the check: two processes over loopback gRPC with mutual TLS, on fresh
tuples. `native` is the plain check; `tested` ends with the opened margin, and `trimmed` with the share of the sum
without a quarter of the clients. `krum` ends with that of multi-Krum, without a quarter of them. Ranks of norms take a
word per pair of clients, Krum's one for each two distances of a client. For all but `native`, the dealer sends
8d bytes per client. `ms` are of a whole round, and `bytes_link` of the direction that carries more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from precad.lab.bench import machine, server_pair
from precad.lab.bench.checks import TESTED, TRIMMED, gate_blocks
from precad.lab.bench.server_pair import PairResult
from precad.lab.bench.workload import KRUM, Case, shape_of
from precad.mpc.gate.native_gate import CarryGate
from precad.protos.task import krum_fields

NATIVE = "native"
IMPLEMENTATIONS = (NATIVE, TESTED, TRIMMED, KRUM)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Sizes, and how they are measured."""

    dim: int = 26_010
    """Coordinates of PRECAD's network for MNIST."""
    clients: tuple[int, ...] = (10, 30, 100, 256)
    repetitions: int = 7
    mode: str = "masked"
    implementations: tuple[str, ...] = IMPLEMENTATIONS
    """The plain check, and what is measured beside it."""

    def cases(self) -> list[Case]:
        """Return every implementation at every number of clients, Krum where a deployment has so many."""
        return [
            Case(implementation=name, mode=self.mode, dim=self.dim, clients=n, repetitions=self.repetitions)
            for n in self.clients
            for name in self.implementations
            if name != KRUM or n <= krum_fields.MOST_EXPECTED
        ]


def run(plan: Plan, *, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Return the report: `{"rows": [...], "machine": {...}}`. Raises ProcessFailedError."""
    facts = machine.facts()
    say(f"d = {plan.dim:,}, clients {', '.join(map(str, plan.clients))}, form {plan.mode}")
    rows = [_row(result) for result in server_pair.measure(plan.cases())]
    plain = {row["clients"]: row["ms"] for row in rows if row["implementation"] == NATIVE}
    for row in rows:
        row["ratio"] = row["ms"] / plain[row["clients"]]
    return {"rows": rows, "machine": facts}


def _row(result: PairResult) -> dict[str, Any]:
    case, dealer = result.case, result.dealer
    assert dealer is not None  # measured with every check
    return {
        "implementation": case.implementation,
        "mode": case.mode,
        "d": case.dim,
        "clients": case.clients,
        **result.check.scaled(1e3).fields("ms"),
        "bytes_link": result.bytes_link,
        "rounds": result.rounds,
        "dealer_ms": 1e3 * dealer.median,
        "bytes_dealer": shape_of(case, gate_blocks(case, CarryGate())).bytes_to_server_b,  # framing left out
        "peak_rss_bytes": result.peak_rss,
    }
