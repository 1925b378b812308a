"""Pay each upload of a client, or epoch of its bins, from its holder's own ledger, before a byte of it leaves."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Final, Self

from precad.clients.config import ClientConfig
from precad.clients.errors import ArgumentError, HolderLimitReachedError, StateFileError
from precad.clients.holder_limit import CLIENT, HolderLimit
from precad.dp.accountants.calibration import largest
from precad.dp.accountants.pld import SampledGaussian
from precad.dp.errors import DpError, HolderLimitError, LedgerInUseError
from precad.dp.ledgers.holder import Account, HolderLedger, Payment, Terms, has_begun, read
from precad.dp.task_privacy import answer_event, upload_events
from precad.mpc.errors import raised_as
from precad.protos.task.task import EvaluationRound, Task

WAIT_S: Final = 10.0
"""How long a payment of another process may keep the file."""


class Payments:
    """One client's payments in one task. Each opens the file anew, as other tasks pay from it too. Blocking."""

    def __init__(
        self,
        task: Task,
        client: str,
        limit: HolderLimit,
        evaluation: EvaluationRound | None = None,
        answer: SampledGaussian | None = None,
    ) -> None:
        """Makes no file. evaluation: what is paid for, if it is no upload of the training. answer: as what it is paid.

        Raises ArgumentError where the limit leaves room for no round of any task.
        """
        self._limit, self._file = limit, limit.ledger_of(client)
        event, times = upload_events(evaluation or task, limit.records_per_person)
        try:
            self._new = Terms(
                limit_epsilon=limit.limit_epsilon, delta=limit.delta, records_per_person=limit.records_per_person
            )
        except ValueError as error:
            raise ArgumentError(f"client.holder.{error}") from None
        self._payment = Payment(
            client=client,
            task=task.digest().hex(),
            why=_why(task) if evaluation is None else "evaluation",
            event=answer or event,
            times=times,
            slack=task.upload_slack * (task.record_bins or 1),
        )

    def for_rounds(self, n: int, why: str) -> Self:
        """Return payments of n uploads, or epochs, in one. why: what they are for, as a statement says it."""
        several = copy(self)
        several._payment = replace(self._payment, times=n * self._payment.times, slack=n * self._payment.slack, why=why)
        return several

    def require_room(self, *others: Payments) -> None:
        """Refuse what the limit would refuse, before work is done in vain. others: from the same ledger, beside it.

        Changes nothing. Raises HolderLimitReachedError, StateFileError.
        """
        with self._explained():
            self._account().require_room(self._payment, *(other._payment for other in others))

    def uploads_left(self) -> int:
        """Return how many more uploads, or epochs, of this task the limit has room for. Raises StateFileError."""
        with self._explained():
            return self._account().payments_left(self._payment)

    def are_ended_by_delta(self) -> bool:
        """Tell whether what the protocol takes of delta ends uploads before epsilon does. Raises StateFileError."""
        with self._explained():
            return self._account().is_ended_by_delta(self._payment)

    def uploads_left_beside(self, evaluations: Payments, due: Callable[[int], int]) -> int:
        """Return how many more uploads, or epochs, the limit has room for with their evaluations, paid beside them.

        due: how many there are beside n uploads; no fewer beside more. Raises StateFileError.
        """
        with self._explained():
            account = self._account()
            return largest(
                lambda n: account.has_room(*self._bill(n), *evaluations._bill(due(n))),
                account.payments_left(self._payment),
            )

    def _bill(self, n: int) -> list[Payment]:
        return [self.for_rounds(n, self._payment.why)._payment] if n else []

    def pay(self) -> None:
        """Pay one upload, or epoch, on disk on return.

        Raises HolderLimitReachedError, StateFileError; then nothing may leave.
        """
        with self._explained(), self._opened() as ledger:
            ledger.pay(self._payment)

    def _account(self) -> Account:
        """Return the payments so far, of whatever version of precad began the file. Raises DpError, StateFileError."""
        if not has_begun(self._file):
            return Account(self._new)
        account, _ = read(self._file)
        for name in ("limit_epsilon", "delta", "records_per_person"):
            if (found := getattr(self._limit, name)) != (began := getattr(account.terms, name)):
                raise StateFileError(
                    f"client.holder.{name}: expected {began:g}, with which {self._file} began, found {found:g}"
                )
        return account

    def _opened(self) -> HolderLedger:
        """Open the file once no other payment has it. Raises DpError, OSError."""
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        terms, deadline = self._account().terms, time.monotonic() + WAIT_S
        while True:
            try:
                return HolderLedger(self._file, terms)
            except LedgerInUseError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.02)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise HolderLimitReachedError or StateFileError for what goes wrong with a file."""
        expected = f"client.holder.ledger: expected a ledger to read and write, found {self._file}"
        with raised_as(StateFileError, (DpError, OSError), expected):
            try:
                yield
            except HolderLimitError as error:
                raise HolderLimitReachedError(error, self._file) from None


def _why(task: Task) -> str:
    return "upload" if task.record_bins is None else "epoch"


def payments_of(task: Task, clients: Collection[str], limit: HolderLimit | None) -> dict[str, Payments]:
    """Return each client's payments; none where the holder sets no limit.

    Raises: ArgumentError where several clients would share a file.
    """
    _require_own_files(clients, limit)
    return {} if limit is None else {client: Payments(task, client, limit) for client in clients}


def payments_of_answers(task: Task, clients: Collection[str], config: ClientConfig) -> dict[str, Payments]:
    """Return each client's payments of evaluations; none where the task has none, or the holder sets no limit.

    Raises: ArgumentError where several clients would share a file.
    """
    if (limit := config.holder) is None or (evaluation := task.evaluation_round) is None:
        return {}
    _require_own_files(clients, limit)
    event = None if config.trainer is None else answer_event(evaluation)
    return {client: Payments(task, client, limit, evaluation, event) for client in clients}


def _require_own_files(clients: Collection[str], limit: HolderLimit | None) -> None:
    if limit is not None and len(clients) > 1 and CLIENT not in str(limit.ledger):
        raise ArgumentError(
            f"client.holder.ledger: expected {CLIENT} in the name, as {len(clients)} clients are here and each has "
            f"records of its own, found {limit.ledger}"
        )
