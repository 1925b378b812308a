"""Forgers: malicious clients whose update is honest and whose upload is not, which the servers refuse to count.

Forgers attack the protocol and not the model. None changes the sum of the others' updates, and the round goes on
without the forger's. A server that can tell by itself what is wrong tells the sender.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from precad.clients.attacks.attack import Attack
from precad.clients.submission import Submission
from precad.protos.messages import convert
from precad.protos.precad.v1 import common_pb2


class Forger(Attack):
    """Base of what works on uploads."""

    __slots__ = ()

    is_deployed_only: ClassVar[bool] = True


def with_payload(submission: Submission, server: int, payload: bytes) -> Submission:
    """Replace the payload to one server, and its digest in the binding: in order, for that server alone.

    The statement to B, which the client makes of the honest binding, stays.
    """
    binding = common_pb2.Binding()
    binding.CopyFrom(submission.binding)
    digest = convert.sha256(payload)
    if server == 0:
        binding.digest_a, payloads = digest, (payload, submission.payloads[1])
    else:
        binding.digest_b = convert.salted_digest(digest, submission.salt)
        payloads = (submission.payloads[0], payload)
    return replace(submission, binding=binding, payloads=payloads)
