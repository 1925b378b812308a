"""Validation of uploads that lie on disk: the sums of the clear, and memory that does not grow with the uploads."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from precad.mpc import opening, ring, sharing, validation
from precad.mpc.channel import memory_pair, run_pair
from precad.mpc.errors import MalformedMessageError, ParameterError
from precad.mpc.gate import top_bits
from precad.mpc.gate_names import make_gate
from precad.mpc.joint_coin import CoinShare
from precad.mpc.local.encrypted_region import EncryptedRegion
from precad.mpc.local.spooled_words import SpooledWords
from precad.mpc.locking import Locked, lock_list
from precad.mpc.norm_bound import NormBound
from precad.mpc.prg import Label, Seed
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, ServerTuples, mask_seed
from tests.mpc import stream_large
from tests.mpc.recording import RecordingChannel

LONG, SHORT = 1 << 40, 1000


def regions_of(spool, n, dim):
    """Return the regions of n vectors, one behind the other."""
    spool.truncate(n * 8 * dim)
    return [EncryptedRegion(spool, 8 * dim, offset=8 * dim * i) for i in range(n)]


def spooled_round(norms, dim, folder):
    """(per party: verdicts, accepted share) for one-hot vectors whose masked forms lie in one spool file."""
    gate, bound = make_gate("native"), NormBound(clip_norm=1.0, dim=dim)
    clients = tuple(f"client-{i}" for i in range(len(norms)))
    shape = BatchShape("task", 1, clients, dim, top_bits.blocks(gate, len(norms), bound.low_bits))
    tuples = [ServerTuples(party, shape, part) for party, part in enumerate(deal(shape))]
    with (folder / "spool").open("w+b", buffering=0) as spool:
        regions = regions_of(spool, len(norms), dim)
        for i, (client, norm) in enumerate(zip(clients, norms, strict=True)):
            x = np.zeros(dim, dtype=np.int64)
            x[i * 12345 % dim] = norm
            seeds = tuple(t.hand_out_mask_seed(client) for t in tuples)
            regions[i].append(ring.to_bytes(sharing.mask(x, seeds, shape.label(client))))

        def party(channel):
            opened = {c: SpooledWords(region, dim) for c, region in zip(clients, regions, strict=True)}
            bindings = {client: hashlib.sha256(client.encode()).digest() for client in clients}
            locked = lock_list(bindings, shape.label(), shape.clients, channel)
            revealed = validation.reveal(locked, opened, tuples[channel.party], channel)
            return validation.validate(revealed, tuples[channel.party], bound, gate, channel)

        return run_pair(party)


@pytest.mark.parametrize(
    "norms",
    [(SHORT,) * 3, (LONG,) * 3, (SHORT, LONG, SHORT, SHORT), (LONG, SHORT, LONG), (LONG, SHORT), (SHORT,), (LONG,)],
    ids=lambda norms: "".join("-+"[norm == SHORT] for norm in norms),
)
def test_spooled_uploads_are_validated_and_summed(norms, tmp_path, monkeypatch):
    """Tiles far smaller than the vector; the rejected are taken out of the sum, or the accepted added up anew."""
    dim = 100_003
    monkeypatch.setattr(ring, "TILE", 1024)
    expected = np.zeros(dim, dtype=np.int64)
    for i, norm in enumerate(norms):
        expected[i * 12345] += norm if norm == SHORT else 0

    a, b = spooled_round(norms, dim, tmp_path)

    assert a.verdicts == b.verdicts == tuple(norm == SHORT for norm in norms)
    assert_array_equal(expected, sharing.reconstruct(a.accepted_share_sum, b.accepted_share_sum))


@pytest.mark.parametrize("n_words", [1, 63, 65])
def test_a_share_of_another_length_is_refused(n_words):
    """Also of one word, which NumPy would repeat; before anything is sent."""
    shape = BatchShape("task", 1, ("client",), 64, ())
    tuples = ServerTuples(0, shape, deal(shape)[0])
    locked = Locked(("client",), CoinShare(0, "task", bytes(32)), bytes(32), b"")

    with pytest.raises(MalformedMessageError):
        validation.reveal_and_open(locked, {"client": np.zeros(n_words, dtype=np.int64)}, tuples, memory_pair()[0])


@pytest.mark.slow
def test_resident_memory_is_bounded_at_ten_million_coordinates(tmp_path):
    """Both servers in one process, three clients of 80 MB each, one rejected: two sums of 80 MB and 32 MiB of all else.

    Stacked vectors would need 480 MB for the shares alone.
    """
    dim = 10_000_000
    report = subprocess.run(
        [sys.executable, "-m", stream_large.__name__, str(dim), "3", str(tmp_path)],
        cwd=Path(__file__).parent.parent.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    verdicts, n_wrong, grown = report.stdout.split()

    assert verdicts == "++-"
    assert n_wrong == "0"
    assert int(grown) <= 2 * 8 * dim + (32 << 20)


@pytest.mark.parametrize("dim", [1, 1000, 1024, 2500])
def test_an_opening_in_pieces_is_the_masked_form(dim, tmp_path, monkeypatch):
    """Open b = X - a_A - a_B for every client, in one round of a coin and 8d bytes per client.

    The shares are a seed that is expanded on the way and a share on disk; the vectors are on disk. Nobody holds more
    than some pieces of them.
    """
    monkeypatch.setattr(opening, "PIECE_WORDS", 1024)
    clients = ("ada", "bob", "eve")
    shape = BatchShape("task", 1, clients, dim, ())
    dealt = deal(shape)
    tuples = [ServerTuples(party, shape, part) for party, part in enumerate(dealt)]
    vectors = np.random.default_rng(1).integers(-(2**63), 2**63, (3, dim))
    splits = {c: sharing.split(x, shape.label(c)) for c, x in zip(clients, vectors, strict=True)}
    with (tmp_path / "spool").open("w+b", buffering=0) as spool:
        places = [SpooledWords(region, dim) for region in regions_of(spool, 6, dim)]
        rooms = [dict(zip(clients, places[:3], strict=True)), dict(zip(clients, places[3:], strict=True))]
        held = [{c: sharing.ExpandedShare(splits[c][0], shape.label(c), dim) for c in clients}, rooms[1]]
        for client in clients:
            rooms[1][client][:] = splits[client][1]  # B's b is written over its share

        def party(channel):
            own, sent = held[channel.party], RecordingChannel(channel)
            locked = lock_list({client: bytes(32) for client in clients}, shape.label(), shape.clients, channel)
            revealed = validation.reveal_and_open(locked, own, tuples[channel.party], sent, rooms[channel.party])
            return np.array([b[:] for b in revealed.opened]), sent.sent

        (a, sent_a), (b, sent_b) = run_pair(party)
    expected = [
        sharing.mask(x, tuple(mask_seed(part.key, shape.label(c)) for part in dealt), shape.label(c))
        for c, x in zip(clients, vectors, strict=True)
    ]
    assert_array_equal(a, expected)
    assert_array_equal(b, expected)
    assert [(label, len(data)) for label, data in sent_a + sent_b] == [("coin/reveal", 32 + 3 * 8 * dim)] * 2


@pytest.mark.parametrize("dim", [1, 1024, 1025, 3000])
def test_a_share_becomes_the_sum_in_place(dim, monkeypatch):
    monkeypatch.setattr(opening, "PIECE_WORDS", 1024)
    shares = np.random.default_rng(2).integers(-(2**63), 2**63, (2, dim))
    expected = shares[0] + shares[1]

    def party(channel):
        opening.open_in_place(shares[channel.party], "sum", channel)
        return channel.rounds, channel.bytes_sent

    assert run_pair(party) == ((1, 8 * dim), (1, 8 * dim))
    assert_array_equal(shares, [expected, expected])


def test_an_expanded_share_is_read_in_order_only():
    words = sharing.ExpandedShare(Seed(bytes(16)), Label("task", 0, "1"), 100)
    whole = sharing.expand_share(Seed(bytes(16)), Label("task", 0, "1"), 100)
    assert_array_equal(np.concatenate([words[:64], words[64:]]), whole)
    with pytest.raises(ParameterError, match="expected coordinate 100, as it is read in order, found 0"):
        words[:64]


def test_what_is_written_to_a_spool_is_read_and_nothing_else(tmp_path):
    with (tmp_path / "spool").open("w+b", buffering=0) as spool:
        first, second = (SpooledWords(region, 10) for region in regions_of(spool, 2, 10))
        first[:], second[:] = np.arange(10), np.zeros(10, dtype=np.int64)
        second[2:5] = np.array([-1, -(2**63), 7])
        first[3:5] = np.arange(20, 40)[::10]
        assert_array_equal(first[:], [0, 1, 2, 20, 30, 5, 6, 7, 8, 9])
        assert_array_equal(second[:], [0, 0, -1, -(2**63), 7, 0, 0, 0, 0, 0])
        with pytest.raises(MalformedMessageError, match=r"expected 2 words to write, found shape \(3,\)"):
            first[8:10] = np.zeros(3, dtype=np.int64)
