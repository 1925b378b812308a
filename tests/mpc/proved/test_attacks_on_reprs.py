"""No object of mode `proved` prints what a log may not hold."""

import numpy as np

from precad.mpc.prg import Label, Purpose, Seed
from precad.mpc.proved import prover, sums
from precad.mpc.proved.check import LockedUpload
from precad.mpc.proved.client import Invitation, OpenUpload
from precad.mpc.proved.prover import ProofMasks
from precad.mpc.proved.shares import HeldBytes, PackedShare, seeded_proof_share
from precad.mpc.proved.streams import open_field_stream
from precad.mpc.proved.submission import Binding, ShareSeeds, StatedBinding
from tests.mpc.proved.test_proof_check import CHALLENGE, SIZES, Round, vectors
from tests.mpc.proved.two_servers import rows_of

SECRET = bytes(range(65, 81))
"""Letters, so that they are found as text, in hexadecimal and in lists of numbers."""


def test_no_repr_shows_a_secret():
    x = np.full(SIZES.dim, int.from_bytes(SECRET[:2]), dtype=np.int64)
    masks = ProofMasks.draw(SIZES, lambda n: (SECRET * n)[:n])
    seed, label, seeds = Seed(SECRET), Label("task", 3, "4"), ShareSeeds(1, lambda n: SECRET[:n])
    seeds.give(4)
    data = HeldBytes(SECRET * (7 * SIZES.dim))
    share = PackedShare(data, SIZES.dim)
    binding = Binding("task", 3, "alice", b"", b"", SIZES.dim, b"")
    objects = [
        masks,
        prover.witness(x, rows_of(CHALLENGE), SIZES, masks),
        sums.ShareSums(*(np.full(4, SECRET[0], dtype=np.uint64) for _ in range(3))),
        data,
        share,
        share.after(1),
        seeded_proof_share(seed, label),
        open_field_stream(seed, Purpose.SHARE, label),
        LockedUpload("alice", b"", share),
        LockedUpload("alice", b"", seed),
        Invitation("task", 3, 4, SIZES.dim, b"", 0, SECRET),
        OpenUpload(x, SIZES, binding, seed, 4),
        seeds,
        StatedBinding(binding, b"", SECRET + SECRET),
        Round(vectors(1)).servers[0],
    ]
    for one in objects:
        said = repr(one)
        for text in (SECRET[:4].decode(), SECRET[:4].hex(), ", ".join(map(str, SECRET[:4])), "array(", str(x[0])):
            assert text not in said, type(one).__name__
