"""Functions of the shared sum that come with precad. Each is exact: no step truncates."""

from __future__ import annotations

from typing import Any

LARGEST_BOUND = float(1 << 40)


def clip(total: Any, *, bound: float) -> Any:
    """Clip each coordinate of the sum to [-bound, bound], by two comparisons of shared words.

    It moves no further than the sum does: |clip(x) - clip(y)| <= |x - y| in every coordinate. So its factor is 1. Zero
    goes to zero. bound: positive, at most 2^40; it is cut to a multiple of 2^-16.
    """
    if not 0 < bound <= LARGEST_BOUND:
        raise ValueError(f"bound: expected a number in (0, 2^40], found {bound}")
    return total.hardtanh(-float(bound), float(bound))
