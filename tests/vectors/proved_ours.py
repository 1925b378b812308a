"""Every step of the vectors of mode `proved` by this project's packages: JSON in, JSON out, or a refusal's kind.

A `round` is played by `precad.mpc.proved.client` and, at both servers, by `precad.mpc.proved.check`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from precad.mpc import joint_coin
from precad.mpc.errors import (
    CommitmentError,
    MalformedMessageError,
    ParameterError,
    ProofRefusedError,
    VerdictsDifferError,
)
from precad.mpc.joint_coin import CoinShare
from precad.mpc.local.rows import RowStreams
from precad.mpc.prg import Label, Purpose, Seed
from precad.mpc.proved import client, field, prover, query, submission, sums, verifier
from precad.mpc.proved.check import LockedUpload, ProofCheck
from precad.mpc.proved.client import Invitation, OpenUpload
from precad.mpc.proved.field import P
from precad.mpc.proved.prover import ProofMasks
from precad.mpc.proved.shares import HeldBytes, PackedShare, payload_pieces
from precad.mpc.proved.sizes import ProofSizes
from precad.mpc.proved.streams import open_field_stream
from precad.mpc.proved.submission import Binding, PayloadIntake, ProofBinding, Relay, Submission

Json = dict[str, Any]
SHORT = 16384
NAMES = {"digest": "payload_digest"}
"""Fields of a binding whose name in the vectors is not ours."""


def kind_of(error: Exception) -> str:
    """Return the protocol's word for a refusal."""
    if isinstance(error, ProofRefusedError):
        return error.reason
    kinds = {MalformedMessageError: "malformed", ParameterError: "parameter", CommitmentError: "commitment"}
    return "verdicts" if isinstance(error, VerdictsDifferError) else kinds[type(error)]


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


def binding_of(fields: Json) -> Binding | ProofBinding:
    kind = ProofBinding if "proof_digest" in fields else Binding
    values = {NAMES.get(name, name): value for name, value in fields.items()}
    return kind(**{k: bytes.fromhex(v) if k.endswith(("digest", "challenge")) else v for k, v in values.items()})


def fields_of(binding: Binding | ProofBinding) -> Json:
    ours = {"payload_digest": "digest"}
    found = {name: getattr(binding, name) for name in binding.__slots__}
    return {ours.get(k, k): v.hex() if isinstance(v, bytes) else v for k, v in found.items()}


def said(sent: Submission, data: bytes) -> Json:
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


def sent_upload(case: Json, at: Json) -> tuple[Submission, bytes]:
    """Return an upload as it leaves its client, and its payload. at: what both servers know of the round."""
    seed, label, x = Seed(bytes.fromhex(case["share_seed"])), label_of(at, case["slot"]), np.array(case["x"], np.int64)
    blank = expected_upload(at, case.get("client", case.get("name", "")), b"")
    sent = client.make_upload(x, blank, seed, label, lambda _: bytes.fromhex(case["salt"]))
    return sent, b"".join(payload_pieces(x, seed, label))


def upload(case: Json) -> Json:
    return said(*sent_upload(case, case))


def message_of(case: Json) -> Submission:
    return Submission(binding_of(case["binding"]), bytes.fromhex(case["statement"]), bytes.fromhex(case["salt"]))


def taken(case: Json, expected: Binding | ProofBinding, n_elements: int) -> bytes:
    """Return a payload that the holder has checked, all at once."""
    sent, data = message_of(case), bytes.fromhex(case["payload"])
    submission.require_submission(sent, expected)
    intake = PayloadIntake(n_elements)
    intake.take(data)
    intake.finish(sent.salt, submission.payload_digest_of(sent.binding))
    return data


def expected_upload(case: Json, client: str, digest: bytes) -> Binding:
    digests = (bytes.fromhex(case[name]) for name in ("config_digest", "model_digest"))
    return Binding(case["task"], case["round"], client, *digests, case["dim"], digest)


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
    counts = submission.is_statement_of(relay, expected, seed, label)
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


class Played:
    """A round of the vectors: two servers, and the messages between them, one of which may have a bit flipped."""

    def __init__(self, case: Json) -> None:
        self.case, self.sizes, self.label = case, sizes_of(case), label_of(case)
        self.clients = {one["slot"]: one for one in sorted(case["clients"], key=lambda one: one["slot"])}
        self.sent: tuple[Json, Json] = ({}, {})

    def exchange(self, step: str, payloads: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
        """Return what each server gets, and keep what was sent as it arrives."""
        changed, tamper = [bytearray(data) for data in payloads], self.case.get("tamper", {})
        if tamper.get("step") == step:
            changed[tamper["party"]][tamper["flip_byte"]] ^= 1
        for party in (0, 1):
            self.sent[party][step] = payload(bytes(changed[party]))
        return bytes(changed[1]), bytes(changed[0])

    def play(self) -> Json:
        """From the uploads to the noisy sum."""
        uploads = {slot: sent_upload(one, self.case) for slot, one in self.clients.items() if "x" in one}
        challenges, active = self.locked({slot: sent.binding.digest() for slot, (sent, _) in uploads.items()})
        checks = []
        for party in (0, 1):
            held = {slot: self.upload(party, slot, *uploads[slot]) for slot in active[party]}
            checks.append(ProofCheck(party, self.label, self.sizes, challenges[party], held))
        self.prove(checks, challenges, {slot: uploads[slot][0].binding for slot in active[0]})
        verdicts = self.verdicts(checks, active)
        valid = [[slot for slot, is_valid in found.items() if is_valid] for found in verdicts]
        ours = [joint_coin.digest(b"accepted", bytes(slot in one for slot in self.clients)) for one in valid]
        if self.exchange("accepted", (ours[0], ours[1])) != (ours[0], ours[1]):
            raise VerdictsDifferError([])
        return {
            "challenge": challenges[0].reveal().hex(),
            "noisy_sum": self.noisy_sum(checks, verdicts),
            "messages": list(self.sent),
            "valid": valid[0],
        }

    def locked(self, bindings: dict[int, bytes]) -> tuple[list[Seed], list[list[int]]]:
        """Return the challenge and the active slots of each server."""
        context = f"{self.label.task}/{self.label.round}/challenge"
        coins = [CoinShare(party, context, bytes.fromhex(self.case["coins"][party])) for party in (0, 1)]
        listed = b"".join(bindings.get(slot, bytes(32)) for slot in self.clients)
        locks = self.exchange("lock", (coins[0].commitment + listed, coins[1].commitment + listed))
        coin_values = self.exchange("reveal", (coins[0].value, coins[1].value))
        seeds, active = [], []
        for party in (0, 1):
            theirs = {slot: locks[party][32 * i + 32 : 32 * i + 64] for i, slot in enumerate(self.clients)}
            active.append([slot for slot in self.clients if bindings.get(slot) == theirs[slot]])
            transcript = joint_coin.digest(b"lock", *(bindings[slot] for slot in active[party]))
            seeds.append(joint_coin.joint_seed(coins[party], coin_values[party], locks[party][:32], transcript))
        return seeds, active

    def upload(self, party: int, slot: int, sent: Submission, data: bytes) -> LockedUpload:
        """Return an upload as one server has it."""
        held = submission.holder_of(slot) == party
        seed = Seed(bytes.fromhex(self.clients[slot]["share_seed"]))
        share = PackedShare(HeldBytes(data), self.sizes.dim) if held else seed
        return LockedUpload(sent.binding.client, sent.binding.digest(), share)

    def prove(self, checks: list[ProofCheck], challenges: list[Seed], bindings: dict[int, Binding]) -> None:
        """Send the challenges to every active client, which proves or is silent."""
        for slot, binding in bindings.items():
            one, seed = self.clients[slot], Seed(bytes.fromhex(self.clients[slot]["share_seed"]))
            drawn = (partial(masks_of, one), partial(bytes.fromhex, one["proof_salt"]))
            x, masks, salt = np.array(one["x"], dtype=np.int64), *drawn
            own = OpenUpload(
                x, self.sizes, binding, seed, slot, lambda _, masks=masks: masks(), lambda _, salt=salt: salt()
            )
            assert own.hear(0, challenges[0].reveal()) is None
            try:
                sent = own.hear(1, challenges[1].reveal())
            except ParameterError:  # a client above the bound does not even try
                continue
            if sent is not None:
                holder = submission.holder_of(slot)
                assert checks[1 - holder].take_relay(slot, checks[holder].take_proof(slot, *sent))

    def verdicts(self, checks: list[ProofCheck], active: list[list[int]]) -> list[dict[int, bool]]:
        """Return the verdicts of each server."""
        if not any(active):
            self.exchange("verifier", (b"", b""))
            return [{}, {}]
        coins = [bytes.fromhex(coin) for coin in self.case["query_coins"]]
        lists = [b"".join(checks[party].close()) for party in (0, 1)]
        theirs = self.exchange("proofs", (coins[0] + lists[0], coins[1] + lists[1]))
        opened: list[dict[int, np.ndarray]] = []
        for party, received in enumerate(theirs):
            digests = [received[at : at + 32] for at in range(32, len(received), 32)]
            proved = checks[party].proved(digests)
            known = (coins[0], received[:32]) if party == 0 else (received[:32], coins[1])
            seed = query.query_seed(self.label, known, list(proved.values()))
            drawn = query.admissible_points(query.query_elements(seed, self.label), self.sizes)
            opened.append(checks[party].open(proved, query.prepare(drawn, self.sizes)))
        pieces = [b"".join(verifier.message_pieces(list(one.values()))) for one in opened]
        found = []
        for party, data in enumerate(self.exchange("verifier", (pieces[0], pieces[1]))):
            parts = verifier.read_message(iter([data] if data else []), len(opened[party]), self.sizes)
            found.append(checks[party].verdicts(dict(zip(opened[party], parts, strict=True))))
        return found

    def noisy_sum(self, checks: list[ProofCheck], verdicts: list[dict[int, bool]]) -> list[int]:
        """Return the sum of both servers' noisy shares, as integers."""
        parts = []
        for check, found, noise in zip(checks, verdicts, self.case["noises"], strict=True):
            share = check.accepted_sum(found) if found else np.zeros(self.sizes.dim, dtype=np.uint64)
            parts.append(field.add(share, np.array([int(v) % P for v in noise], dtype=np.uint64)))
        self.exchange("noisy sum", (field.to_bytes(parts[0]), field.to_bytes(parts[1])))
        return field.to_integers(field.add(parts[0], parts[1])).tolist()


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
