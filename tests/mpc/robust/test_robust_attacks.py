"""Attacks on propose-test-release on shares: clients that deviate, changed messages, correlations used twice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from precad.mpc.channel import run_pair
from precad.mpc.errors import MalformedMessageError, MpcError, ParameterError, PeerMismatchError, TupleReusedError
from precad.mpc.gate_names import make_gate
from precad.mpc.norm_bound import NormBound
from precad.mpc.parameters import DEALT_MODES
from precad.mpc.robust.margin import open_noisy_margin
from precad.mpc.robust.proposal import MAX_CLIENTS, Accepted, Proposal, TrimmedRound, blocks
from precad.mpc.robust.trimming import trimmed_share_sum
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, ServerTuples
from tests.mpc.attack_vectors import FRAC_BITS, cases
from tests.mpc.recording import RecordingChannel
from tests.mpc.robust.robust_rounds import Round, in_the_clear, run, shape_of

STEP = 1 << 20
GATE = make_gate("native")


def honest(dim: int, n: int = 6):
    rng = np.random.default_rng(dim)
    x = rng.standard_normal((n, dim))
    lengths = np.linspace(0.05, 0.98, n)[:, None]
    return np.trunc(x / np.linalg.norm(x, axis=1, keepdims=True) * lengths * 2**FRAC_BITS).astype(np.int64)


@pytest.mark.parametrize("mode", DEALT_MODES)
@pytest.mark.parametrize("has_passed", [False, True])
def test_a_client_that_deviates_changes_nothing_but_its_own_vector(mode, has_passed):
    """Every class of attack vectors in one slot: the round is that of the mechanism with this vector, or without it."""
    bound = NormBound(1.0, 5, FRAC_BITS)
    for case in cases(5, 1.0):
        attack = np.asarray(case.vector, dtype=np.int64)
        it = Round(
            np.vstack([honest(5), attack]), bound, 0.5, 2, (-100 if has_passed else 100) * STEP, mode=mode,
            margin_noise=(3, -5),
        )  # fmt: skip
        accepted, noisy, _, total = in_the_clear(it)
        assert (6 in accepted) is case.is_within
        for outcome in run(it, GATE):
            assert (outcome.accepted, outcome.noisy_margin) == (tuple(f"c{i:03d}" for i in accepted), noisy)
            assert outcome.total.tolist() == total


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_norms_at_the_proposal_and_ties_at_the_cut(over):
    """A norm of tau C is not above it, one step more is; of equal norms the earlier slots are kept."""
    bound = NormBound(1.0, 2, 6)
    x = np.array([[32 + over, 0], [0, 32 + over], [-32 - over, 0], [1, 0], [0, 2]], dtype=np.int64)
    it = Round(x, bound, 0.5, 2, -100 * STEP)
    _, noisy, _, total = in_the_clear(it)
    assert noisy == (0 if over > 0 else 2) * STEP
    assert total == [32 + over + 1, 2]
    for outcome in run(it, GATE):
        assert (outcome.noisy_margin, outcome.total.tolist()) == (noisy, total)


class Tampering(RecordingChannel):
    """Changes what its party sends in the step at a place."""

    step, change, party_at_fault = 0, staticmethod(lambda payload: payload), 0

    def exchange(self, label: str, payload: bytes, at_most: int | None = None) -> bytes:
        if "robust/" in label:
            self.n_steps = getattr(self, "n_steps", 0) + 1
            if self.n_steps - 1 == self.step and self.party == self.party_at_fault:
                payload = self.change(payload)
        return super().exchange(label, payload, at_most)


ROUND = Round(
    honest(5), NormBound(1.0, 5, FRAC_BITS), 0.5, 2, -100 * STEP, sum_noise=np.zeros((2, 2, 5), dtype=np.int64)
)
N_STEPS = sum("robust/" in label for label, _ in run(ROUND, GATE)[0].sent)


def tampered(step: int, party: int, change):
    return type("T", (Tampering,), {"step": step, "party_at_fault": party, "change": staticmethod(change)})


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize(
    "change", [lambda p: p[:-1], lambda p: p + b"\0", lambda p: b""], ids=["short", "long", "none"]
)
def test_a_message_of_another_length_ends_the_round(change, party):
    for step in range(N_STEPS):
        with pytest.raises(MalformedMessageError, match="bytes"):
            run(ROUND, GATE, wrap=tampered(step, party, change))


@pytest.mark.parametrize("party", [0, 1])
def test_a_changed_margin_is_found_before_a_sum_is_opened(party):
    """Any changed bit in the last two messages of the test leaves the servers with margins that differ."""
    labels = [label for label, _ in run(ROUND, GATE)[0].sent if "robust/" in label]
    for step in (labels.index("robust/test/margin"), labels.index("robust/test/compare")):
        for bit in (1, 1 << 7):
            change = lambda p, bit=bit: p[:-1] + bytes([p[-1] ^ bit])  # noqa: E731
            with pytest.raises(PeerMismatchError, match="noisy margin"):
                run(ROUND, GATE, wrap=tampered(step, party, change))


def test_a_changed_bit_in_any_message_ends_the_round_or_gives_both_servers_one_sum():
    """No server is left with a result of its own: the sum is opened to both, or to nobody."""
    for step in range(N_STEPS):
        try:
            a, b = run(ROUND, GATE, wrap=tampered(step, 0, lambda p: bytes([p[0] ^ 1]) + p[1:]))
        except MpcError:
            continue
        assert a.total.tolist() == b.total.tolist()
        assert a.noisy_margin == b.noisy_margin


def a_side(n: int = 3, trims: bool = True) -> tuple[BatchShape, ServerTuples, Accepted]:
    bound = NormBound(1.0, 2, 6)
    shape = replace(shape_of(n, bound, GATE, Proposal(bound, 0.5)), trims=trims)
    tuples = ServerTuples(0, shape, deal(shape)[0])
    zeros = np.zeros(2, dtype=np.int64)
    return shape, tuples, Accepted(shape.clients, (zeros,) * n, np.zeros(n, dtype=np.int64), zeros)


def test_correlations_serve_once_and_in_their_order():
    """Before the check, after a trim, or without trim tuples nothing leaves."""
    bound = NormBound(1.0, 2, 6)
    _, tuples, accepted = a_side()
    it = TrimmedRound(accepted, Proposal(bound, 0.5), 1, tuples, GATE)
    with pytest.raises(ParameterError, match="the check of round 1 comes first"):
        run_pair(lambda channel: open_noisy_margin(it, 0, channel))
    tuples.trim_tuples(accepted.clients)
    with pytest.raises(TupleReusedError, match="no trim tuples left"):
        run_pair(lambda channel: trimmed_share_sum(it, channel))
    _, without, _ = a_side(trims=False)
    with pytest.raises(TupleReusedError, match="no trim tuples left"):
        without.trim_tuples(("c000",))


def test_parameters_are_checked():
    bound = NormBound(1.0, 2, 6)
    for tau in (0.0, 1.0, -0.5, float("nan")):
        with pytest.raises(ParameterError, match=r"tau: expected a number in \(0, 1\)"):
            Proposal(bound, tau)
    with pytest.raises(ParameterError, match=r"frac_bits: expected at least 1, found tau = 0\.01"):
        Proposal(bound, 0.01)
    with pytest.raises(ParameterError, match="trim_count: expected at least 0, found -1"):
        TrimmedRound(a_side()[2], Proposal(bound, 0.5), -1, a_side()[1], GATE)
    with pytest.raises(ParameterError, match=f"clients of a round: expected at most {MAX_CLIENTS} with a trimmed sum"):
        blocks(GATE, MAX_CLIENTS + 1, Proposal(bound, 0.5))


def test_what_is_dealt_multiplies_masks_by_a_bit_that_nobody_knows():
    """u is a fair coin, its shares agree in both forms, and the products are u a; the parts say nothing of it."""
    bound = NormBound(1.0, 3, 6)
    shape = shape_of(200, bound, GATE, Proposal(bound, 0.5))
    dealt = deal(shape)
    sides = [ServerTuples(party, shape, dealt[party]) for party in (0, 1)]
    ours, theirs = (side.trim_tuples(shape.clients) for side in sides)
    drawn = []
    for client, a, b in zip(shape.clients, ours, theirs, strict=True):
        u = a.bit ^ b.bit
        masks = []
        for side in sides:
            masks.append(np.empty(3, dtype=np.int64))
            side.mask_share(client).fill(masks[-1])
        product = np.empty(3, dtype=np.int64)
        a.product.fill(product)
        assert (a.share + b.share - u) % 2**64 == 0
        assert (product + b.product).tolist() == (u * (masks[0] + masks[1])).tolist()
        drawn.append(u)
    assert 60 < sum(drawn) < 140  # of 200, six standard deviations and 2^-30 of seeds
    assert "TrimTuple(" not in repr(ours[0])
