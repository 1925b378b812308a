"""Take the rounds of a deployment apart by what its real audit clients wrote down.

The auditor computes every gradient by itself, in float64, at the models that these clients were sent. An update is
taken apart into single records (`real`). A round's released sum is read from two models that follow one another:
W / eta (theta_(t+1) - theta_t). Uploads of everybody else stay secret.

Guesses of coins look at released models and records alone. For each record the sum is decoded linearly, with the least
mean square error that the noise allows. A guess that knew other records' coins would make the guesses depend on one
another beyond what their bounds allow. Updates of others pull along the same directions, so such guesses show little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precad.clients.auditing.real_file import RealContribution, RealSecrets
from precad.clients.models import networks
from precad.dp.accountants.pld import SampledGaussian, View
from precad.dp.auditing.beside_others import Draws
from precad.dp.auditing.observed import Observed
from precad.dp.task_privacy import task_privacy
from precad.lab.auditing.real_records import Apart, Vector, single_gradients, taken_apart
from precad.mpc import fixed_point
from precad.protos.task.task import Task
from precad.servers.errors import AuditError

_LEAST_GAIN = 1e-6
"""Share of a record that is decoded, at least, for its score to count."""


@dataclass(frozen=True, slots=True, eq=False)
class Released:
    """Hold the committed rounds of a task, in order."""

    first_model: str
    """Digest."""
    rounds: Sequence[tuple[str, frozenset[str]]]
    """The digest of the model after each, and who was accepted."""
    last_model: NDArray[np.float32] | None
    """(d,), where it is known."""


@dataclass(slots=True, eq=False)
class RealRounds:
    """Rows of all rounds with a real audit client in them, of all m records, in units of R."""

    coins: NDArray[np.bool_]
    """(m,)."""
    weights: list[Vector] = field(default_factory=list)
    """(m,): what each record added to its client's update; 0 where it was not drawn."""
    tellable: list[NDArray[np.bool_]] = field(default_factory=list)
    """(m,): of which records it can be told whether they were drawn."""
    present: list[NDArray[np.bool_]] = field(default_factory=list)
    """(m,): whose client was in the round."""
    excess: float = 0.0
    """Most that a record added, less what rounding to the grid may."""
    unexplained: float = 0.0
    scores: list[Vector] = field(default_factory=list)
    """(m,): each record's part of the released sum as decoded, of rounds whose models are both known."""
    scored: list[NDArray[np.bool_]] = field(default_factory=list)
    """(m,): whose client was in such a round."""
    draws: list[Draws] = field(default_factory=list)
    """Draws of such a round: those of records that are among their client's, and can be told."""
    energy: float = 0.0
    """Sum of squares, over such rounds and all parameters, of what is left of the released sum."""
    n_energy: int = 0

    def observed(self) -> Observed | None:
        """Return what guesses in one run are made by; None where no released sum is known."""
        if not self.scores:
            return None
        scores = np.array(self.scores)
        return Observed(scores, np.zeros_like(scores), np.array(self.scored), self.coins)

    @property
    def all_draws(self) -> Draws:
        """Return the draws of all rounds whose released sum is known."""
        parts = [(one.weights, one.expected, one.left, one.uploaded) for one in self.draws]
        return Draws(*(np.concatenate([[], *column]) for column in zip(*parts, strict=True))) if parts else _NO_DRAWS


_NO_DRAWS = Draws(*(np.zeros(0) for _ in range(4)))


def rounds_of(task: Task, released: Released, secrets: Mapping[str, RealSecrets]) -> RealRounds | None:
    """Return what the rounds show; None where no real audit client was in one.

    Raises AuditError where a client's file does not say what it uploaded to a round that accepted it.
    """
    if not secrets:
        return None
    coins = [one.coins for one in secrets.values() if one.coins is not None]
    rounds, reader = RealRounds(np.concatenate(coins)), _Reader(task, secrets)
    models, before = _models(task, released, secrets), released.first_model
    for t, (after, accepted) in enumerate(released.rounds):
        found = {client: one for client in secrets if (one := _contributed(client, secrets, t, before, accepted))}
        if found:
            _add(rounds, reader.read(found, models.get(after), t))
        before = after
    return rounds if rounds.weights else None


def _contributed(
    client: str, secrets: Mapping[str, RealSecrets], t: int, model: str, accepted: frozenset[str]
) -> RealContribution | None:
    """Return what a client uploaded to the round after t committed ones; None where it was not accepted."""
    if client not in accepted:
        return None
    found = [one for one in secrets[client].contributions if one.n_committed == t and one.model_digest.hex() == model]
    if not found:
        raise AuditError(
            f"after {t} rounds: expected what {client} added to model {model[:16]} in its file, found none"
        )
    return found[-1]  # it may have been asked again


def _models(task: Task, released: Released, secrets: Mapping[str, RealSecrets]) -> dict[str, NDArray[np.float32]]:
    """Return the parameters (n,) of all models that somebody wrote down, by digest."""
    found = {one.model_digest.hex(): one.parameters for of in secrets.values() for one in of.contributions}
    if released.rounds and released.last_model is not None:
        found[released.rounds[-1][0]] = released.last_model[: task.n_parameters]
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Round:
    """A round taken apart, of the records of the clients that were in it."""

    rows: NDArray[np.int64]
    """(k,): which of the m records these are."""
    apart: Sequence[Apart]
    """By client, in order."""
    uploaded: Vector
    """(n,): the sum of these clients' updates."""
    total: Vector | None
    """(n,): the released sum, where both models are known."""
    rate: float
    noise: float
    """Noise multiplier of the clients' view, as it is printed."""

    def all_of(self, name: str) -> NDArray[Any]:
        """Return one row or matrix of all clients together."""
        return np.concatenate([getattr(one, name) for one in self.apart])


class _Reader:
    """Gradients of all records, each computed by itself, and what was uploaded and released, in units of -R."""

    def __init__(self, task: Task, secrets: Mapping[str, RealSecrets]) -> None:
        self._task, self._secrets, self._model = task, secrets, networks.of_task(task)
        firsts = np.cumsum([0, *(one.held for one in secrets.values())])
        self._rows = {client: np.arange(firsts[i], firsts[i + 1]) for i, client in enumerate(secrets)}
        self._step = 2.0**-task.frac_bits / task.record_clip
        event = task_privacy(task).events[View.CLIENTS_ONLY]
        assert isinstance(event, SampledGaussian)  # of the algorithm `precad`
        self._noise = event.noise_multiplier

    def read(self, found: Mapping[str, RealContribution], released: NDArray[np.float32] | None, t: int) -> _Round:
        """Take a round apart. found: by client. released: the model (n,) after the round, where it is known."""
        task, clip = self._task, self._task.record_clip
        apart, uploaded = [], np.zeros(task.n_parameters)
        for client, one in found.items():
            gradients = single_gradients(self._model, one.parameters, self._secrets[client].records)
            added = -fixed_point.decode(one.uploaded, task.frac_bits) / clip
            apart.append(taken_apart(gradients / clip, added, self._step))
            uploaded += added
        total = None
        if released is not None:
            before = next(iter(found.values())).parameters.astype(np.float64)
            factor = -task.divisor / (task.rate(task.learning_rate, t) * clip)
            total = (released.astype(np.float64) - before) * factor
        rows = np.concatenate([self._rows[client] for client in found])
        return _Round(rows, apart, uploaded, total, task.record_rate, self._noise)


def _add(rounds: RealRounds, one: _Round) -> None:
    """Add a round's rows."""
    m = len(rounds.coins)

    def row(values: NDArray[Any]) -> NDArray[Any]:
        found = np.zeros(m, dtype=values.dtype)
        found[one.rows] = values
        return found

    weights, tellable = one.all_of("weights"), one.all_of("tellable")
    present = row(np.ones(len(one.rows), dtype=np.bool_))
    rounds.weights.append(row(weights))
    rounds.tellable.append(row(tellable))
    rounds.present.append(present)
    rounds.excess = max([rounds.excess, *(float(part.weights.max(initial=0.0)) - part.error for part in one.apart)])
    rounds.unexplained = max([rounds.unexplained, *(part.unexplained for part in one.apart)])
    if one.total is None:
        return
    left, directions = one.total - one.uploaded, one.all_of("directions")
    may_be = rounds.coins[one.rows] & tellable
    rounds.draws.append(
        Draws(
            weights[may_be],
            one.all_of("expected")[may_be],
            (directions @ left)[may_be],
            (directions @ one.uploaded)[may_be],
        )
    )
    rounds.energy += float(np.square(left).sum())
    rounds.n_energy += len(left)
    rounds.scores.append(row(_decoded(one, directions, one.total)))
    rounds.scored.append(present)


def _decoded(one: _Round, directions: Vector, total: Vector) -> Vector:
    """Return each record's part of the released sum, (k,): 1 for a drawn one without noise, 0 for any other.

    Linear with the least mean square error, for weights of the variance that a draw behind a fair coin has.
    """
    chance, expected = one.rate / 2, one.all_of("expected")
    gram = (directions * expected[:, None]) @ (directions * expected[:, None]).T
    penalty = one.noise**2 / (chance * (1 - chance))
    solved = np.linalg.solve(gram + penalty * np.eye(len(gram)), np.eye(len(gram)))
    gain = (solved * gram).sum(axis=1)
    found = solved @ (expected * (directions @ total))
    return np.where(gain > _LEAST_GAIN, found / np.maximum(gain, _LEAST_GAIN), 0.0)
