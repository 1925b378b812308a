"""Adversaries, and conditions that printed figures rest on, in words; and when these must be said beside them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from precad.dp.accountants.earlier_rounds import EarlierTask
from precad.dp.accountants.pld import View

AGAINST: Final = {
    View.ONE_SERVER: "one aggregation server and any other clients",
    View.CLIENTS_ONLY: "any other clients, no server",
}
"""Adversaries, as statements about a run name them, whether it was deployed or simulated."""
AGAINST_BRIEFLY: Final = {View.ONE_SERVER: "one server and any other clients", View.CLIENTS_ONLY: "any other clients"}
"""Name them within a sentence."""
OF_SERVERS: Final = {
    View.ONE_SERVER: "whether or not the corrupted server adds its own noise; if all other servers follow the protocol",
    View.CLIENTS_ONLY: "if all servers follow the protocol",
}
"""The dealer is one of the servers, where there is one. If it deviates it rejects honest updates above a length of its
choice. So one record decides whether a whole update is in the sum."""
OF_DEALT_STEPS: Final = "if both servers and the dealer follow the protocol"
"""Where dealt tuples make the sum: other tuples make another one, which moves further."""


class Evaluated(Protocol):
    """A task, as far as a function of its sum is in it."""

    sum_function: str | None

    @property
    def sum_factor(self) -> float: ...
    @property
    def has_unbounded_sum(self) -> bool: ...


class _Rules(Protocol):
    @property
    def is_default(self) -> bool: ...


class _Ruled(Evaluated, Protocol):
    @property
    def rules(self) -> _Rules: ...


def must_be_said(task: _Ruled) -> bool:
    """Return whether no figure of the task is printed without its condition.

    That is so for another algorithm than PRECAD, or a function of the sum, whose factor is the operators' word.
    """
    return task.sum_function is not None or not task.rules.is_default


def on_a_function(task: Evaluated, view: View) -> str:
    """Return what the figures rest on where the servers evaluate a function of the sum.

    With factor L it moves by at most L times as far as the sum, and the servers' noise is L times as much. So each
    multiplier, noise over sensitivity, is what it is without a function. A server or dealer that deviates in the
    function's steps can make it another one, which moves further.
    """
    if task.sum_function is None:
        return ""
    if task.has_unbounded_sum:
        return "; no bound: sum_function has no declared factor"
    follow = "both servers and the dealer follow" if view is View.ONE_SERVER else "the dealer follows"
    moves = f"moves at most {task.sum_factor:g} times as far as the sum does, as operators say"
    return f"; if {task.sum_function} {moves}; if {follow} the protocol in its steps"


def beside_earlier(why: str, earlier: Iterable[EarlierTask], view: View) -> str:
    """Return what a figure rests on that counts earlier tasks as well: at both servers the same text.

    Their ledgers may have the same tasks in another order. why: its own condition, or nothing.
    """
    of_earlier = sorted({task.rests_on[view] for task in earlier if task.rests_on.get(view)})
    return "; ".join(filter(None, (why, *(f"of an earlier task: {one}" for one in of_earlier))))
