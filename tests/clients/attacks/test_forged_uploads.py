"""Forgers' uploads are wrong in one thing, and in order in everything else, so that the one thing is what is refused.

`tests/integration/test_forgers.py` has what servers make of them.
"""

import hashlib
import hmac
import math

import numpy as np
import pytest

from precad.clients.attacks import InconsistentShares, Late, Replay, WrongLength
from precad.clients.errors import ArgumentError
from precad.clients.submission import RoundInvitation, make_submission
from precad.clients.training.conduct import Honest
from precad.mpc.parameters import DEALT_MODES, Mode
from precad.mpc.prg import Seed
from tests.harness.harness import small_task


def submission_of(mode, t=0):
    """Return a submission of six words, in round t."""
    seeds = (Seed(bytes(16)), Seed(bytes(range(16)))) if mode is Mode.MASKED else None
    task = small_task(dim=6, mode=mode)
    invitation = RoundInvitation("small", t, 0, bytes(32), seeds)
    return make_submission(np.arange(6), invitation, task=task, client="mallory")


@pytest.mark.parametrize("mode", DEALT_MODES)
def test_inconsistent_shares_are_in_order_for_the_server_that_gets_them(mode):
    """Its digest fits the payload; against the honest binding one bit is another, and nothing in B's statement says
    so."""
    honest = submission_of(mode)
    words = honest.servers[0]
    forged = InconsistentShares().on_upload(honest, words)
    flipped = [i for i, (x, y) in enumerate(zip(honest.payloads[words], forged.payloads[words], strict=True)) if x != y]
    assert flipped == [0]
    assert forged.statement == honest.statement
    assert forged.binding != honest.binding
    digest = hashlib.sha256(forged.payloads[words]).digest()
    if mode is Mode.MASKED:
        assert forged.binding.digest_a == digest
    else:
        assert forged.binding.digest_b == hmac.digest(honest.salt, digest, "sha256")
        assert InconsistentShares().on_upload(honest, 0) is honest


def test_a_replay_is_honest_once_and_a_round_behind_from_then_on():
    replay, rounds = Replay(), [submission_of(Mode.SHARES, t) for t in range(3)]
    uploaded = [[replay.on_upload(submission, server) for server in (1, 0)] for submission in rounds]
    assert [[sent.binding.round for sent in of_round] for of_round in uploaded] == [[0, 0], [0, 0], [1, 1]]


@pytest.mark.parametrize(("excess", "n_bytes"), [(-1, 40), (3, 72), (-6, 0)])
def test_a_wrong_length_has_that_many_words_more_and_a_digest_that_fits(excess, n_bytes):
    forged = WrongLength(excess=excess).on_upload(submission_of(Mode.MASKED), 0)
    assert len(forged.payloads[0]) == n_bytes
    assert forged.binding.digest_a == hashlib.sha256(forged.payloads[0]).digest()


def test_forgers_refuse_what_would_be_no_forgery():
    with pytest.raises(
        ArgumentError, match="excess: expected an integer other than 0, which is the right length, found 0"
    ):
        WrongLength(excess=0)
    for by_s in (0.0, math.inf, math.nan):
        with pytest.raises(ArgumentError, match="by_s: expected a finite number above 0"):
            Late(by_s=by_s)
    assert Late(by_s=0.5).delay_s(20.0) == 20.5
    assert Honest().delay_s(20.0) == 0.0
