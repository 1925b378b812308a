"""The attacker that optimises inside the set: it breaks no constraint, and gains on the one that projects once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from precad.clients.attacks import Knowledge, OptimisedBackdoor, PixelBackdoor
from precad.clients.attacks.model_space import ModelSpace
from precad.clients.gradients.engine import RecordEngine
from precad.clients.models import networks
from precad.clients.records import Records, digits, example_of
from precad.clients.training.descent import PLAIN_DESCENT, descend, mean_gradient
from precad.mpc import fixed_point
from precad.mpc.convex_set import ConvexSet, HalfSpace, LayerBall

SIZES = (4160, 650)
DIM = sum(SIZES)
STEP = 0.05
Vector = NDArray[np.float64]


def model() -> NDArray[np.float32]:
    return networks.flatten(networks.build("mlp", seed=0)).astype(np.float32)


def loss(parameters: Vector, records: Records) -> float:
    """Return the mean loss by PyTorch itself: NumPy's parameters in, none of the engine's code."""
    network = networks.build("mlp").double()
    torch.nn.utils.vector_to_parameters(torch.tensor(parameters), network.parameters())
    features = torch.tensor(records.features)
    scaled = features.double() / 255 if features.dtype == torch.uint8 else features.double()
    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(network(scaled), torch.tensor(records.labels).long()))


def set_of(kind: str, direction: Vector) -> ConvexSet | None:
    """Return a set of the kind; its half-space forbids going down the backdoor's gradient at theta_t."""
    if kind == "ball":
        return None
    layers = tuple(LayerBall(size, clip) for size, clip in zip(SIZES, (1.5, 0.25), strict=True))
    if kind == "layers":
        return ConvexSet(2.0, DIM, 16, layers=layers)
    g = np.rint(direction * (2.0**14 / np.linalg.norm(direction))).astype(np.int64)
    return ConvexSet(2.0, DIM, 16, half_spaces=(HalfSpace(g, -1.0 - np.ldexp(np.abs(g).sum() + 1.0, -15)),))


def known(records: Records, cut: ConvexSet | None, engine: RecordEngine, *, n_attackers: int) -> Knowledge:
    """Return what an attacker of digits knows, with nothing made up."""

    def train(steps: int, rate: float) -> Vector:
        stream = np.random.default_rng(0).bytes
        return descend(
            model(), records, engine=engine, steps=steps, rate=rate, sample_rate=1.0,
            training=PLAIN_DESCENT, random_bytes=stream,
        )  # fmt: skip

    return Knowledge(
        parameters=model(),
        records=records,
        update=np.zeros(DIM),
        honest=np.empty((0, DIM)),
        own=np.zeros((n_attackers, DIM)),
        n_attackers=n_attackers,
        n_clients=10,
        bound=2.0,
        step=STEP,
        train=train,
        gradient=lambda at, records: mean_gradient(at, records, engine),
        project=ModelSpace(DIM, 2.0, cut=cut).project,
        random=np.random.default_rng(0),
    )


def as_target(own: Records) -> Records:
    """Return those of other classes than 0, called 0."""
    others = own.take(np.flatnonzero(own.labels != 0))
    return Records(others.features, np.zeros_like(others.labels))


@pytest.mark.parametrize("n_attackers", [1, 3])
@pytest.mark.parametrize("kind", ["ball", "layers", "half-space"])
def test_it_stays_inside_every_constraint_and_gains_what_only_the_pattern_opens(kind: str, n_attackers: int) -> None:
    """Moved along its update the model is drawn to 0 by the pattern more, and without it less, than by projecting once.

    The second would be 0 to first order but for the ways from projection, so it is held against the first attacker's.
    """
    own = digits().train.take(np.arange(60))
    attack = OptimisedBackdoor(divides=False)
    records = attack.on_records(own)
    engine = RecordEngine(networks.build("mlp"), example_of(records), device="cpu")
    cut = set_of(kind, mean_gradient(model().astype(np.float64), records, engine))
    at = known(records, cut, engine, n_attackers=n_attackers)
    once = at.project(PixelBackdoor(divides=False).craft(at))
    found = attack.craft(at)
    checked = cut or ConvexSet(2.0, DIM, 16)
    assert checked.holds(fixed_point.encode(found, 16))
    theta, moves = model().astype(np.float64), STEP * n_attackers
    stamped, common = records.take(np.arange(60, 120)), as_target(own)
    gaps = [loss(theta + moves * it, stamped) - loss(theta + moves * it, common) for it in (once, found)]
    assert gaps[1] < gaps[0]
    if kind == "half-space":  # what projecting once leaves of C is what optimising takes
        assert np.linalg.norm(found) > np.linalg.norm(once)


def test_its_first_step_has_no_part_along_what_needs_no_pattern() -> None:
    """From theta_t, inside a ball that leaves room: the step is a stretched slope, orthogonal to the other gradient."""
    own = digits().train.take(np.arange(60))
    attack = OptimisedBackdoor(divides=False, steps=1, rate=1e-9)
    records = attack.on_records(own)
    engine = RecordEngine(networks.build("mlp"), example_of(records), device="cpu")
    at = known(records, None, engine, n_attackers=1)
    start = at.project(PixelBackdoor(divides=False, steps=1, rate=1e-9).craft(at))
    start *= 2.0 / np.linalg.norm(start)
    there = model().astype(np.float64) + STEP * start
    common = mean_gradient(there, as_target(own), engine)
    slope = attack._slope(there, at)
    assert abs(np.dot(slope, common)) < 1e-9 * np.linalg.norm(slope) * np.linalg.norm(common)
    wanted = mean_gradient(there, records.take(np.arange(60, 120)), engine)
    assert abs(np.dot(wanted, common)) > 0.5 * np.linalg.norm(wanted) * np.linalg.norm(common)  # it had much of it
    assert np.dot(slope, wanted) == pytest.approx(np.dot(slope, slope), rel=1e-6)


@pytest.mark.parametrize(("share", "n"), [(1.0, 10), (0.5, 5), (0.04, 0)])
def test_it_takes_its_share_of_records_as_they_are_and_stamped(share: float, n: int) -> None:
    own = digits().train.take(np.arange(10))
    found = OptimisedBackdoor(target=3, share=share).on_records(own)
    assert len(found) == 2 * n
    assert set(found.labels[:n].tolist()) <= set(own.labels.tolist())
    assert set(found.labels[n:].tolist()) <= {3}


@pytest.mark.parametrize("labels", [[], [0, 0]])
def test_without_records_or_with_those_of_its_target_alone_it_still_uploads_something_accepted(
    labels: list[int],
) -> None:
    split = digits().train
    attack = OptimisedBackdoor(divides=False)
    records = attack.on_records(Records(split.features[: len(labels)], np.array(labels, dtype=np.int64)))
    engine = RecordEngine(networks.build("mlp"), example_of(split), device="cpu")
    found = attack.craft(known(records, None, engine, n_attackers=1))
    assert np.linalg.norm(found) <= 2.0
