"""A round of long vectors in files, by a process of its own, whose peak of resident memory is then its own.

    python -m tests.mpc.stream_large DIM CLIENTS FOLDER

Prints the verdicts, and how many words of the accepted sum are wrong. It then prints by how many bytes the peak grew
over the process after its imports. Client i's vector is 1 + i everywhere in the first hundred words; the last one is
too long.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from precad.lab.bench.machine import peak_rss
from precad.mpc import ring, sharing, validation
from precad.mpc.channel import MemoryChannel, run_pair
from precad.mpc.gate import top_bits
from precad.mpc.gate_names import make_gate
from precad.mpc.local.encrypted_region import EncryptedRegion
from precad.mpc.local.engines import CPU
from precad.mpc.local.spooled_words import SpooledWords
from precad.mpc.locking import lock_list
from precad.mpc.norm_bound import NormBound
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, ServerTuples, mask_seed


def plain_tile(client: int, n_clients: int, tile: slice):
    """A tile of the client's update."""
    x = np.zeros(tile.stop - tile.start, dtype=np.int64)
    x[: max(0, 100 - tile.start)] = 1 << 40 if client == n_clients - 1 else 1 + client
    return x


def main(dim: int, n_clients: int, folder: Path) -> None:
    """See the module."""
    gate, bound = make_gate("native"), NormBound(clip_norm=1.0, dim=dim)
    CPU.warm_up()
    clients = tuple(f"client-{i}" for i in range(n_clients))
    before = peak_rss()
    shape = BatchShape("task", 1, clients, dim, top_bits.blocks(gate, n_clients, bound.low_bits))
    dealt = deal(shape)
    tuples = [ServerTuples(0, shape, dealt[0]), ServerTuples(1, shape, dealt[1])]
    with (folder / "spool").open("w+b", buffering=0) as spool:
        spool.truncate(8 * dim * n_clients)
        regions = [EncryptedRegion(spool, 8 * dim, offset=8 * dim * i) for i in range(n_clients)]
        for i, client in enumerate(clients):
            label = shape.label(client)
            streams = [sharing.mask_stream(mask_seed(part.key, label), label) for part in dealt]
            for tile in ring.tiles(dim):
                masked = sharing.subtract_streams(plain_tile(i, n_clients, tile), streams)
                regions[i].append(ring.to_bytes(masked))

        def party(channel: MemoryChannel) -> validation.Validated:
            locked = lock_list({client: bytes(32) for client in clients}, shape.label(), shape.clients, channel)
            held = {client: SpooledWords(region, dim) for client, region in zip(clients, regions, strict=True)}
            revealed = validation.reveal(locked, held, tuples[channel.party], channel)
            return validation.validate(revealed, tuples[channel.party], bound, gate, channel)

        a, b = run_pair(party)
    grown = peak_rss() - before
    n_wrong = 0
    for tile in ring.tiles(dim):
        expected = sum(plain_tile(i, n_clients, tile) for i in range(n_clients - 1))
        n_wrong += int((a.accepted_share_sum[tile] + b.accepted_share_sum[tile] != expected).sum())
    print("".join("-+"[ok] for ok in a.verdicts), n_wrong, grown)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
