"""How much memory a server needs for a task, and what its budget leaves for uploads.

What grows with d, beside uploads, is bounded by what lies in memory at once: two copies of the model (parameters, and
their bytes for clients), and two vectors of words (sum of shares and noise), or one with the next model's two copies.
"""

from __future__ import annotations

from servers.errors import SetupError

MIB = 1 << 20
BASE_MB = 768
"""The process without a model: interpreter, libraries (CrypTen brings PyTorch), connections, messages on their way."""
BYTES_PER_COORDINATE = 24


def for_uploads(budget_mb: int, dim: int) -> int:
    """Bytes of the budget that uploads may take. Raises SetupError when the task alone exceeds it."""
    needed_mb = BASE_MB + -(-BYTES_PER_COORDINATE * dim // MIB)
    if budget_mb < needed_mb:
        raise SetupError(f"memory_budget_mb: expected at least {needed_mb} for {dim} parameters, found {budget_mb}")
    return (budget_mb - needed_mb) * MIB
