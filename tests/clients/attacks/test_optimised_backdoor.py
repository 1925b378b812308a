"""The attacker that optimises inside the set: it breaks no constraint, and gains on the one that projects once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from precad.clients.attacks import Knowledge, OptimisedBackdoor, PixelBackdoor
from precad.clients.attacks.model_space import ModelSpace
from precad.clients.errors import ArgumentError
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
        gradient=lambda at: mean_gradient(at, records, engine),
        project=ModelSpace(DIM, 2.0, cut=cut).project,
        random=np.random.default_rng(0),
    )


@pytest.mark.parametrize("keeps_clean", [False, True])
@pytest.mark.parametrize("n_attackers", [1, 3])
@pytest.mark.parametrize("kind", ["ball", "layers", "half-space"])
def test_it_stays_inside_every_constraint_and_its_loss_is_lower(
    kind: str, n_attackers: int, *, keeps_clean: bool
) -> None:
    own = digits().train.take(np.arange(60))
    attack = OptimisedBackdoor(divides=False, keeps_clean=keeps_clean)
    records = attack.on_records(own)
    engine = RecordEngine(networks.build("mlp"), example_of(records), device="cpu")
    cut = set_of(kind, mean_gradient(model().astype(np.float64), records, engine))
    at = known(records, cut, engine, n_attackers=n_attackers)
    once = at.project(PixelBackdoor(divides=False).craft(at))
    found = attack.craft(at)
    checked = cut or ConvexSet(2.0, DIM, 16)
    assert checked.holds(fixed_point.encode(found, 16))
    theta, moves = model().astype(np.float64), STEP * n_attackers
    losses = [loss(theta + moves * upload, records) for upload in (once, found)]
    assert losses[1] < losses[0]
    if kind == "half-space":  # what projecting once leaves of C is what optimising takes
        assert np.linalg.norm(found) > np.linalg.norm(once)


def test_it_trains_on_stamped_records_alone_unless_told_otherwise() -> None:
    own = digits().train.take(np.arange(10))
    stamped = OptimisedBackdoor(target=3).on_records(own)
    assert len(stamped) == 10
    assert set(stamped.labels.tolist()) == {3}
    assert len(OptimisedBackdoor(keeps_clean=True).on_records(own)) == 20
    with pytest.raises(ArgumentError, match="keeps_clean must be true or false, got 1"):
        OptimisedBackdoor(keeps_clean=1)  # type: ignore[arg-type]
