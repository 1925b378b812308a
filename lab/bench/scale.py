"""`precad bench scale`: time, memory and bytes as the model grows (2 clients) and as the round grows (small model).

The same two processes and the same clock as `precad.lab.bench.validation`; `aggregate` adds what follows the verdicts,
noise and the exchange of the noisy shares. A slope is the exponent a of the least-squares fit c x^a: 1 is linear
growth. In mode `proved` an upload longer than a server's default keeps in memory lies in its spool's file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from precad.lab.bench import machine, server_pair
from precad.lab.bench.proved import PROVED
from precad.lab.bench.server_pair import PairResult
from precad.lab.bench.statistics import log_log_slope
from precad.lab.bench.workload import MEMORY_BYTES, Case
from precad.mpc.proved.field import ELEMENT_BYTES
from precad.servers.config import AggregatorConfig

CLIENTS_ALONG_D = 2
DIM_ALONG_CLIENTS = 10_000
MAX_MEMORY_UPLOAD = AggregatorConfig.model_fields["max_upload_in_memory_mb"].default << 20
"""Bytes: a server's default."""
MEASURED = ("validate_s", "aggregate_s", "peak_rss_bytes", "bytes_link_batch", "bytes_link_aggregate")


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes along both axes."""

    dims: tuple[int, ...]
    clients: tuple[int, ...]
    repetitions: int

    @classmethod
    def of(cls, *, quick: bool, full: bool, repetitions: int) -> Plan:
        """Return 10^4 to 10^7 coordinates and 8 to 1000 clients; `full` goes to 10^8, `quick` stops early."""
        if quick:
            return cls((10_000, 100_000, 1_000_000), (8, 32, 128), repetitions)
        dims = (10_000, 100_000, 1_000_000, 10_000_000)
        return cls((*dims, 100_000_000) if full else dims, (8, 32, 128, 512, 1000), repetitions)

    def cases(self, gate: str, mode: str) -> tuple[list[Case], list[Case]]:
        """Return the cases along d, then along the number of clients."""

        def case(dim: int, clients: int) -> Case:
            is_spooled = mode == PROVED and ELEMENT_BYTES * dim > MAX_MEMORY_UPLOAD
            return Case(
                implementation=PROVED if mode == PROVED else gate,
                mode=mode,
                dim=dim,
                clients=clients,
                repetitions=self.repetitions,
                memory_bytes=MAX_MEMORY_UPLOAD if is_spooled else MEMORY_BYTES,
            )

        return (
            [case(dim, CLIENTS_ALONG_D) for dim in self.dims],
            [case(DIM_ALONG_CLIENTS, n) for n in self.clients],
        )


def run(plan: Plan, *, gate: str, mode: str, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Return the report: `{"rows": [...], "slopes": {"d": {...}, "clients": {...}}, "machine": {...}}`."""
    facts = machine.facts()
    along_d, along_clients = plan.cases(gate, mode)
    used = f"mode {mode}" if mode == PROVED else f"gate {gate}, form {mode}"
    say(f"{used}: {len(along_d)} sizes along d, {len(along_clients)} along the clients")
    rows = [_row(result, "d") for result in server_pair.measure(along_d)]
    rows += [_row(result, "clients") for result in server_pair.measure(along_clients)]
    slopes = {along: _slopes([row for row in rows if row["along"] == along], along) for along in ("d", "clients")}
    return {"rows": rows, "slopes": slopes, "machine": facts}


def _row(result: PairResult, along: str) -> dict[str, Any]:
    case, aggregate = result.case, result.aggregate
    assert aggregate is not None  # measured with every check
    return {
        "along": along,
        "implementation": case.implementation,
        "mode": case.mode,
        "d": case.dim,
        "clients": case.clients,
        **result.check.fields("validate_s"),
        "aggregate_s": aggregate.median,
        "aggregate_s_q1": aggregate.first_quartile,
        "aggregate_s_q3": aggregate.third_quartile,
        "peak_rss_bytes": result.peak_rss,
        "bytes_link": result.bytes_link / case.clients,
        "bytes_link_batch": result.bytes_link,
        "bytes_link_aggregate": result.aggregate_bytes_link,
        "rounds": result.rounds,
    }


def _slopes(rows: Sequence[dict[str, Any]], along: str) -> dict[str, float | None]:
    return {name: log_log_slope([row[along] for row in rows], [row[name] for row in rows]) for name in MEASURED}
