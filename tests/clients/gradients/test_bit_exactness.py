"""Hold the comparison of gradients by their factors: it decides every bit of them, and finds one bit that moves."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn

from precad.clients.gradients.bit_exactness import Kind, is_as_in_tile, is_bit_exact, made_up_records
from precad.clients.gradients.layers import LayerGradients, Outer, Rows
from precad.clients.gradients.one_pass import one_pass
from precad.clients.gradients.probe import probe_labels
from precad.clients.models.losses import CROSS_ENTROPY

N_TILE = 8
A_CLASS = torch.zeros((), dtype=torch.int64)
EXAMPLE = torch.zeros(1, 4, 4)
KIND = Kind(EXAMPLE, A_CLASS)
MODELS = {
    "linear": nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3)),
    "images": nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 3)),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in a client's process: with more, kernels of a tile so small depend on the neighbours."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def gradients_of(model: nn.Module, features: Tensor, labels: Tensor) -> list[LayerGradients]:
    return list(one_pass(model, features, labels, CROSS_ENTROPY))


def with_factors(layer: LayerGradients, factors: Sequence[Tensor]) -> LayerGradients:
    """Return the same layer with gradients that are made of other numbers."""
    if isinstance(layer, Outer):
        return dataclasses.replace(layer, a=factors[0], b=factors[1])
    assert isinstance(layer, Rows)
    return dataclasses.replace(layer, blocks=tuple(factors))


def rows_of(gradients: Sequence[LayerGradients]) -> Tensor:
    """The gradients themselves, formed as training forms a single record's: (n, d)."""
    ones = torch.ones(N_TILE, dtype=torch.float64)
    alone = [slice(i, i + 1) for i in range(N_TILE)]
    return torch.cat([layer.weighted_sums(ones, alone) for layer in gradients], dim=1)


@pytest.mark.parametrize("name", MODELS)
def test_equal_factors_make_equal_gradients_in_every_place(name: str) -> None:
    """The factors of all records in another order give the same rows in that order, to the last bit."""
    gradients = gradients_of(MODELS[name], made_up_records(EXAMPLE, N_TILE), probe_labels(A_CLASS, N_TILE))
    order = torch.randperm(N_TILE, generator=torch.Generator().manual_seed(7))
    moved = [with_factors(layer, [factor[order] for factor in layer.factors()]) for layer in gradients]
    assert torch.equal(rows_of(moved).view(torch.int64), rows_of(gradients)[order].view(torch.int64))


@pytest.mark.parametrize("name", MODELS)
def test_one_bit_of_one_record_in_one_arrangement_is_found(name: str) -> None:
    """In every factor of every layer, also where the last entry of a record alone moves, by its last bit."""
    some = gradients_of(MODELS[name], made_up_records(EXAMPLE, 1), probe_labels(A_CLASS, 1))
    places = [(i, j) for i, layer in enumerate(some) for j in range(len(layer.factors()))]

    def is_found(place: tuple[int, int] | None) -> bool:
        calls = itertools.count()

        def take(features: Tensor, labels: Tensor) -> Sequence[LayerGradients]:
            gradients = gradients_of(MODELS[name], features, labels)
            if next(calls) == 2 and place is not None:
                layer, j = gradients[place[0]], place[1]
                factors = [factor.clone() for factor in layer.factors()]
                entries = factors[j].flatten(start_dim=1)
                entries[2, -1] = torch.nextafter(entries[2, -1], entries.new_tensor(torch.inf))
                gradients[place[0]] = with_factors(layer, factors)
            return gradients

        return not is_bit_exact(take, KIND, n_tile=N_TILE)

    assert not is_found(None)
    assert [place for place in places if not is_found(place)] == []


@pytest.mark.parametrize("n_rows", [3, N_TILE, 2 * N_TILE, 2 * N_TILE + 3])
def test_a_length_is_taken_that_gives_every_record_the_bits_of_a_tile_and_no_other(n_rows: int) -> None:
    """Nor one of which a late part differs, or where records depend on others."""

    def as_read(features: Tensor, _labels: Tensor) -> list[LayerGradients]:
        return [Rows((features.flatten(start_dim=1).double(),), (None,))]

    def by_length(features: Tensor, labels: Tensor) -> list[LayerGradients]:
        return as_read(features * (1 + 2.0**-20 * (len(features) != N_TILE)), labels)

    def by_place(features: Tensor, labels: Tensor) -> list[LayerGradients]:
        late = (torch.arange(len(features)) >= N_TILE).view(-1, 1, 1, 1)
        return as_read(features * (1 + 2.0**-20 * late), labels)

    def by_others(features: Tensor, labels: Tensor) -> list[LayerGradients]:
        return as_read(features - features.mean() * (len(features) == n_rows), labels)

    found = [
        is_as_in_tile(take, KIND, n_rows=n_rows, n_tile=N_TILE) for take in (as_read, by_length, by_place, by_others)
    ]
    assert found == [True, n_rows == N_TILE, n_rows <= N_TILE, False]


def test_every_tile_beside_which_a_length_is_tried_begins_where_tensors_do() -> None:
    """As tiles of training do: 12 records of five numbers are no multiple of 64 bytes, and a kernel may ask for one."""
    starts: set[int] = set()

    def take(features: Tensor, _labels: Tensor) -> list[LayerGradients]:
        starts.add(features.data_ptr() % 64)
        return [Rows((features.double(),), (None,))]

    assert is_as_in_tile(take, Kind(torch.zeros(5), A_CLASS), n_rows=36, n_tile=12)
    assert starts == {0}


def rounding(features: Tensor, where: Tensor | bool) -> list[LayerGradients]:
    """Return what a kernel gives that rounds one record in thirty otherwise, and that only where it is said."""
    rows = features.flatten(start_dim=1)
    is_rare = rows.view(torch.int32).sum(dim=1) % 30 == 0
    rows = rows.double() * torch.where(is_rare & where, 1 + 2.0**-20, 1.0)[:, None]
    return [Rows((rows,), (None,))]


@pytest.mark.parametrize("n_rows", [8, 16, 24, 32, 48])
def test_a_kernel_that_rarely_rounds_by_place_or_length_is_found(n_rows: int) -> None:
    """A tile of 32 of a tied model passed by chance: at kinks a record more moved a sum by 3.8 R."""

    def by_place(features: Tensor, _labels: Tensor) -> list[LayerGradients]:
        return rounding(features, torch.arange(len(features)) % 2 == 1)

    def by_length(features: Tensor, _labels: Tensor) -> list[LayerGradients]:
        return rounding(features, len(features) == n_rows)

    assert not is_bit_exact(by_place, KIND, n_tile=n_rows)
    assert is_bit_exact(by_length, KIND, n_tile=n_rows)
    assert not is_as_in_tile(by_length, KIND, n_rows=n_rows, n_tile=n_rows + 1)


@pytest.mark.parametrize(("n_rows", "n_numbers"), [(512, 16), (1024, 16), (32, 2**17)])
def test_records_of_both_signs_are_tried_however_many_a_pass_takes_or_gives(n_rows: int, n_numbers: int) -> None:
    """A pass of an accelerator is enough records, and one of a large model enough numbers: of one sign they hide."""

    def take(features: Tensor, _labels: Tensor) -> list[LayerGradients]:
        rows = features.flatten(start_dim=1).double()
        is_other = (rows < 0).any(dim=1) & (torch.arange(len(rows)) % 2 == 1)
        rows = rows * torch.where(is_other, 1 + 2.0**-20, 1.0)[:, None]
        return [Rows((rows.repeat(1, n_numbers // rows.shape[1]),), (None,))]

    assert not is_bit_exact(take, KIND, n_tile=n_rows)


def test_records_of_both_signs_are_bright_in_every_place() -> None:
    """Dim records of a pass's end are rounded alike: of 480 small networks of convolutions three passed by chance."""

    def take(features: Tensor, _labels: Tensor) -> list[LayerGradients]:
        rows = features.flatten(start_dim=1).double()
        is_late = torch.arange(len(rows)) >= 40
        is_other = is_late & (rows < 0).any(dim=1) & (rows.abs() > 0.5).any(dim=1)
        return [Rows((rows * torch.where(is_other, 1 + 2.0**-20, 1.0)[:, None],), (None,))]

    assert not is_as_in_tile(take, KIND, n_rows=48, n_tile=32)


def test_what_is_no_number_is_the_same_in_every_place() -> None:
    """Its bits may differ, and its record adds nothing: a model of logarithms gives it for negative numbers."""

    def take(features: Tensor, _labels: Tensor) -> list[LayerGradients]:
        rows = features.flatten(start_dim=1).double().log()
        signs = torch.where(torch.arange(len(rows)) % 2 == 1, -1.0, 1.0)[:, None]
        return [Rows((rows.where(~rows.isnan(), torch.full_like(rows, torch.nan).copysign(signs)),), (None,))]

    assert is_bit_exact(take, KIND, n_tile=N_TILE)
