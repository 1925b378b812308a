"""Everything durable of one task at one aggregator, and where it stands.

Read from disk whenever the servers meet, after a crash and after a lost connection alike, so that the two are one case.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import numpy as np
import structlog
from numpy.typing import NDArray

from precad.dp.accountants.earlier_rounds import EarlierTask
from precad.dp.accountants.pld import View
from precad.dp.ledgers.ledger import Ledger
from precad.mpc import joint_coin, ring
from precad.mpc.errors import PeerMismatchError
from precad.mpc.opening import norm
from precad.mpc.prg import Label, Seed
from precad.mpc.ring import RingArray
from precad.protos.messages import convert
from precad.protos.task.evaluation import is_due, n_due
from precad.protos.task.model_update import Past, updated
from precad.protos.task.task import Task
from precad.servers.database.tables import Backend
from precad.servers.errors import SetupError, StoreError, TaskRefusedError
from precad.servers.private_files import private_folder
from precad.servers.store.burnt_tuples import TupleLedger
from precad.servers.store.canary_noise import CanaryNoise
from precad.servers.store.checkpoints import Checkpoints
from precad.servers.store.counted import require_uncounted
from precad.servers.store.folder import (
    open_checkpoints,
    open_ledger,
    open_task_store,
    open_tuple_ledger,
    require_ledger_of,
    require_usable,
)
from precad.servers.store.rounds import Attempt, AttemptState, CommittedRound, EvaluatedRound, TaskStore
from precad.servers.store.standing import Standing

log = structlog.get_logger(__name__)


_AFTER_ITS_CHARGE: Final = (AttemptState.VALIDATED, AttemptState.UNKNOWN)
"""States that a round is in only once its ledger has paid for it. One that was `checking` when its server ended is
told by the ledger alone, and without it begins anew."""


@dataclass(frozen=True, slots=True, repr=False)
class Model:
    """The model between two rounds, with its bytes, which clients download, their digest, and the optimiser's past."""

    parameters: NDArray[np.float32]
    as_bytes: bytes
    digest: bytes
    past: Past

    @classmethod
    def of(cls, parameters: NDArray[np.float32], past: Past) -> Self:
        """Return the model of parameters (d,), its bytes made once."""
        as_bytes = convert.model_to_bytes(parameters)
        return cls(parameters, as_bytes, convert.sha256(as_bytes), past)


@dataclass(slots=True)
class TaskState:
    """Owns the model and every release so far. Open until the stack that it was opened on is closed."""

    task: Task
    initial: NDArray[np.float32]
    store: TaskStore
    ledger: Ledger
    burns: TupleLedger
    checkpoints: Checkpoints
    committed: list[CommittedRound]
    """Every release of a model so far."""
    model: Model
    """The one after them."""
    evaluated: list[EvaluatedRound] = field(default_factory=list)
    """Every finished evaluation."""
    evaluation_numbers: frozenset[int] = frozenset()
    """Numbers that are of evaluations, finished or not: each right after a commit that one is due after. Both servers
    agree on them whatever became of these rounds, since both hold the same commits."""
    lost: frozenset[int] = frozenset()
    """Numbers that were used up and not committed; of evaluations, those that were charged: their verdicts may have
    been asked for."""
    unknown: list[Attempt] = field(default_factory=list)
    """Those of them whose check was charged and began, and whose verdicts this server never saw."""
    turns: dict[str, int] = field(default_factory=dict)
    """The turn of every client, where clients take turns."""
    agreed_round: int = 0
    """The number of the next round when the servers last met. Budgets of levels count every number below it."""
    canary_noise: CanaryNoise | None = None
    """Own noise at the canaries' coordinates, where this server keeps it for an audit."""

    @classmethod
    def open(
        cls,
        stack: AsyncExitStack | ExitStack,
        state_dir: Path,
        task: Task,
        initial: NDArray[np.float32],
        backends: tuple[Backend, Backend] | None = None,
        earlier: Sequence[EarlierTask] | None = None,
    ) -> Self:
        """Open the task's storage, and read where it stands. Raises SetupError, StoreError, DpError.

        initial: the model that the task starts from, (d,).
        backends: of the task's store and of the tuple ledger. None where they are files.
        earlier: as in `open_ledger`.
        """
        at_store, at_burns = backends or (None, None)
        require_usable(state_dir, has_database=backends is not None)
        private_folder(state_dir)
        model = Model.of(initial, Past.first(task))
        store = stack.enter_context(open_task_store(state_dir, task, model.as_bytes, at_store))
        require_ledger_of(store.task_id, state_dir)
        ledger = stack.enter_context(open_ledger(state_dir, task, earlier))
        burns = stack.enter_context(open_tuple_ledger(state_dir, at_burns))
        state = cls(task, initial, store, ledger, burns, open_checkpoints(state_dir, task), [], model)
        state.refresh()
        if state.why_over is None:
            require_uncounted(state_dir)
        return state

    def refresh(self) -> None:
        """Take in what is on disk, when no round is in flight. What is not committed then is lost.

        Raises SetupError when its parts do not belong together, StoreError.
        """
        self.committed = self.store.committed()
        self.checkpoints.keep_only({round.number for round in self.committed})
        if not self.ledger.is_closed:  # else the file knows better than we what was charged: the next start settles
            self.store.settle(self.ledger.rounds)
        self.evaluated, every = self.store.evaluations(), self.task.evaluation_every
        due = (round for n, round in enumerate(self.committed, start=1) if is_due(every, n))
        self.evaluation_numbers = frozenset(round.number + 1 for round in due)
        attempts, numbers = self.store.attempts(), self._released.keys()
        self.lost = self.store.uncommitted() - (self.evaluation_numbers - self.ledger.rounds)
        self.unknown = [attempt for attempt in attempts if attempt.state is AttemptState.UNKNOWN]
        if foreign := self.ledger.rounds - {*numbers, *(attempt.number for attempt in attempts)}:
            raise SetupError(f"state_dir: the ledger holds round {min(foreign)}, of which nothing else is known here")
        paid_first = {attempt.number for attempt in attempts if attempt.state in _AFTER_ITS_CHARGE}
        for done, rounds in (("released", numbers), ("checked", paid_first)):
            if uncharged := rounds - self.ledger.rounds:
                raise SetupError(f"state_dir: round {min(uncharged)} was {done}, and the ledger does not hold it")
        last = self.committed[-1] if self.committed else None
        self.model = self._initial_model if last is None else self._model_of(last.number)
        if last is not None and self.model.digest != last.model_digest:
            raise SetupError(f"state_dir: the checkpoint of round {last.number} is another model")

    @property
    def _initial_model(self) -> Model:
        return Model.of(self.initial, Past.first(self.task))

    def _model_of(self, number: int) -> Model:
        """Return the model after the last committed round, of this number. Raises SetupError."""
        return Model.of(self.checkpoints.model(number), Past(self.n_committed, self.checkpoints.moments(number)))

    @property
    def trim_count(self) -> int:
        """Return F of the coming round, by the outcome of the last test that both servers committed; else the first.

        A round that was lost moves no F: one server may not have seen its margin. Raises ValueError where the servers
        trim no sums.
        """
        rule = self.task.trim_rule
        if rule is None:
            raise ValueError("trim_count: expected a task whose servers trim sums, found another")
        last = self.committed[-1].test if self.committed else None
        return rule.first_count if last is None else rule.next_count(last.trim_count, has_passed=last.has_passed)

    @property
    def n_committed(self) -> int:
        """Return how many releases there were."""
        return len(self.committed)

    @property
    def spent(self) -> dict[View, float]:
        """Return the bounds that the task has reached, largest over clients."""
        return {view: self.ledger.statement(view).epsilon for view in View}

    @property
    def _released(self) -> dict[int, tuple[str, ...]]:
        """Return the clients of every release, of a model or of an evaluation, by its number."""
        of_evaluations = {round.number: round.chosen for round in self.evaluated}
        return {round.number: round.chosen for round in self.committed} | of_evaluations

    def round_task(self, number: int) -> Task:
        """Return the parameters of the round of this number, all rounds before it being over."""
        of_round = self.task.evaluation_round
        return of_round if of_round is not None and number in self.evaluation_numbers else self.task

    def coming(self, number: int) -> Iterator[tuple[int, Task]]:
        """Yield the rounds from this number on, with the parameters of each, as if none of them were lost."""
        n, last = self.n_committed, self.committed[-1].number if self.committed else -1
        for t in itertools.count(number):
            of_round = self.task.evaluation_round if t == last + 1 else None
            if of_round is not None and is_due(self.task.evaluation_every, n):
                yield t, of_round
            elif n < self.task.rounds:
                yield t, self.task
                n, last = n + 1, t
            else:
                return

    @property
    def standing(self) -> Standing:
        """Return what the other server is told."""
        initial = convert.sha256(convert.model_to_bytes(self.initial))
        before, last = [initial, initial, *(round.model_digest for round in self.committed)][-2:]
        return Standing(
            task_id=self.store.task_id,
            n_committed=self.n_committed,
            last_round=self.committed[-1].number if self.committed else 0,
            next_round=self.store.next_round,
            model_digest=last,
            previous_model_digest=before,
        )

    @property
    def why_over(self) -> str | None:
        """Say why no round will follow; None when one may."""
        return self.why_over_at(max(self.agreed_round, self.store.next_round))

    def why_over_at(self, number: int) -> str | None:
        """Say why no round of this number will follow, nor any other one; None when one may."""
        coming, n = next(self.coming(number), None), self.n_committed
        if coming is None:
            return rounds_done(n)
        is_evaluation = coming[1] is not self.task
        due = n_due(self.task.evaluation_every, n) - is_evaluation
        clients = tuple(self.task.clients)
        if not self.ledger.would_exceed(clients, number, is_evaluation=is_evaluation, evaluations_due=due):
            return None
        return rounds_done(n) if n >= self.task.rounds else f"the privacy budget is spent after {n} rounds"

    @property
    def why_over_alone(self) -> str | None:
        """Say why the task is over for a server that the other one has left: all its models may be made already."""
        return rounds_done(self.n_committed) if self.n_committed >= self.task.rounds else self.why_over

    @property
    def can_be_level(self) -> bool:
        """Return whether the other server may have committed the last lost round, which is not lost then."""
        return self._validated is not None

    @property
    def _validated(self) -> Attempt | None:
        """Return the one round that the other server can have committed and we not: the last with verdicts, if it came
        after our last release.

        It was lost at both where a later meeting drew anew: a server that had committed it would have said so there.
        One that says so later would take back a lost round that it has used.
        """
        last = self.committed[-1].number if self.committed else -1
        attempts = [attempt for attempt in self.store.attempts() if attempt.state is AttemptState.VALIDATED]
        attempts = [attempt for attempt in attempts if attempt.number not in self.evaluation_numbers]
        if not attempts or attempts[-1].number <= last:
            return None
        n_drawn_later = self.store.next_round - attempts[-1].number - 1
        return attempts[-1] if n_drawn_later <= self.task.draws_ahead else None

    def deal_turns(self, coin: Seed) -> None:
        """Deal the clients their turns, by the coin that both servers hold."""
        label, b = Label(self.store.task_id, 0), self.task.min_separation
        self.turns = joint_coin.turns(coin, label, sorted(self.task.clients), b)

    def in_turn(self, number: int) -> list[str]:
        """Return the clients that may be drawn in the round of this number, sorted by name."""
        b, clients = self.task.min_separation, sorted(self.task.clients)
        return clients if b == 1 else [client for client in clients if self.turns[client] == number % b]

    def require_rounds_left(self) -> None:
        """Refuse another round once as many were lost as the task allows. Raises TaskRefusedError.

        Every lost round is one that a server which deviates may have used to ask for a verdict, or to draw again.
        """
        if self.n_committed < self.task.rounds and len(self.lost) >= self.task.most_lost_rounds:
            raise TaskRefusedError(
                f"lost_rounds: expected fewer than {self.task.most_lost_rounds} rounds that were drawn and not "
                f"committed, found {len(self.lost)}, the last of them {max(self.lost)}"
            )

    def skip_to(self, next_round: int) -> None:
        """Use up what the other server alone has used up, before it hears anything: it is lost here too.

        Else a server that dies often before it reserves a number would fall behind by more than one. Raises StoreError.
        """
        skipped = range(self.store.next_round, next_round)
        for number in skipped:
            self.store.skip(number)
        self.lost |= frozenset(skipped) - self.evaluation_numbers

    def charges_told(self) -> dict[int, tuple[str, ...]]:
        """Return rounds of the ledger that no standing tells of, with their chosen clients.

        They are those that did not end here, and evaluations after the last commit.
        """
        charged, last = self.ledger.rounds, self.committed[-1].number if self.committed else -1
        in_vain = {attempt.number: attempt.chosen for attempt in self.store.attempts() if attempt.number in charged}
        return in_vain | {round.number: round.chosen for round in self.evaluated if round.number > last}

    def charge_as_well(self, theirs: dict[int, tuple[str, ...]]) -> None:
        """Charge what the other server charged in vain and we did not, of rounds that we drew with it.

        Raises PeerMismatchError for any other round, what `Ledger.charge` raises, StoreError.
        """
        ours = self._released | self.charges_told()
        drawn = (self.store.uncommitted() - self.store.skipped()) | ours.keys()
        for number in sorted(theirs):
            if number not in drawn:
                raise PeerMismatchError(
                    f"charge of round {number} (was a server given back an old state_dir?)",
                    ours="never drawn",
                    peers="charged",
                )
            if set(ours.get(number, theirs[number])) != set(theirs[number]):
                counts = [f"{len(chosen)} clients" for chosen in (ours[number], theirs[number])]
                field = f"clients of round {number} (their names are in the ledgers)"
                raise PeerMismatchError(field, ours=counts[0], peers=counts[1])
        for number in sorted(theirs.keys() - self.ledger.rounds):
            self.store.charged_by_peer(number, theirs[number])
            self.charge(number, theirs[number])
            self.lost |= {number}

    def charge(self, number: int, chosen: Collection[str]) -> None:
        """Charge the round, durably. Raise StoreError when the ledger cannot be written, and what `Ledger.charge`
        raises; then nothing of the round may leave."""
        try:
            self.ledger.charge(number, chosen, is_evaluation=number in self.evaluation_numbers)
        except OSError as error:
            reason = error.strerror or error
            raise StoreError(f"ledger: the charge of round {number} was not recorded: {reason}") from error

    def model_after(self, noisy_sum: RingArray, n_accepted: int) -> Model:
        """Return the model that this sum, (d,), of so many accepted updates makes. Changes nothing.

        Raises TaskRefusedError for a sum that no round of this task has.
        """
        require_possible_sum(noisy_sum, self.task, n_accepted)
        return Model.of(*updated(self.model.parameters, noisy_sum, self.task, self.model.past, n_accepted))

    def commit(self, committed: CommittedRound, model: Model, noisy_sum: RingArray) -> None:
        """Write the model and the sum that made it, then the word that the round is committed; then take it in.

        Raises StoreError; then the round is not committed here.
        """
        self.checkpoints.save(committed.number, model.parameters, noisy_sum, model.past.moments)
        digest = hashlib.sha256()
        for tile in ring.tiles(noisy_sum.size):
            digest.update(ring.to_bytes(noisy_sum[tile]))
        self.store.commit(committed, noisy_sum_digest=digest.digest(), ledger_chain=self.ledger.chain)
        self.committed.append(committed)
        if is_due(self.task.evaluation_every, self.n_committed):
            self.evaluation_numbers |= {committed.number + 1}
            self.lost -= {committed.number + 1} - self.ledger.rounds  # used up there alone, before this was known here
        self.lost -= {committed.number}
        self.model = model
        if self.canary_noise is not None:
            self.canary_noise.keep(committed.number, noisy_sum)

    def take_evaluation(self, evaluated: EvaluatedRound) -> None:
        """Write the sum of an evaluation, and that the round is over; then take it in. Raises StoreError."""
        self.store.evaluated(evaluated, ledger_chain=self.ledger.chain)
        self.evaluated.append(evaluated)

    def attempt(self, number: int) -> Attempt:
        """Return the round that the other server has committed and we have not. Raises PeerMismatchError.

        Only a round whose verdicts are known here can have been committed there: before, our share had not left.
        """
        if (attempt := self._validated) is not None and attempt.number == number:
            return attempt
        raise PeerMismatchError(
            f"round {number} (was a server given back an old state_dir?)",
            ours="no verdicts that may still be committed",
            peers="committed",
        )

    def take_over(self, number: int, noisy_sum: RingArray, model_digest: bytes) -> CommittedRound:
        """Commit the round that the other server has committed, from its noisy sum, (d,).

        Raises PeerMismatchError, TaskRefusedError.
        """
        attempt = self.attempt(number)
        model, spent = self.model_after(noisy_sum, len(attempt.accepted)), self.spent
        if model.digest != model_digest:
            raise PeerMismatchError(
                f"model after round {number}", ours=model.digest.hex()[:16], peers=model_digest.hex()[:16]
            )
        epsilons = (spent[View.ONE_SERVER], spent[View.CLIENTS_ONLY])
        clients = (attempt.chosen, attempt.accepted, attempt.rejected)
        committed = CommittedRound(number, *clients, model.digest, *epsilons, test=attempt.test)
        self.commit(committed, model, noisy_sum)
        return committed


def require_possible_sum(noisy_sum: RingArray, task: Task, n_accepted: int) -> None:
    """Raise TaskRefusedError unless accepted updates and both servers' noise can add up to this sum, (d,).

    An honest sum is refused with probability below e^-50 (`Task.sum_bound`). Clients are told of the error, so that its
    text has no figure.
    """
    found, most = norm(noisy_sum), task.sum_bound(n_accepted)
    if not found <= most * (1 + 2.0**-19):
        log.error("round.impossible_sum", expected_at_most=most, found=found, accepted=n_accepted)
        raise TaskRefusedError(
            "opened sum: expected accepted updates and both servers' noise, found a longer vector than they add up to: "
            "the other server did not follow the protocol"
        )


def rounds_done(n: int) -> str:
    """Say that a task is over, as all of its rounds are done."""
    return f"{n} round{'' if n == 1 else 's'} done"
