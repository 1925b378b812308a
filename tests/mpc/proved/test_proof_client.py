"""The client's rules C0 to C2, each with servers that break it: the client sends nothing more.

Failure means: a holder that reads an update, or a pair of proofs whose difference is linear in it.
"""

from dataclasses import replace

import numpy as np
import pytest

from precad.mpc.errors import ParameterError, ProofRefusedError, ShareSeedReusedError
from precad.mpc.local.rows import RowStreams
from precad.mpc.prg import Label, Seed
from precad.mpc.proved import prover
from precad.mpc.proved.client import Invitation, OpenUpload, agree, make_upload
from precad.mpc.proved.prover import ProofMasks
from precad.mpc.proved.sizes import ProofSizes
from precad.mpc.proved.submission import Binding, ProofBinding, ShareSeeds, seeded_of
from tests.mpc.fixed_randomness import random_bytes_of
from tests.mpc.proved.two_servers import with_norm

SIZES = ProofSizes(1.0, 20, 8)
SEED, CHALLENGE, OTHER = bytes(range(16)), b"c" * 16, b"d" * 16
SLOT = 4


def invitations(slot=SLOT):
    """Return those of A and B for one slot: the seeded server's has the seed."""
    told = Invitation("task", 3, slot, SIZES.dim, b"m" * 32, 2, b"")
    found = [told, told]
    found[seeded_of(slot)] = replace(told, share_seed=SEED)
    return found[0], found[1]


@pytest.mark.parametrize("slot", [4, 5])
def test_the_seed_comes_from_the_seeded_server(slot):
    assert agree(invitations(slot), SIZES.dim) == Seed(SEED)


@pytest.mark.parametrize(
    "of_b",
    [
        {"task": "other"},
        {"round": 4},
        {"slot": 6},
        {"dim": 21},
        {"model_digest": bytes(32)},
        {"n_committed": 3},
        {"share_seed": b""},
        {"share_seed": SEED[1:]},
    ],
)
def test_servers_that_differ_or_give_no_seed_are_refused(of_b):
    a, b = invitations()
    with pytest.raises(ProofRefusedError) as refused:
        agree((a, replace(b, **of_b)), SIZES.dim)
    assert refused.value.reason == "invitation"


def test_a_seed_from_the_holder_is_refused():
    """From it alone, beside the other's, or the same one: the holder would read the update."""
    a, b = invitations()
    for pair in ((replace(a, share_seed=SEED), b), (b, a), (replace(a, share_seed=OTHER), replace(b, share_seed=b""))):
        with pytest.raises(ProofRefusedError, match="share_seed: expected 16 bytes from the seeded server alone"):
            agree(pair, SIZES.dim)
    with pytest.raises(ProofRefusedError, match="and 21 coordinates"):
        agree((a, b), 21)


def test_a_share_seed_is_given_once_by_the_seeded_server():
    """S0: not again to a client that comes back, nor once it is erased, and never for a slot that this server holds."""
    seeds = ShareSeeds(1, random_bytes_of("seeds"))
    first = seeds.give(2)
    assert seeds.give(4) != first == seeds.given(2)
    assert seeds.given(6) is None
    for slot in (2, 3):
        with pytest.raises(ParameterError, match=f"slot {slot}: expected one share seed"):
            seeds.give(slot)
    assert repr(seeds) == "ShareSeeds(2 given)"
    seeds.forget()
    assert seeds.given(2) is None
    with pytest.raises(ParameterError, match="slot 2: expected one share seed"):
        seeds.give(2)


def opened(x=None):
    """Return a client that has uploaded."""
    x = with_norm(SIZES, SIZES.threshold) if x is None else x
    blank = Binding("task", 3, "alice", b"c" * 32, b"m" * 32, SIZES.dim, b"")
    sent = make_upload(x, blank, Seed(SEED), Label("task", 3, str(SLOT)))
    assert isinstance(sent.binding, Binding)
    return OpenUpload(x, SIZES, sent.binding, Seed(SEED), SLOT)


def test_a_share_seed_serves_one_upload_and_one_proof():
    """C1, also over two objects: each would answer once, and both together show the difference of two vectors."""
    seed, label = Seed(SEED), Label("task", 3, str(SLOT))
    x, other = with_norm(SIZES, SIZES.threshold), with_norm(SIZES, 1)
    blank = Binding("task", 3, "alice", b"c" * 32, b"m" * 32, SIZES.dim, b"")
    binding = make_upload(x, blank, seed, label).binding
    assert isinstance(binding, Binding)
    OpenUpload(x, SIZES, binding, seed, SLOT)
    with pytest.raises(ShareSeedReusedError, match="share_seed: expected one upload under it, found a second"):
        make_upload(other, blank, seed, label)
    with pytest.raises(ShareSeedReusedError, match="share_seed: expected one proof under it, found a second"):
        OpenUpload(x, SIZES, binding, seed, SLOT)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_proof_leaves_when_both_servers_have_sent_one_challenge(order):
    client = opened()
    assert client.hear(order[0], CHALLENGE) is None
    assert client.hear(order[0], CHALLENGE) is None  # said twice by one server
    sent = client.hear(order[1], CHALLENGE)
    assert sent is not None
    binding = sent[0].binding
    assert isinstance(binding, ProofBinding)
    assert (binding.challenge, binding.client) == (CHALLENGE, "alice")
    assert len(sent[1]) == SIZES.proof_bytes
    assert client.proof is sent  # to be sent again as it is


@pytest.mark.parametrize(
    "heard",
    [
        [(0, CHALLENGE), (1, OTHER), (1, CHALLENGE), (0, OTHER)],
        [(0, CHALLENGE), (0, OTHER), (1, OTHER), (1, CHALLENGE)],
        [(0, CHALLENGE), (0, OTHER), (1, CHALLENGE)],
        [(0, CHALLENGE[1:]), (1, CHALLENGE), (0, CHALLENGE)],
        [(0, b""), (1, b""), (0, CHALLENGE), (1, CHALLENGE)],
    ],
)
def test_other_challenges_keep_it_silent_for_the_round(heard):
    client = opened()
    assert [client.hear(party, challenge) for party, challenge in heard] == [None] * len(heard)
    assert client.proof is None


def test_what_is_computed_before_the_challenge_changes_no_byte_and_is_used_once():
    """C1, C3: the masks are drawn once, whenever that is, and serve one proof of this vector alone."""
    sent, drawn = [], []
    for is_prepared in (False, True):
        random_bytes = random_bytes_of("masks and salts")

        def draw(sizes, random_bytes=random_bytes):
            drawn.append(ProofMasks.draw(sizes, random_bytes))
            return drawn[-1]

        x, blank = with_norm(SIZES, SIZES.threshold), Binding("task", 3, "alice", b"c" * 32, b"m" * 32, SIZES.dim, b"")
        seed = Seed(SEED)
        binding = make_upload(x, blank, seed, Label("task", 3, str(SLOT)), random_bytes_of("upload")).binding
        client = OpenUpload(x, SIZES, binding, seed, SLOT, draw, random_bytes)
        for _ in range(2 * is_prepared):
            client.prepare()
        client.hear(0, CHALLENGE)
        sent.append(client.hear(1, CHALLENGE))
        client.prepare()
        assert client.answer() is None
    assert sent[0] == sent[1] is not None
    assert len(drawn) == 2

    other, rows = with_norm(SIZES, 1), RowStreams(Seed(CHALLENGE), Label("task", 3))
    ahead = drawn[0].ahead(x, SIZES)
    assert np.array_equal(prover.prove(other, rows, SIZES, ahead), prover.prove(other, rows, SIZES, drawn[0]))
    assert not np.array_equal(prover.prove(x, rows, SIZES, ahead), prover.prove(other, rows, SIZES, ahead))


def test_masks_serve_one_answer_even_where_a_second_challenge_came_to_be_agreed_on():
    """C1, behind C2: two proofs under the same masks, for two challenges, open a linear function of the update."""
    x, seed, drawn = with_norm(SIZES, SIZES.threshold), Seed(SEED), []
    blank = Binding("task", 3, "alice", b"c" * 32, b"m" * 32, SIZES.dim, b"")
    binding = make_upload(x, blank, seed, Label("task", 3, str(SLOT))).binding

    def draw(sizes):
        drawn.append(ProofMasks.draw(sizes))
        return drawn[-1]

    client = OpenUpload(x, SIZES, binding, seed, SLOT, draw)
    client.prepare()
    client.hear(0, CHALLENGE)
    assert client.hear(1, CHALLENGE) is not None
    assert len(drawn) == 1
    client._agreed = Seed(OTHER)
    assert client.answer() is not None
    assert len(drawn) == 2


def test_it_answers_one_challenge():
    client = opened()
    client.hear(0, CHALLENGE)
    sent = client.hear(1, CHALLENGE)
    assert [client.hear(party, challenge) for party in (0, 1) for challenge in (CHALLENGE, OTHER)] == [None] * 4
    assert client.proof is sent


def test_an_answer_needs_both_servers_and_is_made_once():
    """C2, in the two steps in which a session takes it: who asks too early or twice gets nothing."""
    client = opened()
    assert client.answer() is None
    assert not client.agrees(0, CHALLENGE)
    assert client.answer() is None
    assert client.agrees(1, CHALLENGE)
    assert not client.agrees(1, CHALLENGE)
    sent = client.answer()
    assert sent is not None
    assert client.answer() is None
    assert client.proof is sent


def test_two_uploads_of_one_update_share_nothing():
    """C3: salts and masks are fresh, so digests, statements and proofs differ."""
    x = np.zeros(SIZES.dim, dtype=np.int64)
    proofs = []
    for _ in range(2):
        client = opened(x)
        client.hear(0, CHALLENGE)
        proofs.append(client.hear(1, CHALLENGE))
    (first, words), (second, others) = proofs
    assert first.salt != second.salt
    assert first.statement != second.statement
    assert words != others


def test_a_client_outside_a_window_is_silent(monkeypatch):
    """With probability 2^-40; here the window is one."""
    monkeypatch.setattr(ProofSizes, "row_bits", 1)
    client = opened()
    client.hear(0, CHALLENGE)
    assert client.hear(1, CHALLENGE) is None
    assert client.hear(1, OTHER) is None
