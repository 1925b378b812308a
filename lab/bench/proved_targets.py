"""Compare what a run of `precad bench validation` measured with what mode `proved` was to reach.

A target is compared where the run has its size and, for a ratio, the other implementation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from precad.lab.bench.peer_runs import CRYPTEN_TTP
from precad.lab.bench.proved import PROVED

ONE_CLIENT: Final = {26_010: 1 / 60, 100_000: 1 / 35, 1_000_000: 1 / 20}
"""Most of CrypTen's time for one client, by d."""
BATCH, OF_BATCH = 8, 1 / 50
"""Most of CrypTen's time for a batch of so many, at each of these d."""
OF_NATIVE: Final = 1.3
"""Most of the time of gate `native`, at every size."""
PROOF_MS: Final = {26_010: 15.0, 100_000: 25.0, 1_000_000: 80.0}
"""Most milliseconds of a client's proof, by d."""
UPLOAD_BYTES: Final = (7.1, 60_000)
"""Most bytes of share and proof: so many for a coordinate, and beside that."""
LINK_DIM, LINK_BYTES = 1_000_000, 20_000
"""Most bytes between the servers after the lock, per client and direction, at this d."""

Row = Mapping[str, Any]


def compared(rows: Sequence[Row], clients: Sequence[Row]) -> list[dict[str, Any]]:
    """Return each target with what was measured. rows, clients: of the report, ratios included."""
    checks = [row for row in rows if (row["implementation"], row["mode"]) == (PROVED, PROVED)]
    found = [*_of_checks(checks), *_of_clients(clients)]
    found += _of_rows(checks, clients)
    return [
        {"what": what, "d": d, "clients": n, "target": target, "measured": measured, "met": measured <= target}
        for what, d, n, target, measured in found
    ]


def _of_checks(rows: Sequence[Row]) -> Iterator[tuple[str, int, int, float, float]]:
    for row in rows:
        d, n, ratio = row["d"], row["clients"], row["ratio"]
        target = {1: ONE_CLIENT.get(d), BATCH: OF_BATCH if d in ONE_CLIENT else None}.get(n)
        if target is not None and CRYPTEN_TTP in ratio:
            yield f"check / {CRYPTEN_TTP}", d, n, target, ratio[CRYPTEN_TTP]
        if "native" in ratio:
            yield "check / native", d, n, OF_NATIVE, ratio["native"]
        if d == LINK_DIM:
            yield "bytes between servers per client", d, n, LINK_BYTES, row["bytes_link"]


def _of_rows(checks: Sequence[Row], clients: Sequence[Row]) -> Iterator[tuple[str, int, int, float, float]]:
    """Compare what servers compute before the clock with the proofs meanwhile, of clients that work at once."""
    proof_ms = {row["d"]: row["proof_ms"] for row in clients}
    for row in checks:
        d, n = row["d"], row["clients"]
        if d in proof_ms and n in (1, BATCH):
            yield "rows of all / a client's proof", d, n, 1.0, n * row["rows_ms_per_client"] / proof_ms[d]


def _of_clients(rows: Sequence[Row]) -> Iterator[tuple[str, int, int, float, float]]:
    for row in rows:
        d = row["d"]
        if d in PROOF_MS:
            yield "proof, ms", d, 1, PROOF_MS[d], row["proof_ms"]
        yield "upload, bytes", d, 1, UPLOAD_BYTES[0] * d + UPLOAD_BYTES[1], row["bytes_up"]
