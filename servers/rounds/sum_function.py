"""A function of the shared sum in a round: behind the check, before the noise. Both operators consent to it by name.

The round was charged before its check. CrypTen's own steps open nothing but what the dealer's tuples hide, so they
release nothing by themselves. The function is trusted to take no others (docs/reference/protocol-crypten-functions.md).
"""

from __future__ import annotations

from precad.mpc.channel import Channel
from precad.mpc.crypten.bridge import SumFunction
from precad.mpc.crypten.lookups import require_crypten
from precad.mpc.crypten.named import named_function, require_file
from precad.mpc.errors import FunctionRefusedError, raised_as
from precad.mpc.ring import WORD_BYTES, RingArray
from precad.mpc.tuples.correlations import Block
from precad.mpc.tuples.held import ServerTuples
from precad.protos.task.task import Task
from precad.servers.config import AggregatorConfig
from precad.servers.errors import SetupError


def require_function(task: Task, config: AggregatorConfig) -> None:
    """Refuse a function that this server's operator has not consented to, and a file that is another one.

    Runs nothing of it. Raises SetupError, GateUnavailableError.
    """
    if config.sum_function != task.sum_function:
        expected, found = (name or "none" for name in (task.sum_function, config.sum_function))
        raise SetupError(f"sum_function: expected {expected}, as task.sum_function says, found {found}")
    if task.sum_function is None or task.sum_function_sha256 is None:
        return
    require_crypten()
    with raised_as(SetupError, FunctionRefusedError):
        require_file(task.sum_function, task.sum_function_sha256)


def ready_function(task: Task, config: AggregatorConfig) -> SumFunction | None:
    """Load the task's function, if it has one, and find what it uses up. Raises SetupError, GateUnavailableError."""
    require_function(task, config)
    if task.sum_function is None or task.sum_function_sha256 is None:
        return None
    is_bounded = not task.has_unbounded_sum
    with raised_as(SetupError, FunctionRefusedError):
        return named_function(
            task.sum_function, task.sum_function_sha256, task.sum_function_arguments, task.dim, is_bounded=is_bounded
        )


def blocks_of_function(task: Task, function: SumFunction | None) -> tuple[Block, ...]:
    """Return the correlations that the function of a round of this task uses up, behind all others."""
    return () if task.sum_function is None or function is None else function.dry_run.blocks


def memory_bytes(task: Task, function: SumFunction | None) -> int:
    """Return what the function takes at most: its tuples of every round that is drawn, and room to compute in."""
    blocks = blocks_of_function(task, function)
    of_tuples = sum(block.n_masks + 3 * block.n_products for block in blocks)
    return WORD_BYTES * of_tuples * (task.draws_ahead + 2)


def share_of_function(function: SumFunction, share: RingArray, tuples: ServerTuples, channel: Channel) -> RingArray:
    """Return this server's share of the function of the accepted vectors' sum, (d,). Run by both servers.

    Raises: FunctionRefusedError, MalformedMessageError, PeerMismatchError, TupleExhaustedError.
    """
    first = len(tuples.shape.blocks) - len(function.dry_run.blocks)
    return function.share_of(share, tuples.correlations_from(first), channel)
