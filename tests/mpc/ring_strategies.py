"""Ring elements for Hypothesis, edges first, and the plain-integer reading that results are compared with."""

import hashlib

import numpy as np
from hypothesis import strategies as st

EDGES = (
    *(0, 1, -1, 5, -5, 2**16, 2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**32, -(2**32)),
    *(2**62, -(2**62), 2**62 + 1, 2**63 - 1, -(2**63), 1 - 2**63),
)

ring_words = st.sampled_from(EDGES) | st.integers(-(2**63), 2**63 - 1)


def ring_vectors(min_dim: int = 1, max_dim: int = 8) -> st.SearchStrategy:
    """int64 arrays of shape (d,)."""
    return st.lists(ring_words, min_size=min_dim, max_size=max_dim).map(as_ring)


def vector_pairs() -> st.SearchStrategy:
    """Two int64 arrays of one shape."""
    return st.lists(st.tuples(ring_words, ring_words), min_size=1, max_size=8).map(
        lambda pairs: (as_ring(x for x, _ in pairs), as_ring(y for _, y in pairs))
    )


def wrapped(value: int) -> int:
    """`value` modulo 2^64 read as two's complement."""
    return int.from_bytes((value % 2**64).to_bytes(8, "little"), "little", signed=True)


def as_ring(values) -> np.ndarray:
    """Python integers of any size as ring elements."""
    return np.array([wrapped(value) for value in values], dtype=np.int64)


def random_words(name: int, *shape: int) -> np.ndarray:
    """Uniform int64 words that are the same in every run."""
    return generator(name).integers(-(2**63), 2**63, size=shape, dtype=np.int64)


def generator(name: str) -> np.random.Generator:
    """NumPy's generator, seeded by a name."""
    return np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest(), "little"))
