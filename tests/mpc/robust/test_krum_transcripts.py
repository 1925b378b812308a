"""Views of one server of Krum on shares: lengths, and whether two inputs of equal outputs differ.

An adversary gets every bit that its server sent and received behind the check, and the dealt bits u that it holds
shares of. `tests.mpc.robust.distinguisher` has the adversary and its rate of false alarms.
"""

from __future__ import annotations

import numpy as np
import pytest

from precad.mpc.gate_names import make_gate
from precad.mpc.norm_bound import NormBound
from precad.mpc.robust import krum
from precad.mpc.robust.krum import Krum
from precad.mpc.tuples import correlations
from tests.mpc.fixed_randomness import random_bytes_of
from tests.mpc.robust.distinguisher import N_ROUNDS, bits, tells_apart
from tests.mpc.robust.krum_rounds import Round, in_the_clear, run

BOUND = NormBound(1.0, 2, 6)


def rounds(n_kept: int, *inputs: list[list[int]]) -> tuple[Round, ...]:
    return tuple(Round(np.array(rows, dtype=np.int64), Krum(BOUND, 1, n_kept)) for rows in inputs)


# Five clients, f = 1. In each pair the sum is equal; who is in it, how far apart all are, and of what norm, differs.
ONE = rounds(
    1,
    [[3, 4], [3, 5], [2, 4], [-60, 0], [0, 63]],
    [[-63, 0], [0, -50], [20, 41], [-40, 45], [3, 4]],
)
THREE = rounds(
    3,
    [[10, 0], [11, 0], [12, 0], [-60, 0], [0, 63]],
    [[0, -63], [63, 0], [11, 9], [11, -9], [11, 0]],
)


def view(outcomes, party: int):
    """(features,): every bit behind the check, sent, received and XORed; and the bits u."""
    sent, received = outcomes[party].sent, outcomes[1 - party].sent
    assert [label for label, _ in sent] == [label for label, _ in received]
    seen = [(a, b) for (label, a), (_, b) in zip(sent, received, strict=True) if "robust" in label]
    parts = [(bits(a), bits(b)) for a, b in [*seen, (sent[-1][1], received[-1][1])]]
    own = np.array(outcomes[party].own_bits, dtype=np.uint8)
    keep = np.unpackbits(_keep(sent) ^ _keep(received), count=own.size, bitorder="little") ^ own
    words = bits(_words_of_choice(sent, received))
    return np.concatenate([own, keep, words, *(part for a, b in parts for part in (a, b, a ^ b))]).astype(np.float64)


def _keep(messages):
    (plane,) = (payload for label, payload in messages if label == "robust/krum/keep")
    return np.frombuffer(plane, dtype=np.uint8)


def _words_of_choice(sent, received) -> bytes:
    """The distances less dealt words, which are opened by addition."""
    plane, sides = 3, []  # 20 distances
    for messages in (sent, received):
        (payload,) = (payload for label, payload in messages if label == "robust/krum/choose")
        sides.append(np.frombuffer(payload[plane:], dtype=np.int64))
    return (sides[0] + sides[1]).tobytes()


def views(it: Round, name: str):
    """Both servers' views of the same rounds, (rounds, features) each."""
    gate = make_gate("native")
    outcomes = [run(it, gate, random_bytes_of(f"krum/{name}/{i}")) for i in range(N_ROUNDS)]
    return tuple(np.array([view(both, party) for both in outcomes]) for party in (0, 1))


@pytest.mark.parametrize("worlds", [ONE, THREE], ids=["krum", "multi-krum"])
def test_two_inputs_of_equal_outputs_look_alike_to_either_server(worlds):
    """Neither distances nor scores nor who was chosen shows in what a server sent, received and holds."""
    first, second = worlds
    (accepted, chosen, total), (also, others, same) = map(in_the_clear, worlds)
    assert (accepted, total) == (also, same)
    assert chosen != others
    found = views(first, "first"), views(second, "second")
    for party in (0, 1):
        assert not tells_apart(*(one[party] for one in found))


def unmasked(part: str):
    """Choice blocks whose bits, or words, are zeros at both servers: what is opened is near, or a distance."""
    honest = correlations.ChoiceBlock.n_masks.fget

    def products(block, masks_a, masks_b):
        n_of_plane = honest(block) - block.n_words
        for masks in (masks_a, masks_b):
            masks[slice(None, n_of_plane) if part == "bits" else slice(n_of_plane, None)] = 0
        return HONEST_PRODUCTS(block, masks_a, masks_b)

    return products


HONEST_PRODUCTS = correlations.ChoiceBlock.products


@pytest.mark.parametrize("what", ["keep", "near", "distances"])
def test_the_adversary_finds_what_is_not_masked(what, monkeypatch):
    """Controls: with u = 0, or y = 0, everywhere the rounds are as correct, and the same adversary says so."""
    if what == "keep":
        monkeypatch.setattr("precad.mpc.tuples.held.trim_bit", lambda key, label: 0)
        monkeypatch.setattr("precad.mpc.tuples.dealt.trim_bit", lambda key, label: 0)
    else:
        monkeypatch.setattr("precad.mpc.robust.shared_bits.ServerTuples.correlations_after_check", zeroed(what))
        monkeypatch.setattr(correlations.ChoiceBlock, "products", unmasked("bits" if what == "near" else "words"))
    first, second = ONE
    assert in_the_clear(first)[2] == run(first, make_gate("native"))[0].total.tolist()
    assert tells_apart(views(first, f"{what}/1")[0], views(second, f"{what}/2")[0])


def zeroed(what: str):
    """Servers' masks of choice blocks, made zero as the dealer's were."""
    honest = krum.ServerTuples.correlations_after_check

    def after_check(tuples):
        found = honest(tuples)
        for block, (masks, _) in zip(found._blocks, found._words, strict=True):
            if isinstance(block, correlations.ChoiceBlock):
                n_of_plane = block.n_masks - block.n_words
                masks[slice(None, n_of_plane) if what == "near" else slice(n_of_plane, None)] = 0
        return found

    return after_check


@pytest.mark.parametrize("n_kept", [1, 3])
def test_messages_have_lengths_and_labels_that_depend_on_public_values_alone(n_kept, gate):
    """For given numbers of clients and f: both inputs, both servers, and any other vectors."""
    shapes = set()
    pair = ONE if n_kept == 1 else THREE
    for it in (*pair, Round(0 * pair[0].vectors, pair[0].krum), Round(pair[1].vectors // 9, pair[0].krum)):
        for outcome in run(it, gate):
            shapes.add(tuple((label, len(payload)) for label, payload in outcome.sent))
    assert len(shapes) == 1
    labels = [label for label, _ in shapes.pop()]
    n_gate = {"crypten": 7, "native": 2}[gate.name]
    assert sum("robust/" in label for label in labels) == 4 * n_gate + 4
