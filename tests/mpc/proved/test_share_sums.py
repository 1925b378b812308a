"""The pass over the uploads against whole vectors in Python's integers: clients alone, in fours, in threads, from disk.

Failure means: servers whose sums are not those of the shares they hold.
"""

from __future__ import annotations

import tempfile

import numpy as np
import pytest

from precad.mpc import ring
from precad.mpc.errors import EngineUnavailableError, MalformedMessageError
from precad.mpc.local.cpu_engine import CpuEngine
from precad.mpc.local.encrypted_region import EncryptedRegion
from precad.mpc.local.torch_engine import TorchEngine
from precad.mpc.prg import Label, Purpose, Seed, stream
from precad.mpc.proved import accumulators, field, query, sums
from precad.mpc.proved.field import P
from precad.mpc.proved.shares import HeldBytes, PackedShare, payload_pieces, seeded_share
from precad.mpc.proved.sizes import ProofSizes
from tests.mpc.fixed_randomness import random_bytes_of
from tests.mpc.proved.two_servers import ROUND, rows_of

CHALLENGE = Seed(bytes(range(16)))


def query_for(sizes):
    return query.prepare((12_345, P - 2), sizes)


def packed(elements):
    """Return the holder's share of these elements."""
    return PackedShare(HeldBytes(field.to_bytes(elements)), elements.size)


def by_definition(x, sizes, points):
    """(64 rows, c wires at each point) of one vector of elements, by whole vectors of integers."""
    values = x.tolist()
    words = stream(CHALLENGE, Purpose.ROW_BITS, ROUND, sizes.dim).view(np.uint64).tolist()
    signs = stream(CHALLENGE, Purpose.ROW_SIGNS, ROUND, -(-sizes.dim // 64)).view(np.uint64).tolist()
    signed = [-v if signs[i // 64] >> i % 64 & 1 else v for i, v in enumerate(values)]
    rows = [sum(y for y, word in zip(signed, words, strict=True) if word >> j & 1) % P for j in range(64)]
    n, root, wires = sizes.wire_length, field.root_of_unity(sizes.wire_length), []
    for t in points:
        weights, power = [], 1
        for _ in range(n):
            weights.append((pow(t, n, P) - 1) * power * pow(n * (t - power), -1, P) % P)
            power = power * root % P
        pieces = (values[m * n : (m + 1) * n] for m in range(sizes.n_wires))
        wires.append([sum(w * v for w, v in zip(weights, piece, strict=False)) % P for piece in pieces])
    return rows, wires


def edges(name, dim):
    """Random elements, with 0 and p - 1 among them."""
    x = field.random_elements(dim, random_bytes_of(name))
    x[:: max(1, dim // 5)] = P - 1
    x[-1:] = 0
    return x


@pytest.mark.parametrize(
    ("dim", "n"), [(1, 1), (5, 2), (64, 4), (300, 1), (300, 5), (ring.TILE, 1), (ring.TILE + 1, 3)]
)
def test_the_pass_is_that_of_whole_vectors(dim, n):
    """At the edges of words, wires and tiles; a server holds some clients and expands the others."""
    sizes = ProofSizes(1.0, dim, 16)
    seeds = [Seed.random(random_bytes_of(f"seed {i}")) for i in range(n)]
    labels = [Label(ROUND.task, ROUND.round, str(i)) for i in range(n)]
    held = [edges(f"share {dim} {i}", dim) for i in range(n)]
    shares = [packed(held[i]) if i % 2 == 0 else seeded_share(seeds[i], labels[i]) for i in range(n)]
    vectors = [held[i] if i % 2 == 0 else seeded_share(seeds[i], labels[i]).take(dim) for i in range(n)]
    chosen = query_for(sizes)
    found = sums.share_sums(shares, rows_of(CHALLENGE), chosen, sizes)
    for i in {0, n - 1}:
        rows, wires = by_definition(vectors[i], sizes, chosen.points)
        assert found.rows[i].tolist() == rows
        assert found.wires[i].tolist() == wires
    columns = zip(*(vector.tolist() for vector in vectors), strict=True)
    assert found.share_sum.tolist() == [sum(column) % P for column in columns]


@pytest.mark.parametrize("n_threads", [2, 3])
def test_threads_give_the_same_elements(n_threads):
    """Nine tiles, wires that end within a span, clients in fours."""
    sizes = ProofSizes(1.0, 9 * ring.TILE + 77, 16)
    data = [field.random_elements(sizes.dim, random_bytes_of(f"thread {i}")) for i in range(5)]
    chosen = query_for(sizes)
    alone = sums.share_sums([packed(x) for x in data], rows_of(CHALLENGE), chosen, sizes)
    together = sums.share_sums([packed(x) for x in data], rows_of(CHALLENGE), chosen, sizes, CpuEngine(n_threads))
    for name in ("rows", "wires", "share_sum"):
        assert np.array_equal(getattr(alone, name), getattr(together, name))


@pytest.mark.parametrize("negate", [False, True])
def test_threads_add_the_same_shares(negate):
    """The second reading of rejected uploads, of both servers' kinds, against whole vectors."""
    dim, label = 9 * ring.TILE + 77, Label(ROUND.task, ROUND.round, "1")
    held, seed = field.random_elements(dim, random_bytes_of("held")), Seed.random(random_bytes_of("seed"))
    expanded, total = seeded_share(seed, label).take(dim), field.random_elements(dim, random_bytes_of("total"))
    combine = field.subtract if negate else field.add
    expected = combine(combine(total, held), expanded)
    sums.add_shares(total, [packed(held), seeded_share(seed, label)], CpuEngine(3), negate=negate)
    assert np.array_equal(total, expected)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("dim", "n"), [(1, 1), (300, 35), (ring.TILE + 1, 3)])
def test_pytorch_gives_the_same_elements(dim, n, device):
    """The GPU's arithmetic, also on the processor: one client, more than a group, and wires that end within a tile."""
    try:
        engine = TorchEngine(device)
    except EngineUnavailableError as error:
        pytest.skip(str(error))
    sizes = ProofSizes(1.0, dim, 16)
    data, chosen = [edges(f"torch {i}", dim) for i in range(n)], query_for(sizes)
    expected = sums.share_sums([packed(x) for x in data], rows_of(CHALLENGE), chosen, sizes)
    found = sums.share_sums([packed(x) for x in data], rows_of(CHALLENGE), chosen, sizes, engine)
    for name in ("rows", "wires", "share_sum"):
        assert np.array_equal(getattr(expected, name), getattr(found, name))


@pytest.mark.parametrize(("dim", "n"), [(1, 1), (300, 35), (ring.TILE, 3)])
def test_a_tile_stays_on_its_device(dim, n):
    """On PyTorch's `meta`, which holds no data: whoever looked at a value, or mixed devices, would fail."""
    sizes = ProofSizes(1.0, dim, 16)
    engine, shares = TorchEngine("meta"), np.zeros((TorchEngine.group, dim), dtype=np.uint64)
    rows = accumulators.TorchRows(engine, n)
    rows.open_tile(np.zeros(dim, dtype=np.uint64), np.zeros(-(-dim // 64), dtype=np.uint64))
    wires = accumulators.TorchWires(engine, n, sizes.n_wires, query_for(sizes).wire_weights)
    wires.open_tile(0, np.zeros(dim, dtype=np.uint64))
    for first in range(0, n, TorchEngine.group):
        rows.add(first, shares)
        wires.add(first, shares)
    expected = ((rows._rows, (n, 64)), (wires._wires, (2, n, sizes.n_wires)), (wires._sum, (dim,)))
    for tensor, shape in expected:
        assert (tensor.device.type, tuple(tensor.shape)) == ("meta", shape)


@pytest.mark.parametrize("make_engine", [CpuEngine, lambda: TorchEngine("cpu")], ids=["cpu", "torch"])
def test_a_wire_that_is_longer_than_a_tile(make_engine, monkeypatch):
    """As at d = 2^30, where a wire has two tiles: here tiles of 64 coordinates, and wires of 128."""
    sizes = ProofSizes(1.0, 16_000, 16)
    x, chosen = edges("long wires", sizes.dim), query_for(sizes)
    expected = sums.share_sums([packed(x)], rows_of(CHALLENGE), chosen, sizes)
    monkeypatch.setattr(ring, "TILE", 64)
    found = sums.share_sums([packed(x)], rows_of(CHALLENGE), chosen, sizes, make_engine())
    for name in ("rows", "wires", "share_sum"):
        assert np.array_equal(getattr(expected, name), getattr(found, name))


def test_more_clients_than_a_word_takes_elements():
    """600 clients of the largest element: the sum and the buckets are folded in time."""
    sizes = ProofSizes(1.0, 130, 16)
    share = packed(np.full(sizes.dim, P - 1, dtype=np.uint64))
    found = sums.share_sums([share] * 600, rows_of(CHALLENGE), query_for(sizes), sizes)
    assert set(found.share_sum.tolist()) == {P - 600}
    assert np.array_equal(found.rows[0], found.rows[599])


def test_the_largest_elements_over_many_tiles():
    """Eight tiles of p - 1: a bucket overflows unless it is folded after each."""
    sizes = ProofSizes(1.0, 8 * ring.TILE, 16)
    x = np.full(sizes.dim, P - 1, dtype=np.uint64)
    found = sums.share_sums([packed(x)], rows_of(CHALLENGE), query_for(sizes), sizes)
    rows = sums.row_values(np.full(sizes.dim, -1, dtype=np.int64), rows_of(CHALLENGE))
    assert np.array_equal(found.rows[0], rows)
    assert max(abs(v) for v in field.to_integers(rows).tolist()) < 8 * sizes.dim**0.5


def test_an_upload_on_disk():
    """7-byte elements in an encrypted region, whose blocks end within an element."""
    sizes = ProofSizes(1.0, 3 * ring.TILE + 5, 16)
    x = field.random_elements(sizes.dim, random_bytes_of("spooled"))
    with tempfile.TemporaryFile() as file:
        file.truncate(sizes.upload_bytes)
        region = EncryptedRegion(file, sizes.upload_bytes)
        region.append(field.to_bytes(x))
        on_disk = sums.share_sums([PackedShare(region, sizes.dim)], rows_of(CHALLENGE), query_for(sizes), sizes)
    in_memory = sums.share_sums([packed(x)], rows_of(CHALLENGE), query_for(sizes), sizes)
    assert np.array_equal(on_disk.rows, in_memory.rows)
    assert np.array_equal(on_disk.wires, in_memory.wires)
    assert np.array_equal(on_disk.share_sum, x)


def test_shares_are_taken_out_of_a_sum_again():
    sizes = ProofSizes(1.0, ring.TILE + 9, 16)
    data = [field.random_elements(sizes.dim, random_bytes_of(f"sum {i}")) for i in range(3)]
    total = np.zeros(sizes.dim, dtype=np.uint64)
    sums.add_shares(total, [packed(x) for x in data])
    sums.add_shares(total, [packed(data[1])], negate=True)
    assert np.array_equal(total, field.add(data[0], data[2]))


def test_shares_of_an_update_add_up_to_it():
    """Z + SHARE = X, in pieces of a tile."""
    x = np.arange(-20_000, 20_000, dtype=np.int64)
    seed, label = Seed(bytes(16)), Label(ROUND.task, ROUND.round, "1")
    payload = b"".join(payload_pieces(x, seed, label))
    share = np.empty(x.size, dtype=np.uint64)
    PackedShare(HeldBytes(payload), x.size).fill(share)
    assert field.to_integers(field.add(share, seeded_share(seed, label).take(x.size))).tolist() == x.tolist()


@pytest.mark.parametrize("offset", [0, 1, 8, 56])
@pytest.mark.parametrize("n_skipped", [0, 1, 8])
@pytest.mark.parametrize("n", [1, 8, 9, 64])
def test_elements_in_memory_are_those_of_a_copy_wherever_they_lie(offset, n_skipped, n):
    """Read in place, or copied where they fill no whole words. What is read is never written to."""
    values = field.random_elements(n_skipped + n, random_bytes_of("in place"))
    room = bytearray(offset) + bytearray(field.to_bytes(values))
    before = bytes(room)
    for data in (memoryview(room)[offset:], memoryview(before)[offset:]):
        out = np.empty(n, dtype=np.uint64)
        PackedShare(HeldBytes(data), values.size).after(n_skipped).fill(out)
        assert np.array_equal(out, values[n_skipped:])
    assert bytes(room) == before


def test_a_share_that_is_cut_short_or_malformed_is_refused():
    data = field.to_bytes(np.arange(16, dtype=np.uint64))
    with pytest.raises(MalformedMessageError, match="share: expected 119 bytes, found 112"):
        PackedShare(HeldBytes(data), 17)
    with pytest.raises(MalformedMessageError, match="share: expected at most 16 elements"):
        PackedShare(HeldBytes(data), 16).after(10).fill(np.empty(7, dtype=np.uint64))
    with pytest.raises(MalformedMessageError, match="share: expected elements below p"):
        PackedShare(HeldBytes(b"\xff" * 112), 16).fill(np.empty(16, dtype=np.uint64))


def test_no_share_is_printed():
    share = packed(np.arange(5, dtype=np.uint64))
    texts = [repr(one) for one in (share, HeldBytes(b"12345"), seeded_share(Seed(bytes(16)), ROUND))]
    assert texts == ["PackedShare(5 elements)", "HeldBytes(5 bytes)", "FieldStream(REDACTED)"]
