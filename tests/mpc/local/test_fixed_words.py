"""Why bounds of layers and half-spaces need `accept_weak_wire_form`: docs/reference/protocol-convex-sets.md.

Server A deviates: to its share of one further word it adds a number of its choice. No coin draws these words. So it
asks about the same function of an update again, an upload for each question.

Failure means: the attack does not read what the documents say that it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from precad.deploy.oversight.validation_audit import audit
from precad.mpc import validation
from precad.mpc.convex_set import ConvexSet, HalfSpace, LayerBall
from precad.mpc.gate_names import make_gate
from precad.mpc.local.engines import Engine
from precad.mpc.ring import RingArray
from precad.mpc.tuples.held import ServerTuples

D, COORDINATE = 40, 7
UPDATE = np.random.default_rng(5).integers(-60_000, 60_000, (1, D))
AXIS = np.eye(D, dtype=np.int64)[COORDINATE]
QUESTIONS = 18


def asked(within: ConvexSet, word: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], bool]:
    """Return the question whether the client is accepted although server A adds this number to its share of a word."""
    honest, added = validation.words_of_set, [0]

    def deviating(
        active: Sequence[str], opened: Sequence[RingArray], tuples: ServerTuples, set_: ConvexSet, engine: Engine
    ) -> RingArray:
        words = honest(active, opened, tuples, set_, engine)
        if tuples.party == 0:
            words[:, word] += np.int64(added[0])
        return words

    monkeypatch.setattr(validation, "words_of_set", deviating)

    def ask(number: int) -> bool:
        added[0] = number
        return bool(audit(UPDATE, within, gate=make_gate("native")).verdicts[0])

    return ask


def read(low: int, high: int, is_at_least: Callable[[int], bool]) -> int:
    """Return the number in [low, high) by halving, in `QUESTIONS` questions at most."""
    n = 0
    while high - low > 1:
        middle, n = (low + high) // 2, n + 1
        low, high = (middle, high) if is_at_least(middle) else (low, middle)
    assert n <= QUESTIONS
    return low


def test_a_direction_along_an_axis_is_that_coordinate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The word is x_7 - s; with s - c added to it, the bit says whether x_7 >= c."""
    within = ConvexSet(8.0, D, 16, half_spaces=(HalfSpace(AXIS, -3.9),))
    ask, s = asked(within, -1, monkeypatch), within.threshold_of(within.half_spaces[0])
    assert read(-(1 << 16), 1 << 16, lambda c: ask(s - c)) == UPDATE[0, COORDINATE]


def test_a_layer_of_one_coordinate_is_that_coordinate_but_for_its_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    """The word is T - x_7^2; with c^2 - 1 - T added to it, the bit says whether |x_7| < c."""
    layers = (LayerBall(COORDINATE, 8.0), LayerBall(1, 8.0), LayerBall(D - COORDINATE - 1, 8.0))
    within = ConvexSet(8.0, D, 16, layers=layers)
    ask, t = asked(within, 1, monkeypatch), within.layer_thresholds[1]
    assert read(0, 1 << 16, lambda c: not ask(c * c - 1 - t)) == abs(UPDATE[0, COORDINATE])
