"""The clients of a simulation: who they are, what they hold, who is malicious, and what they compute in a round.

The functions of the deployment do everything. `precad.clients.training.local_update` draws, clips and sums records on
one `RecordEngine`, the records of all chosen clients in one pass. `precad.clients.submission` encodes uploads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from precad.clients.attacks import Attack, Knowledge
from precad.clients.attacks.attack import crafts
from precad.clients.attacks.model_space import ModelSpace
from precad.clients.errors import NonFiniteGradientError, NoVictimError
from precad.clients.gradients.engine import RecordEngine
from precad.clients.gradients.model_stack import ModelByModel, OwnModels
from precad.clients.gradients.record_clipping import RecordClip
from precad.clients.records import Records
from precad.clients.training.conduct import Honest
from precad.clients.training.descent import descend, descend_together, mean_gradient
from precad.clients.training.local_update import local_updates
from precad.clients.training.record_draws import Drawn, EpochBins
from precad.clients.training.round_update import record_clip
from precad.dp.accountants.earlier_rounds import EarlierTask
from precad.lab.simulation.config import SimulationSettings
from precad.lab.simulation.randomness import Sources
from precad.lab.simulation.rules import AggregationRule
from precad.mpc import fixed_point
from precad.mpc.errors import NotFiniteError, OverflowsRingError
from precad.mpc.ring import RingArray
from precad.protos.task.task import Task

Vector = NDArray[np.float64]
_HONEST = Honest()
_COPIES = 8
"""Copies of a client's model while it trains: parameters, velocity, gradients, and what adds them up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Federation:
    """Hold what an algorithm is handed. `records` are those that clients train on: poisoned ones already."""

    task: Task
    settings: SimulationSettings
    records: Mapping[str, Records]
    attacks: Mapping[str, Attack] = field(default_factory=dict)
    """Attacks of the malicious clients; everybody else is honest."""
    engine: RecordEngine
    own_models: Callable[[], OwnModels]
    """The engine for clients that have models of their own, after a local step. The first call makes it."""
    randomness: Sources
    rule: AggregationRule | None = None
    """The rule of a server that sees every update; None: the sum over a public divisor."""
    earlier: Sequence[Sequence[EarlierTask]] = ()
    """By server, finished tasks of the same clients that its ledger would count as well."""
    _bins: dict[str, EpochBins] = field(default_factory=dict)

    def is_malicious(self, client: str) -> bool:
        """Return whether it deviates; records that somebody put into its set are no deviation of its own."""
        return client in self.attacks and not self.attacks[client].follows_protocol

    def drawn(self, t: int, client: str) -> Drawn:
        """Return what the sample of a client's records in round t is of."""
        own = self.records[client]
        if self.task.record_bins is None:
            return Drawn(own, self.task.rate_of(client))
        if client not in self._bins:
            self._bins[client] = EpochBins(self.task, own)
        return self._bins[client].of_round(self.randomness.bins(client), t)

    def record_clip(self) -> RecordClip:
        """Return R, as the task says."""
        return record_clip(self.task)

    def gradients(
        self, t: int, parameters: NDArray[np.float32], chosen: Sequence[str], *, clip: RecordClip, bound: float
    ) -> dict[str, Vector]:
        """Return minus the clipped gradient sums, at most `bound` long: Algorithm 2, lines 1 to 7, of everybody as if
        honest.

        All records in passes together. With `settings.batching = "client"` each client's have passes of their own, as
        in a deployment with a process per client: the same bits.
        """
        groups = [[client] for client in chosen] if self.settings.batching == "client" else [list(chosen)]
        found: dict[str, Vector] = {}
        for group in groups:
            if not group:
                continue
            streams = iter([self.randomness.records(t, client) for client in group])
            drawn = [self.drawn(t, client) for client in group]
            updates = local_updates(
                parameters,
                [one.records for one in drawn],
                engine=self.engine,
                sample_rate=[one.rate for one in drawn],
                record_clip=clip,
                client_clip_norm=bound,
                random_bytes=lambda n, streams=streams: next(streams)(n),  # type: ignore[misc]
            )
            found.update(zip(group, updates, strict=True))
        return found

    def attacked(
        self, t: int, parameters: NDArray[np.float32], updates: Mapping[str, Vector], *, bound: float, step: float
    ) -> dict[str, Vector]:
        """Return the updates with what malicious clients make of theirs.

        A client that has nothing to go on is left out, as one whose own training diverges. An update whose square is
        not finite is left out as well: no server would take it, and no rule could compare it.

        bound: C where somebody enforces it, else infinity. step: what the sum of updates moves the model by.
        """
        malicious = {client for client in updates if self.is_malicious(client)}
        if not malicious:
            return dict(updates)
        train = self._shared_training(t, parameters[: self.task.n_parameters], [c for c in updates if c in malicious])
        spaces = {True: ModelSpace.of(self.task, parameters, bound), False: ModelSpace(len(parameters), bound)}
        seen: dict[bool, tuple[Vector, Vector]] = {}
        result: dict[str, Vector] = {}
        for client, update in updates.items():
            if client not in malicious:
                result[client] = update
                continue
            attack = self.attacks[client]
            space = spaces[crafts(attack)]  # what does not craft is given the upload in a deployment, too
            if crafts(attack) not in seen:
                seen[crafts(attack)] = self._seen(updates, space)
            honest, own = seen[crafts(attack)]
            known = Knowledge(
                parameters=parameters[: space.n_parameters],
                records=self.records[client],
                update=space.updates(update),
                honest=honest,
                own=own,
                n_attackers=len(malicious),
                n_clients=len(updates),
                bound=space.bound,
                step=step,
                train=lambda steps, rate, client=client: train(client, steps, rate),  # type: ignore[misc]
                gradient=partial(mean_gradient, engine=self.engine),
                project=space.project,
                random=self.randomness.attack(t, client),
            )
            try:
                crafted = space.upload(attack.craft(known))
            except (NoVictimError, NonFiniteGradientError):
                continue
            with np.errstate(over="ignore", invalid="ignore"):
                is_length = np.isfinite(np.square(crafted).sum())
            if is_length:
                result[client] = crafted
        return result

    def _seen(self, updates: Mapping[str, Vector], space: ModelSpace) -> tuple[Vector, Vector]:
        """Return the honest clients' updates, (m, n), and the attackers' as if honest, (k, n)."""
        parts: dict[bool, list[Vector]] = {False: [], True: []}
        for client, update in updates.items():
            parts[self.is_malicious(client)].append(space.updates(update))
        honest, own = (np.array(part).reshape(len(part), space.n_parameters) for part in parts.values())
        return honest, own

    def descend(
        self, t: int, parameters: NDArray[np.float32], client: str, *, steps: int, rate: float
    ) -> NDArray[np.float64]:
        """Run `precad.clients.training.descent.descend` on the client's records, as the settings say; parameters
        (d,)."""
        return descend(
            parameters,
            self.records[client],
            engine=self.engine,
            steps=steps,
            rate=rate,
            sample_rate=self.task.rate_of(client),
            training=self.settings,
            random_bytes=self.randomness.records(t, client),
        )

    def descend_all(
        self, t: int, parameters: NDArray[np.float32], clients: Sequence[str], *, steps: int, rate: float
    ) -> dict[str, Vector]:
        """Return what `descend` gives for each of several clients, (d,). All take each step together where that is
        faster.

        Clients come in groups, so that memory for their models stays within the engine's budget.
        """
        models = self.own_models()
        if isinstance(models, ModelByModel):
            return {client: self.descend(t, parameters, client, steps=steps, rate=rate) for client in clients}
        found: dict[str, Vector] = {}
        for group in self.groups(clients):
            trained = descend_together(
                parameters,
                [self.records[client] for client in group],
                models=models,
                steps=steps,
                rate=rate,
                sample_rates=[self.task.rate_of(client) for client in group],
                training=self.settings,
                random_bytes=[self.randomness.records(t, client) for client in group],
            )
            found.update(zip(group, trained, strict=True))
        return found

    def differences(self, t: int, parameters: NDArray[np.float32], clients: Sequence[str]) -> dict[str, Vector]:
        """Return theta_i - theta_t (d,) of each client after the settings' local steps, of everybody as if honest."""
        trained = self.descend_all(
            t, parameters, clients, steps=self.settings.local_steps, rate=self.settings.local_rate
        )
        return {client: found - parameters.astype(np.float64) for client, found in trained.items()}

    def groups(self, clients: Sequence[str]) -> Iterator[list[str]]:
        """Yield the clients in order, so many at a time as their models have room for, some copies of each in
        float64."""
        size = max(1, self.engine.memory_bytes // (_COPIES * 8 * self.task.dim))
        for start in range(0, len(clients), size):
            yield list(clients[start : start + size])

    def _shared_training(
        self, t: int, parameters: NDArray[np.float32], clients: Sequence[str]
    ) -> Callable[[str, int, float], Vector]:
        """Return (client, steps, rate) to `descend`: the first that asks has all with its kind of attack trained,
        together."""
        done: dict[tuple[str, int, float], Vector] = {}

        def train(client: str, steps: int, rate: float) -> Vector:
            if (client, steps, rate) not in done:
                alike = [c for c in clients if type(self.attacks[c]) is type(self.attacks[client])]
                try:
                    trained = self.descend_all(t, parameters, alike, steps=steps, rate=rate)
                except NonFiniteGradientError:  # who is it?
                    trained = {client: self.descend(t, parameters, client, steps=steps, rate=rate)}
                done.update({(c, steps, rate): found for c, found in trained.items()})
            return done[client, steps, rate].copy()

        return train

    def uploads(self, updates: Mapping[str, Vector], *, is_clipped: bool) -> dict[str, RingArray]:
        """Return what everybody shares, see `encoded`, without those who cannot encode what they made."""
        encoded = {client: self.encoded(client, update, is_clipped=is_clipped) for client, update in updates.items()}
        return {client: upload for client, upload in encoded.items() if upload is not None}

    def encoded(self, client: str, update: Vector, *, is_clipped: bool) -> RingArray | None:
        """Encode what the client shares (d,): integers. None where an attacker cannot encode what it made.

        is_clipped: whether honest clients projected their update, and make certain that its norm is within C.
        """
        if not self.is_malicious(client):
            if is_clipped:
                return _HONEST.encode(update, self.task)
            return fixed_point.encode(update, self.task.frac_bits)
        try:
            return self.attacks[client].encode(update, self.task)
        except (NotFiniteError, OverflowsRingError):
            return None

    def aggregate(self, t: int, updates: Mapping[str, Vector]) -> Vector:
        """Aggregate by the rule, (d,): an estimate of the mean. Zero for nobody, unless the rule is private.

        Raises what the rule does; of attackers' updates, `attacked` leaves those out that are not finite.
        """
        assert self.rule is not None  # algorithms ask only where there is one
        if not updates and self.rule.epsilon(1, self.task.delta) is None:
            return np.zeros(self.task.dim)
        matrix = np.array(list(updates.values())).reshape(len(updates), self.task.dim)
        return self.rule.aggregate(matrix, self.randomness.rule(t))
