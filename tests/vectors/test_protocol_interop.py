"""This project's packages beside, and linked with, the independent implementation of `docs/reference/protocol.md`.

Failure means random inputs on which the two differ. It also means a pair of servers, one of each kind, that misses the
verdicts and the sum of the clear computation.
"""

from __future__ import annotations

import copy
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precad.mpc import validation
from precad.mpc.channel import memory_pair
from precad.mpc.errors import GateUnavailableError, MalformedMessageError, VerdictsDifferError
from precad.mpc.gate_names import require_gate
from tests.vectors import make_vectors, ours
from tests.vectors.independent import server
from tests.vectors.independent import steps as independent
from tests.vectors.wire import Wire

# Servers that lose each other wait for ever, and so does the pool that runs them: only the process can be ended.
pytestmark = pytest.mark.timeout(120, method="thread")

EDGES = [0, 1, 2**16, 2**29 - 1, 2**30, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 2**30, 2**64 - 1]
words = st.lists(st.sampled_from(EDGES) | st.integers(0, 2**64 - 1), min_size=5, max_size=5)
seeds = st.binary(min_size=16, max_size=16).map(bytes.hex)


@given(vectors=st.lists(words, min_size=1, max_size=3), randomness=st.randoms(use_true_random=False), data=st.data())
@settings(max_examples=12)
def test_both_make_the_same_of_random_validations(vectors, randomness, data):
    """Every message, verdict and share, for random updates, keys, coins, bounds and bindings, in both forms."""
    case = random_case(vectors, randomness, mode=data.draw(st.sampled_from(("masked", "shares"))))

    assert ours.STEPS["validation"](case) == independent.STEPS["validation"](case)


def random_case(vectors, randomness: random.Random, mode: str):
    clip_norm = repr(randomness.choice([2.0**-16, 0.4, 1.0, 3.0, 1434.0]))
    clients = []
    for slot, vector in enumerate(vectors):
        binding = "01" + randomness.randbytes(31).hex()  # zeros stand for no upload
        theirs = randomness.choice([binding, binding, binding, randomness.randbytes(32).hex(), None])
        clients.append(
            {
                "name": f"client-{slot}",
                "words": make_vectors.hex_words(vector),
                "seed": randomness.randbytes(16).hex(),
                "bindings": [binding, theirs],
            }
        )
    return {
        "task": "random",
        "round": randomness.randrange(2**32),
        "dim": 5,
        "mode": mode,
        "gate": "native",
        "clip_norm": clip_norm,
        "frac_bits": 16,
        "clients": clients,
        "keys": [randomness.randbytes(16).hex() for _ in range(2)],
        "rho": [str(randomness.randrange(1, 2**127 - 1)) for _ in vectors],
        "omega": [str(randomness.randrange(2**127 - 1)) for _ in vectors],
        "coins": [randomness.randbytes(32).hex() for _ in range(2)],
    }


@given(
    x=st.lists(st.floats(-1000, 1000), min_size=1, max_size=8),
    frac_bits=st.integers(0, 40),
    seed_a=seeds,
    seed_b=seeds,
    task=st.text(st.characters(codec="utf-8"), min_size=1, max_size=8),
    round=st.integers(0, 2**64 - 1),
)
@settings(max_examples=40)
def test_both_encode_and_mask_alike(x, frac_bits, seed_a, seed_b, task, round):
    """Any update, any seeds, any label."""
    given_x = {"x": [repr(value) for value in x], "frac_bits": frac_bits}
    encoded = independent.STEPS["encode"](given_x)
    case = {"words": encoded["words"], "seed_a": seed_a, "seed_b": seed_b, "seed": seed_a}
    case |= {"task": task, "round": round, "slot": 3}

    assert ours.STEPS["encode"](given_x) == encoded
    for step in ("mask", "split"):
        assert ours.STEPS[step](case) == independent.STEPS[step](case)


@given(
    n_words=st.integers(1, 20),
    low_bits=st.lists(st.integers(1, 53), min_size=1, max_size=4),
    randomness=st.randoms(use_true_random=False),
)
@settings(max_examples=20)
def test_both_gates_make_strings_that_are_equal_exactly_for_small_words(n_words, low_bits, randomness):
    """Ours and the independent one send the same, and A's string is B's where the sum is below 2^L."""
    sums = [[randomness.choice([0, 1, 2**L - 1, 2**L, 2**63]) for L in low_bits] for _ in range(n_words)]
    case = make_vectors.gate_case("native", low_bits, sums)
    found = ours.STEPS["gate"](case)

    assert found == independent.STEPS["gate"](case)
    assert found["equal"] == [[s < 2**L for s, L in zip(row, low_bits, strict=True)] for row in sums]


@pytest.mark.parametrize("gate", ["native", "crypten"])
@pytest.mark.parametrize("mode", ["masked", "shares"])
@pytest.mark.parametrize("independent_party", [0, 1])
def test_a_server_of_each_kind_come_to_the_same_verdicts(gate, mode, independent_party):
    """Three clients, one over the bound, d = 5: right verdicts, and shares that add up to the accepted updates."""
    try:
        require_gate(gate)
    except GateUnavailableError:
        pytest.skip("CrypTen is not installed")
    case = copy.deepcopy(make_vectors.validation_case(mode, gate))
    case["clients"] = case["clients"][:3]
    case["rho"], case["omega"] = case["rho"][:3], case["omega"][:3]
    kinds = (ours.Party, ours.Party)
    kinds = tuple(independent.Party if party == independent_party else kinds[party] for party in (0, 1))
    ends = memory_pair()
    wires = [Wire(end) for end in ends]

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(kinds[party](case, party).run, wires[party]) for party in (0, 1)]
        at_a, at_b = (future.result(timeout=60) for future in running)

    assert at_a["accepted"] == at_b["accepted"] == ["honest", "at-the-bound"]
    assert at_a["rejected"] == at_b["rejected"] == ["one-over"]
    total = ours.words(at_a["share_sum"]) + ours.words(at_b["share_sum"])
    np.testing.assert_array_equal(
        total, ours.words(case["clients"][0]["words"]) + ours.words(case["clients"][1]["words"])
    )
    assert [m["label"] for m in wires[0].messages] == [m["label"] for m in wires[1].messages]


@pytest.mark.parametrize("n", [1, 8, 9])
@pytest.mark.parametrize("differs", [False, True])
@pytest.mark.parametrize("independent_party", [0, 1])
def test_a_server_of_each_kind_compare_their_verdicts(n, differs, independent_party):
    """Alike, both go on; where the last client's verdict differs, both refuse."""
    verdicts = [i % 3 != 0 for i in range(n)]
    theirs = [*verdicts[:-1], verdicts[-1] is not differs]
    accepted = tuple(slot for slot, is_valid in enumerate(theirs) if is_valid)
    rejected = tuple(slot for slot, is_valid in enumerate(theirs) if not is_valid)
    names = tuple(f"client-{i}" for i in range(n))
    ends = memory_pair()

    def compare_ours():
        validation.compare_verdicts(validation.Validated(names, tuple(verdicts), None), ends[1 - independent_party])

    def compare_theirs():
        wire = Wire(ends[independent_party])
        server.compare_verdicts(server.Verdicts(accepted, rejected, []), wire)
        return wire.messages

    with ThreadPoolExecutor(2) as pool:
        ours, others = pool.submit(compare_ours), pool.submit(compare_theirs)
        errors = [future.exception(timeout=60) for future in (ours, others)]

    if differs:
        assert isinstance(errors[0], VerdictsDifferError)
        assert errors[0].clients == names[-1:]
        assert errors[1].kind == "verdicts"
    else:
        assert errors == [None, None]
        (message,) = others.result()
        assert message["label"] == "verdicts"


def test_bits_of_no_client_are_malformed():
    """A byte for three clients has five bits to spare."""
    ends = memory_pair()
    checked = validation.Validated(("a", "b", "c"), (True, True, True), None)
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(ends[1].exchange, "verdicts", b"\x0f")
        with pytest.raises(MalformedMessageError, match="verdicts: expected 3 bits"):
            validation.compare_verdicts(checked, ends[0])
        sent.result(timeout=60)
