"""Randomness that a test fixes: the same bytes in every run, so that a statistical test always or never passes.

The false-alarm rate that such a test states is the share of seeds on which correct code would fail it.
"""

import hashlib
from collections.abc import Callable, Iterator

import numpy as np
from scipy.stats import chi2

from precad.mpc.prg import Seed

FALSE_ALARM_RATE = 1e-6


def random_bytes_of(name: str) -> Callable[[int], bytes]:
    """random_bytes of a test: successive blocks of SHAKE-128 keyed by `name`."""
    calls = 0

    def random_bytes(n: int) -> bytes:
        nonlocal calls
        calls += 1
        return hashlib.shake_128(f"{name}/{calls}".encode()).digest(n)

    return random_bytes


def seeds(name: str, count: int) -> Iterator[Seed]:
    """`count` unrelated seeds."""
    random_bytes = random_bytes_of(name)
    return (Seed.random(random_bytes) for _ in range(count))


def are_uniform_bytes(data: bytes) -> bool:
    """Pearson's chi-square over the 256 byte values, at FALSE_ALARM_RATE; needs 20 expected of each."""
    assert len(data) >= 256 * 20
    return are_uniform(np.bincount(np.frombuffer(data, dtype=np.uint8), minlength=256))


def are_uniform(counts) -> bool:
    """Pearson's chi-square of counts over equally likely cells, at FALSE_ALARM_RATE."""
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum()) < chi2.isf(FALSE_ALARM_RATE, counts.size - 1)
