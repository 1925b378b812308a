"""One streaming pass against whole vectors, bit for bit, in every engine; and what tiles and files may look like."""

from __future__ import annotations

import threading
import time
from dataclasses import astuple

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from precad.mpc import ring
from precad.mpc.errors import EngineUnavailableError, MalformedMessageError
from precad.mpc.local import step as local_step
from precad.mpc.local.encrypted_region import EncryptedRegion
from precad.mpc.local.engines import make_engine
from precad.mpc.local.rows import RowStreams
from precad.mpc.local.spooled_words import SpooledWords
from precad.mpc.local.step import Masked, add_shares, local_sums
from precad.mpc.local.threads import Threads
from precad.mpc.local.torch_engine import TorchEngine
from precad.mpc.prg import Label, Purpose, Seed, open_stream
from tests.mpc import twins

EDGES = np.array([0, 1, 2**64 - 1, 2**63, 2**63 - 1, 2**63 + 1, 2**32, 2**32 - 1], dtype=np.uint64)
DIMS = (0, 1, 63, 64, 65, 1000, ring.TILE - 1, ring.TILE, ring.TILE + 1, 2 * ring.TILE + 65)
CHALLENGE, LABEL = Seed(b"a public coin   "), Label("task", 3)


def engines():
    """Every engine that a test can have: the GPU's also on PyTorch's CPU tensors."""
    return [
        pytest.param(lambda: make_engine("cpu"), id="cpu"),
        pytest.param(lambda: make_engine("cpu", n_threads=2), id="cpu, 2 threads"),
        pytest.param(lambda: make_engine("cpu", n_threads=3), id="cpu, 3 threads"),
        pytest.param(lambda: TorchEngine("cpu"), id="torch on the CPU"),
        pytest.param(lambda: make_engine("cuda"), id="cuda", marks=pytest.mark.gpu),
    ]


@pytest.fixture(params=engines())
def engine(request, monkeypatch):
    """With as many spans as there are threads and tiles. Skips where there is no GPU."""
    monkeypatch.setattr(local_step, "WORDS_PER_SPAN", 1)
    try:
        return request.param()
    except EngineUnavailableError as error:
        pytest.skip(str(error))


def ring_vector(rng, dim):
    """Random words, a third of them at the edges of the ring."""
    x = rng.integers(0, 2**64, dim, dtype=np.uint64)
    return np.where(rng.random(dim) < 1 / 3, rng.choice(EDGES, dim), x)


def case(n_clients, dim):
    """(b of each client, seed of each mask) and the streams that twins expand in one call."""
    rng = np.random.default_rng([n_clients, dim])
    opened = [ring_vector(rng, dim) for _ in range(n_clients)]
    seeds = [Seed(rng.bytes(16)) for _ in range(n_clients)]
    masks = [twins.stream(seed, Purpose.MASK, LABEL, dim) for seed in seeds]
    row_words = twins.stream(CHALLENGE, Purpose.ROW_BITS, LABEL, dim)
    sign_words = twins.stream(CHALLENGE, Purpose.ROW_SIGNS, LABEL, -(-dim // 64))
    return opened, seeds, masks, row_words, sign_words


def masked(opened, seeds):
    """As a server holds them."""
    return [
        Masked(b.view(np.int64) if isinstance(b, np.ndarray) else b, open_stream(seed, Purpose.MASK, LABEL))
        for b, seed in zip(opened, seeds, strict=True)
    ]


def assert_same_words(expected, found):
    """Arrays of uint64 and of int64 that hold the same words, in order."""
    for theirs, ours in zip(expected, found, strict=True):
        assert_array_equal(theirs, ours.view(np.uint64))


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("n_clients", [1, 3])
def test_sums_are_those_of_whole_vectors(engine, party, dim, n_clients):
    """Rows, both inner products and the sum of shares, at every length around a word of signs and around a tile."""
    opened, seeds, masks, row_words, sign_words = case(n_clients, dim)

    found = local_sums(party, masked(opened, seeds), RowStreams(CHALLENGE, LABEL), dim, engine)

    assert_same_words(twins.local_sums(party, opened, masks, row_words, sign_words), astuple(found))


@pytest.mark.parametrize("n_clients", [0, 2, 4, 5, 6, 9, 33])
def test_sums_do_not_depend_on_how_clients_are_grouped(engine, n_clients):
    """Every filling of the last group."""
    opened, seeds, masks, row_words, sign_words = case(n_clients, 700)

    found = local_sums(0, masked(opened, seeds), RowStreams(CHALLENGE, LABEL), 700, engine)

    assert_same_words(twins.local_sums(0, opened, masks, row_words, sign_words), astuple(found))


@pytest.mark.parametrize("tile", [64, 128, 1 << 12])
def test_sums_do_not_depend_on_the_tile(engine, tile, monkeypatch):
    """Give equal sums for tiles of any multiple of 64."""
    opened, seeds, masks, row_words, sign_words = case(5, 5000)
    monkeypatch.setattr(ring, "TILE", tile)

    found = local_sums(1, masked(opened, seeds), RowStreams(CHALLENGE, LABEL), 5000, engine)

    assert_same_words(twins.local_sums(1, opened, masks, row_words, sign_words), astuple(found))


@pytest.mark.parametrize("dim", [0, 1, ring.TILE, ring.TILE + 1, 5 * ring.TILE + 3, 7 * ring.TILE])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 100])
def test_spans_cover_every_coordinate_once(dim, n):
    """In order, each a whole number of tiles but for the end, none empty, and no more than were asked for."""
    spans = ring.spans(dim, n)

    assert [i for span in spans for i in range(dim)[span]] == list(range(dim))
    assert all(span.start % ring.TILE == 0 for span in spans)
    assert all(span.stop > span.start for span in spans) or dim == 0
    assert len(spans) == max(1, min(n, -(-dim // ring.TILE)))


def test_a_small_step_stays_on_one_thread(monkeypatch):
    """And a large one does not; the threads are as many as the configuration says."""
    seen = []
    engine = make_engine("cpu", n_threads=3)
    monkeypatch.setattr(engine.threads, "map", lambda work, spans: seen.append(len(spans)) or [work(s) for s in spans])
    for dim in (1000, 2 * local_step.WORDS_PER_SPAN, 9 * local_step.WORDS_PER_SPAN):
        opened, seeds, *_ = case(1, dim)
        local_sums(0, masked(opened, seeds), RowStreams(CHALLENGE, LABEL), dim, engine)

    assert seen == [1, 2, 3]


def test_threads_work_at_once_and_end_with_the_step():
    """Two parts that wait for one another; and a fault in any part, after which nothing is under way."""
    threads, both = Threads(2), threading.Barrier(2, timeout=30)
    assert threads.map(lambda part: both.wait() * 0 + part, [1, 2]) == [1, 2]

    ended = []

    def fails(part):
        if part in broken:
            raise MalformedMessageError("an upload")
        time.sleep(0.05)
        ended.append(part)

    for broken in ({0}, {1}):
        ended.clear()
        with pytest.raises(MalformedMessageError):
            threads.map(fails, [0, 1])
        assert ended == [part for part in (0, 1) if part not in broken]


@pytest.mark.parametrize("extreme", EDGES.tolist())
def test_sums_of_a_constant_extreme(engine, extreme):
    """Every word of b and every carry at its extreme, over more than one tile."""
    dim = ring.TILE + 64
    _, seeds, masks, row_words, sign_words = case(2, dim)
    opened = [np.full(dim, extreme, dtype=np.uint64)] * 2

    found = local_sums(0, masked(opened, seeds), RowStreams(CHALLENGE, LABEL), dim, engine)

    assert_same_words(twins.local_sums(0, opened, masks, row_words, sign_words), astuple(found))


@pytest.mark.parametrize("dim", [0, 1, 63, 64, 65, 200])
def test_twin_of_the_rows_agrees_with_integers(dim):
    """The definition, in Python's integers."""
    (share,), _, _, row_words, sign_words = case(1, dim)

    assert twins.rows(share, row_words, sign_words).tolist() == twins.rows_in_integers(share, row_words, sign_words)


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize("negate", [False, True])
def test_add_shares(engine, party, negate):
    """total +- the sum of b + a_A, or of a_B."""
    dim = ring.TILE + 3
    opened, seeds, masks, _, _ = case(3, dim)
    total = ring_vector(np.random.default_rng(1), dim)
    shares = sum(masks) + (sum(opened) if party == 0 else np.uint64(0))
    expected = total - shares if negate else total + shares

    add_shares(total.view(np.int64), party, masked(opened, seeds), engine, negate=negate)

    assert_array_equal(expected, total)


def test_uploads_may_lie_in_files(engine, tmp_path):
    """A memory map, a spool file that several uploads share, and a read-only array give the sums of arrays."""
    dim = 3 * ring.TILE + 17
    opened, seeds, masks, row_words, sign_words = case(3, dim)
    (tmp_path / "map").write_bytes(opened[0].tobytes())
    mapped = np.memmap(tmp_path / "map", dtype="<i8", mode="r")
    read_only = ring.from_bytes(opened[2].tobytes(), n_words=dim)

    with (tmp_path / "spool").open("w+b", buffering=0) as file:
        file.truncate(14 + 16 * dim)
        regions = [EncryptedRegion(file, 8 * dim, offset=14 + 8 * dim * i) for i in range(2)]
        for region, vector in zip(regions, (opened[2], opened[1]), strict=True):
            region.append(vector.tobytes())
        words = [mapped, SpooledWords(regions[1], dim), read_only]
        clients = [Masked(w, c.mask_share) for w, c in zip(words, masked(opened, seeds), strict=True)]
        found = local_sums(0, clients, RowStreams(CHALLENGE, LABEL), dim, engine)

    assert_same_words(twins.local_sums(0, opened, masks, row_words, sign_words), astuple(found))


class Liar:
    """A vector that says one length and gives another: compiled loops must not read past its end."""

    def __len__(self):
        return 100

    def __getitem__(self, tile):
        return np.zeros(99, dtype=np.int64)


@pytest.mark.parametrize("words", [np.zeros(99, np.int64), np.zeros(101, np.int64), Liar()], ids=["99", "101", "liar"])
def test_an_upload_of_another_length_is_refused(engine, words):
    """Before any of it is used."""
    clients = [Masked(words, open_stream(CHALLENGE, Purpose.MASK, LABEL))]

    with pytest.raises(MalformedMessageError):
        local_sums(0, clients, RowStreams(CHALLENGE, LABEL), 100, engine)


def test_a_cut_spool_file_is_refused(tmp_path):
    """At once when it is too short, and at the read when it was cut later."""
    path = tmp_path / "spool"
    path.write_bytes(bytes(80))
    with path.open("rb") as file, pytest.raises(MalformedMessageError):
        EncryptedRegion(file, 80, offset=1)
    with path.open("rb") as file:
        words = SpooledWords(EncryptedRegion(file, 80), 10)
        path.write_bytes(bytes(72))
        assert words[0:9].size == 9
        with pytest.raises(MalformedMessageError):
            words[8:10]
