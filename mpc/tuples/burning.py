"""The seam to whatever remembers which tuples are used up.

A tuple is used up in two steps, and each may happen once. Its mask seed is given to the client (`masked` form), and its
shares enter a check. Both are recorded before they happen, so a crash can waste a tuple and never use one twice.

`precad.servers.store.burnt_tuples` keeps the record on disk; `MemoryBurns` is its twin for tests and simulation.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Protocol

from precad.mpc.errors import TupleReusedError


class TupleUse(enum.StrEnum):
    """Use of a tuple, which uses it up."""

    MASK = "mask"
    """Its mask seed is given to the client."""
    CHECK = "check"
    """Its shares enter the opening or the check of an upload."""


class Burns(Protocol):
    """The record of one server."""

    def burn(self, task: str, round: int, clients: Mapping[int, str], use: TupleUse) -> None:
        """Record this use of the tuples in these slots for these clients, all or none; durable when it returns.

        Raises TupleReusedError when one of them was used so before, or is bound to another client.
        """


class MemoryBurns:
    """A record that ends with the process."""

    def __init__(self) -> None:
        self._used: set[tuple[str, int, int, TupleUse]] = set()
        self._client_of: dict[tuple[str, int, int], str] = {}
        self._slot_of: dict[tuple[str, int, str], int] = {}

    def burn(self, task: str, round: int, clients: Mapping[int, str], use: TupleUse) -> None:
        """See `Burns.burn`."""
        for slot, client in clients.items():
            if (task, round, slot, use) in self._used:
                raise reused(round, slot, use)
            if (
                self._client_of.get((task, round, slot), client) != client
                or self._slot_of.get((task, round, client), slot) != slot
            ):
                raise bound_otherwise(round, slot)
        for slot, client in clients.items():
            self._used.add((task, round, slot, use))
            self._client_of[task, round, slot] = client
            self._slot_of[task, round, client] = slot


def reused(round: int, slot: int, use: TupleUse) -> TupleReusedError:
    """Return the error for a tuple that was used so before."""
    return TupleReusedError(f"the tuple of slot {slot} in round {round} was used before ({use}); it is burnt")


def bound_otherwise(round: int, slot: int) -> TupleReusedError:
    """Return the error for a tuple that belongs to another client."""
    return TupleReusedError(f"the tuple of slot {slot} in round {round} is bound to another client")
