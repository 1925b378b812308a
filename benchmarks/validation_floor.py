"""What the check of an update costs one server, beside the least that this machine could do it in.

    python -m benchmarks.validation_floor [--json] [--quick] [--repetitions N]

Everything is measured in one run, in turns: one repetition of every case, then the next, so that a busy moment of the
machine falls on all of them. Medians; ratios are medians of the ratios within a turn.

`ms_per_client` is server A alone on one core: its peer's messages are recorded first, under fixed coins, and played
back. `pair_ms_per_client` is both servers as two threads, which share the interpreter's lock while they expand seeds.
Time runs from the lock to the accepted sum. Uploads lie in memory; tuples are dealt beforehand, as the servers' are.

The floor adds up what cannot be avoided: AES-CTR for the words that A expands, one stream over memory for what it
reads and writes, and the rows, at the rates of this run. `unsound` is the paper's check without the no-wrap test: one
pass for both inner products and the sum, one word per client for the gate.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numba import njit, types

from mpc import equality, joint_coin, kernels, ring, sharing, validation
from mpc.channel import Channel, MemoryChannel, run_pair
from mpc.cpu_engine import BYTE_VALUES, BYTES, LANES
from mpc.dealer import deal
from mpc.errors import GateUnavailableError
from mpc.gates import Gate, make_gate
from mpc.local_step import LocalSums, local_sums
from mpc.norm_bound import NormBound
from mpc.prg import Label, Purpose, RandomBytes, Seed, open_stream
from mpc.ring import RingArray
from mpc.sharing import Mode, Party
from mpc.tuples import BatchShape, ServerTuples

Row: TypeAlias = dict[str, Any]

DIMS, CLIENTS = (26_010, 100_000, 1_000_000), (1, 8)
CLIP_NORM = 1.0
PROBE_WORDS = 1 << 23
"""Size of the arrays of the memory probe, 64 MiB: larger than a core's own caches."""


# -- the machine ------------------------------------------------------------------------------------------------------


def machine_facts() -> Row:
    """What the numbers depend on."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": platform.system(),
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


@dataclass(slots=True)
class Probes:
    """Ways to use the machine at its best, each as a function of no argument that says what it did."""

    zeros: bytes = field(default_factory=lambda: bytes(8 * ring.TILE))
    tile: RingArray = field(default_factory=lambda: np.empty(ring.TILE, dtype=np.int64))
    whole: RingArray = field(default_factory=lambda: np.zeros(PROBE_WORDS, dtype=np.int64))
    target: RingArray = field(default_factory=lambda: np.zeros(PROBE_WORDS, dtype=np.int64))

    def raw_aes(self) -> float:
        """GB/s of AES-128-CTR by `update_into` alone, over buffers in the cache."""
        encryptor = Cipher(algorithms.AES128(bytes(16)), modes.CTR(bytes(16))).encryptor()
        out = self.tile.data.cast("B")
        return _rate(lambda: encryptor.update_into(self.zeros, out), 64, len(self.zeros))

    def expansion(self) -> float:
        """GB/s of our streams, filling one tile again and again, as the local step does."""
        stream = open_stream(Seed(bytes(16)), Purpose.MASK, Label("probe", 0))
        return _rate(lambda: stream.fill(self.tile), 64, self.tile.nbytes)

    def memory(self) -> float:
        """GB/s of copying 64 MiB, read and written bytes together."""
        return _rate(lambda: np.copyto(self.target, self.whole), 1, 2 * self.whole.nbytes)

    def rows(self, n_clients: int) -> float:
        """ns per coordinate and client of the rows alone, words and signed shares in the cache."""
        words = self.tile.view(np.uint64)
        if n_clients == 1:
            buckets = np.zeros(BYTES * BYTE_VALUES, dtype=np.uint64)
            return 1e9 * _seconds(lambda: kernels.scatter_one(words, words, buckets), 8) / words.size
        signed, buckets = np.tile(words, (LANES, 1)), np.zeros(BYTES * BYTE_VALUES * LANES, dtype=np.uint64)
        groups = -(-n_clients // LANES)
        seconds = _seconds(lambda: kernels.scatter_four(words, signed, buckets), 8)
        return 1e9 * seconds * groups / (words.size * n_clients)


def _seconds(work: Callable[[], object], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - start) / times


def _rate(work: Callable[[], object], times: int, n_bytes: int) -> float:
    return n_bytes / _seconds(work, times) / 1e9


def floor_ns(n_clients: int, *, aes: float, memory: float, rows: float) -> float:
    """ns per coordinate and client that A needs at least, from rates in GB/s and the rows' ns.

    Expanded: a_A per client, one word and one bit of rows for all. Streamed: b per client, the sum once in and out.
    """
    expanded = 8 * (1 + (1 + 1 / 64) / n_clients)
    streamed = 8 + 16 / n_clients
    return expanded / aes + streamed / memory + rows


# -- the check --------------------------------------------------------------------------------------------------------


class RecordingChannel:
    """Notes what the peer sent."""

    def __init__(self, channel: MemoryChannel) -> None:
        self._channel = channel
        self.party: Party = channel.party
        self.received: list[bytes] = []

    def exchange(self, label: str, payload: bytes) -> bytes:
        """See `mpc.channel.Channel`."""
        self.received.append(self._channel.exchange(label, payload))
        return self.received[-1]


class ReplayChannel:
    """Server A's end, with a peer that answers at once: from the record of a round with the same coins."""

    def __init__(self, received: Sequence[bytes]) -> None:
        self.party: Party = 0
        self._received = iter(received)

    def exchange(self, label: str, payload: bytes) -> bytes:
        """See `mpc.channel.Channel`."""
        return next(self._received)


Check: TypeAlias = Callable[["PreparedRound", Channel], validation.Validated]


class PreparedRound:
    """Uploads and tuples of one round, for both servers; may be checked any number of times."""

    def __init__(self, dim: int, n_clients: int, mode: Mode, gate: Gate, *, words_per_client: int) -> None:
        self.bound, self.gate, self.mode = NormBound(clip_norm=CLIP_NORM, dim=dim), gate, mode
        clients = tuple(f"client-{i}" for i in range(n_clients))
        self.shape = BatchShape("benchmark", 0, clients, dim, gate.and_blocks(n_clients * words_per_client))
        self._dealt = deal(self.shape)
        tuples = (self.tuples(0), self.tuples(1))
        self.payloads: tuple[dict[str, RingArray], dict[str, RingArray]] = ({}, {})
        for i, client in enumerate(clients):
            x = np.zeros(dim, dtype=np.int64)
            x[i % dim] = int(CLIP_NORM * 2**16)
            label = self.shape.label(client)
            if mode is Mode.MASKED:
                seeds = (tuples[0].hand_out_mask_seed(client), tuples[1].hand_out_mask_seed(client))
                self.payloads[0][client] = self.payloads[1][client] = sharing.mask(x, seeds, label)
            else:
                seed, self.payloads[1][client] = sharing.split(x, label)
                self.payloads[0][client] = sharing.expand_share(seed, label, dim)
        self.bindings = {client: hashlib.sha256(client.encode()).digest() for client in clients}

    def tuples(self, party: Party) -> ServerTuples:
        """Unspent, again and again: these rounds hide nothing, and a repetition needs the same."""
        return ServerTuples(party, self.shape, self._dealt[party])

    def lock_and_open(self, tuples: ServerTuples, channel: Channel) -> tuple[validation.Locked, list[RingArray]]:
        """What both forms of the check begin with."""
        own = self.payloads[channel.party]
        locked = validation.lock(self.bindings, self.shape, channel, _fixed_coin(channel.party))
        if self.mode is Mode.SHARES:
            return locked, validation.open_masked(own, tuples, locked, channel)
        return locked, [own[client] for client in locked.active]


def _fixed_coin(party: Party) -> RandomBytes:
    return lambda n: bytes([party + 1]) * n


def sound_check(prepared: PreparedRound, channel: Channel) -> validation.Validated:
    """The whole validation, as the servers run it."""
    tuples = prepared.tuples(channel.party)
    locked, opened = prepared.lock_and_open(tuples, channel)
    return validation.validate(locked, opened, tuples, prepared.bound, prepared.gate, channel)


def unsound_check(prepared: PreparedRound, channel: Channel) -> validation.Validated:
    """The norm modulo 2^64 and nothing against wrap-around: one word per client."""
    tuples, bound, label = prepared.tuples(channel.party), prepared.bound, prepared.shape.label()
    locked, opened = prepared.lock_and_open(tuples, channel)
    challenge = joint_coin.reveal(locked.coin, locked.peers_commitment, locked.transcript, channel)
    masked = validation.masked_shares(locked.active, opened, tuples)
    sums = local_sums(tuples.party, masked, NoRows(), bound.dim, UnsoundEngine())
    words = validation.words_to_check(locked.active, sums, tuples, bound)[:, -1:]
    binary = prepared.gate.to_binary(words.reshape(-1), tuples.binary_triples(), channel).reshape(words.shape)
    verdicts = equality.all_zero(
        binary & np.array([bound.norm_mask], dtype=np.uint64).view(np.int64),
        equality.hash_key(challenge, label),
        [tuples.equality_tuple(client) for client in locked.active],
        channel,
    )
    assert all(verdicts)  # the vectors are honest, so the sum needs no second pass
    return validation.Validated(locked.active, tuple(verdicts), sums.share_sum)


_READ = types.Array(types.uint64, 1, "C", readonly=True)
_WRITE = types.Array(types.uint64, 1, "C")


@njit(types.UniTuple(types.uint64, 2)(_READ, _READ, _WRITE, types.uint64), nogil=True, error_model="numpy")
def _fused(opened: Any, mask: Any, share_sum: Any, opened_mask: Any) -> Any:
    """`kernels.combine` without the signs."""
    by_mask = by_opened = np.uint64(0)
    for i in range(opened.size):
        by_mask += opened[i] * mask[i]
        by_opened += opened[i] * opened[i]
        share_sum[i] += mask[i] + (opened[i] & opened_mask)
    return by_mask, by_opened


class NoRows:
    """In the place of `projection.RowStreams`: expands nothing."""

    def read(self, n_coordinates: int) -> tuple[RingArray, RingArray]:
        """See `RowStreams.read`."""
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)


class UnsoundEngine:
    """Inner products and the sum of shares; rows are zero."""

    name, group = "unsound", 1

    def accumulator(self, party: Party, n_clients: int, dim: int) -> UnsoundAccumulator:
        """See `mpc.local_step.Engine`."""
        return UnsoundAccumulator(party, n_clients, dim)

    def warm_up(self) -> None:
        """Nothing to do."""


class UnsoundAccumulator:
    """See `mpc.local_step.Accumulator`."""

    def __init__(self, party: Party, n_clients: int, dim: int) -> None:
        self._opened_mask = np.uint64(2**64 - 1 if party == 0 else 0)
        self._products = np.zeros((2, n_clients), dtype=np.uint64)
        self._share_sum = np.zeros(dim, dtype=np.uint64)

    def open_tile(self, tile: slice, row_words: RingArray, sign_words: RingArray) -> None:
        """See `Accumulator.open_tile`."""
        self._tile_sum = self._share_sum[tile]

    def add(self, first: int, opened: Sequence[RingArray], masks: RingArray) -> None:
        """See `Accumulator.add`, for one client."""
        b, a = opened[0].view(np.uint64), masks[0, : opened[0].size].view(np.uint64)
        self._products[:, first] += np.array(_fused(b, a, self._tile_sum, self._opened_mask), dtype=np.uint64)

    def sums(self) -> LocalSums:
        """See `Accumulator.sums`."""
        by_mask, by_opened = self._products.view(np.int64)
        rows = np.zeros((by_mask.size, 64), dtype=np.int64)
        return LocalSums(rows, by_mask, by_opened, self._share_sum.view(np.int64))


# -- the run ----------------------------------------------------------------------------------------------------------


class Case:
    """One line of the table, and the times measured for it so far."""

    def __init__(self, implementation: str, prepared: PreparedRound, check: Check) -> None:
        self.implementation, self.prepared, self.check = implementation, prepared, check
        self.alone: list[float] = []
        self.paired: list[float] = []
        self.received: tuple[bytes, ...] = ()

    @property
    def n_clients(self) -> int:
        """Clients of the round."""
        return len(self.prepared.shape.clients)

    def measure(self) -> None:
        """Both servers together, which records what A receives; then A alone."""

        def party(channel: MemoryChannel) -> tuple[list[bytes], int, int]:
            recording = RecordingChannel(channel)
            validated = self.check(self.prepared, recording)
            assert all(validated.verdicts)  # every vector is honest
            return recording.received, channel.rounds, channel.bytes_sent

        start = time.perf_counter()
        (received, self.rounds, self.bytes_link), _ = run_pair(party)
        self.paired.append(time.perf_counter() - start)
        replay = ReplayChannel(received)
        start = time.perf_counter()
        validated = self.check(self.prepared, replay)
        self.alone.append(time.perf_counter() - start)
        assert all(validated.verdicts)

    def row(self) -> Row:
        """Without the ratios, which need the other lines."""
        dim = self.prepared.bound.dim
        return {
            "implementation": self.implementation,
            "mode": self.prepared.mode.value,
            "d": dim,
            "clients": self.n_clients,
            "ms_per_client": 1e3 * statistics.median(self.alone) / self.n_clients,
            "spread_ms": [1e3 * q / self.n_clients for q in _quartiles(self.alone)],
            "pair_ms_per_client": 1e3 * statistics.median(self.paired) / self.n_clients,
            "ns_per_coordinate": 1e9 * statistics.median(self.alone) / self.n_clients / dim,
            "bytes_up": 8 * dim + (16 if self.prepared.mode is Mode.SHARES else 0),
            "bytes_link": self.bytes_link / self.n_clients,
            "rounds": self.rounds,
            "sound": self.implementation != "unsound",
        }


def cases(dims: Sequence[int], batches: Sequence[int]) -> Iterator[Case]:
    """Both gates in both wire forms, and the unsound check, for every size. A gate that is missing is said to be."""
    for dim in dims:
        for n_clients in batches:
            for mode in Mode:
                for name in ("native", "crypten"):
                    try:
                        gate = make_gate(name)
                    except GateUnavailableError as error:
                        print(f"left out: {error}", file=sys.stderr)
                        continue
                    words = NormBound(clip_norm=CLIP_NORM, dim=dim).words_per_client
                    prepared = PreparedRound(dim, n_clients, mode, gate, words_per_client=words)
                    yield Case(name, prepared, sound_check)
                unsound = PreparedRound(dim, n_clients, mode, make_gate("native"), words_per_client=1)
                yield Case("unsound", unsound, unsound_check)


def measure(dims: Sequence[int] = DIMS, batches: Sequence[int] = CLIENTS, repetitions: int = 15) -> Row:
    """{"rows": [...], "machine": {...}, "rates": {...}}: the whole benchmark."""
    probes = Probes()
    rates: dict[str, list[float]] = {"aes_gb_s": [], "expansion_gb_s": [], "memory_gb_s": []}
    rows_ns: dict[int, list[float]] = {n: [] for n in batches}
    all_cases = list(cases(dims, batches))
    for turn in range(repetitions + 1):
        for name, probe in zip(rates, (probes.raw_aes, probes.expansion, probes.memory), strict=True):
            rates[name].append(probe())
        for n, found in rows_ns.items():
            found.append(probes.rows(n))
        for case in all_cases:
            case.measure()
        if turn == 0:  # the first turn was to warm up
            for times in (*rates.values(), *rows_ns.values(), *(t for c in all_cases for t in (c.alone, c.paired))):
                times.clear()
    floors = {
        n: [
            floor_ns(n, aes=aes, memory=memory, rows=rows)
            for aes, memory, rows in zip(rates["aes_gb_s"], rates["memory_gb_s"], rows_ns[n], strict=True)
        ]
        for n in batches
    }
    result_rows = [with_ratios(case, all_cases, floors[case.n_clients]) for case in all_cases]
    result_rows += [floor_row(dim, n, floors[n]) for dim in dims for n in batches]
    summary = {name: statistics.median(found) for name, found in rates.items()}
    share = [ours / raw for ours, raw in zip(rates["expansion_gb_s"], rates["aes_gb_s"], strict=True)]
    return {
        "rows": result_rows,
        "rates": {
            **summary,
            "expansion_share_of_aes": statistics.median(share),
            "rows_ns": {str(n): statistics.median(found) for n, found in rows_ns.items()},
        },
        "machine": machine_facts(),
        "repetitions": repetitions,
    }


def with_ratios(case: Case, all_cases: Sequence[Case], floors_ns: Sequence[float]) -> Row:
    """The case's row, with how many times the floor and the unsound check of the same size and form it took."""
    row = case.row()
    dim, n = row["d"], row["clients"]
    peer = next(
        c for c in all_cases
        if (c.implementation, c.prepared.bound.dim, c.n_clients, c.prepared.mode)
        == ("unsound", dim, n, case.prepared.mode)
    )  # fmt: skip
    row["ratio_to_floor"] = statistics.median(
        1e9 * t / (dim * n) / floor for t, floor in zip(case.alone, floors_ns, strict=True)
    )
    row["ratio_to_unsound"] = statistics.median(t / u for t, u in zip(case.alone, peer.alone, strict=True))
    return row


def floor_row(dim: int, n_clients: int, floors_ns: Sequence[float]) -> Row:
    """The floor, as a line of the same table."""
    ns = statistics.median(floors_ns)
    return {
        "implementation": "floor",
        "mode": Mode.MASKED.value,
        "d": dim,
        "clients": n_clients,
        "ms_per_client": ns * dim / 1e6,
        "spread_ms": [q * dim / 1e6 for q in _quartiles(floors_ns)],
        "ns_per_coordinate": ns,
        "ratio_to_floor": 1.0,
    }


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return low, high


def as_text(result: Row) -> str:
    """A table for people."""
    rates, machine = result["rates"], result["machine"]
    rows_ns = ", ".join(f"{ns:.2f} ns for {n} client(s)" for n, ns in rates["rows_ns"].items())
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, load {machine['load_average']:.1f}; "
        f"Python {machine['python']}; medians of {result['repetitions']}",
        f"AES-CTR {rates['aes_gb_s']:.1f} GB/s, expansion {rates['expansion_gb_s']:.1f} GB/s "
        f"({100 * rates['expansion_share_of_aes']:.0f} %), memory {rates['memory_gb_s']:.1f} GB/s; rows {rows_ns}",
        "",
        f"{'check':10}{'mode':8}{'d':>9}{'n':>4}{'ms/client':>11}{'ns/coord':>10}{'pair ms':>10}"
        f"{'x floor':>9}{'x unsound':>11}{'link B/client':>15}{'rounds':>8}",
    ]
    for row in sorted(result["rows"], key=lambda row: (row["d"], row["clients"])):
        lines.append(
            f"{row['implementation']:10}{row['mode']:8}{row['d']:>9}{row['clients']:>4}{row['ms_per_client']:>11.3f}"
            f"{row['ns_per_coordinate']:>10.2f}{_cell(row, 'pair_ms_per_client', '10.3f')}"
            f"{_cell(row, 'ratio_to_floor', '9.2f')}{_cell(row, 'ratio_to_unsound', '11.2f')}"
            f"{_cell(row, 'bytes_link', '15.0f')}{_cell(row, 'rounds', '8')}"
        )
    return "\n".join(lines)


def _cell(row: Row, name: str, form: str) -> str:
    return format(row[name], form) if name in row else " " * len(format(0, form))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.validation_floor", description="The check of an update, beside its floor."
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--quick", action="store_true", help="five repetitions")
    parser.add_argument("--repetitions", type=int, default=15, metavar="N")
    arguments = parser.parse_args()
    result = measure(repetitions=5 if arguments.quick else arguments.repetitions)
    print(json.dumps(result, indent=1) if arguments.json else as_text(result))


if __name__ == "__main__":
    main()
