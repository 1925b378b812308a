"""Bound what PRECAD's rounds cost one record, for each adversary, with proof.

A round for a record of a selected client is a Poisson-sampled Gaussian release. The record is in the batch with
probability p, and every gradient sum is released with noise of a known multiple of the record's sensitivity.
Rounds of one client compose. The selection of clients is taken to be known to the adversary. What counts is therefore
the realised number of rounds a client took part in, and the client sampling rate q does not lower epsilon. A client's
other records can show that it was selected, and sampling by clusters does not amplify. Source: Bun, Drechsler,
Gaboardi, McMillan, Sarathy, "Controlling Privacy Loss in Sampling Schemes", arXiv 2007.12674.

PRECAD's own Theorem 1 composes by a central limit, mu = p sqrt(T (e^{1/sigma^2} - 1)). At finite T the limit is no
bound. At p = 0.05, sigma = 1, T = 500, delta = 1e-5 it gives 6.86, the true value being 7.52. So it is not here:
`precad.dp.accountants.side_by_side` has it, and others, each under its label.

dp_accounting and SciPy are imported at the first figure (`warm_up`): most processes that name a view, a unit or an
event here never compute one.
"""

from __future__ import annotations

import enum
import functools
import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Context, Decimal
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from precad.dp.accountants.bins_event import BinnedGaussian
from precad.dp.accountants.gaussian import gaussian_epsilon
from precad.dp.accountants.ptr_event import SampledProposeTestRelease
from precad.dp.checks import keep_as_floats, require_count, require_delta, require_positive, require_probability

if TYPE_CHECKING:
    from dp_accounting.pld import privacy_loss_distribution

    from precad.dp.accountants.self_composed import SelfComposition


class View(enum.StrEnum):
    """The adversary of a privacy statement. Everything the adversary does not corrupt follows the protocol."""

    ONE_SERVER = "one_server"
    """One server and any number of clients other than the record's own.

    The server knows its own noise and can subtract it or leave it out. The other server's noise, of standard
    deviation sigma * R, protects alone. The server also knows in which rounds the client took part.
    """
    CLIENTS_ONLY = "clients_only"
    """Any number of clients other than the record's own, and no server.

    They see the released models only, which carry both servers' noise: standard deviation sqrt(2) * sigma * R.
    The client's participation may be hidden from them, but is treated as known.
    """


class Conduct(enum.StrEnum):
    """The influence of an adversary on the draws of clients, beside what it sees."""

    MAY_DISCARD = "may_discard"
    """Rounds may fail and be drawn anew, and the task may end, for what was drawn or released. Assumes less.

    Where draws are hidden, whoever makes them fail knows none but its own.
    """
    WATCHES = "watches"
    """Whether a round fails, and when the task ends, depends on nothing that was released."""


class Unit(enum.StrEnum):
    """The unit by which two neighbouring inputs differ."""

    RECORD = "record"
    CLIENT = "client"


class Label(enum.StrEnum):
    """How a number about privacy was obtained. Only a BOUND is a guarantee."""

    BOUND = "bound"
    """Proved upper bound on the privacy loss."""
    APPROXIMATION = "approximation"
    """Asymptotic or Monte Carlo estimate; the truth may be larger."""
    PUBLISHED_REPRODUCTION = "published_reproduction"
    """A paper's own formula, kept for comparison only."""


_LABEL_WORDS: Final = {
    Label.BOUND: "proved bound",
    Label.APPROXIMATION: "approximation, not a guarantee",
    Label.PUBLISHED_REPRODUCTION: "published formula, not a guarantee",
}
VIEW_WORDS: Final = {View.ONE_SERVER: "one server corrupted", View.CLIENTS_ONLY: "only clients corrupted"}
"""The views, as statements and tables of accounts say them."""
_CONDUCT_WORDS: Final = {
    None: "",
    Conduct.MAY_DISCARD: ", draws may be discarded",
    Conduct.WATCHES: ", no draw is discarded",
}


@dataclass(frozen=True, slots=True)
class PrivacyStatement:
    """(epsilon, delta)-differential privacy of one unit against `view`, as strong as `label` says.

    Prints "epsilon <= ..." for a bound, rounded up, and "epsilon ~ ..." for everything else: the label decides,
    so an approximation cannot be shown as a guarantee. An infinite epsilon is a true statement that says nothing.
    """

    epsilon: float
    delta: float
    view: View
    label: Label
    adjacency: Literal["add_remove"] = "add_remove"
    unit: Unit = Unit.RECORD
    conduct: Conduct | None = None
    """None for a figure of a number of rounds that was fixed before."""
    group_size: int = 1
    """How many records of one person are added or removed together, where `unit` is a record."""

    def __post_init__(self) -> None:
        if isinstance(self.epsilon, bool) or not self.epsilon >= 0:
            raise ValueError(f"epsilon: expected a number of at least 0, found {self.epsilon}")
        require_delta(self.delta)

    def __str__(self) -> str:
        is_bound = self.label is Label.BOUND
        three_digits = Context(prec=3, rounding=ROUND_CEILING if is_bound else ROUND_HALF_EVEN)
        against = f"{VIEW_WORDS[self.view]}{_CONDUCT_WORDS[self.conduct]}"
        return (
            f"epsilon {'<=' if is_bound else '~'} {three_digits.plus(Decimal(self.epsilon)):f} at delta = {self.delta} "
            f"({_LABEL_WORDS[self.label]}, {against}, add/remove {unit_words(self.unit, self.group_size)})"
        )


@dataclass(frozen=True, slots=True)
class SampledGaussian:
    """One round, for a record of a client that takes part: the record enters with probability `sampling_rate`.

    For vectors v_i of norm at most S, each included independently, the release is sum_i v_i + N(0, s^2 I) and
    noise_multiplier = s / S.
    """

    sampling_rate: float
    noise_multiplier: float
    group_size: int = 1
    """Records of one person, all of that client, that are added or removed together; each is drawn by itself."""

    def __post_init__(self) -> None:
        require_probability("sampling_rate", self.sampling_rate)
        require_positive("noise_multiplier", self.noise_multiplier)
        require_count("group_size", self.group_size, at_least=1)
        keep_as_floats(self, "sampling_rate", "noise_multiplier")


@dataclass(frozen=True, slots=True)
class TwoStageSampledGaussian:
    """One round, for a record of any client: its client is drawn, visibly, then the record, then SampledGaussian.

    With probability 1 - selection_rate the client is not drawn, and the record loses nothing. That the adversary
    sees which of the two it was is assumed, because the client's other records can show it.
    """

    selection_rate: float
    record_rate: float
    noise_multiplier: float
    group_size: int = 1
    """As in SampledGaussian."""

    def __post_init__(self) -> None:
        require_probability("selection_rate", self.selection_rate)
        require_probability("record_rate", self.record_rate)
        require_positive("noise_multiplier", self.noise_multiplier)
        require_count("group_size", self.group_size, at_least=1)
        keep_as_floats(self, "selection_rate", "record_rate", "noise_multiplier")


Release = SampledGaussian | BinnedGaussian | SampledProposeTestRelease
"""A round as one unit of a client that takes part meets it."""
Event = Release | TwoStageSampledGaussian
"""A round as one unit meets it. Events are never removed and their meanings never change: ledgers hold them."""


def event_fields(event: Event) -> dict[str, Any]:
    """Return an event's fields as ledgers hold them: without the size of a group of one record."""
    return {name: value for name, value in asdict(event).items() if name != "group_size" or value != 1}


def event_of(fields: Mapping[str, Any]) -> Event:
    """Return the event that `event_fields` wrote. Raises TypeError, ValueError."""
    return TwoStageSampledGaussian(**fields) if "selection_rate" in fields else release_of(fields)


def release_of(fields: Mapping[str, Any]) -> Release:
    """Return the round of a client that takes part that `event_fields` wrote. Raises TypeError, ValueError."""
    if "bins" in fields:
        return BinnedGaussian(**fields)
    return SampledProposeTestRelease(**fields) if "test_failure" in fields else SampledGaussian(**fields)


def unit_words(unit: Unit, group_size: int = 1) -> str:
    """Return what a figure is about: one record, some records of one person, or one client."""
    return f"one {unit}" if group_size == 1 else f"{group_size} records of one person"


class PrivacyAccountant(Protocol):
    """Says what epsilon composed rounds have. The result depends on the arguments alone, not on earlier calls."""

    @property
    def label(self) -> Label:
        """Return how strong its epsilons are."""
        ...

    def epsilon(self, event: Event, rounds: int, delta: float) -> float:
        """Return an epsilon with which `rounds` repetitions of `event` are (epsilon, delta)-DP, add/remove one unit.

        Zero for no rounds; infinite where the accountant can prove nothing. If `label` is BOUND, proved.

        Raises: UnsupportedEventError if the accountant has nothing to say about such events.
        """
        ...


def warm_up() -> None:
    """Import what the first figure would otherwise wait for."""
    from precad.dp.accountants import group_mixture, renyi, renyi_accounting, self_composed  # noqa: F401 - for later


class PldAccountant:
    """Accountant by privacy loss distributions, pessimistic throughout.

    The dominating pair of a round is ((1-p) N(0, sigma^2) + p N(1, sigma^2), N(0, sigma^2)) and its reverse.
    Source: Zhu, Dong, Wang, "Optimal Accounting of Differential Privacy via Characteristic Function", AISTATS '22.
    The library dp_accounting discretises both directions upwards, composes them apart and returns the larger epsilon.
    Source: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi, "Connect the Dots", PETS '22. At p = 1 the composition is
    exactly Gaussian with multiplier sigma / sqrt(rounds), and is solved in closed form.

    T rounds are composed from one round each time, in one FFT (`precad.dp.accountants.self_composed`). That costs
    little more than adding a round to the last result. A server restarted at round 200 gets the same bits as one that
    ran through.

    A two-stage round is the one-stage round with probability `selection_rate`, and no loss otherwise; it is composed
    by `precad.dp.accountants.privacy_loss`, likewise pessimistic. Below a multiplier of 0.1 sampling is taken to help
    nobody. A group of k records is the mixture of `precad.dp.accountants.group_mixture`, exact as one record is.

    The transform of T rounds loses up to 1e-13 T of delta to rounding. Where that is more than half of delta,
    Renyi divergences bound epsilon as well, without such a loss. The smaller of both bounds is taken.
    """

    label: Final = Label.BOUND

    def epsilon(self, event: Event, rounds: int, delta: float) -> float:
        """Bound epsilon, see PrivacyAccountant. About 5 ms when not seen before, else a cache hit."""
        require_count("rounds", rounds)
        require_delta(delta)
        delta = float(delta)
        if rounds == 0:
            return 0.0
        if isinstance(event, SampledProposeTestRelease | BinnedGaussian):
            return event.epsilon(rounds, delta)
        if isinstance(event, TwoStageSampledGaussian):
            visible = event.selection_rate
            one_stage = SampledGaussian(event.record_rate, event.noise_multiplier, event.group_size)
        else:
            visible, one_stage = 1.0, event
        if visible == 0 or one_stage.sampling_rate == 0:
            return 0.0
        from precad.dp.accountants.privacy_loss import ROUNDING_PER_ROUND

        bounded = tractable(one_stage)
        if bounded.noise_multiplier < SMALLEST_MULTIPLIER:  # at worst every client is in each round
            visible = 1.0
        if bounded.group_size > 1:
            epsilon = _group_epsilon(bounded, visible, rounds, delta)
        elif visible < 1:
            epsilon = _two_stage_epsilon(bounded, visible, rounds, delta)
        else:
            epsilon = _epsilon(bounded, rounds, delta)
        is_closed_form = visible == 1 and bounded.sampling_rate == 1
        if is_closed_form or delta >= 2 * ROUNDING_PER_ROUND * rounds:
            return epsilon
        return min(epsilon, renyi_epsilon(((bounded, visible, rounds),), delta))


_SMALLEST_RATE: Final = 1e-7
_LARGEST_MULTIPLIER: Final = 1e4
SMALLEST_MULTIPLIER: Final = 0.1
"""Below it, a draw is taken to help nobody: at worst every record, and every client, is in each round."""


def tractable(event: SampledGaussian) -> SampledGaussian:
    """Return `event`, or one that loses at least as much privacy and for which the grid is neither huge nor below
    float64.

    Privacy loss rises with the sampling rate and falls with the noise, so both are moved in that direction only. A
    group whose records are in every round is one record k times as long.
    """
    if event.noise_multiplier < SMALLEST_MULTIPLIER or event.sampling_rate == 1:
        return SampledGaussian(1.0, min(event.noise_multiplier, _LARGEST_MULTIPLIER) / event.group_size)
    rate = max(event.sampling_rate, _SMALLEST_RATE)
    return replace(event, sampling_rate=rate, noise_multiplier=min(event.noise_multiplier, _LARGEST_MULTIPLIER))


@functools.lru_cache(maxsize=4096)
def _epsilon(event: SampledGaussian, rounds: int, delta: float) -> float:
    """Pessimistic epsilon of `rounds` >= 1 rounds of a tractable event."""
    if event.sampling_rate == 1:
        return gaussian_epsilon(event.noise_multiplier / math.sqrt(rounds), delta)
    from precad.dp.accountants.privacy_loss import ROUNDING_PER_ROUND

    delta_after_rounding = delta - ROUNDING_PER_ROUND * rounds
    if delta_after_rounding <= 0:
        return math.inf
    return float(_composed(event, rounds).get_epsilon_for_delta(delta_after_rounding))


@functools.lru_cache(maxsize=1)
def _composed(event: SampledGaussian, rounds: int) -> privacy_loss_distribution.PrivacyLossDistribution:
    """Compose so many rounds. The last result is kept: `precad.dp.accountants.slack` asks it at several deltas."""
    return _self_composition(event).times(rounds)


@functools.lru_cache(maxsize=8)
def _self_composition(event: SampledGaussian) -> SelfComposition:
    from precad.dp.accountants.self_composed import SelfComposition

    return SelfComposition(_one_round(event))


@functools.lru_cache(maxsize=4096)
def _two_stage_epsilon(event: SampledGaussian, selection_rate: float, rounds: int, delta: float) -> float:
    """Pessimistic epsilon of `rounds` >= 1 rounds of a tractable event that takes place, visibly, with that rate."""
    from precad.dp.accountants.group_mixture import Direction, loss_distribution

    return max(
        loss_distribution(
            1, event.sampling_rate, event.noise_multiplier, rounds, direction, visible=selection_rate
        ).epsilon(delta)
        for direction in Direction
    )


@functools.lru_cache(maxsize=4096)
def _group_epsilon(event: SampledGaussian, visible: float, rounds: int, delta: float) -> float:
    """Pessimistic epsilon of a group of records, some of them drawn, in rounds that take place with rate `visible`.

    All of them in every round would lose no less, and that has a closed form without a transform's rounding.
    """
    from precad.dp.accountants.group_mixture import Direction, loss_distribution

    k, p, sigma = event.group_size, event.sampling_rate, event.noise_multiplier
    mixture = max(
        loss_distribution(k, p, sigma, rounds, direction, visible=visible).epsilon(delta) for direction in Direction
    )
    return min(mixture, gaussian_epsilon(sigma / (k * math.sqrt(rounds)), delta))


@functools.lru_cache(maxsize=4096)
def renyi_epsilon(kinds: tuple[tuple[SampledGaussian, float, int], ...], delta: float) -> float:
    """Bound epsilon by Renyi divergences, where rounding of loss distributions takes more than half of delta.

    kinds: events, the rates with which they take place, visibly, and how many rounds of each there were.
    """
    from precad.dp.accountants.renyi import rdp_composed, rdp_gaussian, rdp_sgm_group, rdp_sgm_two_stage
    from precad.dp.accountants.renyi_accounting import OrderGridWarning, eps_from_rdp

    def one_round(alpha: float, event: SampledGaussian, visible: float) -> float:
        k, p, sigma = event.group_size, event.sampling_rate, event.noise_multiplier
        if k == 1:
            return rdp_sgm_two_stage(alpha, q=visible, p=p, sigma=sigma)
        rho = rdp_sgm_group(alpha, k, p, sigma) if k <= _MOST_TOGETHER else rdp_gaussian(alpha, sigma, k)
        if visible == 1 or (exponent := (alpha - 1) * rho) > _MOST_EXPONENT:
            return rho
        return math.log1p(visible * math.expm1(exponent)) / (alpha - 1)

    def all_rounds(alpha: float) -> float:
        return math.fsum(rdp_composed(one_round(alpha, event, visible), n) for event, visible, n in kinds)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OrderGridWarning)  # a bound all the same, and nobody chose the grid
        return eps_from_rdp(all_rounds, delta)


_MOST_TOGETHER: Final = 16
"""Records of a larger group are taken to be in every round here: their divergences would take many seconds."""
_MOST_EXPONENT: Final = 700.0
"""Beyond this a float64 overflows; the draw is then taken to help nobody."""


@functools.lru_cache(maxsize=8)
def _one_round(event: SampledGaussian) -> privacy_loss_distribution.PrivacyLossDistribution:
    """Loss distribution of one round, for adding and for removing the record, rounded towards more loss."""
    from precad.dp.accountants.one_round import grid_step, loss_of

    return loss_of(event, 1.0, grid_step(event))


def effective_noise_multiplier(noise_multiplier: float, record_clip: float, dim: int, frac_bits: int) -> float:
    """Return sigma * R / (R + sqrt(d) 2^-f): the multiplier left after updates are rounded towards zero to f bits.

    Rounding moves each coordinate of the difference of two neighbouring updates by at most 2^-f more than the
    record itself does. A record's l2 sensitivity is therefore R + sqrt(d) 2^-f rather than R. Rounding happens once, so
    j drawn records of one person move the sum by at most j R + sqrt(d) 2^-f, within j times that. Our derivation.
    """
    require_positive("noise_multiplier", noise_multiplier)
    require_positive("record_clip", record_clip)
    require_count("dim", dim, at_least=1)
    require_count("frac_bits", frac_bits)
    noise_multiplier, record_clip = float(noise_multiplier), float(record_clip)
    return noise_multiplier * record_clip / (record_clip + math.ldexp(math.sqrt(dim), -frac_bits))


def round_event(
    view: View,
    *,
    record_sampling_rate: float,
    noise_multiplier: float,
    record_clip: float,
    dim: int,
    frac_bits: int,
    group_size: int = 1,
) -> SampledGaussian:
    """Return one PRECAD round as `view` sees it, for a record, or a person's records, of a client that takes part.

    noise_multiplier is sigma, each server's noise over the record clip R before encoding. One honest server's
    noise is round(sigma R 2^f Z) on integers, which is post-processing of the Gaussian release. The sum of
    two rounded draws is such post-processing only up to terms in its law of order exp(-(pi * std)^2), std = sigma R
    2^f. Our derivation. CLIENTS_ONLY therefore asks for std >= 8, where these terms are below 1e-270.
    """
    sigma = effective_noise_multiplier(noise_multiplier, record_clip, dim, frac_bits)
    if View(view) is View.ONE_SERVER:
        return SampledGaussian(record_sampling_rate, sigma, group_size)
    std = noise_multiplier * record_clip  # in reals: on the grid it may be more than a float holds
    if std < math.ldexp(8.0, -frac_bits):
        raise ValueError(
            "noise_multiplier * record_clip * 2^frac_bits: expected at least 8 against clients, found "
            f"{math.ldexp(std, frac_bits)}"
        )
    return SampledGaussian(record_sampling_rate, math.sqrt(2) * sigma, group_size)
