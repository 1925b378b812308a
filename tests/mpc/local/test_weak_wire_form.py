"""Why the `shares` form is refused unless a task says `accept_weak_wire_form`: docs/explanation/threat-model.md, "The
wire forms".

Server B deviates: to its part of b it adds 2^(62-j) in one coordinate. So honest A computes with an update that is
longer there, and B takes out of its own words what it knows of the difference. What is left of the squared norm's is
2^63 times bit j of the coordinate: the client is valid iff that bit is 0.

Failure means: the attack does not read what the documents say that it reads. It also means: it reads something in the
`masked` form, where A has b from the client.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from precad.mpc import joint_coin, opening, prg, ring, validation
from precad.mpc.channel import Channel, run_pair
from precad.mpc.gate import equality, top_bits
from precad.mpc.gate.top_bits import Gate
from precad.mpc.gate_names import make_gate
from precad.mpc.local.engines import CPU
from precad.mpc.local.rows import RowStreams
from precad.mpc.local.step import local_sums
from precad.mpc.locking import lock_list
from precad.mpc.norm_bound import NormBound
from precad.mpc.parameters import Mode
from precad.mpc.prg import Purpose
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, ServerTuples
from tests.mpc.fixed_randomness import random_bytes_of
from tests.mpc.ring_strategies import random_words

BOUND = NormBound(1.0, 8)
CLIENTS = ("ada", "bob")
COORDINATE = 3
VALUE = 5542
BITS = range(15)
"""Rounds: as many questions, each of an upload of its own."""


@pytest.fixture
def gate() -> Gate:
    return make_gate("native")


def batch(gate: Gate, t: int) -> tuple[BatchShape, tuple[ServerTuples, ServerTuples]]:
    blocks = top_bits.blocks(gate, len(CLIENTS), BOUND.low_bits)
    shape = BatchShape("t", t, CLIENTS, BOUND.dim, blocks)
    to_a, to_b = deal(shape, random_bytes_of(f"weak wire form/{t}"))
    return shape, (ServerTuples(0, shape, to_a), ServerTuples(1, shape, to_b))


class Deviating:
    """Server B in one round, with a question about the first client."""

    def __init__(self, j: int, known: int, *, shifts_b: bool = True, corrects: bool = True) -> None:
        """Ask for bit j.

        - `known`: the bits of the coordinate below j.
        - `shifts_b`: computes with the b that it made A have.
        - `corrects`: takes out of its words what it knows of the shift.
        """
        self.shift, self.known = 1 << (62 - j), known
        self.shifts_b, self.corrects = shifts_b, corrects

    def opened(self, locked: Any, shares: Any, tuples: ServerTuples, channel: Channel) -> tuple[list[Any], prg.Seed]:
        """As `reveal_and_open`, for vectors of one piece; what it adds to its part follows A's coin."""
        assert len(list(opening.pieces(BOUND.dim))) == 1
        tuples.burn_for_check(locked.active)
        parts = [shares[client] - mask_of(tuples, client) for client in locked.active]
        parts[0] = self.shifted(parts[0])
        sent = [locked.coin.value, *map(ring.to_bytes, parts)]
        coin, *theirs = channel.exchange_pieces(joint_coin.REVEAL, sent)
        challenge = joint_coin.joint_seed(locked.coin, coin, locked.peers_commitment, locked.transcript)
        return [b + ring.from_bytes(a, n_words=BOUND.dim) for b, a in zip(parts, theirs, strict=True)], challenge

    def shifted(self, b: Any) -> Any:
        """2^(62-j) more in the coordinate."""
        b = b.copy()
        b[COORDINATE : COORDINATE + 1] += self.shift
        return b

    def verdicts(
        self, active: Any, opened: list[Any], challenge: prg.Seed, tuples: ServerTuples, gate: Gate, channel: Channel
    ) -> list[bool]:
        """As `validate`, with words of its own making."""
        label = tuples.shape.label()
        sums = local_sums(
            1, validation.masked_shares(active, opened, tuples), RowStreams(challenge, label), BOUND.dim, CPU
        )
        words = validation.words_to_check(active, sums, tuples, BOUND)
        if self.corrects:
            bits = int(prg.stream(challenge, Purpose.ROW_BITS, label, BOUND.dim)[COORDINATE])
            sign = -1 if int(prg.stream(challenge, Purpose.ROW_SIGNS, label, 1)[0]) >> COORDINATE & 1 else 1
            for j in range(64):
                words[:1, j] -= in_ring((bits >> j & 1) * sign * self.shift)
            words[:1, -1] += in_ring(2 * self.shift * self.known + self.shift**2)
        return equality.all_zero(
            top_bits.shares_of_zero(words, BOUND.low_bits, gate, tuples.correlations(), channel),
            equality.hash_key(challenge, label),
            tuples.equality_tuples(active),
            channel,
        )


def in_ring(value: int) -> np.int64:
    return np.uint64(value % 2**64).astype(np.int64)


def mask_of(tuples: ServerTuples, client: str) -> Any:
    words = np.empty(BOUND.dim, dtype=np.int64)
    tuples.mask_share(client).fill(words)
    return words


def answer(updates: Sequence[Any], gate: Gate, mode: Mode, t: int, deviating: Deviating) -> list[bool]:
    """The verdicts of one round, honest A's and B's alike."""
    shape, sides = batch(gate, t)
    bindings = {client: bytes(32) for client in CLIENTS}
    of_a = dict(zip(CLIENTS, random_words(f"share of A/{t}", 2, BOUND.dim), strict=True))
    x = dict(zip(CLIENTS, updates, strict=True))
    masked = {client: x[client] - mask_of(sides[0], client) - mask_of(sides[1], client) for client in CLIENTS}

    def party(channel: Channel) -> list[bool]:
        locked = lock_list(bindings, shape.label(), shape.clients, channel)
        tuples = sides[channel.party]
        if channel.party == 0:
            if mode is Mode.MASKED:
                revealed = validation.reveal(locked, masked, tuples, channel)
            else:
                revealed = validation.reveal_and_open(locked, of_a, tuples, channel)
            return list(validation.validate(revealed, tuples, BOUND, gate, channel).verdicts)
        if mode is Mode.MASKED:
            honest = validation.reveal(locked, masked, tuples, channel)
            opened, challenge = list(honest.opened), honest.challenge
            if deviating.shifts_b:
                opened[0] = deviating.shifted(opened[0])
        else:
            of_b = {client: x[client] - of_a[client] for client in CLIENTS}
            opened, challenge = deviating.opened(locked, of_b, tuples, channel)
        return deviating.verdicts(locked.active, opened, challenge, tuples, gate, channel)

    at_a, at_b = run_pair(party)
    assert at_a == at_b
    return at_a


def update_with(value: int) -> Any:
    x = np.array([900, -7, 12, 0, 4000, -1, 0, 3], dtype=np.int64)
    x[COORDINATE] = value
    return x


@pytest.mark.parametrize("value", [VALUE, 0, 2**15 - 1, 1])
def test_a_server_that_deviates_reads_a_coordinate_in_the_shares_form(gate: Gate, value: int) -> None:
    """Exactly, a bit a round, and nobody else is rejected for it."""
    read = 0
    for j in BITS:
        verdicts = answer([update_with(value), update_with(1)], gate, Mode.SHARES, j, Deviating(j, read))
        assert verdicts[1]
        read |= (not verdicts[0]) << j
    assert read == value


def test_a_negative_coordinate_is_read_with_its_sign(gate: Gate) -> None:
    """Two's complement, up to a bit that no coordinate within C has."""
    n_bits, read = 18, 0
    for j in range(n_bits):
        verdicts = answer([update_with(-VALUE), update_with(1)], gate, Mode.SHARES, j, Deviating(j, read))
        read |= (not verdicts[0]) << j
    assert read - (1 << n_bits) == -VALUE


@pytest.mark.parametrize(("shifts_b", "corrects"), list(product([True, False], repeat=2)))
def test_the_same_questions_say_nothing_of_a_coordinate_in_the_masked_form(
    gate: Gate, shifts_b: bool, corrects: bool
) -> None:
    """Two updates of one norm whose coordinates differ in all bits asked for get the same answers under the same masks.

    No answer depends on the coordinate, whatever of its doings B keeps up. It knows the first one's lower bits.
    """
    other = VALUE ^ 0x7FFF
    updates = update_with(VALUE), update_with(other)
    updates[0][0], updates[1][0] = other, VALUE  # so both norms are alike
    answers = []
    for x in updates:
        questions = [Deviating(j, VALUE % (1 << j), shifts_b=shifts_b, corrects=corrects) for j in BITS]
        answers.append(
            [answer([x, update_with(1)], gate, Mode.MASKED, j, q)[0] for j, q in zip(BITS, questions, strict=True)]
        )
    assert answers[0] == answers[1]
