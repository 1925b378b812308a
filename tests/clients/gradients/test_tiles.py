"""How records are dealt to passes, and that a pass of fewer records gives nobody other bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from precad.clients.gradients.engine import RecordEngine
from precad.clients.gradients.record_clipping import RecordClip
from precad.clients.gradients.tiles import packed
from precad.clients.models import networks
from precad.clients.models.adapters import lora
from precad.clients.records import example_of
from tests.harness.adapted_models import TARGETS, Attention, small, texts


@given(sizes=st.lists(st.integers(0, 60), max_size=12), n_tile=st.integers(1, 20), share=st.integers(1, 3))
def test_every_record_is_in_one_piece_which_its_own_client_s_size_cuts(
    sizes: list[int], n_tile: int, share: int
) -> None:
    """Pieces of a client come in order, and are those that it has alone; no tile is longer than it may be."""
    n_piece = max(1, n_tile // share)
    found: dict[int, list[tuple[int, int]]] = {}
    for tile in packed(sizes, n_tile, n_piece):
        assert 0 < sum(map(len, tile)) <= n_tile
        for piece in tile:
            found.setdefault(piece.client, []).append((piece.start, piece.stop))
    for client, size in enumerate(sizes):
        alone = [(piece.start, piece.stop) for tile in packed([size], n_tile, n_piece) for piece in tile]
        assert found.get(client, []) == alone
        assert [start for start, _ in alone] == list(range(0, size, n_piece))
        assert sum(stop - start for start, stop in alone) == size


def engine_of(model: nn.Module) -> RecordEngine:
    """Return the engine at parameters that are not zero."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
    return RecordEngine(model, example_of(texts(1)), device="cpu")


@pytest.mark.parametrize("beside", [[], [1], [10, 10], [23, 44, 7], [100]], ids=str)
def test_a_client_s_sum_is_the_same_bits_whoever_else_is_there(beside: list[int]) -> None:
    """Passes of other lengths, pieces in other tiles: neither moves a bit of it."""
    model = networks.build(lambda: small(8))
    engine = engine_of(model)
    at, clip = networks.flatten(model), RecordClip(0.5)
    own = [texts(n, seed=n) for n in (30, 9, 60)]
    others = [texts(n, seed=100 + n) for n in beside]
    together = engine.clipped_sums(at, [*others, *own], clip)[len(others) :]
    for records, row in zip(own, together, strict=True):
        np.testing.assert_array_equal(engine.clipped_sums(at, [records], clip)[0], row)


class Branching(Attention):
    """Round in another way in short passes: in real numbers it is the same model."""

    def forward(self, texts: torch.Tensor) -> torch.Tensor:
        found = super().forward(texts)
        return found * 3 / 3 if 4 < len(texts) < 40 else found


def test_a_pass_whose_bits_are_others_is_filled_up() -> None:
    """Then every pass has a tile's length, as a record's gradient would else depend on how many are beside it."""
    plain, branching = (
        engine_of(networks.build(lambda made=made: lora(made(), 8, TARGETS))) for made in (Attention, Branching)
    )
    assert plain.passes == branching.passes
    assert branching.passes.is_bit_exact
    n_tile = plain.passes.n_tile
    lengths = {n: plain._rows_of(n) for n in range(1, n_tile + 1)}
    assert all(n <= length <= n_tile for n, length in lengths.items())
    assert branching._rows_of(30) == n_tile
    assert branching._rows_of(43) == lengths[43]
