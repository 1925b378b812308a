"""Hold that models whose calls depend on records' values take one record a pass, on the way there and back."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from torch import library, nn

from precad.clients.gradients.engine import RecordEngine
from precad.clients.gradients.record_clipping import RecordClip
from precad.clients.gradients.record_paths import Path
from precad.clients.models.networks import build, flatten
from tests.clients.gradients.two_layers import IMAGES, TwoLayers, ZeroHead


class PacksWords(nn.Module):
    """Weighs the words of texts side by side, without padding: how many there are decides a kernel's shape."""

    def __init__(self):
        super().__init__()
        self.register_buffer("words", torch.randn(5, 1000, generator=torch.Generator().manual_seed(0)))
        self.register_buffer("weights", torch.ones(1000, 1))
        self.last = nn.Linear(1, 2)

    def forward(self, texts):
        lengths = (texts != 0).sum(dim=1).clamp(min=1)
        packed = nn.utils.rnn.pack_padded_sequence(self.words[texts], lengths, batch_first=True, enforce_sorted=False)
        weighed = packed._replace(data=torch.relu(packed.data @ self.weights))
        unpacked, _ = nn.utils.rnn.pad_packed_sequence(weighed, batch_first=True, total_length=texts.shape[1])
        return self.last(unpacked.sum(dim=1))


def test_lengths_that_decide_shapes_unseen_take_one_record_a_pass():
    """PyTorch reads the lengths of packed sequences by itself. In one pass, other texts moved a record's last bit."""
    engine = RecordEngine(PacksWords(), torch.zeros(6, dtype=torch.int64), device="cpu")
    assert (engine.path, engine.passes.n_tile) == (Path.ONE_BY_ONE, 1)


class FrozenEncoder(nn.Module):
    """Trains a head on what PyTorch's own encoder, which is frozen, makes of texts without their padding."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.words, self.encoder = nn.Embedding(9, 16), nn.TransformerEncoder(layer, 2)
        self.requires_grad_(requires_grad=False)
        self.head = nn.Linear(16, 2)

    def forward(self, texts):
        is_padding = texts == 0
        read = self.encoder(self.words(texts), src_key_padding_mask=is_padding)
        return self.head(read.masked_fill(is_padding[..., None], 0.0).sum(dim=1))


class SplitsByExpert(nn.Module):
    """Gives the records with a large first number to another frozen layer, all of them at once."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 8) for _ in range(2)).requires_grad_(requires_grad=False)
        self.head = nn.Linear(8, 2)

    def parts(self, features, n_small):
        return torch.tensor_split(features, n_small)

    def forward(self, features):
        is_large = (features[:, 0] > 5).long()
        order = is_large.argsort(stable=True)
        parts = self.parts(features[order], (1 - is_large).sum().reshape(1))
        read = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        return self.head(read[order.argsort()])


@library.custom_op("precad_test_looking::cut", mutates_args=())
def cut(features: torch.Tensor, place: torch.Tensor, begins: bool) -> torch.Tensor:
    """Return what is before a place, or behind it: a user's own operator, of which PyTorch shows shapes alone."""
    at = int(place)
    return (features[:at] if begins else features[at:]).clone()


class CutsByExpert(SplitsByExpert):
    def parts(self, features, n_small):
        return cut(features, n_small, True), cut(features, n_small, False)


@pytest.mark.parametrize(
    ("make", "example"),
    [
        (FrozenEncoder, torch.zeros(6, dtype=torch.int64)),
        (SplitsByExpert, torch.zeros(4)),
        (CutsByExpert, torch.zeros(4)),
    ],
)
def test_values_that_pytorch_reads_by_itself_take_one_record_a_pass(make, example):
    """In one pass, another text moved eight others' gradients across a kink, by 8.5 R together."""
    engine = RecordEngine(build(f"{__name__}:{make.__name__}"), example, device="cpu")
    assert (engine.path in (Path.ONE_BY_ONE, Path.VMAP), engine.passes.n_tile) == (True, 1)


class Unwatched(TwoLayers):
    """Does not run while its calls are watched, as some of PyTorch's compiled code does not."""

    def forward(self, images):
        if torch.overrides._get_current_function_mode() is not None:
            raise RuntimeError("under no mode")
        return super().forward(images)


def test_a_model_that_cannot_be_watched_takes_no_pass_of_its_own():
    engine = RecordEngine(build(f"{__name__}:Unwatched"), torch.zeros(1, 8, 8), device="cpu")
    assert engine.path is Path.VMAP


class PassesOn(torch.autograd.Function):
    """Changes no number, and keeps all for the way back."""

    @staticmethod
    def forward(ctx, numbers):
        ctx.save_for_backward(numbers)
        return numbers.clone()


class Doubles(PassesOn):
    """Doubles all gradients where one number is large."""

    @staticmethod
    def backward(ctx, gradients):
        (numbers,) = ctx.saved_tensors
        return gradients * torch.where(numbers.abs().max() > 500, 2.0, 1.0)


class DoublesBehindAZeroHead(ZeroHead):
    def hidden(self, images):
        return torch.tanh(Doubles.apply(self.first(images.flatten(1))))


def test_bits_are_tried_where_a_head_of_zeros_hides_nothing():
    """At the initial parameters no gradient comes to where records depend on others."""
    engine = RecordEngine(build(f"{__name__}:DoublesBehindAZeroHead"), torch.zeros(1, 8, 8), device="cpu")
    assert engine.passes.n_tile == 1


class ChecksOnTheWayBack(PassesOn):
    """Doubles all gradients where one number is a quarter."""

    @staticmethod
    def backward(ctx, gradients):
        (numbers,) = ctx.saved_tensors
        return gradients * 2 if bool((numbers == 0.25).any()) else gradients


class LooksOnTheWayBack(TwoLayers):
    def hidden(self, images):
        return torch.tanh(ChecksOnTheWayBack.apply(self.first(images.flatten(1))))


def test_a_branch_on_the_way_back_takes_one_record_a_pass():
    """No made-up record has the value that it looks for, so bits alone do not show it."""
    engine = RecordEngine(build(f"{__name__}:LooksOnTheWayBack"), torch.zeros(1, 8, 8), device="cpu")
    assert (engine.path, engine.passes.n_tile) == (Path.ONE_BY_ONE, 1)


class Multiplies(nn.Module):
    """Multiplies what its first layer wrote with how far a pixel is from grey."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 4), nn.Linear(1, 10)

    def forward(self, images):
        flat = images.flatten(1)
        return self.last(torch.cat([self.first(flat), flat[:, :1] - 0.5], dim=1).prod(dim=1, keepdim=True))


def test_a_factor_of_zero_changes_no_other_record_s_bits():
    """The gradient of a product is taken in another way where one in the batch is zero."""
    model = build(f"{__name__}:Multiplies")
    engine, grey = RecordEngine(model, torch.zeros(1, 8, 8), device="cpu"), IMAGES.take(np.zeros(1, dtype=np.int64))
    grey.features[0, 0, 0, 0] = 0.5
    alone, beside = (
        engine.clipped_sums(flatten(model), clients, RecordClip(0.1))[0] for clients in ([IMAGES], [IMAGES, grey])
    )
    assert_array_equal(beside, alone)
