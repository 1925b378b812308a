"""`precad audit validation`: the real two-party check on ring vectors of your own, so that anyone can attack it.

Both parties run the code that the servers run, as two threads that share nothing but a channel. Vectors enter as the
submissions of one round.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from precad.deploy.errors import ConfigError
from precad.mpc import ring, sharing, validation
from precad.mpc.channel import MemoryChannel, run_pair
from precad.mpc.convex_set import ConvexSet
from precad.mpc.gate import top_bits
from precad.mpc.gate.top_bits import Gate
from precad.mpc.gate_names import make_gate
from precad.mpc.locking import lock_list
from precad.mpc.norm_bound import NormBound
from precad.mpc.parameters import Mode
from precad.mpc.prg import Label
from precad.mpc.proved import field
from precad.mpc.proved.sizes import N_ROWS, ProofSizes
from precad.mpc.ring import RingArray
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, ServerTuples


@dataclass(frozen=True, slots=True)
class Audit:
    """Hold the verdicts and costs of a batch of vectors."""

    verdicts: tuple[bool, ...]
    rounds: int
    """Messages per direction."""
    bytes_per_direction: int
    accepted_sum: RingArray


def audit(vectors: RingArray, bound: NormBound, *, gate: Gate, mode: Mode = Mode.MASKED) -> Audit:
    """Run one round of the complete validation with fresh randomness. Shapes: vectors (n, d)."""
    clients = tuple(f"vector-{i}" for i in range(len(vectors)))
    blocks = top_bits.blocks(gate, len(vectors), bound.low_bits)
    layer_sizes = bound.layer_sizes if isinstance(bound, ConvexSet) else ()
    shape = BatchShape("audit", 0, clients, bound.dim, blocks, layer_sizes=layer_sizes)
    dealt = deal(shape)
    tuples = (ServerTuples(0, shape, dealt[0]), ServerTuples(1, shape, dealt[1]))
    payloads: tuple[dict[str, RingArray], dict[str, RingArray]] = ({}, {})
    for client, vector in zip(clients, vectors, strict=True):
        label = shape.label(client)
        if mode is Mode.MASKED:
            seeds = (tuples[0].hand_out_mask_seed(client), tuples[1].hand_out_mask_seed(client))
            payloads[0][client] = payloads[1][client] = sharing.mask(vector, seeds, label)
        else:
            seed, share_b = sharing.split(vector, label)
            payloads[0][client], payloads[1][client] = sharing.expand_share(seed, label, bound.dim), share_b
    return check_submissions(payloads, tuples, bound, gate=gate, mode=mode)


def check_submissions(
    payloads: tuple[dict[str, RingArray], dict[str, RingArray]],
    tuples: tuple[ServerTuples, ServerTuples],
    bound: NormBound,
    *,
    gate: Gate,
    mode: Mode,
) -> Audit:
    """Run both servers' part, on what each of them holds of every client. Raises what either party raises."""
    shape = tuples[0].shape
    bindings = {
        client: hashlib.sha256(ring.to_bytes(payloads[0][client]) + ring.to_bytes(payloads[1][client])).digest()
        for client in shape.clients
    }

    def party(channel: MemoryChannel) -> tuple[validation.Validated, int, int]:
        own, mine = payloads[channel.party], tuples[channel.party]
        locked = lock_list(bindings, shape.label(), shape.clients, channel)
        reveal = validation.reveal if mode is Mode.MASKED else validation.reveal_and_open
        checked = validation.validate(reveal(locked, own, mine, channel), mine, bound, gate, channel)
        return checked, channel.rounds, channel.bytes_sent

    (a, rounds, sent), (b, _, _) = run_pair(party)
    assert a.verdicts == b.verdicts  # z is opened to both: they cannot differ
    return Audit(a.verdicts, rounds, sent, sharing.reconstruct(a.accepted_share_sum, b.accepted_share_sum))


def load_vectors(path: Path) -> RingArray:
    """Return array `x` of a .npz file. Raises ConfigError naming what was expected."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            x = archive["x"]
    except KeyError:
        raise ConfigError(f"--vectors: expected an array named x in {path}, found none") from None
    except OSError as error:
        raise ConfigError(f"--vectors: expected a .npz file, found {path}: {error.strerror or error}") from None
    except Exception:  # noqa: BLE001 - a damaged archive can fail anywhere in zipfile, zlib and NumPy
        raise ConfigError(f"--vectors: expected a .npz file of numpy.savez, found something else in {path}") from None
    if not isinstance(x, np.ndarray):
        raise ConfigError(f"--vectors: expected an array named x in {path}, found something else")
    if x.dtype != np.int64 or x.ndim != 2 or 0 in x.shape:
        raise ConfigError(f"--vectors: expected x of int64 and shape (n, d), found {x.dtype} and shape {x.shape}")
    return np.ascontiguousarray(x)


def audit_file(
    path: Path, *, clip: float, frac_bits: int, n_rows: int, seed_count: int, gate: str, mode: str
) -> dict[str, Any]:
    """Return the report of the command: verdicts under fresh seeds, `seed_count` times.

    A vector's verdict is `accept` if any of the runs accepted it. Raises ConfigError, ParameterError.
    """
    vectors = load_vectors(path)
    if mode == Mode.PROVED:
        return _audit_proofs(vectors, clip=clip, frac_bits=frac_bits, n_rows=n_rows, seed_count=seed_count)
    bound = NormBound(clip_norm=clip, dim=vectors.shape[1], frac_bits=frac_bits, n_rows=n_rows)
    chosen_gate = make_gate(gate)
    runs = [audit(vectors, bound, gate=chosen_gate, mode=Mode(mode)) for _ in range(seed_count)]
    cost = {"rounds": runs[0].rounds, "bytes_per_direction": runs[0].bytes_per_direction}
    return {**_report([run.verdicts for run in runs], bound), "gate": gate, "mode": mode, **cost}


def _audit_proofs(vectors: RingArray, *, clip: float, frac_bits: int, n_rows: int, seed_count: int) -> dict[str, Any]:
    """Return the report of mode `proved`, in which a word stands for its residue modulo p."""
    from precad.deploy.oversight.proved_audit import proved_round

    if n_rows != N_ROWS:
        raise ConfigError(f"--rows: expected {N_ROWS} with --mode proved, whose proofs have no other, found {n_rows}")
    sizes = ProofSizes(clip, vectors.shape[1], frac_bits)
    residues = field.to_integers(np.mod(vectors, field.P).astype(np.uint64))
    uploads = {f"vector-{i}": vector for i, vector in enumerate(residues)}
    runs = [proved_round(uploads, Label("audit", t), sizes) for t in range(seed_count)]
    verdicts = [tuple(run.verdicts.values()) for run in runs]
    cost = {"rounds": runs[0].exchanges, "bytes_per_direction": runs[0].bytes_per_direction}
    return {**_report(verdicts, sizes), "gate": None, "mode": Mode.PROVED.value, **cost}


def _report(verdicts: list[tuple[bool, ...]], bound: NormBound | ProofSizes) -> dict[str, Any]:
    counts = np.sum(verdicts, axis=0)
    return {
        "verdicts": ["accept" if count else "reject" for count in counts.tolist()],
        "accept_counts": counts.tolist(),
        "seed_count": len(verdicts),
        "n": len(verdicts[0]),
        "dim": bound.dim,
        "clip": bound.clip_norm,
        "frac_bits": bound.frac_bits,
        "threshold": bound.threshold,
        "rows": bound.n_rows if isinstance(bound, NormBound) else N_ROWS,
        "log2_soundness_error": bound.log2_soundness_error,
        "log2_honest_failure": bound.log2_honest_failure,
    }
