"""The room of connections that have not answered yet: who gives way, against a plain list that is sorted anew.

Failure means: a flood of one address displaces others, a connection is kept beyond its time, or the room grows.
"""

from __future__ import annotations

import random
import socket

import pytest

from precad.servers.links.waiting_room import Caller, WaitingRoom

CAPACITY = 8
NO_CONNECTION = socket.socket()
"""Nothing is sent here."""


def caller(source: str, deadline: float = 1.0) -> Caller:
    return Caller(NO_CONNECTION, source, bytes(32), deadline)


def fill(room: WaitingRoom, sources: list[str]) -> list[Caller]:
    """One after the other, each in the place of whoever gives way."""
    entered = [caller(source, deadline=float(i)) for i, source in enumerate(sources)]
    for one in entered:
        if room.is_full:
            room.leave(room.first_to_give_way())
        room.enter(one)
    return entered


@pytest.mark.parametrize("flood", [["bad"] * 500, [f"bad-{i % 5}" for i in range(500)]])
def test_a_flood_of_few_sources_displaces_itself(flood: list[str]) -> None:
    """Whoever came alone from its address stays, however many follow from others."""
    room = WaitingRoom(CAPACITY)
    honest, *strangers = fill(room, ["good", *flood])
    assert honest in room
    assert strangers[-1] in room
    assert len(room) == CAPACITY


def test_of_one_source_the_oldest_gives_way() -> None:
    """So whoever answers before CAPACITY others have come is heard."""
    room = WaitingRoom(CAPACITY)
    entered = fill(room, ["nat"] * 100)
    assert list(room) == entered[-CAPACITY:]


def test_of_many_sources_with_one_each_the_oldest_gives_way() -> None:
    room = WaitingRoom(CAPACITY)
    entered = fill(room, [f"bot-{i}" for i in range(100)])
    assert list(room) == entered[-CAPACITY:]


def test_whoever_gives_way_is_of_a_largest_source_and_its_oldest() -> None:
    """By a list that is counted anew each time, for random arrivals and departures."""
    draw, room, present = random.Random(15), WaitingRoom(CAPACITY), []
    for step in range(3000):
        if present and draw.random() < 0.3:
            gone = draw.choice(present)
            present.remove(gone)
            room.leave(gone)
        if room.is_full:
            first = room.first_to_give_way()
            sources = [one.source for one in present]
            assert sources.count(first.source) == max(map(sources.count, sources))
            assert first is next(one for one in present if one.source == first.source)
            present.remove(first)
            room.leave(first)
        present.append(caller(draw.choice("abcde"), deadline=step))
        room.enter(present[-1])
        assert list(room) == present
        assert room.late(step - 3) == [one for one in present if one.deadline <= step - 3]
