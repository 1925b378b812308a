"""The record of a finished round as others get it: a message on the wire, a line of rounds.jsonl.

Inside a server it is a `CommittedRound`; it becomes a message only here.
"""

from __future__ import annotations

from google.protobuf.json_format import MessageToJson, Parse, ParseError

from precad.protos.precad.v1 import control_pb2
from precad.protos.task.trim_fields import Tested
from precad.servers.store.rounds import CommittedRound


def to_message(round: CommittedRound) -> control_pb2.RoundRecord:
    """Return the record as operators get it."""
    return control_pb2.RoundRecord(
        round=round.number,
        chosen=round.chosen,
        accepted=round.accepted,
        rejected=round.rejected,
        missing=round.missing,
        model_digest=round.model_digest,
        seconds=round.seconds,
        bytes_by_link=round.bytes_by_link,
        epsilon_one_server=round.epsilon_one_server,
        epsilon_clients_only=round.epsilon_clients_only,
        test=None if round.test is None else _to_test(round.test),
    )


def from_message(message: control_pb2.RoundRecord) -> CommittedRound:
    """Return the record that a message holds."""
    return CommittedRound(
        number=message.round,
        chosen=tuple(message.chosen),
        accepted=tuple(message.accepted),
        rejected=tuple(message.rejected),
        model_digest=message.model_digest,
        epsilon_one_server=message.epsilon_one_server,
        epsilon_clients_only=message.epsilon_clients_only,
        seconds=dict(message.seconds),
        bytes_by_link=dict(message.bytes_by_link),
        test=_from_test(message.test) if message.HasField("test") else None,
    )


def _to_test(test: Tested) -> control_pb2.ProposedTest:
    return control_pb2.ProposedTest(noisy_margin=test.noisy_margin, passed=test.has_passed, trim_count=test.trim_count)


def _from_test(message: control_pb2.ProposedTest) -> Tested:
    return Tested(message.noisy_margin, message.passed, message.trim_count)


def to_line(round: CommittedRound) -> str:
    """Return the record's line of rounds.jsonl."""
    return MessageToJson(to_message(round), preserving_proto_field_name=True, indent=None) + "\n"


def from_line(line: bytes) -> CommittedRound | None:
    """Return the record of a line; None for what a crash left of one."""
    try:
        return from_message(Parse(line, control_pb2.RoundRecord()))
    except (ParseError, UnicodeDecodeError):
        return None
