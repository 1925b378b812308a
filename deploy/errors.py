"""Define the errors that `deploy` raises, and how a process says what ended it.

    DeployError
    ├── ConfigError          a configuration, a flag or an input file is not as it must be       2
    ├── RunFailedError       a process of a local run failed; carries the exit code to give
    ├── UnfulfilledError     a training has no round, or a model that is not finite              3
    ├── AuditFailedError     an audit contradicts a printed epsilon                              1
    ├── ExportRefusedError   an export is not what its statement and its signatures say          3
    └── InterruptedRunError  Ctrl-C or SIGTERM                                                  130

Exit codes:

    0    success, or stopped by its operator
    2    invalid input
    3    the protocol refused (parameters differ, a peer cheats or is out of
         step, the ledger or the budget says no), or a training has no model
         to show
    4    a peer is unreachable
    130  interrupted
    1    anything else
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SUCCESS, FAILURE, INVALID_INPUT, REFUSED, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 4, 130


class DeployError(Exception):
    """Base of this package's errors."""


class ConfigError(DeployError):
    """One line per fault: field, what was expected, what was found."""


class RunFailedError(DeployError):
    """A process that the run cannot do without has ended."""

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class UnfulfilledError(DeployError):
    """A training is over without a round, or left the finite numbers; what there is was written."""


class AuditFailedError(DeployError):
    """One line per fault: the seat, what was expected, what was found."""


class ExportRefusedError(DeployError):
    """A file, a statement or a signature of an export is missing, was changed, or is of somebody else."""


class InterruptedRunError(DeployError):
    """The operator interrupted the run; every process was stopped."""


_OWN_CODES: Final[dict[type[DeployError], int]] = {
    AuditFailedError: FAILURE,
    ConfigError: INVALID_INPUT,
    UnfulfilledError: REFUSED,
    ExportRefusedError: REFUSED,
    InterruptedRunError: INTERRUPTED,
}


@functools.cache
def _codes_below() -> tuple[tuple[type[Exception], int], ...]:
    """Return the codes of the errors that other parts raise, most specific first.

    The parts are imported here, since gRPC and cryptography take longer than to refuse a configuration.
    """
    from precad.clients import errors as client_errors
    from precad.deploy.authority.pki import PkiError
    from precad.dp.errors import DpError, MostRoundsError
    from precad.mpc import errors as mpc_errors
    from precad.protos.tls.files import TransportError
    from precad.protos.tls.identity import IdentityError
    from precad.servers import errors as server_errors

    return (
        (server_errors.StoppedError, SUCCESS),
        (client_errors.StoppedError, SUCCESS),
        (server_errors.SetupError, INVALID_INPUT),
        (server_errors.PeerUnreachableError, UNREACHABLE),
        (server_errors.LeadLostError, UNREACHABLE),
        (server_errors.PortLostError, UNREACHABLE),
        (client_errors.ServerUnreachableError, UNREACHABLE),
        (client_errors.TaskEndedError, UNREACHABLE),
        (mpc_errors.ChannelClosedError, UNREACHABLE),
        (MostRoundsError, INVALID_INPUT),
        (mpc_errors.GateUnavailableError, INVALID_INPUT),
        (mpc_errors.EngineUnavailableError, INVALID_INPUT),
        (mpc_errors.ParameterError, INVALID_INPUT),
        (TransportError, INVALID_INPUT),
        (PkiError, INVALID_INPUT),
        (IdentityError, INVALID_INPUT),
        (client_errors.ArgumentError, INVALID_INPUT),
        (client_errors.RecordMixingLayerError, INVALID_INPUT),
        (client_errors.DropoutLayerError, INVALID_INPUT),
        (client_errors.UnsteadyModelError, INVALID_INPUT),
        (client_errors.ModelRecordError, INVALID_INPUT),
        (server_errors.ServerError, REFUSED),
        (client_errors.TaskRefusedError, REFUSED),
        (client_errors.ProtocolError, REFUSED),
        (client_errors.UploadLimitError, REFUSED),
        (client_errors.HolderLimitReachedError, REFUSED),
        (client_errors.QueryRefusedError, REFUSED),
        (client_errors.DivergedError, REFUSED),
        (client_errors.NonFiniteModelError, REFUSED),
        (client_errors.NonFiniteGradientError, REFUSED),
        (client_errors.ClientError, FAILURE),
        (mpc_errors.MpcError, REFUSED),
        (DpError, REFUSED),
    )


@contextmanager
def refusing(
    kinds: type[Exception] | tuple[type[Exception], ...], before: str = "", refusal: type[Exception] = ConfigError
) -> Iterator[None]:
    """Raise `refusal`, as `raised_as` does, in place of errors of these `kinds`. A decorator too."""
    from precad.mpc.errors import raised_as

    with raised_as(refusal, kinds, before):
        yield


def flag_of(name: str) -> str:
    """Return the command line's flag of a parameter, as errors name it."""
    return f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"


def is_known(error: Exception) -> bool:
    """Return whether `error` is one that we raise on purpose, with a message for people."""
    return isinstance(error, DeployError) or any(isinstance(error, kind) for kind, _ in _codes_below())


def exit_code_of(error: Exception) -> int:
    """Return the code that a process ends with because of `error`."""
    if isinstance(error, RunFailedError):
        return error.exit_code
    if isinstance(error, DeployError):
        return next((code for kind, code in _OWN_CODES.items() if isinstance(error, kind)), FAILURE)
    return next((code for kind, code in _codes_below() if isinstance(error, kind)), FAILURE)
