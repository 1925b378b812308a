"""Everything that can go wrong in `servers`, and what a caller over gRPC is told about it.

    ServerError
    ├── PeerUnreachableError        another process of the deployment is gone          exit code 4
    │   └── PeerLateError           the other aggregator was too late with its step    exit code 4
    ├── SetupError                  a file or folder of this server cannot be used     exit code 2
    ├── TaskRefusedError            the protocol refuses to go on                      exit code 3
    │   └── TooFewClientsError      fewer clients than the task needs are here         exit code 3
    ├── StoreError                  what must be on disk first cannot be written       exit code 3
    │   └── LeadLostError           another replica of this server may lead by now     exit code 4
    ├── PortLostError               gRPC has ended by itself                           exit code 4
    ├── AuditError                  an audit log is not what was written                exit code 3
    ├── TaskUnfulfilledError        a task is over and has no model to show             exit code 3
    ├── StoppedError                the operator asked this process to stop
    └── CallRefusedError            one call is refused; the round goes on
        ├── WrongStateError
        ├── AlreadyConnectedError
        ├── NotEnrolledError
        ├── RevokedError
        ├── ParametersDifferError
        ├── NotDealtError
        ├── OverloadedError         with the Limit that was met, and when to ask again
        └── SubmissionRefusedError  with a RefusalReason
            └── NoRoomError

`STATUS_CODES` is the one place where an error becomes a gRPC status. Callers see the text of what is listed there,
which holds public values only. For anything else they see that it failed, and the log has the detail.
"""

from __future__ import annotations

import enum
import re
from typing import Final

import grpc
from google.protobuf.message import DecodeError

from precad.mpc.errors import ChannelClosedError, MalformedMessageError, ParameterError, PeerMismatchError
from precad.protos.tls.identity import IdentityError, PinRefusedError, RoleRefusedError
from precad.protos.tls.key_exchange import KeyExchangeRefusedError


class ServerError(Exception):
    """Base of this package's errors."""


class PeerUnreachableError(ServerError):
    """The link to another process broke without a goodbye."""


class PeerLateError(PeerUnreachableError, ChannelClosedError):
    """The other aggregator's part of a step has not come in time, whatever it says of itself by then."""


class SetupError(ServerError):
    """A file or folder that this server was given cannot be used."""


class TaskRefusedError(ServerError):
    """The task cannot go on as configured: parameters differ, too few clients, the budget is spent."""


class TooFewClientsError(TaskRefusedError):
    """Fewer than min_clients are connected. Operators are told who is absent, clients are not."""

    def __init__(self, counts: str, absent: str) -> None:
        super().__init__(f"{counts}; absent: {absent}")
        self.counts = counts


class TaskUnfulfilledError(ServerError):
    """The task is over without a round, or with a model that is not finite."""


class StoreError(ServerError):
    """Something that must be recorded before the protocol may go on could not be recorded."""


class LeadLostError(StoreError):
    """The session with the database is lost, or another replica leads: this one has nothing to say any more."""


class PortLostError(ServerError):
    """gRPC serves this server's main port no more, by a fault of its own."""


class AuditError(ServerError):
    """An audit log was changed, or does not say what a log of this program can say."""


class StoppedError(ServerError):
    """This process was asked to stop."""


class CallRefusedError(ServerError):
    """One call is refused. No other call, client or round is affected."""


class WrongStateError(CallRefusedError):
    """The call makes no sense now."""


class AlreadyConnectedError(CallRefusedError):
    """Another call holds the place that this one wants."""


class NotEnrolledError(CallRefusedError):
    """The caller's identity is proved and not part of this task."""


class RevokedError(CallRefusedError):
    """The caller's certificate is on this server's list of revoked ones."""


class ParametersDifferError(CallRefusedError):
    """The caller runs another protocol version or other task parameters."""


class NotDealtError(CallRefusedError):
    """The dealer has given this part away before, or no longer has what it would have to fit."""


class Limit(enum.StrEnum):
    """Which limit of a server's configuration a call met. Shared by code and metrics."""

    RATE = "rate"
    CONNECTIONS_OF_CALLER = "connections_of_caller"
    CALLS_OF_CALLER = "calls_of_caller"
    CALLS = "calls"
    UPLOADS = "uploads"
    UPLOAD_BYTES = "upload_bytes"
    DOWNLOADS = "downloads"
    SLOW_TRANSFER = "slow_transfer"


class OverloadedError(CallRefusedError):
    """This server takes no more of it now. Nothing of it was kept: the same call may be made again."""

    def __init__(self, limit: Limit, detail: str, *, retry_after_s: float) -> None:
        """retry_after_s: seconds that the caller should wait at least."""
        super().__init__(f"{limit}: {detail}")
        self.limit, self.retry_after_s = limit, retry_after_s


class RefusalReason(enum.StrEnum):
    """Why an upload, or a proof, never reached validation. Shared by code, logs and metrics."""

    NOT_CHOSEN = "not_chosen"
    WRONG_ROUND = "wrong_round"
    WRONG_CLIENT = "wrong_client"
    WRONG_SERVER = "wrong_server"
    WRONG_BINDING = "wrong_binding"
    WRONG_LENGTH = "wrong_length"
    WRONG_DIGEST = "wrong_digest"
    DUPLICATE = "duplicate"
    LATE = "late"
    MALFORMED = "malformed"
    NO_ROOM = "no_room"
    NOT_ACTIVE = "not_active"
    WRONG_CHALLENGE = "wrong_challenge"


class MeasuringFault(enum.StrEnum):
    """Why a committed model has no figure of its quality. Shared by logs, metrics and status."""

    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    RAISED = "raised"
    WRONG_OUTPUT = "wrong_output"
    NOT_FINITE = "not_finite"
    REFUSED = "refused"


class SubmissionRefusedError(CallRefusedError):
    """One upload is refused; the round goes on without it."""

    def __init__(self, reason: RefusalReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class NoRoomError(SubmissionRefusedError):
    """This server has no room for the upload."""

    def __init__(self, detail: str) -> None:
        super().__init__(RefusalReason.NO_ROOM, detail)


def one_line(error: Exception) -> str:
    """Return an error's text in one line. People read the last line of a log, and libpq's last one names no cause."""
    return "; ".join(" ".join(part.split()) for part in re.split(r"\s*\n\s*(?=[A-Z])", str(error).strip()))


STATUS_CODES: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (RoleRefusedError, grpc.StatusCode.PERMISSION_DENIED),
    (PinRefusedError, grpc.StatusCode.PERMISSION_DENIED),
    (KeyExchangeRefusedError, grpc.StatusCode.PERMISSION_DENIED),
    (IdentityError, grpc.StatusCode.UNAUTHENTICATED),
    (NotEnrolledError, grpc.StatusCode.PERMISSION_DENIED),
    (RevokedError, grpc.StatusCode.PERMISSION_DENIED),
    (AlreadyConnectedError, grpc.StatusCode.ALREADY_EXISTS),
    (ParametersDifferError, grpc.StatusCode.FAILED_PRECONDITION),
    (WrongStateError, grpc.StatusCode.FAILED_PRECONDITION),
    (OverloadedError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (NoRoomError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (SubmissionRefusedError, grpc.StatusCode.INVALID_ARGUMENT),
    (LeadLostError, grpc.StatusCode.UNAVAILABLE),  # another replica leads, or will: asked again, that one answers
    (StoreError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (PeerMismatchError, grpc.StatusCode.FAILED_PRECONDITION),
    (NotDealtError, grpc.StatusCode.FAILED_PRECONDITION),
    (MalformedMessageError, grpc.StatusCode.INVALID_ARGUMENT),
    (ParameterError, grpc.StatusCode.INVALID_ARGUMENT),
    (DecodeError, grpc.StatusCode.INVALID_ARGUMENT),
)
"""Most specific first."""


_UNRECORDED: Final = "this server cannot read or write what it must; its log says more"


def status_of(error: Exception) -> tuple[grpc.StatusCode, str]:
    """Return (status, public text) of an error that ends a call. What names files and databases is not in the text."""
    for kind, code in STATUS_CODES:
        if isinstance(error, kind):
            return code, _UNRECORDED if isinstance(error, StoreError) else str(error)
    return grpc.StatusCode.INTERNAL, "internal error; the server's log has the detail"
