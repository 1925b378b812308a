"""How a trusted server bounds whole updates, and what that costs: fixed, by layer, or at a quantile that it learns.

The server adds N(0, (z' S)^2) to the sum, where S is the bound of the round and z' the `noise_multiplier` of the way.

    flat                 S is the task's                                          z' = z
    per-layer            the same S, S / sqrt(L) for each of L layers              z' = z
    private-quantile     S follows a quantile of the norms, estimated with noise   z' = (z^-2 - (2 sigma_b)^-2)^(-1/2)
    private-quantile-per-layer    the same S, S / sqrt(L) for each layer           z' as there
    median-not-private   S is the median of the round's norms                      no noise makes that private
    median-per-layer-not-private  each layer within the median of its norms        no noise makes that private
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from precad.clients.errors import ArgumentError
from precad.clients.gradients.engine import RecordEngine
from precad.clients.training.projection import project, project_layers
from precad.dp.noise.rounded_gaussian import MAX_STD
from precad.lab.simulation.config import SimulationSettings
from precad.protos.task import quantile as quantile_rule
from precad.protos.task.quantile import RANGE
from precad.protos.task.task import Task

Vector = NDArray[np.float64]


class UpdateClipping:
    """`flat`, the whole update within S; other ways are its subclasses. One that learns keeps what it has learnt: each
    training has one of its own."""

    name: ClassVar[str] = "flat"
    """As `simulation.update_clipping` names it."""
    why_not_private: ClassVar[str | None] = None
    """Why no epsilon can be stated, where that is so."""

    def __init__(self, bound: float, noise_multiplier: float) -> None:
        self.start = bound
        self.noise_multiplier = noise_multiplier
        """z': the noise on the sum has standard deviation z' times the bound of the round."""
        self.known_bound = bound
        """Bound of the coming round as clients know it; infinity where it depends on the round's updates."""
        self.largest_bound = bound
        """The largest bound that any round can have."""
        self.count_noise_std = 0.0
        """Standard deviation of the noise on the count, in counts; 0 means that there is none."""

    def bound(self, updates: Sequence[Vector]) -> float:
        """Return S of the round."""
        return self.known_bound

    def clipped(self, update: Vector, bound: float) -> Vector:
        """Return the update (d,) with norm at most S. Raises ArgumentError where it is not finite."""
        return project(update, bound)

    def count(self, updates: Sequence[Vector]) -> int | None:
        """Return what else is released of the round, before `count_noise_std` is added; None: nothing."""
        return None

    def learn(self, noisy_count: int) -> None:
        """Set the next round's bound by what was released."""

    def state(self) -> tuple[float, ...]:
        """Return what the next round depends on."""
        return ()

    def restore(self, state: tuple[float, ...]) -> None:
        """Continue from a `state`. Raises ArgumentError for one that is not of this way."""
        if state:
            raise ArgumentError(f"state: expected none of {self.name} clipping, found {len(state)} numbers")


class _ByLayer(UpdateClipping):
    """Each of the L layers within S / sqrt(L), so that the whole is within S:
    `precad.clients.training.projection.project_layers`."""

    def __init__(self, *arguments: float, layer_sizes: Sequence[int], **ways: Any) -> None:
        super().__init__(*arguments, **ways)
        self._layer_sizes = layer_sizes

    def clipped(self, update: Vector, bound: float) -> Vector:
        """See UpdateClipping."""
        return project_layers(update, bound, self._layer_sizes)


class PerLayerClipping(_ByLayer):
    """Clip layers under a fixed S."""

    name = "per-layer"


class QuantileClipping(UpdateClipping):
    """S follows the gamma-quantile of the norms. S <- S exp(-eta (b - gamma)), where b estimates the share of updates
    no longer than S.

    Each client counts c_i = 1 where its update, as it came, is within S, else -1. The release is sum_i c_i plus N(0, (2
    sigma_b)^2), rounded. The estimate is b = 1/2 + released / (2 q n). The expected number of clients, q n, is in place
    of their number, which is no public constant. On average, b - 1/2 is what c_i / 2 add up to, over q n.

    Privacy is that of one client of a round. The clipped update moves the sum by at most S, whose noise is z' S. The
    count c_i moves its own sum by 1, whose noise is 2 sigma_b. In units of their noise, both together are one vector of
    norm at most

        sqrt(z'^-2 + (2 sigma_b)^-2) = 1 / z        with z' = (z^-2 - (2 sigma_b)^-2)^(-1/2),

    under standard normal noise: a Gaussian release of multiplier z. Clients being drawn with rate q, a round is
    SampledGaussian(q, z), as without the quantile. S depends on earlier releases only, so rounds compose adaptively.
    Rounding what is added to integers is post-processing. Add/remove and Poisson sampling are our reading of the
    source.
    Source: Andrew, Thakkar, McMahan and Ramaswamy, "Differentially Private Learning with Adaptive Clipping", NeurIPS
    '21, Algorithm 1 and Theorem 1.
    """

    name = "private-quantile"

    def __init__(
        self,
        bound: float,
        noise_multiplier: float,
        *,
        expected_clients: float,
        quantile: float = 0.5,
        rate: float = 0.2,
        count_noise: float | None = None,
    ) -> None:
        """Set how S is learnt. count_noise: sigma_b. Unless it is given, it is q n / 20 as in the source, or
        1.2 z where that is more.

        Raises ArgumentError unless 2 sigma_b > z: the count would need all of the round's budget, or more.
        """
        sigma_b = quantile_rule.count_noise(expected_clients, noise_multiplier) if count_noise is None else count_noise
        if not 2 * sigma_b > noise_multiplier:
            raise ArgumentError(
                "simulation.quantile_noise: expected more than half of task.noise_multiplier, "
                f"{noise_multiplier / 2:g}, found {sigma_b:g}"
            )
        super().__init__(bound, (noise_multiplier**-2 - (2 * sigma_b) ** -2) ** -0.5)
        self._quantile, self._rate, self._expected = quantile, rate, expected_clients
        self.largest_bound, self.count_noise_std = self.start * RANGE, 2 * sigma_b

    def count(self, updates: Sequence[Vector]) -> int:
        """Return sum_i c_i."""
        return sum(1 if self._is_within(update) else -1 for update in updates)

    def _is_within(self, update: Vector) -> bool:
        return bool(np.linalg.norm(update) <= self.known_bound)

    def learn(self, noisy_count: int) -> None:
        """See the class."""
        moved = quantile_rule.moved(
            math.log(self.known_bound / self.start),
            noisy_count,
            expected_clients=self._expected,
            quantile=self._quantile,
            rate=self._rate,
        )
        self.known_bound = self.start * math.exp(moved)

    def state(self) -> tuple[float, ...]:
        """Return S."""
        return (self.known_bound,)

    def restore(self, state: tuple[float, ...]) -> None:
        """See UpdateClipping."""
        if len(state) != 1 or not self.start / (2 * RANGE) <= state[0] <= self.start * 2 * RANGE:
            raise ArgumentError(f"state of {self.name}: expected one bound near {self.start:g}, found {list(state)}")
        (self.known_bound,) = state


class PerLayerQuantileClipping(_ByLayer, QuantileClipping):
    """S follows the quantile of the largest sqrt(L) ||u_l|| of an update, each layer being within S / sqrt(L)."""

    name = "private-quantile-per-layer"

    def _is_within(self, update: Vector) -> bool:
        layers = _layers(update, self._layer_sizes)
        return all(bool(np.linalg.norm(layer) <= self.known_bound / math.sqrt(len(layers))) for layer in layers)


def _layers(update: Vector, sizes: Sequence[int]) -> list[Vector]:
    return np.split(update, np.cumsum(sizes)[:-1])


class MedianClipping(UpdateClipping):
    """S is the median of the round's norms, as the papers clip; the task's bound has no part in it.

    The median is of the clients' own updates, without any noise, and the noise is in proportion to it. One client moves
    both, and nothing hides by how much, so no epsilon is proved. For comparison only.
    Source: Xie et al., CCS '23, Appendix (flat median clipping), after Geyer, Klein and Nabi, "Differentially Private
    Federated Learning: A Client Level Perspective", 2017.
    """

    name = "median-not-private"
    why_not_private = (
        "the clipping bound is the median of the clients' own norms, with no noise of its own, so that epsilon is "
        "infinite"
    )

    def __init__(self, bound: float, noise_multiplier: float) -> None:
        super().__init__(bound, noise_multiplier)
        self.known_bound, self.largest_bound = math.inf, bound * RANGE  # nobody knows the bound beforehand

    def bound(self, updates: Sequence[Vector]) -> float:
        """Return the median, within a factor of 2^10 of the task's bound; that bound for nobody."""
        norms = [float(np.linalg.norm(update)) for update in updates]
        median = float(np.median(norms)) if norms else self.start
        return min(max(median, self.start / RANGE), self.largest_bound)


class PerLayerMedianClipping(MedianClipping):
    """Clip each layer to the median of the round's norms of that layer; S is the root of their sum of squares.

    Source: Xie et al., CCS '23, Appendix (per-layer median clipping), after Geyer, Klein and Nabi, 2017.
    """

    name = "median-per-layer-not-private"

    def __init__(self, bound: float, noise_multiplier: float, *, layer_sizes: Sequence[int]) -> None:
        super().__init__(bound, noise_multiplier)
        self._layer_sizes = layer_sizes
        self._medians = np.full(len(layer_sizes), bound / math.sqrt(len(layer_sizes)))

    def bound(self, updates: Sequence[Vector]) -> float:
        """Return S of the round, and keep what each layer is clipped to, within the range of flat medians."""
        split = [_layers(update, self._layer_sizes) for update in updates]
        n = len(self._layer_sizes)
        least, most = self.start / RANGE / math.sqrt(n), self.largest_bound / math.sqrt(n)
        if split:
            norms = np.array([[float(np.linalg.norm(layer)) for layer in layers] for layers in split])
            self._medians = np.clip(np.median(norms, axis=0), least, most)
        else:
            self._medians = np.full(n, self.start / math.sqrt(n))
        return math.sqrt(float(np.sum(np.square(self._medians))))

    def clipped(self, update: Vector, bound: float) -> Vector:
        """See UpdateClipping. bound: of the round, as `bound` returned it."""
        layers = _layers(update, self._layer_sizes)
        each = [project(layer, float(median)) for layer, median in zip(layers, self._medians, strict=True)]
        return project(np.concatenate(each), bound)


def clipping_of(settings: SimulationSettings, task: Task, engine: RecordEngine) -> UpdateClipping:
    """Return the way that the settings name, one of its own for each training. Raises ArgumentError."""
    start, z = task.client_clip, task.noise_multiplier
    match settings.update_clipping:
        case "flat":
            found = UpdateClipping(start, z)
        case "per-layer":
            found = PerLayerClipping(start, z, layer_sizes=engine.require_layer_sizes("simulation.update_clipping"))
        case "private-quantile":
            found = QuantileClipping(start, z, **_learning(settings, task))
        case "private-quantile-per-layer":
            sizes = engine.require_layer_sizes("simulation.update_clipping")
            found = PerLayerQuantileClipping(start, z, layer_sizes=sizes, **_learning(settings, task))
        case "median-not-private":
            found = MedianClipping(start, z)
        case "median-per-layer-not-private":
            sizes = engine.require_layer_sizes("simulation.update_clipping")
            found = PerLayerMedianClipping(start, z, layer_sizes=sizes)
    largest = found.noise_multiplier * found.largest_bound * float(2**task.frac_bits)
    if not largest <= MAX_STD:
        raise ArgumentError(
            "task.noise_multiplier * client_clip * 2^frac_bits: expected at most 2^40 steps of the grid, "
            f"found {largest:.6g}"
        )
    return found


def _learning(settings: SimulationSettings, task: Task) -> dict[str, Any]:
    """Return how a bound is learnt."""
    return {
        "expected_clients": task.client_rate * len(task.clients),
        "quantile": settings.quantile,
        "rate": settings.quantile_rate,
        "count_noise": settings.quantile_noise,
    }
