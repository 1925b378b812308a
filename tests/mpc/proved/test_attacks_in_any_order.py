"""Calls of a server's check in random order, with messages of which random bits are flipped.

Failure means: a server that opens a share twice, or of a proof that was not made for its own rows and its own lock.
"""

import contextlib
import random
from dataclasses import fields, replace

import numpy as np
import pytest

from precad.mpc.errors import MpcError, OutsideWindowError, ParameterError
from precad.mpc.prg import Label, Seed
from precad.mpc.proved import query
from precad.mpc.proved.client import OpenUpload, make_upload
from precad.mpc.proved.prover import ProofMasks
from precad.mpc.proved.submission import Binding, Relay, holder_of
from tests.mpc.proved.test_proof_check import CHALLENGE, LABELS, SIZES, Round, vectors
from tests.mpc.proved.two_servers import with_norm

OTHER = Seed(bytes(16))
POINTS = [query.prepare(points, SIZES) for points in ((12_345, 54_321), (12_345, 3))]


def flipped(message, chance):
    """Return a message of which one value has another bit or letter."""
    names = [field.name for field in fields(message)]
    name = chance.choice(names)
    value = getattr(message, name)
    if isinstance(value, bytes):
        changed = bytearray(value)
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        return replace(message, **{name: bytes(changed)})
    if isinstance(value, str):
        return replace(message, **{name: value[:-1] + chr(ord(value[-1]) ^ 1)})
    if isinstance(value, int):
        return replace(message, **{name: value + chance.choice([-1, 1])})
    return replace(message, **{name: flipped(value, chance)})


class Walk:
    """One server's round, and every call that anybody could make, right ones and wrong ones."""

    def __init__(self, made, sent, chance):
        self.round, self.sent, self.chance = made, sent, chance
        self.party = chance.randrange(2)
        self.server = Round(made.vectors).servers[self.party]
        self.n_opened, self.relayed = 0, set()

    def slot(self):
        return self.chance.choice([*self.round.vectors, *self.round.vectors, 77])

    def take_proof(self):
        """Only a proof for this server's own rows is taken."""
        slot, challenge = self.slot(), self.chance.choice([0, 0, 1])
        is_other = slot == 77 or self.chance.random() < 0.1
        message, payload = self.sent[challenge][self.chance.choice(LABELS[:3]) if is_other else slot]
        is_changed = self.chance.random() < 0.5
        if is_changed:
            changed = flipped(message, self.chance)
            is_changed = changed.statement == message.statement  # only the seeded server can tell otherwise
            message = changed
        self.server.take_proof(slot, message, payload)
        assert challenge == 0
        assert not is_changed
        assert holder_of(slot) == self.party

    def take_relay(self):
        """The first relay of a slot decides, and none that was changed counts."""
        slot = self.slot()
        if slot == 77:
            return
        message, _ = self.sent[self.chance.choice([0, 0, 1])][slot]
        relay = Relay(message.binding.round, message.binding.client, message.binding.proof_digest, message.statement)
        is_changed = self.chance.random() < 0.5
        counts = self.server.take_relay(slot, flipped(relay, self.chance) if is_changed else relay)
        if counts:
            assert not is_changed
            assert message is self.sent[0][slot][0]
            assert holder_of(slot) != self.party
            assert slot not in self.relayed
            self.relayed.add(slot)

    def close(self):
        if self.chance.random() < 0.3:
            self.server.close()

    def open(self):
        """At most once a round, and no slot but with the digest of its own proof for these rows."""
        digests = [self.sent[0][slot][0].binding.digest() for slot in self.round.vectors]
        if self.chance.random() < 0.5:
            digests[self.chance.randrange(len(digests))] = self.chance.choice([bytes(32), b"x" * 32])
        if self.chance.random() < 0.1:
            digests.pop()
        proved = self.server.proved(digests)
        if self.chance.random() < 0.2:
            proved = {**proved, self.slot(): self.chance.choice([bytes(32), *digests])}
        opened = self.server.open(proved, self.chance.choice(POINTS))
        self.n_opened += 1
        assert all(proved[slot] == self.sent[0][slot][0].binding.digest() for slot in opened)

    def finish(self):
        theirs = {slot: np.zeros((2, SIZES.opened_elements), dtype=np.uint64) for slot in self.relayed}
        verdicts = self.server.verdicts(theirs)
        self.server.accepted_sum(verdicts)


@pytest.mark.parametrize("seed", range(4))
def test_no_order_of_calls_opens_twice_or_opens_another_proof(seed):
    """Fifty walks of thirty calls each; whatever is refused is refused by an error of this package."""
    made, chance = Round(vectors(3)), random.Random(seed)
    sent = [{slot: made.proof(slot, challenge) for slot in LABELS[:3]} for challenge in (CHALLENGE, OTHER)]
    n_opened = 0
    for _ in range(50):
        walk = Walk(made, sent, chance)
        for _ in range(30):
            call = chance.choices(
                [walk.take_proof, walk.take_relay, walk.close, walk.open, walk.finish], [9, 9, 1, 2, 1]
            )
            with contextlib.suppress(MpcError):
                call[0]()
        assert walk.n_opened <= 1
        n_opened += walk.n_opened
    assert n_opened > 10


# The client


def uploaded(x, **changed):
    """Return a client that has sent its upload."""
    blank = Binding("task", 3, "alice", b"c" * 32, b"m" * 32, SIZES.dim, b"")
    sent = make_upload(x, blank, Seed(bytes(16)), Label("task", 3, "4"))
    assert isinstance(sent.binding, Binding)
    return OpenUpload(x, SIZES, sent.binding, Seed(bytes(16)), 4, **changed)


def test_an_update_that_was_sent_is_not_changed_any_more():
    """A proof of another vector than the upload opens to a function of their difference; so does a second payload."""
    x = with_norm(SIZES, SIZES.threshold).copy()
    uploaded(x)
    with pytest.raises(ValueError, match="read-only"):
        x += 1


@pytest.mark.parametrize("error", [ParameterError, OutsideWindowError, RuntimeError])
def test_a_client_whose_proof_fails_has_answered(error):
    """Whatever fails after the challenge, norm, window or generator: nothing is sent, and nothing is tried again."""

    def fail(sizes):
        raise error("no masks")

    client = uploaded(with_norm(SIZES, SIZES.threshold), draw_masks=fail)
    client.hear(0, b"c" * 16)
    with contextlib.suppress(error):
        assert client.hear(1, b"c" * 16) is None
    client._draw_masks = ProofMasks.draw
    assert [client.hear(party, challenge) for party in (0, 1) for challenge in (b"c" * 16, b"d" * 16)] == [None] * 4
    assert client.proof is None


def test_a_vector_that_is_too_long_sends_nothing():
    x = with_norm(SIZES, SIZES.threshold + 1)
    client = uploaded(x)
    client.hear(1, b"c" * 16)
    with pytest.raises(ParameterError, match="norm of at most clip_norm"):
        client.hear(0, b"c" * 16)
    assert client.proof is None
