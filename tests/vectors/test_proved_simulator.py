"""Mode `proved` among honest parties, and what a server that deviates can see: the simulator's argument.

Failure means that a round goes wrong, or that a view depends on an update.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from tests.vectors.independent.proved_messages import (
    slot_labels,
)
from tests.vectors.independent.proved_parameters import Sizes
from tests.vectors.independent.proved_proof import Masks, prove
from tests.vectors.independent.proved_round import Parties
from tests.vectors.independent.proved_simulator import masks_that_open_to, simulated_message, simulated_sums
from tests.vectors.independent.proved_verifier import is_valid, message, opened
from tests.vectors.proved_harness import (
    AT,
    CASE,
    POINTS,
    SLOTS,
    TASK,
    UPDATES,
    P,
    rows_of,
)

FAST = Sizes(dim=3, threshold=1, window_bits=1, n_rows=1, least_wire=4)
"""One row, and the real field: a proof of 32 elements, for counts."""


# Honest rounds


def test_a_round_accepts_who_is_within_the_bound_and_opens_the_sum():
    """Holders A and B mixed; one update is too long, and its client silent; the sum is that of the others."""
    parties = Parties.of(AT, SLOTS)
    parties.upload({**UPDATES, "eve": [9, 9, 9, 9, 9, 9]})
    parties.lock()
    parties.prove()
    assert parties.check() == [1, 4]
    assert parties.servers[1].valid == [1, 4]
    assert parties.open([[1, 2, 3, 4, 5, -6], [0] * 6]) == [4, 1, 5, 4, 5, -4]
    assert len(parties.sent[0]["verifier"]) == 14 * (CASE.n_wires + 3) * 2
    assert [len(one["proofs"]) for one in parties.sent] == [32 + 32 * 3] * 2


@pytest.mark.parametrize("who", [(), ("bob",)])
def test_steps_fall_away_without_a_client(who):
    """No active slot, and one that is active and not proved."""
    parties = Parties.of(AT, SLOTS)
    parties.upload({name: UPDATES[name] for name in who})
    parties.lock()
    assert parties.check() == []
    assert ("proofs" in parties.sent[0]) == bool(who)
    assert parties.open([[0] * 6, [1] * 6]) == [1] * 6


def test_slots_are_labels_that_say_nothing_of_other_draws():
    """Distinct, below the number enrolled, in the order of names, and even for every client over many coins."""
    enrolled = [f"client-{i}" for i in range(6)]
    found = Counter()
    for seed in range(1200):
        slots = slot_labels(seed.to_bytes(16, "big"), TASK, 7, enrolled, ["client-3", "client-1"])
        assert len(set(slots.values())) == 2
        found[slots["client-3"]] += 1
    assert set(found) == set(range(6))
    assert sum((n - 200) ** 2 / 200 for n in found.values()) < 50  # of 5 degrees: chance is below 2e-9


# The simulator


@pytest.mark.parametrize("deviates", [0, 1])
@pytest.mark.parametrize("points", [POINTS, (0, 1 << 20), (5, P - 5)])
def test_every_view_of_one_server_fits_every_update(deviates, points):
    """A perfect simulation: for each view there is one choice of the honest randomness per update that makes it.

    The deviating server's shares are bytes that it sees, as the holder, or chose, as the seeded server. It may choose
    points and its own message as it likes: both are functions of bytes that are equal here. So are the honest server's
    verdict and everything that follows from it.
    """
    randomness, rows = random.Random(str((deviates, points))), rows_of(CASE)
    wanted = simulated_sums(points, CASE)
    theirs = [[randomness.randrange(P) for _ in range(n)] for n in (CASE.dim, CASE.n_elements)]
    proper, sent = message(deviates, *theirs, rows, points, CASE), []
    for x in ([0] * 6, [3, 0, 0, 0, 0, 0], [-1, 2, 0, 0, 0, -2]):
        proof = prove(x, rows, CASE, masks_that_open_to(x, rows, wanted, points, CASE))
        ours = [[(a - b) % P for a, b in zip(*both, strict=True)] for both in zip((x, proof), theirs, strict=True)]
        sent.append(message(1 - deviates, *ours, rows, points, CASE))
        assert is_valid(opened(sent[-1], proper, CASE), points, CASE)
    assert sent[0] == sent[1] == sent[2]


def cells(values):
    """Return how many values lie in each sixteenth of the field."""
    found = Counter(16 * value // P for value in values)
    return [found[i] for i in range(16)]


def uneven(values):
    """Return the chi-square value of even cells, 15 degrees."""
    expected = len(values) / 16
    return sum((n - expected) ** 2 / expected for n in cells(values))


def apart(first, second):
    """Return the chi-square value of two samples of one law, 15 degrees."""
    return sum((a - b) ** 2 / (a + b) for a, b in zip(cells(first), cells(second), strict=True) if a + b)


FALSE_ALARM = 80.0
"""A chi-square value of 15 degrees is above this with probability 8e-11. The test below makes 36 comparisons."""


def test_openings_of_two_updates_and_of_the_simulator_have_one_law():
    """800 honest proofs each, with masks of the operating system: a false alarm with probability below 4e-9.

    Squares F(t) are no uniform elements, so laws are compared with one another; f(t) and u(t) with the uniform one.
    """
    rows = rows_of(FAST)
    samples = [[sums_of(x, rows, Masks.fresh(FAST)) for _ in range(800)] for x in ([0, 0, 0], [1, 0, 0])]
    nothing = [0] * FAST.message_elements
    samples.append([simulated_message(POINTS, nothing, FAST) for _ in range(800)])
    by_word = [list(zip(*sample, strict=True)) for sample in samples]
    for word in range(FAST.message_elements):
        pairs = itertools.combinations([sample[word] for sample in by_word], 2)
        assert max(apart(a, b) for a, b in pairs) < FALSE_ALARM
        if word % 4 in (0, 2):
            assert max(uneven(sample[word]) for sample in by_word) < FALSE_ALARM


def test_the_comparison_finds_a_prover_that_keeps_its_masks():
    """Rule C3 broken: two updates under one set of masks open to one value each."""
    rows, masks = rows_of(FAST), Masks.fresh(FAST)
    values = [[sums_of(x, rows, masks)[0]] * 100 for x in ([0, 0, 0], [1, 0, 0])]
    assert values[0] != values[1]
    assert min(map(uneven, values)) > FALSE_ALARM


def sums_of(x, rows, masks):
    """Return the opened elements of an honest proof: as A holding all, B nothing."""
    proof = prove(x, rows, FAST, masks)
    ours = message(0, [v % P for v in x], proof, rows, POINTS, FAST)
    assert is_valid(opened(ours, [0] * len(ours), FAST), POINTS, FAST)
    return ours
