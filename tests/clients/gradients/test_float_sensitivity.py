"""The sensitivity R in floating point: records at kinks, beside whatever others, move a sum by R at most.

In passes of as many records as there are, the quick tests fail wherever float32 kernels depend on that number. Those
of AVX-512 do, from 15 to 16 records of `cnn` (1.218 R on the machine where this was written).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from torch import Tensor, nn

from precad.clients.errors import ArgumentError
from precad.clients.gradients.engine import Passes, RecordEngine
from precad.clients.gradients.record_clipping import Clipping, RecordClip
from precad.clients.gradients.record_paths import Path
from precad.clients.gradients.tiles import packed, places
from precad.clients.models import networks
from precad.clients.process import Trainer
from precad.clients.records import Records
from precad.clients.records.records import example, joined
from precad.clients.training.conduct import Honest
from precad.clients.training.local_update import local_updates
from precad.mpc import fixed_point
from precad.protos.task.task import Task
from tests.clients.gradients.kinks import crafted

R, C, FRAC_BITS = 0.1, 20.0, 16
MODELS = sorted(networks.ARCHITECTURES)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """PyTorch's number of threads for the test."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def engine_of(name: str) -> RecordEngine:
    architecture = networks.ARCHITECTURES[name]
    made = example(architecture.shape, is_text=architecture.is_text)
    return RecordEngine(networks.build(name), made, device="cpu")


def first(records: Records, n: int) -> Records:
    return records.take(np.arange(n))


def sums_of(engine: RecordEngine, at: np.ndarray, clients: list[Records]) -> np.ndarray:
    return local_updates(
        at, clients, engine=engine, sample_rate=1.0, record_clip=RecordClip(R), client_clip_norm=C, random_bytes=bytes
    )


def require_sensitivity(engine: RecordEngine, at: np.ndarray, records: Records, sizes: range) -> None:
    """From n records to n + 1, before the encoding and after it; the new one in front, so that every other moves."""
    claimed = R + math.sqrt(engine.dim) * 2.0**-FRAC_BITS
    for n in sizes:
        (with_it,) = sums_of(engine, at, [first(records, n + 1)])
        (without,) = sums_of(engine, at, [records.take(np.arange(1, n + 1))])
        assert np.linalg.norm(with_it - without) <= R
        on_grid = [fixed_point.decode(fixed_point.encode(own, FRAC_BITS), FRAC_BITS) for own in (with_it, without)]
        assert np.linalg.norm(on_grid[0] - on_grid[1]) <= claimed


@pytest.mark.parametrize("name", ["cnn", "mlp"])
def test_one_record_more_moves_a_sum_of_records_at_kinks_by_the_bound(name: str, threads: int) -> None:
    """Around the batch sizes at which kernels change on the machine where this was written, and lengths of passes."""
    engine, at = engine_of(name), networks.initial_parameters(name, seed=0)
    assert engine.passes.is_bit_exact
    for sizes in (range(1, 4), range(14, 18), range(23, 26), range(31, 34), range(47, 50)):
        require_sensitivity(engine, at, crafted(name, 50), sizes)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_whole_search_over_shipped_models(name: str, threads: int) -> None:
    """Batch sizes 1 to 130; two hundred records at kinks."""
    engine, at = engine_of(name), networks.initial_parameters(name, seed=0)
    assert engine.passes.is_bit_exact
    require_sensitivity(engine, at, crafted(name, 200), range(1, 131))


@pytest.mark.parametrize("name", ["cnn-half", "mlp"])
def test_a_client_s_update_is_the_same_bits_whoever_else_its_process_hosts(name: str) -> None:
    """Alone and beside others, in any order, one with gradients that are not finite; sizes on both sides of a tile."""
    engine, at = engine_of(name), networks.initial_parameters(name, seed=0)
    records, n = crafted(name, 40), engine.passes.n_tile
    bad = Records(np.full_like(records.features[:3], np.nan), records.labels[:3])
    long = joined([records] * (n // 40 + 1))
    clients = [first(records, 1), first(records, 3), first(long, n + 2), records.take(np.arange(5, 22)), bad]
    alone = np.concatenate([sums_of(engine, at, [own]) for own in clients])
    assert_array_equal(sums_of(engine, at, clients), alone)
    assert_array_equal(sums_of(engine, at, clients[::-1]), alone[::-1])
    assert_array_equal(sums_of(engine, at, [clients[3], *clients[:2]]), alone[[3, 0, 1]])
    assert not alone[4].any()


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_in_every_place_of_a_tile_a_record_has_the_same_gradient(name: str, threads: int) -> None:
    """Every record of a tile in every place of it: each rotation of the tile."""
    engine, at = engine_of(name), networks.initial_parameters(name, seed=0)
    n = min(engine.passes.n_tile, 64)
    records = crafted(name, n)
    ones = [records.take(np.array([i])) for i in range(n)]
    expected = np.concatenate([sums_of(engine, at, [own]) for own in ones])
    for shift in range(n):
        assert_array_equal(sums_of(engine, at, ones[shift:] + ones[:shift]), np.roll(expected, -shift, axis=0))


class Whispers(nn.Module):
    """Mixes records, but only in float32, where no probe in float64 sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 1, 8, 8) -> (batch, 10)."""
        flat = images.flatten(1)
        logits: Tensor = self.last(flat + _echo(flat))
        return logits


def _echo(flat: Tensor) -> Tensor:
    """Nothing in float64; in float32 a part of what the others hold."""
    return 1e-3 * flat.mean() if flat.dtype == torch.float32 else torch.zeros(())


def test_where_bits_depend_on_neighbours_a_pass_takes_one_record() -> None:
    engine = RecordEngine(Whispers(), torch.zeros(1, 8, 8), device="cpu")
    assert engine.passes == Passes(engine.path, 1, is_bit_exact=True)
    records, at = crafted("mlp", 9), networks.flatten(Whispers())
    require_sensitivity(engine, at, records, range(1, 8))


@torch.jit.script
def _scripted_scale(flat: Tensor, least: float, most: float) -> Tensor:
    """The brightest pixel of all records becomes 1, if it is between the two: a branch that Python does not see."""
    brightest = flat.abs().max()
    if bool(brightest > least) and bool(brightest < most):
        return flat / brightest
    return flat


SCALES: dict[str, Callable[[Tensor], Tensor]] = {
    "a scripted branch": lambda flat: _scripted_scale(flat, 1.5, math.inf),
    "a scripted branch that no made-up record takes": lambda flat: _scripted_scale(flat, 50.0, 200.0),
    "no branch": lambda flat: torch.where(flat.abs().max() > 1.5, flat / flat.abs().max(), flat),
    "no NaN": lambda flat: flat / torch.nan_to_num(flat).abs().max().clamp(min=4.0),
}
"""Ways to scale all records by the brightest one, where that is bright."""


class Scales(nn.Module):
    """Mixes records, but only beside a bright one."""

    def __init__(self, scale: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.scale, self.first, self.last = scale, nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 1, 8, 8) -> (batch, 10)."""
        logits: Tensor = self.last(torch.relu(self.first(self.scale(images.flatten(1)))))
        return logits


@pytest.mark.parametrize("how", SCALES)
def test_models_that_scale_by_a_bright_record_take_one_a_pass(how: str) -> None:
    """Beside one, a sum would move by more than R, and so would another client's update; up to 4.6 R as measured."""
    model = Scales(SCALES[how])
    engine = RecordEngine(model, torch.zeros(1, 8, 8), device="cpu")
    assert engine.passes.n_tile == 1
    drawn, at = np.random.default_rng(0), networks.flatten(model)
    ours = Records(drawn.random((20, 1, 8, 8), dtype=np.float32), drawn.integers(0, 10, 20))
    bright = Records(np.full((1, 1, 8, 8), 100.0, np.float32), np.array([3]))
    beside, (alone,) = sums_of(engine, at, [ours, bright]), sums_of(engine, at, [ours])
    assert_array_equal(beside[0], alone)
    (with_it,) = sums_of(engine, at, [joined([bright, ours])])
    assert np.linalg.norm(with_it - alone) <= R


@pytest.mark.parametrize("widths", [(30, 50, 2), (8, 63, 10), (9, 7, 5, 2), (784, 126, 10)], ids=str)
def test_layers_of_odd_widths_share_passes(widths: tuple[int, ...], threads: int) -> None:
    """Rows that begin at odd addresses are rounded by their place where they lie as they come; in step they are not."""
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(widths):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    model, example = nn.Sequential(*layers[:-1]), torch.zeros(widths[0])
    even = nn.Sequential(nn.Linear(widths[0], 64), nn.ReLU(), nn.Linear(64, 16))
    engine, drawn = RecordEngine(model, example, device="cpu"), np.random.default_rng(0)
    assert engine.passes == RecordEngine(even, example, device="cpu").passes
    features = drawn.standard_normal((70, widths[0]), dtype=np.float32)
    records = Records(features, drawn.integers(0, widths[-1], 70))
    require_sensitivity(engine, networks.flatten(model), records, range(60, 66))


class ReadsAPart(nn.Module):
    """Reads the first half of what a layer wrote: 16 numbers, in rows of 33."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 33), nn.Linear(16, 2)

    def forward(self, features: Tensor) -> Tensor:
        """(batch, 8) -> (batch, 2)."""
        logits: Tensor = self.last(torch.relu(self.first(features))[:, :16])
        return logits


def test_a_part_of_longer_rows_shares_passes(threads: int) -> None:
    """Rows of an even width may begin at odd addresses all the same."""
    even = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 16))
    engines = [RecordEngine(model, torch.zeros(8), device="cpu") for model in (ReadsAPart(), even)]
    assert engines[0].passes == engines[1].passes


class NotesWhereItReads(nn.Module):
    """Notes where its features begin, and how far apart its layer's rows do, in bytes beyond multiples of 64."""

    places: ClassVar[set[int]] = set()

    def __init__(self, width: int) -> None:
        super().__init__()
        self.last = nn.Linear(width, 2)
        self.last.register_forward_hook(self.note_rows)

    def note_rows(self, _layer: nn.Module, read: tuple[Tensor], _wrote: Tensor) -> None:
        """Note it where there are several rows."""
        if len(read[0]) > 1 and read[0].dtype == torch.float32:
            self.places.add(read[0].stride(0) * read[0].element_size() % 64)

    def forward(self, features: Tensor) -> Tensor:
        """(batch, width) -> (batch, 2)."""
        if len(features) > 1:  # a record of the probe is a part of some
            self.places.add(features.data_ptr() % 64)
        logits: Tensor = self.last(features)
        return logits


@pytest.mark.parametrize("width", [16, 18])
def test_records_lie_in_memory_as_those_lay_that_passes_were_tried_with(width: int) -> None:
    """A kernel that rounds by the address of a row would give a pass other bits than the trial saw."""
    NotesWhereItReads.places.clear()
    engine = RecordEngine(NotesWhereItReads(width), torch.zeros(width), device="cpu")
    NotesWhereItReads.places.clear()
    for n in (1, 5, 17, 40, 100, 300):
        records = Records(np.ones((n, width), dtype=np.float32), np.arange(n) % 2)
        sums_of(engine, np.zeros(engine.dim, np.float32), [records])
    assert NotesWhereItReads.places == {0}


class RoundsAtFirst(nn.Module):
    """Rounds by place as long as its first parameter is a half: as where a layer is dead at the shaken parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(16, 2)
        nn.init.constant_(self.last.weight, 0.5)

    def forward(self, features: Tensor) -> Tensor:
        """(batch, 16) -> (batch, 2)."""
        is_other = (torch.arange(len(features)) % 2 == 1) * (self.last.weight[0, 0] == 0.5)
        logits: Tensor = self.last(features * (1 + 2.0**-20 * is_other[:, None]))
        return logits


def test_passes_are_tried_at_the_first_parameters_too() -> None:
    assert RecordEngine(RoundsAtFirst(), torch.zeros(16), device="cpu").passes.n_tile == 1


class Shares(nn.Module):
    """Two layers of one weight, and a small head: no layer of it reads rows that lie alike."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(18, 18, bias=False) for _ in range(2))
        self.second.weight = self.first.weight
        self.small, self.last = nn.Linear(18, 3), nn.Linear(3, 2)

    def forward(self, features: Tensor) -> Tensor:
        """(batch, 18) -> (batch, 2)."""
        hidden = torch.relu(self.second(torch.relu(self.first(features))))
        logits: Tensor = self.last(torch.relu(self.small(hidden)))
        return logits


@pytest.mark.parametrize("seed", range(4))
def test_a_record_s_bits_are_its_own_where_kernels_rarely_round_by_place(seed: int) -> None:
    """Where a tile of few records was tried alone, some of these passed, and a record more moved a sum by 3.8 R."""
    model = networks.build(Shares, seed=seed)
    engine, drawn = RecordEngine(model, torch.zeros(18), device="cpu"), np.random.default_rng(seed)
    features = drawn.standard_normal((160, 18), dtype=np.float32)
    ones = [Records(row[None], np.array([i % 2])) for i, row in enumerate(features)]
    at = networks.flatten(model)
    assert_array_equal(sums_of(engine, at, ones[1:]), sums_of(engine, at, ones)[1:])


def test_a_device_that_never_repeats_is_refused_by_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its statement would hold in real arithmetic only, and servers cannot know; some kernels of GPUs are so."""
    monkeypatch.setattr("precad.clients.gradients.engine.is_bit_exact", lambda *_, **__: False)
    engine = engine_of("mlp")
    assert engine.passes == Passes(Path.ONE_BY_ONE, 1, is_bit_exact=False)
    task = Task(
        clients={"a": 4, "b": 4},
        rounds=1,
        client_rate=1.0,
        record_rate=1.0,
        record_clip=1.0,
        client_clip=1.0,
        noise_multiplier=1.0,
        learning_rate=1.0,
        model="mlp",
        dim=engine.dim,
    )
    with pytest.raises(ArgumentError, match=r"client\.device: expected one on which a record's gradient is the same"):
        Trainer(task=task, records={"a": crafted("mlp", 4)}, conducts={"a": Honest()}, device="cpu")


def test_another_number_of_threads_is_tried_anew() -> None:
    engine, before = engine_of("mlp"), torch.get_num_threads()
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            assert engine.passes.is_bit_exact
        assert set(engine._tried) == {1, 2, before}
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("ask", [RecordEngine.has_finite_gradient, RecordEngine.finite_gradients])
def test_to_try_them_anew_leaves_the_parameters_that_were_asked_about(
    ask: Callable[[RecordEngine, np.ndarray, Records], np.ndarray | bool],
) -> None:
    engine, before = engine_of("mlp"), torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        assert not np.any(ask(engine, np.full(engine.dim, np.nan, np.float32), crafted("mlp", 2)))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("sizes", [(0,), (5,), (7, 0, 1, 16, 33, 8, 8, 1), (1,) * 20])
def test_tiles_hold_every_record_once_and_cut_by_their_own_number(sizes: tuple[int, ...]) -> None:
    held: dict[int, list[tuple[int, int]]] = {}
    for tile in packed(sizes, 8):
        assert 0 < sum(map(len, tile)) <= 8
        assert len({piece.client for piece in tile}) == len(tile)
        assert [part.stop - part.start for part in places(tile)] == [len(piece) for piece in tile]
        for piece in tile:
            held.setdefault(piece.client, []).append((piece.start, piece.stop))
    for client, size in enumerate(sizes):
        assert held.get(client, []) == [(start, min(start + 8, size)) for start in range(0, size, 8)]


@pytest.mark.parametrize("kind", list(Clipping))
def test_clipped_records_leave_room_for_what_is_rounded_later(kind: Clipping) -> None:
    engine, at = engine_of("cnn-half"), networks.initial_parameters("cnn-half", seed=0)
    (found,) = engine.clipped_sums(at, [first(crafted("cnn-half", 8), 1)], RecordClip(R, kind))
    assert R * (1 - 2.0**-33) <= np.linalg.norm(found) <= R * (1 - 2.0**-35) or kind is Clipping.PER_LAYER
    assert np.linalg.norm(found) <= R * (1 - 2.0**-35)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["mlp", "cnn", "lstm"])
def test_the_bound_on_a_gpu(name: str) -> None:
    """Twin of the quick search."""
    architecture = networks.ARCHITECTURES[name]
    made = example(architecture.shape, is_text=architecture.is_text)
    engine, at = RecordEngine(networks.build(name), made, device="cuda"), networks.initial_parameters(name, seed=0)
    assert engine.passes.is_bit_exact
    require_sensitivity(engine, at, crafted(name, 40), range(1, 34))
