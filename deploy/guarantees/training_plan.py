"""A training as its privacy sees it: the parameters that `precad account` and `precad certify --plan` take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from precad.dp.accountants.composed import Beside
from precad.dp.accountants.pld import (
    Event,
    PldAccountant,
    PrivacyAccountant,
    SampledGaussian,
    TwoStageSampledGaussian,
    View,
    round_event,
)
from precad.dp.accountants.precad_client import expected_participation
from precad.dp.accountants.slack import with_slack
from precad.dp.certificates.planner import most_draws
from precad.dp.checks import require_count, require_delta, require_positive, require_probability
from precad.protos.task.core_fields import MOST_FRAC_BITS
from precad.protos.task.proved_fields import eta
from precad.protos.task.record_fields import MOST_PER_PERSON

_MOST: Final = 10**12
"""Rounds, evaluations and batches are at most so many: a task has a million rounds at most."""
NO_DIM: Final = (
    "dim: without it no rounding is counted; the task's own sigma and epsilon may be larger, as `precad check` shows"
)

TASK_FIELDS: Final = {
    "sigma": "noise_multiplier",
    "q": "client_rate",
    "p": "record_rate",
    "rounds": "rounds",
    "delta": "delta",
    "record_clip": "record_clip",
    "client_clip": "client_clip",
    "dim": "dim",
    "frac_bits": "frac_bits",
    "lost_rounds": "lost_rounds",
    "records_per_person": "records_per_person",
    "batches_ahead": "batches_ahead",
}
"""Flags, and the task's fields that they go before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingPlan:
    """A training as its privacy sees it. Symbols are those of PRECAD's Algorithms 1 and 2."""

    sigma: float
    """Each server's noise over the record clip."""
    q: float
    """Probability that a client is in a round."""
    p: float
    """Probability that a record is in a round of its client."""
    rounds: int
    delta: float
    participation: int | None = None
    """Rounds that the client took part in, once they are known; None plans with the expected number, q * rounds."""
    record_clip: float | None = None
    client_clip: float | None = None
    dim: int | None = None
    """With record_clip and frac_bits: what rounding to fixed point adds to the sensitivity is counted."""
    frac_bits: int = 16
    lost_rounds: int | None = None
    """How many rounds the task may lose; None: as many as a task that does not say."""
    batches_ahead: int = 1
    """Rounds drawn while clients train: when a round is lost, those drawn ahead of it are too."""
    records_per_person: int = 1
    """Records of one person, all of one client, that a figure is of together."""
    is_proved: bool = False
    """Whether the task is of mode `proved`, which takes its own part of delta."""
    evaluations: int = 0
    """Evaluations by clients among the rounds, lost ones too."""
    evaluation_sigma: float | None = None
    """Each server's noise on an evaluation, over what a record adds to it."""
    evaluation_client_sigma: float | None = None
    """Both servers' noise on an evaluation, over what a client adds to it at most; None: not known."""
    balls_in_bins: int | None = None
    """Also account for a record that is in exactly one of so many participations of its client, where p is 1 in so
    many."""

    def __post_init__(self) -> None:
        """Refuse a field that is not a number in its range. The file need not be a valid deployment's. Raises
        ValueError."""
        require_positive("sigma", self.sigma)
        require_probability("q", self.q)
        require_probability("p", self.p)
        require_count("rounds", self.rounds, at_most=_MOST)
        require_count("frac_bits", self.frac_bits, at_most=MOST_FRAC_BITS)
        require_count("records_per_person", self.records_per_person, at_least=1, at_most=MOST_PER_PERSON)
        require_delta(self.delta)
        if self.lost_rounds is not None:
            require_count("lost_rounds", self.lost_rounds, at_most=_MOST)
        require_count("batches_ahead", self.batches_ahead, at_most=_MOST)
        require_count("evaluations", self.evaluations, at_most=_MOST)
        if self.evaluations and self.evaluation_sigma is None:
            raise ValueError("evaluation_sigma: expected a value with evaluations, found none")
        if self.evaluation_sigma is not None:
            require_positive("evaluation_sigma", self.evaluation_sigma)
        if self.evaluation_client_sigma is not None:
            require_positive("evaluation_client_sigma", self.evaluation_client_sigma)
        if self.participation is not None:
            require_count("participation", self.participation)
            if self.participation > self.rounds:
                raise ValueError(f"participation: expected at most rounds = {self.rounds}, found {self.participation}")
        if self.balls_in_bins is not None and (self.records_per_person > 1 or self.evaluations):
            raise ValueError("balls_in_bins: expected none with records_per_person or evaluations, found a value")

    @property
    def most_rounds(self) -> int:
        """Return rounds that a client can be in, if draws may be discarded: all of them, with those that may be
        lost."""
        return most_draws(self.rounds, self.lost_rounds, self.batches_ahead)

    @property
    def expected_participation(self) -> int:
        """Return rounds that a client takes part in: the realised number, or q * rounds, rounded up."""
        return expected_participation(self.q, self.rounds) if self.participation is None else self.participation

    @property
    def slack(self) -> float:
        """Return what the mode takes from delta (`precad.dp.accountants.slack`)."""
        return eta(self.rounds, self.evaluations) if self.is_proved else 0.0

    def accountant(self, view: View) -> PrivacyAccountant:
        """Return the accountant of every proved bound: all evaluations count beside the rounds that it is asked for."""
        if not self.evaluations or self.evaluation_sigma is None:
            return with_slack(PldAccountant(), self.slack)
        sigma = self.evaluation_sigma * (1.0 if view is View.ONE_SERVER else math.sqrt(2))
        one = SampledGaussian(1.0, sigma, self.records_per_person)
        return with_slack(Beside(one, self.evaluations), self.slack)

    def round_of(self, view: View, sigma: float | None = None) -> SampledGaussian:
        """Return one round of a client that takes part, as `view` sees it."""
        sigma = self.sigma if sigma is None else sigma
        if self.dim is None:
            return SampledGaussian(
                self.p, sigma if view is View.ONE_SERVER else math.sqrt(2) * sigma, self.records_per_person
            )
        if self.record_clip is None:
            raise ValueError("record_clip: expected a value with dim, found none")
        return round_event(
            view,
            record_sampling_rate=self.p,
            noise_multiplier=sigma,
            record_clip=self.record_clip,
            dim=self.dim,
            frac_bits=self.frac_bits,
            group_size=self.records_per_person,
        )

    def composed(self, view: View, sigma: float | None = None) -> tuple[Event, int]:
        """Return (event, rounds) that the view's epsilon is about.

        One server knows when the client took part. Its statement is therefore about a client that is in the expected,
        or realised, number of rounds. Clients who see models only get the number as well once it is given. Before, each
        round is one that the client visibly is in, or is not.
        """
        event = self.round_of(view, sigma)
        if view is View.ONE_SERVER or self.participation is not None:
            return event, self.expected_participation
        return TwoStageSampledGaussian(
            self.q, event.sampling_rate, event.noise_multiplier, event.group_size
        ), self.rounds
