"""The record of a finished round at its door: the bytes that earlier versions wrote, and what is read of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from precad.protos.task import trim_fields
from precad.protos.tls.identity import Role
from precad.servers.store.folder import open_task_store, restore_records, write_round
from precad.servers.store.record import from_line, from_message, to_line, to_message
from precad.servers.store.rounds import CommittedRound
from tests.harness.harness import small_task

FULL = CommittedRound(
    number=7,
    chosen=("ada", "bob", "eve"),
    accepted=("ada",),
    rejected=("bob",),
    model_digest=bytes(range(32)),
    epsilon_one_server=0.1,
    epsilon_clients_only=1e-300,
    seconds={"collect": 1.5},
    bytes_by_link={"to_peer": 2**40},
)
FULL_LINE = (
    '{"round": "7", "chosen": ["ada", "bob", "eve"], "accepted": ["ada"], "rejected": ["bob"], "missing": ["eve"], '
    '"model_digest": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "seconds": {"collect": 1.5}, '
    '"bytes_by_link": {"to_peer": "1099511627776"}, "epsilon_one_server": 0.1, "epsilon_clients_only": 1e-300}\n'
)
FULL_MESSAGE = (
    "080712036164611203626f6212036576651a036164612203626f622a036576653220000102030405060708090a0b0c0d0e0f10111213141516"
    "1718191a1b1c1d1e1f3a120a07636f6c6c65637411000000000000f83f42100a07746f5f7065657210808080808020499a9999999999b93f51"
    "59f3f8c21f6ea501"
)
BARE = CommittedRound(0, ("ada",), ("ada",), (), b"d" * 32, 1.0, float("inf"))
BARE_LINE = (
    '{"chosen": ["ada"], "accepted": ["ada"], "model_digest": "ZGRkZGRkZGRkZGRkZGRkZGRkZGRkZGRkZGRkZGRkZGQ=", '
    '"epsilon_one_server": 1.0, "epsilon_clients_only": "Infinity"}\n'
)
BARE_MESSAGE = (
    "12036164611a0361646132206464646464646464646464646464646464646464646464646464646464646464"
    "49000000000000f03f51000000000000f07f"
)
RECORDED = pytest.mark.parametrize(
    ("record", "line", "message"),
    [(FULL, FULL_LINE, FULL_MESSAGE), (BARE, BARE_LINE, BARE_MESSAGE)],
    ids=["full", "bare"],
)
"""Recorded where a record was the protobuf message itself."""


@RECORDED
def test_a_record_leaves_as_the_recorded_bytes(record: CommittedRound, line: str, message: str) -> None:
    assert to_line(record) == line
    assert to_message(record).SerializeToString().hex() == message


@RECORDED
def test_a_record_comes_back_whole(record: CommittedRound, line: str, message: str) -> None:
    assert from_line(line.encode()) == record
    assert from_message(to_message(record)) == record


def test_lines_of_an_earlier_version_are_kept_byte_for_byte(tmp_path: Path) -> None:
    """A start leaves rounds.jsonl as it is, with timings that the store does not hold."""
    path, model = tmp_path / "rounds.jsonl", np.zeros(4, dtype=np.float32)
    write_round(tmp_path, BARE, model)
    path.write_text(BARE_LINE + FULL_LINE)
    bare = CommittedRound(7, FULL.chosen, FULL.accepted, FULL.rejected, FULL.model_digest, 0.1, 1e-300)
    assert restore_records(tmp_path, [BARE, bare], model) == [BARE, FULL]
    assert path.read_text() == BARE_LINE + FULL_LINE


OUTCOMES = [trim_fields.Tested(*one) for one in ((0, False, 0), (-(3 << 20), True, 7), (2**62, True, 4096))]


@pytest.mark.parametrize("test", OUTCOMES)
def test_the_outcome_of_a_test_survives_line_message_and_store(test: trim_fields.Tested, tmp_path: Path) -> None:
    """A margin of zero, or F of zero, is not mistaken for no test."""
    tested = replace(FULL, test=test)
    assert from_line(to_line(tested).encode()) == tested
    assert from_message(to_message(tested)) == tested
    assert from_message(to_message(FULL)).test is None
    task = small_task(algorithm="tsgd-ptr")
    with open_task_store(tmp_path, task, b"model") as store:
        store.begin("t", Role.AGGREGATOR_A)
        store.reserve(7)
        store.checking(7, chosen=FULL.chosen, active=FULL.chosen)
        store.validated(7, accepted=FULL.accepted, rejected=FULL.rejected, test=test)
        assert [attempt.test for attempt in store.attempts()] == [test]
        store.commit(tested, noisy_sum_digest=bytes(32), ledger_chain="")
    with open_task_store(tmp_path, task, b"model") as store:
        assert [one.test for one in store.committed()] == [test]
