"""Every accountant of the project, side by side with PldAccountant of `precad.dp.accountants.pld`, which is the
default.

    name        label                   what it computes
    pld         bound                   loss distributions, the tightest; see precad.dp.accountants.pld
    rdp         bound                   Renyi divergences, conversion of Balle et al.; the fallback
    gdp         bound                   closed form, for rounds without sampling only
    gdp_clt     approximation           the limit for many rounds, with two-stage sampling treated as visible
    precad      published_reproduction  PRECAD's Theorem 1 as printed: the limit, at record rate q p
    xie         published_reproduction  Xie et al.'s tables: Renyi on the orders `opacus`, conversion of Mironov '17

An epsilon leaves here as a PrivacyStatement carrying its accountant's label, so that it is printed as what it is.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Final

import numpy as np

from precad.dp.accountants.bins_event import BinnedGaussian
from precad.dp.accountants.gaussian_dp import eps_from_mu, gdp_clt, gdp_composed_mu
from precad.dp.accountants.pld import (
    Event,
    Label,
    PldAccountant,
    PrivacyAccountant,
    PrivacyStatement,
    TwoStageSampledGaussian,
    View,
)
from precad.dp.accountants.ptr_event import SampledProposeTestRelease
from precad.dp.accountants.renyi import rdp_composed, rdp_sgm_poisson, rdp_sgm_two_stage
from precad.dp.accountants.renyi_accounting import OrderGridWarning, eps_from_rdp, order_grid
from precad.dp.accountants.slack import with_slack
from precad.dp.checks import require_count, require_delta
from precad.dp.errors import UnsupportedEventError


class RdpAccountant:
    """By Renyi divergences, exact ones of the sampled Gaussian, and one conversion at the best order."""

    label: Final = Label.BOUND

    def __init__(self, method: str = "balle", orders: str | Sequence[float] = "wide") -> None:
        self._method, self._orders = method, order_grid(orders)

    def epsilon(self, event: Event, rounds: int, delta: float) -> float:
        """Return an upper bound on epsilon, see PrivacyAccountant. Warns if the best order is an end of the grid."""
        if _is_nothing(event, rounds, delta):
            return 0.0
        if event.group_size > 1:
            raise UnsupportedEventError("the rdp accountant", event)
        return eps_from_rdp(lambda alpha: rdp_composed(_rdp(alpha, event), rounds), delta, self._method, self._orders)


def _rdp(alpha: float, event: Event) -> float:
    if isinstance(event, TwoStageSampledGaussian):
        return rdp_sgm_two_stage(alpha, event.selection_rate, event.record_rate, event.noise_multiplier)
    return rdp_sgm_poisson(alpha, _rates(event)[1], event.noise_multiplier)


class GdpAccountant:
    """By Gaussian differential privacy, exactly: for rounds in which every unit takes part for certain."""

    label: Final = Label.BOUND

    def epsilon(self, event: Event, rounds: int, delta: float) -> float:
        """Return the exact epsilon of sqrt(rounds)/sigma-GDP, raised by more than the root finder's error."""
        if _is_nothing(event, rounds, delta):
            return 0.0
        if _rates(event) != (1, 1):
            raise UnsupportedEventError("the gdp accountant", event)
        return eps_from_mu(delta, gdp_composed_mu(event.noise_multiplier / event.group_size, rounds)) * (1 + 1e-12)


class GdpCltAccountant:
    """By the central limit of Gaussian differential privacy. Above or below the truth, and below it for small delta."""

    label: Final = Label.APPROXIMATION

    def epsilon(self, event: Event, rounds: int, delta: float) -> float:
        """Return epsilon of p sqrt(q T (e^{1/sigma^2} - 1))-GDP; q = 1 if there is one stage.

        Infinite if that overflows.
        """
        selection_rate, record_rate = _rates(event)
        if event.group_size > 1:
            return _eps_of_limit_of_group(event, rounds * selection_rate, delta)
        return _eps_of_limit(math.sqrt(selection_rate), record_rate, event, rounds, delta)


class PrecadAccountant:
    """PRECAD's Theorem 1 as printed, kept to show what it says: the central limit, with record rate q p."""

    label: Final = Label.PUBLISHED_REPRODUCTION

    def epsilon(self, event: Event, rounds: int, delta: float) -> float:
        """Return epsilon of q p sqrt(T (e^{1/sigma^2} - 1))-GDP; q = 1 if there is one stage.

        Infinite if that overflows.

        A group of k records is k times that, as for any Gaussian differential privacy.
        """
        selection_rate, record_rate = _rates(event)
        return _eps_of_limit(event.group_size * selection_rate, record_rate, event, rounds, delta)


def _eps_of_limit(factor: float, record_rate: float, event: Event, rounds: int, delta: float) -> float:
    if _is_nothing(event, rounds, delta):
        return 0.0
    mu = factor * gdp_clt(record_rate, event.noise_multiplier, rounds)
    return eps_from_mu(delta, mu) if math.isfinite(mu) else math.inf


def _eps_of_limit_of_group(event: Event, rounds: float, delta: float) -> float:
    """Return epsilon of the central limit of a group's mixture: mu^2 = T chi^2, infinite if that overflows.

    chi^2 = E e^{J J' / sigma^2} - 1 for independent numbers J, J' of drawn records, both of the law Bin(k, p).
    """
    from scipy.stats import binom  # half a second, which a start does not wait for

    if _is_nothing(event, 1, delta) or rounds == 0:
        return 0.0
    k, p = event.group_size, _rates(event)[1]
    drawn = np.arange(k + 1)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        of_other = np.log1p(p * np.expm1(drawn / np.square(np.float64(event.noise_multiplier))))
        chi_squared = float(np.sum(binom.pmf(drawn, k, p) * np.expm1(k * of_other)))
    mu = math.sqrt(rounds * chi_squared) if math.isfinite(chi_squared) else math.inf
    return eps_from_mu(delta, mu) if math.isfinite(mu) else math.inf


class XieAccountant(RdpAccountant):
    """The recipe behind Xie et al.'s tables. What it computes is a bound, but not the one their text describes."""

    label: Final = Label.PUBLISHED_REPRODUCTION  # type: ignore[misc]

    def __init__(self) -> None:
        super().__init__("mironov", "opacus")

    def epsilon(self, event: Event, rounds: int, delta: float) -> float:
        """Return their epsilon; an end of their grid is often the best order, and is no news."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OrderGridWarning)
            return super().epsilon(event, rounds, delta)


ACCOUNTANTS: Final[dict[str, PrivacyAccountant]] = {
    "pld": PldAccountant(),
    "rdp": RdpAccountant(),
    "gdp": GdpAccountant(),
    "gdp_clt": GdpCltAccountant(),
    "precad": PrecadAccountant(),
    "xie": XieAccountant(),
}


def statement(
    accountant: PrivacyAccountant, event: Event, rounds: int, *, delta: float, view: View
) -> PrivacyStatement:
    """State the accountant's epsilon of these rounds, under the accountant's label."""
    epsilon = accountant.epsilon(event, rounds, delta)
    return PrivacyStatement(epsilon, delta, view, accountant.label, group_size=event.group_size)


def side_by_side(
    event: Event, rounds: int, *, delta: float, view: View, slack: float = 0.0
) -> dict[str, PrivacyStatement]:
    """Return every accountant's statement, by name; without those that have no formula for the event.

    slack: what the protocol takes from delta. Published formulas know of none, and stay as printed.
    """
    found = {}
    for name in ACCOUNTANTS:
        accountant = accountant_of(name, slack)
        try:
            found[name] = statement(accountant, event, rounds, delta=delta, view=view)
        except UnsupportedEventError:
            continue
    return found


def accountant_of(name: str, slack: float = 0.0) -> PrivacyAccountant:
    """Return an accountant by name, with what the protocol takes from delta; a published formula without."""
    accountant = ACCOUNTANTS[name]
    return accountant if accountant.label is Label.PUBLISHED_REPRODUCTION else with_slack(accountant, slack)


def _rates(event: Event) -> tuple[float, float]:
    """Return (probability of the client, of the record): one stage has the first certain.

    Raises UnsupportedEventError for propose-test-release and for bins, of which `PldAccountant` alone knows.
    """
    if isinstance(event, SampledProposeTestRelease | BinnedGaussian):
        raise UnsupportedEventError("this accountant", event)
    if isinstance(event, TwoStageSampledGaussian):
        return event.selection_rate, event.record_rate
    return 1.0, event.sampling_rate


def _is_nothing(event: Event, rounds: int, delta: float) -> bool:
    """Return whether nothing is ever drawn. Raises ValueError for numbers outside their range."""
    require_count("rounds", rounds)
    require_delta(delta)
    return rounds == 0 or 0 in _rates(event)
