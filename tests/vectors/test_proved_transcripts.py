"""The hybrids of mode `proved`, run: whole rounds whose every byte towards one server is the same for two updates.

Coins, seeds, salts and masks are fixed. In the second world the update is another. The proof of theorem 2 replaces some
values by random ones, which are coupled here. These are streams under the honest server's seeds (H1), digests under
salts (H3), masks (H5) and noise (H7). Failure means that a deviating server sees a byte that depends on the update.
"""

from __future__ import annotations

import hashlib
import random

import pytest

from tests.vectors.independent import digests, proved_messages, proved_server
from tests.vectors.independent.proved_client import Client
from tests.vectors.independent.proved_field import SHARE, field_stream
from tests.vectors.independent.proved_proof import Masks, prove
from tests.vectors.independent.proved_round import Parties
from tests.vectors.independent.proved_server import Server
from tests.vectors.independent.proved_simulator import masks_that_open_to
from tests.vectors.independent.proved_verifier import message, opened
from tests.vectors.independent.ring import RefusedError
from tests.vectors.proved_harness import AT, CASE, TASK, P, rows_of

X = ([3, 0, 0, 0, 0, 0], [0, -1, 2, 0, 0, 2])
SLOTS = {"ada": 4, "eve": 1}
"""The honest client's slot is held by A; the other client is corrupt, and sends the same in both worlds."""
EVE = [1, 0, -1, 0, 0, 0]


class World(Parties):
    """A round whose randomness is a function of names, with one payload changed by the deviating server."""

    @classmethod
    def begin(cls, masks, tamper):
        """Return parties. masks: the honest client's."""

        def draws(name):
            source = random.Random(name)
            return source.randbytes

        clients = {
            "ada": Client("ada", draws("ada"), lambda _: masks),
            "eve": Client("eve", draws("eve"), lambda sizes: drawn_masks("eve")),
        }
        world = cls(AT, SLOTS, tuple(Server(i, AT, SLOTS, draws(f"server {i}")) for i in (0, 1)), clients)
        world.tamper, world.calls = tamper, []
        return world

    def exchange(self, step, payloads):
        """Keep what was sent, after the deviating server changed its own."""
        party, name, at = self.tamper
        if name == step:
            changed = bytearray(payloads[party])
            changed[at] ^= 1
            payloads = [bytes(changed) if i == party else payload for i, payload in enumerate(payloads)]
        super().exchange(step, payloads)

    def run(self, x, noises):
        """Run the round until its end or its refusal, and return how it ended."""
        try:
            self.upload({"ada": x, "eve": EVE})
            self.calls.append(self.clients["ada"].again())
            self.lock()
            self.prove()
            self.calls.append(self.clients["ada"].again())
            valid = list(self.check())
            self.open(noises)
        except RefusedError as error:
            return error.kind
        return valid


def drawn_masks(name):
    source = random.Random(name)
    first, second = ([source.randrange(P) for _ in range(CASE.n_wires)] for _ in range(2))
    return Masks((tuple(first), tuple(second)), (source.randrange(P), source.randrange(P)))


def coupled(first):
    """Return masks of the second update that open to what the first one opened to, and both proofs.

    first: the world of the first update. Without a proof there, nothing has to be coupled.
    """
    honest, masks = first.servers[1 - first.tamper[0]], drawn_masks("ada")
    if "proof_digest" not in first.calls[-1].binding:
        return masks, None
    rows, others = rows_of(CASE, honest.challenge_seed), masks
    proof = prove(X[0], rows, CASE, masks)
    if SLOTS["ada"] in honest.proved:
        whole = message(0, [v % P for v in X[0]], proof, rows, honest.points, CASE)
        wanted = opened(whole, [0] * len(whole), CASE)
        others = masks_that_open_to(X[1], rows, wanted, honest.points, CASE)
    return others, (proof, prove(X[1], rows, CASE, others))


@pytest.mark.parametrize(
    "change",
    [
        ("none", 0),
        ("lock", 32 + 5),
        ("reveal", 9),
        ("proofs", 7),
        ("proofs", 32 + 40),
        ("verifier", 7 * CASE.message_elements + 9),
        ("accepted", 1),
    ],
)
@pytest.mark.parametrize("deviates", [0, 1])
def test_every_byte_towards_a_deviating_server_is_the_same_for_two_updates(deviates, change, monkeypatch):
    """A holds the honest client's slot: so 0 deviates as its holder, 1 as its seeded server."""
    if deviates == 1:
        replace_digests(monkeypatch)
    noises = [[7] * 6, [-5] * 6]
    first = World.begin(drawn_masks("ada"), (deviates, *change))
    ends = [first.run(X[0], noises)]
    masks, proofs = coupled(first)
    if deviates == 0:
        couple_streams(monkeypatch, proofs)
    second = World.begin(masks, (deviates, *change))
    if SLOTS["ada"] in first.servers[1 - deviates].valid:
        noises[1 - deviates] = [n + a - b for n, a, b in zip(noises[1 - deviates], *X, strict=True)]
    ends.append(second.run(X[1], noises))

    assert ends[0] == ends[1]
    assert first.sent == second.sent
    assert seen(first, deviates) == seen(second, deviates)


def seen(world, deviates):
    """Return the part of the honest client's calls that the deviating server gets: its own calls, or relays of them."""
    return [call if deviates == 0 else (call.binding, call.statement) for call in world.calls]


def replace_digests(monkeypatch):
    """H3: digests under the salts, which the deviating server never gets, do not depend on payloads."""

    def digest(payload, salt):
        return hashlib.sha256(salt + len(payload).to_bytes(4, "big")).digest()

    monkeypatch.setattr(proved_messages, "salted_digest", digest)


def couple_streams(monkeypatch, proofs):
    """H1: streams under the seed of the honest server, which the holder never gets, make up the difference."""

    def stream(seed, purpose, task, round, slot, n):
        plain = field_stream(seed, purpose, task, round, slot, n)
        if slot != SLOTS["ada"]:
            return plain
        both = X if purpose == SHARE else proofs
        return plain if both is None else [(v + b - a) % P for v, a, b in zip(plain, *both, strict=True)]

    monkeypatch.setattr(proved_messages, "field_stream", stream)
    monkeypatch.setattr(proved_server, "field_stream", stream)


def test_the_comparison_finds_digests_without_salts(monkeypatch):
    """Two such worlds where the digest is the payload's: the lock already differs at the seeded server."""
    monkeypatch.setattr(proved_messages, "salted_digest", lambda payload, salt: digests.sha256(payload))
    worlds = [World.begin(drawn_masks("ada"), (1, "none", 0)) for _ in X]
    for world, x in zip(worlds, X, strict=True):
        world.run(x, [[0] * 6] * 2)
    assert worlds[0].sent[0]["lock"] != worlds[1].sent[0]["lock"]
    assert worlds[0].round.task == TASK
