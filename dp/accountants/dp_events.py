"""Write rounds of a client as an event of dp-accounting, so that others compute epsilon again without our code.

The events are written as JSON, field by field as `dp_accounting.DpEvent.to_named_tuple` gives them. They mean what the
library says: Poisson sampling of records, add/remove one, noise over the norm that one record may have. Groups of
records of one person are mixtures of Gaussians by how many of them are drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from precad.dp.accountants.bins_event import BinnedGaussian
from precad.dp.accountants.pld import Release, SampledGaussian
from precad.dp.accountants.ptr_event import SampledProposeTestRelease
from precad.dp.checks import require_count

if TYPE_CHECKING:
    from dp_accounting import DpEvent


def dp_event(event: Release | None, steps: int) -> DpEvent:
    """Return `steps` repetitions of `event` as the library's. `event` None: a step costs everything.

    The library has no propose-test-release, which therefore counts as everything. Nor has it balls in bins. An epoch
    of these is one release that a record is in for all to see, which costs at least as much.
    """
    import dp_accounting

    require_count("steps", steps)
    if steps == 0:
        return dp_accounting.NoOpDpEvent()
    if event is None or isinstance(event, SampledProposeTestRelease):
        return dp_accounting.NonPrivateDpEvent()
    if isinstance(event, BinnedGaussian):
        known = dp_accounting.GaussianDpEvent(event.noise_multiplier / event.group_size)
        return dp_accounting.SelfComposedDpEvent(known, event.epochs(steps))
    if event.group_size > 1:
        return dp_accounting.SelfComposedDpEvent(_of_group(event), steps)
    gaussian = dp_accounting.GaussianDpEvent(event.noise_multiplier)
    sampled = dp_accounting.PoissonSampledDpEvent(event.sampling_rate, gaussian)
    return dp_accounting.SelfComposedDpEvent(sampled, steps)


def _of_group(event: SampledGaussian) -> DpEvent:
    """Return one step of k records of one person, j of which are drawn with probability Bin(k, p)(j)."""
    from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
    from scipy.stats import binom

    drawn = range(event.group_size + 1)
    chances = [float(binom.pmf(j, event.group_size, event.sampling_rate)) for j in drawn]
    return MixtureOfGaussiansDpEvent(event.noise_multiplier, [float(j) for j in drawn], chances)


def as_json(event: DpEvent) -> dict[str, Any]:
    """Return the fields of an event that `dp_event` made, nested, with the names of its module and class."""
    return _fields(event.to_named_tuple())


def _fields(event: Any) -> dict[str, Any]:
    return {name: _fields(value) if hasattr(value, "_asdict") else value for name, value in event._asdict().items()}
