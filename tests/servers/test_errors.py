"""The one table from errors to gRPC statuses: complete, most specific first, and silent about what is not public."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import grpc
import pytest

from precad.mpc import errors as mpc_errors
from precad.protos.tls import identity
from precad.protos.tls.identity import Role
from precad.servers import errors
from precad.servers.door.calls import refusing
from precad.servers.errors import STATUS_CODES, CallRefusedError, RefusalReason, SubmissionRefusedError, status_of
from precad.servers.telemetry.events import Telemetry

SECRET = "d0c5eed0d0c5eed0"


def subclasses(base: type) -> Iterator[type]:
    for kind in base.__subclasses__():
        yield kind
        yield from subclasses(kind)


def bare(kind: type[Exception], text: str) -> Exception:
    """An error of this kind, whatever its constructor asks for."""
    error = kind.__new__(kind)
    Exception.__init__(error, text)
    return error


@pytest.mark.parametrize("kind", list(subclasses(CallRefusedError)), ids=lambda kind: kind.__name__)
def test_every_refusal_has_a_code_and_shows_its_text(kind: type[Exception]) -> None:
    code, text = status_of(bare(kind, "why"))
    assert code not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.OK)
    assert text == "why"


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (identity.IdentityError, grpc.StatusCode.UNAUTHENTICATED),
        (identity.RoleRefusedError, grpc.StatusCode.PERMISSION_DENIED),
        (identity.PinRefusedError, grpc.StatusCode.PERMISSION_DENIED),
        (errors.NotEnrolledError, grpc.StatusCode.PERMISSION_DENIED),
        (errors.AlreadyConnectedError, grpc.StatusCode.ALREADY_EXISTS),
        (errors.ParametersDifferError, grpc.StatusCode.FAILED_PRECONDITION),
        (errors.WrongStateError, grpc.StatusCode.FAILED_PRECONDITION),
        (errors.SubmissionRefusedError, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_codes_are_the_ones_that_modules_promise(kind: type[Exception], code: grpc.StatusCode) -> None:
    assert status_of(bare(kind, ""))[0] is code


def test_no_entry_hides_a_more_specific_one() -> None:
    kinds = [kind for kind, _ in STATUS_CODES]
    for i, kind in enumerate(kinds):
        assert not any(issubclass(kind, earlier) for earlier in kinds[:i]), kind


@pytest.mark.parametrize(
    "kind",
    [
        Exception,
        ValueError,
        RuntimeError,
        grpc.RpcError,
        errors.ServerError,
        errors.PeerUnreachableError,
        errors.SetupError,
        errors.TaskRefusedError,
        errors.StoppedError,
        mpc_errors.TupleReusedError,
        mpc_errors.CommitmentError,
        mpc_errors.EncodingError,
    ],
)
def test_what_the_table_does_not_know_leaks_no_text(kind: type[Exception]) -> None:
    assert status_of(bare(kind, SECRET)) == (
        grpc.StatusCode.INTERNAL,
        "internal error; the server's log has the detail",
    )


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.StoreError, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (errors.LeadLostError, grpc.StatusCode.UNAVAILABLE),  # so that an aggregator waits for the dealer that leads
    ],
)
def test_what_cannot_be_recorded_names_no_file_and_no_database(kind: type[Exception], code: grpc.StatusCode) -> None:
    """An aggregator passes on to its clients why the dealer refused."""
    assert status_of(bare(kind, SECRET)) == (code, "this server cannot read or write what it must; its log says more")


@pytest.mark.parametrize("reason", RefusalReason)
def test_a_refused_submission_names_its_reason(reason: RefusalReason) -> None:
    error = SubmissionRefusedError(reason, "detail")
    assert (str(error), error.reason) == (f"{reason.value}: detail", reason)


class Call:
    """A servicer context as far as refusals go."""

    aborted: tuple[grpc.StatusCode, str] | None = None

    trailer: tuple[tuple[str, str], ...] = ()

    def auth_context(self) -> dict[str, list[bytes]]:
        """Nobody proved who they are."""
        return {}

    async def abort(
        self, code: grpc.StatusCode, text: str, trailing_metadata: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """As gRPC does: raises."""
        self.aborted, self.trailer = (code, text), trailing_metadata
        raise grpc.aio.AbortError


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (errors.NotEnrolledError("who?"), grpc.StatusCode.PERMISSION_DENIED, "who?"),
        (KeyError(SECRET), grpc.StatusCode.INTERNAL, "internal error; the server's log has the detail"),
    ],
)
def test_a_servicers_error_becomes_the_calls_status(error: Exception, code: grpc.StatusCode, text: str) -> None:
    call = Call()

    async def serve() -> None:
        async with refusing("Submit", call, Telemetry(Role.AGGREGATOR_A)):
            raise error

    with pytest.raises(grpc.aio.AbortError):
        asyncio.run(serve())
    assert call.aborted == (code, text)


def test_a_cancelled_call_is_no_error_of_ours() -> None:
    """The caller hung up: nothing is aborted, nothing is logged as a failure."""
    call = Call()

    async def serve() -> None:
        async with refusing("Submit", call, Telemetry(Role.AGGREGATOR_A)):
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(serve())
    assert call.aborted is None


def test_an_error_of_several_lines_becomes_one_that_begins_with_its_cause() -> None:
    """As libpq says it of a server that was killed."""
    said = (
        "consuming input failed: server closed the connection unexpectedly\n"
        "\tThis probably means the server terminated abnormally\n\tbefore or while processing the request.\n"
    )
    assert errors.one_line(Exception(said)) == (
        "consuming input failed: server closed the connection unexpectedly; This probably means the server terminated "
        "abnormally before or while processing the request."
    )
