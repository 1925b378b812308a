"""Run the round of a deployment, and keep what each view sees of the canaries.

    one server     the opened sum minus that server's own noise
    clients only   W / eta (theta_(t+1) - theta_t), from the released models

A client's update is minus its gradients, so scores and contributions change their sign here: a drawn canary is +1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from precad.clients.attacks.canaries import Canaries
from precad.dp.auditing.observed import Observed
from precad.lab.auditing.randomness import KeptNoise
from precad.lab.auditing.real_records import RealAudit, Vector
from precad.lab.auditing.seats import Seat
from precad.lab.simulation.algorithms import Deployed
from precad.lab.simulation.algorithms.algorithm import Parameters, RoundOutcome
from precad.mpc import fixed_point
from precad.mpc.ring import RingArray

_SOURCES = {Seat.SERVER_A: "server-0", Seat.SERVER_B: "server-1"}


@dataclass(slots=True)
class Seen:
    """Rows of all rounds so far, each (m,), in units of the clip R."""

    scores: dict[Seat, list[Vector]] = field(default_factory=lambda: {seat: [] for seat in Seat})
    own_noise: dict[Seat, list[Vector]] = field(default_factory=lambda: {seat: [] for seat in _SOURCES})
    contributions: list[Vector] = field(default_factory=list)
    present: list[NDArray[np.bool_]] = field(default_factory=list)
    step: float = 0.0
    """Step of the grid, in units of R."""
    clients: NDArray[np.int64] | None = None
    """(m,): the number of each canary's client."""

    def observed(self, seat: Seat, coins: NDArray[np.bool_]) -> Observed:
        """Return what one seat saw. Raises ValueError before the first round."""
        own = np.array(self.own_noise[seat]) if seat in self.own_noise else None
        scores, present = np.array(self.scores[seat]), np.array(self.present)
        added = np.array(self.contributions)
        return Observed(scores, added, present, coins, own_noise=own, step=self.step, clients=self.clients)


class AuditedRound(Deployed):
    """The round of a deployment. `begin` names the canaries before the first one."""

    name: ClassVar[str] = "audited"

    def begin(
        self, conducts: dict[str, Canaries], head: slice, kept: KeptNoise, real: tuple[str, RealAudit] | None = None
    ) -> Seen:
        """Return what the rounds to come fill. real: an audit client with real records, and what they show of it."""
        of_client = np.repeat(np.arange(len(conducts)), [len(held.places) for held in conducts.values()])
        seen = Seen(step=2.0**-self.task.frac_bits / self.task.record_clip, clients=of_client)
        self._conducts, self._head, self._kept, self.seen = conducts, head, kept, seen
        self._real = real
        self._of_round: dict[str, RingArray] = {}
        self._opened: RingArray = np.zeros(0, dtype=np.int64)
        return self.seen

    def run_round(self, t: int, parameters: Parameters, chosen: Sequence[str]) -> RoundOutcome:
        """Run the round, and keep each seat's scores."""
        self._kept.kept.clear()
        outcome = super().run_round(t, parameters, chosen)
        moved = outcome.parameters[self._head].astype(np.float64) - parameters[self._head].astype(np.float64)
        self.seen.scores[Seat.CLIENTS].append(moved / (-self.step_at(t) * self.task.record_clip))
        self._keep_uploads(outcome)
        self._keep_real(t, parameters, outcome)
        return outcome

    def _uploads(self, t: int, parameters: Parameters, chosen: Sequence[str]) -> dict[str, RingArray]:
        self._of_round = super()._uploads(t, parameters, chosen)
        return self._of_round

    def _updated(self, parameters: Parameters, noisy_sum: RingArray, n_accepted: int = 0) -> Parameters:
        self._opened = noisy_sum
        opened = noisy_sum[self._head]
        for seat, source in _SOURCES.items():
            own = self._kept.kept.get(source, np.zeros_like(opened))
            self.seen.own_noise[seat].append(self._of_grid(own))
            self.seen.scores[seat].append(self._of_grid(opened - own))
        return super()._updated(parameters, noisy_sum, n_accepted)

    def _keep_real(self, t: int, parameters: Parameters, outcome: RoundOutcome) -> None:
        """Show the audit of real records what each seat sees once every upload is taken out of the sum."""
        if self._real is None or self._real[0] not in outcome.accepted:
            return
        known = np.zeros_like(self._opened)
        for client in outcome.accepted:
            known = known + self._of_round[client]
        moved = outcome.parameters.astype(np.float64) - parameters.astype(np.float64)
        of_models = moved / (-self.step_at(t) * self.task.record_clip)
        noise: Mapping[Seat, Vector] = {
            Seat.CLIENTS: of_models - self._of_grid(known),
            **{
                seat: self._of_grid(self._opened - known - self._kept.whole.get(source, np.zeros_like(known)))
                for seat, source in _SOURCES.items()
            },
        }
        self._real[1].add(self.federation.engine, parameters, noise)

    def _keep_uploads(self, outcome: RoundOutcome) -> None:
        m = self._head.stop - self._head.start
        added, present = np.zeros(m), np.zeros(m, dtype=np.bool_)
        for client, held in self._conducts.items():
            if client in outcome.accepted:
                added[held.places] = -held.uploads[-1] / self.task.record_clip
                present[held.places] = True
            held.uploads.clear()
        self.seen.contributions.append(added)
        self.seen.present.append(present)

    def _of_grid(self, words: RingArray) -> Vector:
        return -fixed_point.decode(words, self.task.frac_bits) / self.task.record_clip
