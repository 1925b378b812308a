"""A holder's ledger: one limit over all tasks, on disk before anything leaves, whatever dies in the middle."""

from __future__ import annotations

import json
import math
import re
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from precad.dp.accountants.composed import composed_epsilon
from precad.dp.accountants.pld import PldAccountant, SampledGaussian
from precad.dp.accountants.slack import least_with_slack
from precad.dp.errors import HolderLimitError, LedgerCorruptedError
from precad.dp.ledgers.holder import MOST_TIMES, Account, HolderLedger, Line, Payment, Terms, read
from precad.dp.ledgers.lines import FIRST_CHAIN, seal

TERMS = Terms(limit_epsilon=3.0, delta=1e-5)
WHOLE = SampledGaussian(1.0, 7.0)


def payment(event: SampledGaussian | None = WHOLE, **changes: Any) -> Payment:
    """Return one upload of alice."""
    return Payment(**{"client": "alice", "task": "9f", "why": "upload", "event": event, **changes})


def pay_to_the_end(file: Path, one: Payment, terms: Terms = TERMS) -> int:
    """Return how many payments there was room for."""
    with HolderLedger(file, terms) as ledger:
        for n in range(10_000):
            expected = ledger.account.payments_left(one)
            try:
                ledger.pay(one)
            except HolderLimitError:
                assert expected == 0
                return n
            assert ledger.account.payments_left(one) == expected - 1
    raise AssertionError("no limit")


def test_payments_of_all_tasks_share_a_limit_over_restarts(tmp_path: Path) -> None:
    """Half of the room for one task, the rest for another; nothing is written of what was refused."""
    file, one = tmp_path / "ledger", payment()
    n = Account(TERMS).payments_left(one)
    with HolderLedger(file, TERMS) as ledger:
        for _ in range(n // 2):
            ledger.pay(one)
    assert pay_to_the_end(file, payment(task="a0", client="bob")) == n - n // 2
    before = file.read_bytes()
    assert pay_to_the_end(file, one) == 0
    assert file.read_bytes() == before
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    account, chain = read(file)
    assert len(account.lines) == n
    assert json.loads(before.splitlines()[-1])["chain"] == chain


def test_what_was_spent_is_the_composition_of_all_events(tmp_path: Path) -> None:
    """Events of one kind compose as a task's do; those of several as several tasks do, with all that protocols take."""
    file, kinds = tmp_path / "ledger", (SampledGaussian(0.2, 2.5), SampledGaussian(1.0, 30.0))
    with HolderLedger(file, TERMS) as ledger:
        for _ in range(3):
            ledger.pay(payment(kinds[0], slack=1e-9))
        assert ledger.account.epsilon == pytest.approx(
            least_with_slack(lambda left: PldAccountant().epsilon(kinds[0], 3, left), 1e-5, 3e-9), rel=1e-9
        )
        ledger.pay(payment(kinds[1], times=4))
    expected = least_with_slack(lambda left: composed_epsilon([(kinds[0], 3), (kinds[1], 4)], left), 1e-5, 3e-9)
    assert read(file)[0].epsilon == pytest.approx(expected, rel=1e-9)


def test_the_statement_of_two_tasks_is_a_quadrature_over_both_releases(tmp_path: Path) -> None:
    """A sampled release of one task, and a plain one of another: delta at the figure by a sum over both their noises.

    The sum over a grid of 0.02 standard deviations has no accountant in it. The figure is at most 10^-3 above.
    """
    p, sigma, tau, delta = 0.2, 1.5, 8.0, 1e-5
    with HolderLedger(tmp_path / "ledger", TERMS) as ledger:
        ledger.pay(payment(SampledGaussian(p, sigma)))
        ledger.pay(payment(SampledGaussian(1.0, tau), task="a0"))
        found = ledger.account.epsilon
    x, y = sigma * np.arange(-10, 11, 0.02)[:, None], tau * np.arange(-10, 11, 0.02)
    without = norm.pdf(x, 0, sigma) * norm.pdf(y, 0, tau) * (0.02 * sigma * 0.02 * tau)
    record = np.exp((2 * x - 1) / (2 * sigma**2))
    ratio = (1 - p + p * record) * np.exp((2 * y - 1) / (2 * tau**2))

    def largest_delta(epsilon: float) -> float:
        added = np.maximum(ratio - math.exp(epsilon), 0.0) * without
        removed = np.maximum(1 - math.exp(epsilon) * ratio, 0.0) * without
        return float(max(added.sum(), removed.sum()))

    assert largest_delta(found) <= delta * (1 + 1e-4) < largest_delta(found - 1e-3)


def test_the_share_spent_is_of_delta_where_that_is_nearer_its_end() -> None:
    """A quarter of delta is for protocols, of which half is taken; the rounds themselves cost next to nothing."""
    account, half = Account(TERMS), 0.25 * TERMS.delta / (1 + math.exp(TERMS.limit_epsilon)) / 2
    little = payment(SampledGaussian(1.0, 1e4), slack=half)
    assert account.share_spent == 0
    account.take(Line("2026-01-01T00:00:00Z", little))
    assert account.share_spent == pytest.approx(0.5, rel=1e-9)
    assert account.payments_left(replace(little, slack=0.4 * half)) == 2
    assert account.is_ended_by_delta(little)
    nothing = payment(SampledGaussian(0.0, 1.0))
    assert account.payments_left(nothing) == MOST_TIMES
    assert not account.is_ended_by_delta(nothing)


def test_payments_are_of_groups_as_large_as_the_ledgers_or_of_a_whole_client() -> None:
    account = Account(replace(TERMS, records_per_person=3))
    for size in (1, 3):
        assert account.has_room(payment(SampledGaussian(1.0, 100.0, size)))
    with pytest.raises(ValueError, match="event: expected one of 3 records of one person, found 2"):
        account.has_room(payment(SampledGaussian(1.0, 100.0, 2)))


def test_a_figure_never_passes_the_limit(tmp_path: Path) -> None:
    """Paid to the end, the tightest composition of what was paid is within the limit."""
    for i, event in enumerate((SampledGaussian(1.0, 7.0), SampledGaussian(0.2, 1.3))):
        pay_to_the_end(tmp_path / str(i), payment(event))
        account, _ = read(tmp_path / str(i))
        assert 0.5 * TERMS.limit_epsilon < account.epsilon <= TERMS.limit_epsilon
        assert 0.8 < account.share_spent <= 1


@pytest.mark.parametrize(("limit", "delta"), [(800.0, 1e-5), (1e308, 1e-5), (800.0, 5e-324)])
def test_a_limit_at_the_ends_of_float64_counts_and_lets_no_protocol_take_of_delta(limit: float, delta: float) -> None:
    """e^-limit is 0 there: no part of delta is left for a protocol, and the rest of the account stands."""
    account = Account(Terms(limit_epsilon=limit, delta=delta))
    one = Payment(client="alice", task="ab", why="upload", event=SampledGaussian(1.0, 10.0))
    account.require_room(one)
    account.take(Line("2026-11-24T09:00:00Z", one))
    assert 0 <= account.share_spent < 1
    with pytest.raises(HolderLimitError):
        account.require_room(replace(one, slack=1e-300))


def test_what_protects_nothing_is_never_paid(tmp_path: Path) -> None:
    """Neither a round without noise, nor protocols whose part of delta is used up."""
    with HolderLedger(tmp_path / "ledger", TERMS) as ledger:
        with pytest.raises(HolderLimitError, match="'alice' lose in all tasks must stay <= 3 at delta = 1e-05"):
            ledger.pay(payment(None))
        assert ledger.account.payments_left(payment(None)) == 0
        tiny = payment(SampledGaussian(1.0, 1e6), slack=1e-8)
        n = ledger.account.payments_left(tiny)
        assert 5 < n < 20
        assert ledger.account.is_ended_by_delta(tiny)
        assert not ledger.account.is_ended_by_delta(payment(slack=1e-12))
        with pytest.raises(HolderLimitError, match="would pass that in delta: a ledger of a smaller limit_epsilon"):
            ledger.account.require_room(replace(tiny, slack=1e-6))
        with pytest.raises(HolderLimitError, match=r"would pass that$"):
            ledger.account.require_room(payment(times=10_000))
    assert pay_to_the_end(tmp_path / "ledger", tiny) == n


@pytest.mark.parametrize("name", ["limit_epsilon", "delta", "records_per_person"])
def test_another_limit_than_the_file_s_is_refused(tmp_path: Path, name: str) -> None:
    """The file's own holds, whoever changes a configuration."""
    pay_to_the_end(tmp_path / "ledger", payment())
    other = {"limit_epsilon": 4.0, "delta": 1e-4, "records_per_person": 2}
    changed = Terms(**{**{n: getattr(TERMS, n) for n in other}, "orders": TERMS.orders, name: other[name]})  # type: ignore[arg-type]
    with pytest.raises(LedgerCorruptedError, match=rf"line 1: the file was started with {name} = "):
        HolderLedger(tmp_path / "ledger", changed)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"limit_epsilon":3.0', b'"limit_epsilon":9.0'),
        (b'"times":1', b'"times":0'),
        (b'"noise_multiplier":7.0', b'"noise_multiplier":90.0'),
        (b'"client":"alice"', b'"client":"bob"'),
    ],
)
def test_a_changed_line_is_found(tmp_path: Path, old: bytes, new: bytes) -> None:
    """By the chain, at whoever reads or pays."""
    file = tmp_path / "ledger"
    pay_to_the_end(file, payment())
    file.write_bytes(file.read_bytes().replace(old, new, 1))
    for use in (lambda: read(file), lambda: HolderLedger(file, TERMS)):
        with pytest.raises(LedgerCorruptedError, match="was changed after it was written"):
            use()


def test_half_a_line_of_a_process_that_died_counts_for_nothing(tmp_path: Path) -> None:
    """A payment that did not return has not left: it is cut off, and reading changes nothing."""
    file = tmp_path / "ledger"
    with HolderLedger(file, TERMS) as ledger:
        ledger.pay(payment())
        whole = file.read_bytes()
        ledger.pay(payment())
    file.write_bytes(file.read_bytes()[:-5])
    assert len(read(file)[0].lines) == 1
    assert len(file.read_bytes()) > len(whole)
    HolderLedger(file, TERMS).close()
    assert file.read_bytes() == whole
    file.write_bytes(b"")
    with pytest.raises(LedgerCorruptedError, match="this is not the beginning of a holder's ledger"):
        read(file)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"client": ""}, "client: expected printable text"),
        ({"task": "a\x1b[2J"}, "task: expected printable text"),
        ({"why": "x" * 300}, "why: expected printable text"),
        ({"times": 0}, "times: expected an integer of at least 1"),
        ({"times": 10**12 + 1}, "times: expected at most 1000000000000, found 1000000000001"),
        ({"times": 10**320}, "times: expected an integer of at least 1, found an integer beyond float64"),
        ({"slack": 10**400}, "slack: expected a finite number of at least 0, found an integer beyond float64"),
        ({"slack": -1.0}, "slack: expected a finite number of at least 0"),
    ],
)
def test_a_payment_that_is_none_is_refused(changes: dict[str, Any], message: str) -> None:
    """By field."""
    with pytest.raises(ValueError, match=message):
        payment(**changes)


@pytest.mark.parametrize(
    ("header", "line", "problem"),
    [
        ({"limit_epsilon": 10**400}, {}, "line 1: limit_epsilon: expected a finite number above 0"),
        ({"records_per_person": 10**400}, {}, "line 1: records_per_person: expected an integer of at least 1"),
        ({"records_per_person": 1001}, {}, "line 1: records_per_person: expected at most 1000"),
        ({"orders": [1e9]}, {}, "line 1: orders: expected at most 2048, found 1000000000.0"),
        ({"orders": [10**400]}, {}, "line 1: alpha: expected a finite number above 1"),
        ({"orders": [2.0] * 17}, {}, "line 1: orders: expected at most 16 numbers, found 17"),
        ({}, {"slack": 10**400}, "line 2: slack: expected a finite number of at least 0"),
        ({}, {"times": 10**320}, "line 2: times: expected an integer of at least 1"),
        (
            {},
            {"event": {"sampling_rate": 0.5, "noise_multiplier": 1, "group_size": 10**6}},
            "line 2: event: expected one of",
        ),
    ],
)
def test_a_sealed_line_of_numbers_that_nobody_pays_is_refused_at_once(
    tmp_path: Path, header: dict[str, Any], line: dict[str, Any], problem: str
) -> None:
    """Whoever owns the file seals what they like: such numbers overflow, or would take minutes to read."""
    event = {"sampling_rate": 0.1, "noise_multiplier": 1.0}
    paid = {"at": "now", "client": "a", "task": "t", "why": "w", "event": event, "times": 1, "slack": 0.0}
    first, chain = seal(TERMS.header() | header, FIRST_CHAIN)
    file = tmp_path / "ledger"
    file.write_bytes(first + seal(paid | line, chain)[0])
    with pytest.raises(LedgerCorruptedError, match=re.escape(problem)):
        read(file)
