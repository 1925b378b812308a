"""What the servers tell each other when they meet, beside their standing: rounds that were charged in vain.

Failure means: a charge that no server can have made enters the ledger, or an answer that is none ends with a traceback.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from mpc.channel import Prefixed, memory_pair
from mpc.errors import MalformedMessageError
from servers.meeting import level
from servers.resumption import Agreement
from tests.integration.harness import small_task

TASK = small_task(("alice", "bob"))
NEXT_ROUND = 5


def level_with(answer: bytes) -> list[Any]:
    """What A's ledger is told to charge as well, where B answers so."""
    ours, theirs = memory_pair()
    charged: list[Any] = []
    state = SimpleNamespace(task=TASK, paid_attempts=dict, charge_as_well=charged.append)
    meeting = SimpleNamespace(lane=ours, agreement=Agreement("task-1", NEXT_ROUND, None))
    with ThreadPoolExecutor(1) as thread:
        thread.submit(Prefixed(theirs, f"task-1/{NEXT_ROUND}/join").exchange, "charges", answer)
        level(state, meeting)  # type: ignore[arg-type] # has what is asked for
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
