"""`precad bench validation`: the two-server check of a batch, beside CrypTen's, SPU's, the unsound one and the floor.

What is timed: from the moment at which both servers hold every submission until both know the verdicts and hold their
share of the sum. Two processes over loopback gRPC with mutual TLS, one thread each; every batch has fresh tuples and
one update that is too long. The peers run one after the other, never beside each other, and leave out the sum.

Fields of a row, per client of the batch: `ms_per_client` (the median; `_q1` and `_q3` are quartiles) and, from it,
`ns_per_coordinate`. `bytes_up` go from a client to both servers. `bytes_link` go from one server to the other, in the
direction that carries more, from the lock on. `rounds` are those of the whole batch: messages in one direction. `ratio`
is our `ms_per_client` over that of the named implementation at the same d and number of clients: below 1, ours is
faster.

The clock of `proved` starts with every proof at its holder. What servers compute before it, while clients prove, is
`rows_ms_per_client`: the ternary rows, which need the challenge and no proof. `ratio_with_rows` counts them in. Rows
`holder` and `seeded` of the report are the computing of one server, without exchanges. One holds every upload of the
batch, the other none. `proved_clients` has a client's share and proof. `targets` says what the mode was to reach
(`precad.lab.bench.proved_targets`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precad.lab.bench import machine, peer_runs, proved_client, proved_targets, server_pair
from precad.lab.bench.checks import EXCHANGE, FLOOR, UNSOUND
from precad.lab.bench.peer_runs import CRYPTEN_TTP, SPU_CHEETAH, SPU_SEMI2K, Cell, PeerResult
from precad.lab.bench.proved import HELD, PROVED
from precad.lab.bench.server_pair import PairResult
from precad.lab.bench.statistics import Spread
from precad.lab.bench.workload import TASK, Case
from precad.mpc.gate_names import GATES
from precad.mpc.parameters import DEALT_MODES, Mode
from precad.mpc.ring import WORD_BYTES
from precad.mpc.sharing import Party
from precad.protos.messages import convert
from precad.protos.precad.v1 import aggregator_pb2, common_pb2
from precad.protos.task.task import PROTOCOL_VERSION

Progress = Callable[[str], None]

EMPTY_EXCHANGES = Case(implementation=EXCHANGE, mode=Mode.MASKED, dim=1, clients=1, repetitions=200, warm_up=50)

COMPARED = (CRYPTEN_TTP, SPU_SEMI2K, SPU_CHEETAH, UNSOUND, FLOOR)
"""The implementations that `ratio` compares with."""

QUICK_DIMS, DIMS = (26_010, 100_000, 1_000_000), (26_010, 100_000, 1_000_000, 10_000_000)
QUICK_CLIENTS, CLIENTS = (1, 8), (1, 8, 32)
MAX_WORDS = 40_000_000
"""Coordinates of a whole batch; larger ones only in full runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Describe what to measure."""

    dims: tuple[int, ...] = DIMS
    clients: tuple[int, ...] = CLIENTS
    repetitions: int = 7
    peer_repetitions: int = 3
    max_words: int = MAX_WORDS
    peer_max_words: tuple[tuple[str, int], ...] = (
        (CRYPTEN_TTP, 40_000_000),
        (SPU_SEMI2K, 40_000_000),
        (SPU_CHEETAH, 4_000_000),
    )
    """Peers take long where they are slow: SPU CHEETAH needs some microseconds per coordinate."""

    @classmethod
    def quick(cls, repetitions: int) -> Plan:
        """Return three sizes, 1 and 8 clients, within two minutes on two cores."""
        return cls(
            dims=QUICK_DIMS,
            clients=QUICK_CLIENTS,
            repetitions=repetitions,
            peer_repetitions=min(2, repetitions),
            peer_max_words=((CRYPTEN_TTP, 8_000_000), (SPU_SEMI2K, 8_000_000), (SPU_CHEETAH, 100_000)),
        )

    def sizes(self, max_words: int) -> list[tuple[int, int]]:
        """Return (dim, clients), small ones first; a single client at every dimension."""
        every = [(dim, clients) for dim in self.dims for clients in self.clients]
        return [(dim, n) for dim, n in every if n == 1 or dim * n <= min(max_words, self.max_words)]

    def peer_cells(self, peer: str) -> list[Cell]:
        """Return the sizes at which a peer runs: a single client, too, only within its limit."""
        limit = dict(self.peer_max_words)[peer]
        return [Cell(d, n, self.peer_repetitions) for d, n in self.sizes(limit) if d * n <= limit]

    def cases(self) -> list[Case]:
        """Return ours, the unsound check and the floor, at every size."""
        kinds = [(gate, mode.value) for gate in GATES for mode in DEALT_MODES]
        kinds += [(PROVED, PROVED), (PROVED, HELD), (UNSOUND, Mode.MASKED.value), (FLOOR, Mode.MASKED.value)]
        return [
            Case(implementation=name, mode=mode, dim=d, clients=n, repetitions=self.repetitions)
            for d, n in self.sizes(self.max_words)
            for name, mode in kinds
        ]


def run(plan: Plan, *, peers_python: Path, say: Progress = lambda line: None) -> dict[str, Any]:
    """Return the report: `{"rows": [...], "proved_clients": [...], "targets": [...], "machine": {...},
    "missing": {...}, "exchange_ms": ...}`. Raises BenchmarkError."""
    facts = machine.facts()
    cases = plan.cases()
    say(f"our check, the unsound one and the floor: {len(cases)} cases in two processes")
    exchange, *ours = server_pair.measure([EMPTY_EXCHANGES, *cases])
    rows = [row for result in ours for row in our_rows(result)]
    say(f"a client of mode {PROVED}: {len(plan.dims)} sizes")
    clients = [proved_client.row(dim, plan.repetitions) for dim in plan.dims]
    absent: dict[str, str] = {}
    for peer in (CRYPTEN_TTP, SPU_SEMI2K, SPU_CHEETAH):
        why_not = peer_runs.missing(peer, peers_python)
        if why_not is not None:
            say(f"{peer}: left out: {why_not}")
            absent[peer] = why_not
            continue
        say(f"{peer}: {len(plan.peer_cells(peer))} cases")
        rows += [peer_row(peer, result) for result in peer_runs.run_peer(peer, plan.peer_cells(peer), peers_python)]
    add_ratios(rows)
    return {
        "rows": rows,
        "proved_clients": clients,
        "targets": proved_targets.compared(rows, clients),
        "machine": facts,
        "missing": absent,
        "exchange_ms": 1e3 * exchange.check.median,
    }


def our_rows(result: PairResult) -> list[dict[str, Any]]:
    """Return the rows of one case of the two server processes: two where the servers' roles are looked at apart."""
    if result.case.implementation != PROVED:
        return [our_row(result)]
    return [_row_of_role(result, party) for party in (0, 1)] if result.case.mode == HELD else [_proved_row(result)]


def _proved_row(result: PairResult) -> dict[str, Any]:
    case, n = result.case, result.case.clients
    assert result.rows is not None  # measured before every check of the mode
    return _row(PROVED, PROVED, case.dim, n, result.check) | {
        **result.rows.scaled(1e3 / n).fields("rows_ms_per_client"),
        "bytes_up": proved_client.bytes_of_share(case.dim) + proved_client.bytes_of_proof(case.dim),
        "bytes_link": result.bytes_link / n,
        "rounds": result.rounds,
        "sound": True,
        "bytes_link_both_directions": result.bytes_link_total / n,
        "bytes_relayed_before_lock": 0,
        "peak_rss_bytes": result.peak_rss,
    }


def _row_of_role(result: PairResult, party: Party) -> dict[str, Any]:
    """Return what one server computes: A holds every upload of the batch, B is seeded for every one."""
    case, computing = result.case, result.computing
    assert computing is not None  # measured with every check of the mode
    row = _row(PROVED, ("holder", "seeded")[party], case.dim, case.clients, computing[party])
    return row | {"bytes_up": 0, "bytes_link": 0, "rounds": 0, "sound": True}


def our_row(result: PairResult) -> dict[str, Any]:
    """Return one case of the modes with a dealer, or of the floor."""
    case, n = result.case, result.case.clients
    row = _row(case.implementation, case.mode, case.dim, n, result.check)
    if case.implementation == FLOOR:
        parts = {f"{name}_ns": 1e9 * s / (n * case.dim) for name, s in result.parts.items()}
        return row | {"mode": None, "bytes_up": 0, "bytes_link": 0, "rounds": 0, "sound": None} | parts
    assert result.dealer is not None  # every check was dealt for
    return row | {
        "bytes_up": bytes_up(Mode(case.mode), case.dim),
        "bytes_link": result.bytes_link / n,
        "rounds": result.rounds,
        "sound": case.implementation != UNSOUND,
        "bytes_link_both_directions": result.bytes_link_total / n,
        "bytes_relayed_before_lock": WORD_BYTES * case.dim if case.mode == Mode.MASKED else 0,
        "dealer_ms_per_client": 1e3 * result.dealer.median / n,
        "peak_rss_bytes": result.peak_rss,
    }


def peer_row(peer: str, result: PeerResult) -> dict[str, Any]:
    """Return one case of a peer. Its client would send one share to each server; the dealer's bytes are not counted."""
    cell = result.cell
    return _row(peer, "shares", cell.dim, cell.clients, result.check) | {
        "bytes_up": 2 * WORD_BYTES * cell.dim,
        "bytes_link": result.bytes_link / cell.clients,
        "rounds": result.rounds,
        "sound": False,
    }


def _row(implementation: str, mode: str, dim: int, clients: int, batch: Spread) -> dict[str, Any]:
    per_client = batch.scaled(1e3 / clients)
    return {
        "implementation": implementation,
        "mode": mode,
        "d": dim,
        "clients": clients,
        **per_client.fields("ms_per_client"),
        "ns_per_coordinate": 1e6 * per_client.median / dim,
    }


def bytes_up(mode: Mode, dim: int) -> int:
    """Count the bytes that one client uploads to both servers: the messages of
    `precad.clients.upload.sending.parts_of`, framing left out."""
    binding = common_pb2.Binding(
        protocol_version=PROTOCOL_VERSION,
        task=TASK,
        round=1000,
        client="client-000000",
        config_digest=bytes(32),
        model_digest=bytes(32),
        dim=dim,
        mode=mode,
        digest_a=bytes(32),
        digest_b=bytes(32),
    )
    total = 0
    parties: tuple[Party, Party] = (0, 1)
    for party in parties:
        total += aggregator_pb2.SubmitPart(binding=binding).ByteSize()
        full, rest = divmod(convert.upload_bytes(mode, party, dim), convert.CHUNK_BYTES)
        total += full * _chunk_bytes(convert.CHUNK_BYTES) + (_chunk_bytes(rest) if rest else 0)
    return total


def _chunk_bytes(n: int) -> int:
    return aggregator_pb2.SubmitPart(chunk=common_pb2.Chunk(data=bytes(n))).ByteSize()


def add_ratios(rows: Sequence[dict[str, Any]]) -> None:
    """Add `ratio` to every row of ours, the one to `native` too: in the same form with the CrypTen gate, masked
    with proofs."""
    for row in rows:
        if row["implementation"] in GATES or (row["implementation"], row["mode"]) == (PROVED, PROVED):
            beside = {other["implementation"]: other for other in _same_size(rows, row)}
            row["ratio"] = {
                name: row["ms_per_client"] / beside[name]["ms_per_client"] for name in COMPARED if name in beside
            }
            form = ("native", Mode.MASKED if row["implementation"] == PROVED else row["mode"])
            native = next((o for o in _same_size(rows, row) if (o["implementation"], o["mode"]) == form), None)
            if native is not None and row["implementation"] != "native":
                row["ratio"]["native"] = row["ms_per_client"] / native["ms_per_client"]
            if row["implementation"] == PROVED:
                with_rows = 1 + row["rows_ms_per_client"] / row["ms_per_client"]
                row["ratio_with_rows"] = {name: with_rows * ratio for name, ratio in row["ratio"].items()}


def _same_size(rows: Iterable[dict[str, Any]], row: dict[str, Any]) -> list[dict[str, Any]]:
    return [other for other in rows if (other["d"], other["clients"]) == (row["d"], row["clients"])]
