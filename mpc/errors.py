"""Everything that can go wrong in `mpc`.

    MpcError
    ├── ParameterError (ValueError)     a public parameter breaks a condition that a proof needs
    ├── EncodingError (ValueError)      a real vector has no fixed-point encoding
    │   ├── NotFiniteError
    │   └── OverflowsRingError
    ├── MalformedMessageError           bytes that no honest party sends
    ├── PeerMismatchError               the two servers are out of step
    │   └── VerdictsDifferError         they do not accept the same clients
    ├── OutsideWindowError              a client's row leaves its window, so that no proof leaves the client
    ├── ProofRefusedError               an upload or a proof that the holder, or the seeded server, does not take
    ├── ProofQueriedTwiceError          a proof asked for at points beyond the first two
    ├── ShareSeedReusedError            a second vector, or a second proof, under one share seed
    ├── CommitmentError                 what a server reveals is not what it committed to
    ├── TupleReusedError                correlated randomness asked for twice
    ├── TupleExhaustedError             more correlated randomness asked for than was dealt
    ├── GateUnavailableError            the chosen comparison gate is not installed
    ├── FunctionRefusedError            a function of the shared sum does what no dealt tuple is for, or is another
    ├── EngineUnavailableError          the chosen engine needs a device or a package that is not there
    └── ChannelClosedError              the peer is gone

Messages name fields, shapes and expectations. They never hold a share, a seed, a mask or an update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class MpcError(Exception):
    """Base of this package's errors."""


class ParameterError(MpcError, ValueError):
    """A public parameter is outside the region in which the protocol is proved sound and complete."""


class EncodingError(MpcError, ValueError):
    """A real vector cannot be encoded."""


class NotFiniteError(EncodingError):
    """The vector holds a NaN or an infinity."""


class OverflowsRingError(EncodingError):
    """A coordinate's encoding does not fit a signed 64-bit word."""


class MalformedMessageError(MpcError):
    """A message has a length or a structure that no honest party sends."""


class PeerMismatchError(MpcError):
    """Both servers must hold the same value of `field`; they do not."""

    def __init__(self, field: str, *, ours: object, peers: object) -> None:
        super().__init__(f"{field} differs between the servers: ours {ours}, peer's {peers}")
        self.field = field


class VerdictsDifferError(PeerMismatchError):
    """The servers do not accept the same clients. The text, which clients are told, names none of them."""

    def __init__(self, clients: Sequence[str]) -> None:
        """clients: those on whom the servers differ."""
        MpcError.__init__(self, "verdicts differ between the servers: one of them did not follow the protocol")
        self.field, self.clients = "verdicts", tuple(clients)


class OutsideWindowError(MpcError):
    """A row value of an honest vector leaves its window, with probability 2^-40. The client is silent for the round."""


class ProofRefusedError(MpcError):
    """An upload or a proof is not what the server expects; it is not kept."""

    def __init__(self, reason: str, message: str) -> None:
        """reason: the protocol's word, as in `wrong_challenge`."""
        super().__init__(f"{reason}: {message}")
        self.reason = reason


class ProofQueriedTwiceError(MpcError):
    """A second query of one round's proofs. A value at a third point would give a linear function of an update."""


class ShareSeedReusedError(MpcError):
    """A second vector, or a second proof, under one share seed. Both together would show their difference."""


class CommitmentError(MpcError):
    """The peer revealed something else than it had committed to."""


class TupleReusedError(MpcError):
    """A one-time tuple was asked for a second time. Using it would reveal the difference of two updates."""


class TupleExhaustedError(MpcError):
    """A protocol asks for more correlations than the dealer made for the round."""


class GateUnavailableError(MpcError):
    """The configured comparison gate needs a package that is not installed."""


class FunctionRefusedError(MpcError):
    """A function of the shared sum is not the one that is named, or does what the servers have no tuples for."""


class EngineUnavailableError(MpcError):
    """The configured engine needs a package that is not installed, or a device that is not there."""


class ChannelClosedError(MpcError):
    """The other party closed its end, or is gone."""


@contextmanager
def raised_as(
    refusal: type[Exception], kinds: type[Exception] | tuple[type[Exception], ...], before: str = ""
) -> Iterator[None]:
    """Raise `refusal` in place of errors of these `kinds`, with their words behind `before`. A decorator too.

    An error of the system has only its reason as words, since `before` names the file.
    """
    try:
        yield
    except kinds as error:
        reason = getattr(error, "strerror", None) or error
        raise refusal(f"{before}: {reason}" if before else str(reason)) from None
