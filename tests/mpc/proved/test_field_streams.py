"""Field streams: every element by its index alone, and the rare element that a second stream repairs."""

import numpy as np
import pytest

from precad.mpc import prg
from precad.mpc.prg import Label, Purpose, Seed
from precad.mpc.proved.field import P
from precad.mpc.proved.streams import open_field_stream

SEED = Seed(bytes(range(16)))
REPAIRED = (Label("task", 1, "1153"), 2005)
"""Found by search: the first slot with an element among its first 4096 whose word is p or above."""


def by_definition(purpose, label, index):
    """One element, from whole streams of words."""
    word = int(prg.stream(SEED, purpose, label, index + 1).view(np.uint64)[index]) % 2**56
    if word < P:
        return word
    low, high = prg.stream(SEED, Purpose(purpose + 1), label, 2 * index + 2).view(np.uint64)[-2:].tolist()
    return (low + 2**64 * high) % P


@pytest.mark.parametrize("purpose", [Purpose.SHARE, Purpose.PROOF_SHARE, Purpose.QUERY])
def test_an_element_depends_on_its_index_alone(purpose):
    """From the start, in pieces, and from any element on."""
    label = Label("task", 1, "4")
    whole = open_field_stream(SEED, purpose, label).take(50)
    assert whole.tolist() == [by_definition(purpose, label, i) for i in range(50)]
    stream = open_field_stream(SEED, purpose, label)
    assert np.concatenate([stream.take(n) for n in (1, 16, 33)]).tolist() == whole.tolist()
    assert open_field_stream(SEED, purpose, label).after(7).after(10).take(33).tolist() == whole[17:].tolist()


def test_the_second_stream_repairs_one_element():
    """Its word is 0xffffff35e3dd00, above p. The elements beside it are untouched, from wherever they are read."""
    label, index = REPAIRED
    word = int(prg.stream(SEED, Purpose.SHARE, label, index + 1).view(np.uint64)[index]) % 2**56
    assert word == 0xFFFFFF35E3DD00 >= P
    expected = [by_definition(Purpose.SHARE, label, i) for i in range(index - 1, index + 2)]
    assert open_field_stream(SEED, Purpose.SHARE, label).take(index + 2)[-3:].tolist() == expected
    assert open_field_stream(SEED, Purpose.SHARE, label).after(index - 1).take(3).tolist() == expected
    assert all(value < P for value in expected)


def test_purposes_that_have_no_repair_are_no_field_streams():
    with pytest.raises(KeyError):
        open_field_stream(SEED, Purpose.SHARE_REPAIR, Label("task", 1))
