"""Messages of mode `proved` to values and back. Digests are made of the values, never of protobuf's own bytes."""

from __future__ import annotations

from precad.mpc.proved.submission import Binding, ProofBinding, Relay
from precad.protos.precad.v1 import common_pb2, peer_pb2


def binding_of(message: common_pb2.Binding) -> Binding:
    """Return an upload's binding. Its field 10 is not of this mode: whoever takes a message refuses one that has it."""
    return Binding(
        protocol_version=message.protocol_version,
        task=message.task,
        round=message.round,
        client=message.client,
        config_digest=message.config_digest,
        model_digest=message.model_digest,
        dim=message.dim,
        mode=message.mode,
        payload_digest=message.digest_a,
    )


def binding_message(binding: Binding) -> common_pb2.Binding:
    """Return the message of an upload's binding."""
    return common_pb2.Binding(
        protocol_version=binding.protocol_version,
        task=binding.task,
        round=binding.round,
        client=binding.client,
        config_digest=binding.config_digest,
        model_digest=binding.model_digest,
        dim=binding.dim,
        mode=binding.mode,
        digest_a=binding.payload_digest,
    )


def proof_binding_of(message: common_pb2.ProofBinding) -> ProofBinding:
    """Return a proof's binding."""
    return ProofBinding(
        protocol_version=message.protocol_version,
        task=message.task,
        round=message.round,
        client=message.client,
        binding_digest=message.binding_digest,
        challenge=message.challenge,
        proof_digest=message.proof_digest,
    )


def proof_binding_message(binding: ProofBinding) -> common_pb2.ProofBinding:
    """Return the message of a proof's binding."""
    return common_pb2.ProofBinding(
        protocol_version=binding.protocol_version,
        task=binding.task,
        round=binding.round,
        client=binding.client,
        binding_digest=binding.binding_digest,
        challenge=binding.challenge,
        proof_digest=binding.proof_digest,
    )


def relay_of(message: peer_pb2.Relay) -> Relay:
    """Return a holder's word of an upload or a proof."""
    return Relay(message.round, message.client, message.digest, message.statement)


def relay_message(phase: int, relay: Relay) -> peer_pb2.Relay:
    """Return the message of a holder's word. phase: 0 for an upload, 1 for a proof."""
    return peer_pb2.Relay(
        phase=phase, round=relay.round, client=relay.client, digest=relay.payload_digest, statement=relay.statement
    )
