"""Every step of the vectors, by the independent implementation: JSON in, JSON out, or `RefusedError`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.vectors import wire
from tests.vectors.independent import (
    client,
    correlations,
    dealing,
    descent,
    digests,
    gates,
    intake,
    ring,
    server,
    streams,
)
from tests.vectors.independent.correlations import Block
from tests.vectors.independent.dealing import Batch, Tuples

Json = dict[str, Any]


def words(text: str) -> list[int]:
    return ring.from_bytes(bytes.fromhex(text))


def text(values: Any) -> str:
    return ring.to_bytes(values).hex()


def place(case: Json) -> tuple[str, int, int | None]:
    return case["task"], case["round"], case["slot"]


# Encoding


def encode(case: Json) -> Json:
    return {"words": text(client.encode([float(x) for x in case["x"]], case["frac_bits"]))}


def encode_within(case: Json) -> Json:
    bound = server.threshold(float(case["clip_norm"]), case["frac_bits"])
    return {"words": text(client.encode_within([float(x) for x in case["x"]], case["frac_bits"], bound))}


def decode(case: Json) -> Json:
    return {"x": [repr(float(ring.centred(word)) * 2.0 ** -case["frac_bits"]) for word in words(case["words"])]}


def threshold(case: Json) -> Json:
    bound = server.threshold(float(case["clip_norm"]), case["frac_bits"], case["dim"])
    return {"threshold": str(bound), "low_bits": bound.bit_length()}


# Expansion


def label(case: Json) -> Json:
    return {"info": streams.info(case["purpose"], *place(case)).hex()}


def derive(case: Json) -> Json:
    return {"key": streams.derive(bytes.fromhex(case["seed"]), streams.info(case["purpose"], *place(case))).hex()}


def stream(case: Json) -> Json:
    seed = bytes.fromhex(case["seed"])
    return {"words": text(streams.stream(seed, case["purpose"], *place(case), case["n_words"]))}


# Digests


def task_digest(case: Json) -> Json:
    return {
        "canonical": digests.canonical_task(case["task"]),
        "digest": digests.task_digest(case["task"]).hex(),
    }


def tagged(case: Json) -> Json:
    return {"digest": digests.tagged(*map(bytes.fromhex, case["parts"])).hex()}


def task_id(case: Json) -> Json:
    nonces = (bytes.fromhex(case["nonce_a"]), bytes.fromhex(case["nonce_b"]))
    return {"task": digests.task_id(case["name"], *nonces)}


def binding_digest(case: Json) -> Json:
    return {"digest": digests.binding_digest(_binding(case["binding"])).hex()}


BYTES_FIELDS = ("config_digest", "model_digest", "digest_a", "digest_b")


def _binding(fields: Json) -> Json:
    return {name: bytes.fromhex(value) if name in BYTES_FIELDS else value for name, value in fields.items()}


# Submission


def mask(case: Json) -> Json:
    seeds = (bytes.fromhex(case["seed_a"]), bytes.fromhex(case["seed_b"]))
    return {"upload": text(client.mask(words(case["words"]), seeds, *place(case)))}


def split(case: Json) -> Json:
    return {"share_b": text(client.split(words(case["words"]), bytes.fromhex(case["seed"]), *place(case)))}


def agree(case: Json) -> Json:
    names = ("model_digest", "mask_seed", "peer_mask_seed_digest")
    told = [{k: bytes.fromhex(v) if k in names else v for k, v in one.items()} for one in case["invitations"]]
    agreed = client.agree(told[0], told[1], case["task"])
    seeds = [seed.hex() for seed in agreed["mask_seeds"]]
    kept = {name: agreed[name] for name in ("task", "round", "slot", "n_committed")}
    return {**kept, "model_digest": agreed["model_digest"].hex(), "mask_seeds": seeds}


def submission(case: Json) -> Json:
    invitation = {
        "task": case["invitation"]["task"],
        "round": case["invitation"]["round"],
        "slot": case["invitation"]["slot"],
        "model_digest": bytes.fromhex(case["invitation"]["model_digest"]),
        "mask_seeds": tuple(map(bytes.fromhex, case["mask_seeds"])),
        "seed": bytes.fromhex(case["seed"]),
        "salt": bytes.fromhex(case["salt"]),
    }
    made = client.submission(words(case["words"]), invitation, case["task"], case["client"])
    binding = made["binding"]
    return {
        "payload_a": made["payloads"][0].hex(),
        "payload_b": made["payloads"][1].hex(),
        "binding": {name: value.hex() if name in BYTES_FIELDS else value for name, value in binding.items()},
        "binding_digest": digests.binding_digest(binding).hex(),
        "statement": made["statement"].hex(),
    }


def take(case: Json) -> Json:
    beside = (bytes.fromhex(case[name]) for name in ("payload", "statement", "salt"))
    upload = (case["certificate"], _binding(case["binding"]), *beside)
    return {"binding_digest": intake.check(case["party"], _expected(case), case["chosen"], *upload).hex()}


def take_relay(case: Json) -> Json:
    slot, parts = case["chosen"].index(case["client"]), ("mask_seed", "payload", "statement")
    values = (bytes.fromhex(case[name]) for name in parts)
    taken = intake.check_relay(_expected(case), slot, case["client"], *values)
    return {"binding_digest": None if taken is None else taken.hex()}


def _expected(case: Json) -> Json:
    """The round's binding without client and digests."""
    return {
        "protocol_version": digests.VERSION,
        "task": case["task_id"],
        "round": case["round"],
        "config_digest": digests.task_digest(case["task"]),
        "model_digest": bytes.fromhex(case["model_digest"]),
        "dim": case["task"]["dim"],
        "mode": case["task"]["mode"],
    }


# Tuples


def blocks(case: Json) -> Json:
    found = gates.blocks(case["gate"], case["n_clients"], case["low_bits"])
    return {
        "blocks": [_block_json(block) for block in found],
        "n_masks": sum(block.n_masks for block in found),
        "n_products": sum(block.n_products for block in found),
    }


def _block_json(block: Block) -> Json:
    return {
        "kind": block.kind,
        "n_words": block.n_words,
        "block_bits": block.block_bits,
        "n_blocks": block.n_blocks,
    }


def products(case: Json) -> Json:
    block = Block(**case["block"])
    return {"products": text(correlations.products(block, words(case["masks_a"]), words(case["masks_b"])))}


def _batch(case: Json) -> Batch:
    found = tuple(Block(**block) for block in case["blocks"])
    return Batch(case["task"], case["round"], case["n_clients"], case["dim"], found)


def _dealt(case: Json) -> tuple[dealing.Corrections, dealing.Corrections]:
    keys = (bytes.fromhex(case["keys"][0]), bytes.fromhex(case["keys"][1]))
    return dealing.deal(_batch(case), keys, [int(x) for x in case["rho"]], [int(x) for x in case["omega"]])


def deal(case: Json) -> Json:
    (*_, digests_for_a), (squared_masks, equality, corrected, digests_for_b) = _dealt(case)
    corrections = {"squared_masks": squared_masks.hex(), "equality": equality.hex(), "products": corrected.hex()}
    return {**corrections, "peer_seed_digests": [digests_for_a.hex(), digests_for_b.hex()]}


def tuples(case: Json) -> Json:
    squared_masks, equality, corrected = (bytes.fromhex(case[x]) for x in ("squared_masks", "equality", "products"))
    corrections = (squared_masks, equality, corrected, bytes.fromhex(case["peer_seed_digests"]))
    side = Tuples(case["party"], _batch(case), bytes.fromhex(case["key"]), corrections)
    seeds = [side.hand_out_mask_seed(slot) for slot in case["hand_out"]]
    n = case["n_clients"]
    dealt = side.correlations()
    return {
        "mask_seeds": [seed.hex() for seed in seeds],
        "peer_mask_seed_digests": [side.peer_mask_seed_digest(slot).hex() for slot in range(n)],
        "mask_shares": [text(side.mask_share(slot)) for slot in range(n)],
        "squared_mask_shares": text(side.squared_mask_share(slot) for slot in range(n)),
        "equality_tuples": [[str(value) for value in side.equality_tuple(slot)] for slot in range(n)],
        "masks": text(word for part in dealt for word in part.masks),
        "products": text(word for part in dealt for word in part.products),
    }


# Coin


def commit(case: Json) -> Json:
    value = bytes.fromhex(case["value"])
    return {"commitment": digests.coin_commitment(case["party"], case["context"], value).hex()}


class _Answer:
    """A peer that sends one thing."""

    def __init__(self, party: int, answer: bytes) -> None:
        self.party, self._answer = party, answer

    def exchange(self, label: str, payload: bytes) -> bytes:
        return self._answer


def reveal(case: Json) -> Json:
    arguments = [bytes.fromhex(case[name]) for name in ("value", "peers_commitment", "transcript")]
    answer = _Answer(case["party"], bytes.fromhex(case["peers_value"]))
    return {"seed": server.reveal(case["party"], case["context"], *arguments, answer).hex()}


def select(case: Json) -> Json:
    seed, rate = bytes.fromhex(case["seed"]), float(case["client_rate"])
    return {"chosen": server.select(seed, case["task"], case["round"], case["enrolled"], rate)}


def lock(case: Json) -> Json:
    ours = {slot: bytes.fromhex(x) for slot, x in enumerate(case["bindings"]) if x is not None}
    answer = _Answer(case["party"], bytes.fromhex(case["received"]))
    coin = bytes.fromhex(case["coin"])
    locked = server.lock(case["task"], case["round"], len(case["bindings"]), ours, coin, answer)
    return {"active": list(locked.active), "transcript": locked.transcript.hex()}


# Rows and the local step


def rows(case: Json) -> Json:
    found = server.row_streams(bytes.fromhex(case["seed"]), case["task"], case["round"], case["dim"])
    return {"row_words": text(found[0]), "sign_words": text(found[1])}


def project(case: Json) -> Json:
    share = words(case["share"])
    streams_ = server.row_streams(bytes.fromhex(case["seed"]), case["task"], case["round"], len(share))
    return {"rows": text(server.project(share, *streams_))}


def local_step(case: Json) -> Json:
    party, bound = case["party"], server.threshold(float(case["clip_norm"]), case["frac_bits"])
    found = server.row_streams(bytes.fromhex(case["seed"]), case["task"], case["round"], case["dim"])
    total, checked = [0] * case["dim"], []
    for one in case["clients"]:
        seed, b = bytes.fromhex(one["mask_seed"]), words(one["opened"])
        a = streams.stream(seed, streams.MASK, case["task"], case["round"], one["slot"], case["dim"])
        r = int(one["squared_mask_share"])
        checked.append(text(server.words_to_check(party, b, a, r, bound, found)))
        total = [x + y for x, y in zip(total, server.share_of(party, b, a), strict=True)]
    return {"words": checked, "share_sum": text(total)}


# Gate, equality and whole validations


def gate(case: Json) -> Json:
    n = len(case["words"][0])
    low_bits = case["low_bits"]
    found = gates.blocks(case["gate"], case["n_clients"], low_bits)
    batch = Batch(case["task"], case["round"], 0, 1, found)
    keys = (bytes.fromhex(case["keys"][0]), bytes.fromhex(case["keys"][1]))
    corrections = dealing.deal(batch, keys, (), ())

    def program(end: wire.QueueEnd) -> tuple[list[Json], list[list[int]]]:
        channel = wire.Wire(end, case.get("tamper"))
        side = Tuples(end.party, batch, keys[end.party], corrections[end.party])
        mine = [words(case["words"][end.party][i]) for i in range(n)]
        return channel.messages, gates.shares_of_zero(mine, low_bits, case["gate"], side.correlations(), channel)

    (sent_a, strings_a), (sent_b, strings_b) = wire.run_both(program)
    return {
        "messages": [sent_a, sent_b],
        "strings": [[text(row) for row in strings_a], [text(row) for row in strings_b]],
        "equal": [
            [x == y for x, y in zip(row_a, row_b, strict=True)]
            for row_a, row_b in zip(strings_a, strings_b, strict=True)
        ],
    }


def hash_key(case: Json) -> Json:
    return {"key": str(server.hash_key(bytes.fromhex(case["seed"]), case["task"], case["round"]))}


def hash_(case: Json) -> Json:
    return {"hash": str(server.polynomial_hash(words(case["words"]), int(case["key"])))}


def equality(case: Json) -> Json:
    def program(end: wire.QueueEnd) -> tuple[list[Json], list[bool]]:
        channel = wire.Wire(end, case.get("tamper"))
        mine = [tuple(map(int, values)) for values in case["tuples"][end.party]]
        strings = [words(string) for string in case["strings"][end.party]]
        return channel.messages, server.all_equal(strings, int(case["key"]), mine, channel)

    (sent_a, verdicts_a), (sent_b, verdicts_b) = wire.run_both(program)
    assert verdicts_a == verdicts_b or case.get("tamper")
    return {"messages": [sent_a, sent_b], "verdicts": [verdicts_a, verdicts_b]}


class Party:
    """One server of a `validation` case, for a channel of any kind."""

    def __init__(self, case: Json, party: int) -> None:
        self.case, self.party = case, party
        self.bound = server.threshold(float(case["clip_norm"]), case["frac_bits"], case["dim"])
        n = len(case["clients"])
        found = gates.blocks(case["gate"], n, server.low_bits(self.bound))
        self.batch = Batch(case["task"], case["round"], n, case["dim"], found)
        self.keys = (bytes.fromhex(case["keys"][0]), bytes.fromhex(case["keys"][1]))
        numbers = [[int(x) for x in case[name]] for name in ("rho", "omega")]
        corrections = dealing.deal(self.batch, self.keys, *numbers)[party]
        self.tuples = Tuples(party, self.batch, self.keys[party], corrections)

    def run(self, channel: Any) -> Json:
        """Verdicts by name, and this server's share of the sum."""
        bindings = [one["bindings"][self.party] for one in self.case["clients"]]
        held = {slot: bytes.fromhex(binding) for slot, binding in enumerate(bindings) if binding is not None}
        coin = bytes.fromhex(self.case["coins"][self.party])
        locked = server.lock(self.batch.task, self.batch.round, self.batch.n_clients, held, coin, channel)
        uploads = [self._upload(slot) for slot in locked.active]
        if self.case["mode"] == "shares":
            seed, uploads = server.open_masked(uploads, self.tuples, locked, channel)
        else:
            known = (locked.context, locked.coin, locked.commitment, locked.transcript)
            seed = server.reveal(self.party, *known, channel)
        done = server.validate(locked, seed, uploads, self.tuples, self.bound, self.case["gate"], channel)
        names = [one["name"] for one in self.case["clients"]]
        return {
            "accepted": [names[slot] for slot in done.accepted],
            "rejected": [names[slot] for slot in done.rejected],
            "share_sum": text(done.share_sum),
        }

    def _upload(self, slot: int) -> list[int]:
        """Return what the client sent: b, or this server's share."""
        one, at = self.case["clients"][slot], (self.batch.task, self.batch.round, slot)
        x = words(one["words"])
        if self.case["mode"] == "masked":
            seeds = (
                dealing.mask_seed(self.keys[0], self.batch, slot),
                dealing.mask_seed(self.keys[1], self.batch, slot),
            )
            return client.mask(x, seeds, *at)
        seed = bytes.fromhex(one["seed"])
        if self.party == 1:
            return client.split(x, seed, *at)
        return streams.stream(seed, streams.UPLOAD_SHARE, *at, len(x))


def validation(case: Json) -> Json:
    def program(end: wire.QueueEnd) -> tuple[list[Json], Json]:
        channel = wire.Wire(end, case.get("tamper"))
        return channel.messages, Party(case, end.party).run(channel)

    (sent_a, at_a), (sent_b, at_b) = wire.run_both(program)
    return {"messages": [sent_a, sent_b], "results": [at_a, at_b]}


# Aggregation


def noisy_sum(case: Json) -> Json:
    shares = [words(share) for share in case["share_sums"]]
    noises = [[int(value) for value in noise] for noise in case["noises"]]
    noisy = [[x + y for x, y in zip(share, noise, strict=True)] for share, noise in zip(shares, noises, strict=True)]
    return {
        "noisy_shares": [text(share) for share in noisy],
        "noisy_sum": text(x + y for x, y in zip(*noisy, strict=True)),
    }


def update(case: Json) -> Json:
    task, given, noisy_sum = case["task"], bytes.fromhex(case["parameters"]), words(case["noisy_sum"])
    if task.get("update_clipping") == "private-quantile":
        weight = task["client_rate"] * len(task["clients"])
        model = server.updated_at_a_learnt_bound(given, noisy_sum, task)
    else:
        training = [n for name, n in task["clients"].items() if name not in task.get("audit_clients", ())]
        weight = server.divisor(task["client_rate"], task["record_rate"], training)
        if rates := task.get("record_rates"):
            drawn = 0.0
            for name, n in sorted(task["clients"].items()):  # `sum` adds otherwise from Python 3.12 on
                drawn += rates.get(name, task["record_rate"]) * n
            weight = task["client_rate"] * drawn
        model = server.updated(given, noisy_sum, task["frac_bits"], task["learning_rate"], weight)
    if "n_steps" in case:
        moments = [bytes.fromhex(moment) for moment in case["moments"]]
        model, kept = descent.updated(given, noisy_sum, task, weight, case["n_steps"], moments)
        digest = digests.sha256(model).hex()
        moved = {"divisor": repr(weight), "parameters": model.hex(), "model_digest": digest}
        return {**moved, "moments": [moment.hex() for moment in kept]}
    return {"divisor": repr(weight), "parameters": model.hex(), "model_digest": digests.sha256(model).hex()}


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
    "local_step": local_step,
    "gate": gate,
    "hash_key": hash_key,
    "hash": hash_,
    "equality": equality,
    "validation": validation,
    "noisy_sum": noisy_sum,
    "update": update,
}
