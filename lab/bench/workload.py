"""Make a batch of updates as a round has them, and everything that exists before the clock starts.

Dealer and clients are played here, by both server processes from one recorded stream of random bytes. Each process
makes the whole batch and keeps its own side of it. So nothing that grows with d has to be carried into the measurement.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from precad.mpc import fixed_point, sharing
from precad.mpc.local.step import Words, WritableWords
from precad.mpc.norm_bound import NormBound
from precad.mpc.parameters import DEFAULT_FRAC_BITS, Mode
from precad.mpc.prg import Label, RandomBytes, Seed
from precad.mpc.proved.sizes import ProofSizes
from precad.mpc.ring import WORD_BYTES, RingArray
from precad.mpc.robust.krum import Krum, least_scores
from precad.mpc.sharing import Party
from precad.mpc.tuples.correlations import Block
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, ServerTuples
from precad.servers.rounds.uploads import Spool

KRUM: Final = "krum"
"""Implementation that sums the updates closest to their neighbours."""

CLIP_NORM = 16.0
MEMORY_BYTES = 1 << 30
"""Most bytes of each server's memory that one batch's vectors may take."""
TASK = "benchmark-0123456789abcdef"


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One line of a benchmark, as both server processes run it."""

    implementation: str
    """A gate, or one of `precad.lab.bench.checks`: tested, trimmed, krum, unsound, floor, exchange."""
    mode: str
    dim: int
    clients: int
    repetitions: int
    warm_up: int = 1
    memory_bytes: int = MEMORY_BYTES
    """Most bytes of each server's memory that the batch's uploads may take; the others lie in the spool's file."""

    @property
    def bound(self) -> NormBound:
        """Return the norm bound of every case: C = 16 at 16 fractional bits. A server makes its own before the first
        round."""
        return _bound(self.dim)

    @property
    def client_ids(self) -> tuple[str, ...]:
        """Return names as long as real ones."""
        return tuple(f"client-{i:06d}" for i in range(self.clients))

    def expected(self, repetition: int) -> tuple[bool, ...]:
        """Return the verdicts. The client in the middle is too long. A client that is alone is too long only in the
        first repetition, the warm-up, so that the clock times an accepted update."""
        long = self.clients // 2 if self.clients > 1 or repetition == 0 else -1
        return tuple(i != long for i in range(self.clients))

    @property
    def trim_count(self) -> int:
        """Return F: how many of the longest updates the sum is without."""
        return self.clients // 4 if self.implementation == "trimmed" else 0

    @property
    def krum(self) -> Krum | None:
        """Return the rule of multi-Krum: a quarter of the clients may be attackers, and as many are left out."""
        if self.implementation != KRUM:
            return None
        f = self.clients // 4
        return Krum(self.bound, f, max(1, self.clients - 1 - f))

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Case:
        """Invert `dataclasses.asdict`."""
        return cls(**fields)


def sizes_of(dim: int) -> ProofSizes:
    """Return the sizes of a proof of mode `proved`, under the same bound and grid."""
    return ProofSizes(CLIP_NORM, dim, DEFAULT_FRAC_BITS)


class Updates:
    """Encoded updates of the case's dimension: honest ones of norm C, each other, and one of norm 2C."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._base = _vector_of_norm_c(case.bound)

    def vector(self, client: int, repetition: int) -> RingArray:
        """Return X of one client, shape (dim,)."""
        rolled = np.roll(self._base, client)
        return rolled if self._case.expected(repetition)[client] else 2 * rolled

    def accepted_sum(self, repetition: int) -> RingArray:
        """Return what the accepted shares must add up to."""
        total = np.zeros(self._case.dim, dtype=np.int64)
        accepted = [i for i, is_accepted in enumerate(self._case.expected(repetition)) if is_accepted]
        kept = accepted[: max(0, len(accepted) - self._case.trim_count)]  # all are as long: slots decide
        if self._case.krum is not None:
            vectors = [np.roll(self._base, client) for client in accepted]
            kept = [accepted[i] for i in least_scores(vectors, self._case.krum)]
        for client in kept:
            total += np.roll(self._base, client)
        return total


@lru_cache
def _bound(dim: int) -> NormBound:
    return NormBound(clip_norm=CLIP_NORM, dim=dim)


@lru_cache(maxsize=1)
def _vector_of_norm_c(bound: NormBound) -> RingArray:
    """Return one direction per dimension, as long as it may be. Cases of one size share it."""
    x = np.random.default_rng(bound.dim).standard_normal(bound.dim)  # a public workload, no secret
    x *= CLIP_NORM / np.linalg.norm(x)
    return fixed_point.encode_within(x, squared_norm_threshold=bound.threshold, frac_bits=bound.frac_bits)


@dataclass(frozen=True, slots=True)
class Held:
    """Hold what one server has of a batch when the round locks: tuples, and every client's upload."""

    tuples: ServerTuples
    bindings: dict[str, bytes]
    payloads: dict[str, Words | Seed]
    """b in the `masked` form; in the `shares` form share B, and at server A the seed of share A."""
    dealer_seconds: float
    rooms: dict[str, WritableWords]
    """Where the opening of the `shares` form writes b: each upload's own room, as at a server."""

    def vectors(self) -> dict[str, Words]:
        """Return the payloads as the servers' intake hands them on: a seed is expanded, and that is part of the
        check."""
        shape = self.tuples.shape
        return {
            client: sharing.ExpandedShare(payload, shape.label(client), shape.dim)
            if isinstance(payload, Seed)
            else payload
            for client, payload in self.payloads.items()
        }


def shape_of(case: Case, blocks: tuple[Block, ...], repetition: int = 0) -> BatchShape:
    """Return the batch that the case's round asks for."""
    trims, pairs = case.implementation in ("tested", "trimmed", KRUM), case.krum is not None
    return BatchShape(TASK, repetition, case.client_ids, case.dim, blocks, trims, pairs)


def open_spool(case: Case, folder: Path) -> Spool:
    """Open the spool as a server has it: vectors of one batch beyond its memory lie in a file."""
    return Spool(
        folder / "uploads.spool",
        most_bytes=max(WORD_BYTES * case.dim, sizes_of(case.dim).proof_bytes),
        memory_bytes=case.memory_bytes,
        max_memory_upload=case.memory_bytes,
    )


def prepare(
    case: Case, updates: Updates, repetition: int, party: Party, blocks: tuple[Block, ...], spool: Spool
) -> Held:
    """Deal one batch and make its uploads: fresh tuples for every repetition, as one-time tuples must be."""
    random_bytes = recorded(f"{case.implementation}/{case.mode}/{case.dim}/{case.clients}/{repetition}")
    shape = shape_of(case, blocks, repetition)
    start = time.perf_counter()
    dealt = deal(shape, random_bytes)
    dealer_seconds = time.perf_counter() - start
    tuples = (ServerTuples(0, shape, dealt[0]), ServerTuples(1, shape, dealt[1]))
    payloads: dict[str, Words | Seed] = {}
    rooms: dict[str, WritableWords] = {}
    for i, client in enumerate(case.client_ids):
        upload = _upload(updates.vector(i, repetition), tuples, client, case, party, random_bytes)
        rooms[client] = spool.new(WORD_BYTES * case.dim).room(case.dim)
        if isinstance(upload, Seed):
            payloads[client] = upload
        else:
            payloads[client] = rooms[client]
            rooms[client][:] = upload
    bindings = {client: hashlib.sha256(client.encode()).digest() for client in case.client_ids}
    return Held(tuples[party], bindings, payloads, dealer_seconds, rooms)


def _upload(
    vector: RingArray,
    tuples: tuple[ServerTuples, ServerTuples],
    client: str,
    case: Case,
    party: Party,
    random_bytes: RandomBytes,
) -> RingArray | Seed:
    label: Label = tuples[0].shape.label(client)
    if case.mode == Mode.MASKED:
        return sharing.mask(vector, (tuples[0].hand_out_mask_seed(client), tuples[1].hand_out_mask_seed(client)), label)
    seed, share_b = sharing.split(vector, label, random_bytes)
    return seed if party == 0 else share_b


def recorded(name: str) -> RandomBytes:
    """Return a stream that two processes read alike. For measurements only: its key is public."""
    key = hashlib.sha256(name.encode()).digest()[:16]
    encryptor = Cipher(algorithms.AES128(key), modes.CTR(bytes(16))).encryptor()
    return lambda n: encryptor.update(bytes(n))
