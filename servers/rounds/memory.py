"""How much memory a server needs for a task, and what its budget leaves for uploads.

What grows with d, beside uploads, is bounded by what lies in memory at once. Two copies of the model (parameters, and
their bytes for clients) lie there. Beside them lie two vectors of words (sum of shares and noise), or one with the next
model's two copies.
"""

from __future__ import annotations

from precad.protos.task.task import Task
from precad.servers.config import AggregatorConfig
from precad.servers.errors import SetupError

MIB = 1 << 20
BASE_MB = 768
"""The process without a model: interpreter, libraries (CrypTen brings PyTorch), connections, messages on their way."""
BYTES_PER_COORDINATE = 24
BYTES_PER_CLIENT = 16 << 10
"""Buckets of the rows (`precad.mpc.local.cpu_engine`), for each thread of the check beyond the first, whose are in
BASE_MB."""


def of_server(config: AggregatorConfig, task: Task) -> int:
    """Return what a server's configuration leaves for uploads, in bytes. Raises SetupError."""
    n_clients = len(task.clients)
    return for_uploads(config.memory_budget_mb, task.dim, n_clients=n_clients, n_threads=config.check_threads)


def for_uploads(budget_mb: int, dim: int, *, n_clients: int = 0, n_threads: int = 1) -> int:
    """Bytes of the budget that uploads may take. n_clients: enrolled, who may all be in a round. n_threads: of the
    check. Raises SetupError when the task alone exceeds it."""
    bytes_needed = BYTES_PER_COORDINATE * dim + BYTES_PER_CLIENT * n_clients * (n_threads - 1)
    needed_mb = BASE_MB + -(-bytes_needed // MIB)
    if budget_mb < needed_mb:
        raise SetupError(f"memory_budget_mb: expected at least {needed_mb} for {dim} parameters, found {budget_mb}")
    return (budget_mb - needed_mb) * MIB
