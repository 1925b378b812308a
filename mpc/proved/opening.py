"""Opening the noisy sum of mode `proved`: both servers send their shares in F_p and add, piece by piece, one round.

A piece has 7 * 2^17 bytes, so that no element is cut. What is opened are the integers in (-p/2, p/2), which the sum and
both servers' noise never leave (docs/reference/protocol-v2.md, sections 4 and 10).
"""

from __future__ import annotations

from collections.abc import Iterator

from precad.mpc.channel import Channel
from precad.mpc.opening import PIECE_WORDS, pieces
from precad.mpc.proved import field
from precad.mpc.proved.field import ELEMENT_BYTES, FieldArray
from precad.mpc.ring import RingArray

PIECE_BYTES = ELEMENT_BYTES * PIECE_WORDS


def add_noise(share: FieldArray, noise: RingArray) -> None:
    """Add integers to a share, (d,), in place, a piece at a time. Raises ParameterError above (p - 1) / 2."""
    for piece in pieces(share.size):
        here = share[piece]
        field.add(here, field.from_integers(noise[piece]), here)


def open_in_place(share: FieldArray, label: str, channel: Channel) -> RingArray:
    """Return the integers that both shares add up to, (d,), in the room of ours. Raises MalformedMessageError."""
    opened = share.view("int64")
    ours = (field.to_bytes(share[piece]) for piece in pieces(share.size))
    for piece, received in zip(pieces(share.size), channel.exchange_pieces(label, ours), strict=True):
        theirs = field.from_bytes(received, n_elements=piece.stop - piece.start, field=label)
        opened[piece] = field.to_integers(field.add(share[piece], theirs))
    return opened


def pieces_of_sum(noisy_sum: RingArray) -> Iterator[bytes]:
    """Yield an opened sum, (d,), as it travels when the servers meet."""
    return (field.to_bytes(field.from_integers(noisy_sum[piece])) for piece in pieces(noisy_sum.size))


def fill_sum(noisy_sum: RingArray, received: Iterator[bytes]) -> None:
    """Write what `pieces_of_sum` yielded, (d,). Raises MalformedMessageError."""
    for piece, data in zip(pieces(noisy_sum.size), received, strict=True):
        elements = field.from_bytes(data, n_elements=piece.stop - piece.start, field="noisy sum")
        noisy_sum[piece] = field.to_integers(elements)
