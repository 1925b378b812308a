"""What two servers show each other during validation: steps and lengths that depend on public values alone."""

import numpy as np
import pytest
from attack_vectors import CaseMaker
from fixed_randomness import are_uniform_bytes, random_bytes_of
from gate_costs import BYTES_PER_WORD, STEPS
from recording import RecordingChannel
from ring_strategies import as_ring

from deploy.audit import audit
from mpc import sharing, top_bits, validation
from mpc.channel import run_pair
from mpc.dealer import deal
from mpc.norm_bound import NormBound
from mpc.sharing import Mode
from mpc.tuples import BatchShape, ServerTuples

LOCK, COIN, PER_BINDING, FIELD_ELEMENT = 32, 32, 32, 16


def expected_messages(gate, n_clients, n_words, opening_bytes=None):
    """(label, length) of everything one server sends."""
    opening = [] if opening_bytes is None else [("validation/open", opening_bytes)]
    return [
        ("validation/lock", LOCK + PER_BINDING * n_clients),
        *opening,
        ("coin/reveal", COIN),
        *((label, size * n_words) for label, size in STEPS[gate.name]),
        ("equality/difference", FIELD_ELEMENT * n_clients),
        ("equality/masked", FIELD_ELEMENT * n_clients),
    ]


def conversation(vectors, bound, gate, *, mode=Mode.MASKED, name=None):
    """(verdicts, what A sent, what B sent) for ring vectors (n, d) in one round."""
    clients = tuple(f"c{i}" for i in range(len(vectors)))
    shape = BatchShape("task", 1, clients, bound.dim, top_bits.blocks(gate, len(clients), bound.low_bits))
    random = {} if name is None else {"random_bytes": random_bytes_of(name)}
    dealt = deal(shape, **random)
    sides = (ServerTuples(0, shape, dealt[0]), ServerTuples(1, shape, dealt[1]))
    held = ({}, {})
    for client, x in zip(clients, vectors, strict=True):
        if mode is Mode.MASKED:
            seeds = (sides[0].hand_out_mask_seed(client), sides[1].hand_out_mask_seed(client))
            held[0][client] = held[1][client] = sharing.mask(x, seeds, shape.label(client))
        else:
            held[0][client], held[1][client] = np.zeros_like(x), x

    def party(channel):
        log = RecordingChannel(channel)
        locked = validation.lock({c: bytes([7]) * 32 for c in clients}, shape, log)
        own, side = held[channel.party], sides[channel.party]
        opened = list(own.values()) if mode is Mode.MASKED else validation.open_masked(own, side, locked, log)
        return validation.validate(locked, opened, side, bound, gate, log).verdicts, log.sent

    (verdicts, sent_a), (same, sent_b) = run_pair(party)
    assert verdicts == same
    return verdicts, sent_a, sent_b


def lengths(sent):
    return [(label, len(payload)) for label, payload in sent]


VECTORS = {
    "all accepted": lambda m: [m.honest(), m.one_hot(m.B), m.honest()],
    "one rejected": lambda m: [m.honest(), m.one_hot(m.B + 1), m.honest()],
    "all rejected": lambda m: [m.one_hot(2**40), m.one_hot(m.B + 1), m.at(range(m.dim), 2**63)],
}


@pytest.mark.parametrize("dim", [3, 1000])
@pytest.mark.parametrize("kind", VECTORS)
def test_masked_form_sends_eleven_messages_that_depend_on_the_number_of_clients_only(dim, kind, gate):
    """Labels and lengths in order, at both servers, are the same for every d, every vector and every verdict."""
    bound = NormBound(1.0, dim)
    vectors = VECTORS[kind](CaseMaker(dim, 1.0))
    verdicts, *sent = conversation(vectors, bound, gate)
    assert sum(verdicts) == {"all accepted": 3, "one rejected": 2, "all rejected": 0}[kind]
    expected = expected_messages(gate, 3, 3 * 65)
    assert len(expected) == 11
    assert [lengths(log) for log in sent] == [expected, expected]


@pytest.mark.parametrize("dim", [3, 1000])
@pytest.mark.parametrize("kind", VECTORS)
def test_shares_form_sends_one_message_more_of_8_d_bytes_a_client(dim, kind, gate):
    """The opening comes between lock and coin; all else is as in the masked form."""
    _, *sent = conversation(VECTORS[kind](CaseMaker(dim, 1.0)), NormBound(1.0, dim), gate, mode=Mode.SHARES)
    expected = expected_messages(gate, 3, 3 * 65, opening_bytes=3 * 8 * dim)
    assert [lengths(log) for log in sent] == [expected, expected]


@pytest.mark.parametrize("n_clients", [1, 2, 9])
@pytest.mark.parametrize("n_rows", [1, 64])
def test_the_audit_reports_the_rounds_and_bytes_of_the_formula(n_clients, n_rows, gate):
    """11 rounds and 64 + n (64 + g (k + 1)) bytes per direction, with g = 208 bytes a word for CrypTen's gate and 144
    for ours: 13 584 and 9424 bytes a client with 64 rows."""
    report = audit(np.zeros((n_clients, 5), dtype=np.int64), NormBound(1.0, 5, n_rows=n_rows), gate=gate)
    assert report.rounds == 11
    assert report.bytes_per_direction == 64 + n_clients * (64 + BYTES_PER_WORD[gate.name] * (n_rows + 1))
    messages = expected_messages(gate, n_clients, n_clients * (n_rows + 1))
    assert report.bytes_per_direction == sum(size for _, size in messages)


@pytest.mark.parametrize("kind", ["zero", "one-hot B", "2^63 on all"])
def test_messages_of_the_gate_are_uniform_whatever_the_vector(kind, gate):
    """60 copies of one vector: each of the 7 messages of each server is uniform bytes, chi-square at 1e-6 each."""
    vector = {"zero": [0] * 4, "one-hot B": [2**16, 0, 0, 0], "2^63 on all": [2**63] * 4}[kind]
    _, *sent = conversation([as_ring(vector)] * 60, NormBound(1.0, 4), gate, name=kind)
    for label, payload in (message for log in sent for message in log):
        if label.startswith("gate/"):
            assert are_uniform_bytes(payload), label


def test_the_opening_of_the_shares_form_is_uniform(gate):
    """b of 50 zero vectors of 200 coordinates: what either server sends is uniform bytes, chi-square at 1e-6 each."""
    vectors = [np.zeros(200, dtype=np.int64)] * 50
    _, *sent = conversation(vectors, NormBound(1.0, 200), gate, mode=Mode.SHARES, name="opening")
    for log in sent:
        assert are_uniform_bytes(dict(log)["validation/open"])
