"""Room for uploads and transfers, for a round without a server around it."""

from __future__ import annotations

from pathlib import Path

from precad.servers.errors import Limit
from precad.servers.rounds.transfers import Capacity, Transfers
from precad.servers.rounds.uploads import Spool


def roomy(spool: Spool | None = None) -> Capacity:
    """Return room for 256 transfers at once, however slow; without a spool, in memory alone."""
    in_memory = Spool(Path("/nonexistent"), most_bytes=0, memory_bytes=1 << 30, max_memory_upload=1 << 30)
    uploads, downloads = (
        Transfers(limit, 256, min_bytes_s=0.0, grace_s=5.0) for limit in (Limit.UPLOADS, Limit.DOWNLOADS)
    )
    return Capacity(spool or in_memory, uploads, downloads)
