"""The servers' side of a proof: what each opens of its shares at two points, and the verdict.

All of it is linear in a server's shares, until both parts are added up. So what an honest client's proof opens to is
uniform, but for F and q, which follow from it. Source: docs/reference/protocol-v2.md, section 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from precad.mpc.errors import MalformedMessageError, ParameterError
from precad.mpc.kernels import loading
from precad.mpc.proved import field
from precad.mpc.proved.field import ELEMENT_BYTES, FieldArray
from precad.mpc.proved.query import Query
from precad.mpc.proved.sizes import N_POINTS, N_ROWS, ProofSizes
from precad.mpc.sharing import Party

VERIFIER_STEP = "validation/verifier"
PIECE_ELEMENTS = 1 << 17
"""Elements of a piece of a message: no element is cut."""


def opened_share(
    party: Party, rows: FieldArray, wires: FieldArray, proof: FieldArray, query: Query, sizes: ProofSizes
) -> FieldArray:
    """Return this server's part of a verifier message for one client: per point f of each wire, F, u and q.

    Shapes: rows (64,) and wires (2, c) of `share_sums`; proof (sizes.proof_elements,), a share; result (2, c + 3).
    Server A adds the constants b and T, whether it is the holder or the seeded server. Raises ParameterError.
    """
    expected = ((N_ROWS,), (N_POINTS, sizes.n_wires), (sizes.proof_elements,))
    if (rows.shape, wires.shape, proof.shape) != expected or query.sizes != sizes:
        raise ParameterError(
            f"proof: expected rows, wires and elements of shapes {expected} and a query for them, "
            f"found {rows.shape}, {wires.shape} and {proof.shape}"
        )
    opened = np.empty((N_POINTS, sizes.opened_elements), dtype=np.uint64)
    constants = (np.uint64(sizes.window), np.uint64(sizes.threshold)) if party == 0 else (np.uint64(0), np.uint64(0))
    lengths = (sizes.row_bits, sizes.norm_bits, sizes.wire_length, sizes.bit_domain)
    loading.proofs().open_proof(
        rows, wires, proof, lengths, constants, query.at_points, query.powers, query.bit_weights, opened
    )
    return opened


def is_valid(ours: FieldArray, theirs: FieldArray, query: Query) -> bool:
    """Tell whether sum f^2 = F and u^2 - u = (t^n - 1) q at both points. Shapes: (2, c + 3), parts of two servers.

    Raises ParameterError for another shape: compiled loops would read behind an array's end.
    """
    expected = (N_POINTS, query.sizes.opened_elements)
    if not ours.shape == theirs.shape == expected:
        raise ParameterError(f"{VERIFIER_STEP}: expected parts of shape {expected}, found {ours.shape}, {theirs.shape}")
    return bool(loading.proofs().is_valid(ours, theirs, query.at_points))


def message_pieces(opened: Sequence[FieldArray]) -> Iterator[bytes]:
    """Yield the verifier message in pieces of 7 * 2^17 bytes, slot after slot, what is left last."""
    waiting: list[FieldArray] = []
    n_waiting = 0
    for part in opened:
        elements = part.reshape(-1)
        while n_waiting + elements.size >= PIECE_ELEMENTS:
            taken, elements = np.split(elements, [PIECE_ELEMENTS - n_waiting])
            yield field.to_bytes(np.concatenate([*waiting, taken]))
            waiting, n_waiting = [], 0
        waiting.append(elements)
        n_waiting += elements.size
    if n_waiting:
        yield field.to_bytes(np.concatenate(waiting))


def read_message(pieces: Iterator[bytes], n_clients: int, sizes: ProofSizes) -> list[FieldArray]:
    """Return the peer's parts, (2, c + 3) each. Raises MalformedMessageError on a length that is not due, before more
    is taken, and on an element that is not below p."""
    total = N_POINTS * sizes.opened_elements * n_clients
    elements = np.empty(total, dtype=np.uint64)
    for start in range(0, total, PIECE_ELEMENTS):
        n = min(PIECE_ELEMENTS, total - start)
        piece = next(pieces, b"")
        elements[start : start + n] = field.from_bytes(piece, n_elements=n, field=VERIFIER_STEP)
    if any(pieces):
        raise MalformedMessageError(f"{VERIFIER_STEP}: expected {ELEMENT_BYTES * total} bytes, found more")
    return list(elements.reshape(n_clients, N_POINTS, sizes.opened_elements))
