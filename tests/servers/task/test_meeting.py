"""Messages of the servers when they meet, beside their standing: rounds that were charged in vain.

Failure means one of these:
- a standing that no server has is taken for one;
- a charge that no server can have made enters the ledger;
- an answer that does not parse ends with a traceback.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from precad.mpc.channel import PIECE_BYTES, MemoryChannel, Prefixed, memory_pair, run_pair
from precad.mpc.errors import MalformedMessageError, PeerMismatchError
from precad.protos.precad.v1 import common_pb2
from precad.servers.store.standing import MAX_ROUND, Agreement, Standing
from precad.servers.task.meeting import SPARE_ROUNDS, _swap_sum, _turns_coin, charge_bytes, compare, hello_of, level
from tests.harness.harness import small_task

TASK = small_task(("alice", "bob"))
NEXT_ROUND = 5


def level_with(answer: bytes) -> list[Any]:
    """Return what A's ledger is told to charge as well, where B answers so."""
    ours, theirs = memory_pair()
    charged: list[Any] = []
    store = SimpleNamespace(n_rounds=NEXT_ROUND)
    state = SimpleNamespace(task=TASK, store=store, charges_told=dict, charge_as_well=charged.append)
    meeting = SimpleNamespace(lane=ours, agreement=Agreement("task-1", NEXT_ROUND, None))
    with ThreadPoolExecutor(1) as thread:
        thread.submit(Prefixed(theirs, f"task-1/{NEXT_ROUND}/join").exchange, "charges", answer)
        level(state, meeting, os.urandom)  # type: ignore[arg-type] # has what is asked for
    return charged


def test_charges_of_rounds_that_were_drawn_are_taken() -> None:
    assert level_with(json.dumps({"0": ["alice"], "4": []}).encode()) == [{0: ("alice",), 4: ()}]


@pytest.mark.parametrize(
    "answer",
    [
        b"\xff",
        b"[]",
        b'{"one": []}',
        b'{"1": 7}',
        b'{"1": ["carol"]}',
        b'{"1": [["alice"]]}',
        b'{"1": ["alice", "alice"]}',
        b'{"-1": []}',
        b'{"5": []}',
        b'{"9223372036854775808": []}',
    ],
)
def test_charges_that_no_server_makes_are_refused(answer: bytes) -> None:
    with pytest.raises(MalformedMessageError, match=r"^charges: expected "):
        level_with(answer)


@pytest.mark.parametrize(("n_rounds", "n_told"), [(7, 7), (300, 9), (10**9, 9)])
def test_as_many_charges_as_there_were_lost_rounds_have_room(n_rounds: int, n_told: int) -> None:
    """Make room for numbers below the largest, with every client, and as many more as a server may lack.

    Whatever number of rounds was committed: charges of those are not told.
    """
    task = small_task(("alice", "bob"), rounds=300, lost_rounds=9)
    room = charge_bytes(task, n_rounds)
    charges = {MAX_ROUND - i: tuple(task.clients) for i in range(n_told + SPARE_ROUNDS)}
    assert len(json.dumps(charges)) <= room
    assert len(json.dumps({**charges, 0: tuple(task.clients)})) > room


def test_charges_longer_than_lost_rounds_need_are_refused() -> None:
    """Whatever number of rounds the hello named."""
    answer = b"{" + b" " * charge_bytes(TASK, NEXT_ROUND) + b"}"
    with pytest.raises(
        MalformedMessageError, match=rf"': expected at most {len(answer) - 2} bytes, found {len(answer)}"
    ):
        level_with(answer)


@pytest.mark.parametrize("is_proved", [False, True])
@pytest.mark.parametrize("is_behind", [True, False])
def test_a_piece_of_the_noisy_sum_that_no_server_sends_is_refused(is_behind: bool, is_proved: bool) -> None:
    """To the server behind, more than a piece; to the one ahead, anything."""
    ours, theirs = memory_pair()
    answer = bytes(PIECE_BYTES + 1 if is_behind else 1)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: list(theirs.exchange_pieces("noisy sum", [answer])))
        with pytest.raises(MalformedMessageError, match="'noisy sum': expected at most"):
            _swap_sum(ours, np.zeros(24, dtype=np.int64), is_proved=is_proved, is_behind=is_behind)


def test_a_sum_of_mode_proved_travels_in_elements() -> None:
    """To the server behind, in pieces of which none cuts an element; negative sums stay negative."""
    ours, theirs = memory_pair()
    noisy_sum = np.arange(-70_000, 70_000, dtype=np.int64) * 3
    received = np.zeros_like(noisy_sum)
    with ThreadPoolExecutor(1) as thread:
        sending = thread.submit(_swap_sum, theirs, noisy_sum, is_proved=True)
        _swap_sum(ours, received, is_proved=True, is_behind=True)
        sending.result()
    np.testing.assert_array_equal(received, noisy_sum)
    assert theirs.bytes_sent == 7 * noisy_sum.size


def standing(**changed: Any) -> common_pb2.Hello:
    """The hello of a server that has committed round 1 of its first two."""
    said = {"task_id": "small-0123456789abcdef", "n_committed": 1, "last_round": 1, "next_round": 2}
    model = {"model_digest": bytes(32), "previous_model_digest": bytes(32)}
    return hello_of(TASK, Standing(**{**said, **model, **changed}), os.urandom(16), lane_port=0)


@pytest.mark.parametrize("next_round", [2, 3])
def test_a_server_that_is_a_number_further_is_gone_on_with(next_round: int) -> None:
    assert compare(0, TASK, standing(), standing(next_round=next_round)).next_round == next_round


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"protocol_version": "precad/v0"},
            "^protocol_version differs between the servers: ours precad/v1.1, peer's precad/v0$",
        ),
        ({"protocol_version": "a\n" + "b" * 99}, f"^protocol_version differs .*, peer's a[?]{'b' * 38}$"),
        (
            {"config_digest": bytes(32)},
            "^config_digest differs between the servers: ours [0-9a-f]{16}, peer's 0000000000000000$",
        ),
        ({"config_digest": bytes(32), "task_fields": {"rounds": "9"}}, "^config_digest: .*task.rounds.*9"),
    ],
)
def test_a_server_of_another_version_or_task_is_refused(party: Any, changed: dict[str, Any], message: str) -> None:
    """Before anything is computed: of different parameters, no epsilon is that of both."""
    theirs = standing()
    for name, value in changed.items():
        if isinstance(value, dict):
            theirs.task_fields.update(value)
        else:
            setattr(theirs, name, value)
    with pytest.raises(PeerMismatchError, match=message):
        compare(party, TASK, standing(), theirs)


@pytest.mark.parametrize("party", [0, 1])
def test_a_server_that_is_further_than_a_draw_together_leads_to_is_refused(party: Any) -> None:
    """One hello used up all numbers below its own, and with them what a budget allows."""
    with pytest.raises(PeerMismatchError, match=r"^next_round \(was a server .* ours 2, peer's 4$"):
        compare(party, TASK, standing(), standing(next_round=4))


def test_a_fresh_server_goes_on_with_no_more_numbers_than_a_task_may_lose() -> None:
    """Nothing is committed; rounds that begin with fewer than `lost_rounds` lost, and those drawn ahead of the last."""
    fresh = {"n_committed": 0, "last_round": 0, "next_round": 0}
    most = TASK.most_lost_rounds + TASK.batches_ahead + 1
    ours = standing(**{**fresh, "task_id": ""})
    assert compare(0, TASK, ours, standing(**{**fresh, "next_round": most})).next_round == most
    for theirs in ({"next_round": most + 1}, {"next_round": MAX_ROUND}, {"next_round": 1, "task_id": ""}):
        with pytest.raises(MalformedMessageError, match=r"^next_round: expected at most"):
            compare(0, TASK, ours, standing(**{**fresh, **theirs}))


@pytest.mark.parametrize(("every", "n_committed"), [(1, 0), (1, 10), (2, 9), (10, 9), (10, 10)])
def test_evaluations_use_numbers_as_rounds_are_committed(every: int, n_committed: int) -> None:
    """By the page of queries; not by the number itself, which would then be a limit on itself."""
    task = small_task(
        mode="proved", delta=1e-5, rounds=100, evaluation="clients", evaluation_every=every, evaluation_noise=5.0
    )
    most = n_committed + n_committed // every + task.most_lost_rounds + task.draws_ahead + 1
    said = {"task_id": f"{task.name}-0123456789abcdef", "n_committed": n_committed, "last_round": max(0, most - 2)}
    said |= {"last_round": 0} if n_committed == 0 else {}
    model = {"model_digest": bytes(32), "previous_model_digest": bytes(32)}

    def hello(next_round: int) -> common_pb2.Hello:
        return hello_of(task, Standing(**said, **model, next_round=next_round), os.urandom(16), lane_port=0)

    assert compare(0, task, hello(most), hello(most)).next_round == most
    with pytest.raises(MalformedMessageError, match=rf"^next_round: expected at most {most}, found {most + 1}"):
        compare(0, task, hello(most), hello(most + 1))


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"next_round": MAX_ROUND + 1}, "next_round"),
        ({"next_round": 2**64 - 1}, "next_round"),
        ({"n_committed": 2**64 - 1}, "n_committed"),
        ({"n_committed": 3}, "n_committed"),
        ({"n_committed": TASK.rounds + 1, "next_round": TASK.rounds + 9}, "n_committed"),
        ({"last_round": 2}, "last_round"),
        ({"last_round": 2**64 - 1}, "last_round"),
        ({"n_committed": 0, "last_round": 1}, "last_round"),
        ({"task_id": "other-0123456789abcdef"}, "task"),
        ({"task_id": "small-0123456789abcdef\0"}, "task"),
        ({"task_id": "small-" + 2000 * "a"}, "task"),
    ],
)
@pytest.mark.parametrize("party", [0, 1])
def test_a_standing_that_no_server_has_is_refused(party: Any, changed: dict[str, Any], field: str) -> None:
    with pytest.raises(MalformedMessageError, match=rf"^{field}: expected "):
        compare(party, TASK, standing(), standing(**changed))


TURNS = small_task(("alice", "bob", "carol"), algorithm="user-dp-fedavg", min_separation=3)


class Server:
    """Answer what a meeting asks of a state where clients take turns."""

    def __init__(self, coin: bytes = b"", n_rounds: int = 0) -> None:
        self.task, self.store = TURNS, self
        self.task_id, self.turns_coin, self.n_rounds = "task-1", coin, n_rounds
        self.dealt: list[bytes] = []

    def keep_turns_coin(self, coin: bytes) -> None:
        """See `TaskStore.keep_turns_coin`."""
        self.dealt.append(coin)


def coins_of(a: Server, b: Server) -> tuple[bytes, bytes]:
    """Return the coins that both servers go on with."""

    def server(channel: MemoryChannel) -> bytes:
        return _turns_coin((a, b)[channel.party], channel, os.urandom).reveal()  # type: ignore[arg-type] # has all

    return run_pair(server)


def test_turns_are_tossed_once_and_kept() -> None:
    """Nobody holds a coin: both toss one and write it down. Both hold it: nothing is tossed, even after rounds."""
    a, b = Server(), Server()
    found = coins_of(a, b)
    assert found[0] == found[1] == a.dealt[0] == b.dealt[0]
    assert len(a.dealt) == len(b.dealt) == 1
    kept = Server(found[0], n_rounds=4), Server(found[0], n_rounds=3)
    assert coins_of(*kept) == found
    assert not kept[0].dealt
    assert not kept[1].dealt


def test_a_server_stopped_before_its_disk_has_the_coin_tosses_again_with_the_other() -> None:
    """Neither has begun a round. So no client has had a turn, and both go on with a fresh coin."""
    old = bytes(range(16))
    a, b = Server(old), Server()
    found = coins_of(a, b)
    assert found[0] == found[1] != old
    assert a.dealt == b.dealt == [found[0]]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (Server(bytes(16)), Server(bytes(range(16)))),
        (Server(bytes(16), n_rounds=1), Server()),
        (Server(n_rounds=1), Server(n_rounds=1)),
    ],
    ids=["others", "one lacks it after a round", "both lack it after a round"],
)
def test_clients_never_get_another_turn_once_a_round_has_begun(a: Server, b: Server) -> None:
    with pytest.raises(PeerMismatchError, match=r"turns \(was a server given back an old state_dir\?\)"):
        coins_of(a, b)
    assert not a.dealt


@pytest.mark.parametrize("answer", [b"\0", bytes(15), bytes(17)])
def test_a_coin_of_another_length_is_refused(answer: bytes) -> None:
    ours, theirs = memory_pair()
    with ThreadPoolExecutor(1) as thread:
        thread.submit(theirs.exchange, "turns", answer, 64)
        with pytest.raises(MalformedMessageError, match="turns"):
            _turns_coin(Server(), ours, os.urandom)  # type: ignore[arg-type] # has what is asked for
