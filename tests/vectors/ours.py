"""Every step of the vectors, by this project's packages: JSON in, JSON out, or `RefusedError`.

`independent/steps.py` is the same table by the independent implementation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from precad.clients.errors import ProtocolError
from precad.clients.submission import RoundInvitation, make_submission
from precad.clients.submission import agree as agree_on
from precad.mpc import errors, fixed_point, joint_coin, prg, ring, sharing, validation
from precad.mpc.channel import MemoryChannel, run_pair
from precad.mpc.gate import equality, top_bits
from precad.mpc.gate_names import make_gate
from precad.mpc.local import step as local_step
from precad.mpc.local.engines import CPU
from precad.mpc.local.rows import RowStreams
from precad.mpc.locking import lock_list
from precad.mpc.norm_bound import NormBound
from precad.mpc.parameters import Mode
from precad.mpc.prg import SEED_BYTES, Label, Purpose, RandomBytes, Seed
from precad.mpc.tuples.correlations import AndBlock, BitBlock, Block, CarryBlock, ChoiceBlock
from precad.mpc.tuples.dealt import deal as deal_batch
from precad.mpc.tuples.held import BatchShape, Dealt, EqualityTuple, ServerTuples, correlation_streams, field_element
from precad.protos.messages import convert
from precad.protos.precad.v1 import aggregator_pb2, common_pb2
from precad.protos.task.model_update import Past, moments_shape, updated
from precad.protos.task.task import Task
from precad.servers.errors import SubmissionRefusedError
from precad.servers.rounds.intake import Intake
from precad.servers.rounds.receiving import Upload
from precad.servers.rounds.transfers import Place
from precad.servers.rounds.uploads import MemoryPayload
from tests.harness.room import roomy
from tests.vectors import wire

Json = dict[str, Any]

KINDS: dict[type[Exception], str] = {
    errors.NotFiniteError: "not_finite",
    errors.OverflowsRingError: "overflow",
    errors.ParameterError: "parameter",
    errors.MalformedMessageError: "malformed",
    errors.CommitmentError: "commitment",
    errors.TupleReusedError: "reused",
    ProtocolError: "invitation",
}


def refusal(error: Exception) -> str | None:
    """The vectors' word for an error of ours; None for one that is none of theirs."""
    if isinstance(error, SubmissionRefusedError):
        return str(error.reason)
    return next((kind for family, kind in KINDS.items() if isinstance(error, family)), None)


def words(text: str) -> Any:
    return ring.from_bytes(bytes.fromhex(text), n_words=len(text) // 16)


def text(values: Any) -> str:
    return ring.to_bytes(np.asarray(values, dtype=np.int64)).hex()


def from_integers(values: Sequence[int]) -> Any:
    return np.array([ring.centred(value) for value in values], dtype=np.int64)


def seed_of(text: str) -> Seed:
    return Seed(bytes.fromhex(text))


def place(case: Json) -> Label:
    return Label(case["task"], case["round"], "" if case["slot"] is None else str(case["slot"]))


def bound_of(case: Json) -> NormBound:
    return NormBound(float(case["clip_norm"]), case.get("dim", 1), case["frac_bits"])


# Encoding


def encode(case: Json) -> Json:
    return {"words": text(fixed_point.encode(np.array(case["x"], dtype=np.float64), case["frac_bits"]))}


def encode_within(case: Json) -> Json:
    x, bound = np.array(case["x"], dtype=np.float64), bound_of(case)
    encoded = fixed_point.encode_within(x, squared_norm_threshold=bound.threshold, frac_bits=case["frac_bits"])
    return {"words": text(encoded)}


def decode(case: Json) -> Json:
    return {"x": [repr(float(x)) for x in fixed_point.decode(words(case["words"]), case["frac_bits"])]}


def threshold(case: Json) -> Json:
    bound = bound_of(case)
    return {"threshold": str(bound.threshold), "low_bits": bound.low_bits[-1]}


# Expansion


def label(case: Json) -> Json:
    return {"info": place(case).encode(Purpose(case["purpose"])).hex()}


def derive(case: Json) -> Json:
    return {"key": prg.derive(seed_of(case["seed"]), Purpose(case["purpose"]), place(case)).reveal().hex()}


def stream(case: Json) -> Json:
    return {"words": text(prg.stream(seed_of(case["seed"]), Purpose(case["purpose"]), place(case), case["n_words"]))}


# Digests


def task_digest(case: Json) -> Json:
    """The text is there to be shown; what counts is the digest."""
    task = Task(**case["task"])
    return {"canonical": task.canonical(), "digest": task.digest().hex()}


def tagged(case: Json) -> Json:
    return {"digest": joint_coin.digest(*map(bytes.fromhex, case["parts"])).hex()}


def task_id(case: Json) -> Json:
    nonces = (bytes.fromhex(case["nonce_a"]), bytes.fromhex(case["nonce_b"]))
    return {"task": f"{case['name']}-{joint_coin.digest(b'task id', *nonces).hex()[:16]}"}


def binding_of(fields: Json) -> common_pb2.Binding:
    names = ("config_digest", "model_digest", "digest_a", "digest_b")
    return common_pb2.Binding(**{k: bytes.fromhex(v) if k in names else v for k, v in fields.items()})


def binding_json(message: common_pb2.Binding) -> Json:
    values = {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in values.items()}


def binding_digest(case: Json) -> Json:
    return {"digest": convert.binding_digest(binding_of(case["binding"])).hex()}


# Submission


def mask(case: Json) -> Json:
    seeds = (seed_of(case["seed_a"]), seed_of(case["seed_b"]))
    return {"upload": text(sharing.mask(words(case["words"]), seeds, place(case)))}


def split(case: Json) -> Json:
    _, share_b = sharing.split(words(case["words"]), place(case), lambda n: bytes.fromhex(case["seed"]))
    return {"share_b": text(share_b)}


def agree(case: Json) -> Json:
    names = ("model_digest", "mask_seed", "peer_mask_seed_digest")
    told = [
        aggregator_pb2.Invitation(**{k: bytes.fromhex(v) if k in names else v for k, v in one.items()})
        for one in case["invitations"]
    ]
    agreed = agree_on(told[0], told[1], Task(**case["task"]))
    return {
        "task": agreed.task_id,
        "round": agreed.round,
        "slot": agreed.slot,
        "n_committed": agreed.n_committed,
        "model_digest": agreed.model_digest.hex(),
        "mask_seeds": [seed.reveal().hex() for seed in agreed.mask_seeds or ()],
    }


def submission(case: Json) -> Json:
    task, told = Task(**case["task"]), case["invitation"]
    seeds = (seed_of(case["mask_seeds"][0]), seed_of(case["mask_seeds"][1])) if case["mask_seeds"] else None
    invitation = RoundInvitation(told["task"], told["round"], told["slot"], bytes.fromhex(told["model_digest"]), seeds)
    made = make_submission(
        words(case["words"]),
        invitation,
        task=task,
        client=case["client"],
        random_bytes=lambda n: bytes.fromhex(case["seed" if n == SEED_BYTES else "salt"]),
    )
    return {
        "payload_a": made.payloads[0].hex(),
        "payload_b": made.payloads[1].hex(),
        "binding": binding_json(made.binding),
        "binding_digest": convert.binding_digest(made.binding).hex(),
        "statement": made.statement.hex(),
    }


def _intake(case: Json, party: int) -> Intake:
    return Intake(
        task=Task(**case["task"]),
        task_id=case["task_id"],
        party=party,
        round=case["round"],
        chosen=case["chosen"],
        model_digest=bytes.fromhex(case["model_digest"]),
        capacity=roomy(),
    )


def take(case: Json) -> Json:
    intake, binding, salt = _intake(case, case["party"]), binding_of(case["binding"]), bytes.fromhex(case["salt"])
    # Behind admission, which refuses a client that was not chosen before its header is read.
    until_lock = asyncio.Timeout(None)
    place = Place(intake.payload_bytes, 0.0, until_lock)
    upload = Upload(case["certificate"], place, until_lock, intake._start)
    upload.begin(binding, bytes.fromhex(case["statement"]), salt)
    upload.write(bytes.fromhex(case["payload"]))
    intake._take(upload)
    return {"binding_digest": convert.binding_digest(binding).hex()}


def take_relay(case: Json) -> Json:
    intake = _intake(case, 1)
    intake.await_relays({case["client"]: seed_of(case["mask_seed"])})
    data = bytes.fromhex(case["payload"])
    payload = MemoryPayload(len(data))
    payload.write(data)
    intake.relay(case["round"], case["client"], payload, bytes.fromhex(case["statement"]))
    taken = intake._uploads.get(case["client"])
    return {"binding_digest": None if taken is None else taken.binding.hex()}


# Tuples


def blocks(case: Json) -> Json:
    found = top_bits.blocks(make_gate(case["gate"]), case["n_clients"], case["low_bits"])
    return {
        "blocks": [_block_json(block) for block in found],
        "n_masks": sum(block.n_masks for block in found),
        "n_products": sum(block.n_products for block in found),
    }


def _block_json(block: Block) -> Json:
    kind = {AndBlock: "AND", BitBlock: "BIT", CarryBlock: "CARRY", ChoiceBlock: "CHOICE"}[type(block)]
    return {
        "kind": kind,
        "n_words": block.n_words,
        "block_bits": getattr(block, "block_bits", 0),
        "n_blocks": getattr(block, "n_blocks", 0),
    }


def _block(fields: Json) -> Block:
    match fields["kind"]:
        case "CARRY":
            return CarryBlock(fields["n_words"], fields["block_bits"], fields["n_blocks"])
        case "BIT":
            return BitBlock(fields["n_words"])
        case "CHOICE":
            return ChoiceBlock(fields["n_words"])
        case _:
            return AndBlock(fields["n_words"])


def products(case: Json) -> Json:
    return {"products": text(_block(case["block"]).products(words(case["masks_a"]), words(case["masks_b"])))}


def _shape(case: Json) -> BatchShape:
    found = tuple(_block(block) for block in case["blocks"])
    return BatchShape.anonymous(case["task"], case["round"], case["n_clients"], case["dim"], found)


def _dealers_randomness(case: Json) -> RandomBytes:
    """Return randomness that makes the dealer draw these keys, rho and omega."""
    draws: list[bytes] = [bytes.fromhex(key) for key in case["keys"]]
    for rho, omega in zip(case["rho"], case["omega"], strict=True):
        draws += [(int(rho) - 1).to_bytes(16, "little"), int(omega).to_bytes(16, "little")]
    left: Iterator[bytes] = iter(draws)

    def random_bytes(n: int) -> bytes:
        drawn = next(left)
        assert len(drawn) == n
        return drawn

    return random_bytes


def deal(case: Json) -> Json:
    to_a, to_b = deal_batch(_shape(case), _dealers_randomness(case))
    return {
        "squared_masks": text(to_b.squared_masks),
        "equality": text(to_b.equality),
        "products": text(to_b.products),
        "peer_seed_digests": [to_a.peer_seed_digests.hex(), to_b.peer_seed_digests.hex()],
    }


def tuples(case: Json) -> Json:
    parts = {name: bytes.fromhex(case.get(name, "")) for name in convert.DEALT_PARTS}
    side = ServerTuples(case["party"], _shape(case), convert.dealt_from_parts(bytes.fromhex(case["key"]), parts))
    seeds = [side.hand_out_mask_seed(str(slot)) for slot in case["hand_out"]]
    slots = [str(slot) for slot in range(case["n_clients"])]
    shares = np.empty((len(slots), case["dim"]), dtype=np.int64)
    for slot, share in zip(slots, shares, strict=True):
        side.mask_share(slot).fill(share)
    equality_tuples = side.equality_tuples(slots)
    masks, products_a = correlation_streams(seed_of(case["key"]), side.shape)
    return {
        "mask_seeds": [seed.reveal().hex() for seed in seeds],
        "peer_mask_seed_digests": [side.peer_mask_seed_digest(slot).hex() for slot in slots],
        "mask_shares": [text(share) for share in shares],
        "squared_mask_shares": text(side.squared_mask_shares(slots)),
        "equality_tuples": [[str(field_element(element)) for element in one] for one in equality_tuples],
        "masks": text(masks),
        "products": text(words(case["products"]) if case["party"] else products_a),
    }


# Coin


def commit(case: Json) -> Json:
    share = joint_coin.CoinShare(case["party"], case["context"], bytes.fromhex(case["value"]))
    return {"commitment": share.commitment.hex()}


def _answers(case: Json, answer: str) -> Any:
    """A peer that sends one thing."""
    return SimpleNamespace(party=case["party"], exchange=lambda label, payload: bytes.fromhex(answer))


def reveal(case: Json) -> Json:
    share = joint_coin.CoinShare(case["party"], case["context"], bytes.fromhex(case["value"]))
    commitment, transcript = bytes.fromhex(case["peers_commitment"]), bytes.fromhex(case["transcript"])
    return {
        "seed": joint_coin.reveal(share, commitment, transcript, _answers(case, case["peers_value"])).reveal().hex()
    }


def select(case: Json) -> Json:
    at, rate = Label(case["task"], case["round"]), float(case["client_rate"])
    return {"chosen": joint_coin.select_poisson(seed_of(case["seed"]), at, sorted(case["enrolled"]), rate)}


def lock(case: Json) -> Json:
    shape = BatchShape.anonymous(case["task"], case["round"], len(case["bindings"]), 1, ())
    ours = {str(slot): bytes.fromhex(x) for slot, x in enumerate(case["bindings"]) if x is not None}
    locked = lock_list(
        ours, shape.label(), shape.clients, _answers(case, case["received"]), lambda n: bytes.fromhex(case["coin"])
    )
    return {"active": [int(slot) for slot in locked.active], "transcript": locked.transcript.hex()}


# Rows and the local step


def rows(case: Json) -> Json:
    seed, at = seed_of(case["seed"]), Label(case["task"], case["round"])
    row_words, sign_words = RowStreams(seed, at).read(case["dim"])
    return {"row_words": text(row_words), "sign_words": text(sign_words)}


def project(case: Json) -> Json:
    """As server A holds a share: b = share - a for some a."""
    at = Label(case["task"], case["round"])
    share = words(case["share"])
    mask_seed = Seed(bytes(range(16)))
    opened = share - prg.stream(mask_seed, Purpose.MASK, at, share.size)
    client = local_step.Masked(opened, sharing.mask_stream(mask_seed, at))
    sums = local_step.local_sums(0, [client], RowStreams(seed_of(case["seed"]), at), share.size, CPU)
    return {"rows": text(sums.rows[0])}


def local(case: Json) -> Json:
    party, at = case["party"], Label(case["task"], case["round"])
    masked = [
        local_step.Masked(
            words(one["opened"]),
            sharing.mask_stream(seed_of(one["mask_seed"]), Label(case["task"], case["round"], str(one["slot"]))),
        )
        for one in case["clients"]
    ]
    sums = local_step.local_sums(party, masked, RowStreams(seed_of(case["seed"]), at), case["dim"], CPU)
    of_slot = {str(one["slot"]): int(one["squared_mask_share"]) for one in case["clients"]}
    side: Any = SimpleNamespace(
        party=party, squared_mask_shares=lambda slots: from_integers([of_slot[slot] for slot in slots])
    )
    checked = validation.words_to_check(list(of_slot), sums, side, bound_of(case))
    return {"words": [text(row) for row in checked], "share_sum": text(sums.share_sum)}


# Gate, equality and whole validations


def gate(case: Json) -> Json:
    chosen, low_bits = make_gate(case["gate"]), case["low_bits"]
    shape = BatchShape(case["task"], case["round"], (), 1, top_bits.blocks(chosen, case["n_clients"], low_bits))
    dealt = deal_batch(shape, _dealers_randomness({**case, "rho": [], "omega": []}))

    def program(end: MemoryChannel) -> tuple[list[Json], Any]:
        channel = wire.Wire(end, case.get("tamper"))
        mine = np.stack([words(row) for row in case["words"][end.party]])
        side = ServerTuples(end.party, shape, dealt[end.party])
        return channel.messages, top_bits.shares_of_zero(mine, low_bits, chosen, side.correlations(), channel)

    (sent_a, strings_a), (sent_b, strings_b) = run_pair(program)
    return {
        "messages": [sent_a, sent_b],
        "strings": [[text(row) for row in strings_a], [text(row) for row in strings_b]],
        "equal": (strings_a == strings_b).tolist(),
    }


def hash_key(case: Json) -> Json:
    return {"key": str(equality.hash_key(seed_of(case["seed"]), Label(case["task"], case["round"])))}


def hash_(case: Json) -> Json:
    return {
        "hash": str(field_element(equality.polynomial_hashes(words(case["words"])[np.newaxis], int(case["key"]))[0]))
    }


def compare(case: Json) -> Json:
    def program(end: MemoryChannel) -> tuple[list[Json], list[bool]]:
        channel = wire.Wire(end, case.get("tamper"))
        mine = np.array([EqualityTuple(*map(int, values)).words for values in case["tuples"][end.party]])
        strings = np.stack([words(string) for string in case["strings"][end.party]])
        return channel.messages, equality.all_zero(strings, int(case["key"]), mine, channel)

    (sent_a, verdicts_a), (sent_b, verdicts_b) = run_pair(program)
    return {"messages": [sent_a, sent_b], "verdicts": [verdicts_a, verdicts_b]}


class Party:
    """One server of a `validation` case, for a channel of any kind."""

    def __init__(self, case: Json, party: sharing.Party) -> None:
        self.case, self.party, self.gate = case, party, make_gate(case["gate"])
        self.bound, self.mode = bound_of(case), Mode(case["mode"])
        names = tuple(one["name"] for one in case["clients"])
        found = top_bits.blocks(self.gate, len(names), self.bound.low_bits)
        self.shape = BatchShape(case["task"], case["round"], names, case["dim"], found)
        self.dealt: tuple[Dealt, Dealt] = deal_batch(self.shape, _dealers_randomness(case))
        self.tuples = ServerTuples(party, self.shape, self.dealt[party])

    def run(self, channel: Any) -> Json:
        """Verdicts by name, and this server's share of the sum."""
        clients = {one["name"]: one for one in self.case["clients"]}
        bindings = {name: one["bindings"][self.party] for name, one in clients.items()}
        held = {name: bytes.fromhex(binding) for name, binding in bindings.items() if binding is not None}
        coin = bytes.fromhex(self.case["coins"][self.party])
        locked = lock_list(held, self.shape.label(), self.shape.clients, channel, lambda n: coin)
        uploads = {name: self._upload(clients[name]) for name in locked.active}
        reveal = validation.reveal if self.mode is Mode.MASKED else validation.reveal_and_open
        revealed = reveal(locked, uploads, self.tuples, channel)
        done = validation.validate(revealed, self.tuples, self.bound, self.gate, channel)
        return {
            "accepted": list(done.accepted),
            "rejected": list(done.rejected),
            "share_sum": text(done.accepted_share_sum),
        }

    def _upload(self, one: Json) -> Any:
        """Return what the client sent: b, or this server's share."""
        at, x = self.shape.label(one["name"]), words(one["words"])
        if self.mode is Mode.MASKED:
            sides = [ServerTuples(party, self.shape, self.dealt[party]) for party in (0, 1)]
            seeds = (sides[0].hand_out_mask_seed(one["name"]), sides[1].hand_out_mask_seed(one["name"]))
            return sharing.mask(x, seeds, at)
        seed, share_b = sharing.split(x, at, lambda n: bytes.fromhex(one["seed"]))
        return share_b if self.party else sharing.expand_share(seed, at, x.size)


def validate(case: Json) -> Json:
    def program(end: MemoryChannel) -> tuple[list[Json], Json]:
        channel = wire.Wire(end, case.get("tamper"))
        return channel.messages, Party(case, end.party).run(channel)

    (sent_a, at_a), (sent_b, at_b) = run_pair(program)
    return {"messages": [sent_a, sent_b], "results": [at_a, at_b]}


# Aggregation


def noisy_sum(case: Json) -> Json:
    noises = [np.array([int(x) for x in noise], dtype=np.int64) for noise in case["noises"]]
    noisy = [words(share) + noise for share, noise in zip(case["share_sums"], noises, strict=True)]
    return {"noisy_shares": [text(share) for share in noisy], "noisy_sum": text(noisy[0] + noisy[1])}


def update(case: Json) -> Json:
    task = Task(**case["task"])
    noisy = words(case["noisy_sum"])
    parameters = convert.model_from_bytes(bytes.fromhex(case["parameters"]), noisy.size)
    past = Past.first(task)
    if "n_steps" in case:
        kept = [np.frombuffer(bytes.fromhex(moment), dtype="<f4") for moment in case["moments"]]
        past = Past(case["n_steps"], np.array(kept, dtype=np.float32).reshape(moments_shape(task)))
    moved, after = updated(parameters, noisy, task, past)
    model = convert.model_to_bytes(moved)
    moments = {"moments": [m.astype("<f4").tobytes().hex() for m in after.moments]} if "n_steps" in case else {}
    digest = convert.sha256(model).hex()
    return {"divisor": repr(task.divisor), "parameters": model.hex(), "model_digest": digest, **moments}


STEPS: dict[str, Callable[[Json], Json]] = {
    "encode": encode,
    "encode_within": encode_within,
    "decode": decode,
    "threshold": threshold,
    "label": label,
    "derive": derive,
    "stream": stream,
    "task_digest": task_digest,
    "tagged": tagged,
    "task_id": task_id,
    "binding_digest": binding_digest,
    "mask": mask,
    "split": split,
    "agree": agree,
    "submission": submission,
    "take": take,
    "take_relay": take_relay,
    "blocks": blocks,
    "products": products,
    "deal": deal,
    "tuples": tuples,
    "commit": commit,
    "reveal": reveal,
    "select": select,
    "lock": lock,
    "rows": rows,
    "project": project,
    "local_step": local,
    "gate": gate,
    "hash_key": hash_key,
    "hash": hash_,
    "equality": compare,
    "validation": validate,
    "noisy_sum": noisy_sum,
    "update": update,
}
