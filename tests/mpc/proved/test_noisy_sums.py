"""Opening the noisy sum of mode `proved`: what the peer's share may be.

Failure means: a sum of elements that are none, which stands for other integers at one server than at the other.
"""

import numpy as np
import pytest

from precad.mpc.channel import memory_pair, run_pair
from precad.mpc.errors import MalformedMessageError
from precad.mpc.proved import field, opening
from precad.mpc.proved.field import P
from tests.mpc.fixed_randomness import random_bytes_of

HALF = P // 2
SUM = np.array([0, 1, -1, HALF, -HALF, 12_345], dtype=np.int64)


def test_both_servers_open_the_integers_that_shares_add_up_to():
    """To the ends of the range that elements stand for."""
    mask = field.random_elements(SUM.size, random_bytes_of("noisy sum"))
    shares = field.subtract(field.from_integers(SUM), mask), mask
    opened = run_pair(lambda channel: opening.open_in_place(shares[channel.party], "noisy sum", channel).tolist())
    assert opened[0] == opened[1] == SUM.tolist()


@pytest.mark.parametrize("element", [P, P + 1, 2**56 - 1])
@pytest.mark.parametrize("at", [0, SUM.size - 1])
def test_a_share_with_an_element_that_is_none_is_malformed(element, at):
    """Refuse it in a step, and when the servers meet."""
    sent = bytearray(7 * SUM.size)
    sent[7 * at : 7 * at + 7] = element.to_bytes(7, "little")
    ours, theirs = memory_pair()
    theirs._peer._inbox.put(("noisy sum", bytes(sent)))
    with pytest.raises(MalformedMessageError, match="noisy sum: expected elements below p, found 1 others"):
        opening.open_in_place(np.zeros(SUM.size, dtype=np.uint64), "noisy sum", ours)
    with pytest.raises(MalformedMessageError, match="noisy sum: expected elements below p, found 1 others"):
        opening.fill_sum(np.zeros(SUM.size, dtype=np.int64), iter([bytes(sent)]))
