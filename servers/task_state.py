"""Everything durable of one task at one aggregator, and where it stands.

Read from disk whenever the servers meet, after a crash and after a lost connection alike, so that the two are one case.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dp.accounting import View
from dp.ledger import Ledger
from mpc.errors import PeerMismatchError
from mpc.ring import RingArray
from protos import convert
from protos.model_update import updated
from protos.task import Task
from servers.checkpoints import Checkpoints
from servers.database import Backend
from servers.errors import SetupError
from servers.private_files import private_folder
from servers.resumption import Standing
from servers.round import keep, pay
from servers.state_dir import (
    open_checkpoints,
    open_ledger,
    open_task_store,
    open_tuple_ledger,
    require_usable,
)
from servers.task_store import Attempt, CommittedRound, TaskStore
from servers.tuple_ledger import TupleLedger


@dataclass(slots=True)
class TaskState:
    """Open until the stack that it was opened on is closed."""

    task: Task
    initial: NDArray[np.float32]
    store: TaskStore
    ledger: Ledger
    burns: TupleLedger
    checkpoints: Checkpoints
    committed: list[CommittedRound]
    """Every release so far."""
    parameters: NDArray[np.float32]
    """The model after them, (d,)."""
    agreed_round: int = 0
    """The number of the next round when the servers last met. Budgets of levels count every number below it."""

    @classmethod
    def open(
        cls,
        stack: AsyncExitStack,
        state_dir: Path,
        task: Task,
        initial: NDArray[np.float32],
        backends: tuple[Backend, Backend] | None = None,
    ) -> Self:
        """initial: the model that the task starts from, (d,). backends: of the task's store and of the tuple ledger,
        where they are not files. Raises SetupError, StoreError, DpError."""
        at_store, at_burns = backends or (None, None)
        require_usable(state_dir, has_database=backends is not None)
        private_folder(state_dir)
        store = stack.enter_context(open_task_store(state_dir, task, convert.model_to_bytes(initial), at_store))
        ledger = stack.enter_context(open_ledger(state_dir, task))
        burns = stack.enter_context(open_tuple_ledger(state_dir, at_burns))
        state = cls(task, initial, store, ledger, burns, open_checkpoints(state_dir, task), [], initial)
        state.refresh()
        return state

    def refresh(self) -> None:
        """Takes in what is on disk. Raises SetupError when its parts do not belong together, StoreError."""
        self.committed = self.store.committed()
        self.checkpoints.keep_only({round.number for round in self.committed})
        known = {*(round.number for round in self.committed), *(attempt.number for attempt in self.store.attempts())}
        if unknown := self.ledger.rounds - known:
            raise SetupError(f"state_dir: the ledger holds round {min(unknown)}, of which nothing else is known here")
        if uncharged := {round.number for round in self.committed} - self.ledger.rounds:
            raise SetupError(f"state_dir: round {min(uncharged)} was released, and the ledger does not hold it")
        self.parameters = self.initial
        if self.committed:
            self.parameters = self.checkpoints.model(self.committed[-1].number)
            if convert.sha256(convert.model_to_bytes(self.parameters)) != self.committed[-1].model_digest:
                raise SetupError(f"state_dir: the checkpoint of round {self.committed[-1].number} is another model")

    @property
    def standing(self) -> Standing:
        """What the other server is told."""
        initial = convert.sha256(convert.model_to_bytes(self.initial))
        before, last = [initial, initial, *(round.model_digest for round in self.committed)][-2:]
        return Standing(
            task_id=self.store.task_id,
            n_committed=len(self.committed),
            last_round=self.committed[-1].number if self.committed else 0,
            next_round=self.store.next_round,
            model_digest=last,
            previous_model_digest=before,
        )

    @property
    def why_over(self) -> str | None:
        """Why no round will follow; None when one may."""
        n = len(self.committed)
        if n >= self.task.rounds:
            return f"{n} rounds done"
        if self.ledger.would_exceed(tuple(self.task.clients), max(self.agreed_round, self.store.next_round)):
            return f"the privacy budget is spent after {n} rounds"
        return None

    def paid_attempts(self) -> dict[int, tuple[str, ...]]:
        """Rounds that the ledger holds and that were not committed here, with their chosen clients."""
        charged = self.ledger.rounds
        return {attempt.number: attempt.chosen for attempt in self.store.attempts() if attempt.number in charged}

    def charge_as_well(self, theirs: dict[int, tuple[str, ...]]) -> None:
        """Charges what the other server charged in vain and we did not: something of it may have reached it.

        Raises what `Ledger.charge` raises, StoreError.
        """
        for number in sorted(theirs.keys() - self.ledger.rounds):
            self.store.charged_by_peer(number, theirs[number])
            pay(self.ledger, number, theirs[number])

    def attempt(self, number: int) -> Attempt:
        """The round that the other server has committed and we have not. Raises PeerMismatchError."""
        if number in self.ledger.rounds:
            for attempt in self.store.attempts():
                if attempt.number == number:
                    return attempt
        raise PeerMismatchError(
            f"round {number} (was a server given back an old state_dir?)", ours="not charged", peers="committed"
        )

    def take_over(self, number: int, noisy_sum: RingArray, model_digest: bytes) -> CommittedRound:
        """Commits the round that the other server has committed, from its noisy sum, (d,). Raises PeerMismatchError."""
        attempt = self.attempt(number)
        parameters = updated(self.parameters, noisy_sum, self.task)
        digest = convert.sha256(convert.model_to_bytes(parameters))
        if digest != model_digest:
            raise PeerMismatchError(
                f"model after round {number}", ours=digest.hex()[:16], peers=model_digest.hex()[:16]
            )
        epsilons = (self.ledger.statement(View.ONE_SERVER).epsilon, self.ledger.statement(View.CLIENTS_ONLY).epsilon)
        committed = CommittedRound(number, attempt.chosen, attempt.accepted, attempt.rejected, digest, *epsilons)
        keep(self.store, self.checkpoints, self.ledger, committed, parameters, noisy_sum)
        self.committed.append(committed)
        self.parameters = parameters
        return committed
