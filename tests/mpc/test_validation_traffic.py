"""Messages that two servers exchange during validation: steps and lengths that depend on public values alone."""

import numpy as np
import pytest

from precad.deploy.oversight.validation_audit import audit
from precad.mpc import sharing, validation
from precad.mpc.channel import run_pair
from precad.mpc.gate import top_bits
from precad.mpc.locking import lock_list
from precad.mpc.norm_bound import NormBound
from precad.mpc.parameters import DEALT_MODES, Mode
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, ServerTuples
from tests.mpc.attack_vectors import CaseMaker
from tests.mpc.fixed_randomness import are_uniform, are_uniform_bytes, random_bytes_of
from tests.mpc.gate_costs import GATE_ROUNDS, MAX_ROUNDS, ROUNDS, groups_of, steps
from tests.mpc.recording import RecordingChannel
from tests.mpc.ring_strategies import as_ring

LOCK, COIN, PER_BINDING, FIELD_ELEMENT = 32, 32, 32, 16


def expected_messages(gate, n_clients, bound, mode):
    """(label, length) of everything one server sends. In the `shares` form 8d bytes a client come with the coin."""
    return [
        ("validation/lock", LOCK + PER_BINDING * n_clients),
        ("coin/reveal", COIN + (8 * bound.dim * n_clients if mode is Mode.SHARES else 0)),
        *steps(gate.name, groups_of(n_clients, bound.n_rows, bound.low_bits[-1])),
        ("equality/difference", FIELD_ELEMENT * n_clients),
        ("equality/commit", 32),
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
        locked = lock_list({c: bytes([7]) * 32 for c in clients}, shape.label(), shape.clients, log)
        reveal = validation.reveal if mode is Mode.MASKED else validation.reveal_and_open
        revealed = reveal(locked, held[channel.party], sides[channel.party], log)
        return validation.validate(revealed, sides[channel.party], bound, gate, log).verdicts, log.sent

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


@pytest.mark.parametrize("mode", DEALT_MODES)
@pytest.mark.parametrize("dim", [3, 1000])
@pytest.mark.parametrize("kind", VECTORS)
def test_messages_depend_on_public_values_only(dim, kind, mode, gate):
    """Labels and lengths in order, at both servers, are the same for every vector and every verdict.

    There are 13 messages with CrypTen's gate and 8 with ours, in either form. Only one of their lengths depends on d,
    that of the `shares` form's opening.
    """
    bound = NormBound(1.0, dim)
    vectors = VECTORS[kind](CaseMaker(dim, 1.0))
    verdicts, *sent = conversation(vectors, bound, gate, mode=mode)
    assert sum(verdicts) == {"all accepted": 3, "one rejected": 2, "all rejected": 0}[kind]
    expected = expected_messages(gate, 3, bound, mode)
    assert len(expected) == ROUNDS[gate.name] <= MAX_ROUNDS
    assert [lengths(log) for log in sent] == [expected, expected]


@pytest.mark.parametrize("n_clients", [1, 2, 9])
@pytest.mark.parametrize("n_rows", [1, 64])
@pytest.mark.parametrize("mode", DEALT_MODES)
def test_the_audit_reports_the_rounds_and_bytes_of_the_formula(n_clients, n_rows, mode, gate):
    """Lock, coin, the gate's steps, the additive carries and three of the verdict, in both forms."""
    bound = NormBound(1.0, 5, n_rows=n_rows)
    report = audit(np.zeros((n_clients, 5), dtype=np.int64), bound, gate=gate, mode=mode)
    messages = expected_messages(gate, n_clients, bound, mode)
    assert report.rounds == len(messages) == ROUNDS[gate.name]
    assert report.bytes_per_direction == sum(size for _, size in messages)


def test_rounds_are_the_gates_and_six():
    """Lock, coin, additive carries and three for the verdict: 13 at most."""
    assert {name: rounds + 6 for name, rounds in GATE_ROUNDS.items()} == ROUNDS
    assert max(ROUNDS.values()) <= MAX_ROUNDS


BUDGETS = [(n_clients, clip) for n_clients in (1, 8, 32) for clip in (0.5, 1.0, 30.0, 1000.0)]


@pytest.mark.parametrize(("n_clients", "clip"), BUDGETS)
def test_the_dealers_corrections_are_at_most_7_kb_a_client(n_clients, clip, gate):
    """Count what server B gets for a batch, whatever the bound: bits of one client's norm alone fill few of their
    lanes.
    """
    bound = NormBound(clip, 3)
    clients = tuple(f"c{i}" for i in range(n_clients))
    _, dealt = deal(BatchShape("task", 1, clients, 3, top_bits.blocks(gate, n_clients, bound.low_bits)))
    n_bytes = len(dealt.key.reveal()) + len(dealt.peer_seed_digests)
    n_bytes += sum(v.nbytes for v in (dealt.squared_masks, dealt.equality, dealt.products))
    assert n_bytes <= 7000 * n_clients


@pytest.mark.parametrize(("n_clients", "clip"), BUDGETS)
def test_servers_send_at_most_10_kb_a_client_after_the_lock(n_clients, clip, gate):
    """Each of them, by either gate: 1.7 kB by ours and 6.9 kB by CrypTen's, where eight clients share their lanes."""
    vectors = np.zeros((n_clients, 3), dtype=np.int64)
    _, *sent = conversation(vectors, NormBound(clip, 3), gate)
    for log in sent:
        n_bytes = sum(len(payload) for label, payload in log if label != "validation/lock")
        assert n_bytes <= 10_000 * n_clients
        if n_clients == 32:
            assert n_bytes <= {"crypten": 7100, "native": 1800}[gate.name] * n_clients


@pytest.mark.parametrize("kind", ["zero", "one-hot B", "2^63 on all"])
def test_messages_of_the_gate_are_uniform_whatever_the_vector(kind, gate):
    """60 copies of one vector: each message of each server is uniform bytes, chi-square at 1e-6 each.

    Where a message has too few bytes, it is uniform half bytes.
    """
    vector = {"zero": [0] * 4, "one-hot B": [2**16, 0, 0, 0], "2^63 on all": [2**63] * 4}[kind]
    _, *sent = conversation([as_ring(vector)] * 60, NormBound(1.0, 4), gate, name=kind)
    for label, payload in (message for log in sent for message in log):
        if label == "gate/carries":
            halves = np.frombuffer(payload, dtype=np.uint8)[:, np.newaxis] >> np.array([0, 4]) & 15
            assert are_uniform(np.bincount(halves.reshape(-1), minlength=16))
        elif label.startswith("gate/"):
            assert are_uniform_bytes(payload), label


def test_the_opening_of_the_shares_form_is_uniform(gate):
    """b of 50 zero vectors of 200 coordinates: what either server sends is uniform bytes, chi-square at 1e-6 each."""
    vectors = [np.zeros(200, dtype=np.int64)] * 50
    _, *sent = conversation(vectors, NormBound(1.0, 200), gate, mode=Mode.SHARES, name="opening")
    for log in sent:
        assert are_uniform_bytes(dict(log)["coin/reveal"][COIN:])
