"""The audit log: every change of it is found, by the database, by the chain, or by the other server's log."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from precad.deploy.cli.main import app
from precad.dp.accountants.earlier_rounds import EarlierTask
from precad.dp.accountants.pld import View
from precad.dp.ledgers.earlier import earlier_tasks
from precad.dp.ledgers.lines import FIRST_CHAIN, seal
from precad.mpc.errors import PeerMismatchError
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.errors import AuditError, SetupError, StoreError
from precad.servers.store import audit_log
from precad.servers.store.folder import open_ledger, open_task_store, store_path
from precad.servers.store.rounds import CommittedRound, EvaluatedRound
from tests.harness.command_line import CliRunner
from tests.harness.harness import small_task

TASK = small_task(("alice", "bob"))
INITIAL = bytes(4 * TASK.dim)
DIGEST = "ab" * 32


def write_rounds(
    folder: Path,
    n_rounds: int,
    *,
    accepted: tuple[str, ...] = ("alice",),
    earlier: tuple[EarlierTask, ...] = (),
    role: Role = Role.AGGREGATOR_A,
    task: Task = TASK,
    evaluation: int | None = None,
    is_lost: bool = False,
) -> Path:
    """A state dir with some releases. The path of its database.

    evaluation: the number of one. is_lost: the folder was put back to before it.
    """
    with open_task_store(folder, task, INITIAL) as store, open_ledger(folder, task, earlier) as ledger:
        store.begin("small-1", role)
        store.joined(0, "fingerprint")
        for number in range(n_rounds):
            if number == evaluation and is_lost:
                store.skip(number)
                continue
            store.reserve(number)
            store.checking(number, chosen=("alice", "bob"), active=("alice", "bob"))
            ledger.charge(number, ("alice", "bob"), is_evaluation=number == evaluation)
            store.validated(number, accepted=accepted, rejected=("bob",))
            if number == evaluation:
                of_round = (number, ("alice", "bob"), accepted, ("bob",), bytes(32), 0.5, 0.25)
                store.evaluated(EvaluatedRound(*of_round, noisy_sum=(1, 2, 3)), ledger_chain=ledger.chain)
                continue
            round = CommittedRound(number, ("alice", "bob"), accepted, ("bob",), bytes([number]) * 32, 0.5, 0.25)
            store.commit(round, noisy_sum_digest=bytes([number]) * 32, ledger_chain=ledger.chain)
    return store_path(folder)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of three releases."""
    return write_rounds(tmp_path / "a", 3)


def test_entries_come_back_as_they_were_written(path: Path) -> None:
    log = audit_log.read(path)
    assert [entry.kind for entry in log] == ["task", "joined", *["checking", "validated", "committed"] * 3]
    assert [entry.number for entry in log] == list(range(11))
    assert log[4].fields["model"] == bytes(32).hex()
    assert sorted(audit_log.releases(log)) == [0, 1, 2]


def test_no_release_is_logged_of_a_round_without_verdicts(path: Path) -> None:
    """Nor of one that was never begun: the log would say more than the rounds do."""
    before = len(audit_log.read(path))
    with open_task_store(path.parent, TASK, INITIAL) as store:
        store.reserve(3)
        for number in (3, 4):
            said, of_both = f"round {number}: expected one with verdicts to release, found none", (bytes(32), 0.5, 0.25)
            committed = CommittedRound(number, ("alice",), ("alice",), (), *of_both)
            evaluated = EvaluatedRound(number, ("alice",), ("alice",), (), *of_both, noisy_sum=(1, 2))
            with pytest.raises(StoreError, match=said):
                store.commit(committed, noisy_sum_digest=bytes(32), ledger_chain="")
            with pytest.raises(StoreError, match=said):
                store.evaluated(evaluated, ledger_chain="")
    assert len(audit_log.read(path)) == before


def test_the_end_is_one_entry_and_the_last(path: Path) -> None:
    """Whatever an interruption says, it is no end; servers that meet once more after the end say it again."""
    with open_task_store(path.parent, TASK, INITIAL) as store:
        store.interrupted(3, '"kind":"finished"')
        assert not store.is_finished
        store.finished("3 rounds done")
        store.finished("3 rounds done")
        assert store.is_finished
        store.joined(4, "fingerprint")
        assert store.is_finished
        store.finished("3 rounds done")
    assert [entry.kind for entry in audit_log.read(path)[11:]] == ["interrupted", "finished", "joined", "finished"]


@pytest.mark.parametrize("statement", ["UPDATE audit SET entry = '{}' WHERE number = 3", "DELETE FROM audit"])
def test_the_database_refuses_to_change_an_entry(path: Path, statement: str) -> None:
    with (
        open_task_store(path.parent, TASK, INITIAL) as store,
        pytest.raises(StoreError, match="an audit entry cannot be"),
        store.transaction() as run,
    ):
        run(statement)
    assert len(audit_log.read(path)) == 11


def edit(path: Path, *statements: str) -> None:
    """Past the database's triggers, as whoever owns the file can."""
    connection = sqlite3.connect(path)
    for trigger in ("audit_is_never_changed", "audit_is_never_deleted"):
        connection.execute(f"DROP TRIGGER {trigger}")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("UPDATE audit SET entry = replace(entry, 'alice', 'carol') WHERE number = 3", "entry 3: it was changed"),
        ("UPDATE audit SET chain = upper(chain) WHERE number = 5", "entry 5: it was changed"),
        ("DELETE FROM audit WHERE number = 4", "entry 4: missing"),
        ("DELETE FROM audit WHERE number = 0", "entry 0: missing"),
    ],
)
def test_the_chain_finds_an_edited_file(path: Path, statement: str, found: str) -> None:
    edit(path, statement)
    with pytest.raises(AuditError, match=found):
        audit_log.read(path)


def rewrite(path: Path, change: Callable[[list[str]], list[str]]) -> None:
    """With a fresh chain over the changed entries: what an owner of the file can do."""
    connection = sqlite3.connect(path)
    texts = [text for (text,) in connection.execute("SELECT entry FROM audit ORDER BY number")]
    connection.close()
    edit(path, "DELETE FROM audit")
    connection = sqlite3.connect(path)
    chain = audit_log.FIRST_CHAIN
    for number, text in enumerate(change(texts)):
        chain = audit_log._next_chain(chain, number, text)
        connection.execute("INSERT INTO audit VALUES (?, ?, ?)", (number, text, chain))
    connection.commit()
    connection.close()


def test_a_rewritten_log_is_found_by_a_value_kept_elsewhere_or_by_the_other_server(path: Path, tmp_path: Path) -> None:
    """Its own chain is whole again."""
    known = audit_log.read(path)[-1].chain
    other = write_rounds(tmp_path / "b", 3)
    rewrite(path, lambda texts: [text.replace("alice", "carol") for text in texts])
    log = audit_log.read(path)
    assert known not in {entry.chain for entry in log}
    with pytest.raises(PeerMismatchError, match="chosen of round 0"):
        audit_log.compare(log, audit_log.read(other))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda texts: [*texts, texts[-1]], "round 2 is committed twice"),
        (lambda texts: [text for text in texts if '"validated","at"' not in text], "round 0 is committed without"),
    ],
)
def test_a_log_that_no_server_writes_is_refused(
    path: Path, change: Callable[[list[str]], list[str]], found: str
) -> None:
    rewrite(path, change)
    with pytest.raises(AuditError, match=found):
        audit_log.releases(audit_log.read(path))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[]", "entry 11: expected a kind, a time and fields"),
        ("1", "entry 11: expected a kind, a time and fields"),
        ('{"kind":"committed","at":"now"}', "entry 11: expected round, integer, in an entry of kind 'committed'"),
        ('{"kind":"validated","at":"now","round":[2]}', "entry 11: expected round, "),
        ('{"kind":"committed","at":"now","round":3}', "entry 11: expected chosen, "),
        ('{"kind":"committed","at":"now","round":3,"chosen":["alice",1]}', "entry 11: expected chosen, "),
        ('{"kind":"task","at":"now"}', "entry 11: expected task, "),
        (f'{{"kind":"task","at":"now","task":"a","model":"{DIGEST}"}}', "entry 11: expected config, 64 .* found none"),
        (f'{{"kind":"task","at":"now","task":"a","config":"{DIGEST}"}}', "entry 11: expected model, 64 .* found none"),
        (f'{{"kind":"task","at":"now","task":"a","config":"{DIGEST}","model":5}}', "expected model, .* found 5"),
        (
            f'{{"kind":"task","at":"now","task":"\\ud800","config":"{DIGEST}","model":"{DIGEST}"}}',
            "expected task, text",
        ),
        ('{"kind":"finished","at":"now"}', "entry 11: expected reason, text, .*'finished', found none"),
        ('{"kind":"finished","at":"now","reason":["done"]}', r"entry 11: expected reason, text, .*found \['done'\]"),
        (
            '{"kind":"interrupted","at":"now","round":true,"reason":"a"}',
            "entry 11: expected round, integer, .*found True",
        ),
    ],
)
def test_an_entry_that_no_server_writes_is_named(path: Path, text: str, found: str) -> None:
    """Its owner may write what they like, with a chain that is whole; whoever verifies it gets a verdict."""
    rewrite(path, lambda texts: [*texts, text])
    with pytest.raises(AuditError, match=found):
        audit_log.releases(audit_log.read(path))


@pytest.mark.parametrize("name", ["model", "ledger"])
@pytest.mark.parametrize("value", ["[]", "{}", "null", "5", '"abc"', f'"{DIGEST.upper()}"'])
def test_the_command_refuses_a_release_whose_digest_has_another_form(path: Path, name: str, value: str) -> None:
    before = str(audit_log.read(path)[-1].fields[name])
    rewrite(path, lambda texts: [*texts[:-1], texts[-1].replace(f'"{name}":"{before}"', f'"{name}":{value}')])
    code, _, error = command(path.parent)
    assert (code, f"entry 10: expected {name}, 64 hexadecimal digits, " in error) == (3, True), error


def test_servers_may_be_one_release_apart_at_the_end_and_nowhere_else(path: Path, tmp_path: Path) -> None:
    log = audit_log.read(path)
    two, one = (audit_log.read(write_rounds(tmp_path / str(n), n)) for n in (2, 1))
    assert audit_log.compare(log, log) == 3
    assert audit_log.compare(log, two) == audit_log.compare(two, log) == 2
    with pytest.raises(PeerMismatchError, match=r"round 1 is in one log alone; the other .*ours 3 rounds, peer's 1"):
        audit_log.compare(log, one)


def test_a_round_that_one_log_lacks_in_the_middle_is_named(path: Path, tmp_path: Path) -> None:
    other = write_rounds(tmp_path / "b", 3)
    rewrite(other, lambda texts: [text for text in texts if '"committed"' not in text or '"round":1' not in text])
    log = audit_log.read(path)
    with pytest.raises(PeerMismatchError, match=r"round 1 is in one log alone\) differs"):
        audit_log.compare(log, audit_log.read(other))


def test_no_database_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="expected a server's database, found none"):
        audit_log.read(tmp_path / "task.sqlite")
    (tmp_path / "task.sqlite").write_text("something else, and longer than nothing" * 100)
    with pytest.raises(SetupError, match="expected a server's database"):
        audit_log.read(tmp_path / "task.sqlite")
    assert not (tmp_path / "missing").exists()


def test_a_view_in_the_log_s_place_is_refused(path: Path) -> None:
    """Whoever hands a log over may define rows without end, which would fill memory and disk."""
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE audit RENAME TO kept")
        connection.execute("CREATE VIEW audit AS SELECT number, entry, chain FROM kept")
    with pytest.raises(SetupError, match="expected a server's tables, found a view"):
        audit_log.read(path)


def test_a_schema_that_is_no_text_is_refused(path: Path) -> None:
    """SQLite's own message has its bytes."""
    content = path.read_bytes()
    assert content.count(b"TABLE audit (") == 1
    path.write_bytes(content.replace(b"TABLE audit (", b"TABL\x88 audit ("))
    with pytest.raises(SetupError, match="expected a server's database"):
        audit_log.read(path)


# The command


def command(*arguments: object) -> tuple[int, str, str]:
    """Exit code and both outputs."""
    result = CliRunner().invoke(app, ["audit", "log", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_what_somebody_else_s_log_says_is_shown_and_not_obeyed(tmp_path: Path) -> None:
    """A log whose task is named with orders to a terminal, and with a line like ours."""
    with open_task_store(tmp_path / "a", TASK, INITIAL) as store, open_ledger(tmp_path / "a", TASK):
        store.begin("small\x1b[2J\nreleases          9", Role.AGGREGATOR_A)
    code, out, _ = command(tmp_path / "a")
    assert code == 0
    assert "small?[2J?releases          9\n" in out
    assert [line for line in out.splitlines() if line.startswith("releases")] == ["releases          0"]


def test_the_command_verifies_log_ledger_and_the_other_server(path: Path, tmp_path: Path) -> None:
    other = write_rounds(tmp_path / "b", 3, role=Role.AGGREGATOR_B)
    code, out, _ = command(path.parent, "--against", other.parent, "--json")
    assert code == 0
    report = json.loads(out)
    expected = {"task": "small-1", "entries": 11, "releases": 3, "charged_rounds": 3, "agreed_releases": 3}
    assert {name: report[name] for name in expected} == expected
    assert command(path.parent, "--known", report["chain"])[0] == 0
    assert command(path.parent, "--known", "0" * 64)[0] == 3


def test_earlier_tasks_are_compared_with_the_other_servers(path: Path, tmp_path: Path) -> None:
    """One that a server names alone, or with another bound, is refused. Without a ledger there, it is said so."""
    before = write_rounds(tmp_path / "before", 2).parent / "ledger.jsonl"
    counted, other = (earlier_tasks([(before, most)]) for most in (4, 5))
    ours = write_rounds(tmp_path / "ours", 3, earlier=counted).parent
    for n, theirs in enumerate(((), other)):
        folder = write_rounds(tmp_path / f"theirs-{n}", 3, earlier=theirs, role=Role.AGGREGATOR_B).parent
        for pair in ((ours, folder), (folder, path.parent if n else ours)):
            code, _, error = command(pair[0], "--against", pair[1])
            assert (code, "earlier_ledgers differs between the servers: ours " in error) == (3, True), error
    same = write_rounds(tmp_path / "same", 3, earlier=counted, role=Role.AGGREGATOR_B).parent
    report = json.loads(command(ours, "--against", same, "--json")[1])
    assert (report["agreed_earlier"], "not_alike" in report) == (1, False)
    (same / "ledger.jsonl").unlink()
    code, out, _ = command(ours, "--against", same)
    assert (code, f"not compared      earlier tasks: found no {same}/ledger.jsonl" in out) == (0, True), out


def test_words_of_an_earlier_task_that_one_server_s_version_lacks_contradict_nothing(tmp_path: Path) -> None:
    """Conditions of its figures stand in the ledger of a later version alone."""
    before = write_rounds(tmp_path / "before", 2).parent / "ledger.jsonl"
    (counted,) = earlier_tasks([(before, 4)])
    said = replace(counted, rests_on={View.ONE_SERVER: "if the dealer follows"})
    ours = write_rounds(tmp_path / "ours", 3, earlier=(counted,)).parent
    theirs = write_rounds(tmp_path / "theirs", 3, earlier=(said,), role=Role.AGGREGATOR_B).parent
    for pair in ((ours, theirs), (theirs, ours)):
        code, out, error = command(pair[0], "--against", pair[1], "--json")
        assert (code, error) == (0, "")
        assert json.loads(out)["agreed_earlier"] == 1


def test_an_earlier_task_of_other_rounds_at_the_other_server_is_shown(tmp_path: Path) -> None:
    """One server alone may have charged a round that was lost: both count the same task."""
    ours, theirs = (
        write_rounds(
            tmp_path / role.value,
            3,
            earlier=earlier_tasks([(write_rounds(tmp_path / f"{role.value}-before", n).parent / "ledger.jsonl", 4)]),
            role=role,
        ).parent
        for n, role in ((2, Role.AGGREGATOR_A), (3, Role.AGGREGATOR_B))
    )
    code, out, _ = command(ours, "--against", theirs)
    (said,) = (line for line in out.splitlines() if line.startswith("not alike"))
    assert (code, "ours 1: a ledger (rounds 2, " in said, "theirs 1: a ledger (rounds 3, " in said) == (0, True, True)


def test_a_ledger_without_an_evaluation_that_the_other_server_opened_is_refused(tmp_path: Path) -> None:
    """Its folder was put back to before it. One after this ledger's end may be of a later moment."""
    task = small_task(("alice", "bob"), evaluation="clients", evaluation_every=1, evaluation_noise=5.0)
    whole, put_back = (
        write_rounds(tmp_path / role.value, 3, role=role, task=task, evaluation=1, is_lost=role is Role.AGGREGATOR_A)
        for role in (Role.AGGREGATOR_B, Role.AGGREGATOR_A)
    )
    code, _, error = command(put_back.parent, "--against", whole.parent)
    assert (code, "charge of evaluation 1 (was this server given back an old" in error) == (3, True), error
    earlier = write_rounds(tmp_path / "earlier", 1, task=task)
    later = write_rounds(tmp_path / "later", 2, role=Role.AGGREGATOR_B, task=task, evaluation=1)
    assert command(earlier.parent, "--against", later.parent)[0] == 0


def test_a_log_is_not_compared_with_itself(path: Path, tmp_path: Path) -> None:
    """A peer that hands over our own log, or a slip, is no agreement; nor is another task's."""
    shutil.copytree(path.parent, tmp_path / "copy")
    for same in (path.parent, tmp_path / "copy", write_rounds(tmp_path / "again", 3).parent):
        code, _, error = command(path.parent, "--against", same)
        assert (code, "--against: expected the other aggregator's log, found one of" in error) == (2, True)
    with open_task_store(tmp_path / "other", TASK, INITIAL) as store, open_ledger(tmp_path / "other", TASK):
        store.begin("small-2", Role.AGGREGATOR_B)
    code, _, error = command(path.parent, "--against", tmp_path / "other")
    assert (code, "--against: expected task 'small-1', found 'small-2'" in error) == (2, True)


@pytest.mark.parametrize("known", ["", "zz", "0f1e2d3c", "G" * 64])
def test_a_chain_value_of_another_form_accuses_nobody(path: Path, known: str) -> None:
    code, _, error = command(path.parent, "--known", known)
    assert (code, "--known: expected a chain value, 64 hexadecimal digits, found" in error) == (2, True)


def test_a_chain_value_of_another_form_is_refused_before_the_log_is_read(tmp_path: Path) -> None:
    code, _, error = command(tmp_path, "--known", "zz")
    assert (code, "--known: expected a chain value" in error) == (2, True), error


def test_the_command_counts_uploads_of_a_charged_check_that_has_not_ended(path: Path) -> None:
    """A server that waits for a silent one and is stopped then: nobody has written `unknown`."""

    def n_unknown() -> int:
        return int(json.loads(command(path.parent, "--json")[1])["verdicts_unknown"])

    with open_task_store(path.parent, TASK, INITIAL) as store, open_ledger(path.parent, TASK) as ledger:
        store.reserve(3)
        store.checking(3, chosen=("alice", "bob"), active=("alice", "bob"))
        assert n_unknown() == 0  # nothing of a check leaves before its charge
        ledger.charge(3, ("alice", "bob"))
        assert n_unknown() == 2
        store.settle({3})
        assert n_unknown() == 2  # counted once


def test_the_command_lists_what_was_lost_and_why(path: Path) -> None:
    """A round in flight by its number, what comes before one by the coming one's. A terminal obeys no reason."""
    with open_task_store(path.parent, TASK, INITIAL) as store, open_ledger(path.parent, TASK) as ledger:
        store.interrupted(None, "the other aggregator left")
        store.reserve(3)
        store.checking(3, chosen=("alice", "bob"), active=("alice", "bob"))
        ledger.charge(3, ("alice", "bob"))
        store.settle({3})
        store.interrupted(3, "gone \x1b[2J")
    assert [(loss["round"], loss["why"]) for loss in json.loads(command(path.parent, "--json")[1])["losses"]] == [
        (3, "the other aggregator left"),
        (3, "unknown verdicts of alice, bob"),
        (3, "gone \x1b[2J"),
    ]
    shown = [line for line in command(path.parent)[1].splitlines() if line.startswith("losses ")]
    assert [line.partition("  round ")[2] for line in shown] == [
        "3: the other aggregator left",
        "3: unknown verdicts of alice, bob",
        "3: gone ?[2J",
    ]


def test_an_interruption_of_a_round_that_was_done_is_not_shown_as_its_loss(path: Path) -> None:
    """After a planned stop the same round is done. Another one, lost in a crash of this server, has no entry here."""
    with open_task_store(path.parent, TASK, INITIAL) as store:
        store.interrupted(2, "aggregator-b was stopped by its operator")
        store.interrupted(None, "gone")
    losses = json.loads(command(path.parent, "--json")[1])["losses"]
    assert [(loss["round"], loss["released"]) for loss in losses] == [(2, True), (3, False)]
    shown = [line.partition("  round ")[2] for line in command(path.parent)[1].splitlines() if "losses " in line]
    assert shown == ["2 (released): aggregator-b was stopped by its operator", "3: gone"]


def test_the_command_refuses_a_release_that_the_ledger_does_not_hold(path: Path) -> None:
    ledger = path.parent / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
    code, _, error = command(path.parent)
    assert code == 3
    assert "round 2 was released, and the ledger does not hold it" in error


def test_the_command_refuses_a_round_of_the_training_that_was_charged_as_an_evaluation(tmp_path: Path) -> None:
    """A ledger of the same clients, with a good chain, which states another epsilon."""
    path = write_rounds(tmp_path / "a", 3)
    (tmp_path / "a" / "ledger.jsonl").unlink()
    task = small_task(
        ("alice", "bob"), evaluation="clients", evaluation_every=1, evaluation_noise=20.0, evaluation_clip=40.0
    )
    with open_ledger(tmp_path / "a", task) as ledger:
        for number in range(3):
            ledger.charge(number, ("alice", "bob"), is_evaluation=number == 1)
    code, _, error = command(path.parent)
    assert code == 3
    assert "round 1 was charged as one of another kind than it was released as" in error


def resealed(ledger: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    """Write a ledger anew, with a good chain, as whoever owns the file can."""
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    for fields in lines:
        del fields["chain"]
    change(lines)
    text, chain = b"", FIRST_CHAIN
    for fields in lines:
        line, chain = seal(fields, chain)
        text += line
    ledger.write_bytes(text)


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[0].pop("earlier"),
        lambda lines: lines[0]["earlier"][0].update(rounds=0),
        lambda lines: lines[0]["earlier"][0].update(most_rounds=3),
        lambda lines: lines[0].update(delta=1e-3),
        lambda lines: lines[0]["events"]["one_server"].update(noise_multiplier=100.0),
        lambda lines: lines.insert(2, lines.pop(1)),
        lambda lines: lines.insert(1, {"round": 7, "clients": ["alice"]}),
    ],
    ids=["no earlier task", "fewer rounds before", "fewer draws before", "delta", "noise", "order", "one more"],
)
def test_the_command_refuses_a_ledger_that_was_written_anew(
    tmp_path: Path, change: Callable[[list[dict[str, Any]]], object]
) -> None:
    """Its own chain is good, and its charges are those of the releases: the log knows the chain that it had."""
    before = write_rounds(tmp_path / "before", 2).parent / "ledger.jsonl"
    folder = write_rounds(tmp_path / "a", 3, earlier=earlier_tasks([(before, 4)])).parent
    code, out, _ = command(folder, "--json")
    assert code == 0
    assert json.loads(out)["earlier_ledgers"] == [json.loads(before.read_text().splitlines()[-1])["chain"]]

    resealed(folder / "ledger.jsonl", lambda lines: None)
    assert command(folder)[0] == 0
    resealed(folder / "ledger.jsonl", change)
    code, _, error = command(folder)
    assert (code, "it is not the ledger that round 0 was released with" in error) == (3, True), error


def test_the_command_refuses_a_chain_value_from_before_the_round_was_charged(path: Path) -> None:
    """A release that was not charged at its time."""
    first = json.loads((path.parent / "ledger.jsonl").read_text().splitlines()[1])["chain"]
    last = audit_log.read(path)[-1].fields["ledger"]
    rewrite(path, lambda texts: [text.replace(last, first) for text in texts])
    code, _, error = command(path.parent)
    assert (code, "it is not the ledger that round 2 was released with" in error) == (3, True), error


def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    code, _, error = command(tmp_path)
    assert code == 2
    assert "expected a server's database, found none" in error


def test_whoever_reads_a_log_leaves_no_file_behind_and_misses_nothing_of_a_running_server(path: Path) -> None:
    """A server that runs has its newest entries beside the database; one that has ended has them in it."""
    before = {one.name for one in path.parent.iterdir()}
    entries = len(audit_log.read(path))
    assert {one.name for one in path.parent.iterdir()} == before
    with open_task_store(path.parent, TASK, INITIAL) as store:
        store.reserve(3)
        store.checking(3, chosen=("alice", "bob"), active=("alice", "bob"))
        store.charged_by_peer(3, ("alice", "bob"))
        assert len(audit_log.read(path)) > entries
    assert {one.name for one in path.parent.iterdir()} == before
