"""The check of a round's proofs over a channel, both servers in step: verdicts, sums, and threads.

Failure means: servers that release a sum of other clients than those that both found valid.
"""

import numpy as np
import pytest

from precad.mpc import joint_coin, ring
from precad.mpc.channel import run_pair
from precad.mpc.errors import ProofRefusedError, VerdictsDifferError
from precad.mpc.local.cpu_engine import CpuEngine
from precad.mpc.local.engines import CPU
from precad.mpc.locking import lock_list
from precad.mpc.proved import field, query, sums, validation
from precad.mpc.proved.check import ProofCheck
from precad.mpc.proved.sizes import ProofSizes
from tests.mpc.proved import test_proof_check
from tests.mpc.proved.test_proof_check import CHALLENGE, LABELS, SIZES, Round, vectors
from tests.mpc.proved.two_servers import ROUND


def both(round_, engines=(CPU, CPU), slots=LABELS):
    """Return what both servers find."""

    def at(channel):
        return validation.validate(round_.servers[channel.party], slots, channel, engines[channel.party])

    return run_pair(at)


@pytest.mark.parametrize("too_long", [(), (3,), (2, 4, 12), LABELS])
def test_both_servers_find_the_same_and_hold_the_sum_of_the_valid(too_long):
    round_ = Round(vectors(5, too_long))
    assert all(round_.send(slot) for slot in LABELS)
    a, b = both(round_)
    assert a.verdicts == b.verdicts == {slot: slot not in too_long for slot in LABELS}
    expected = sum((x for slot, x in round_.vectors.items() if slot not in too_long), np.zeros(SIZES.dim, np.int64))
    assert field.to_integers(field.add(a.share_sum, b.share_sum)).tolist() == expected.tolist()


def test_who_sent_no_proof_is_in_no_sum():
    """One slot of five: the others are as if they had not been drawn."""
    round_ = Round(vectors())
    assert round_.send(4)
    a, b = both(round_)
    assert a.verdicts == b.verdicts == {4: True}
    assert field.to_integers(field.add(a.share_sum, b.share_sum)).tolist() == round_.vectors[4].tolist()


def test_a_round_without_an_upload_has_a_sum_of_zeros():
    round_ = Round({})
    round_.servers = [ProofCheck(party, ROUND, SIZES, CHALLENGE, {}) for party in (0, 1)]
    for found in both(round_):
        assert found.verdicts == {}
        assert not found.share_sum.any()


def test_the_coin_of_the_points_is_fresh_and_drawn_when_no_proof_can_change(monkeypatch):
    """Drawn before, it might be known to a client whose proof is still to come: two roots of a false F would do."""
    round_, drawn, points = Round(vectors(2)), [], []
    assert all(round_.send(slot) for slot in LABELS[:2])
    prepare = validation.prepare
    monkeypatch.setattr(validation, "prepare", lambda found, sizes: points.append(found) or prepare(found, sizes))

    def at(channel):
        check = round_.servers[channel.party]

        def random_bytes(n):
            with pytest.raises(ProofRefusedError, match="late"):
                check.take_proof(LABELS[1 - channel.party], *round_.proof(LABELS[1 - channel.party]))
            drawn.append((n, bytes([channel.party + 1]) * n))
            return drawn[-1][1]

        return validation.validate(check, LABELS, channel, CPU, random_bytes)

    run_pair(at)
    assert [n for n, _ in drawn] == [joint_coin.COIN_BYTES] * 2
    coins = tuple(coin for _, coin in sorted(drawn))
    a, b = round_.servers
    proved = a.proved(b.close())
    elements = query.query_elements(query.query_seed(ROUND, coins, list(proved.values())), ROUND)
    assert points == [query.admissible_points(elements, SIZES)] * 2


def test_servers_that_differ_release_nothing(monkeypatch):
    """One that turns a verdict, as a fault would: neither has a sum to release."""
    round_ = Round(vectors(2))
    assert all(round_.send(slot) for slot in round_.vectors)
    check, honest = round_.servers[1], ProofCheck.verdicts

    def turned(self, theirs):
        found = honest(self, theirs)
        if self is check:
            self._verdicts = found = found | {2: False}
        return found

    summed = []
    monkeypatch.setattr(ProofCheck, "verdicts", turned)
    monkeypatch.setattr(ProofCheck, "accepted_sum", lambda self, *arguments: summed.append(self))
    with pytest.raises(VerdictsDifferError):
        both(round_, slots=(2, 3))
    assert summed == []


def test_a_server_on_threads_and_one_on_one_core_agree(monkeypatch):
    """A rejected client included; seven tiles of 64 coordinates, in three spans."""
    sizes = ProofSizes(1.0, 400, 8)
    monkeypatch.setattr(test_proof_check, "SIZES", sizes)
    monkeypatch.setattr(ring, "TILE", 64)
    monkeypatch.setattr(sums, "WORDS_PER_SPAN", 64)
    round_ = Round(vectors(5, (3,)))
    assert all(round_.send(slot) for slot in LABELS)
    a, b = both(round_, (CpuEngine(3), CpuEngine(1)))
    assert a.verdicts == b.verdicts
    expected = sum((x for slot, x in round_.vectors.items() if slot != 3), np.zeros(sizes.dim, np.int64))
    assert field.to_integers(field.add(a.share_sum, b.share_sum)).tolist() == expected.tolist()


def test_an_upload_that_a_server_lacks_or_holds_otherwise_is_not_locked():
    """Neither has carol's, so both say zeros; that is no agreement."""

    def lock(channel):
        ours = {"alice": b"a" * 32, "bob": bytes([1 + channel.party] * 32)} | (
            {"dora": b"d" * 32} if channel.party else {}
        )
        return lock_list(ours, ROUND, ("alice", "bob", "carol", "dora"), channel)

    assert [locked.active for locked in run_pair(lock)] == [("alice",)] * 2
