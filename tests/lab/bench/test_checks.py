"""The clock runs over the real thing: right verdicts, right sums, and an unsound check that is unsound."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from precad.lab.bench import checks
from precad.lab.bench.workload import Case, Updates, open_spool, prepare
from precad.mpc.channel import run_pair
from precad.mpc.fixed_point import exact_squared_norm
from precad.mpc.gate import top_bits
from precad.mpc.gate_names import make_gate
from precad.mpc.parameters import DEALT_MODES
from precad.mpc.sharing import reconstruct
from precad.mpc.tuples.correlations import BitBlock

NOWHERE = Path("/nonexistent")
"""The folder of a spool that is never written: the cases here are small."""
CASE = Case(implementation="native", mode="masked", dim=50, clients=3, repetitions=2)


@pytest.mark.parametrize("implementation", [checks.TESTED, checks.TRIMMED])
@pytest.mark.parametrize("mode", DEALT_MODES)
def test_what_is_measured_of_a_trimmed_sum_is_that_sum(implementation, mode):
    """One of nine is too long; of eight as long as each other, the first six are kept, or all."""
    case = Case(implementation=implementation, mode=mode, dim=50, clients=9, repetitions=1)
    updates = Updates(case)
    verdicts, total = both(case, updates)
    assert verdicts == case.expected(1)
    assert case.trim_count == (2 if implementation == checks.TRIMMED else 0)
    assert total.tolist() == updates.accepted_sum(1).tolist()


@pytest.mark.parametrize("mode", DEALT_MODES)
def test_what_is_measured_of_krum_is_the_sum_of_those_that_it_chooses(mode):
    """One of nine is too long; two of the eight others are left out."""
    case = Case(implementation=checks.KRUM, mode=mode, dim=50, clients=9, repetitions=1)
    updates = Updates(case)
    verdicts, total = both(case, updates)
    assert verdicts == case.expected(1)
    everybody = sum(updates.vector(client, 1) for client in range(9) if verdicts[client])
    left_out = [everybody - updates.vector(i, 1) - updates.vector(j, 1) for i in range(9) for j in range(i)]
    assert total.tolist() in [vector.tolist() for vector in left_out]
    assert total.tolist() == updates.accepted_sum(1).tolist()


class OneVector(Updates):
    """A workload in which every client uploads the same vector."""

    def __init__(self, vector):
        self._vector = vector

    def vector(self, client, repetition):
        return self._vector


def both(case, updates, repetition=1, gate_name="native"):
    """The verdicts, and the opened sum, of one batch at two parties in this process."""
    gate = make_gate(gate_name)

    def party(channel):
        held = prepare(
            case, updates, repetition, channel.party, checks.gate_blocks(case, gate), open_spool(case, NOWHERE)
        )
        return checks.run_check(case, held, gate, channel)

    a, b = run_pair(party)
    assert a.verdicts == b.verdicts
    return a.verdicts, reconstruct(a.accepted_share_sum, b.accepted_share_sum)


@pytest.mark.parametrize("mode", DEALT_MODES)
@pytest.mark.parametrize("implementation", ["native", checks.UNSOUND])
@pytest.mark.parametrize("gate_name", ["crypten", "native"])
def test_the_client_in_the_middle_is_rejected(implementation, mode, gate_name):
    """The sum holds the updates of the others, with either gate."""
    case = replace(CASE, implementation=implementation, mode=mode)
    updates = Updates(case)

    verdicts, total = both(case, updates, gate_name=gate_name)

    assert verdicts == (True, False, True)
    assert np.array_equal(total, updates.vector(0, 1) + updates.vector(2, 1))
    assert np.array_equal(total, updates.accepted_sum(1))


def test_a_single_client_is_too_long_in_the_warm_up_only():
    """So that what is timed is an accepted update."""
    case = replace(CASE, clients=1)
    updates = Updates(case)

    assert case.expected(0) == (False,)
    assert case.expected(1) == (True,)
    assert both(case, updates, repetition=0)[0] == (False,)
    assert both(case, updates, repetition=1)[0] == (True,)
    assert exact_squared_norm(updates.vector(0, 1)) <= case.bound.threshold < exact_squared_norm(updates.vector(0, 0))


def test_the_unsound_check_accepts_what_wraps():
    """2^32 e_1 has a square of zero modulo 2^64. The sound check refuses it."""
    wrapping = np.zeros(CASE.dim, dtype=np.int64)
    wrapping[0] = 1 << 32
    updates = OneVector(wrapping)

    assert both(replace(CASE, implementation=checks.UNSOUND), updates)[0] == (True, True, True)
    assert both(CASE, updates)[0] == (False, False, False)


def test_every_repetition_has_tuples_of_its_own():
    """A reused mask would show the difference of two updates, and would be measured warm."""
    gate = make_gate("native")
    updates = Updates(CASE)
    blocks = checks.gate_blocks(CASE, gate)
    masks = [
        prepare(CASE, updates, r, 0, blocks, open_spool(CASE, NOWHERE)).tuples.mask_share(CASE.client_ids[0])
        for r in (0, 1)
    ]

    assert not np.array_equal(*masks)


def test_the_floor_has_three_parts():
    """Each takes time, and they add up."""
    floor = checks.run_floor(replace(CASE, implementation=checks.FLOOR, dim=20_000))

    assert floor.aes > 0
    assert floor.memory > 0
    assert floor.rows > 0
    assert floor.total == floor.aes + floor.memory + floor.rows


@pytest.mark.parametrize("clients", [1, 3])
def test_correlations_are_those_of_the_words_that_are_compared(clients):
    """65 words a client, or the norm's alone where there are no rows."""
    gate, low_bits = make_gate("native"), CASE.bound.low_bits
    sound, unsound = (replace(CASE, implementation=name, clients=clients) for name in ("native", checks.UNSOUND))

    assert checks.gate_blocks(sound, gate) == top_bits.blocks(gate, clients, low_bits)
    assert checks.gate_blocks(unsound, gate) == (*gate.blocks([(clients, low_bits[-1])]), BitBlock(clients))
