"""Inconsistent shares: each server gets an upload that is in order by itself, and the two do not belong together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from precad.clients.attacks.uploads.forger import Forger, with_payload
from precad.clients.submission import Submission


@dataclass(frozen=True, slots=True)
class InconsistentShares(Forger):
    """Flips a bit of the d words that it uploads, under a binding that fits the flipped words.

    Towards the other server it stands by the honest binding.
    In the `shares` form B holds one binding and A another: the upload is left out at the lock. In the `masked` form B
    gets A's upload with a statement that is about another one, and refuses it.
    Source: ours; what the exchange of bindings is for (docs/reference/protocol.md).
    """

    name: ClassVar[str] = "inconsistent-shares"

    def on_upload(self, submission: Submission, server: int) -> Submission:
        """See `Attack.on_upload`."""
        if server != submission.servers[0]:  # of two uploads the first has the words, the second the seed
            return submission
        words = bytearray(submission.payloads[server])
        words[0] ^= 1
        return with_payload(submission, server, bytes(words))
