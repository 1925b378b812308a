"""`precad bench threads`: the check's local step on one thread and on several, the same integers.

What one server computes from uploads of length d (`precad.mpc.local.step`), without a peer: uploads in memory, fresh
masks and rows. In mode `proved` it is the pass of `precad.mpc.proved.sums`, where the server holds every other upload.
The numbers of threads take turns, repetition by repetition. `ratio` is the time over that of one thread; sums that are
not the same end the benchmark without a result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from precad.lab.bench import machine
from precad.lab.bench.errors import ProcessFailedError
from precad.lab.bench.statistics import Spread
from precad.lab.bench.workload import sizes_of
from precad.mpc.local.engines import make_engine
from precad.mpc.local.rows import RowStreams
from precad.mpc.local.step import Engine, Masked, local_sums
from precad.mpc.prg import Label, Purpose, Seed, open_stream
from precad.mpc.proved import field
from precad.mpc.proved.field import FieldArray
from precad.mpc.proved.query import admissible_points, prepare, query_elements
from precad.mpc.proved.shares import HeldBytes, PackedShare, Share, seeded_share
from precad.mpc.proved.sums import share_sums
from precad.mpc.ring import RingArray

LABEL = Label("bench", 0)
Words: TypeAlias = RingArray | FieldArray
Pass: TypeAlias = Callable[[Engine], tuple[Words, ...]]


def run(
    *,
    dim: int,
    n_clients: int,
    threads: Sequence[int],
    repetitions: int,
    is_proved: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Return the report: `{"rows": [...], "machine": {...}}`. Raises ProcessFailedError when two results differ."""
    facts, numbers = machine.facts(), (1, *sorted(set(threads) - {1}))
    say(f"d = {dim:,}, {n_clients} clients, threads: {', '.join(map(str, numbers))}")
    local_pass = (_proved_pass if is_proved else _masked_pass)(dim, n_clients)
    engines = {n: make_engine("cpu", n_threads=n) for n in numbers}
    seconds: dict[int, list[float]] = {n: [] for n in numbers}
    expected: tuple[Words, ...] | None = None
    for repetition in range(repetitions + 1):  # the first one warms up
        for n, engine in engines.items():
            start = time.perf_counter()
            found = local_pass(engine)
            if repetition:
                seconds[n].append(time.perf_counter() - start)
            expected = expected or found
            if not all(map(np.array_equal, expected, found)):
                raise ProcessFailedError(f"{n} threads: expected the sums of one thread, found others")
    one = Spread.of(seconds[1])
    return {"rows": [_row(n, dim, n_clients, Spread.of(seconds[n]), one) for n in numbers], "machine": facts}


def _masked_pass(dim: int, n_clients: int) -> Pass:
    generator = np.random.default_rng()
    uploads = [generator.integers(-(2**63), 2**63 - 1, dim) for _ in range(n_clients)]
    seeds, challenge = [Seed.random() for _ in uploads], Seed.random()

    def local_pass(engine: Engine) -> tuple[Words, ...]:
        clients = [Masked(b, open_stream(seed, Purpose.MASK, LABEL)) for b, seed in zip(uploads, seeds, strict=True)]
        sums = local_sums(0, clients, RowStreams(challenge, LABEL), dim, engine)
        return sums.rows, sums.by_mask, sums.by_opened, sums.share_sum

    return local_pass


def _proved_pass(dim: int, n_clients: int) -> Pass:
    sizes, challenge = sizes_of(dim), Seed.random()
    points = prepare(admissible_points(query_elements(Seed.random(), LABEL), sizes), sizes)
    shares: list[Share] = [seeded_share(Seed.random(), LABEL) for _ in range(n_clients)]
    for i in range(0, n_clients, 2):
        shares[i] = PackedShare(HeldBytes(field.to_bytes(field.random_elements(dim))), dim)

    def local_pass(engine: Engine) -> tuple[Words, ...]:
        sums = share_sums(shares, RowStreams(challenge, LABEL), points, sizes, engine)
        return sums.rows, sums.wires, sums.share_sum

    return local_pass


def _row(n_threads: int, dim: int, n_clients: int, spread: Spread, one: Spread) -> dict[str, Any]:
    return {
        "threads": n_threads,
        "d": dim,
        "clients": n_clients,
        **spread.scaled(1e3).fields("ms"),
        "ns_per_coordinate": spread.median * 1e9 / (dim * n_clients),
        "ratio": spread.median / one.median,
    }
