"""Aggregation rules of one server that sees every update, for comparison with PRECAD. One idea a file.

    averages      Means and medians, of every coordinate or of whole updates
    krum          Krum, Multi-Krum and Bulyan: the updates that are closest to their neighbours
    rule          What an aggregation rule in the clear is
    trimmed_sums  TSGD + Gaussian and TSGD + PTR: private sums without the longest updates

Only the two trimmed sums protect anybody's privacy, from those who see the models; what the rules withstand is in their
sources.
"""

from collections.abc import Mapping
from typing import Final

from precad.lab.simulation.rules.averages import CoordinateMedian, GeometricMedian, Mean, NormBounding, TrimmedMean
from precad.lab.simulation.rules.krum import Bulyan, Krum, MultiKrum
from precad.lab.simulation.rules.rule import AggregationRule
from precad.lab.simulation.rules.trimmed_sums import TsgdGaussian, TsgdPtr

__all__ = [
    "RULES",
    "AggregationRule",
    "Bulyan",
    "CoordinateMedian",
    "GeometricMedian",
    "Krum",
    "Mean",
    "MultiKrum",
    "NormBounding",
    "TrimmedMean",
    "TsgdGaussian",
    "TsgdPtr",
]

_KINDS: Final[tuple[type[AggregationRule], ...]] = (
    Mean,
    Krum,
    MultiKrum,
    Bulyan,
    CoordinateMedian,
    TrimmedMean,
    GeometricMedian,
    NormBounding,
    TsgdGaussian,
    TsgdPtr,
)
RULES: Final[Mapping[str, type[AggregationRule]]] = {kind.name: kind for kind in _KINDS}
"""The rules by the name that a configuration gives them."""
