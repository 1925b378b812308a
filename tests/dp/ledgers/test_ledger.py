"""The ledger: what is counted, what is refused, and what a crash or a tampered file leaves.

Failure would be a charge acknowledged and lost, or a refused charge that leaves a trace. It would also be a damaged
file read as a good one, or an epsilon that does not cover the coming round.
"""

import math
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precad.dp.accountants.pld import (
    Conduct,
    Label,
    PldAccountant,
    PrivacyStatement,
    SampledGaussian,
    TwoStageSampledGaussian,
    View,
)
from precad.dp.accountants.side_by_side import GdpCltAccountant
from precad.dp.errors import BudgetExceededError, LedgerClosedError, LedgerCorruptedError, LedgerInUseError
from precad.dp.ledgers.ledger import Ledger, Level, verified_charges
from precad.dp.ledgers.lines import seal
from tests.dp.ledgers.charge_forever import DELTA, EVENTS, clients_of


def open_ledger(path, **changes):
    return Ledger(path, **({"events": EVENTS, "delta": DELTA} | changes))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def charged(path):
    """A closed file with three charges."""
    with open_ledger(path) as ledger:
        ledger.charge(0, ["bob", "alice"])
        ledger.charge(1, [])
        ledger.charge(5, {"alice", "carol"})
    return path


class LinearAccountant:
    """One nat per round over the multiplier: budgets in tests can be read off."""

    label = Label.BOUND

    def epsilon(self, event, rounds, delta):
        return rounds / event.noise_multiplier


UNIT_EVENTS = {View.ONE_SERVER: SampledGaussian(1.0, 1.0), View.CLIENTS_ONLY: SampledGaussian(1.0, 2.0)}


def test_a_charge_is_on_disk_when_charge_returns(path):
    """Another reader sees every byte of the line at once; nothing is buffered in the process."""
    ledger = open_ledger(path)
    for n in range(4):
        ledger.charge(n, ["alice"])
        lines = path.read_bytes().split(b"\n")
        assert len(lines) == n + 3  # header, charges, and nothing after the last newline
        assert lines[-1] == b""
        assert lines[-2].startswith(b'{"round":%d,"clients":["alice"],"chain":"' % n)


def test_each_charge_is_one_write_then_one_fsync(path, monkeypatch):
    """The order the crash argument rests on."""
    ledger = open_ledger(path)
    calls = []
    write, fsync = os.write, os.fsync
    monkeypatch.setattr(os, "write", lambda fd, data: calls.append("write") or write(fd, data))
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("fsync") or fsync(fd))
    ledger.charge(0, [f"client-{i}" for i in range(500)])
    assert calls == ["write", "fsync"]


def test_reopening_gives_the_same_ledger(charged):
    """Counts, last round and statements are those of one that never closed; replaying writes nothing."""
    unbroken = open_ledger(None)
    for n, clients in [(0, ["bob", "alice"]), (1, []), (5, ["alice", "carol"])]:
        unbroken.charge(n, clients)
    before = charged.read_bytes()
    with open_ledger(charged) as reopened:
        assert reopened.participation == unbroken.participation == {"alice": 2, "bob": 1, "carol": 1}
        assert reopened.rounds == unbroken.rounds == {0, 1, 5}
        for view in View:
            assert reopened.statement(view) == unbroken.statement(view)
        assert charged.read_bytes() == before


def test_statement_is_the_accountants_bound(charged):
    """One client's rounds, the maximum over clients, and zero for somebody who never took part."""
    with open_ledger(charged) as ledger:
        for view, event in EVENTS.items():
            for client, rounds in [("alice", 2), ("bob", 1), (None, 2), ("nobody", 0)]:
                epsilon = PldAccountant().epsilon(event, rounds, DELTA)
                assert ledger.statement(view, client) == PrivacyStatement(
                    epsilon, DELTA, view, Label.BOUND, conduct=Conduct.WATCHES
                )
        assert "nobody" not in ledger.participation


def test_without_a_limit_of_rounds_nothing_is_proved_against_whoever_discards(charged):
    with open_ledger(charged) as ledger:
        assert ledger.most_rounds_of_a_client is None
        assert ledger.statement(View.ONE_SERVER, conduct=Conduct.MAY_DISCARD).epsilon == math.inf


def test_participation_cannot_be_changed_from_outside(charged):
    with open_ledger(charged) as ledger, pytest.raises(TypeError):
        ledger.participation["alice"] = 0


@settings(max_examples=30, deadline=None)
@given(rounds=st.lists(st.sets(st.text(min_size=1), max_size=4), max_size=8))
def test_participation_counts_realised_rounds(tmp_path_factory, rounds):
    """Any ids, lone surrogates and newlines included, survive the file."""
    path = tmp_path_factory.mktemp("ids") / "ledger.jsonl"
    with open_ledger(path) as ledger:
        for n, clients in enumerate(rounds):
            ledger.charge(n, clients)
    with open_ledger(path) as reopened:
        assert reopened.participation == Counter(client for clients in rounds for client in clients)


# Refusals


@pytest.mark.parametrize(
    ("round_number", "clients", "message"),
    [
        (5, ["dora"], "round_number: expected one that was not charged before, found 5"),
        (-1, ["dora"], "round_number: expected an integer of at least 0"),
        (True, ["dora"], "round_number: expected an integer of at least 0"),
        (6, ["dora", "dora"], "clients: expected each of them once"),
        (6, [""], "clients: expected a collection of non-empty strings"),
        (6, "dora", "clients: expected a collection of non-empty strings"),
        (6, [7], "clients: expected a collection of non-empty strings"),
    ],
)
def test_a_refused_charge_leaves_no_trace(charged, round_number, clients, message):
    before = charged.read_bytes()
    with open_ledger(charged) as ledger:
        with pytest.raises(ValueError, match=message):
            ledger.charge(round_number, clients)
        assert ledger.participation == {"alice": 2, "bob": 1, "carol": 1}
        assert charged.read_bytes() == before


def test_the_budget_is_tested_on_the_coming_round(path):
    """Budget 3 at one nat per round: three rounds fit exactly, the fourth is refused before it is written."""
    ledger = open_ledger(
        path, events=UNIT_EVENTS, budgets={View.ONE_SERVER: 3.0, View.CLIENTS_ONLY: 3.0}, accountant=LinearAccountant()
    )
    for n in range(3):
        assert not ledger.would_exceed(["alice", "bob"])
        ledger.charge(n, ["alice"])
    before = path.read_bytes()
    assert ledger.would_exceed(["alice", "bob"])
    with pytest.raises(BudgetExceededError, match=r"one_server must stay <= 3\.0, would be 4\.0") as caught:
        ledger.charge(3, ["bob", "alice"])
    assert (caught.value.view, caught.value.client) == (View.ONE_SERVER, "alice")
    assert (caught.value.budget, caught.value.would_be) == (3.0, 4.0)
    assert path.read_bytes() == before
    assert ledger.participation == {"alice": 3}
    assert ledger.rounds == {0, 1, 2}

    assert not ledger.would_exceed(["bob"])
    assert not ledger.would_exceed([])
    ledger.charge(3, ["bob"])


def test_each_view_has_its_own_budget():
    """The view that runs out first stops the round, whichever it is; a view without a budget stops none."""
    loose = open_ledger(None, events=UNIT_EVENTS, accountant=LinearAccountant(), budgets={View.CLIENTS_ONLY: 1.0})
    for n in range(2):
        loose.charge(n, ["alice"])
    with pytest.raises(BudgetExceededError, match="against clients_only") as caught:
        loose.charge(2, ["alice"])
    assert caught.value.view is View.CLIENTS_ONLY


class RememberingAccountant(LinearAccountant):
    """Remembers what it was asked for, in the order of the questions."""

    def __init__(self):
        self.asked = []

    def epsilon(self, event, rounds, delta):
        self.asked.append((event, rounds))
        return super().epsilon(event, rounds, delta)


@pytest.mark.parametrize("clients", [["alice"], ["bob", "carol"], []])
def test_a_foreseen_round_is_not_charged_and_its_bounds_are_computed_before(charged, clients):
    """A round foreseen leaves file, counts and rounds alone. After its charge, no bound is new to the accountant."""
    accountant, before = RememberingAccountant(), charged.read_bytes()
    with open_ledger(charged, accountant=accountant) as ledger:
        counts = dict(ledger.participation)
        ledger.foresee(clients)
        assert (dict(ledger.participation), ledger.rounds, charged.read_bytes()) == (counts, {0, 1, 5}, before)
        foreseen = set(accountant.asked)
        ledger.charge(6, clients)
        accountant.asked.clear()
        for view in View:
            ledger.statement(view)
        assert set(accountant.asked) == foreseen


def test_only_an_accountant_that_proves_bounds_keeps_a_ledger():
    """Refuse an approximation, since a ledger's statements are called bounds."""
    with pytest.raises(
        ValueError, match="accountant: expected one that proves a bound, found one of label approximation"
    ):
        open_ledger(None, accountant=GdpCltAccountant())


def test_an_accountant_without_an_answer_exceeds_every_budget():
    """Infinite and undefined epsilons are refused, not compared away."""

    class Lost:
        label = Label.BOUND

        def __init__(self, answer):
            self.answer = answer

        def epsilon(self, event, rounds, delta):
            return self.answer

    for answer in (math.nan, math.inf):
        ledger = open_ledger(None, budgets={View.ONE_SERVER: 1e300}, accountant=Lost(answer))
        with pytest.raises(BudgetExceededError, match=f"would be {answer}"):
            ledger.charge(0, ["alice"])


def test_the_pld_budget_of_a_training_run():
    """With the real accountant the last round inside the budget is charged and the next is not."""
    budget = 0.9
    ledger = open_ledger(None, budgets={View.ONE_SERVER: budget})
    n = 0
    while not ledger.would_exceed(["alice"]):
        ledger.charge(n, ["alice"])
        n += 1
    assert ledger.statement(View.ONE_SERVER).epsilon <= budget
    assert PldAccountant().epsilon(EVENTS[View.ONE_SERVER], n + 1, DELTA) > budget
    assert n > 10


CLIENT_EVENT = SampledGaussian(0.25, 2.0)
DRAWN_EVENT = TwoStageSampledGaussian(0.25, 0.05, 2.1)
EVERY_ROUND = {Level.CLIENT: CLIENT_EVENT, Level.DRAWN_RECORD: DRAWN_EVENT}


def test_levels_are_charged_by_every_round_whoever_is_drawn(path):
    """Three rounds, one of them empty: three rounds of a whole client and of a record of any client, drawn or not."""
    with open_ledger(path, every_round=EVERY_ROUND) as ledger:
        assert ledger.task_statement(Level.CLIENT).epsilon == 0
        for n, clients in enumerate((["alice"], [], ["bob", "alice"])):
            ledger.charge(n, clients)
        before = {level: ledger.task_statement(level) for level in sorted(ledger.levels)}
    for level, event in EVERY_ROUND.items():
        assert before[level].epsilon == PldAccountant().epsilon(event, 3, DELTA)
    assert "clients corrupted, no draw is discarded, add/remove one client)" in str(before[Level.CLIENT])
    assert "clients corrupted, no draw is discarded, add/remove one record)" in str(before[Level.DRAWN_RECORD])
    assert before[Level.DRAWN_RECORD].epsilon < PldAccountant().epsilon(EVENTS[View.CLIENTS_ONLY], 3, DELTA)
    with open_ledger(path, every_round=EVERY_ROUND) as reopened:
        assert {level: reopened.task_statement(level) for level in sorted(ledger.levels)} == before


def test_a_level_has_a_budget_on_the_coming_round(path):
    """Two nats at one per round, q = 1: the third round does not start, whether anybody is drawn in it or not."""
    event = SampledGaussian(1.0, 1.0)
    ledger = open_ledger(
        path, budgets={Level.CLIENT: 2.0}, every_round={Level.CLIENT: event}, accountant=LinearAccountant()
    )
    ledger.charge(0, [])
    ledger.charge(1, ["alice"])
    before = path.read_bytes()
    assert ledger.would_exceed([])
    with pytest.raises(
        BudgetExceededError, match=r"epsilon of a client must stay <= 2\.0, would be 3\.0 for every"
    ) as e:
        ledger.charge(2, ["bob"])
    assert (e.value.view, e.value.client) == (Level.CLIENT, None)
    assert path.read_bytes() == before


def test_a_given_up_draw_counts_for_a_level_and_for_nobody_in_a_view(path):
    """Its clients were drawn, which a level is about, and were not in a round. Skipped numbers are no more than there
    can be draws; without the coming number only charges are known."""
    event = SampledGaussian(1.0, 1.0)
    budgets = {Level.CLIENT: 5.0, View.ONE_SERVER: 2.0}
    options = {"events": UNIT_EVENTS, "every_round": {Level.CLIENT: event}, "accountant": LinearAccountant()}
    ledger = open_ledger(path, budgets=budgets, most_rounds=6, **options)
    ledger.charge(3, ["alice"])
    assert ledger.discarded_draws == 3
    assert not ledger.would_exceed(["alice"], 4)
    assert ledger.would_exceed([], 5)
    assert not ledger.would_exceed([])
    with pytest.raises(BudgetExceededError, match=r"epsilon of a client must stay <= 5\.0, would be 6\.0"):
        ledger.charge(2**31, ["alice"])
    assert ledger.statement(View.ONE_SERVER).epsilon == 1.0
    most = ledger.statement(View.ONE_SERVER, conduct=Conduct.MAY_DISCARD)
    assert (most.epsilon, most.conduct, ledger.most_rounds_of_a_client) == (2.0, Conduct.MAY_DISCARD, 2)


def test_a_budget_on_participation_takes_hiding_in_the_draw_away():
    """When such a task ends depends on who was drawn, so levels are accounted as if everybody were, every time."""
    ledger = open_ledger(None, every_round=EVERY_ROUND, budgets={View.ONE_SERVER: 50.0})
    ledger.charge(0, ["alice"])
    ledger.charge(1, [])
    pld = PldAccountant()
    assert ledger.task_statement(Level.CLIENT).epsilon == pld.epsilon(SampledGaussian(1.0, 2.0), 2, DELTA)
    assert ledger.task_statement(Level.DRAWN_RECORD).epsilon == pld.epsilon(SampledGaussian(0.05, 2.1), 2, DELTA)
    by_level = open_ledger(None, every_round=EVERY_ROUND, budgets={Level.CLIENT: 50.0})
    by_level.charge(0, ["alice"])
    assert by_level.task_statement(Level.CLIENT).epsilon == pld.epsilon(CLIENT_EVENT, 1, DELTA)


def test_whoever_only_watches_learns_no_more_than_whoever_may_discard():
    """Where the end of the task depends on draws, the figure of all draws that there can be is the smaller one."""
    ledger = open_ledger(None, every_round=EVERY_ROUND, budgets={View.ONE_SERVER: 50.0}, most_rounds=6)
    for number in range(6):
        ledger.charge(number, ["alice"])
    for level in (Level.CLIENT, Level.DRAWN_RECORD):
        watched, discarded = (
            ledger.task_statement(level, conduct).epsilon for conduct in (Conduct.WATCHES, Conduct.MAY_DISCARD)
        )
        assert watched <= discarded
    assert watched < PldAccountant().epsilon(SampledGaussian(0.05, 2.1), 6, DELTA)


def test_a_ledger_without_levels_makes_no_statement_of_them(charged):
    """And its file is the one that it always was; one with levels is refused to a server without them, by name."""
    with open_ledger(charged) as ledger, pytest.raises(ValueError, match="level: expected one of none, found client"):
        ledger.task_statement(Level.CLIENT)
    assert b"every_round" not in charged.read_bytes()
    with pytest.raises(LedgerCorruptedError, match="the file was started with every_round = None"):
        open_ledger(charged, every_round=EVERY_ROUND)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budgets": {Level.CLIENT: 1.0}}, "every_round: expected client, which has a budget"),
        ({"events": {View.ONE_SERVER: EVENTS[View.ONE_SERVER]}}, "events: expected one entry for each of"),
        ({"delta": 0.0}, "delta: expected a number in"),
        ({"budgets": {View.ONE_SERVER: math.nan}}, "budget of one_server: expected a finite number above 0"),
        ({"budgets": {"everybody": 1.0}}, "not a valid View"),
        ({"most_rounds": 0}, "most_rounds: expected an integer of at least 1"),
        ({"separation": 0}, "separation: expected an integer of at least 1"),
        ({"steps_per_round": 0}, "steps_per_round: expected an integer of at least 1"),
        ({"slack": -1e-9}, "slack: expected a finite number of at least 0"),
    ],
)
def test_arguments_are_checked_before_the_file_is_touched(path, changes, message):
    with pytest.raises(ValueError, match=message):
        open_ledger(path, **changes)
    assert not path.exists()


# Files that are not as they were written


@pytest.mark.parametrize("torn_to", [1, 10, -2, -1])
def test_a_torn_last_line_is_cut_off(charged, torn_to):
    """A line without its newline is of a charge that never returned; the round can be charged anew."""
    whole = charged.read_bytes()
    with open_ledger(charged) as ledger:
        ledger.charge(6, ["bob", "dora"])
    last = charged.read_bytes()[len(whole) :]
    charged.write_bytes(whole + last[:torn_to])
    assert set(verified_charges(charged)) == {0, 1, 5}  # by whoever reads alone, and changes nothing
    assert charged.read_bytes() == whole + last[:torn_to]

    with open_ledger(charged) as ledger:
        assert charged.read_bytes() == whole
        assert ledger.rounds == {0, 1, 5}
        ledger.charge(6, ["bob", "dora"])
    assert charged.read_bytes() == whole + last


@pytest.mark.parametrize("length", [0, 1, 40])
def test_a_torn_header_starts_the_ledger_again(charged, path, length):
    """No charge can have returned before the header was whole."""
    whole = charged.read_bytes()
    path.write_bytes(whole[:length])
    with open_ledger(path) as ledger:
        assert ledger.rounds == set()
    assert path.read_bytes() == whole[: whole.index(b"\n") + 1]


def test_a_file_that_is_no_ledger_is_left_alone(path):
    path.write_bytes(b"the wrong file")
    with pytest.raises(LedgerCorruptedError, match="line 1: this is not the beginning of a ledger"):
        open_ledger(path)
    assert path.read_bytes() == b"the wrong file"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (b'"alice","bob"', b'"alicf","bob"', 2),
        (b'"alice","bob"', b'"alice"', 2),
        (b'"round":1', b'"round":2', 3),
        (b'"round":1,', b'"round": 1,', 3),
        (b'"delta":1e-05', b'"delta":1e-04', 1),
        (b'"clients":[],', b"", 3),
        (b'{"round":5', b"[]" + b'{"round":5', 4),
        (b'{"round":5', b"\xff", 4),
        (b'{"round":0', b'\n{"round":0', 2),
        (b'{"round":1', b"[" * 100_000, 3),
    ],
)
def test_a_changed_line_is_found_and_named(charged, old, new, line):
    """Every field of every line is under the chain. The file stays as it is, for whoever looks into it."""
    content = charged.read_bytes()
    assert content.count(old) == 1
    tampered = content.replace(old, new)
    charged.write_bytes(tampered)
    with pytest.raises(LedgerCorruptedError, match=f"ledger.jsonl, line {line}: ") as caught:
        open_ledger(charged)
    assert (caught.value.path, caught.value.line) == (charged, line)
    assert charged.read_bytes() == tampered


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_missing_or_repeated_line_is_found(charged, gone):
    """Dropping a line breaks the chain at the next one; repeating it breaks it at the copy."""
    lines = charged.read_bytes().splitlines(keepends=True)
    charged.write_bytes(b"".join(lines[:gone] + lines[gone + 1 :]))
    with pytest.raises(LedgerCorruptedError, match=f"line {gone + 1}: "):
        open_ledger(charged)
    charged.write_bytes(b"".join([*lines[: gone + 1], *lines[gone:]]))
    with pytest.raises(LedgerCorruptedError, match=f"line {gone + 2}: "):
        open_ledger(charged)


def test_a_torn_line_behind_a_damaged_one_is_not_cut(charged):
    """The file is changed only when everything before the cut is good."""
    tampered = charged.read_bytes().replace(b'"bob"', b'"bub"') + b'{"rou'
    charged.write_bytes(tampered)
    with pytest.raises(LedgerCorruptedError, match="line 2: "):
        open_ledger(charged)
    assert charged.read_bytes() == tampered


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"delta": 1e-6}, "delta = 1e-05, and is opened with 1e-06"),
        (
            {"events": EVENTS | {View.ONE_SERVER: SampledGaussian(0.05, 1.6)}},
            "events.one_server.noise_multiplier = 1.5, and is opened with 1.6",
        ),
        (
            {"events": EVENTS | {View.CLIENTS_ONLY: SampledGaussian(0.1, 2.1)}},
            "events.clients_only.sampling_rate = 0.05, and is opened with 0.1",
        ),
    ],
)
def test_other_parameters_are_refused_by_name(charged, changes, field):
    with pytest.raises(LedgerCorruptedError, match=f"line 1: the file was started with {field}"):
        open_ledger(charged, **changes)


@pytest.mark.parametrize(
    "change",
    [
        {"round": -1},
        {"round": True},
        {"round": 6.0},
        {"round": "6"},
        {"round": 5},
        {"clients": "bob"},
        {"clients": ["bob", "bob"]},
        {"clients": [""]},
        {"clients": [7]},
        {"kind": "training"},
    ],
)
def test_a_line_that_is_no_charge_is_refused_though_its_chain_is_right(charged, change):
    """Whoever writes to the file can seal: a line must be something that `charge` would have written."""
    whole, chain = charged.read_bytes(), open_ledger(charged, only_reads=True).chain
    good = {"round": 6, "clients": ["bob"]}
    charged.write_bytes(whole + seal(good, chain)[0])
    assert open_ledger(charged, only_reads=True).rounds == {0, 1, 5, 6}
    charged.write_bytes(whole + seal(good | change, chain)[0])
    for reads in (True, False):
        with pytest.raises(LedgerCorruptedError, match="line 5"):
            open_ledger(charged, only_reads=reads)


def test_budgets_may_change_between_runs(charged):
    """They are policy, not part of what was spent: a lower one only stops further rounds."""
    with open_ledger(charged, budgets={View.ONE_SERVER: 1e-6}) as ledger:
        assert ledger.would_exceed(["dora"])
        assert ledger.statement(View.ONE_SERVER).epsilon > 1e-6


# Processes, failures, crashes


def test_a_second_process_cannot_open_the_file(charged):
    """A lock belongs to an open file, so a second opening stands for a second process."""
    with open_ledger(charged), pytest.raises(LedgerInUseError, match="expected no other process that has it"):
        open_ledger(charged)
    open_ledger(charged).close()


def test_whoever_only_reads_needs_no_right_to_write(charged, path, monkeypatch):
    """Evidence on a disk that is mounted to be read: the same figures, nothing changed or made, and no charge taken."""
    charged.write_bytes(charged.read_bytes() + b'{"round":6')
    before, real = charged.read_bytes(), os.open
    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

    def of_a_read_only_disk(name, flags, *rest, **options):
        if flags & writes:
            raise OSError(30, "Read-only file system", str(name))
        return real(name, flags, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", of_a_read_only_disk)
        with pytest.raises(OSError, match="Read-only file system"):
            open_ledger(charged)
        first, second = (open_ledger(charged, only_reads=True) for _ in range(2))
        with pytest.raises(FileNotFoundError):
            open_ledger(path.with_name("none.jsonl"), only_reads=True)
    with pytest.raises(LedgerClosedError):
        first.charge(6, ["bob"])
    assert charged.read_bytes() == before
    assert sorted(path.parent.iterdir()) == [charged]
    with open_ledger(charged) as ledger:
        assert first.chain == second.chain == ledger.chain
        assert first.participation == ledger.participation == {"alice": 2, "bob": 1, "carol": 1}
        assert first.statement(View.ONE_SERVER) == ledger.statement(View.ONE_SERVER)


def test_a_ledger_is_not_read_while_it_is_written(charged):
    """Refuse: a process that charges has to end first, so that all charges are read."""
    with open_ledger(charged), pytest.raises(LedgerInUseError, match="expected no other process that has it"):
        open_ledger(charged, only_reads=True)
    assert open_ledger(charged, only_reads=True).rounds == {0, 1, 5}


def test_damage_is_found_by_whoever_only_reads(charged):
    charged.write_bytes(charged.read_bytes().replace(b'"bob"', b'"bOb"', 1))
    with pytest.raises(LedgerCorruptedError, match="line 2: the line was changed"):
        open_ledger(charged, only_reads=True)


def test_a_closed_ledger_takes_no_charge(charged):
    ledger = open_ledger(charged)
    ledger.close()
    ledger.close()
    with pytest.raises(LedgerClosedError):
        ledger.charge(6, ["bob"])
    assert ledger.statement(View.ONE_SERVER, "alice").epsilon > 0


@pytest.mark.parametrize("failing", ["write", "short write", "fsync"])
def test_a_failed_write_closes_the_ledger(charged, monkeypatch, failing):
    """Append nothing behind a failed write, since nobody knows what reached the disk; reopening sorts it out."""
    ledger = open_ledger(charged)
    write = os.write

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if failing == "write":
            patch.setattr(os, "write", fail)
        elif failing == "short write":
            patch.setattr(os, "write", lambda fd, data: write(fd, data[:20]))
        else:
            patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match=r"No space left|must be written whole, only 20 were"):
            ledger.charge(6, ["bob"])
    assert ledger.is_closed
    assert ledger.participation["bob"] == 1
    with pytest.raises(LedgerClosedError):
        ledger.charge(7, ["bob"])

    with open_ledger(charged) as reopened:
        # Only the line that was whole counts, although its charge did not return: that is the safe side.
        assert reopened.participation["bob"] == (2 if failing == "fsync" else 1)


def test_killed_processes_lose_no_acknowledged_charge(path):
    """SIGKILL a charging process at a random moment, three times over, each going on where the last one stopped."""
    rng = random.Random(9)
    acknowledged = -1
    program = Path(__file__).with_name("charge_forever.py")
    root = Path(__file__).parents[3]
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, str(program), str(path)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(root)},
        ) as process:
            for _ in range(rng.randrange(20, 200)):
                acknowledged = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            for line in process.stdout:
                if line.endswith("\n"):
                    acknowledged = int(line)
        assert process.returncode == -signal.SIGKILL

        with open_ledger(path) as ledger:
            # At most the one charge in progress may be there without having been acknowledged.
            n_charged = max(ledger.rounds) + 1
            assert acknowledged < n_charged <= acknowledged + 2
            assert ledger.participation == Counter(c for n in range(n_charged) for c in clients_of(n))
