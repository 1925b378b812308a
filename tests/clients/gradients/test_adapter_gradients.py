"""Gradients of adapters against those of the whole weights, and the ghost norm against a gradient that is formed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from precad.clients.errors import AdapterError
from precad.clients.gradients.engine import RecordEngine
from precad.clients.gradients.layers import Outer, Rows
from precad.clients.gradients.model_stack import ModelByModel, ModelStack, can_stack
from precad.clients.gradients.one_pass import one_pass
from precad.clients.gradients.record_clipping import RecordClip
from precad.clients.gradients.record_paths import Path, by_vmap, one_by_one
from precad.clients.gradients.sequences import Sequences
from precad.clients.models import networks
from precad.clients.models.adapters import AdaptedLayer, lora, merged_layers, train_first
from precad.clients.models.losses import CROSS_ENTROPY
from precad.clients.records import example_of
from tests.harness.adapted_models import N_CLASSES, WIDTH, Attention, merged, slow_adapter_gradients, small, texts


def built(rank: int, n_trained: int | None = None) -> nn.Module:
    """Return the model as a client has it, at parameters that are not zero."""
    model = networks.build(lambda: small(rank))
    if n_trained is not None:
        train_first(model, n_trained)
    generator = torch.Generator().manual_seed(rank)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.parametrize("n_trained", [None, 2])
@pytest.mark.parametrize("rank", [1, 3, 8])
def test_clipped_sums_are_those_of_the_whole_weights(rank: int, n_trained: int | None) -> None:
    """dL/dB = scale dL/dW A^T, clipped in a loop; the bound clips some records and not others."""
    if n_trained is not None and n_trained > rank:
        n_trained = rank
    model, records = built(rank, n_trained), texts(9)
    rows = slow_adapter_gradients(model, records)
    if n_trained is not None:
        kept = torch.cat([(torch.arange(p.numel()) % rank < n_trained) for p in model.parameters()]).numpy()
        rows = rows * kept
    norms = np.linalg.norm(rows, axis=1)
    bound = float(np.median(norms))
    clients = [records.take(np.arange(0, 4)), records.take(np.arange(4, 9))]
    clipped = rows * np.minimum(1.0, bound / norms)[:, None]
    expected = np.stack([clipped[:4].sum(axis=0), clipped[4:].sum(axis=0)])
    engine = RecordEngine(model, example_of(records), device="cpu", dtype=torch.float64)
    assert engine.path is Path.ONE_PASS
    assert engine.passes.is_bit_exact
    found = engine.clipped_sums(networks.flatten(model), clients, RecordClip(bound))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9 * bound)
    total = engine.gradient_sum(networks.flatten(model), records)
    np.testing.assert_allclose(total, rows.sum(axis=0), rtol=0, atol=1e-10 * norms.sum())


def test_every_way_to_the_gradients_is_the_same() -> None:
    """One pass, the transform and the loop; at rank 8 the layers within the text take the ghost norm, at 3 rows."""
    records = texts(6)
    features, labels = torch.from_numpy(records.features), torch.from_numpy(records.labels)
    for rank, kinds in ((8, (Sequences, Sequences, Outer)), (3, (Rows, Rows, Outer))):
        model = built(rank, n_trained=rank - 1).double().eval().requires_grad_(requires_grad=False)
        ways = [way(model, features, labels, CROSS_ENTROPY) for way in (one_pass, by_vmap, one_by_one)]
        assert tuple(type(layer) for layer in ways[0]) == kinds
        ones, alone = torch.ones(6, dtype=torch.float64), [slice(i, i + 1) for i in range(6)]
        found = [torch.cat([layer.weighted_sums(ones, alone) for layer in way], dim=1) for way in ways]
        for other in found[1:]:
            torch.testing.assert_close(found[0], other, rtol=0, atol=1e-12)
        squares = torch.stack([layer.squared_norms() for layer in ways[0]]).sum(dim=0)
        torch.testing.assert_close(squares, found[0].square().sum(dim=1), rtol=1e-12, atol=0)


def test_the_ghost_norm_bounds_a_gradient_whose_places_cancel() -> None:
    """Rounding is left where places cancel: the clipped gradient must keep its bound R for such records too."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn((200, 4, 8), generator=generator, dtype=torch.float64)
    b = torch.randn((200, 4, 6), generator=generator, dtype=torch.float64)
    a[:, 1], a[:, 3] = a[:, 0], a[:, 2]
    b[:, 1], b[:, 3] = -b[:, 0] * (1 + 1e-12), -b[:, 2] * (1 - 3e-14)
    ghost = Sequences(a, b)
    formed = ghost.weighted_sums(torch.ones(200, dtype=torch.float64), [slice(i, i + 1) for i in range(200)])
    plain = (torch.bmm(a, a.mT) * torch.bmm(b, b.mT)).sum(dim=(1, 2))
    assert (plain < formed.square().sum(dim=1)).any()  # the formula by itself does not bound
    assert (ghost.squared_norms() >= formed.square().sum(dim=1)).all()


def test_a_record_that_is_not_finite_has_no_finite_norm() -> None:
    """It is then left out as a whole."""
    ghost = Sequences(*(torch.full((1, 2, n), 1e200, dtype=torch.float64) for n in (4, 3)))
    assert not ghost.squared_norms().isfinite().any()
    kept = ghost.without(torch.tensor([True]))
    assert kept.squared_norms().eq(0).all()


def test_clients_after_local_steps_have_adapters_of_their_own() -> None:
    """A stack of models gives what the loop over them does."""
    engine = RecordEngine(built(8), example_of(texts(1)), device="cpu", dtype=torch.float64)
    assert can_stack(engine)
    models = 0.2 * np.random.default_rng(1).standard_normal((3, engine.dim))
    clients = [texts(n, seed=n) for n in (2, 5, 3)]
    for clip in (RecordClip(0.05), RecordClip(10.0)):
        expected = ModelByModel(engine).clipped_sums(models, clients, clip)
        np.testing.assert_allclose(ModelStack(engine).clipped_sums(models, clients, clip), expected, atol=1e-12)


def test_an_adapter_that_does_not_train_is_refused_by_name() -> None:
    class Skipping(Attention):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.head(self.norm(self.tokens(inputs)).mean(dim=1))

    model = networks.build(lambda: lora(Skipping(), 2, ["v", "head"]))
    with pytest.raises(AdapterError, match=r"^v: expected an adapter that trains, found a gradient of zero"):
        RecordEngine(model, example_of(texts(1)))


def test_a_zero_head_behind_the_adapters_is_refused_by_name() -> None:
    """The head is a constant, so no noise on the parameters ever wakes what is before it."""

    def make() -> nn.Module:
        base = Attention()
        nn.init.zeros_(base.head.weight)
        return lora(base, 2, ["q", "v"])

    with pytest.raises(AdapterError, match=r"^q: expected an adapter that trains"):
        RecordEngine(networks.build(make), example_of(texts(1)))


def test_the_adapted_model_is_the_merged_one() -> None:
    model = built(4).double().eval()
    features = torch.from_numpy(texts(7).features)
    assert model(features).shape == (7, N_CLASSES)
    torch.testing.assert_close(model(features), merged(model)(features), rtol=0, atol=1e-12)
    assert sum(p.numel() for p in model.parameters()) == 4 * (2 * WIDTH + N_CLASSES)


def test_an_engine_has_no_copy_of_the_base() -> None:
    """Its parameters are its own: what it loads does not reach the model that it was made of."""
    model, records = built(4), texts(6)
    before = networks.flatten(model)
    engine = RecordEngine(model, example_of(records), device="cpu")
    engine.clipped_sums(np.zeros(engine.dim, np.float32), [records], RecordClip(1.0))
    own, other = dict(model.named_buffers()), dict(engine.model_copy().named_buffers())
    assert {name for name in own if own[name].data_ptr() == other[name].data_ptr()} == own.keys()
    assert networks.flatten(model).tobytes() == before.tobytes()
    assert networks.flatten(engine.model_copy()).tobytes() == before.tobytes()


class Conv1D(nn.Module):
    """Stand for the layer of `transformers`, known by its name: its weight is (inputs, outputs)."""

    def __init__(self, n_inputs: int, n_outputs: int) -> None:
        super().__init__()
        self.nf = n_outputs
        self.weight, self.bias = nn.Parameter(torch.randn(n_inputs, n_outputs)), nn.Parameter(torch.randn(n_outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


@pytest.mark.parametrize("base", [nn.Linear(6, 4), nn.Linear(6, 4, bias=False), Conv1D(6, 4)], ids=str)
def test_a_merged_layer_is_the_adapted_one(base: nn.Module) -> None:
    """By value; it is merged while that is entered alone, and nothing of its gradient reaches B then."""
    model = lora(nn.Sequential(base, nn.Linear(4, 2)), 3, ["0"], alpha=6.0).double()
    layer = model.get_submodule("0")
    assert isinstance(layer, AdaptedLayer)
    nn.init.normal_(layer.B.weight)
    x = torch.randn((5, 2, 6), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = layer(x)
    with merged_layers(model) as layers:
        assert layers == {layer.B: layer}
        found = layer(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert (expected.requires_grad, found.requires_grad) == (True, False)
    assert layer.whole_weight is None
    assert torch.equal(layer(x), expected)
