"""Adapters: what is constant, what is trained, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from precad.clients.errors import AdapterError
from precad.clients.models import networks
from precad.clients.models.adapters import AdaptedLayer, adapted, lora, orthonormal_rows, train_first
from tests.harness.adapted_models import TARGETS, Attention, small, texts


def test_the_base_and_a_are_constants_and_the_start_is_the_base() -> None:
    torch.manual_seed(3)
    base = Attention().eval()
    before = {name: value.clone() for name, value in base.state_dict().items()}
    model = lora(base, 4, TARGETS).eval()
    assert all(p.requires_grad for p in base.parameters())  # the user's own stays as it was
    assert {name for name, p in model.named_parameters() if p.requires_grad} == {f"{t}.B.weight" for t in TARGETS}
    inputs = torch.from_numpy(texts(5).features)
    assert torch.equal(model(inputs), base(inputs))
    for name, value in before.items():
        target, _, own = name.rpartition(".")
        kept = model.get_submodule(target)
        assert torch.equal(getattr(kept.base if isinstance(kept, AdaptedLayer) else kept, own), value)


def test_rows_of_a_are_orthonormal_and_their_seed_is_the_tasks() -> None:
    for layer in adapted(small(8)).layers():
        torch.testing.assert_close(layer.A.double() @ layer.A.double().T, torch.eye(8).double(), rtol=0, atol=1e-6)

    def a_of(seed: int) -> dict[str, torch.Tensor]:
        return {layer.name: layer.A for layer in adapted(networks.build(small, seed=seed)).layers()}

    first, again, other = a_of(7), a_of(7), a_of(8)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)
    assert not torch.equal(first["q"], first["v"])


def test_the_vector_is_as_long_as_b_whatever_the_base() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.head = nn.Embedding(5000, 64), nn.Linear(64, 10)

    model = networks.build(lambda: lora(Wide(), 8, ["head"]))
    assert networks.parameter_count(model) == 80
    assert networks.flatten(model).tolist() == [0.0] * 80


def test_a_block_under_two_names_has_one_adapter() -> None:
    """Named by its ending, which means both."""

    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = self.again = nn.Sequential(nn.Linear(4, 4))

    found = adapted(lora(Again(), 2, ["0"]))
    assert found is not None
    assert [layer.name for layer in found.layers()] == ["block.0"]


@pytest.mark.parametrize(
    ("rank", "targets", "message"),
    [
        (4, ["query"], r"^targets: expected names that end in one of head, k, q, v, found query$"),
        (4, ["norm"], r"^norm: expected a torch.nn.Linear or transformers' Conv1D, found LayerNorm$"),
        (4, "head", r"^targets: expected names of layers"),
        (4, [], r"^targets: expected names of layers"),
        (0, ["head"], r"^rank, alpha: expected a rank of 1 or more"),
        (17, ["q"], r"^q: expected a rank of at most its 16 inputs, found 17$"),
    ],
)
def test_targets_that_cannot_be_adapted_are_refused(rank: int, targets: list[str], message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        lora(Attention(), rank, targets)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(({"rank": rank}, r"^rank, alpha: expected a rank of 1 or more") for rank in (2.0, "2", None, True)),
        *(({"alpha": alpha}, r"^rank, alpha: .* a finite alpha > 0, found 2, ") for alpha in ("1", True, float("nan"))),
        ({"targets": 5}, r"^targets: expected names of layers, .* found 5$"),
        ({"model": nn.Linear}, r"^model: expected a torch.nn.Module, found a type$"),
    ],
)
def test_arguments_of_another_type_are_refused_in_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        lora(**{"model": Attention(), "rank": 2, "targets": ["q"], **given})


def test_a_layer_that_pytorch_never_calls_is_refused() -> None:
    """Attention of PyTorch reads its projection's weight by itself: an adapter there would be silent."""
    with pytest.raises(AdapterError, match=r"out_proj: .*found NonDynamicallyQuantizableLinear"):
        lora(nn.TransformerEncoderLayer(8, 2), 2, ["out_proj"])


def test_a_base_that_moves_is_refused_by_name() -> None:
    def thawed() -> nn.Module:
        model = small()
        model.k.requires_grad_(requires_grad=True)
        return model

    with pytest.raises(AdapterError, match=r"^k.weight: expected a constant: .*found a parameter$"):
        networks.build(thawed)
    with pytest.raises(AdapterError, match=r"expected one without adapters"):
        lora(small(), 2, ["k"])


def test_a_smaller_rank_is_at_most_the_tasks() -> None:
    model = networks.build(lambda: nn.Sequential(small(4)))
    train_first(model, 3)
    assert [layer.B.n_trained for layer in adapted(model).layers()] == [3, 3, 3]
    for n in (0, 5):
        with pytest.raises(AdapterError, match=r"client.adapter_rank: .*at most the task's 4"):
            train_first(model, n)
    with pytest.raises(AdapterError, match=r"client.adapter_rank: expected a model with adapters"):
        train_first(networks.build("mlp"), 1)


def test_more_rows_than_inputs_are_no_rows() -> None:
    with pytest.raises(AdapterError, match=r"^x: "):
        orthonormal_rows(5, 4, seed=0, name="x")
