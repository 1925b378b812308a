"""The masked-equality opening: who is accepted, and what each server sees on the way."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precad.mpc.channel import run_pair
from precad.mpc.errors import CommitmentError, MalformedMessageError, ParameterError
from precad.mpc.gate.equality import all_zero, commitment, hash_key, polynomial_hashes
from precad.mpc.prg import Label, Seed
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, ServerTuples
from tests.mpc.field_twin import integers
from tests.mpc.fixed_randomness import are_uniform, random_bytes_of
from tests.mpc.recording import RecordingChannel
from tests.mpc.ring_strategies import random_words, ring_vectors

P = 2**127 - 1
ELEMENT = 16
KEY = hash_key(Seed(bytes(16)), Label("task", 0))


def equality_tuples(n, **kwargs):
    """Both servers' tuples for n strings."""
    shape = BatchShape("equality", 0, tuple(f"c{i}" for i in range(n)), 1, ())
    dealt = deal(shape, **kwargs)
    return [ServerTuples(p, shape, dealt[p]).equality_tuples(shape.clients) for p in (0, 1)]


def compared(a, b, *, key=KEY, tuples=None):
    """Verdicts of both parties, what each sent, and the opened z, for strings a and b of shape (n, w)."""
    tuples = tuples or equality_tuples(len(a))

    def party(channel):
        log = RecordingChannel(channel)
        verdicts = all_zero((a, b)[channel.party], key, tuples[channel.party], log)
        return verdicts, log.sent

    (verdicts, sent_a), (same, sent_b) = run_pair(party)
    assert verdicts == same
    z = [(x + y) % P for x, y in zip(*(field_elements(s[-1]) for s in (sent_a, sent_b)), strict=True)]
    return verdicts, (sent_a, sent_b), z


def field_elements(message):
    _, payload = message
    assert len(payload) % ELEMENT == 0
    return [int.from_bytes(payload[i : i + ELEMENT], "little") for i in range(0, len(payload), ELEMENT)]


@given(words=ring_vectors(max_dim=70), key=st.integers(0, P - 1))
def test_the_hash_is_the_polynomial_of_the_unsigned_words(words, key):
    """sum_j w_j key^(m+1-j) mod p with w_j in [0, 2^64), by Python's powers."""
    unsigned = [word % 2**64 for word in words.tolist()]
    expected = sum(word * pow(key, len(unsigned) - j, P) for j, word in enumerate(unsigned)) % P
    assert integers(polynomial_hashes(words[np.newaxis], key)) == [expected]


def test_the_key_is_a_field_element_of_the_round():
    """127 bits of the coin's stream; another seed, round or task gives another key."""
    keys = {
        hash_key(seed, label)
        for seed in (Seed(bytes(16)), Seed(bytes(range(16))))
        for label in (Label("a", 0), Label("a", 1), Label("b", 0))
    }
    assert len(keys) == 6
    assert all(0 <= key <= P for key in keys)
    assert max(keys) >= 2**120  # the high word is used


@pytest.mark.parametrize("n_words", [1, 9, 65])
def test_equal_strings_are_accepted(n_words):
    """XOR shares of zero are one string held twice: 200 random ones, and z is zero for each."""
    strings = random_words(f"equal {n_words}", 200, n_words)
    verdicts, _, z = compared(strings, strings)
    assert verdicts == [True] * 200
    assert z == [0] * 200


def test_any_flipped_bit_is_rejected():
    """All 4160 single-bit differences between strings of 65 words; a collision has odds below 4160 * 66 / 2^127."""
    n = 65 * 64
    a = np.tile(random_words("flips", 65), (n, 1))
    b = a.copy()
    for bit in range(n):
        b[bit, bit // 64] ^= np.int64(-(2**63) if bit % 64 == 63 else 1 << bit % 64)
    verdicts, _, z = compared(a, b)
    assert verdicts == [False] * n
    assert 0 not in z


def test_verdicts_belong_to_their_clients():
    """A mixed batch: each string's verdict stands in its place."""
    a = random_words("mixed", 40, 65)
    b = a.copy()
    differs = np.arange(40) % 3 == 1
    b[differs, 7] += 1
    assert compared(a, b)[0] == (~differs).tolist()


def test_z_of_one_pair_of_unequal_strings_is_uniform_over_tuples():
    """Open uniform bits about a rejected client: the top 4 of z over 2000 tuples, chi-square at 1e-6; never zero."""
    n = 2000
    a, b = np.zeros((n, 2), dtype=np.int64), np.tile([[0, 1]], (n, 1))
    verdicts, _, z = compared(a, b, tuples=equality_tuples(n, random_bytes=random_bytes_of("z")))
    assert not any(verdicts)
    assert are_uniform(np.bincount([value >> 123 for value in z], minlength=16))


def test_messages_about_constant_strings_are_uniform():
    """Send uniform elements in each step, at each server: top 4 bits over 2000 tuples, chi-square at 1e-6 each."""
    strings = np.full((2000, 2), 42)
    _, sent, _ = compared(strings, strings, tuples=equality_tuples(2000, random_bytes=random_bytes_of("messages")))
    for message in (message for log in sent for message in log if message[0] != "equality/commit"):
        assert are_uniform(np.bincount([value >> 123 for value in field_elements(message)], minlength=16))


def test_two_rounds_of_sixteen_bytes_per_client_and_a_commitment():
    """All steps have the length of the number of clients, accepted or not."""
    a = random_words("length", 6, 3)
    b = np.where(np.arange(6)[:, None] < 3, a, ~a)
    verdicts, sent, _ = compared(a, b)
    assert verdicts == [True] * 3 + [False] * 3
    for log in sent:
        assert [(label, len(payload)) for label, payload in log] == [
            ("equality/difference", 96),
            ("equality/commit", 32),
            ("equality/masked", 96),
        ]


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("value", [P, P + 1, 2**127 + 5, 2**128 - 1])
def test_elements_outside_the_field_are_refused(step, value):
    """A peer's element from p upward is MalformedMessageError in either step, and not quoted."""
    tuples, strings = equality_tuples(1), np.zeros((1, 2), dtype=np.int64)

    def party(channel):
        if channel.party == 0:
            return all_zero(strings, KEY, tuples[0], channel)
        elements = [0, 0]
        elements[step - 1] = value
        channel.exchange("equality/difference", elements[0].to_bytes(ELEMENT, "little"))
        channel.exchange("equality/commit", bytes(32))
        return channel.exchange("equality/masked", elements[1].to_bytes(ELEMENT, "little"))

    with pytest.raises(MalformedMessageError, match=r"carries a value outside F_p$"):
        run_pair(party)


def test_a_message_for_another_number_of_clients_is_refused():
    """Parties that hold different numbers of strings get an error, not a verdict."""
    tuples = equality_tuples(3)
    with pytest.raises(MalformedMessageError):
        run_pair(
            lambda ch: all_zero(np.zeros((2 + ch.party, 2), dtype=np.int64), KEY, tuples[ch.party][: 2 + ch.party], ch)
        )


def test_tuples_must_match_the_strings_in_number():
    """A missing tuple is a programming error that raises before anything is sent."""
    with pytest.raises(ParameterError, match=r"^tuples: expected shape \(2, 3, 2\), found \(1, 3, 2\)$"):
        compared(np.zeros((2, 2), dtype=np.int64), np.zeros((2, 2), dtype=np.int64), tuples=equality_tuples(1))


@pytest.mark.parametrize("length", [0, 15, 17, 32])
def test_a_message_of_another_length_is_malformed(length):
    """One element of 16 bytes per client in each step, or MalformedMessageError with the step's name."""
    tuples, strings = equality_tuples(1), np.zeros((1, 2), dtype=np.int64)

    def party(channel):
        if channel.party == 0:
            return all_zero(strings, KEY, tuples[0], channel)
        return channel.exchange("equality/difference", bytes(length))

    with pytest.raises(MalformedMessageError, match=f"^step 'equality/difference': expected 16 bytes, found {length}$"):
        run_pair(party)


@pytest.mark.parametrize("wanted", [True, False])
def test_who_answers_last_decides_no_verdict(wanted):
    """A peer that has read our share of z completes it to what is not so: CommitmentError, no verdict."""
    tuples, strings = equality_tuples(1), np.zeros((1, 2), dtype=np.int64)
    theirs_to_compare = strings + 1 if wanted else strings

    def party(channel):
        if channel.party == 0:
            return all_zero(strings, KEY, tuples[0], channel)
        share = EqualityShares(channel, tuples[1], theirs_to_compare)
        theirs = share.peek_at_z()
        return share.answer(((0 if wanted else 1) - theirs) % P)

    with pytest.raises(CommitmentError, match="not the ones that it committed to"):
        run_pair(party)


def test_a_commitment_is_of_its_party_and_of_its_round():
    """An echoed one, and one of another round, fit no share."""
    z_share = np.array([[5, 7]], dtype=np.uint64)
    kinds = {commitment(0, KEY, z_share), commitment(1, KEY, z_share), commitment(0, KEY ^ 1, z_share)}
    assert len(kinds) == 3


class EqualityShares:
    """A party that follows the protocol until it has to open its share of z, and is read to before it opens it."""

    def __init__(self, channel, tuples, strings):
        self._channel = channel
        (rho, omega, product) = [int(x[0]) % 2**64 + (int(x[1]) % 2**64 << 64) for x in tuples[0]]
        mine = -integers(polynomial_hashes(strings, KEY))[0] - omega
        received = channel.exchange("equality/difference", (mine % P).to_bytes(ELEMENT, "little"))
        e = (mine + int.from_bytes(received, "little")) % P
        z_share = (rho * e + product) % P
        words = np.array([[z_share % 2**64, z_share >> 64]], dtype=np.uint64)
        channel.exchange("equality/commit", commitment(1, KEY, words))

    def peek_at_z(self):
        _, payload = self._channel._inbox.get()
        return int.from_bytes(payload, "little")

    def answer(self, share):
        self._channel._peer._inbox.put(("equality/masked", share.to_bytes(ELEMENT, "little")))
