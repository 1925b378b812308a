"""`precad bench threads`: the check's local step on one thread and on several, the same integers.

What one server computes from uploads of length d (`precad.mpc.local.step`), without a peer: uploads in memory, fresh
masks and rows. The numbers of threads take turns, repetition by repetition. `ratio` is the time over that of one
thread; a sum that is not the same ends the benchmark without a result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from precad.lab.bench import machine
from precad.lab.bench.errors import ProcessFailedError
from precad.lab.bench.statistics import Spread
from precad.mpc.local.engines import make_engine
from precad.mpc.local.rows import RowStreams
from precad.mpc.local.step import LocalSums, Masked, local_sums
from precad.mpc.prg import Label, Purpose, Seed, open_stream
from precad.mpc.ring import RingArray

LABEL = Label("bench", 0)


def run(
    *,
    dim: int,
    n_clients: int,
    threads: Sequence[int],
    repetitions: int,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Return the report: `{"rows": [...], "machine": {...}}`. Raises ProcessFailedError when two results differ."""
    facts, numbers = machine.facts(), (1, *sorted(set(threads) - {1}))
    say(f"d = {dim:,}, {n_clients} clients, threads: {', '.join(map(str, numbers))}")
    generator = np.random.default_rng()
    uploads = [generator.integers(-(2**63), 2**63 - 1, dim) for _ in range(n_clients)]
    seeds, challenge = [Seed.random() for _ in uploads], Seed.random()
    engines = {n: make_engine("cpu", n_threads=n) for n in numbers}
    seconds: dict[int, list[float]] = {n: [] for n in numbers}
    expected: LocalSums | None = None
    for repetition in range(repetitions + 1):  # the first one warms up
        for n, engine in engines.items():
            clients = _clients(uploads, seeds)
            start = time.perf_counter()
            found = local_sums(0, clients, RowStreams(challenge, LABEL), dim, engine)
            if repetition:
                seconds[n].append(time.perf_counter() - start)
            expected = expected or found
            if not _is_same(expected, found):
                raise ProcessFailedError(f"{n} threads: expected the sums of one thread, found others")
    one = Spread.of(seconds[1])
    rows = [_row(n, dim, n_clients, Spread.of(seconds[n]), one) for n in numbers]
    return {"rows": rows, "machine": facts}


def _clients(uploads: Sequence[RingArray], seeds: Sequence[Seed]) -> list[Masked]:
    return [Masked(b, open_stream(seed, Purpose.MASK, LABEL)) for b, seed in zip(uploads, seeds, strict=True)]


def _is_same(ours: LocalSums, theirs: LocalSums) -> bool:
    parts = ("rows", "by_mask", "by_opened", "share_sum")
    return all(np.array_equal(getattr(ours, name), getattr(theirs, name)) for name in parts)


def _row(n_threads: int, dim: int, n_clients: int, spread: Spread, one: Spread) -> dict[str, Any]:
    return {
        "threads": n_threads,
        "d": dim,
        "clients": n_clients,
        **spread.scaled(1e3).fields("ms"),
        "ns_per_coordinate": spread.median * 1e9 / (dim * n_clients),
        "ratio": spread.median / one.median,
    }
