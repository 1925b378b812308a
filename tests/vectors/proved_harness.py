"""Share between tests of mode `proved`: shares of anything, and a prover that does not care whether bits fit."""

from __future__ import annotations

import pytest

from tests.vectors.independent import digests, proved_verifier, server
from tests.vectors.independent.proved_field import FIELD
from tests.vectors.independent.proved_messages import Round
from tests.vectors.independent.proved_parameters import sizes
from tests.vectors.independent.proved_proof import Masks, sum_of_squares
from tests.vectors.independent.proved_round import Parties
from tests.vectors.independent.ring import RefusedError

P = FIELD.modulus
TASK = "attack-0123456789abcdef"
CASE = sizes(3.0, 0, 6)
AT = Round(TASK, 7, digests.sha256(b"config"), digests.sha256(b"model"), CASE)
SLOTS = {"ada": 4, "bob": 1, "eve": 6}
UPDATES = {"ada": [3, 0, 0, 0, 0, 0], "bob": [0, -1, 2, 0, 0, 2], "eve": [0, 0, 0, 1, 1, 0]}
POINTS = (11, 2**40 + 7)


def shared(elements, randomness, modulus=P):
    """Return two shares."""
    first = [randomness.randrange(modulus) for _ in elements]
    return first, [(x - y) % modulus for x, y in zip(elements, first, strict=True)]


def careless_proof(x, rows, case):
    """Return a proof with the low bits of each number: what a prover sends that does not care whether they fit."""
    masks, field = Masks.fresh(case), case.field
    squares = sum_of_squares(x, masks, case)
    numbers = [(v + case.window) % field.modulus for v in proved_verifier.project(x, rows, case)]
    numbers.append((case.threshold - proved_verifier.squared_norm(squares, case)) % field.modulus)
    sent = [n >> i & 1 for n, count in zip(numbers, case.bit_counts, strict=True) for i in range(1, count)]
    bits = proved_verifier.all_bits(numbers, sent, case)
    u = field.add(
        field.interpolate([*bits, *[0] * (case.bit_domain - len(bits))]),
        field.times_vanishing(masks.bits, case.bit_domain),
    )
    quotient, _ = field.divide_by_vanishing(
        field.add(field.multiply(u, u), [-c % field.modulus for c in u]), case.bit_domain
    )
    return [*sent, *masks.wires[0], *masks.wires[1], *squares, *masks.bits, *quotient]


def rows_of(case, seed=b"challenge's seed"):
    return server.row_streams(seed, TASK, 7, case.dim)


def refused(kind):
    return pytest.raises(RefusedError, match=f"^{kind}$")


def until(step):
    """Return parties that are about to do a step."""
    parties = Parties.of(AT, SLOTS)
    parties.upload(UPDATES)
    parties.exchange("lock", [one.lock() for one in parties.servers])
    if step == "reveal":
        return parties
    parties.exchange("reveal", [one.reveal(parties.theirs("lock", one)) for one in parties.servers])
    if step == "challenge":
        return parties
    for one in parties.servers:
        one.challenge(parties.theirs("reveal", one))
    if step == "proofs":
        return parties
    parties.prove()
    parties.exchange("proofs", [one.proofs() for one in parties.servers])
    if step == "query":
        return parties
    for one in parties.servers:
        one.query(parties.theirs("proofs", one))
    return parties
