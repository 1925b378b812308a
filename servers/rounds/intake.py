"""One round's uploads at one server, in the modes with a dealer: who may submit what.

A submission is bound to its task, round, client, model and content. It is taken at most once, at its exact length. In
the `masked` form server A receives the masked vector. A hands it to the link to B before it counts as complete, so it
arrives before the lock that covers it. With it comes the client's statement to B, made with B's half of the mask seed.
So a vector that A (or the way) changed, or made, is not active. B sees no call of the client; A's close of the round
tells it that no more will come.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from precad.mpc import upload_binding
from precad.mpc.local.step import Words, WritableWords
from precad.mpc.parameters import Mode
from precad.mpc.prg import Label, Seed
from precad.mpc.ring import WORD_BYTES
from precad.mpc.sharing import ExpandedShare, Party
from precad.protos.messages import convert
from precad.protos.precad.v1 import common_pb2
from precad.protos.task.task import Task
from precad.servers.errors import RefusalReason
from precad.servers.rounds.receiving import Receiving, Taken, Upload, require
from precad.servers.rounds.transfers import Capacity
from precad.servers.rounds.uploads import Payload

DIGEST_BYTES: Final = 32
"""Length of a binding's digests, and of a statement."""
NO_BYTES_DIGEST: Final = convert.sha256(b"")

PassOn: TypeAlias = Callable[[int, str, Payload, bytes], None]
"""(round, client, payload, statement): pass a masked vector on to server B."""


class Intake(Receiving):
    """Open from the invitation to the lock."""

    def __init__(
        self,
        *,
        task: Task,
        task_id: str,
        party: Party,
        round: int,
        chosen: Sequence[str],
        model_digest: bytes,
        capacity: Capacity,
        relay: PassOn | None = None,
    ) -> None:
        """capacity: of the server, for all its rounds. relay: server A's, `masked` form; each upload taken goes on."""
        super().__init__(round=round, clients=chosen, timeout_s=task.submit_timeout_s, capacity=capacity)
        self._task, self._task_id, self.party = task, task_id, party
        self._relay = relay
        self._slots = {client: slot for slot, client in enumerate(chosen)}
        self._model_digest = model_digest
        self._mask_seeds: dict[str, Seed] = {}

    @property
    def _takes_relays(self) -> bool:
        return self._task.wire_mode is Mode.MASKED and self.party == 1

    def _is_relayed(self, client: str) -> bool:
        return self._takes_relays

    @property
    def payload_bytes(self) -> int:
        """Return the exact length of an upload to this server."""
        return convert.upload_bytes(self._task.wire_mode, self.party, self._task.dim)

    @property
    def complete(self) -> frozenset[str]:
        """Return the clients whose upload this server holds whole."""
        return frozenset(self._uploads)

    def is_chosen(self, client: str) -> bool:
        """Return whether the client was drawn for this round."""
        return client in self._slots

    def _require_open(self, client: str) -> None:
        """Refuse what can be refused before a byte is read. Raises SubmissionRefusedError."""
        require(not self._takes_relays, RefusalReason.WRONG_SERVER, "masked vectors go to server A alone")
        require(not self._closed, RefusalReason.LATE, self.late)
        require(client in self._slots, RefusalReason.NOT_CHOSEN, f"{client!r} is not in round {self.round}")
        is_first = client not in self._started
        require(is_first, RefusalReason.DUPLICATE, f"{client!r} has submitted in round {self.round}")

    def _require_header(self, upload: Upload) -> None:
        """Check the header of an upload. Raises SubmissionRefusedError."""
        binding = upload.binding
        assert isinstance(binding, common_pb2.Binding)  # `Submit` has no other
        is_callers, is_now = binding.client == upload.client, binding.round == self.round
        require(is_callers, RefusalReason.WRONG_CLIENT, f"the certificate is of {upload.client!r}")
        require(is_now, RefusalReason.WRONG_ROUND, f"round: expected {self.round}, found {binding.round}")
        self._require_open(upload.client)
        self._require_expected(binding)
        is_masked = self._task.wire_mode is Mode.MASKED
        fits = len(upload.statement) == (DIGEST_BYTES if is_masked else 0)
        rule = f"a statement has {DIGEST_BYTES} bytes, and goes with a masked vector"
        require(fits, RefusalReason.WRONG_BINDING, rule)
        fits = len(upload.salt) == (upload_binding.SALT_BYTES if not is_masked and self.party == 1 else 0)
        rule = f"a salt has {upload_binding.SALT_BYTES} bytes, and goes with B's share alone"
        require(fits, RefusalReason.WRONG_BINDING, rule)

    def _room(self) -> Payload:
        """Return room. In the `shares` form, the b that is opened from the upload is written in its place."""
        n_opened = 0 if self._task.wire_mode is Mode.MASKED else WORD_BYTES * self._task.dim
        return self._capacity.spool.new(max(self.payload_bytes, n_opened))

    def _require_expected(self, binding: common_pb2.Binding) -> None:
        expected = self._expected_binding(binding.client, (binding.digest_a, binding.digest_b))
        for descriptor in expected.DESCRIPTOR.fields:
            is_equal = getattr(binding, descriptor.name) == getattr(expected, descriptor.name)
            require(is_equal, RefusalReason.WRONG_BINDING, f"field {descriptor.name} differs")
        fit = len(binding.digest_a) == len(binding.digest_b) == DIGEST_BYTES
        require(fit, RefusalReason.WRONG_BINDING, f"digests have {DIGEST_BYTES} bytes")

    def _expected_binding(self, client: str, digests: tuple[bytes, bytes]) -> common_pb2.Binding:
        return convert.binding(
            task=self._task,
            task_id=self._task_id,
            round=self.round,
            client=client,
            model_digest=self._model_digest,
            digests=digests,
        )

    def _label(self, client: str) -> Label:
        return Label(self._task_id, self.round, str(self._slots[client]))

    def _take(self, upload: Upload) -> None:
        """Keep a complete upload, and pass it on. Raises SubmissionRefusedError."""
        payload, binding = self._require_whole(upload), upload.binding
        assert isinstance(binding, common_pb2.Binding)  # `Submit` has no other
        digest, announced = payload.digest(), binding.digest_a
        if self.party == 1:
            digest, announced = upload_binding.salted_digest(upload.salt, digest), binding.digest_b
        is_announced = hmac.compare_digest(digest, announced)
        require(is_announced, RefusalReason.WRONG_DIGEST, "the bytes do not have the announced digest")
        self._uploads[upload.client] = Taken(convert.binding_digest(binding), payload)
        if self._relay is not None:
            self._relay(self.round, upload.client, payload, upload.statement)

    def await_relays(self, mask_seeds: Mapping[str, Seed]) -> None:
        """Note, at server B in `masked` form, who may upload, and the seeds that only they and we have, which sign for
        them."""
        self._mask_seeds = dict(mask_seeds)

    def relay(self, round: int, client: str, payload: Payload, statement: bytes) -> None:
        """Take a masked vector from server A. What belongs to another round or client, comes twice, or is not what its
        client states, is dropped."""
        if round != self.round or self._closed or client not in self._mask_seeds:
            payload.discard()
            return
        binding = self._expected_binding(client, (payload.digest(), NO_BYTES_DIGEST))
        digest, label = convert.binding_digest(binding), self._label(client)
        expected = upload_binding.statement(self._mask_seeds.pop(client), label, digest)
        n_bytes = convert.upload_bytes(Mode.MASKED, 0, self._task.dim)
        if len(payload) == n_bytes and hmac.compare_digest(statement, expected):
            self._uploads[client] = Taken(digest, payload)
        else:
            payload.discard()
        self._no_longer_expected(client)

    def forget(self) -> None:
        """See `Receiving.forget`."""
        super().forget()
        self._mask_seeds.clear()

    def vector(self, client: str) -> Words:
        """Return a complete upload as ring elements, (d,): b in the `masked` form, our share, to be read once, in
        `shares`."""
        payload = self._uploads[client].payload
        if self._task.wire_mode is Mode.SHARES and self.party == 0:
            return ExpandedShare(Seed(payload[:]), self._label(client), self._task.dim)
        return payload.words(self._task.dim)

    def room(self, client: str) -> WritableWords:
        """Return a complete upload's room, (d,), for what is opened from it."""
        return self._uploads[client].payload.room(self._task.dim)
