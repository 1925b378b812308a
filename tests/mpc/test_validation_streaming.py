"""Validation of uploads that lie on disk: the sums of the clear, and memory that does not grow with the uploads."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from mpc import ring, sharing, top_bits, validation
from mpc.channel import memory_pair, run_pair
from mpc.dealer import deal
from mpc.errors import MalformedMessageError
from mpc.gates import make_gate
from mpc.joint_coin import CoinShare
from mpc.norm_bound import NormBound
from mpc.spool import SpooledWords
from mpc.tuples import BatchShape, ServerTuples
from tests.mpc import stream_large

LONG, SHORT = 1 << 40, 1000


def spooled_round(norms, dim, folder):
    """(per party: verdicts, accepted share) for one-hot vectors whose masked forms lie in one spool file."""
    gate, bound = make_gate("native"), NormBound(clip_norm=1.0, dim=dim)
    clients = tuple(f"client-{i}" for i in range(len(norms)))
    shape = BatchShape("task", 1, clients, dim, top_bits.blocks(gate, len(norms), bound.low_bits))
    tuples = [ServerTuples(party, shape, part) for party, part in enumerate(deal(shape))]
    with (folder / "spool").open("wb") as spool:
        for i, (client, norm) in enumerate(zip(clients, norms, strict=True)):
            x = np.zeros(dim, dtype=np.int64)
            x[i * 12345 % dim] = norm
            seeds = tuple(t.hand_out_mask_seed(client) for t in tuples)
            spool.write(ring.to_bytes(sharing.mask(x, seeds, shape.label(client))))

    def party(channel):
        with (folder / "spool").open("rb") as spool:
            opened = [SpooledWords(spool, dim, offset=8 * dim * i) for i in range(len(norms))]
            bindings = {client: hashlib.sha256(client.encode()).digest() for client in clients}
            locked = validation.lock(bindings, shape, channel)
            return validation.validate(locked, opened, tuples[channel.party], bound, gate, channel)

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
    locked = validation.Locked(("client",), CoinShare(0, "task", bytes(32)), bytes(32), b"")

    with pytest.raises(MalformedMessageError):
        validation.open_masked({"client": np.zeros(n_words, dtype=np.int64)}, tuples, locked, memory_pair()[0])


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
