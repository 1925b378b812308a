"""Turns that a coin deals: balanced, a function of the coin, and every client equally likely to have each."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from precad.mpc import prg
from precad.mpc.errors import ParameterError
from precad.mpc.joint_coin import turns
from precad.mpc.prg import Label, Purpose, Seed

LABEL = Label("task-1", 0)
CLIENTS = [f"c{i:02}" for i in range(23)]


@pytest.mark.parametrize("n_turns", [1, 2, 7, 23])
def test_every_turn_has_as_many_clients_or_one_fewer(n_turns: int) -> None:
    """The order is that of the words, found another way: the place of each word among all."""
    seed = Seed(bytes(range(16)))
    found = turns(seed, LABEL, CLIENTS, n_turns)
    assert set(Counter(found.values()).values()) <= {23 // n_turns, -(-23 // n_turns)}
    assert set(found.values()) == set(range(n_turns))
    words = prg.stream(seed, Purpose.TURNS, LABEL, 23).view(np.uint64).tolist()
    for client, word in zip(CLIENTS, words, strict=True):
        assert found[client] == sum(other < word for other in words) % n_turns


def test_another_coin_deals_others_and_a_task_has_its_own() -> None:
    seed = Seed(bytes(16))
    assert turns(seed, LABEL, CLIENTS, 5) == turns(seed, LABEL, CLIENTS, 5)
    assert turns(Seed(bytes(15) + b"\1"), LABEL, CLIENTS, 5) != turns(seed, LABEL, CLIENTS, 5)
    assert turns(seed, Label("task-2", 0), CLIENTS, 5) != turns(seed, LABEL, CLIENTS, 5)
    with pytest.raises(ParameterError, match="n_turns: expected at least 1"):
        turns(seed, LABEL, CLIENTS, 0)


def test_a_client_has_each_turn_equally_often() -> None:
    """Over 4,000 coins; fails for one honest implementation in 10^6."""
    random = np.random.default_rng(2)
    counts = Counter(turns(Seed(random.bytes(16)), LABEL, CLIENTS[:6], 3)["c04"] for _ in range(4000))
    assert chisquare([counts[turn] for turn in range(3)]).pvalue > 1e-6
