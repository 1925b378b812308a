"""Exports of adapters: `peft` loads them over the base, and gives the logits that were trained."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from precad.clients.gradients.engine import RecordEngine
from precad.clients.gradients.record_clipping import RecordClip
from precad.clients.gradients.record_paths import Path as Way
from precad.clients.models import networks
from precad.clients.models.adapters import adapted, lora
from precad.clients.models.safetensors_file import read_tensors
from precad.clients.records import Records, example_of
from precad.deploy.exporting.adapters import CONFIG, WEIGHTS, remarks, write_adapters
from precad.deploy.exporting.formats import STATE_DICT, module_of, require_parameters, write_files
from precad.protos.messages import convert
from tests.harness.adapted_models import Attention, texts

HERE = __name__
TOLERANCE = 1e-5
RANK, N_TOKENS = 4, 50


class Reader(nn.Module):
    """A model of `transformers` for texts, in which token 0 is padding.

    Given four axes, the mask is taken as it is. The library looks at one of two axes, and a record would choose the
    others' kernels.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: Tensor) -> Tensor:
        n, n_places = tokens.shape
        is_read = (tokens != 0) | (torch.arange(n_places, device=tokens.device) == 0)
        mask = is_read[:, None, None, :].expand(n, 1, n_places, n_places)
        if self.inner.config.model_type == "gpt2":
            mask = mask & torch.ones((n_places, n_places), dtype=torch.bool, device=tokens.device).tril()
        return self.inner(input_ids=tokens, attention_mask=mask).logits


def bert() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.DistilBertConfig(
        vocab_size=N_TOKENS, dim=16, hidden_dim=32, n_layers=2, n_heads=2, max_position_embeddings=16, num_labels=3
    )
    return transformers.DistilBertForSequenceClassification(config)


def gpt() -> nn.Module:
    """Its layers are `Conv1D`, whose weights are (inputs, outputs)."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=N_TOKENS, n_embd=16, n_layer=2, n_head=2, n_positions=16, num_labels=3, pad_token_id=0
    )
    return transformers.GPT2ForSequenceClassification(config)


BASES = {"bert": (bert, ("q_lin", "v_lin", "classifier")), "gpt": (gpt, ("c_attn", "score"))}


def adapted_bert() -> nn.Module:
    return Reader(lora(bert(), RANK, BASES["bert"][1], alpha=6))


def adapted_gpt() -> nn.Module:
    return Reader(lora(gpt(), RANK, BASES["gpt"][1], alpha=6))


def base_of(kind: str) -> nn.Module:
    """Return the model that the factory starts from, by its seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return BASES[kind][0]()


def drawn(n: int) -> Tensor:
    tokens = torch.randint(1, N_TOKENS, (n, 7), generator=torch.Generator().manual_seed(n))
    tokens[: n // 2, 5:] = 0
    return tokens


def trained(dim: int) -> np.ndarray:
    return 0.5 * np.random.default_rng(0).standard_normal(dim).astype(np.float32)


@pytest.mark.parametrize("kind", ["bert", "gpt"])
def test_peft_loads_what_was_exported(kind: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    name = f"{HERE}:adapted_{kind}"
    parameters = trained(networks.parameter_count(networks.build(name)))
    module = module_of(name, parameters)
    assert write_files(tmp_path, name, module, []) == [STATE_DICT, CONFIG, WEIGHTS]
    loaded = Reader(peft.PeftModel.from_pretrained(base_of(kind), str(tmp_path))).eval()
    inputs = drawn(8)
    with torch.no_grad():
        expected, found = module(inputs), loaded(inputs)
        before = Reader(base_of(kind)).eval()(inputs)
    assert (expected - before).abs().max() > 0.1
    assert (expected - found).abs().max() <= TOLERANCE


@pytest.mark.parametrize(("kind", "path"), [("bert", Way.NARROW_PASS), ("gpt", Way.ONE_PASS)])
def test_models_of_transformers_take_one_pass(kind: str, path: Way) -> None:
    """Gradients of records are those of a loop over records, and the base is as it was. One model reads one place."""
    model = networks.build(f"{HERE}:adapted_{kind}")
    records = Records(drawn(6).numpy(), np.arange(6) % 3)
    before = {name: value.clone() for name, value in model.named_buffers()}
    engine = RecordEngine(model, example_of(records), device="cpu", dtype=torch.float64)
    assert engine.path is path
    at, rows = trained(engine.dim), []
    twin = module_of(f"{HERE}:adapted_{kind}", at).double()
    for features, label in zip(records.features, records.labels, strict=True):
        loss = nn.functional.cross_entropy(twin(torch.from_numpy(features[None])), torch.tensor([label]))
        found = torch.autograd.grad(loss, list(twin.parameters()))
        rows.append(torch.cat([part.reshape(-1) for part in found]).numpy())
    norms = np.linalg.norm(rows, axis=1)
    bound = float(np.median(norms))
    expected = (np.stack(rows) * np.minimum(1.0, bound / norms)[:, None]).sum(axis=0)
    np.testing.assert_allclose(engine.clipped_sums(at, [records], RecordClip(bound))[0], expected, atol=1e-8 * bound)
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())


def test_an_export_holds_the_adapters_and_no_base(tmp_path: Path) -> None:
    """Without the libraries: names, shapes and numbers, and the digest that the statement is of."""
    name = "tests.harness.adapted_models:small"
    parameters = trained(networks.parameter_count(networks.build(name)))
    module = module_of(name, parameters)
    write_files(tmp_path, name, module, [])
    with (tmp_path / WEIGHTS).open("rb") as file:
        tensors = read_tensors(file, tmp_path / WEIGHTS)
    assert {key: tuple(value.shape) for key, value in tensors.items()} == {
        f"base_model.model.{layer}.lora_{factor}.weight": shape
        for layer, n_outputs in (("q", 16), ("v", 16), ("head", 3))
        for factor, shape in (("A", (RANK, 16)), ("B", (n_outputs, RANK)))
    }
    config = json.loads((tmp_path / CONFIG).read_text())
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (RANK, 8.0, "q|v|head")
    base, inputs = Attention(), torch.from_numpy(texts(5).features)
    base.load_state_dict({key.replace(".base.", "."): value for key, value in _base(module).items()})
    with torch.no_grad():
        for layer in ("q", "v", "head"):
            a, b = (tensors[f"base_model.model.{layer}.lora_{factor}.weight"] for factor in "AB")
            base.get_submodule(layer).weight += config["lora_alpha"] / config["r"] * b @ a
        assert (base.eval()(inputs) - module(inputs)).abs().max() <= TOLERANCE
    names = [key for key, _ in module.named_parameters()]
    require_parameters(tmp_path / STATE_DICT, names, convert.sha256(convert.model_to_bytes(parameters)).hex())


class InTwoPlaces(nn.Module):
    """Holds a layer twice, and a block, whose own layer therefore has two names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = self.second = nn.Linear(6, 6)
        self.block = self.again = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.again(self.block(self.second(self.first(x).relu()))))


@pytest.mark.parametrize(
    ("targets", "names"),
    [
        (["first", "second"], []),
        (["first", "head"], [CONFIG, WEIGHTS]),
        (["second"], []),
        (["again.0"], []),
        (["0", "head"], [CONFIG, WEIGHTS]),
        (["head"], [CONFIG, WEIGHTS]),
    ],
)
def test_adapters_that_peft_would_load_elsewhere_are_not_written(
    targets: list[str], names: list[str], tmp_path: Path
) -> None:
    """It looks at a layer's first name alone."""
    found = adapted(model := lora(InTwoPlaces(), 2, targets))
    assert found is not None
    with torch.no_grad():
        for layer in found.layers():
            layer.B.weight.normal_()
    assert write_adapters(tmp_path, found) == names
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    told = " ".join(remarks([STATE_DICT, *names], found))
    assert ("an adapted layer has two places or names" in told) == (not names)
    if names:
        peft = pytest.importorskip("peft")
        inputs = drawn(4)[:, :6].float()
        loaded = peft.PeftModel.from_pretrained(InTwoPlaces(), str(tmp_path)).eval()
        torch.testing.assert_close(loaded(inputs), model(inputs))


def _base(module: nn.Module) -> dict[str, Tensor]:
    return {key: value for key, value in module.state_dict().items() if not key.endswith((".A", ".B.weight"))}
