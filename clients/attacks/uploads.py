"""Attackers whose update is honest and whose upload is not, which the servers refuse to count.

They attack the protocol and not the model. None changes the sum of the others' updates, and the round goes on without
the forger's. A server that can tell by itself what is wrong tells the sender.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

from precad.clients.attacks.attack import Attack
from precad.clients.checks import require_integer, require_positive
from precad.clients.errors import ArgumentError
from precad.clients.submission import ProvedMessage, Submission
from precad.mpc.proved.field import ELEMENT_BYTES
from precad.mpc.proved.submission import Binding
from precad.mpc.ring import WORD_BYTES
from precad.mpc.upload_binding import salted_digest
from precad.protos.messages import convert
from precad.protos.precad.v1 import common_pb2


class Forger(Attack):
    """Base of what works on uploads."""

    __slots__ = ()

    is_deployed_only: ClassVar[bool] = True


def with_payload(submission: Submission, server: int, payload: bytes) -> Submission:
    """Replace the payload to one server, and its digest in the binding: in order, for that server alone.

    The statement to B, which the client makes of the honest binding, stays.
    """
    binding = common_pb2.Binding()
    binding.CopyFrom(submission.binding)
    digest = convert.sha256(payload)
    if server == 0:
        binding.digest_a, payloads = digest, (payload, submission.payloads[1])
    else:
        binding.digest_b = salted_digest(submission.salt, digest)
        payloads = (submission.payloads[0], payload)
    return replace(submission, binding=binding, payloads=payloads)


def with_bytes(message: ProvedMessage, pieces: Callable[[], Iterator[bytes]]) -> ProvedMessage:
    """Replace the payload of an upload or a proof of mode `proved`, and its digest in the binding.

    The statement to the seeded server, which the client makes of the honest binding, stays.
    """
    hasher = hashlib.sha256()
    for piece in pieces():
        hasher.update(piece)
    header, digest = message.header, salted_digest(message.header.salt, hasher.digest())
    binding = header.binding
    if isinstance(binding, Binding):
        return ProvedMessage(replace(header, binding=replace(binding, payload_digest=digest)), pieces)
    return ProvedMessage(replace(header, binding=replace(binding, proof_digest=digest)), pieces)


def flipped(message: ProvedMessage) -> Callable[[], Iterator[bytes]]:
    """Return the message's payload with the first byte's lowest bit flipped."""

    def pieces() -> Iterator[bytes]:
        for i, piece in enumerate(message.pieces()):
            yield piece if i else bytes([piece[0] ^ 1]) + piece[1:]

    return pieces


@dataclass(frozen=True, slots=True)
class InconsistentShares(Forger):
    """Flips a bit of what it uploads, under a binding that fits the flipped bytes.

    Towards the other server it stands by the honest binding.
    In the `shares` form B holds one binding and A another: the upload is left out at the lock. In the `masked` form B
    gets A's upload with a statement that is about another one, and refuses it. So does the seeded server of mode
    `proved`.
    Source: ours; what the exchange of bindings is for (docs/reference/protocol.md).
    """

    name: ClassVar[str] = "inconsistent-shares"

    def on_message(self, message: ProvedMessage) -> ProvedMessage:
        """See `Conduct.on_message`."""
        return with_bytes(message, flipped(message)) if isinstance(message.header.binding, Binding) else message

    def on_upload(self, submission: Submission, server: int) -> Submission:
        """See `Attack.on_upload`."""
        if server != submission.servers[0]:  # of two uploads the first has the words, the second the seed
            return submission
        words = bytearray(submission.payloads[server])
        words[0] ^= 1
        return with_payload(submission, server, bytes(words))


@dataclass(frozen=True, slots=True)
class Late(Forger):
    """Waits for the round's time limit, and `by_s` seconds more, before it uploads.

    Nothing of it counts; what it does is that each of its rounds takes the whole of `submit_timeout_s`.
    """

    by_s: float = 1.0

    name: ClassVar[str] = "late"

    def __post_init__(self) -> None:
        """Raises ArgumentError."""
        require_positive("by_s", self.by_s)

    def delay_s(self, submit_timeout_s: float) -> float:
        """See `Attack.delay_s`."""
        return submit_timeout_s + self.by_s


@dataclass(slots=True)
class Replay(Forger):
    """Uploads, from its second round on, what it made for the round before; in its first it is honest.

    The binding names the round, so that both servers refuse it.
    """

    name: ClassVar[str] = "replay"

    _latest: Submission | None = field(default=None, init=False, repr=False)
    _earlier: Submission | None = field(default=None, init=False, repr=False)
    _message: ProvedMessage | None = field(default=None, init=False, repr=False)

    def on_upload(self, submission: Submission, server: int) -> Submission:
        """See `Attack.on_upload`."""
        if submission is not self._latest:
            self._earlier, self._latest = self._latest, submission
        return self._earlier or submission

    def on_message(self, message: ProvedMessage) -> ProvedMessage:
        """See `Conduct.on_message`. Who is refused its upload makes no proof."""
        if not isinstance(message.header.binding, Binding):
            return message
        earlier, self._message = self._message, message
        return earlier or message


@dataclass(frozen=True, slots=True)
class WrongLength(Forger):
    """Uploads `excess` words too many, or too few where it is negative, to each server, with digests that fit.

    In mode `proved` they are elements.
    """

    excess: int = -1

    name: ClassVar[str] = "wrong-length"

    def __post_init__(self) -> None:
        """Raises ArgumentError for the right length, and for no number of words."""
        require_integer("excess", self.excess)
        if self.excess == 0:
            raise ArgumentError("excess: expected an integer other than 0, which is the right length, found 0")

    def on_upload(self, submission: Submission, server: int) -> Submission:
        """See `Attack.on_upload`."""
        payload, n_bytes = submission.payloads[server], WORD_BYTES * self.excess
        return with_payload(submission, server, payload + bytes(n_bytes) if n_bytes > 0 else payload[:n_bytes])

    def on_message(self, message: ProvedMessage) -> ProvedMessage:
        """See `Conduct.on_message`."""
        n_bytes = ELEMENT_BYTES * self.excess
        if n_bytes > 0:
            return with_bytes(message, lambda: iter((*message.pieces(), bytes(n_bytes))))
        return with_bytes(message, lambda: convert.growing_pieces(b"".join(message.pieces())[:n_bytes]))
