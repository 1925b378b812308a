"""The parts of an upload, as a server takes them from a call: one binding, and bytes in each part behind it.

Failure means: a call that goes on for ever without a byte, or one upload with two bindings.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from precad.mpc.prg import Seed
from precad.mpc.proved.submission import Binding
from precad.protos.messages import convert, proved
from precad.protos.precad.v1 import aggregator_pb2
from precad.servers.door.servicers import _receive
from precad.servers.errors import RefusalReason, SubmissionRefusedError
from tests.harness.harness import asynchronous
from tests.servers.rounds.test_proved_intake import AtA

Part = aggregator_pb2.SubmitPart


async def refusal(*behind: Part) -> str:
    """Return why an upload is refused whose header is right, with these parts behind it, and then all that is due."""
    at_a = AtA()
    sent, payload = at_a.upload("alice", Seed(bytes(16)))
    assert isinstance(sent.binding, Binding)
    binding, first, rest = proved.binding_message(sent.binding), payload[:7], payload[7:]

    async def parts() -> AsyncIterator[Part]:
        yield Part(binding=binding, statement=sent.statement, salt=sent.salt, chunk=convert.chunk(first))
        for part in behind:
            yield part
        yield Part(chunk=convert.chunk(rest))

    with pytest.raises(SubmissionRefusedError) as refused:
        await _receive(at_a.intake, "alice", parts())
    assert refused.value.reason is RefusalReason.MALFORMED
    assert not at_a.intake.complete
    return str(refused.value)


@asynchronous
async def test_a_part_behind_the_first_has_bytes_and_no_binding() -> None:
    """Each is refused where it comes, whatever follows it."""
    again = proved.binding_message(Binding("task", 3, "alice", b"", b"", 24, b""))
    assert "a submission has one binding" in await refusal(Part())
    assert "a submission has one binding" in await refusal(Part(binding=again, chunk=convert.chunk(bytes(7))))
    assert "a chunk has bytes" in await refusal(Part(chunk=convert.chunk(b"")))
