"""One client's answer to a query: charged to its own limit, encoded record by record, within the ball of radius C."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import structlog
from numpy.typing import NDArray

from precad.clients.errors import ArgumentError, QueryRefusedError, StateFileError
from precad.clients.queries.columns import Values
from precad.clients.query_consent import QueryConsent, refusal
from precad.clients.training.conduct import Conduct
from precad.clients.training.projection import project
from precad.dp.accountants.pld import View
from precad.dp.errors import BudgetExceededError, DpError
from precad.dp.ledgers.spending import Spending
from precad.dp.task_privacy import task_privacy
from precad.mpc.ring import RingArray
from precad.protos.task.task import Task

log = structlog.get_logger(__name__)


class Answers:
    """Answers of the clients that one process hosts, to the query of one task.

    - `values`: each client's, (n,), of any content
    - `consent`: the word of the operator of this process, for each of its clients

    Raises: QueryRefusedError where a client does not agree, or has no room for one more answer; StateFileError.
    """

    def __init__(
        self,
        *,
        task: Task,
        values: Mapping[str, Values],
        conducts: Mapping[str, Conduct],
        consent: QueryConsent | None,
        state_dir: Path,
    ) -> None:
        if task.query is None:
            raise ArgumentError("task.query: expected a query, found none")
        if (why := refusal(task.query, consent)) is not None or consent is None:
            raise QueryRefusedError(why or "client.queries: expected a section, found none")
        self._task, self._query, self._conducts, self._consent = task, task.query, conducts, consent
        self._state_dir = state_dir
        event = task_privacy(task).events[View.ONE_SERVER]
        if event is None:
            raise ArgumentError("noise_multiplier: expected noise that protects the answer, found none")
        self._multiplier = event.noise_multiplier / event.group_size  # all of a person's records answer
        self._encoding = self._query.encoding(task.frac_bits)
        self._totals = {name: self._encoding.total(own) for name, own in values.items()}
        for name in values:
            with self._spending(name) as spending:
                self._within_limit(name, lambda: spending.require_room(self._multiplier, task.delta_slack))

    def train(self, client: str, parameters: NDArray[np.float32]) -> RingArray:
        """Return this client's encoded answer, (k,), whatever the model is. Called by one thread per client.

        The answer is charged first, each time that servers ask: a server that deviates may learn from a lost round.
        Raises: ClientError; nothing may be uploaded then.
        """
        with self._spending(client) as spending:
            own = (self._task.digest().hex(), self._query.column, self._multiplier, self._task.delta_slack)
            self._within_limit(client, lambda: spending.charge(*own))
            spent = spending.epsilon
        log.info("client.answers", client=client, kind=str(self._query.kind), column=self._query.column, epsilon=spent)
        conduct = self._conducts[client]
        return conduct.encode(conduct.on_update(self.answer(client)), self._task)

    def close(self) -> None:
        """Do nothing: there is nobody to end."""

    def answer(self, client: str) -> Values:
        """Return the sum of the client's vectors, (k,), of norm at most C, before conduct and encoding."""
        return project(self._totals[client], self._task.client_clip)

    def _spending(self, client: str) -> Spending:
        """Open the record of this client's answers. Raises StateFileError."""
        assert self._consent is not None  # a client without one was refused
        path = self._state_dir / f"{client}.queries"
        try:
            self._state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            return Spending(path, client=client, limit_epsilon=self._consent.limit_epsilon, delta=self._consent.delta)
        except (DpError, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise StateFileError(
                f"client.state_dir: expected a record of answers to read and write, found {path}: {why}"
            ) from None

    def _within_limit(self, client: str, charge: Callable[[], None]) -> None:
        """Charge, or ask for room. Raises QueryRefusedError over the limit, StateFileError."""
        try:
            charge()
        except BudgetExceededError as error:
            raise QueryRefusedError(
                f"client.queries.limit_epsilon: expected room for one more answer of {client}, within "
                f"{error.budget:g}, found {error.would_be:.4g} after it"
            ) from None
        except OSError as error:
            raise StateFileError(
                f"client.state_dir: expected a record of answers to write, found {error.strerror or error}"
            ) from None
