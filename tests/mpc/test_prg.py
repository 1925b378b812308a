"""Labels, keys and streams against a second implementation, and seeds that stay secret."""

import copy
import hashlib
import hmac
import itertools
import pickle

import numpy as np
import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from precad.mpc import prg
from precad.mpc.errors import ParameterError
from precad.mpc.prg import Label, Purpose, Seed
from tests.mpc.fixed_randomness import are_uniform_bytes, random_bytes_of, seeds

labels = st.builds(Label, task=st.text(max_size=6), round=st.integers(0, 2**70), client=st.text(max_size=6))
SECRET = bytes(range(0xA0, 0xB0))


def parts_of(encoded):
    """Reads length-prefixed parts: the inverse that makes the encoding injective."""
    parts = []
    while encoded:
        length, encoded = int.from_bytes(encoded[:4], "big"), encoded[4:]
        assert len(encoded) >= length
        parts.append(encoded[:length])
        encoded = encoded[length:]
    return parts


def hkdf_sha256(secret, info):
    """RFC 5869 for up to 32 bytes and an absent salt: extract, then one block of expand."""
    pseudorandom_key = hmac.new(bytes(32), secret, hashlib.sha256).digest()
    return hmac.new(pseudorandom_key, info + b"\x01", hashlib.sha256).digest()


def aes_counter_words(key, n_words):
    """AES-128 of the block numbers 0, 1, ... (big-endian), each block by itself, as little-endian words."""
    encryptor = Cipher(algorithms.AES128(key), modes.ECB()).encryptor()
    blocks = encryptor.update(b"".join(i.to_bytes(16, "big") for i in range(-(-n_words // 2))))
    return [int.from_bytes(blocks[8 * i : 8 * i + 8], "little", signed=True) for i in range(n_words)]


@given(label=labels, purpose=st.sampled_from(Purpose))
def test_labels_can_be_read_back(label, purpose):
    """Version, purpose, task, round and client are all recovered from the encoding, so it is injective."""
    expected = [b"precad/v1", bytes([purpose]), label.task.encode(), str(label.round).encode(), label.client.encode()]
    assert parts_of(label.encode(purpose)) == expected


def test_purposes_have_numbers_of_their_own():
    """No name is an alias: a number given twice would give two uses one stream."""
    assert len(Purpose.__members__) == len(set(map(int, Purpose.__members__.values()))) == len(Purpose)


@given(secret=st.binary(min_size=16, max_size=16), skipped=st.integers(0, 300), n_words=st.integers(0, 40))
def test_a_stream_can_be_read_from_any_word_on(secret, skipped, n_words):
    """`after` gives what the whole stream has there, from within a block of AES as well."""
    whole = prg.expand(Seed(secret), skipped + n_words)
    words = np.empty(n_words, dtype=np.int64)

    prg.Stream(Seed(secret)).after(skipped).fill(words)

    assert_array_equal(whole[skipped:], words)


def test_every_purpose_task_round_and_client_has_its_own_key():
    """Under one seed, all combinations give different keys, strings that concatenate alike included."""
    tasks, rounds, clients = ("", "a", "ab", "a1", "1"), (0, 1, 10, 11), ("", "b", "1", "1b", "0")
    keys = {
        prg.derive(Seed(SECRET), purpose, Label(task, round, client)).reveal()
        for purpose, task, round, client in itertools.product(Purpose, tasks, rounds, clients)
    }
    assert len(keys) == len(Purpose) * len(tasks) * len(rounds) * len(clients)


@given(secret=st.binary(min_size=16, max_size=16), label=labels, purpose=st.sampled_from(Purpose))
def test_derive_is_hkdf_by_hand(secret, label, purpose):
    """The key is the first 16 bytes of RFC 5869's output, computed with hmac alone."""
    assert prg.derive(Seed(secret), purpose, label).reveal() == hkdf_sha256(secret, label.encode(purpose))[:16]


@pytest.mark.parametrize("n_words", [0, 1, 2, 3, 511, 1000])
def test_expand_is_aes_of_the_block_numbers(n_words):
    """The stream equals single AES blocks of the counter, encrypted one by one."""
    words = prg.expand(Seed(SECRET), n_words)
    assert words.dtype == np.int64
    assert words.tolist() == aes_counter_words(SECRET, n_words)


@pytest.mark.parametrize("is_gcm_faster", [False, True])
@pytest.mark.parametrize("reads", [(16_383, 16_384), (16_384, 1, 2, 40_000), (0, 20_000), (1, 20_000), (40_000,)])
def test_long_streams_are_aes_of_the_block_numbers(monkeypatch, is_gcm_faster, reads):
    """Whichever mode of AES is faster here, and however the stream is cut into reads."""
    monkeypatch.setattr(prg, "_is_gcm_faster", lambda: is_gcm_faster)
    stream, found = prg.Stream(Seed(SECRET)), [np.empty(n_words, dtype=np.int64) for n_words in reads]
    for words in found:
        stream.fill(words)
    assert np.concatenate(found).tolist() == aes_counter_words(SECRET, sum(reads))


@pytest.mark.parametrize(
    ("n_skipped", "reads", "n_ciphers"),
    [(0, (16_384, 16_384), 1), (0, (0, 16_384), 1), (0, (16_383, 16_384), 0), (2, (16_384,), 0), (1, (16_384,), 0)],
)
def test_a_long_first_read_from_the_start_alone_takes_gcm(monkeypatch, n_skipped, reads, n_ciphers):
    """GCM begins at block 2, so that what is read from elsewhere stays with CTR."""
    made, of_gcm = [], prg._encryptor_behind_two_blocks
    monkeypatch.setattr(prg, "_encryptor_behind_two_blocks", lambda key: made.append(key) or of_gcm(key))
    monkeypatch.setattr(prg, "_is_gcm_faster", lambda: True)
    stream = prg.Stream(Seed(SECRET), n_skipped=n_skipped)
    for n_words in reads:
        stream.fill(np.empty(n_words, dtype=np.int64))
    assert made == [Seed(SECRET)] * n_ciphers


def test_a_cipher_that_fails_takes_nothing_of_the_stream(monkeypatch):
    """A first read that is tried again gives the stream's first words: no word would be used twice."""
    fails, of_gcm = [True], prg._encryptor_behind_two_blocks
    monkeypatch.setattr(prg, "_is_gcm_faster", lambda: True)
    monkeypatch.setattr(prg, "_encryptor_behind_two_blocks", lambda key: of_gcm(key) if not fails else fails.pop(0) / 0)
    stream, words = prg.Stream(Seed(SECRET)), np.zeros(20_000, dtype=np.int64)
    with pytest.raises(ZeroDivisionError):
        stream.fill(words)
    assert not words.any()
    stream.fill(words)
    assert words.tolist() == aes_counter_words(SECRET, words.size)


def test_without_gcm_streams_are_ctr(monkeypatch):
    """An OpenSSL may have none."""

    def of_gcm(key):
        raise UnsupportedAlgorithm("GCM")

    monkeypatch.setattr(prg, "_encryptor_behind_two_blocks", of_gcm)
    assert prg._is_gcm_faster.__wrapped__() is False


def test_stream_is_expand_of_derive_by_hand():
    """stream(seed, purpose, label) from hmac and AES blocks alone."""
    label = Label("digits", 7, "client-3")
    key = hkdf_sha256(SECRET, label.encode(Purpose.MASK))[:16]
    assert prg.stream(Seed(SECRET), Purpose.MASK, label, 5).tolist() == aes_counter_words(key, 5)


def test_expanded_bytes_are_aes_of_the_block_numbers_under_the_key_drawn():
    """One key is drawn, and every byte follows it once, however many are asked for at a time."""
    asked = []
    draw = prg.expanded_bytes(lambda n: asked.append(n) or SECRET)
    found = b"".join(draw(n) for n in (0, 5, 11, 1, 7, 16, 40))
    assert found == np.array(aes_counter_words(SECRET, 10)).astype("<i8").tobytes()
    assert asked == [16]


def test_no_two_draws_are_expanded_from_one_key():
    draws = {prg.expanded_bytes()(32) for _ in range(1000)}
    assert len(draws) == 1000
    assert are_uniform_bytes(b"".join(draws))


def test_a_longer_stream_begins_with_the_shorter_one():
    """The length asked for does not enter the stream."""
    assert_array_equal(prg.expand(Seed(SECRET), 100)[:37], prg.expand(Seed(SECRET), 37))


def test_first_words_under_many_seeds_are_uniform():
    """Bytes of the first word under 20 000 seeds, chi-square at 1e-6."""
    words = [prg.stream(seed, Purpose.MASK, Label("t", 0), 1) for seed in seeds("first words", 20_000)]
    assert are_uniform_bytes(np.concatenate(words).tobytes())


@pytest.mark.parametrize("show", [repr, str, format, "{!s:>40}".format, "{0!r}".format, "%s".__mod__, ascii])
def test_a_seed_shows_nothing(show):
    """Every way to print a seed gives the word REDACTED and none of its bytes."""
    shown = show(Seed(SECRET))
    assert shown.strip() == "Seed(REDACTED)"


def test_a_seed_inside_containers_and_errors_shows_nothing():
    """Printing what holds a seed prints REDACTED."""
    assert repr([Seed(SECRET), {"key": Seed(SECRET)}]) == "[Seed(REDACTED), {'key': Seed(REDACTED)}]"
    assert str(ValueError(Seed(SECRET))) == "Seed(REDACTED)"


@pytest.mark.parametrize("leave", [*(lambda s, p=p: pickle.dumps(s, p) for p in range(6)), copy.copy, copy.deepcopy])
def test_a_seed_is_neither_pickled_nor_copied(leave):
    """Whatever serialises objects unasked meets a TypeError."""
    with pytest.raises(TypeError, match="a Seed is not pickled"):
        leave(Seed(SECRET))


def test_seeds_compare_by_value_and_cannot_be_hashed():
    """Equal bytes are equal seeds; a dictionary keyed by secrets is refused."""
    assert Seed(SECRET) == Seed(bytes(SECRET))
    assert Seed(SECRET) != Seed(SECRET[::-1])
    assert Seed(SECRET) != SECRET
    with pytest.raises(TypeError):
        hash(Seed(SECRET))


@pytest.mark.parametrize("length", [0, 15, 17, 32])
def test_a_seed_of_another_length_is_refused_without_its_bytes(length):
    """ParameterError names the lengths only."""
    with pytest.raises(ParameterError) as caught:
        Seed(b"\x5a" * length)
    assert str(caught.value) == f"seed: expected 16 bytes, found {length}"


def test_random_seeds_come_from_the_generator_given():
    """Seed.random takes 16 bytes of its source, and two draws from the system differ."""
    assert Seed.random(random_bytes_of("x")).reveal() == random_bytes_of("x")(16)
    assert Seed.random() != Seed.random()
