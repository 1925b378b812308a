"""How records are dealt to passes, and that a pass of fewer records gives nobody other bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from precad.clients.gradients.engine import Passes, RecordEngine
from precad.clients.gradients.pass_lengths import OF_ADAPTERS, OF_MODELS, PassLengths, Variety
from precad.clients.gradients.record_clipping import RecordClip
from precad.clients.gradients.record_paths import Path
from precad.clients.gradients.tiles import packed
from precad.clients.models import networks
from precad.clients.models.adapters import lora
from precad.clients.models.losses import OwnLoss
from precad.clients.records import Records, example_of
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
    """Round in another way in longer passes: in real numbers it is the same model."""

    def forward(self, texts: torch.Tensor) -> torch.Tensor:
        found = super().forward(texts)
        return found * 3 / 3 if rounds_otherwise(len(texts)) else found


def rounds_otherwise(n_rows: int) -> bool:
    return 20 < n_rows < 40 or n_rows > 60


def test_a_pass_whose_bits_are_others_is_not_taken() -> None:
    """Else a record's gradient would depend on how many are beside it."""
    plain, branching = (
        engine_of(networks.build(lambda made=made: lora(made(), 8, TARGETS))) for made in (Attention, Branching)
    )
    assert plain.passes == branching.passes
    assert branching.passes.is_bit_exact
    n_tile, most, does = (own := plain._lengths_now()).n_tile, own.most, plain._is_as_in_tile
    as_expected = PassLengths(n_tile, most, lambda n_rows: does(n_rows) and not rounds_otherwise(n_rows), OF_ADAPTERS)
    for n in range(1, most + 1):  # which lengths a plain model's passes may have depends on the processor
        assert branching._lengths_now().rows_of(n) == as_expected.rows_of(n)
    at, clip = networks.flatten(networks.build(lambda: small(8))) + 0.1, RecordClip(0.5)
    clients = [texts(n, seed=n) for n in (35, 33, 100)]
    for own, row in zip(clients, branching.clipped_sums(at, clients, clip), strict=True):
        np.testing.assert_array_equal(branching.clipped_sums(at, [own], clip)[0], row)


def test_padding_is_an_eighth_of_a_pass_where_all_lengths_do() -> None:
    lengths = PassLengths(12, 96, lambda n_rows: True, OF_ADAPTERS)
    for n in range(1, lengths.most + 1):
        assert n <= (n_rows := lengths.rows_of(n)) <= lengths.most
        assert n_rows <= max(lengths.n_tile // 2, n + 2, n * 9 // 8)


def test_a_third_is_where_each_length_costs_more_than_it_saves() -> None:
    lengths = PassLengths(32, 256, lambda n_rows: True, OF_MODELS)
    found = {n: lengths.rows_of(n) for n in range(1, 257)}
    assert set(found.values()) == {16, 24, 32, 48, 64, 96, 128, 192, 256}
    assert all(n <= n_rows <= max(16, n * 3 // 2) for n, n_rows in found.items())


def test_records_of_many_clients_share_long_passes_but_those_of_adapters() -> None:
    """Adapters' passes stay as long as the largest client's, whose memory is all that they shall take."""
    sizes = [30] * 10
    for variety, expected in ((OF_MODELS, [256, 64]), (OF_ADAPTERS, [30] * 10)):
        tile, most = variety.within(1000)
        lengths = PassLengths(tile, most, lambda n_rows: True, variety)
        assert [n_rows for _, n_rows in lengths.dealt(sizes)] == expected


@pytest.mark.parametrize("variety", [OF_MODELS, OF_ADAPTERS], ids=["models", "adapters"])
@given(n_fit=st.integers(1, 1000))
def test_no_pass_is_longer_than_its_memory(variety: Variety, n_fit: int) -> None:
    tile, most = variety.within(n_fit)
    assert 1 <= tile <= most <= n_fit
    assert most == tile or most % variety.least_step == 0


def test_a_length_is_tried_only_for_records_that_need_it() -> None:
    tried: list[int] = []
    lengths = PassLengths(32, 256, lambda n_rows: not tried.append(n_rows), OF_MODELS)
    for sizes in ([32], [17, 15], [], [0, 0]):
        assert [n_rows for _, n_rows in lengths.dealt(sizes)] == [32] * any(sizes)
    assert tried == []


def test_lengths_of_other_bits_are_left_out() -> None:
    lengths = PassLengths(12, 96, lambda n_rows: not rounds_otherwise(n_rows), OF_ADAPTERS)
    assert [lengths.rows_of(n) for n in (10, 30, 45, 70)] == [10, 48, 48, None]


@pytest.mark.parametrize("variety", [OF_MODELS, OF_ADAPTERS], ids=["models", "adapters"])
@given(sizes=st.lists(st.integers(0, 60), max_size=8), good=st.sets(st.integers(1, 32)))
def test_every_pass_has_a_length_that_does(variety: Variety, sizes: list[int], good: set[int]) -> None:
    """Whatever lengths do: all records are dealt, each pass holds its records, and no other length is taken."""
    lengths = PassLengths(6, 32, good.__contains__, variety)
    found = dict.fromkeys(range(len(sizes)), 0)
    for tile, n_rows in lengths.dealt(sizes):
        assert n_rows in good | {6}
        assert sum(map(len, tile)) <= n_rows
        for piece in tile:
            assert piece.start == found[piece.client]
            found[piece.client] = piece.stop
    assert list(found.values()) == sizes
    for client, size in enumerate(sizes):
        by_itself = PassLengths(6, 32, good.__contains__, variety)
        alone = [len(piece) for tile, _ in by_itself.dealt([size]) for piece in tile]
        beside = [len(piece) for tile, _ in lengths.dealt(sizes) for piece in tile if piece.client == client]
        assert beside == alone


class OneLayer(nn.Module):
    """One product, which no kernel rounds by the length of a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(1, 2)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """(batch, 1) -> (batch, 2)."""
        logits: torch.Tensor = self.last(features)
        return logits


class MixesInATile(OneLayer):
    """Mixes records where as many share a pass as a tile has."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """(batch, 1) -> (batch, 2)."""
        return super().forward(features) + (features.flip(0) if len(features) == OF_MODELS.n_tile else 0.0)


class RoundsOtherwise(OneLayer):
    """Rounds in another way in passes of 48."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """(batch, 1) -> (batch, 2)."""
        found = super().forward(features)
        return found * 3 / 3 if len(features) == 48 else found


def lengths_of(engine: RecordEngine, *sizes: int) -> set[int]:
    return {n_rows for _, n_rows in engine._lengths_now().dealt(sizes)}


def test_where_a_tile_does_not_do_all_passes_are_of_the_longest() -> None:
    engine = RecordEngine(MixesInATile(), torch.zeros(1), device="cpu")
    assert engine.passes == Passes(Path.ONE_PASS, OF_MODELS.most, is_bit_exact=True)
    assert lengths_of(engine, 3, 40) == {OF_MODELS.most}


def test_a_loss_of_one_s_own_sees_one_record_a_pass() -> None:
    """A record on which it raises takes no other along."""

    def own(model: nn.Module, record: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(model(record[0]), record[1])

    engine = RecordEngine(OneLayer(), torch.zeros(1), loss=OwnLoss(own, "own"), device="cpu")
    assert lengths_of(engine, 3, 40) == {1}


def test_lengths_are_tried_where_no_parameter_hides_them() -> None:
    """At parameters of zero all lengths give the same bits: all are zeros."""
    engine = RecordEngine(RoundsOtherwise(), torch.zeros(1), device="cpu")
    few = Records(np.ones((3, 1), dtype=np.float32), np.zeros(3, dtype=np.int64))
    engine.clipped_sums(np.zeros(engine.dim, dtype=np.float32), [few], RecordClip(0.5))
    assert 48 not in lengths_of(engine, 47)


class RoundsRareTokens(nn.Module):
    """Rounds in another way in passes of 48, but the two tokens that every vocabulary has."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """(batch, 1) -> (batch, 2)."""
        found: torch.Tensor = self.last(self.words(words)[:, 0])
        return torch.where(words > 1, found * 3 / 3, found) if len(words) == 48 else found


def test_lengths_are_tried_with_all_tokens_of_a_vocabulary() -> None:
    """Two tokens of one short text make few numbers: activations of the last in a pass were rounded otherwise."""
    engine = RecordEngine(networks.build(RoundsRareTokens), torch.zeros(1, dtype=torch.int64), device="cpu")
    assert engine.passes.n_tile == OF_MODELS.n_tile
    assert 48 not in lengths_of(engine, 47)
