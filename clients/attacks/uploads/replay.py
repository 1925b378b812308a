"""Replay: the upload of a round before, once more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from precad.clients.attacks.uploads.forger import Forger
from precad.clients.submission import Submission


@dataclass(slots=True)
class Replay(Forger):
    """Uploads, from its second round on, what it made for the round before; in its first it is honest.

    The binding names the round, so that both servers refuse it.
    """

    name: ClassVar[str] = "replay"

    _latest: Submission | None = field(default=None, init=False, repr=False)
    _earlier: Submission | None = field(default=None, init=False, repr=False)

    def on_upload(self, submission: Submission, server: int) -> Submission:
        """See `Attack.on_upload`."""
        if submission is not self._latest:
            self._earlier, self._latest = self._latest, submission
        return self._earlier or submission
