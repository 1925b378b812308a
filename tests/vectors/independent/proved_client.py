"""A client of mode `proved`, with the rules C0 to C3 of section 12 of `docs/reference/protocol-v2.md`."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.vectors.independent import server
from tests.vectors.independent.proved_messages import Round, Sent, agree, proof_message, submission
from tests.vectors.independent.proved_parameters import Sizes
from tests.vectors.independent.proved_proof import Masks, SilentError, prove
from tests.vectors.independent.ring import RefusedError

UPLOADS_PER_MODEL = 3


class Client:
    """One client of one task. What it refuses or leaves unanswered ends the round for it, and nothing else."""

    def __init__(
        self,
        name: str,
        draw: Callable[[int], bytes] = secrets.token_bytes,
        masks: Callable[[Sizes], Masks] = Masks.fresh,
    ) -> None:
        self.name, self._draw, self._masks = name, draw, masks
        self._answered: set[int] = set()
        self._uploads: Counter[tuple[bytes, int]] = Counter()
        self._open: _Open | None = None

    def upload(self, round: Round, invitations: Sequence[Mapping[str, Any]], x: Sequence[int]) -> Sent:
        """Return the round's upload, once. invitations: A's and B's, each from that server's own connection.

        Refuse (`invitation`) a second invitation for a round, a seed from the holder, and a fourth upload for a model.
        """
        slot, seed = agree(invitations, round.sizes.dim)
        said = (invitations[0]["task"], invitations[0]["round"], invitations[0]["model_digest"])
        model = (round.model_digest, invitations[0]["n_committed"])
        if said != (round.task, round.round, round.model_digest) or round.round in self._answered:
            raise RefusedError("invitation")
        if self._uploads[model] >= UPLOADS_PER_MODEL:
            raise RefusedError("invitation")
        self._answered.add(round.round)
        self._uploads[model] += 1
        sent = submission(x, round, slot, self.name, seed, self._draw(32))
        self._open = _Open(round, slot, seed, list(x), sent)
        return sent

    def challenge(self, party: int, round: int, seed: bytes) -> Sent | None:
        """Return the proof once both servers have sent one challenge for the open upload; None while it is silent."""
        if self._open is None or self._open.round.round != round:
            return None
        challenge = self._open.heard(party, seed)
        return None if challenge is None else self._proof(self._open, challenge)

    def _proof(self, upload: _Open, challenge: bytes) -> Sent | None:
        """Return the one proof of an upload, or None where a number does not fit its bits."""
        at = upload.round
        rows = server.row_streams(challenge, at.task, at.round, at.sizes.dim)
        try:
            proof = prove(upload.x, rows, at.sizes, self._masks(at.sizes))
        except SilentError:
            return None
        known = (upload.slot, upload.last.binding, challenge, upload.seed)
        upload.last = proof_message(proof, at, *known, self._draw(32))
        return upload.last

    def again(self) -> Sent | None:
        """Return the last message again, byte for byte, for a call that was cut off or refused for overload."""
        return None if self._open is None else self._open.last

    def end(self) -> None:
        """Forget seed, salts, masks and update: the round is over, however it ended."""
        self._open = None


class _Open:
    """One upload until the round's end: it has at most one proof."""

    def __init__(self, round: Round, slot: int, seed: bytes, x: list[int], upload: Sent) -> None:
        self.round, self.slot, self.seed, self.x, self.last = round, slot, seed, x, upload
        self._heard: dict[int, bytes] = {}
        self._is_over = False

    def heard(self, party: int, challenge: bytes) -> bytes | None:
        """Return the challenge to answer: once, and only when both servers have sent the same one."""
        if self._is_over:
            return None
        is_new = self._heard.setdefault(party, challenge) == challenge and len(challenge) == 16
        self._is_over = not is_new or len(self._heard) == 2
        return challenge if is_new and self._heard.get(0) == self._heard.get(1) else None
