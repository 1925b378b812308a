"""Wrong length: an upload of another number of words than the model has parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from precad.clients.attacks.uploads.forger import Forger, with_payload
from precad.clients.errors import ArgumentError
from precad.clients.submission import Submission
from precad.mpc.ring import WORD_BYTES


@dataclass(frozen=True, slots=True)
class WrongLength(Forger):
    """Uploads `excess` words too many, or too few where it is negative, to each server, with digests that fit."""

    excess: int = -1

    name: ClassVar[str] = "wrong-length"

    def __post_init__(self) -> None:
        """Raises ArgumentError for the right length."""
        if self.excess == 0:
            raise ArgumentError("excess must not be 0: that is the right length")

    def on_upload(self, submission: Submission, server: int) -> Submission:
        """See `Attack.on_upload`."""
        payload, n_bytes = submission.payloads[server], WORD_BYTES * self.excess
        return with_payload(submission, server, payload + bytes(n_bytes) if n_bytes > 0 else payload[:n_bytes])
