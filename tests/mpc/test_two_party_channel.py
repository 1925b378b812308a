"""The in-process channel: order, labels, and that nobody waits for a party that is gone."""

import threading
from concurrent.futures import Future

import pytest

from precad.mpc.channel import exchange_alike, memory_pair, run_pair
from precad.mpc.errors import ChannelClosedError, MalformedMessageError, PeerMismatchError

# A hang is a failure, and one that only ends with the process: the parties' threads are waited for on the way out.
pytestmark = pytest.mark.timeout(120, method="thread")


def test_an_exchange_swaps_the_payloads():
    """Each party gets what the other sent in the same step, step after step, and counts its own bytes and rounds."""

    def program(channel):
        mine = [bytes([channel.party, step]) * (step + 1) for step in range(3)]
        received = [channel.exchange(f"step {step}", payload) for step, payload in enumerate(mine)]
        return received, channel.bytes_sent, channel.rounds

    (at_a, sent_a, rounds_a), (at_b, sent_b, rounds_b) = run_pair(program)
    assert at_a == [b"\x01\x00", b"\x01\x01" * 2, b"\x01\x02" * 3]
    assert at_b == [b"\x00\x00", b"\x00\x01" * 2, b"\x00\x02" * 3]
    assert (sent_a, sent_b, rounds_a, rounds_b) == (12, 12, 3, 3)


@pytest.mark.parametrize("n_bytes", [0, 7, 9])
def test_a_step_of_equal_lengths_takes_no_other(n_bytes):
    """Neither a shorter payload of the peer's nor a longer one, which a caller would cut."""
    ours, theirs = memory_pair()
    theirs._peer._inbox.put(("step", bytes(n_bytes)))
    with pytest.raises(MalformedMessageError, match=f"step 'step': expected 8 bytes, found {n_bytes}"):
        exchange_alike(ours, "step", bytes(8))


def test_run_pair_returns_the_results_in_the_order_of_the_parties():
    """Party 0's result comes first, and each party runs in a thread of its own."""

    def program(channel):
        channel.exchange("both are running", b"")
        return channel.party, threading.get_ident()

    (a, thread_a), (b, thread_b) = run_pair(program)
    assert (a, b) == (0, 1)
    assert len({thread_a, thread_b, threading.get_ident()}) == 3


def test_different_steps_are_a_mismatch_that_names_both():
    """A label that differs raises PeerMismatchError with ours and the peer's, and delivers no value."""
    with pytest.raises(PeerMismatchError) as caught:
        run_pair(lambda ch: ch.exchange(("commit", "reveal")[ch.party], b""))
    assert caught.value.field == "protocol step"
    assert {"commit", "reveal"} <= set(str(caught.value).replace(",", "").split())


@pytest.mark.parametrize("leaver", [0, 1])
def test_a_party_that_waits_for_one_that_returned_is_woken(leaver):
    """The peer's early end is ChannelClosedError at the step that waits for it."""
    with pytest.raises(ChannelClosedError, match="the peer closed the channel, at step 'sum'"):
        run_pair(lambda ch: None if ch.party == leaver else ch.exchange("sum", b""))


@pytest.mark.parametrize("culprit", [0, 1])
def test_the_first_error_is_the_one_that_is_raised(culprit):
    """The failing party's error reaches the caller, not the ChannelClosedError that it causes at the other."""

    def program(channel):
        if channel.party == culprit:
            raise ZeroDivisionError("the cause")
        channel.exchange("sum", b"")

    with pytest.raises(ZeroDivisionError, match="the cause"):
        run_pair(program)


def test_a_message_sent_before_closing_still_arrives():
    """Closing ends the conversation after what was said."""
    a, b = memory_pair()

    def last_word():
        a.exchange("last", b"word")
        a.close()

    thread = threading.Thread(target=last_word)
    thread.start()
    assert b.exchange("last", b"") == b"word"
    thread.join()
    with pytest.raises(ChannelClosedError):
        b.exchange("more", b"")


def test_a_closed_end_sends_nothing():
    """exchange on an end that was closed raises at once and leaves the peer's inbox and the counters alone."""
    a, b = memory_pair()
    a.close()
    with pytest.raises(ChannelClosedError, match="the channel is closed, at step 'late'"):
        a.exchange("late", b"secret")
    assert (a.bytes_sent, a.rounds) == (0, 0)
    with pytest.raises(ChannelClosedError):
        b.exchange("late", b"")


@pytest.mark.parametrize("leaver", [0, 1])
def test_a_channel_whose_peer_has_closed_stays_closed(leaver):
    """Every exchange after the peer's end is ChannelClosedError, the second and third like the first."""
    ends = memory_pair()
    ends[leaver].close()
    for step in ("first", "second", "third"):
        with pytest.raises(ChannelClosedError, match=f"the peer closed the channel, at step '{step}'"):
            ends[1 - leaver].exchange(step, b"")


def test_an_interrupt_of_the_caller_is_not_lost(monkeypatch):
    """Ctrl-C while the parties run, when neither has failed: KeyboardInterrupt reaches the caller."""
    result = Future.result

    def interrupted(future, timeout=None):
        result(future, timeout)
        raise KeyboardInterrupt

    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_pair(lambda ch: ch.exchange("sum", b""))
