"""Keep every client process of a local run, at every start, to the same deal.

Each process deals the records to all clients by itself. Where a file changed between two of them, or code gives other
records at each call, they would deal differently. One record moves two updates then, and its epsilon is too small.
"""

from __future__ import annotations

from pathlib import Path

from precad.clients.errors import DataError, StateFileError
from precad.clients.state_lines import append, locked, whole_lines
from precad.mpc.errors import raised_as


def require_same_deal(state_dir: Path, config_digest: bytes, deal: str, *, source: str) -> None:
    """Require the deal of a task to be the one that its first client process made here, and keep that one.

    - config_digest: of the task
    - deal: a digest of all clients' records, in hexadecimal
    - source: of the records, as messages call it

    Raises DataError, StateFileError.
    """
    file = state_dir / f"deal-{config_digest.hex()[:16]}.sha256"
    with raised_as(StateFileError, OSError, f"client.state_dir: expected to write {file}"):
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(file) as descriptor:
            lines = whole_lines(descriptor)
            if not lines:
                append(descriptor, [], deal.encode())
    if lines and lines != [deal.encode()]:
        raise DataError(
            f"{source}: expected the records that this run's first client process read, found others: a record of "
            "both may be dealt to two clients; give the same records at each call, or begin a new run"
        )
