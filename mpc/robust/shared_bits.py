"""From additive shares of words to shares of one bit of each.

Bit L of x + y is bit L of x, bit L of y and the carry of the L bits below, by XOR. Each server knows one of the first
two; a gate gives shares of the carry. So a comparison of two secrets below 2^L is bit L of 2^L plus their difference.
"""

from __future__ import annotations

import numpy as np

from precad.mpc import ring
from precad.mpc.channel import Channel, exchange_alike
from precad.mpc.gate.top_bits import Gate, LowWords
from precad.mpc.ring import RingArray
from precad.mpc.tuples.correlations import Planes, bits_of_plane, plane_of_bits
from precad.mpc.tuples.held import ServerTuples


def bit_shares(words: RingArray, n_bits: int, gate: Gate, tuples: ServerTuples, channel: Channel) -> Planes:
    """Return XOR shares of bit n_bits of each word, in a plane. The gate's rounds; at least one word.

    Shapes: words (m,), this server's additive shares. Raises MalformedMessageError, TupleExhaustedError.
    """
    low = LowWords(words & ((1 << n_bits) - 1), n_bits)
    (carry,) = gate.carries([low], tuples.correlations_after_check(), channel)
    own = plane_of_bits(((words >> n_bits) & 1).astype(np.uint8))
    return carry ^ own


def additive_bits(words: RingArray, n_bits: int, gate: Gate, tuples: ServerTuples, channel: Channel) -> RingArray:
    """Return additive shares of bit n_bits of each word, (m,), as `bit_shares` and one round more; none for none."""
    if not words.size:
        return np.zeros(0, dtype=np.int64)
    bits = bit_shares(words, n_bits, gate, tuples, channel)
    mask, shares = tuples.correlations_after_check().bits(words.size)
    opened = open_bits(bits ^ mask, words.size, "bits", channel)
    signed: RingArray = (1 - 2 * opened) * shares
    return signed + opened if channel.party == 0 else signed


def chosen_words(bits: Planes, words: RingArray, tuples: ServerTuples, channel: Channel) -> RingArray:
    """Return additive shares of each word times its bit, (m,), from XOR shares of the bits in a plane. One round.

    With e = bit ^ u and z = word - y opened, bit word = e word + (1 - 2e) (z u + u y).
    Shapes: words (m,), this server's additive shares. Raises MalformedMessageError, TupleExhaustedError.
    """
    dealt = tuples.correlations_after_check().choices(words.size)
    hidden, masked = bits ^ dealt.bit_mask, words - dealt.word_mask
    received = exchange_alike(channel, "choose", hidden.tobytes() + ring.to_bytes(masked))
    e = bits_of_plane(hidden ^ np.frombuffer(received[: hidden.size], dtype=np.uint8), words.size)
    z = masked + ring.from_bytes(received[hidden.size :], n_words=words.size)
    return e * words + (1 - 2 * e) * (z * dealt.bits + dealt.products)


def open_bits(hidden: Planes, n_bits: int, label: str, channel: Channel) -> RingArray:
    """Return the XOR of both servers' planes as (n_bits,) of zeros and ones. One round."""
    received = exchange_alike(channel, label, hidden.tobytes())
    return bits_of_plane(hidden ^ np.frombuffer(received, dtype=np.uint8), n_bits)
