"""The servers' side of a proof: what each opens of its shares at two points, and the verdict.

All of it is linear in a server's shares, until both parts are added up. So what an honest client's proof opens to is
uniform, but for F and q, which follow from it. Source: `proved.md` section 7.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np

from precad.mpc.errors import MalformedMessageError, ParameterError
from precad.mpc.kernels import loading
from precad.mpc.proved import field
from precad.mpc.proved.field import ELEMENT_BYTES, FieldArray, P
from precad.mpc.proved.query import Query
from precad.mpc.proved.sizes import N_NUMBERS, N_POINTS, N_ROWS, ProofSizes
from precad.mpc.sharing import Party

VERIFIER_STEP = "validation/verifier"
PIECE_ELEMENTS = 1 << 17
"""Elements of a piece of a message: no element is cut."""


def opened_share(
    party: Party, rows: FieldArray, wires: FieldArray, proof: FieldArray, query: Query, sizes: ProofSizes
) -> FieldArray:
    """Return this server's part of a verifier message for one client: per point f of each wire, F, u and q.

    Shapes: rows (64,) and wires (2, c) of `share_sums`; proof (sizes.proof_elements,), a share; result (2, c + 3).
    Server A adds the constants b and T, whether it is the holder or the seeded server.
    """
    if proof.shape != (sizes.proof_elements,):
        raise ParameterError(f"proof: expected {sizes.proof_elements} elements, found shape {proof.shape}")
    sent, masks, squares, (r, r_x), quotient = _parts(proof, sizes)
    n_wire = sizes.wire_length
    norm = n_wire * (int(squares[0]) + int(squares[n_wire]) + int(squares[2 * n_wire]))
    bits = _bits(party, rows, norm, sent, sizes)
    opened = np.empty((N_POINTS, sizes.opened_elements), dtype=np.uint64)
    vanishing = np.array(query.wire_vanishing, dtype=np.uint64)
    points = np.array(query.points, dtype=np.uint64)
    loading.proofs().masked_wires(wires, masks.reshape(N_POINTS, -1), points, vanishing, opened)
    opened[:, -3] = field.two_dots(squares, query.powers)
    opened[:, -1] = field.two_dots(quotient, query.powers)
    of_bits = field.two_dots(bits, query.bit_weights)
    for e, (point, factor) in enumerate(zip(query.points, query.bit_vanishing, strict=True)):
        opened[e, -2] = (of_bits[e] + factor * (int(r) + int(r_x) * point)) % P
    return opened


def _parts(proof: FieldArray, sizes: ProofSizes) -> list[FieldArray]:
    """Return bits, both rows of masks, F, (r, r') and q."""
    ends = list(accumulate(sizes.parts, initial=0))
    del ends[2]
    return [proof[start:stop] for start, stop in pairwise(ends)]


def _bits(party: Party, rows: FieldArray, norm: int, sent: FieldArray, sizes: ProofSizes) -> FieldArray:
    """Return shares of all bits, (L,). norm: the share of sum X_i^2."""
    window, threshold = (sizes.window, sizes.threshold) if party == 0 else (0, 0)
    numbers = np.empty(N_NUMBERS, dtype=np.uint64)
    numbers[:-1] = field.add(rows, np.full(N_ROWS, window, dtype=np.uint64))
    numbers[-1] = (threshold - norm) % P
    bits = np.empty(sizes.n_bits, dtype=np.uint64)
    loading.proofs().derived_bits(numbers, sent, sizes.row_bits, sizes.norm_bits, bits)
    return bits


def is_valid(ours: FieldArray, theirs: FieldArray, query: Query) -> bool:
    """Tell whether sum f^2 = F and u^2 - u = (t^n - 1) q at both points. Shapes: (2, c + 3), parts of two servers.

    Raises ParameterError for another shape: compiled loops would read behind an array's end.
    """
    expected = (N_POINTS, query.sizes.opened_elements)
    if not ours.shape == theirs.shape == expected:
        raise ParameterError(f"{VERIFIER_STEP}: expected parts of shape {expected}, found {ours.shape}, {theirs.shape}")
    opened = field.add(ours.reshape(-1), theirs.reshape(-1)).reshape(ours.shape)
    kernels = loading.proofs()
    for (squares, u, q), wires, vanishing in zip(
        opened[:, -3:].tolist(), opened[:, :-3], query.bit_vanishing, strict=True
    ):
        is_norm = int(kernels.sum_of_squares(np.ascontiguousarray(wires))) == squares
        if not (is_norm and (u * u - u - vanishing * q) % P == 0):
            return False
    return True


def message_pieces(opened: Sequence[FieldArray]) -> Iterator[bytes]:
    """Yield the verifier message in pieces of 7 * 2^17 bytes, slot after slot, what is left last."""
    waiting: list[FieldArray] = []
    n_waiting = 0
    for part in opened:
        elements = part.reshape(-1)
        while elements.size:
            taken, elements = np.split(elements, [PIECE_ELEMENTS - n_waiting])
            waiting.append(taken)
            n_waiting += taken.size
            if n_waiting == PIECE_ELEMENTS:
                yield field.to_bytes(np.concatenate(waiting))
                waiting, n_waiting = [], 0
    if waiting:
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
