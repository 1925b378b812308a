"""Models of the user's own: arguments, normalisation that mixes records, dropout, and the digest of what a model is."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from precad.clients.app import App
from precad.clients.errors import (
    ArgumentError,
    DropoutLayerError,
    ExtensionError,
    ModelDigestError,
    ModelImportError,
    RecordMixingLayerError,
)
from precad.clients.external.arrays import ModelArrays
from precad.clients.gradients.engine import RecordEngine
from precad.clients.gradients.probe import quiet_copy
from precad.clients.gradients.record_clipping import RecordClip
from precad.clients.models import networks
from precad.clients.models.constants import with_constants
from precad.clients.models.extension import imported
from precad.clients.models.fingerprint import CLASS, model_digest, require_same_model
from precad.clients.models.fixing import fix
from precad.clients.models.losses import CROSS_ENTROPY, LOSSES, OwnLoss
from precad.clients.models.outputs import outputs_of
from precad.clients.records import Records
from precad.clients.training.evaluation import outputs
from precad.clients.training.held_out import right_and_losses
from tests.harness.harness import small_task

HERE = __name__
ROW, IMAGE = torch.zeros(4), torch.zeros(3, 8, 8)


def net(width: int, *, deep: bool = False) -> nn.Module:
    """A table's model, of a width that the task says."""
    inner = [nn.Linear(width, width), nn.Tanh()] if deep else []
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), *inner, nn.Linear(width, 2))


def five() -> nn.Module:
    """Run without arguments."""
    return net(5)


app = App(model=net, loss="mse")
app_of_a_name = App(model=f"{__name__}:five")


def test_a_model_takes_the_arguments_of_the_task() -> None:
    task = small_task(model=f"{HERE}:net", model_arguments={"width": 7, "deep": True}, dim=35 + 56 + 16)
    assert networks.parameter_count(networks.of_task(task)) == 35 + 56 + 16
    assert networks.initial_vector(task).shape == (107,)
    with pytest.raises(ModelImportError, match=r"calling it with depth fails: .*unexpected keyword"):
        networks.build(f"{HERE}:net", arguments={"depth": 7})
    with pytest.raises(ArgumentError, match=r"task.model_arguments: expected none for 'mlp', found width"):
        networks.build("mlp", arguments={"width": 7})


def test_an_app_stands_for_its_model() -> None:
    assert networks.parameter_count(networks.build(f"{HERE}:app", arguments={"width": 7})) == 35 + 16
    assert networks.parameter_count(networks.build(f"{HERE}:app_of_a_name")) == 25 + 12
    assert networks.parameter_count(networks.build(five)) == 25 + 12


@pytest.mark.parametrize(
    "norm",
    [nn.BatchNorm2d(6), nn.BatchNorm2d(6, affine=False), nn.InstanceNorm2d(6, affine=True, track_running_stats=True)],
)
def test_a_fixed_model_treats_records_separately(norm: nn.Module) -> None:
    """Its parameters are those of the model; records beside a record change nothing."""
    model = nn.Sequential(nn.Conv2d(3, 6, 3), norm, nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(216, 2))
    with pytest.raises(RecordMixingLayerError, match=r"layer '1' .*such as GroupNorm; precad.fix\(model\) puts one"):
        quiet_copy(model)
    fixed = fix(model).train()
    quiet_copy(fixed)
    images = torch.rand(5, *IMAGE.shape)
    torch.testing.assert_close(fixed(images)[:1], fixed(images[:1]))
    shapes = {name: own.shape for name, own in model.named_parameters()}
    assert {name: own.shape for name, own in fixed.named_parameters()} == shapes
    assert isinstance(model[1], type(norm)), "the user's own model is left as it is"


def test_a_fixed_batch_normalisation_keeps_scale_and_shift_and_the_groups_are_those_of_the_paper() -> None:
    for n_channels, n_groups in ((1, 1), (2, 1), (6, 3), (32, 16), (64, 32), (96, 32), (7, 1)):
        norm = nn.BatchNorm2d(n_channels)
        nn.init.uniform_(norm.weight)
        fixed = fix(nn.Sequential(norm))[0]
        assert (type(fixed), fixed.num_groups) == (nn.GroupNorm, n_groups)
        assert torch.equal(fixed.weight, norm.weight)
    assert fix(nn.BatchNorm1d(4)).num_groups == 1
    with pytest.raises(ValueError, match="expected layers of known sizes, found LazyBatchNorm1d"):
        fix(nn.LazyBatchNorm1d())
    with pytest.raises(ValueError, match=r"fix: expected a torch\.nn\.Module, found a int"):
        fix(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "layer",
    [nn.Dropout(0.25), nn.Dropout2d(0.25), nn.LSTM(4, 4, 2, dropout=0.25), nn.MultiheadAttention(4, 1, dropout=0.25)],
)
def test_dropout_is_refused_with_the_reason(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, 4), layer)
    with pytest.raises(DropoutLayerError, match=r"layer '1' .* with probability 0.25, .* expected 0, which precad.fix"):
        quiet_copy(model)
    quiet_copy(fix(model))


def test_outputs_are_a_tensor_or_logits() -> None:
    logits = torch.zeros(3, 2)
    for found in (logits, SimpleNamespace(logits=logits), {"logits": logits, "loss": None}):
        assert outputs_of(found) is logits
    with pytest.raises(TypeError, match="expected a tensor, or an object with logits, found tuple"):
        outputs_of((logits,))


class Backbone(nn.Module):
    """A frozen layer, a drawn buffer, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 6).requires_grad_(requires_grad=False)
        self.register_buffer("drawn", torch.randn(6))
        self.head = nn.Linear(6, 2)

    def forward(self, rows: Tensor) -> Tensor:
        """(n, 4) -> (n, 2)."""
        found: Tensor = self.head(torch.tanh(self.frozen(rows)) * self.drawn)
        return found


class HasHalves(nn.Module):
    """Has constants of a type that NumPy lacks, a single number that is trained, and outputs of that type."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.warmth = nn.Linear(4, 2), nn.Parameter(torch.tensor(1.0))
        self.register_buffer("halves", torch.full((4,), 0.5, dtype=torch.bfloat16))

    def forward(self, rows: Tensor) -> Tensor:
        halves = cast("Tensor", self.halves).to(rows.dtype)
        outputs: Tensor = self.last(rows * halves) * self.warmth
        return outputs if rows.dtype == torch.float64 else outputs.bfloat16()


def test_a_model_with_bfloat16_and_a_single_number_is_taken() -> None:
    model = HasHalves()
    records = Records(np.eye(4, dtype=np.float32), np.array([0, 1, 0, 1]))
    engine = RecordEngine(model, ROW, device="cpu")
    sums = engine.clipped_sums(networks.flatten(model), [records], RecordClip(0.5))
    assert 0 < np.linalg.norm(sums) <= 4 * 0.5
    other = HasHalves()
    cast("Tensor", other.halves)[0] = 0.25
    assert model_digest(model, ROW) != model_digest(other, ROW)
    assert outputs(networks.flatten(model), model, records, torch.device("cpu")).dtype == np.float32
    _, losses = right_and_losses(model, records, CROSS_ENTROPY, torch.device("cpu"))
    assert np.isfinite(losses).all()
    entry = next(one for one in ModelArrays.of(model).entries if one.name == "halves")
    assert (entry.dtype, entry.count) == ("<f4", 4)


def test_what_has_no_digest_is_told_and_no_traceback() -> None:
    old = nn.utils.weight_norm(nn.Linear(4, 2))  # the form that PyTorch cannot copy
    with pytest.raises(ArgumentError, match="model Linear: it cannot be copied"):
        model_digest(old, ROW)
    with pytest.raises(ModelImportError, match=r"constants: expected dense tensors, found torch\.sparse_coo"):
        networks.build(f"{HERE}:sparse")


def sparse() -> nn.Module:
    """Return a model with a graph's edges, as one writes them for many nodes."""
    model = net(3)
    model.register_buffer("edges", torch.eye(4).to_sparse())
    return model


def test_the_digest_says_what_the_model_is_and_not_what_it_has_learnt() -> None:
    model = networks.build(Backbone)
    digest = model_digest(model, ROW)
    assert digest == model_digest(networks.build(Backbone), ROW)
    trained = networks.trained(networks.build(Backbone), np.ones(14, np.float32))
    assert digest == model_digest(trained, ROW)
    others = [copy.deepcopy(model) for _ in range(3)]
    others[0].frozen.weight[0, 0] += 1e-3
    others[1].drawn[2] += 1e-3
    others[2].head = nn.Sequential(nn.Linear(6, 2))  # another name
    activated = nn.Sequential(nn.Linear(4, 2), nn.ReLU()), nn.Sequential(nn.Linear(4, 2), nn.Tanh())
    digests = {digest, *(model_digest(other, ROW) for other in (*others, *activated))}
    assert len(digests) == 6
    assert model_digest(five(), ROW) != model_digest(five(), torch.zeros(2, 4)), "another shape of records"


def test_the_digest_is_the_same_on_a_machine_that_rounds_otherwise() -> None:
    """Rounding errors of another order of summation are far below what is hashed."""

    class Reordered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 2)
            self.is_reordered = False

        def forward(self, rows: Tensor) -> Tensor:
            order = [3, 1, 0, 2] if self.is_reordered else [0, 1, 2, 3]
            products = rows[:, None, order] * self.head.weight[None][..., order]
            return products.cumsum(dim=-1)[..., -1] + self.head.bias * (1 + 1e-14 * self.is_reordered)

    model = Reordered()
    digest = model_digest(model, ROW)
    model.is_reordered = True
    assert model_digest(model, ROW) == digest


class WithState(nn.Module):
    """Code that says no type, and code that says float32, as most of PyTorch's users write it."""

    def __init__(self, width: int, made: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.cell, self.head, self.made = nn.GRUCell(4, width), nn.Linear(width, 1), made

    def forward(self, rows: Tensor) -> Tensor:
        """(n, 4) -> (n, 1)."""
        found: Tensor = self.head(self.cell(rows, self.made(torch.zeros(len(rows), self.cell.hidden_size))))
        return found


@pytest.mark.parametrize("made", [lambda state: state, lambda state: state.float()])
def test_code_that_takes_float32_alone_has_a_digest(made: Callable[[Tensor], Tensor]) -> None:
    """The state of a recurrent layer, or the weights of classes, that no type is said of; and nothing global stays."""
    model = WithState(5, made)
    digest = model_digest(model, ROW)
    assert model_digest(WithState(5, made), ROW) == digest
    others = WithState(5, lambda state: made(state) + 0.5), WithState(6, made)
    assert len({digest, *(model_digest(other, ROW) for other in others)}) == 3
    assert torch.get_default_dtype() == torch.float32


def test_a_loss_with_weights_of_classes_has_a_digest() -> None:
    def weighted(ill: float) -> OwnLoss:
        weights = torch.tensor([1.0, ill])  # float32, made before anybody computes in float64
        return OwnLoss(lambda model, record: functional.cross_entropy(model(record[0]), record[1], weights), "my:loss")

    ours = model_digest(net(5), ROW, weighted(3.0), CLASS)
    assert model_digest(net(5), ROW, weighted(3.0 + 1e-6), CLASS) == ours, "as on a machine that rounds otherwise"
    assert model_digest(net(5), ROW, OwnLoss(lambda m, r: 3 * weighted(3.0).each(m, *r), "my:loss"), CLASS) != ours


def test_the_digest_of_a_single_output_says_more_than_its_sign() -> None:
    """Parts of the largest number alone would be 1, whatever the model; and a scale would be told of none."""
    models = [nn.Sequential(nn.Linear(4, 5), layer, nn.Linear(5, 1)) for layer in (nn.Tanh(), nn.ReLU(), nn.Softplus())]

    class Scaled(nn.Sequential):
        def forward(self, rows: Tensor) -> Tensor:
            return 2 * cast(Tensor, super().forward(rows))

    scaled = (
        Scaled(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)),
        Scaled(nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(4, 2)),
    )
    assert len({model_digest(model, ROW) for model in (*models, *scaled)}) == 6


def test_what_bends_only_at_large_numbers_is_told_apart() -> None:
    """Cut off, or not; of a loss, the place where it becomes straight. A model that takes none has a digest, too."""

    class Narrow(nn.Tanh):
        def forward(self, rows: Tensor) -> Tensor:
            assert rows.abs().max() < 4
            return super().forward(rows)

    layers = nn.ReLU(), nn.ReLU6(), nn.Hardtanh(0, 9), nn.Tanh(), Narrow()
    models = [nn.Sequential(nn.Linear(4, 9), layer, nn.Linear(9, 1)) for layer in layers]
    assert len({model_digest(model, ROW) for model in models}) == 5

    def huber(delta: float) -> OwnLoss:
        return OwnLoss(lambda m, r: functional.huber_loss(m(r[0])[:, 0], r[1], delta=delta) / delta, "my:loss")

    label = torch.tensor(0.0)
    assert len({model_digest(models[0], ROW, huber(delta), label) for delta in (2.0, 3.0)}) == 2


def test_code_that_draws_has_one_digest_so_that_its_own_refusal_is_told() -> None:
    drawn = OwnLoss(lambda model, record: squares(model, record) * torch.rand(()), "my:loss")
    assert model_digest(net(5), ROW, drawn, CLASS) == model_digest(net(5), ROW, drawn, CLASS)


def test_two_organisations_with_different_models_are_told_so() -> None:
    here, there = net(5), nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    task = small_task(model="my_model:net", dim=37, model_digest=model_digest(here, ROW))
    require_same_model(task, here, ROW, CROSS_ENTROPY, CLASS)
    with pytest.raises(
        ModelDigestError, match=rf"task.model_digest: expected {task.model_digest}, found {model_digest(there, ROW)}"
    ):
        require_same_model(task, there, ROW, CROSS_ENTROPY, CLASS)


@pytest.mark.parametrize("is_frozen", [True, False])
def test_constants_that_processors_draw_otherwise_belong_in_a_file(is_frozen: bool) -> None:
    """A model without constants has no such line."""
    task, here = small_task(model="my_model:net", dim=37, model_digest="0" * 64), net(5)
    if is_frozen:
        next(here.parameters()).requires_grad_(requires_grad=False)
    with pytest.raises(ModelDigestError) as refused:
        require_same_model(task, with_constants(here), ROW, CROSS_ENTROPY, CLASS)
    said = "drawn constants differ between processors: load them from a file that all share"
    assert (said in str(refused.value)) is is_frozen


def squares(model: nn.Module, record: tuple[Tensor, Tensor]) -> Tensor:
    """Return a loss of the user's own."""
    features, target = record
    return (model(features).sum() - target).square().sum()


def test_two_organisations_with_different_losses_behind_one_name_are_told_so() -> None:
    """The digest has what the loss gives, also where it is only scaled; one by name leaves digests as they were."""
    model = net(5)
    losses = [
        OwnLoss(squares, "my:loss"),
        OwnLoss(lambda model, record: 2 * squares(model, record), "my:loss"),
        OwnLoss(lambda model, record: squares(model, record).abs() * (1 + 1e-15), "my:loss"),
    ]
    ours, scaled, rounded_otherwise = (model_digest(model, ROW, loss, CLASS) for loss in losses)
    assert len({ours, scaled, model_digest(model, ROW)}) == 3
    assert rounded_otherwise == ours
    assert model_digest(model, ROW, LOSSES["mse"], torch.zeros(1)) == model_digest(model, ROW)
    others = [torch.tensor(0.0), torch.zeros(1, dtype=torch.int64)]  # labels of another type, or shape
    assert len({ours, *(model_digest(model, ROW, losses[0], label) for label in others)}) == 3
    task = small_task(model="my_model:net", dim=37, model_digest=ours, loss="my:loss")
    with pytest.raises(ModelDigestError, match="of a loss of its own too"):
        require_same_model(task, model, ROW, losses[1], CLASS)


def test_a_loss_that_cannot_be_tried_is_named() -> None:
    bad = OwnLoss(lambda model, record: record[1]["age"], "my:loss")
    with pytest.raises(
        ArgumentError, match=r"task\.loss: expected a number for a made-up record of 'my:loss', a function of"
    ):
        model_digest(net(5), ROW, bad, CLASS)


def test_a_loss_that_draws_is_refused_by_its_name() -> None:
    """The device, whose bits would differ, is not blamed."""
    drawn = OwnLoss(lambda model, record: squares(model, record) * torch.rand(()), "my:loss")
    with pytest.raises(ArgumentError, match=r"task\.loss: 'my:loss' gives the same record another number each time"):
        RecordEngine(net(5), ROW, loss=drawn, label=CLASS, device="cpu")


class Keeps:
    """A loss that keeps the largest label so far, in training alone where `in_training` says so."""

    def __init__(self, *, in_training: bool) -> None:
        self.largest, self.in_training = 1.0, in_training

    def __call__(self, model: nn.Module, record: tuple[Tensor, Tensor]) -> Tensor:
        if torch.is_grad_enabled() or not self.in_training:
            self.largest = max(self.largest, float(record[1]))
        return squares(model, record) / self.largest


@pytest.mark.parametrize("in_training", [False, True])
@pytest.mark.parametrize("label", [CLASS, torch.tensor(0.0)])
def test_a_loss_that_keeps_a_label_is_refused(label: Tensor, *, in_training: bool) -> None:
    """Else one record would scale the gradients of all that come behind it."""
    with pytest.raises(ArgumentError, match="'my:loss' gives the same record another number each time"):
        RecordEngine(net(5), ROW, loss=OwnLoss(Keeps(in_training=in_training), "my:loss"), label=label, device="cpu")


def test_a_loss_gets_nothing_to_keep_of_real_records() -> None:
    """Each class was seen by then. What it keeps of the first record of a class is of a made-up one."""
    kept: dict[int, Tensor] = {}

    def to_the_first(model: nn.Module, record: tuple[Tensor, Tensor]) -> Tensor:
        first = kept.setdefault(int(record[1]), record[0].clone())
        return squares(model, record) + (model(record[0]) - model(first.to(record[0].dtype))).square().sum()

    RecordEngine(net(5), ROW, loss=OwnLoss(to_the_first, "my:loss"), label=CLASS, device="cpu")
    assert set(kept) >= set(range(10))


def test_a_module_that_an_installed_one_hides_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "statistics.py").write_text("def net(): pass\n")
    (tmp_path / "my_statistics.py").write_text("def net(): pass\n")
    assert callable(imported("model", "my_statistics:net"))
    with pytest.raises(ExtensionError, match=r"'statistics' \(.*\) hides yours, .*statistics\.py: rename yours"):
        imported("model", "statistics:mean")


def test_what_a_module_of_the_user_s_own_raises_is_told_by_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have read records by then."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "reads_records.py").write_text("raise AttributeError('row 7: 4711')\n")
    with pytest.raises(ExtensionError, match="importing it raises AttributeError") as caught:
        imported("model", "reads_records:net")
    assert "4711" not in str(caught.value)
    assert caught.value.__suppress_context__
