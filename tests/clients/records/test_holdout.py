"""Records kept for testing: each by its own content, so that no other record moves one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from precad.clients.records import Records
from precad.clients.records.holdout import is_kept_aside

FEW = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 1)), min_size=1, max_size=20)


def records(pairs: list[tuple[int, int]]) -> Records:
    features, labels = zip(*pairs, strict=True)
    return Records(np.array(features, np.float32).reshape(-1, 1), np.array(labels, np.int64))


@settings(max_examples=50, deadline=None)
@given(FEW, st.tuples(st.integers(0, 50), st.integers(0, 1)), st.integers(0, 20), st.integers(0, 3))
def test_one_record_more_moves_no_other(pairs: list[tuple[int, int]], one: tuple[int, int], at: int, seed: int) -> None:
    """Wherever it stands. By positions, the half behind it would be dealt anew, and R would be false."""
    at = min(at, len(pairs))
    before = is_kept_aside(records(pairs), 0.5, seed)
    after = is_kept_aside(records([*pairs[:at], one, *pairs[at:]]), 0.5, seed)
    assert_array_equal(np.delete(after, at), before)


def test_equal_records_are_on_one_side() -> None:
    """And the label is a part of the content."""
    pairs = [(i % 40, i % 2) for i in range(400)]
    is_kept = is_kept_aside(records(pairs), 0.5, 0)
    assert all(is_kept[i] == is_kept[i % 40] for i in range(400))
    other = is_kept_aside(records([(x, 1 - y) for x, y in pairs]), 0.5, 0)
    assert (is_kept != other).any()


@pytest.mark.parametrize("share", [0.0, 0.2, 0.75])
def test_the_share_is_kept_within_chance(share: float) -> None:
    """4000 different records: within five standard deviations; another seed keeps others."""
    some = records([(i, 0) for i in range(4000)])
    is_kept = is_kept_aside(some, share, 0)
    assert abs(is_kept.mean() - share) <= 5 * np.sqrt(share * (1 - share) / 4000)
    assert share == 0 or (is_kept_aside(some, share, 1) != is_kept).any()


def test_the_choice_is_the_same_for_ever() -> None:
    """A record that trained once shall not test later: recorded from the first version."""
    is_kept = is_kept_aside(records([(i, i % 2) for i in range(16)]), 0.5, 0)
    assert "".join(str(int(kept)) for kept in is_kept) == RECORDED


RECORDED = "0011101000101001"
"""BLAKE2b of a float32 and an int64, little-endian, below 2^63; computed with `struct` and `hashlib` alone."""


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "shards"])
def test_clients_of_a_data_set_hold_out_a_share_of_its_training_half(partition: str) -> None:
    """Nobody trains on these, each is one client's, and the public test half stays."""
    from precad.clients.records import DataSource

    source = DataSource(partition=partition, holdout=0.25)  # type: ignore[arg-type] # one of its names
    clients, whole = [f"c{i}" for i in range(5)], DataSource().load()
    split = source.load()
    trained, held = (of(split, clients, clients) for of in (source.records_of, source.held_out_of))
    is_kept = is_kept_aside(whole.train, 0.25, 0)
    assert sum(map(len, held.values())) == is_kept.sum()
    assert sum(map(len, trained.values())) == len(whole.train) - is_kept.sum()
    assert source.sizes(split, clients) == {client: len(own) for client, own in trained.items()}
    assert_array_equal(split.test.labels, whole.test.labels)
    everything = np.concatenate([own.features for own in (*trained.values(), *held.values())])
    assert sorted(map(bytes, everything)) == sorted(map(bytes, whole.train.features))


def test_without_a_share_nothing_is_held_out() -> None:
    from precad.clients.records import DataSource

    source = DataSource()
    held = source.held_out_of(source.load(), ["a", "b"], ["a"])
    assert {client: len(own) for client, own in held.items()} == {"a": 0}
