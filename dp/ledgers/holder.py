"""Compose what one data holder's records paid over all tasks and queries, with a limit that no server can change.

Format. One JSON object per line, appended only, sealed as a ledger's lines are (`precad.dp.ledgers.ledger`):

    {"format":1,"limit_epsilon":8.0,"delta":1e-05,"orders":[5.9,4.1],"records_per_person":1,"chain":"..."}
    {"at":"2026-11-24T09:00:00Z","client":"alice","task":"9f..","why":"upload","event":{...},"times":1,"slack":0.0,..}

A line is a payment: `times` repetitions of `event`, as one person's records meet it against one server. An `event` that
is null leaves nothing protected. `slack` is what the protocol takes from delta in all of them
(`precad.dp.accountants.slack`).

The limit is a Renyi filter (`precad.dp.accountants.renyi_filter`). So it holds however the tasks were chosen, for what
earlier ones released as well. Composed privacy losses would leave more room, but are proved for events that are fixed
in advance. This file meets tasks that nobody knows when it begins, and as many of their rounds as servers draw. The
orders are chosen when the file begins, as the limit and delta are. A payment is on disk before anything leaves. One
that did not return does not count, and its line is cut off. One whose upload was lost stays paid.

What was spent has two figures. `epsilon` composes privacy losses. It holds if what was asked, and how often, did not
depend on what was released, so not where a simulation led to a task. The limit holds in any case.
"""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from precad.dp.accountants.composed import composed_epsilon
from precad.dp.accountants.pld import SampledGaussian, event_fields
from precad.dp.accountants.renyi_filter import divergence, most, most_slack, usual_orders
from precad.dp.accountants.slack import least_with_slack
from precad.dp.checks import require_count, require_delta, require_non_negative, require_order, require_positive
from precad.dp.errors import HolderLimitError, LedgerCorruptedError
from precad.dp.ledgers.lines import replay
from precad.dp.ledgers.sealed_file import KeepsSealedFile, SealedFile

FORMAT: Final = 1
KIND: Final = "a holder's ledger"
_HEADER: Final = ["format", "limit_epsilon", "delta", "orders", "records_per_person"]
_FIELDS: Final = ["at", "client", "task", "why", "event", "times", "slack"]
_LONGEST: Final = 256
"""Characters of a payment's client, task and reason, each at most."""
MOST_TIMES: Final = 10**12
"""Repetitions that one payment may be of."""
_MOST_PER_PERSON: Final = 1000
"""Records that figures are of together: as many as a task may have (`precad.protos.task.record_fields`)."""
_MOST_ORDERS, _HIGHEST_ORDER = 16, 2048
"""Orders that a file may have, twice as high as any that `usual_orders` chooses: others would take long to read."""
SIMULATION: Final = "simulation"
"""Why a training in one process is paid: its noise follows from seeds, and hides nothing from whoever knows them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Payment:
    """Rounds of one client in one task, as one person's records meet them against one server."""

    client: str
    task: str
    """The task's digest in hexadecimal; for what precad did not run, any name."""
    why: str
    """`upload`, `simulation`, or what an operator says of a charge by hand. Nothing of a record."""
    event: SampledGaussian | None
    """None: a round costs everything."""
    times: int = 1
    slack: float = 0.0
    """Part of delta that all of them take, as eta."""

    def __post_init__(self) -> None:
        for name in ("client", "task", "why"):
            value = getattr(self, name)
            if not isinstance(value, str) or not 0 < len(value) <= _LONGEST or not value.isprintable():
                raise ValueError(f"{name}: expected printable text of 1 to {_LONGEST} characters, found {value!r:.80}")
        require_count("times", self.times, at_least=1, at_most=MOST_TIMES)
        require_non_negative("slack", self.slack)


@dataclass(frozen=True, slots=True)
class Line:
    """A payment with the time at which it was made, in UTC."""

    at: str
    payment: Payment


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The limit, fixed for the life of the file.

    - `limit_epsilon`, `delta`: no payment takes what a person's records lose over them
    - `records_per_person`: how many records of one person the figures are of together
    - `orders`: of the filter; chosen for the limit where there are none
    """

    limit_epsilon: float
    delta: float
    records_per_person: int = 1
    orders: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        require_positive("limit_epsilon", self.limit_epsilon)
        require_delta(self.delta)
        require_count("records_per_person", self.records_per_person, at_least=1, at_most=_MOST_PER_PERSON)
        if not self.orders:
            object.__setattr__(self, "orders", usual_orders(self.limit_epsilon, self.delta))
        if len(self.orders) > _MOST_ORDERS:
            raise ValueError(f"orders: expected at most {_MOST_ORDERS} numbers, found {len(self.orders)}")
        for order in self.orders:
            require_order(order)
            if order > _HIGHEST_ORDER:
                raise ValueError(f"orders: expected at most {_HIGHEST_ORDER}, found {order!r:.80}")

    def header(self) -> dict[str, Any]:
        """Return the file's first line."""
        return {
            "format": FORMAT,
            "limit_epsilon": self.limit_epsilon,
            "delta": self.delta,
            "orders": list(self.orders),
            "records_per_person": self.records_per_person,
        }

    @classmethod
    def of_header(cls, fields: dict[str, Any]) -> Self:
        """Return what `header` wrote. Raises ValueError for anything else."""
        if list(fields) != _HEADER or fields["format"] != FORMAT:
            raise ValueError(f"this is not the first line of {KIND}, which has {', '.join(_HEADER)}")
        if not isinstance(fields["orders"], list) or not fields["orders"]:
            raise ValueError(f"orders: expected a list of numbers, found {fields['orders']!r:.80}")
        rest = {name: fields[name] for name in _HEADER[1:] if name != "orders"}
        return cls(orders=tuple(fields["orders"]), **rest)


class Account:
    """Payments that were made under `terms`, and whether there is room for one more. Not for several threads."""

    def __init__(self, terms: Terms) -> None:
        self.terms: Final = terms
        self._most: Final = np.asarray(most(terms.limit_epsilon, terms.delta, terms.orders))
        self._most_slack: Final = most_slack(terms.limit_epsilon, terms.delta)
        self._lines: list[Line] = []
        self._spent, self._slack = np.zeros(len(terms.orders)), 0.0

    @property
    def lines(self) -> Sequence[Line]:
        """Return every payment so far, the first one first."""
        return tuple(self._lines)

    @property
    def share_spent(self) -> float:
        """Return how much of the limit is used up: of the filter, or of delta where that is nearer its end."""
        of_orders = [spent / limit for spent, limit in zip(self._spent, self._most, strict=True) if limit > 0]
        of_slack = self._slack / self._most_slack if self._slack else 0.0  # nothing may be taken of the smallest deltas
        return max(float(min(of_orders, default=math.inf)), of_slack)

    @property
    def epsilon(self) -> float:
        """Bound what a person's records lost so far, at `terms.delta`. Holds if nothing asked was chosen for what had
        been released."""
        rounds: Counter[SampledGaussian | None] = Counter()
        for line in self._lines:
            rounds[line.payment.event] += line.payment.times
        return least_with_slack(
            lambda left: composed_epsilon(rounds.items(), left),
            self.terms.delta,
            math.fsum(line.payment.slack for line in self._lines),
        )

    def require_room(self, *payments: Payment) -> None:
        """Raise HolderLimitError where the payments together would pass the limit; ValueError as `has_room`."""
        if not self.has_room(*payments):
            raise HolderLimitError(
                client=payments[0].client,
                limit_epsilon=self.terms.limit_epsilon,
                delta=self.terms.delta,
                of_delta=self._slack + sum(payment.slack for payment in payments) > self._most_slack,
            )

    def has_room(self, *payments: Payment) -> bool:
        """Tell whether the payments together stay within the limit. Raises ValueError where one is of another group."""
        spent, slack = self._spent, self._slack
        for payment in payments:
            self._require_own_group(payment.event)
            spent, slack = spent + self._cost(payment), slack + payment.slack
        return bool(np.any(spent <= self._most) and slack <= self._most_slack)

    def payments_left(self, payment: Payment) -> int:
        """Return how many more of these there is room for; `MOST_TIMES` where they cost nothing."""
        return max(0, int(min(*self._payments_left(payment), MOST_TIMES)))

    def is_ended_by_delta(self, payment: Payment) -> bool:
        """Tell whether what protocols take of delta ends such payments, before epsilon does."""
        of_orders, of_slack = self._payments_left(payment)
        return of_slack < of_orders

    def _payments_left(self, payment: Payment) -> tuple[float, float]:
        """Return how many more of these the filter has room for, and delta's share for protocols."""
        cost = self._cost(payment)
        left = [(m - spent) / c if c else math.inf for m, spent, c in zip(self._most, self._spent, cost, strict=True)]
        return max(left), (self._most_slack - self._slack) / payment.slack if payment.slack else math.inf

    def take(self, line: Line) -> None:
        """Count a payment that is on disk."""
        self._lines.append(line)
        self._spent += self._cost(line.payment)
        self._slack += line.payment.slack

    def take_fields(self, fields: dict[str, Any]) -> None:
        """Count a payment read from a file. Raises ValueError."""
        if list(fields) != _FIELDS or not isinstance(fields["at"], str):
            raise ValueError(f"payment: expected {', '.join(_FIELDS)}, found the fields {', '.join(fields)}")
        try:
            event = None if fields["event"] is None else SampledGaussian(**fields["event"])
        except TypeError as error:
            raise ValueError(f"event: expected a sampled Gaussian or null, found another: {error}") from None
        self._require_own_group(event)
        rest = {name: fields[name] for name in _FIELDS if name not in ("at", "event")}
        self.take(Line(fields["at"], Payment(event=event, **rest)))

    def _require_own_group(self, event: SampledGaussian | None) -> None:
        k = self.terms.records_per_person
        if event is not None and event.group_size not in (1, k):
            raise ValueError(f"event: expected one of {k} records of one person, found {event.group_size}")

    def _cost(self, payment: Payment) -> NDArray[np.float64]:
        return payment.times * np.asarray([divergence(payment.event, order) for order in self.terms.orders])


class HolderLedger(KeepsSealedFile):
    """A holder's file, open in one process. For one thread.

    - `path`: the file, created if missing
    - `terms`: the limit, which must be that of the file

    Raises: LedgerCorruptedError, LedgerInUseError, ValueError; and OSError as the file system gives it.
    """

    def __init__(self, path: Path, terms: Terms) -> None:
        self.account: Final = Account(terms)
        self._file = SealedFile(path, terms.header(), self.account.take_fields, KIND)

    @property
    def chain(self) -> str:
        """Return the last line's chain; whoever keeps it notices every later change of the lines so far."""
        return self._file.chain

    def pay(self, payment: Payment) -> None:
        """Record one payment, on disk on return.

        Raises: HolderLimitError, ValueError; OSError if the write failed. In each case nothing may leave.
        """
        self.account.require_room(payment)
        at = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"
        event = None if payment.event is None else event_fields(payment.event)
        fields = {name: getattr(payment, name) for name in _FIELDS if name not in ("at", "event")}
        line = {"at": at, "event": event, **fields}
        self._file.append({name: line[name] for name in _FIELDS})
        self.account.take(Line(at, payment))


def has_begun(path: Path) -> bool:
    """Tell whether a file has its first line. Until then, whoever opens it begins it: its maker may have died or be
    about to write.

    Raises OSError as the file system gives it.
    """
    return path.exists() and b"\n" in path.read_bytes()


def read(path: Path) -> tuple[Account, str]:
    """Return a file's account and its last chain value. Changes nothing; an incomplete last line does not count.

    Raises: LedgerCorruptedError; OSError as the file system gives it.
    """
    content = path.read_bytes()
    accounts: list[Account] = []
    chain = replay(
        path,
        content[: content.rfind(b"\n") + 1],
        lambda fields: accounts.append(Account(Terms.of_header(fields))),
        lambda fields: accounts[0].take_fields(fields),  # noqa: PLW0108 - the first line makes the account
    )
    if not accounts:
        raise LedgerCorruptedError(path, line=1, problem=f"this is not the beginning of {KIND}")
    return accounts[0], chain
