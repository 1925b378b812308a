"""Values of this project's packages from the vectors of mode `proved`, and back."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from precad.mpc.errors import MalformedMessageError
from precad.mpc.local.rows import RowStreams
from precad.mpc.prg import Label, Seed
from precad.mpc.proved import client, field
from precad.mpc.proved.prover import ProofMasks
from precad.mpc.proved.shares import payload_pieces
from precad.mpc.proved.sizes import ProofSizes
from precad.mpc.proved.submission import Binding, StatedBinding

Json = dict[str, Any]
SHORT = 16384
"""Payloads up to this length are in the vectors in full."""


def elements(text: str) -> np.ndarray:
    data = bytes.fromhex(text)
    if len(data) % 7:
        raise MalformedMessageError("elements: expected whole ones")
    return field.from_bytes(data, n_elements=len(data) // 7)


def payload(data: bytes) -> Any:
    """Return a payload as the vectors hold it: long ones as a digest."""
    if len(data) <= SHORT:
        return data.hex()
    return {"n_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def sizes_of(case: Json) -> ProofSizes:
    return ProofSizes(float(case["clip_norm"]), case["dim"], case["frac_bits"])


def label_of(case: Json, slot: int | None = None) -> Label:
    return Label(case["task"], case["round"], "" if slot is None else str(slot))


def rows_of(case: Json) -> RowStreams:
    return RowStreams(Seed(bytes.fromhex(case["challenge"])), label_of(case))


def masks_of(case: Json) -> ProofMasks:
    return ProofMasks(np.stack([elements(case["masks"]), elements(case["slopes"])]), elements(case["bit_masks"]))


def expected_upload(case: Json, client: str, digest: bytes) -> Binding:
    digests = (bytes.fromhex(case[name]) for name in ("config_digest", "model_digest"))
    return Binding(case["task"], case["round"], client, *digests, case["dim"], digest)


def sent_upload(case: Json, at: Json) -> tuple[StatedBinding, bytes]:
    """Return an upload as it leaves its client, and its payload. at: what both servers know of the round."""
    seed, label, x = Seed(bytes.fromhex(case["share_seed"])), label_of(at, case["slot"]), np.array(case["x"], np.int64)
    blank = expected_upload(at, case.get("client", case.get("name", "")), b"")
    sent = client.make_upload(x, blank, seed, label, lambda _: bytes.fromhex(case["salt"]))
    return sent, b"".join(payload_pieces(x, seed, label))
