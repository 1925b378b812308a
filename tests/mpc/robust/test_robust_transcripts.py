"""Views of one server of propose-test-release on shares: lengths, and whether two inputs of equal outputs differ.

An adversary gets every bit that its server sent and received, and the dealt bits u that it holds shares of. It is told
of half of the rounds which input they had, and guesses for the others. All statistics are on fixed randomness
(`tests.mpc.fixed_randomness`); correct code would fail on one in 10^6 choices of it.
"""

from __future__ import annotations

import numpy as np
import pytest

from precad.mpc.gate_names import make_gate
from precad.mpc.norm_bound import NormBound
from precad.mpc.robust import trimming
from tests.mpc.fixed_randomness import random_bytes_of
from tests.mpc.robust.distinguisher import N_ROUNDS, bits, tells_apart
from tests.mpc.robust.robust_rounds import Round, in_the_clear, run, trim

BOUND = NormBound(1.0, 3, 6)
STEP = 1 << 20


def vectors(*rows):
    return np.array(rows, dtype=np.int64)


# Six clients, F = 2, tau = 1/2 (32 steps of the grid). In each pair accepted clients, noisy margin and sum are equal.
PASSED = (
    vectors([60, 0, 0], [0, 50, 0], [1, 2, 3], [4, 5, 6], [-3, 0, 7], [0, 0, 0]),
    vectors([5, 7, 16], [0, 0, 0], [0, 0, 0], [0, 0, -63], [-3, 0, 0], [0, 0, 61]),
)
FAILED = (
    vectors([60, 0, 0], [0, 50, 0], [1, 2, 3], [4, 5, 6], [-3, 0, 7], [0, 0, 0]),
    vectors([10, 10, 0], [10, 10, 0], [10, 10, 0], [10, 10, 0], [22, 17, 10], [0, 0, 6]),
)


def worlds(has_passed: bool, party: int) -> tuple[Round, Round]:
    """Equal outputs. In the second pair k differs, 2 and 0: the other server's draw makes the margins equal."""
    pair = PASSED if has_passed else FAILED
    threshold = -STEP if has_passed else 10 * STEP
    draws = ((0, 0), (0, 0)) if has_passed else ((2 * STEP, 0), (0, 0))
    noise = np.arange(12, dtype=np.int64).reshape(2, 2, 3) * 1000
    own_first = [pair_of if party == 1 else pair_of[::-1] for pair_of in draws]
    return tuple(
        Round(x, BOUND, 0.5, 2, threshold, margin_noise=draw, sum_noise=noise)
        for x, draw in zip(pair, own_first, strict=True)
    )


def view(outcomes, party: int):
    """(features,): every bit of the test, the trim and the sum's opening, sent, received and XORed; and the bits u."""
    sent, received = outcomes[party].sent, outcomes[1 - party].sent
    assert [label for label, _ in sent] == [label for label, _ in received]
    robust = [(bits(a), bits(b)) for (label, a), (_, b) in zip(sent, received, strict=True) if "robust" in label]
    robust.append((bits(sent[-1][1]), bits(received[-1][1])))
    own = np.array(outcomes[party].own_bits, dtype=np.uint8)
    keep = [np.frombuffer(a, dtype=np.uint8) ^ np.frombuffer(b, dtype=np.uint8) for a, b in _of_step(sent, received)]
    known = [np.unpackbits(plane, count=own.size, bitorder="little") ^ own for plane in keep]
    return np.concatenate([own, *known, *(part for a, b in robust for part in (a, b, a ^ b))]).astype(np.float64)


def _of_step(sent, received, name="robust/trim/keep"):
    return [(a, b) for (label, a), (_, b) in zip(sent, received, strict=True) if label == name]


def views(it: Round, name: str, play=run):
    """Both servers' views of the same rounds, (rounds, features) each."""
    gate = make_gate("native")
    outcomes = [play(it, gate, random_bytes_of(f"{name}/{i}")) for i in range(N_ROUNDS)]
    return tuple(np.array([view(both, party) for both in outcomes]) for party in (0, 1))


@pytest.mark.parametrize(("has_passed", "parties"), [(False, (0,)), (False, (1,)), (True, (0, 1))])
def test_two_inputs_of_equal_outputs_look_alike_to_either_server(has_passed, parties):
    """Other vectors are long, in other slots, and of other norms; after a failed test more of them than tau C.

    Where nobody draws on the margin, the same rounds show what either server sees.
    """
    first, second = worlds(has_passed, parties[0])
    assert len({tuple(it.margin_noise for it in worlds(has_passed, party)) for party in parties}) == 1
    assert in_the_clear(first)[:3] == in_the_clear(second)[:3]
    assert in_the_clear(first)[3] == in_the_clear(second)[3]
    assert in_the_clear(first)[2] is has_passed
    found = views(first, f"first/{parties[0]}"), views(second, f"second/{parties[0]}")
    for party in parties:
        assert not tells_apart(*(one[party] for one in found))


def test_two_inputs_of_equal_sums_look_alike_without_a_test():
    """As after a passed test, in rounds of which nothing but the sum is opened."""
    first, second = worlds(True, 0)
    found = [views(it, f"untested/{i}", trim) for i, it in enumerate((first, second))]
    for party in (0, 1):
        assert not tells_apart(*(one[party] for one in found))


def test_the_adversary_finds_a_keep_bit_that_is_not_masked(monkeypatch):
    """A control: with u = 0 everywhere what is opened is who is kept, and the same adversary says so."""
    monkeypatch.setattr("precad.mpc.tuples.held.trim_bit", lambda key, label: 0)
    monkeypatch.setattr("precad.mpc.tuples.dealt.trim_bit", lambda key, label: 0)
    first, second = worlds(True, 0)
    assert in_the_clear(first)[3] == run(first, make_gate("native"))[0].total.tolist()
    assert tells_apart(views(first, "control/1")[0], views(second, "control/2")[0])


def test_the_adversary_finds_ranks_that_are_opened_behind_one_bit(monkeypatch):
    """A control: a server that adds its ranks' shares to the opening of the sum is found, too."""
    honest = trimming.trimmed_share_sum

    def leaking(it, channel):
        share = honest(it, channel)
        share[:1] += 64 * it.accepted.squared_norms[:1]
        return share

    monkeypatch.setattr("tests.mpc.robust.robust_rounds.trimmed_share_sum", leaking)
    assert tells_apart(*(views(it, f"leak/{i}")[0] for i, it in enumerate(worlds(True, 0))))


@pytest.mark.parametrize("has_passed", [False, True])
def test_messages_have_lengths_and_labels_that_depend_on_public_values_alone(has_passed, gate):
    """For given numbers of clients and F, and the verdict: both inputs, both servers, and any other vectors."""
    shapes = set()
    others = [Round(x, BOUND, 0.5, 2, (-100 if has_passed else 100) * STEP) for x in (0 * PASSED[0], PASSED[1] // 9)]
    for it in (*worlds(has_passed, 0), *others):
        for outcome in run(it, gate):
            shapes.add(tuple((label, len(payload)) for label, payload in outcome.sent))
    assert len(shapes) == 1
    labels = [label for label, _ in shapes.pop()]
    assert any("robust/trim" in label for label in labels) is has_passed
    n_gate = {"crypten": 7, "native": 2}[gate.name]
    of_test, of_trim = 2 * (n_gate + 1) + 2, 2 * (n_gate + 1)
    assert sum("robust/" in label for label in labels) == of_test + (of_trim if has_passed else 0)
