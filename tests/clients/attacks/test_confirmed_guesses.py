"""Nothing that one server holds tells whether a guess of an update is right.

Shares of an update are uniform, but what goes with them need not be. A digest of the other server's share is a function
of the update and of what this server knows. Whoever guesses the update computes what the other share would be, and
looks for it, and for its digest, in what it received. (The update of a client whose draw of records was empty is zero.)

Failure means: one server alone finds out which of two updates a client has uploaded.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator

import numpy as np
import pytest

from precad.clients.submission import RoundInvitation, Submission, make_submission
from precad.clients.upload.sending import parts_of
from precad.mpc import ring, sharing
from precad.mpc.prg import Label, Seed
from precad.mpc.ring import RingArray
from precad.protos.messages import convert
from tests.harness.harness import small_task

LABEL = Label("small-1", 3, "0")
SEEDS = (Seed(bytes(range(16))), Seed(bytes(range(16, 32))))
NO_RECORDS, ONE_RECORD = np.zeros(24, dtype=np.int64), np.arange(24, dtype=np.int64)
"""The uploads of a client with one record: the record not drawn, and drawn."""


def submission_of(update: RingArray, mode: str) -> Submission:
    seeds = SEEDS if mode == "masked" else None
    return make_submission(
        update,
        RoundInvitation(LABEL.task, LABEL.round, 0, bytes(32), seeds),
        task=small_task(mode=mode),
        client="alice",
    )


def view_of(submission: Submission, party: int) -> bytes:
    """Every byte that one server receives of an upload, from the client, by way of A, and at the lock."""

    async def messages() -> list[bytes]:
        return [part.SerializeToString() async for part in parts_of(submission, party)]

    received = asyncio.run(messages()) if party in submission.servers else [submission.payloads[0]]
    return b"".join([*received, submission.statement, convert.binding_digest(submission.binding)])


def own_share(submission: Submission, mode: str, party: int) -> RingArray:
    """Return [x]_P of this server, which it can expand or has received."""
    if mode == "masked":
        b = ring.from_bytes(submission.payloads[0], n_words=24)
        mask = np.empty(24, dtype=np.int64)
        sharing.mask_stream(SEEDS[party], LABEL).fill(mask)
        return b + mask if party == 0 else mask
    if party == 0:
        return sharing.expand_share(Seed(submission.payloads[0]), LABEL, 24)
    return ring.from_bytes(submission.payloads[1], n_words=24)


def traces_of(guess: RingArray, share: RingArray) -> Iterator[bytes]:
    """Yield what would show if the guess is right: the update and the other share, as such and digested."""
    for vector in (guess, guess - share):
        yield ring.to_bytes(vector)
        yield hashlib.sha256(ring.to_bytes(vector)).digest()


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize("mode", ["masked", "shares"])
def test_a_right_guess_leaves_no_trace_in_what_one_server_holds(mode: str, party: int) -> None:
    """(In the `shares` form A could tell by digest_b, before it was salted.)"""
    for update in (NO_RECORDS, ONE_RECORD):
        submission = submission_of(update, mode)
        view = view_of(submission, party)
        assert not any(trace in view for trace in traces_of(update, own_share(submission, mode, party)))


def test_the_same_shares_have_another_digest_each_time() -> None:
    """From fresh bytes of their own, which reach B alone."""
    bindings = []
    for first in (b"a", b"b"):
        randomness = iter([bytes(16), first * 32])  # the same seed of share A, another salt
        submission = make_submission(
            ONE_RECORD,
            RoundInvitation(LABEL.task, LABEL.round, 0, bytes(32), None),
            task=small_task(mode="shares"),
            client="alice",
            random_bytes=lambda n, drawn=randomness: next(drawn),  # type: ignore[misc]
        )
        assert first * 32 in view_of(submission, 1)
        assert first * 32 not in view_of(submission, 0)
        bindings.append(submission.binding)
    assert bindings[0].digest_a == bindings[1].digest_a
    assert bindings[0].digest_b != bindings[1].digest_b
