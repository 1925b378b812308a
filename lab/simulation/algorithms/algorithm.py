"""Define an algorithm: one round of a federation, and what it guarantees."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from precad.clients.errors import ArgumentError
from precad.dp.accountants.pld import PldAccountant, SampledGaussian, effective_noise_multiplier
from precad.lab.simulation.federation import Federation
from precad.lab.simulation.guarantee import REALISED, Guarantee
from precad.mpc.ring import RingArray
from precad.protos.task.algorithms import BUDGETS
from precad.protos.task.convex_fields import CONVEX_FIELDS
from precad.protos.task.model_update import Past, moved_along, updated

Parameters = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class RoundOutcome:
    """The model after a round, and whose updates are in it."""

    parameters: Parameters
    accepted: tuple[str, ...]
    rejected: tuple[str, ...] = ()
    """Refused by whoever checks updates."""


class Algorithm(ABC):
    """One training algorithm. Beside the model, its next round depends on its `state` and the server's `past`."""

    name: ClassVar[str] = ""
    """The key in `ALGORITHMS`."""
    clips_updates: ClassVar[bool] = False
    """Whether `simulation.update_clipping` means something here."""
    trains_locally: ClassVar[bool] = False
    """Whether clients take steps of their own, at models of their own (`Federation.own_models`)."""
    takes_rule: ClassVar[bool] = False
    """Whether a server sees single updates, and may put them together by another rule than their sum."""
    budgets: ClassVar[tuple[str, ...]] = ()
    """Fields `epsilon_budget_..` of a task that end this training; others are refused."""
    has_two_servers: ClassVar[bool] = False
    """Whether two servers hold shares of the updates, and can check norms. Elsewhere one server sees all of them."""
    is_of_any_task: ClassVar[bool] = False
    """Whether it runs what `task.algorithm` says. All others take the task's parameters as those of `precad`."""

    def __init__(self, federation: Federation) -> None:
        """Raises ArgumentError for settings that mean nothing here."""
        if not self.is_of_any_task and not federation.task.rules.is_default:
            raise ArgumentError(
                f"simulation.algorithm: expected 'deployed' for a task of {federation.task.algorithm!r}, "
                f"found {federation.settings.algorithm!r}"
            )
        if not self.is_of_any_task and federation.task.sum_function is not None:
            raise ArgumentError(
                "simulation.algorithm: expected 'deployed' for a task with sum_function, found "
                f"{federation.settings.algorithm!r}"
            )
        if not self.is_of_any_task and any(getattr(federation.task, name) for name in CONVEX_FIELDS):
            raise ArgumentError(
                "simulation.algorithm: expected 'deployed' for a task with layer_clips or half_spaces, found "
                f"{federation.settings.algorithm!r}"
            )
        if not self.has_two_servers and federation.task.record_bins is not None:
            raise ArgumentError(
                "simulation.algorithm: expected 'precad' or 'deployed' for a task with record_bins, found "
                f"{federation.settings.algorithm!r}"
            )
        if not self.has_two_servers and federation.earlier:
            raise ArgumentError(
                "simulation.algorithm: expected 'precad' or 'deployed' beside aggregator.a.earlier_ledgers, which no "
                f"other counts, found {federation.settings.algorithm!r}"
            )
        self.federation = federation
        self.task = federation.task
        self.settings = federation.settings
        self.past = Past.first(self.task)
        """Past of the servers' optimiser. Replaced in every round, and part of where a training stands."""
        if self.settings.update_clipping != "flat" and not (self.clips_updates or self.is_of_any_task):
            raise ArgumentError(
                f"simulation.update_clipping: expected 'flat', the only one of {self.name}, "
                f"found {self.settings.update_clipping!r}"
            )
        for budget in BUDGETS:
            if getattr(self.task, budget) is not None and budget not in self.budgets:
                raise ArgumentError(
                    f"task.{budget}: expected none with {self.name}, which no budget of that kind ends, "
                    f"found {getattr(self.task, budget)}"
                )
        if federation.rule is not None and not self.takes_rule:
            raise ArgumentError(
                f"simulation.aggregation: expected 'sum', the only one of {self.name}, "
                f"found {self.settings.aggregation!r}"
            )

    @property
    def _divisor(self) -> float:
        return self.task.expected_clients if self.trains_locally else self.task.divisor

    def step_at(self, t: int) -> float:
        """Return eta_t / W: what the sum of updates of round t is multiplied with, where no optimiser does more."""
        return self.task.rate(self.task.learning_rate, t) / self._divisor

    def _moved(self, parameters: Parameters, total: NDArray[np.float64]) -> Parameters:
        """Return theta plus the servers' step along a sum in the reals, (d,)."""
        moved, self.past = moved_along(parameters, total, self.task, self.past, self._divisor)
        return moved

    def _updated(self, parameters: Parameters, noisy_sum: RingArray, n_accepted: int = 0) -> Parameters:
        """Return the next model as two servers compute it of an opened sum, (d,), of so many accepted updates."""
        moved, self.past = updated(parameters, noisy_sum, self.task, self.past, n_accepted)
        return moved

    @abstractmethod
    def run_round(self, t: int, parameters: Parameters, chosen: Sequence[str]) -> RoundOutcome:
        """Run round t of the clients that were drawn for it, in the order of their ids."""

    @abstractmethod
    def guarantees(self, rounds: int, participation: Mapping[str, int]) -> list[Guarantee]:
        """Return what is proved after so many rounds, in which clients took part so often; at least one sentence."""

    def may_start(self, rounds_done: int, participation: Mapping[str, int]) -> bool:
        """Return whether the budget, if there is one, allows the coming round. Asked before its clients are drawn."""
        return True

    def may_evaluate(self, rounds_done: int, participation: Mapping[str, int]) -> bool:
        """Return whether the budget, if there is one, allows the evaluation that is due after so many rounds."""
        return True

    def state(self) -> tuple[float, ...]:
        """Return what the next round depends on beside the model, for a training that is interrupted; nothing,
        mostly."""
        return ()

    def restore(self, state: tuple[float, ...]) -> None:
        """Continue from a `state`. Raises ArgumentError for one that is not this algorithm's."""
        if state:
            raise ArgumentError(f"state: expected none of the algorithm {self.name!r}, found {len(state)} numbers")

    def _of_one_record(
        self, participation: Mapping[str, int], *, against: str, note: str = "", steps_per_round: int = 1
    ) -> Guarantee:
        """Guarantee a record of the client in most rounds, where one draw of N(0, (sigma R)^2) hides it in every step.

        A step is a Gaussian release with Poisson sampling of rate p; what rounding to the grid adds is counted.
        """
        task = self.task
        sigma = effective_noise_multiplier(task.noise_multiplier, task.record_clip, task.dim, task.frac_bits)
        steps = steps_per_round * max(participation.values(), default=0)
        epsilon = PldAccountant().epsilon(
            SampledGaussian(task.record_rate, sigma, task.records_per_person), steps, task.delta
        )
        return Guarantee(
            unit="record",
            group_size=task.records_per_person,
            against=against,
            epsilon=epsilon,
            delta=task.delta,
            note=f"{note}; {REALISED}" if note else REALISED,
        )
