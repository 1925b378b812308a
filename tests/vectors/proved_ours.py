"""Every step of the vectors of mode `proved` by this project's packages: JSON in, JSON out, or a refusal's kind.

A `round` is in `tests.vectors.proved_played`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from precad.mpc.errors import (
    CommitmentError,
    MalformedMessageError,
    ParameterError,
    ProofRefusedError,
    VerdictsDifferError,
)
from precad.mpc.prg import Purpose, Seed
from precad.mpc.proved import client, field, prover, query, submission, sums, verifier
from precad.mpc.proved.client import Invitation
from precad.mpc.proved.shares import HeldBytes, PackedShare
from precad.mpc.proved.streams import open_field_stream
from precad.mpc.proved.submission import Binding, PayloadIntake, ProofBinding, Relay, StatedBinding
from tests.vectors.proved_played import Played
from tests.vectors.proved_values import (
    Json,
    elements,
    expected_upload,
    label_of,
    masks_of,
    payload,
    rows_of,
    sent_upload,
    sizes_of,
)

NAMES = {"digest": "payload_digest"}
"""Fields of a binding whose name in the vectors is not ours."""


def kind_of(error: Exception) -> str:
    """Return the protocol's word for a refusal."""
    if isinstance(error, ProofRefusedError):
        return error.reason
    kinds = {MalformedMessageError: "malformed", ParameterError: "parameter", CommitmentError: "commitment"}
    return "verdicts" if isinstance(error, VerdictsDifferError) else kinds[type(error)]


def binding_of(fields: Json) -> Binding | ProofBinding:
    kind = ProofBinding if "proof_digest" in fields else Binding
    values = {NAMES.get(name, name): value for name, value in fields.items()}
    return kind(**{k: bytes.fromhex(v) if k.endswith(("digest", "challenge")) else v for k, v in values.items()})


def fields_of(binding: Binding | ProofBinding) -> Json:
    ours = {"payload_digest": "digest"}
    found = {name: getattr(binding, name) for name in binding.__slots__}
    return {ours.get(k, k): v.hex() if isinstance(v, bytes) else v for k, v in found.items()}


def said(sent: StatedBinding, data: bytes) -> Json:
    return {
        "binding": fields_of(sent.binding),
        "binding_digest": sent.binding.digest().hex(),
        "statement": sent.statement.hex(),
        "payload": payload(data),
    }


# Field, sizes, slots


def multiply(case: Json) -> Json:
    a, b = elements(case["a"]), elements(case["b"])
    products = [field.dot(a[i : i + 1], b[i : i + 1]) for i in range(a.size)]
    return {"product": field.to_bytes(np.array(products, dtype=np.uint64)).hex()}


def read(case: Json) -> Json:
    return {"elements": [str(value) for value in field.to_integers(elements(case["data"])).tolist()]}


def field_stream(case: Json) -> Json:
    stream = open_field_stream(
        Seed(bytes.fromhex(case["seed"])), Purpose(case["purpose"]), label_of(case, case["slot"])
    )
    return {"elements": field.to_bytes(stream.after(case["first"]).take(case["n"])).hex()}


def parameters(case: Json) -> Json:
    found = sizes_of(case)
    return {
        "threshold": found.threshold,
        "window_bits": found.window_bits,
        "wire": found.wire_length,
        "n_wires": found.n_wires,
        "n_bits": found.n_bits,
        "bit_domain": found.bit_domain,
        "n_elements": found.proof_elements,
        "message_elements": 2 * found.opened_elements,
    }


def slots(case: Json) -> Json:
    seed = Seed(bytes.fromhex(case["seed"]))
    return {"slots": submission.slot_labels(seed, label_of(case), len(case["enrolled"]), case["chosen"])}


# Client and intake


def upload(case: Json) -> Json:
    return said(*sent_upload(case, case))


def message_of(case: Json) -> StatedBinding:
    return StatedBinding(binding_of(case["binding"]), bytes.fromhex(case["statement"]), bytes.fromhex(case["salt"]))


def taken(case: Json, expected: Binding | ProofBinding, n_elements: int) -> bytes:
    """Return a payload that the holder has checked, all at once."""
    sent, data = message_of(case), bytes.fromhex(case["payload"])
    submission.require_stated(sent, expected)
    intake = PayloadIntake(n_elements)
    intake.take(data)
    intake.finish(sent.salt, submission.payload_digest_of(sent.binding))
    return data


def expected_proof(case: Json, client: str, digest: bytes) -> ProofBinding:
    locked, challenge = (bytes.fromhex(case[name]) for name in ("locked", "challenge"))
    return ProofBinding(case["task"], case["round"], client, locked, challenge, digest)


def take(case: Json) -> Json:
    data = taken(case, expected_upload(case, case["certificate"], b""), case["dim"])
    share = np.empty(case["dim"], dtype=np.uint64)
    PackedShare(HeldBytes(data), share.size).fill(share)
    return {"binding_digest": message_of(case).binding.digest().hex(), "share": field.to_bytes(share).hex()}


def take_proof(case: Json) -> Json:
    taken(case, expected_proof(case, case["certificate"], b""), sizes_of(case).proof_elements)
    return {"binding_digest": message_of(case).binding.digest().hex()}


def relayed(case: Json, make: Callable[[Json, str, bytes], Binding | ProofBinding]) -> Json:
    digest, word = bytes.fromhex(case["digest"]), bytes.fromhex(case["statement"])
    relay, expected = Relay(case["round"], case["client"], digest, word), make(case, case["client"], digest)
    seed, label = Seed(bytes.fromhex(case["share_seed"])), label_of(case, case["slot"])
    counts = submission.stated_digest(relay, expected, seed, label) is not None
    return {"binding_digest": expected.digest().hex() if counts else None}


def proof(case: Json) -> Json:
    x = np.array(case["x"], dtype=np.int64)
    return {"proof": payload(field.to_bytes(prover.prove(x, rows_of(case), sizes_of(case), masks_of(case))))}


def prove_message(case: Json) -> Json:
    challenge, seed = (Seed(bytes.fromhex(case[name])) for name in ("challenge", "share_seed"))
    binding = binding_of(case["binding"])
    assert isinstance(binding, Binding)
    known = (elements(case["proof"]), binding, challenge, seed, label_of(case, case["slot"]))
    return said(*client.make_proof(*known, lambda _: bytes.fromhex(case["salt"])))


def agree(case: Json) -> Json:
    told = [
        Invitation(**{k: bytes.fromhex(v) if k in ("model_digest", "share_seed") else v for k, v in one.items()})
        for one in case["invitations"]
    ]
    seed = client.agree((told[0], told[1]), case["dim"])
    return {"slot": told[0].slot, "share_seed": seed.reveal().hex()}


# Check


def points_of(case: Json) -> query.Query:
    first, second = elements(case["points"]).tolist()
    return query.prepare((first, second), sizes_of(case))


def query_(case: Json) -> Json:
    coins = bytes.fromhex(case["coins"][0]), bytes.fromhex(case["coins"][1])
    seed = query.query_seed(label_of(case), coins, [bytes.fromhex(digest) for digest in case["digests"]])
    found = query.admissible_points(query.query_elements(seed, label_of(case)), sizes_of(case))
    return {"seed": seed.reveal().hex(), "points": field.to_bytes(np.array(found, dtype=np.uint64)).hex()}


def points(case: Json) -> Json:
    found = query.admissible_points(iter(elements(case["elements"]).tolist()), sizes_of(case))
    return {"points": field.to_bytes(np.array(found, dtype=np.uint64)).hex()}


def message(case: Json) -> Json:
    sizes, tables, data = sizes_of(case), points_of(case), bytes.fromhex(case["share"])
    own = sums.share_sums([PackedShare(HeldBytes(data), sizes.dim)], rows_of(case), tables, sizes)
    found = verifier.opened_share(case["party"], own.rows[0], own.wires[0], elements(case["proof"]), tables, sizes)
    return {"message": field.to_bytes(found.reshape(-1)).hex()}


def verdict(case: Json) -> Json:
    sizes = sizes_of(case)
    parts = [verifier.read_message(iter([bytes.fromhex(one)]), 1, sizes)[0] for one in case["messages"]]
    return {"valid": verifier.is_valid(parts[0], parts[1], points_of(case))}


STEPS: dict[str, Callable[[Json], Json]] = {
    "multiply": multiply,
    "read": read,
    "field_stream": field_stream,
    "parameters": parameters,
    "slots": slots,
    "agree": agree,
    "submission": upload,
    "take": take,
    "take_relay": lambda case: relayed(case, expected_upload),
    "proof": proof,
    "prove_message": prove_message,
    "take_proof": take_proof,
    "take_proof_relay": lambda case: relayed(case, expected_proof),
    "query": query_,
    "points": points,
    "verifier": message,
    "verdict": verdict,
    "round": lambda case: Played(case).play(),
}
