"""One server deviates and tests a guess of a client's whole update: docs/explanation/threat-model.md, "The wire forms".

By another mask seed than dealt, which has <X, delta> added to the norm: the honest client refuses it. By offsets to its
own shares of the 64 projections: nothing hinders that, and the documents say so. Failure means: a client that takes
another seed, or documents that describe an attack that does not work.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from precad.clients.errors import ProtocolError
from precad.clients.submission import agree
from precad.mpc import ring, sharing, validation
from precad.mpc.channel import Channel, run_pair
from precad.mpc.gate import equality, top_bits
from precad.mpc.gate_names import make_gate
from precad.mpc.local.engines import CPU
from precad.mpc.local.rows import RowStreams
from precad.mpc.local.step import Masked, local_sums
from precad.mpc.locking import lock_list
from precad.mpc.norm_bound import WINDOW
from precad.mpc.prg import Seed, Stream
from precad.mpc.ring import RingArray
from precad.mpc.sharing import mask_stream
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, ServerTuples
from precad.protos.precad.v1 import aggregator_pb2
from tests.harness.harness import small_task

TASK = small_task(("alice", "bob"), dim=8, gate="native")
BOUND = TASK.norm_bound
GATE = make_gate("native")
SHAPE = BatchShape("small-1", 3, ("alice",), TASK.dim, top_bits.blocks(GATE, 1, BOUND.low_bits))
LABEL = SHAPE.label("alice")
UPDATE = np.array([900, -7, 12, 0, 4000, -1, 0, 3], dtype=np.int64)
FOREIGN = Seed(b"another seed....")

Words = Callable[[RingArray, ServerTuples, Seed], RingArray]
"""Server B's shares of the words to check, from b, its tuples and the challenge."""


def sides() -> tuple[ServerTuples, ServerTuples]:
    to_a, to_b = deal(SHAPE)
    return ServerTuples(0, SHAPE, to_a), ServerTuples(1, SHAPE, to_b)


def invitations(both: tuple[ServerTuples, ServerTuples]) -> list[aggregator_pb2.Invitation]:
    """Return what both servers, honest, tell alice."""
    return [
        aggregator_pb2.Invitation(
            task=SHAPE.task,
            round=SHAPE.round,
            dim=TASK.dim,
            model_digest=bytes(32),
            mask_seed=side.hand_out_mask_seed("alice").reveal(),
            peer_mask_seed_digest=side.peer_mask_seed_digest("alice"),
        )
        for side in both
    ]


def is_accepted(x: RingArray, seeds: tuple[Seed, Seed], both: tuple[ServerTuples, ServerTuples], of_b: Words) -> bool:
    """The verdict at honest A, where B makes its words up."""
    uploaded = {"alice": sharing.mask(x, seeds, LABEL)}

    def party(channel: Channel) -> bool:
        tuples = both[channel.party]
        revealed = validation.reveal(
            lock_list({"alice": bytes(32)}, SHAPE.label(), SHAPE.clients, channel), uploaded, tuples, channel
        )
        if channel.party == 0:
            return validation.validate(revealed, tuples, BOUND, GATE, channel).verdicts[0]
        words = of_b(uploaded["alice"], tuples, revealed.challenge)
        return equality.all_zero(
            top_bits.shares_of_zero(words, BOUND.low_bits, GATE, tuples.correlations(), channel),
            equality.hash_key(revealed.challenge, SHAPE.label()),
            tuples.equality_tuples(SHAPE.clients),
            channel,
        )[0]

    at_a, at_b = run_pair(party)
    assert at_a is at_b
    return at_a


def words_under(mask_share: Stream, b: RingArray, tuples: ServerTuples, challenge: Seed) -> RingArray:
    """Server B's, as the protocol says, with this half of the mask."""
    rows = RowStreams(challenge, SHAPE.label())
    sums = local_sums(1, [Masked(b, mask_share)], rows, TASK.dim, CPU)
    return validation.words_to_check(SHAPE.clients, sums, tuples, BOUND)


def expanded(stream: Stream) -> RingArray:
    words = np.empty(TASK.dim, dtype=np.int64)
    stream.fill(words)
    return words


def by_another_seed(guess: RingArray) -> Words:
    """The words' bits vanish iff 0 <= T - <X, X> + 2 <X - guess, delta>: by chance for 2^-28 of the wrong guesses."""

    def words(b: RingArray, tuples: ServerTuples, challenge: Seed) -> RingArray:
        made_up = words_under(mask_stream(FOREIGN, LABEL), b, tuples, challenge)
        own = expanded(tuples.mask_share("alice"))
        delta = expanded(mask_stream(FOREIGN, LABEL)) - own
        norm = int(tuples.squared_mask_shares(SHAPE.clients)[0]) + 2 * ring.dot(b, own)
        made_up[0, -1] = ring.centred(ring.dot(delta, delta) - norm - 2 * ring.dot(guess, delta))
        return made_up

    return words


def by_offsets(guess: RingArray) -> Words:
    """The bits vanish iff each even projection is at least the guess's, and each odd one at most."""

    def words(b: RingArray, tuples: ServerTuples, challenge: Seed) -> RingArray:
        made_up = words_under(tuples.mask_share("alice"), b, tuples, challenge)
        as_a_share = Masked(guess - expanded(mask_stream(FOREIGN, LABEL)), mask_stream(FOREIGN, LABEL))
        of_guess = local_sums(0, [as_a_share], RowStreams(challenge, SHAPE.label()), TASK.dim, CPU).rows[0]
        made_up[0, :-1] -= of_guess[: BOUND.n_rows] + WINDOW
        made_up[0, 1:-1:2] += 2 * WINDOW - 1
        return made_up

    return words


def guesses() -> list[RingArray]:
    """The update, and what differs from it by one step of the grid in one coordinate."""
    steps = np.vstack([np.zeros((1, TASK.dim), dtype=np.int64), np.eye(TASK.dim, dtype=np.int64)])
    return list(UPDATE + steps)


def test_a_client_that_took_another_mask_seed_would_confirm_a_guess_and_so_it_refuses() -> None:
    """Compare what two invitations would give B with what an honest client makes of them."""
    answers = []
    for guess in guesses():
        both = sides()
        from_a, from_b = invitations(both)
        from_b.mask_seed = FOREIGN.reveal()
        with pytest.raises(
            ProtocolError, match="expected from aggregator-b the seed that aggregator-a says"
        ) as refusal:
            agree(from_a, from_b, TASK)
        for secret in (from_a.mask_seed, from_b.mask_seed):
            assert secret.hex() not in str(refusal.value)
            assert repr(secret) not in str(refusal.value)
        answers.append(is_accepted(UPDATE, (Seed(from_a.mask_seed), FOREIGN), both, by_another_seed(guess)))
    assert answers == [True] + [False] * TASK.dim


def test_the_same_words_confirm_nothing_under_the_seeds_that_were_dealt() -> None:
    """B makes the same words up for a client that took part: right or wrong, the guess gets no answer."""
    answers = []
    for guess in guesses():
        both = sides()
        agreed = agree(*invitations(both), TASK)
        assert agreed.mask_seeds is not None
        answers.append(is_accepted(UPDATE, agreed.mask_seeds, both, by_another_seed(guess)))
    assert answers == [False] * (1 + TASK.dim)


def test_offsets_to_the_projections_still_confirm_a_guess_as_the_documents_say() -> None:
    """One counted question under the seeds that were dealt. Who deviates learns no more by it than that bit."""
    answers = []
    for guess in guesses():
        both = sides()
        agreed = agree(*invitations(both), TASK)
        assert agreed.mask_seeds is not None
        answers.append(is_accepted(UPDATE, agreed.mask_seeds, both, by_offsets(guess)))
    assert answers == [True] + [False] * TASK.dim


@pytest.mark.parametrize("server", [0, 1])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mask_seed", FOREIGN.reveal()),
        ("mask_seed", b""),
        ("mask_seed", bytes(32)),
        ("peer_mask_seed_digest", b""),
        ("peer_mask_seed_digest", bytes(32)),
        ("peer_mask_seed_digest", bytes(31)),
    ],
)
def test_whatever_one_server_says_of_the_seeds_it_gets_no_upload(server: int, name: str, value: bytes) -> None:
    """A and B alike. Without the change the same two invitations are agreed on."""
    both = invitations(sides())
    assert agree(*both, TASK).mask_seeds == tuple(Seed(one.mask_seed) for one in both)
    setattr(both[server], name, value)
    with pytest.raises(ProtocolError, match=r"^(peer_mask_seed_digest|mask_seed): expected .* aggregator-[ab]"):
        agree(*both, TASK)


def test_a_server_that_gives_the_others_digest_back_is_refused() -> None:
    """Digests swapped, and both servers with one seed."""
    from_a, from_b = invitations(sides())
    from_a.peer_mask_seed_digest, from_b.peer_mask_seed_digest = (
        from_b.peer_mask_seed_digest,
        from_a.peer_mask_seed_digest,
    )
    with pytest.raises(ProtocolError, match="mask_seed: expected"):
        agree(from_a, from_b, TASK)
    from_a, from_b = invitations(sides())
    from_b.mask_seed = from_a.mask_seed
    with pytest.raises(ProtocolError, match="expected from aggregator-b"):
        agree(from_a, from_b, TASK)
