"""Aggregation rules of one server that sees every update, for comparison with PRECAD. One idea a file.

    bulyan            Bulyan: Krum selects, a trimmed mean around the median averages
    geometric_median  RFA: the geometric median, by the smoothed Weiszfeld iteration
    krum              Krum and Multi-Krum: the updates that are closest to their neighbours
    mean              The mean, which a single client can move anywhere
    median            The coordinate-wise median
    norm_bounding     Norm bounding: nobody's update is longer than anybody else's may be
    rule              What an aggregation rule in the clear is
    trimmed_mean      The coordinate-wise trimmed mean
    trimmed_sums      TSGD + Gaussian and TSGD + PTR: private sums without the longest updates

Only the two trimmed sums protect anybody's privacy, from those who see the models; what the rules withstand is in their
sources.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from precad.lab.simulation.rules.bulyan import Bulyan
from precad.lab.simulation.rules.geometric_median import GeometricMedian
from precad.lab.simulation.rules.krum import Krum, MultiKrum
from precad.lab.simulation.rules.mean import Mean
from precad.lab.simulation.rules.median import CoordinateMedian
from precad.lab.simulation.rules.norm_bounding import NormBounding
from precad.lab.simulation.rules.rule import AggregationRule
from precad.lab.simulation.rules.trimmed_mean import TrimmedMean
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
RULES: Final[Mapping[str, type[AggregationRule]]] = MappingProxyType({kind.name: kind for kind in _KINDS})
"""The rules by the name that a configuration gives them."""
