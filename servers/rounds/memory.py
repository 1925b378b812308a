"""How much memory a server needs for a task, what its budget leaves for uploads, and so what it takes on.

What grows with d, beside uploads, is bounded by what lies in memory at once. Two copies of the model (parameters, and
their bytes for clients) lie there. Beside them lie two vectors of words (sum of shares and noise), or one with the next
model's two copies. The last and the next of each moment of the servers' optimiser lie there. So does the direction
of each half-space of the set of updates. At server B, words of each client's trim tuple lie there as well.
"""

from __future__ import annotations

import math

import structlog

from precad.mpc.gate_names import make_gate
from precad.mpc.prg import SEED_BYTES
from precad.mpc.proved.sizes import N_POINTS
from precad.mpc.ring import WORD_BYTES
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.config import AggregatorConfig
from precad.servers.errors import Limit, SetupError
from precad.servers.rounds.dealt_blocks import blocks_of
from precad.servers.rounds.transfers import Capacity, Transfers
from precad.servers.rounds.uploads import Spool
from precad.servers.store.folder import spool_path

log = structlog.get_logger(__name__)

MIB = 1 << 20
BASE_MB = 768
"""The process without a model: interpreter, libraries (CrypTen brings PyTorch), connections, messages on their way."""
BYTES_PER_COORDINATE = 24
"""Two copies of a model of float32, and two vectors of words."""
BYTES_PER_MOMENT = 8
"""The last and the next float32."""
BYTES_PER_CLIENT = 16 << 10
"""Buckets of the rows (`precad.mpc.local.cpu_engine`), for each thread of the check beyond the first, whose are in
BASE_MB."""


def of_server(config: AggregatorConfig, task: Task, role: Role, *, function_bytes: int = 0) -> int:
    """Return what a server's configuration leaves for uploads, in bytes. function_bytes: of a function of the sum.

    Raises SetupError.
    """
    of_tuples = _krum_bytes(task) + (_trim_bytes(task) if role is Role.AGGREGATOR_B else 0)
    n_clients = len(task.clients)
    return for_uploads(
        config.memory_budget_mb,
        task.dim,
        n_clients=n_clients,
        n_threads=config.check_threads,
        n_moments=task.n_moments,
        n_half_spaces=len(task.half_spaces),
        round_bytes=n_clients * max(map(_proof_bytes, _kinds(task))) + function_bytes + of_tuples,
    )


def _kinds(task: Task) -> tuple[Task, ...]:
    """Return the parameters of each kind of round that a task has."""
    return (task,) if task.evaluation_round is None else (task, task.evaluation_round)


def _proof_bytes(task: Task) -> int:
    """Return what a client's proof takes between the pass and the verdict: three arrays of opened values.

    Those are of the wires' sums, of this server's message and of the peer's. A holder's share of the proof lies where
    uploads lie. Nothing in modes without proofs.
    """
    return 3 * WORD_BYTES * N_POINTS * task.proof_sizes.opened_elements if task.is_proved else 0


def _krum_bytes(task: Task) -> int:
    """Return what the tuples of Krum's comparisons take, in the batches of a round and of those that are drawn ahead.

    They grow with the cube of the number of a round's clients.
    """
    if task.krum_rule is None:
        return 0
    blocks = blocks_of(task, make_gate(task.gate), _clients_of_a_round(task))
    return WORD_BYTES * (1 + task.draws_ahead) * sum(block.n_masks + block.n_products for block in blocks)


def _trim_bytes(task: Task) -> int:
    """Return what the dealer's corrections of trim tuples take at server B, which has d + 1 words of each client.

    In the batches of a round and of those that are drawn ahead; one more lies there while a batch arrives.
    """
    if not task.rules.keeps_some:
        return 0
    return WORD_BYTES * (2 + task.draws_ahead) * _clients_of_a_round(task) * (task.dim + 1)


def _clients_of_a_round(task: Task) -> int:
    """Return a number of clients that hardly any round has more of: four standard deviations above the expected one."""
    expected = task.expected_clients
    return min(math.ceil(expected + 4 * math.sqrt(expected)), len(task.clients))


def for_uploads(
    budget_mb: int,
    dim: int,
    *,
    n_clients: int = 0,
    n_threads: int = 1,
    n_moments: int = 0,
    n_half_spaces: int = 0,
    round_bytes: int = 0,
) -> int:
    """Return the bytes of the budget that uploads may take. n_clients: enrolled; all may be in a round.

    n_threads: of the check. n_moments: of the optimiser. n_half_spaces: of the set of updates. round_bytes: of a
    round's proofs, function and tuples. Raises SetupError when the task alone exceeds it.
    """
    of_model = (BYTES_PER_COORDINATE + BYTES_PER_MOMENT * n_moments + WORD_BYTES * n_half_spaces) * dim
    bytes_needed = of_model + BYTES_PER_CLIENT * n_clients * (n_threads - 1) + round_bytes
    needed_mb = BASE_MB + -(-bytes_needed // MIB)
    if budget_mb < needed_mb:
        raise SetupError(f"memory_budget_mb: expected at least {needed_mb} for {dim} parameters, found {budget_mb}")
    return (budget_mb - needed_mb) * MIB


def capacity_of(config: AggregatorConfig, task: Task, role: Role, *, function_bytes: int = 0) -> Capacity:
    """Return what a server takes on of its clients' bytes, by its configuration. Raises SetupError."""
    spool = Spool(
        spool_path(config.state_dir),
        most_bytes=max(
            max(SEED_BYTES, WORD_BYTES * one.dim, one.proof_sizes.proof_bytes if one.is_proved else 0)
            for one in _kinds(task)
        ),
        memory_bytes=of_server(config, task, role, function_bytes=function_bytes),
        max_memory_upload=config.max_upload_in_memory_mb * MIB,
    )

    def transfers(limit: Limit, max_places: int, max_bytes: float = math.inf) -> Transfers:
        pace_bytes_s, grace_s = config.min_transfer_bytes_s, config.transfer_grace_s
        n_told = math.ceil(task.expected_clients) if task.hides_draws else None
        return Transfers(limit, max_places, max_bytes, min_bytes_s=pace_bytes_s, grace_s=grace_s, n_told=n_told)

    if task.hides_draws:
        _warn_of_few_places(config, task)
    return Capacity(
        spool,
        uploads=transfers(Limit.UPLOADS, config.max_uploads, config.max_upload_mb * MIB),
        downloads=transfers(Limit.DOWNLOADS, config.max_downloads),
    )


def _warn_of_few_places(config: AggregatorConfig, task: Task) -> None:
    """Log which limits of transfers others of a round may meet: whoever is refused learns that they were drawn."""
    sizes = [one.proof_sizes for one in _kinds(task)]
    n_clients, most_bytes = len(task.clients), max(max(one.upload_bytes, one.proof_bytes) for one in sizes)
    needed = {
        "max_uploads": (config.max_uploads, n_clients),
        "max_downloads": (config.max_downloads, n_clients),
        "max_upload_mb": (config.max_upload_mb, -(-n_clients * most_bytes // MIB)),
    }
    for name, (found, expected) in needed.items():
        if found < expected:
            log.warning("transfers.tell_draws", limit=name, expected_at_least=expected, found=found)
