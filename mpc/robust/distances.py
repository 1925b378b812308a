"""Shares of the squared distances between accepted vectors. Nothing is exchanged.

    ||X_i - X_j||^2 = N_i + N_j - 2 <X_i, X_j>,    <X_i, X_j> = <b_i, b_j> + <b_i, a_j> + <a_i, b_j> + <a_i, a_j>

The check left shares of the squared norms N. In X = b + a both servers know b, so the first inner product is public.
Each server has its share of the next two. The last is dealt: one word for each pair of clients.

Source: He, Karimireddy and Jaggi, "Secure Byzantine-Robust Machine Learning", 2020, take distances of shared updates;
PRECAD names it as related work. That one dealt word for each pair is enough, because b is public, is ours.
"""

from __future__ import annotations

import numpy as np

from precad.mpc import ring
from precad.mpc.local.step import read_tile
from precad.mpc.ring import RingArray
from precad.mpc.robust.proposal import Accepted
from precad.mpc.tuples.held import ServerTuples


def squared_distance_shares(accepted: Accepted, tuples: ServerTuples) -> RingArray:
    """Return this server's shares of ||X_i - X_j||^2, symmetric, with a diagonal of zeros. Shape (m, m).

    No distance wraps: it is at most 4T, as no norm is above T. Raises MalformedMessageError, ParameterError.
    """
    m, dim = len(accepted.clients), accepted.share_sum.size
    streams = [tuples.mask_share(client) for client in accepted.clients]
    products = np.zeros((m, m), dtype=np.int64)
    b, a = np.empty((2, m, min(dim, ring.TILE)), dtype=np.int64)
    for tile in ring.tiles(dim):
        n = tile.stop - tile.start
        for i, (opened, stream) in enumerate(zip(accepted.opened, streams, strict=True)):
            b[i, :n] = read_tile(opened, tile)
            stream.fill(a[i, :n])
        crossed = b[:, :n] @ a[:, :n].T
        products += crossed + crossed.T
        if tuples.party == 0:
            products += b[:, :n] @ b[:, :n].T
    first, second = np.triu_indices(m, 1)
    inner = products[first, second] + tuples.mask_product_shares(accepted.clients)
    norms, found = accepted.squared_norms, np.zeros((m, m), dtype=np.int64)
    found[first, second] = found[second, first] = norms[first] + norms[second] - 2 * inner
    return found
