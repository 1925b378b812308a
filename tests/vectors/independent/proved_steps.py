"""Every step of the vectors of mode `proved`: JSON in, JSON out, or `RefusedError`.

Bytes are hex; elements are the hex of their bytes on the wire. Updates are lists of integers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

from tests.vectors.independent import digests, proved_messages, server, streams
from tests.vectors.independent.proved_client import Client
from tests.vectors.independent.proved_field import FIELD, PROOF_STATEMENT, FieldStream, from_bytes, to_bytes
from tests.vectors.independent.proved_messages import Relay, Round, Sent, binding_digest, proof_message
from tests.vectors.independent.proved_parameters import Sizes, sizes
from tests.vectors.independent.proved_proof import Masks, Rows, prove
from tests.vectors.independent.proved_round import Parties
from tests.vectors.independent.proved_server import Server
from tests.vectors.independent.proved_verifier import first_points, is_valid, message, opened, query_points

Json = dict[str, Any]
SHORT = 16384
"""Payloads up to this length are in the vectors in full, longer ones as a digest."""
BYTES_FIELDS = ("config_digest", "model_digest", "digest", "binding_digest", "challenge", "proof_digest")


def elements(text: str) -> list[int]:
    return from_bytes(bytes.fromhex(text))


def text(values: Iterable[int]) -> str:
    return to_bytes(values).hex()


def payload(data: bytes) -> Any:
    """Return a payload as the vectors hold it."""
    if len(data) <= SHORT:
        return data.hex()
    return {"n_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def sizes_of(case: Json) -> Sizes:
    return sizes(float(case["clip_norm"]), case["frac_bits"], case["dim"])


def round_of(case: Json) -> Round:
    config, model = bytes.fromhex(case["config_digest"]), bytes.fromhex(case["model_digest"])
    return Round(case["task"], case["round"], config, model, sizes_of(case))


def rows_of(case: Json) -> Rows:
    return server.row_streams(bytes.fromhex(case["challenge"]), case["task"], case["round"], case["dim"])


def masks_of(case: Json) -> Masks:
    r, slope = elements(case["bit_masks"])
    return Masks((tuple(elements(case["masks"])), tuple(elements(case["slopes"]))), (r, slope))


def binding_of(fields: Json) -> Json:
    return {name: bytes.fromhex(value) if name in BYTES_FIELDS else value for name, value in fields.items()}


def sent_of(case: Json) -> Sent:
    return Sent(binding_of(case["binding"]), *(bytes.fromhex(case[name]) for name in ("statement", "salt", "payload")))


def said(sent: Sent) -> Json:
    """Return an upload or a proof as it leaves, and its digest."""
    binding = {name: value.hex() if isinstance(value, bytes) else value for name, value in sent.binding.items()}
    return {
        "binding": binding,
        "binding_digest": binding_digest(sent.binding).hex(),
        "statement": sent.statement.hex(),
        "payload": payload(sent.payload),
    }


# Field, sizes, slots


def multiply(case: Json) -> Json:
    products = (a * b % FIELD.modulus for a, b in zip(elements(case["a"]), elements(case["b"]), strict=True))
    return {"product": text(products)}


def read(case: Json) -> Json:
    return {"elements": [str(FIELD.centred(element)) for element in elements(case["data"])]}


def field_stream(case: Json) -> Json:
    stream = FieldStream(bytes.fromhex(case["seed"]), case["purpose"], case["task"], case["round"], case["slot"])
    return {"elements": text(stream.elements(case["first"], case["n"]))}


def parameters(case: Json) -> Json:
    found = sizes_of(case)
    names = ("threshold", "window_bits", "wire", "n_wires", "n_bits", "bit_domain", "n_elements", "message_elements")
    return {name: getattr(found, name) for name in names}


def slots(case: Json) -> Json:
    known = (case["task"], case["round"], case["enrolled"], case["chosen"])
    return {"slots": proved_messages.slot_labels(bytes.fromhex(case["seed"]), *known)}


# Client and intake


def agree(case: Json) -> Json:
    told = [
        {**one, **{name: bytes.fromhex(one[name]) for name in ("model_digest", "share_seed")}}
        for one in case["invitations"]
    ]
    slot, seed = proved_messages.agree(told, case["dim"])
    return {"slot": slot, "share_seed": seed.hex()}


def submission(case: Json) -> Json:
    seed, salt = (bytes.fromhex(case[name]) for name in ("share_seed", "salt"))
    return said(proved_messages.submission(case["x"], round_of(case), case["slot"], case["client"], seed, salt))


def take(case: Json) -> Json:
    at, sent = round_of(case), sent_of(case)
    proved_messages.check_binding(at, case["certificate"], sent)
    share = proved_messages.payload_elements(sent, sent.binding["digest"], at.sizes.dim)
    return {"binding_digest": binding_digest(sent.binding).hex(), "share": text(share)}


def take_relay(case: Json) -> Json:
    at, relay = round_of(case), relay_of(case)
    binding = at.binding(relay.client, relay.digest)
    known = (at, case["slot"], bytes.fromhex(case["share_seed"]), relay, binding)
    found = proved_messages.check_relay(*known, streams.STATEMENT)
    return {"binding_digest": None if found is None else found.hex()}


def relay_of(case: Json) -> Relay:
    return Relay(case["round"], case["client"], bytes.fromhex(case["digest"]), bytes.fromhex(case["statement"]))


def proof(case: Json) -> Json:
    found = prove(case["x"], rows_of(case), sizes_of(case), masks_of(case))
    return {"proof": payload(to_bytes(found))}


def prove_message(case: Json) -> Json:
    seed, salt, challenge = (bytes.fromhex(case[name]) for name in ("share_seed", "salt", "challenge"))
    at, found = round_of(case), elements(case["proof"])
    return said(proof_message(found, at, case["slot"], binding_of(case["binding"]), challenge, seed, salt))


def statement_of_upload(case: Json) -> str:
    """Return what the seeded server got with the upload of a proof."""
    seed, binding = bytes.fromhex(case["share_seed"]), binding_of(case["binding"])
    return proved_messages.statement(seed, streams.STATEMENT, round_of(case), case["slot"], binding).hex()


def take_proof(case: Json) -> Json:
    at, sent = round_of(case), sent_of(case)
    locked, challenge = bytes.fromhex(case["locked"]), bytes.fromhex(case["challenge"])
    proved_messages.check_proof_binding(at, locked, challenge, case["certificate"], sent)
    proved_messages.payload_elements(sent, sent.binding["proof_digest"], at.sizes.n_elements)
    return {"binding_digest": binding_digest(sent.binding).hex()}


def take_proof_relay(case: Json) -> Json:
    at, relay = round_of(case), relay_of(case)
    locked, challenge = bytes.fromhex(case["locked"]), bytes.fromhex(case["challenge"])
    binding = at.proof_binding(relay.client, locked, challenge, relay.digest)
    known = (at, case["slot"], bytes.fromhex(case["share_seed"]), relay, binding)
    found = proved_messages.check_relay(*known, PROOF_STATEMENT)
    return {"binding_digest": None if found is None else found.hex()}


# Check


def query(case: Json) -> Json:
    context, coins = f"{case['task']}/{case['round']}/query", [bytes.fromhex(coin) for coin in case["coins"]]
    transcript = digests.tagged(b"proofs", *map(bytes.fromhex, case["digests"]))
    seed = digests.joint_coin(context, coins[0], coins[1], transcript)
    return {"seed": seed.hex(), "points": text(query_points(seed, case["task"], case["round"], sizes_of(case)))}


def points(case: Json) -> Json:
    return {"points": text(first_points(elements(case["elements"]), sizes_of(case)))}


def verifier(case: Json) -> Json:
    t_1, t_2 = elements(case["points"])
    known = (elements(case["share"]), elements(case["proof"]), rows_of(case), (t_1, t_2), sizes_of(case))
    return {"message": text(message(case["party"], *known))}


def verdict(case: Json) -> Json:
    (t_1, t_2), found = elements(case["points"]), sizes_of(case)
    ours, theirs = (from_bytes(bytes.fromhex(one), found.message_elements) for one in case["messages"])
    return {"valid": is_valid(opened(ours, theirs, found), (t_1, t_2), found)}


class Scripted(Parties):
    """Parties whose randomness is the case's, one of whose servers may send another payload in one step."""

    tamper: Json

    def exchange(self, step: str, payloads: Any) -> None:
        """Keep what both sent, with one bit flipped where the case says so."""
        changed = list(payloads)
        if self.tamper.get("step") == step:
            party, at = self.tamper["party"], self.tamper["flip_byte"]
            data = bytearray(changed[party])
            data[at] ^= 1
            changed[party] = bytes(data)
        super().exchange(step, changed)


def round_(case: Json) -> Json:
    """From the invitations to the noisy sum."""
    at, clients = round_of(case), {one["name"]: one for one in case["clients"]}
    places = {name: one["slot"] for name, one in clients.items()}
    servers = tuple(Server(party, at, places, _draws(_servers_bytes(case, party))) for party in (0, 1))
    named = {name: _client(one) for name, one in clients.items()}
    parties = Scripted(at, places, (servers[0], servers[1]), named)
    parties.tamper = case.get("tamper", {})
    parties.upload({name: one["x"] for name, one in clients.items() if "x" in one})
    challenges = parties.lock()
    parties.prove()
    valid = parties.check()
    total = parties.open([[int(v) for v in noise] for noise in case["noises"]])
    sent = [{step: payload(data) for step, data in one.items()} for one in parties.sent]
    return {"challenge": challenges[0].hex(), "messages": sent, "valid": valid, "noisy_sum": total}


def _client(one: Json) -> Client:
    drawn = _draws([bytes.fromhex(one.get(name, "")) for name in ("salt", "proof_salt")])
    return Client(one["name"], drawn, lambda _: masks_of(one))


def _servers_bytes(case: Json, party: int) -> list[bytes]:
    """Return what a server draws, in order: its coin, seeds in the order of invitations, its query coin."""
    seeds = [one["share_seed"] for one in case["clients"] if "x" in one and one["slot"] % 2 != party]
    return [bytes.fromhex(value) for value in (case["coins"][party], *seeds, case["query_coins"][party])]


def _draws(values: list[bytes]) -> Callable[[int], bytes]:
    left = iter(values)

    def draw(n: int) -> bytes:
        value = next(left)
        assert len(value) == n
        return value

    return draw


STEPS: dict[str, Callable[[Json], Json]] = {
    "multiply": multiply,
    "read": read,
    "field_stream": field_stream,
    "parameters": parameters,
    "slots": slots,
    "agree": agree,
    "submission": submission,
    "take": take,
    "take_relay": take_relay,
    "proof": proof,
    "prove_message": prove_message,
    "take_proof": take_proof,
    "take_proof_relay": take_proof_relay,
    "query": query,
    "points": points,
    "verifier": verifier,
    "verdict": verdict,
    "round": round_,
}
