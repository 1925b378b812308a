"""Passes of adapters without what their outputs do not read, against the loop over records of the whole model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from precad.clients.errors import LayerRowsError
from precad.clients.gradients.calls import recorded
from precad.clients.gradients.engine import RecordEngine
from precad.clients.gradients.narrow_pass import narrow_pass
from precad.clients.gradients.narrowing import narrowed
from precad.clients.gradients.record_clipping import RecordClip
from precad.clients.gradients.record_paths import Path, one_by_one
from precad.clients.models import networks
from precad.clients.models.adapters import lora, merged_layers
from precad.clients.models.losses import CROSS_ENTROPY
from precad.clients.records import example_of
from tests.harness.adapted_models import N_CLASSES, N_PLACES, N_TOKENS, WIDTH, slow_adapter_gradients, texts

N_HEADS = 4


class Block(nn.Module):
    """Attend with heads, then go place by place. `ask` says how attention is written."""

    def __init__(self, ask: str) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out, self.lin1, self.lin2 = (nn.Linear(WIDTH, WIDTH) for _ in range(6))
        self.norm1, self.norm2, self.ask = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), ask

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        n = len(x)
        if self.ask == "permute":
            q, k, v = (f(x).reshape(n, N_PLACES, N_HEADS, -1).permute(0, 2, 1, 3) for f in (self.q, self.k, self.v))
        else:
            q, k, v = (f(x).view(n, -1, N_HEADS, 4).transpose(1, 2) for f in (self.q, self.k, self.v))
        if self.ask == "eager":
            scores = (q @ k.transpose(-1, -2) / 2.0).masked_fill(~mask, -1e9)
            read = torch.softmax(scores, dim=-1) @ v
        else:
            causal = torch.ones(N_PLACES, N_PLACES, dtype=torch.bool).tril() & mask
            read = nn.functional.scaled_dot_product_attention(q, k, v, causal if self.ask == "permute" else mask)
        x = self.norm1(x + self.out(read.transpose(1, 2).reshape(n, -1, WIDTH)))
        return self.norm2(x + self.lin2(nn.functional.gelu(self.lin1(x))))


class Reader(nn.Module):
    """Two blocks, then what `pick` reads of the last one."""

    def __init__(self, ask: str, pick: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(N_TOKENS, WIDTH), nn.Embedding(N_PLACES, WIDTH)
        self.blocks, self.head = nn.ModuleList(Block(ask) for _ in range(2)), nn.Linear(WIDTH, N_CLASSES)
        self.pick = pick

    def forward(self, tokens: Tensor) -> Tensor:
        mask = ((tokens != 0) | (torch.arange(N_PLACES) == 0))[:, None, None, :]
        x = self.tokens(tokens) + self.places(torch.arange(N_PLACES))
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.pick(x))


PICKS = {
    "x[:, 0]": lambda x: x[:, 0],
    "x[:, -1]": lambda x: x[:, -1],
    "x[:, 2, :]": lambda x: x[:, 2, :],
    "select": lambda x: x.select(-2, 1),
}


def built(ask: str, pick: Callable[[Tensor], Tensor], rank: int = 3) -> nn.Module:
    """Return the model with adapters that are not zero."""
    model = networks.build(lambda: lora(Reader(ask, pick), rank, ["q", "v", "lin1", "head"], seed=1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
    return model


@pytest.mark.parametrize("pick", PICKS.values(), ids=list(PICKS))
@pytest.mark.parametrize("ask", ["sdpa", "eager", "permute"])
def test_clipped_sums_are_those_of_the_whole_weights(ask: str, pick: Callable[[Tensor], Tensor]) -> None:
    """In float64, clipped in a loop by autograd's gradients, record by record."""
    model, records = built(ask, pick), texts(9)
    rows = slow_adapter_gradients(model, records)
    norms = np.linalg.norm(rows, axis=1)
    bound = float(np.median(norms))
    expected = (rows * np.minimum(1.0, bound / norms)[:, None]).sum(axis=0)
    engine = RecordEngine(model, example_of(records), device="cpu", dtype=torch.float64)
    assert engine.path is Path.NARROW_PASS
    assert engine.passes.is_bit_exact
    found = engine.clipped_sums(networks.flatten(model), [records], RecordClip(bound))
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=1e-9 * bound)
    engine = RecordEngine(model, example_of(records), device="cpu")
    assert engine.path is Path.NARROW_PASS
    found = engine.clipped_sums(networks.flatten(model), [records], RecordClip(bound))
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=1e-4 * bound)


def test_the_last_block_runs_at_the_place_that_is_read() -> None:
    """Keys and values come from all places; what is behind attention runs at one."""
    model, features = built("sdpa", PICKS["x[:, 0]"]), torch.from_numpy(texts(4).features)
    with merged_layers(model) as layers:
        calls = recorded(model, [layer.whole_weight for layer in layers.values()], features)
        short = narrowed(calls)
        names = [layer.name for layer in layers.values()]
    read = {
        names[short.merged[ref.value]]: short.shapes[call.args[0].value][1:-1]
        for call in short.calls
        for ref in call.refs()
        if ref.value in short.merged
    }
    first = {f"blocks.0.{name}": (N_PLACES,) for name in ("q", "v", "lin1")}
    assert read == {**first, "blocks.1.q": (1,), "blocks.1.v": (N_PLACES,), "blocks.1.lin1": (1,), "head": ()}


class Mean(Reader):
    """Reads all places."""

    def forward(self, tokens: Tensor) -> Tensor:
        self.pick = lambda x: x.mean(dim=1)
        return super().forward(tokens)


class Overwrites(Reader):
    """Change something in place on the way."""

    def forward(self, tokens: Tensor) -> Tensor:
        self.pick = lambda x: x.clone().mul_(2.0)[:, 0]
        return super().forward(tokens)


class Remembers(Reader):
    """Reads a tensor that neither the model's parameters and buffers nor its calls are."""

    def __init__(self, ask: str, pick: Callable[[Tensor], Tensor]) -> None:
        super().__init__(ask, pick)
        self.kept = [torch.ones(WIDTH)]

    def forward(self, tokens: Tensor) -> Tensor:
        self.pick = lambda x: (x * self.kept[0].to(x.dtype))[:, 0]
        return super().forward(tokens)


class Tripled(torch.autograd.Function):
    """Double, with a gradient of the user's own: the recording sees the sum alone."""

    @staticmethod
    def forward(context, x):
        return x + x

    @staticmethod
    def backward(context, gradient):
        return 3.0 * gradient


class Hides(Reader):
    """Has a gradient that PyTorch's functions do not have."""

    def forward(self, tokens: Tensor) -> Tensor:
        self.pick = lambda x: Tripled.apply(x)[:, 0]
        return super().forward(tokens)


@pytest.mark.parametrize("kind", [Mean, Overwrites, Remembers, Hides])
def test_what_cannot_be_narrowed_takes_another_path(kind: type[Reader]) -> None:
    """A pass that would not be repeated as it was is never taken; its gradients are still those of the loop."""
    model = networks.build(lambda: lora(kind("sdpa", PICKS["x[:, 0]"]), 3, ["q", "v"], seed=1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
    records = texts(5)
    features, labels = torch.from_numpy(records.features), torch.from_numpy(records.labels)
    quiet = model.eval().requires_grad_(requires_grad=False)
    if kind is not Hides:  # that one is found out by its gradients
        with pytest.raises(LayerRowsError, match="cannot be recorded"):
            narrow_pass(quiet, features, labels, CROSS_ENTROPY)
    engine = RecordEngine(model, example_of(records), device="cpu")
    assert engine.path is not Path.NARROW_PASS
    layers = one_by_one(quiet, features, labels, CROSS_ENTROPY)
    rows = torch.cat([layer.weighted_sums(torch.ones(5).double(), [slice(0, 5)]) for layer in layers], dim=1).numpy()
    found = engine.clipped_sums(networks.flatten(model), [records], RecordClip(1e9))
    np.testing.assert_allclose(found, rows, rtol=0, atol=1e-4 * float(np.linalg.norm(rows)))


def test_a_recorded_pass_keeps_no_features_and_follows_the_parameters() -> None:
    """An engine at other parameters and records gives what a new one gives, to the bit."""
    model, one, other = built("sdpa", PICKS["x[:, 0]"]), texts(20, seed=3), texts(20, seed=4)
    at, clip = networks.flatten(model), RecordClip(0.5)
    engine, new = (RecordEngine(model, example_of(one), device="cpu") for _ in range(2))
    engine.clipped_sums(at, [one], clip)
    np.testing.assert_array_equal(engine.clipped_sums(-2 * at, [other], clip), new.clipped_sums(-2 * at, [other], clip))
