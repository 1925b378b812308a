"""Measure what an upload of mode `proved` costs its client: seconds and bytes, of the share and of the proof."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from precad.lab.bench.errors import WrongVerdictError
from precad.lab.bench.proved import PROVED, binding_of
from precad.lab.bench.statistics import Spread, timed
from precad.lab.bench.workload import TASK, Case, Updates, sizes_of
from precad.mpc import ring
from precad.mpc.prg import SYSTEM_BYTES, Label, Seed
from precad.mpc.proved.client import OpenUpload, make_upload
from precad.mpc.proved.field import ELEMENT_BYTES
from precad.mpc.proved.shares import payload_pieces
from precad.mpc.proved.submission import ProofBinding
from precad.protos.messages import convert, proved
from precad.protos.precad.v1 import aggregator_pb2, common_pb2

CLIENT = "client-000000"


@dataclass(frozen=True, slots=True)
class ClientCost:
    """Seconds of one client, on one thread."""

    share: Spread
    """The payload to the holder, and its digest before."""
    proof: Spread
    """From the second server's challenge to the proof's payload."""


def measure(dim: int, repetitions: int) -> ClientCost:
    """Measure a client whose update has norm C."""
    case = Case(implementation=PROVED, mode=PROVED, dim=dim, clients=1, repetitions=repetitions)
    x, sizes = Updates(case).vector(0, 1), sizes_of(dim)
    label, blank = Label(TASK, 1, "0"), binding_of(CLIENT, 1, dim)

    def share() -> None:
        seed = Seed.random()  # one upload and one proof under each
        make_upload(x, blank, seed, label)
        for _ in payload_pieces(x, seed, label):
            pass

    def proof() -> None:
        challenge, upload = SYSTEM_BYTES(16), OpenUpload(x, sizes, blank, Seed.random(), 0)
        upload.hear(0, challenge)
        if upload.hear(1, challenge) is None:
            raise WrongVerdictError("expected a proof of an update of norm C, found none")

    return ClientCost(share=timed(share, repetitions), proof=timed(proof, repetitions))


def row(dim: int, repetitions: int) -> dict[str, Any]:
    """Return a row of the report. `bytes_up` are those of both messages."""
    cost, of_share, of_proof = measure(dim, repetitions), bytes_of_share(dim), bytes_of_proof(dim)
    return {
        "d": dim,
        **cost.share.scaled(1e3).fields("share_ms"),
        **cost.proof.scaled(1e3).fields("proof_ms"),
        "bytes_share": of_share,
        "bytes_proof": of_proof,
        "bytes_up": of_share + of_proof,
    }


def bytes_of_share(dim: int) -> int:
    """Count the bytes of an upload to its holder: the messages of `precad.clients.upload.proved`, framing left out."""
    binding = proved.binding_message(binding_of(CLIENT, 1000, dim))
    binding.digest_a = bytes(32)
    head = aggregator_pb2.SubmitPart(binding=binding, statement=bytes(32), salt=bytes(32))
    return head.ByteSize() + _bytes_of_chunks(ELEMENT_BYTES * (t.stop - t.start) for t in ring.tiles(dim))


def bytes_of_proof(dim: int) -> int:
    """Count the bytes of a proof to its holder, alike."""
    payload = bytes(sizes_of(dim).proof_bytes)
    binding = ProofBinding(TASK, 1000, CLIENT, bytes(32), bytes(16), bytes(32))
    head = aggregator_pb2.ProvePart(binding=proved.proof_binding_message(binding), statement=bytes(32), salt=bytes(32))
    return head.ByteSize() + _bytes_of_chunks(len(piece) for piece in convert.growing_pieces(payload))


def _bytes_of_chunks(lengths: Iterable[int]) -> int:
    return sum(aggregator_pb2.SubmitPart(chunk=common_pb2.Chunk(data=bytes(n_bytes))).ByteSize() for n_bytes in lengths)
