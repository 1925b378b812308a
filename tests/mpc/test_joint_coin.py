"""The joint coin against SHA-256 by hand and against peers that cheat, and the selection that it draws."""

import hashlib
import math
import os
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precad.mpc import prg
from precad.mpc.channel import run_pair
from precad.mpc.errors import CommitmentError, MalformedMessageError, ParameterError
from precad.mpc.joint_coin import CoinShare, commit, digest, reveal, select_poisson
from precad.mpc.prg import Label, Purpose, Seed
from tests.mpc.fixed_randomness import are_uniform, random_bytes_of, seeds

COIN_A, COIN_B, COIN_C = (bytes([letter]) * 32 for letter in b"abc")
LABEL = Label("task", 5)


def sha256_of_parts(*parts):
    """SHA-256 over version and parts, each behind its length in eight bytes."""
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in (b"precad/v1", *parts))).digest()


def toss(context, transcript, channel, random_bytes=os.urandom):
    """Both rounds."""
    return reveal(*commit(context, channel, random_bytes), transcript, channel)


def tossed(coin_a, coin_b, *, context="draw", transcript=b""):
    """Both parties' seeds when their generators give these coins."""
    return run_pair(lambda ch: toss(context, transcript, ch, lambda n: (coin_a, coin_b)[ch.party][:n]).reveal())


def run_against(peer, party=0):
    """An honest toss as `party`, with coin A, against `peer(channel)` at the other end."""
    return run_pair(lambda ch: toss("draw", b"", ch, lambda n: COIN_A) if ch.party == party else peer(ch))


@given(st.lists(st.binary(max_size=5), max_size=4), st.lists(st.binary(max_size=5), max_size=4))
def test_digest_is_injective_in_the_sequence_of_parts(parts, others):
    """Different sequences have different digests, those that concatenate alike included."""
    assert digest(*parts) == sha256_of_parts(*parts)
    assert (digest(*parts) == digest(*others)) == (parts == others)


def test_both_parties_hold_the_hash_of_both_coins():
    """The seed is SHA-256 of context, A's coin, B's coin and transcript, in this order at both ends."""
    expected = sha256_of_parts(b"joint coin", b"draw", COIN_A, COIN_B, b"locked")[:16]
    assert tossed(COIN_A, COIN_B, transcript=b"locked") == (expected, expected)


def test_every_input_changes_the_coin():
    """Either half, their order, the context and the transcript each give another seed."""
    coins = [
        tossed(COIN_A, COIN_B),
        tossed(COIN_A, COIN_C),
        tossed(COIN_C, COIN_B),
        tossed(COIN_B, COIN_A),
        tossed(COIN_A, COIN_B, context="other"),
        tossed(COIN_A, COIN_B, transcript=b"x"),
    ]
    assert all(a == b for a, b in coins)
    assert len({a for a, _ in coins}) == len(coins)


def test_coins_of_the_system_are_fresh():
    """Two tosses agree between the parties and not with each other."""
    (first, same), (second, _) = (run_pair(lambda ch: toss("draw", b"", ch).reveal()) for _ in range(2))
    assert first == same != second


def test_a_commitment_is_bound_to_party_context_and_coin():
    """Changing any of the three changes the commitment; it is a hash by hand, and the coin is not printed."""
    share = CoinShare(0, "draw", COIN_A)
    assert share.commitment == sha256_of_parts(b"coin commitment", b"\x00", b"draw", COIN_A)
    others = [CoinShare(1, "draw", COIN_A), CoinShare(0, "other", COIN_A), CoinShare(0, "draw", COIN_B)]
    assert share.commitment not in [other.commitment for other in others]
    assert repr(share) == "CoinShare(party=0, context='draw')"


@pytest.mark.parametrize("party", [0, 1])
def test_a_peer_that_reveals_another_coin_is_caught(party):
    """Committing to one coin and revealing another raises CommitmentError at the honest party, whichever it is."""

    def equivocate(channel):
        channel.exchange("coin/commit", CoinShare(channel.party, "draw", COIN_B).commitment)
        channel.exchange("coin/reveal", COIN_C)

    with pytest.raises(CommitmentError, match="the peer's coin for 'draw'"):
        run_against(equivocate, party)


@pytest.mark.parametrize("party", [0, 1])
def test_a_peer_that_echoes_our_commitment_and_our_coin_is_caught(party):
    """An echo would make the coin a constant of the attacker's choice; commitments name their party."""

    def echo(channel):
        channel.exchange("coin/commit", CoinShare(party, "draw", COIN_A).commitment)
        channel.exchange("coin/reveal", COIN_A)

    with pytest.raises(CommitmentError):
        run_against(echo, party)


def test_a_commitment_from_another_context_is_caught():
    """A coin that was committed to for another use does not open here."""

    def replay(channel):
        channel.exchange("coin/commit", CoinShare(1, "yesterday", COIN_B).commitment)
        channel.exchange("coin/reveal", COIN_B)

    with pytest.raises(CommitmentError):
        run_against(replay)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_coin_of_another_length_is_malformed(length):
    """A revealed coin has 32 bytes; the message quotes none of them."""

    def truncate(channel):
        channel.exchange("coin/commit", CoinShare(1, "draw", b"b" * length).commitment)
        channel.exchange("coin/reveal", b"b" * length)

    with pytest.raises(MalformedMessageError) as caught:
        run_against(truncate)
    assert str(caught.value) == f"coin: expected 32 bytes, found {length}"


def test_parties_that_toss_for_different_contexts_do_not_agree_on_a_coin():
    """Honest parties that are out of step, one tossing for another use, get an error and no coin."""
    with pytest.raises(CommitmentError):
        run_pair(lambda ch: toss(f"draw {ch.party}", b"", ch))


# Selection


def clients(n):
    return [f"client-{i}" for i in range(n)]


@pytest.mark.parametrize("rate", [0.0, 2.0**-64, 2.0**-11, 0.1, 0.3, 0.5, 1 - 2.0**-53, 1.0])
def test_a_client_is_selected_when_its_word_over_2_to_the_64_is_below_q(rate):
    """The selection against rationals, one client at a time; q = 0 selects nobody, q = 1 everybody."""
    seed, names = Seed(bytes(16)), clients(500)
    words = [int(word) % 2**64 for word in prg.stream(seed, Purpose.SELECTION, LABEL, 500)]
    expected = [c for c, word in zip(names, words, strict=True) if Fraction(word, 2**64) < Fraction(rate)]
    assert select_poisson(seed, LABEL, names, rate) == expected
    if rate in (0, 1):
        assert expected == [[], names][int(rate)]


def test_a_word_that_equals_the_threshold_is_not_selected():
    """The comparison is strict, so the probability is exactly q: q 2^64 of the 2^64 words are below it."""
    seed = Seed(bytes(16))
    word = int(prg.stream(seed, Purpose.SELECTION, LABEL, 1)[0]) % 2**64
    assert select_poisson(seed, LABEL, ["ada"], Fraction(word, 2**64)) == []
    assert select_poisson(seed, LABEL, ["ada"], Fraction(word + 1, 2**64)) == ["ada"]


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_nobody_enrolled_selects_nobody(rate):
    """The empty round is a proper outcome."""
    assert select_poisson(Seed(bytes(16)), LABEL, [], rate) == []


@pytest.mark.parametrize("rate", [-0.1, math.nextafter(0, -1), math.nextafter(1, 2), math.inf, math.nan])
def test_rates_that_are_no_probability_are_refused(rate):
    """NaN included."""
    with pytest.raises(ParameterError, match=r"sampling_rate: expected a number in \[0, 1\], found"):
        select_poisson(Seed(bytes(16)), LABEL, clients(1), rate)


def is_within_5_sigma(count, trials, probability):
    return abs(count - trials * probability) < 5 * math.sqrt(trials * probability * (1 - probability))


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.9])
def test_selection_has_the_rate_and_is_independent_between_clients_and_rounds(rate):
    """50 000 clients in two rounds of one seed: rate, neighbours and rounds each within 5 sigma (6e-7 two-sided)."""
    n, names = 50_000, clients(50_000)
    seed = Seed.random(random_bytes_of(f"selection {rate}"))
    one, other = (
        np.isin(names, select_poisson(seed, Label("task", t), names, rate), assume_unique=True) for t in (0, 1)
    )
    assert is_within_5_sigma(int(one.sum()), n, rate)
    assert is_within_5_sigma(int((one & other).sum()), n, rate**2)
    assert is_within_5_sigma(int((one[0::2] & one[1::2]).sum()), n // 2, rate**2)


def test_the_number_selected_is_binomial_over_seeds():
    """Three clients, q = 1/2, 16 000 seeds: each of the 8 selections equally often, chi-square at 1e-6."""
    names = clients(3)
    counts = np.zeros(8)
    for seed in seeds("subsets", 16_000):
        selected = select_poisson(seed, LABEL, names, 0.5)
        counts[sum(1 << names.index(c) for c in selected)] += 1
    assert are_uniform(counts)
