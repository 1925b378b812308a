"""Aggregation rules of one server that sees every update, for comparison with PRECAD. One idea a file.

Only the two trimmed sums protect anybody's privacy, from those who see the models; what the rules withstand is in their
sources.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from clients.aggregation.bulyan import Bulyan
from clients.aggregation.geometric_median import GeometricMedian
from clients.aggregation.krum import Krum, MultiKrum
from clients.aggregation.mean import Mean
from clients.aggregation.median import CoordinateMedian
from clients.aggregation.norm_bounding import NormBounding
from clients.aggregation.rule import AggregationRule
from clients.aggregation.trimmed_mean import TrimmedMean
from clients.aggregation.trimmed_sums import TsgdGaussian, TsgdPtr

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
RULES: Final[Mapping[str, type[AggregationRule]]] = MappingProxyType({kind.name: kind for kind in _KINDS})
"""The rules by the name that a configuration gives them."""
