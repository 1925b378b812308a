"""Two servers that crash anywhere agree on how they go on, and refuse whatever no crash leads to.

A model plays the crashes through. It cuts the persisted steps of a round at both servers anywhere, in every order that
the protocol allows, again and again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precad.mpc.errors import PeerMismatchError
from precad.servers.store.standing import Agreement, Standing, agree

FRESH = "task-1"


def model_after(rounds: list[int]) -> bytes:
    """A digest that names the rounds it was made of."""
    return hashlib.sha256(repr(rounds).encode()).digest()


@dataclass
class Server:
    """Hold what one server has on disk."""

    task_id: str = ""
    committed: list[int] = field(default_factory=list)
    used: int = 0
    charged: set[int] = field(default_factory=set)

    @property
    def standing(self) -> Standing:
        """As `TaskState.standing`."""
        return Standing(
            task_id=self.task_id,
            n_committed=len(self.committed),
            last_round=self.committed[-1] if self.committed else 0,
            next_round=self.used,
            model_digest=model_after(self.committed),
            previous_model_digest=model_after(self.committed[:-1]),
        )


def meet(servers: tuple[Server, Server]) -> int:
    """As `precad.servers.task.meeting`: the same agreement at both, which brings them to one standing. The next
    round."""
    a, b = servers
    ours = agree(0, a.standing, b.standing, fresh_task_id=FRESH)
    theirs = agree(1, b.standing, a.standing, fresh_task_id=FRESH)
    assert ours == theirs
    for server in servers:
        server.task_id = ours.task_id
        server.used = ours.next_round
    if ours.behind is not None:
        behind, ahead = servers[ours.behind], servers[1 - ours.behind]
        assert ahead.committed[-1] in behind.charged
        behind.committed.append(ahead.committed[-1])
    both = a.charged | b.charged
    a.charged, b.charged = set(both), set(both)
    return ours.next_round


STEPS = ("reserve", "charge", "commit")
"""Each server's, in this order. No server commits before the other has charged, or goes on before it has committed."""


def play(servers: tuple[Server, Server], number: int, order: list[int]) -> bool:
    """One round, its persisted steps in this order of servers, until both have committed or the list ends."""
    done = [0, 0]
    for party in order:
        step = done[party]
        if step == 3 or (step == 2 and done[1 - party] < 2):
            continue  # it waits for the other
        server = servers[party]
        match STEPS[step]:
            case "reserve":
                assert number >= server.used
                server.used = number + 1
            case "charge":
                assert number not in server.charged
                server.charged.add(number)
            case "commit":
                server.committed.append(number)
        done[party] += 1
    return done == [3, 3]


@given(st.lists(st.lists(st.integers(0, 1), max_size=12), max_size=12))
def test_crashes_anywhere_never_part_the_servers(rounds: list[list[int]]) -> None:
    """After any sequence of rounds that were cut anywhere, both hold the same releases, charged at both."""
    servers = (Server(), Server())
    number = meet(servers)
    for order in rounds:
        number = number + 1 if play(servers, number, order) else meet(servers)
    meet(servers)
    a, b = servers
    assert a.committed == b.committed
    assert len(set(a.committed)) == len(a.committed)
    assert set(a.committed) <= a.charged == b.charged


NEW = Server().standing
AT_ONE = Server(FRESH, [0], 1, {0}).standing
AT_TWO = Server(FRESH, [0, 1], 2, {0, 1}).standing
AT_THREE = Server(FRESH, [0, 1, 2], 3, {0, 1, 2}).standing


@pytest.mark.parametrize(
    ("ours", "theirs", "field"),
    [
        (AT_TWO, replace(AT_TWO, task_id="task-2"), "task"),
        (AT_TWO, NEW, "committed rounds"),
        (NEW, AT_TWO, "committed rounds"),
        (AT_ONE, NEW, "has a server lost its state_dir"),
        (NEW, AT_ONE, "has a server lost its state_dir"),
        (AT_TWO, replace(AT_THREE, n_committed=4), "committed rounds"),
        (AT_TWO, replace(AT_TWO, model_digest=model_after([0, 7])), "model"),
        (AT_TWO, replace(AT_TWO, last_round=5), "last committed round"),
        (AT_TWO, replace(AT_THREE, previous_model_digest=model_after([0, 7])), "model before the last round"),
        (AT_THREE, replace(AT_TWO, model_digest=model_after([0, 7])), "model before the last round"),
        (AT_TWO, replace(AT_TWO, next_round=4), "next_round"),
        (AT_TWO, replace(AT_THREE, next_round=4), "next_round"),
        (AT_TWO, replace(AT_THREE, last_round=1), "last committed round"),
        (replace(AT_TWO, last_round=2), replace(AT_THREE, last_round=0), "last committed round"),
        (NEW, replace(NEW, model_digest=model_after([7])), "model"),
    ],
)
def test_what_no_crash_leads_to_is_refused_by_both(ours: Standing, theirs: Standing, field: str) -> None:
    for party, pair in ((0, (ours, theirs)), (1, (theirs, ours))):
        with pytest.raises(PeerMismatchError, match=field):
            agree(party, *pair, fresh_task_id=FRESH)  # type: ignore[arg-type] # 0 or 1


def test_a_server_that_lost_nothing_of_worth_takes_the_other_ones_task() -> None:
    """It crashed before it wrote the task's id down, and nothing was released."""
    met = replace(NEW, task_id="task-7", next_round=2)
    assert agree(0, NEW, met, fresh_task_id=FRESH) == Agreement("task-7", 2, None)
    assert agree(1, met, NEW, fresh_task_id=FRESH) == Agreement("task-7", 2, None)
