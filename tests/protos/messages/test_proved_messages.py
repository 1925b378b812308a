"""Messages of mode `proved` to values and back: no field of a binding or a relay is lost, or taken for the usual one.

Failure means: a server that holds another binding than the one that was sent, such as one of another version.
"""

from __future__ import annotations

from precad.mpc.proved.submission import Binding, ProofBinding, Relay
from precad.protos.messages import proved
from precad.protos.precad.v1 import common_pb2, peer_pb2


def test_every_field_of_a_binding_is_that_of_its_message() -> None:
    """Version and mode too, whose defaults are this mode's."""
    upload = Binding("task", 3, "alice", b"config", b"model", 7, b"digest", protocol_version="v9", mode="other")
    proof = ProofBinding("task", 3, "alice", b"upload", b"challenge", b"digest", protocol_version="v9")
    of_upload = common_pb2.Binding.FromString(proved.binding_message(upload).SerializeToString())
    of_proof = common_pb2.ProofBinding.FromString(proved.proof_binding_message(proof).SerializeToString())
    assert proved.binding_of(of_upload) == upload
    assert proved.proof_binding_of(of_proof) == proof
    assert proved.binding_of(common_pb2.Binding()).protocol_version == ""
    assert proved.proof_binding_of(common_pb2.ProofBinding()).protocol_version == ""


def test_every_field_of_a_relay_is_that_of_its_message() -> None:
    relay = Relay(3, "alice", b"digest", b"statement")
    for phase in (0, 1):
        message = peer_pb2.Relay.FromString(proved.relay_message(phase, relay).SerializeToString())
        assert (message.phase, proved.relay_of(message)) == (phase, relay)
