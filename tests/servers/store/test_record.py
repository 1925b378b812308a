"""The record of a finished round at its door: the bytes that earlier versions wrote, and what is read of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from precad.servers.store.folder import restore_records, write_round
from precad.servers.store.record import from_line, from_message, to_line, to_message
from precad.servers.store.rounds import CommittedRound

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
