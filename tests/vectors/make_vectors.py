"""Makes the vectors of `docs/reference/protocol.md`: inputs from here, outputs by this project's packages
(`tests.vectors.ours`).

    python -m tests.vectors.make_vectors            writes tests/vectors/*.json
    python -m tests.vectors.make_vectors --check    writes nothing; says what differs, and exits with 1

A file holds `positive` and `tampered` cases. A case names its step and has an input. It also has an output or, where an
implementation must not continue, the kind of its refusal. A tampered case with an output says which verdict must come.
Everything is deterministic: randomness is SHAKE-128 of a name.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.vectors import ours

Json = dict[str, Any]
HERE = Path(__file__).resolve().parent

PURPOSES = (1, 2, 3, 7, 8, 9, 10, 11, 12, 13, 14, 15)
TASK_ID, ROUND = "digits-0123456789abcdef", 7


@dataclass(frozen=True)
class Case:
    """Hold what is asked. `why` says, of a tampered case, what was done."""

    step: str
    name: str
    given: Json
    why: str = ""


def random_bytes(name: str, n: int) -> bytes:
    return hashlib.shake_128(name.encode()).digest(n)


def seed(name: str) -> str:
    return random_bytes(f"seed/{name}", 16).hex()


def integer(name: str, bound: int) -> int:
    return int.from_bytes(random_bytes(f"integer/{name}", 32), "big") % bound


def hex_words(values: Sequence[int]) -> str:
    return b"".join((value % 2**64).to_bytes(8, "little") for value in values).hex()


def random_words(name: str, n: int) -> str:
    return random_bytes(f"words/{name}", 8 * n).hex()


def task(**changes: Any) -> Json:
    """Every field of a small task."""
    fields: Json = {
        "name": "digits",
        "clients": {"bob": 120, "alice": 100, "carol-2": 80},
        "rounds": 10,
        "lost_rounds": None,
        "client_rate": 0.5,
        "record_rate": 0.1,
        "record_clip": 1.0,
        "record_clipping": "flat",
        "client_clip": 3.0,
        "noise_multiplier": 1.5,
        "learning_rate": 0.25,
        "delta": 1e-05,
        "frac_bits": 16,
        "model": "mlp",
        "dim": 5,
        "model_seed": 0,
        "mode": "masked",
        "gate": "native",
        "batches_ahead": 1,
        "submit_timeout_s": 60.0,
        "registration_timeout_s": 120.0,
        "min_clients": 1,
        "epsilon_budget_one_server": None,
        "epsilon_budget_clients_only": None,
        "epsilon_budget_client": None,
    }
    fields["accept_weak_wire_form"] = changes.get("mode") == "shares"
    assert set(changes) <= set(fields)
    return {**fields, **changes}


def user_dp_task(**changes: Any) -> Json:
    """Return a task of UserDP-FedAvg, with the fields that another algorithm has."""
    local: Json = {"local_steps": 4, "local_rate": 0.1, "local_batch": None, "local_momentum": 0.9}
    local |= {"local_weight_decay": 0.0, "non_colluding": 1}
    return {**task(), "algorithm": "user-dp-fedavg", **local, **changes}


LEARNT: Json = {"update_clipping": "private-quantile", "quantile": 0.8, "quantile_noise": 2.5}


# One function per file: positive cases, then tampered ones


def encoding() -> Iterator[Case]:
    def encode(name: str, x: Sequence[str], frac_bits: int = 16, why: str = "") -> Case:
        return Case("encode", name, {"x": list(x), "frac_bits": frac_bits}, why)

    yield encode(
        "toward zero", ["0.0", "1.0", "-1.0", "0.1", "-0.1", "1.52587890625e-05", "-1.5e-05", "-0.0", "1e-300"]
    )
    yield encode("the ends of the ring", ["140737488355327.97", "-140737488355327.97"])
    yield encode("no fractional bits", ["0.999", "-0.999", "-3.5", "7.25"], 0)
    yield encode("forty fractional bits", ["0.1", "-0.1", "8388607.5"], 40)
    yield encode("nothing", [])
    yield Case("encode_within", "fits as it is", {"x": ["3.0", "0.0", "-0.0"], "frac_bits": 16, "clip_norm": "3.0"})
    over = {"x": [repr(2.0**-14 + 2.0**-40)], "frac_bits": 40, "clip_norm": repr(2.0**-14)}
    yield Case("encode_within", "one step of the grid above C", over)
    yield Case("decode", "centred", {"words": hex_words([0, 1, -1, 2**63 - 1, -(2**63), 98304]), "frac_bits": 16})
    for clip_norm, frac_bits, dim in (
        ("3.0", 16, 5),
        ("0.1", 16, 26010),
        ("1434.0", 16, 17179869199),
        ("1.0", 0, 1),
        ("0.5", 15, 1),
    ):
        name = f"C = {clip_norm}, f = {frac_bits}, d = {dim}"
        yield Case("threshold", name, {"clip_norm": clip_norm, "frac_bits": frac_bits, "dim": dim})
    for value in ("nan", "inf", "-inf"):
        yield encode(value, ["0.5", value], why="not a finite number")
    yield encode("2^47", ["140737488355328.0"], why="the encoding does not fit a signed word")
    yield encode("-2^47", ["-140737488355328.0"], why="refused as well, though -2^63 would fit")
    for clip_norm, frac_bits, dim, why in (
        ("1434.5", 16, 5, "C 2^f > 9.4e7"),
        ("0.00001", 16, 5, "C 2^f < 1"),
        ("0.0", 16, 5, "C must be positive"),
        ("inf", 16, 5, "C must be finite"),
        ("nan", 16, 5, "C must be a number"),
        ("3.0", 41, 5, "f must be in 0..40"),
        ("3.0", 16, 0, "d must be at least 1"),
        ("3.0", 16, 17179869200, "d (2b - 1) + b >= 2^64"),
    ):
        yield Case("threshold", why, {"clip_norm": clip_norm, "frac_bits": frac_bits, "dim": dim}, why)
    yield Case("encode_within", "not clipped", {"x": ["3.01"], "frac_bits": 16, "clip_norm": "3.0"}, "longer than C")


def expansion() -> Iterator[Case]:
    for purpose in PURPOSES:
        slot = 3 if purpose in {1, 2, 3, 7, 12, 15} else None
        at = {"purpose": purpose, "task": TASK_ID, "round": ROUND, "slot": slot}
        yield Case("label", f"purpose {purpose}", at)
        yield Case("derive", f"purpose {purpose}", {**at, "seed": seed("expansion")})
        yield Case("stream", f"purpose {purpose}", {**at, "seed": seed("expansion"), "n_words": 5})
    for name, at in (
        ("slot 0 is not no slot", {"purpose": 2, "task": "t", "round": 0, "slot": 0}),
        ("no slot", {"purpose": 2, "task": "t", "round": 0, "slot": None}),
        ("a long round", {"purpose": 2, "task": "t", "round": 2**63, "slot": 10_000}),
    ):
        yield Case("label", name, at)
        yield Case("stream", name, {**at, "seed": "00" * 16, "n_words": 3})
    yield Case(
        "stream",
        "the counter carries",
        {"purpose": 8, "task": "t", "round": 1, "slot": None, "seed": "ff" * 16, "n_words": 600},
    )
    at = {"purpose": 2, "task": "t", "round": 1, "slot": 12}
    for why, moved in (
        ("a digit moved from the slot to the round", {**at, "round": 11, "slot": 2}),
        ("a digit moved from the round to the task", {**at, "task": "t1", "slot": 12}),
        ("another purpose", {**at, "purpose": 12}),
    ):
        yield Case("stream", why, {**moved, "seed": "00" * 16, "n_words": 3}, "other words: parts carry their lengths")
    yield Case("derive", "a seed of 15 bytes", {**at, "seed": "00" * 15}, "a seed has 16")


def binding_fields() -> Json:
    return {
        "protocol_version": "precad/v1.1",
        "task": TASK_ID,
        "round": ROUND,
        "client": "alice",
        "config_digest": random_bytes("config", 32).hex(),
        "model_digest": random_bytes("model", 32).hex(),
        "dim": 5,
        "mode": "masked",
        "digest_a": random_bytes("a", 32).hex(),
        "digest_b": hashlib.sha256(b"").hexdigest(),
    }


AGE = {"name": "age", "mean": 50, "std": 20.5, "min": 0.0, "max": None, "missing": None, "categories": []}
SEX = {"name": "sex", "mean": 0, "std": 1, "min": None, "max": None, "missing": None, "categories": ["f", "m"]}


def digests() -> Iterator[Case]:
    yield Case("tagged", "no parts", {"parts": []})
    yield Case("tagged", "one empty part", {"parts": [""]})
    yield Case("tagged", "lock of two", {"parts": [b"lock".hex(), "11" * 32, "22" * 32]})
    yield Case("task_id", "two nonces", {"name": "digits", "nonce_a": "00" * 16, "nonce_b": "ff" * 16})
    yield Case("task_digest", "a small task", {"task": task()})
    yield Case(
        "task_digest", "integers where reals belong", {"task": task(client_clip=3, learning_rate=1, client_rate=1)}
    )
    yield Case(
        "task_digest",
        "exponents and budgets",
        {
            "task": task(
                delta=1e-16, learning_rate=1e16, noise_multiplier=123456.75, epsilon_budget_one_server=0.1 + 0.2
            )
        },
    )
    yield Case("task_digest", "a model's name that is not ASCII", {"task": task(model='"modèle\\\x7f\n😀')})
    yield Case("task_digest", "flat clipping", {"task": user_dp_task()})
    yield Case("task_digest", "clipping by layer", {"task": user_dp_task(update_clipping="per-layer")})
    yield Case("task_digest", "a learnt bound", {"task": user_dp_task(**LEARNT)})
    by_layer = {**LEARNT, "update_clipping": "private-quantile-per-layer"}
    yield Case("task_digest", "a learnt bound by layer", {"task": user_dp_task(**by_layer)})
    yield Case("task_digest", "nobody adds noise", {"task": user_dp_task(algorithm="fedavg", noise_multiplier=0.0)})
    yield Case("task_digest", "no norm is checked", {"task": {**task(), "validation": "none"}})
    yield Case("binding_digest", "masked", {"binding": binding_fields()})
    yield Case("binding_digest", "the largest round", {"binding": {**binding_fields(), "round": 2**64 - 1}})
    for name, value in (("client", "bob"), ("round", 8), ("mode", "shares"), ("digest_a", "00" * 32), ("dim", 6)):
        given = {"binding": {**binding_fields(), name: value}}
        yield Case("binding_digest", f"another {name}", given, "a binding of another thing has another digest")
    yield Case("task_digest", "the wire form of the paper", {"task": task(mode="shares")})
    for name, value in (
        ("client_clip", 3.0000000000000004),
        ("lost_rounds", 7),
        ("noise_multiplier", 1.4999999999999998),
        ("gate", "crypten"),
    ):
        yield Case("task_digest", f"another {name}", {"task": task(**{name: value})}, "a hello with it is refused")
    named = {**task(), "class_names": ["no", "ja, größer"]}
    yield Case("task_digest", "own records", {"task": {**named, "columns": [AGE, SEX]}})
    another = {"task": {**named, "columns": [SEX, AGE]}}
    yield Case("task_digest", "another order of columns", another, "a hello with it is refused")
    yield Case("task_digest", "rates of single clients", {"task": task() | {"record_rates": OWN_RATES}})
    yield Case("task_digest", "a server's optimiser", {"task": task() | ADAM})
    yield Case("task_digest", "a rate that steps", {"task": task() | SERVER_STEPS[1][2]})
    yield Case("task_digest", "audit clients", {"task": audited_task()})
    yield Case("task_digest", "audit clients with real records", {"task": really_audited_task()})
    yield Case("task_digest", "a shape of records", {"task": {**task(), "record_shape": [1, 8, 8]}})


def really_audited_task() -> Json:
    """Two more clients audit with records of their own, named out of order."""
    audited = audited_task()
    real = {"erin": 2, "zoe": 3}
    return audited | {"clients": audited["clients"] | real, "real_audit_clients": ["zoe", "erin"]}


def audited_task() -> Json:
    """A task whose last three coordinates are canaries' of two clients, named out of order."""
    clients = {"bob": 120, "alice": 100, "dave": 2, "carol-2": 1}
    return task(clients=clients, dim=153) | {"audit_clients": ["dave", "carol-2"]}


def submission_case(mode: str, **changes: Any) -> Json:
    return {
        "task": task(mode=mode, **changes),
        "invitation": {
            "task": TASK_ID,
            "round": ROUND,
            "slot": 1,
            "model_digest": random_bytes("model", 32).hex(),
        },
        "client": "alice",
        "words": hex_words([0, 1, -1, 65536, -196608]),
        "mask_seeds": [seed("mask/a"), seed("mask/b")] if mode == "masked" else [],
        "seed": "" if mode == "masked" else seed("share"),
        "salt": "" if mode == "masked" else random_bytes("salt", 32).hex(),
    }


def invited() -> Iterator[Case]:
    """Yield the cases of what a client makes of both servers' invitations."""
    digest_a, digest_b = (hashlib.sha256(bytes.fromhex(seed(f"mask/{server}"))).hexdigest() for server in "ab")

    def agree(name: str, why: str = "", a: Json | None = None, b: Json | None = None, mode: str = "masked") -> Case:
        both = {
            "task": TASK_ID,
            "round": ROUND,
            "slot": 1,
            "dim": 5,
            "model_digest": random_bytes("model", 32).hex(),
            "n_committed": 3,
        }
        masked = mode == "masked"
        from_a = {"mask_seed": seed("mask/a"), "peer_mask_seed_digest": digest_b} if masked else {}
        from_b = {"mask_seed": seed("mask/b"), "peer_mask_seed_digest": digest_a} if masked else {}
        empty = {"mask_seed": "", "peer_mask_seed_digest": ""}
        told = [{**both, **empty, **from_a, **(a or {})}, {**both, **empty, **from_b, **(b or {})}]
        return Case("agree", name, {"task": task(mode=mode), "invitations": told}, why)

    yield agree("masked")
    yield agree("shares", mode="shares")
    dealt = "a server hands out the seed that it was dealt"
    yield agree("another seed from A", dealt, a={"mask_seed": seed("mask/c")})
    yield agree("another seed from B", dealt, b={"mask_seed": seed("mask/c")})
    yield agree("one bit of a digest", dealt, a={"peer_mask_seed_digest": flipped(digest_b)})
    for name, why, digests_ in (
        ("digests swapped", "a digest is of the other server's seed", (digest_a, digest_b)),
        ("no digests", "digests have 32 bytes", ("", "")),
        ("a short digest", "digests have 32 bytes", (digest_b[2:], digest_a)),
        ("a long digest", "digests have 32 bytes", (digest_b, digest_a + "00")),
    ):
        of_a, of_b = ({"peer_mask_seed_digest": digest} for digest in digests_)
        yield agree(name, why, of_a, of_b)
    of_both = seed("mask/a") + seed("mask/b")
    long = {"mask_seed": of_both}, {"peer_mask_seed_digest": hashlib.sha256(bytes.fromhex(of_both)).hexdigest()}
    yield agree("a seed of 32 bytes", "a seed has 16", *long)
    others: tuple[tuple[str, Any], ...] = (
        ("round", 8),
        ("slot", 2),
        ("dim", 6),
        ("model_digest", "00" * 32),
        ("n_committed", 4),
    )
    for name, value in others:
        yield agree(f"another {name} from B", "both servers say the same", b={name: value})
    yield agree("no round is left", "n_committed is below the task's rounds", {"n_committed": 10}, {"n_committed": 10})


def submission() -> Iterator[Case]:
    yield from invited()
    at = {"task": TASK_ID, "round": ROUND, "slot": 1}
    x = hex_words([0, 1, -1, 2**63 - 1, -(2**63)])
    yield Case("mask", "five words", {**at, "words": x, "seed_a": seed("mask/a"), "seed_b": seed("mask/b")})
    yield Case(
        "mask", "another slot", {**at, "slot": 2, "words": x, "seed_a": seed("mask/a"), "seed_b": seed("mask/b")}
    )
    yield Case("split", "five words", {**at, "words": x, "seed": seed("share")})
    for mode in ("masked", "shares"):
        yield Case("submission", mode, submission_case(mode))
        made = ours.submission(submission_case(mode))
        for party in (0,) if mode == "masked" else (0, 1):
            yield Case("take", f"{mode}, at server {'AB'[party]}", upload_case(mode, party, made))
    yield from relayed(ours.submission(submission_case("masked")))
    made = ours.submission(submission_case("masked"))
    good = upload_case("masked", 0, made)

    def changed(name: str, why: str, given: Json) -> Case:
        return Case("take", name, {**good, **given}, why)

    def rebound(**fields: Any) -> Json:
        return {"binding": {**made["binding"], **fields}}

    yield changed("another client's certificate", "the certificate names who submits", {"certificate": "bob"})
    yield changed("another round", "bound to its round", rebound(round=ROUND + 1))
    yield changed("not chosen", "only chosen clients submit", {"chosen": ["bob"]})
    for name, value in (
        ("protocol_version", "precad/v2"),
        ("task", "digits-0000000000000000"),
        ("config_digest", "00" * 32),
        ("model_digest", "00" * 32),
        ("dim", 6),
        ("mode", "shares"),
    ):
        yield changed(f"another {name}", "every field of the binding counts", rebound(**{name: value}))
    yield changed("a short digest", "digests have 32 bytes", rebound(digest_b="00" * 31))
    yield changed("a digest of something else", "the bytes have the announced digest", rebound(digest_a="00" * 32))
    yield changed("one byte short", "exactly 8 d bytes", {"payload": good["payload"][2:]})
    yield changed("one byte long", "exactly 8 d bytes", {"payload": good["payload"] + "00"})
    yield changed("one bit", "the bytes have the announced digest", {"payload": flipped(good["payload"])})
    yield changed("a short statement", "statements have 32 bytes", {"statement": good["statement"][2:]})
    yield changed("no statement", "B would have nothing to go by", {"statement": ""})
    yield changed("a masked vector at B", "B takes masked vectors from A alone", {"party": 1})
    yield from split_upload(ours.submission(submission_case("shares")))


def split_upload(made: Json) -> Iterator[Case]:
    """Yield the cases of what goes wrong in the `shares` form alone. made: of alice."""
    at_a, at_b = (upload_case("shares", party, made) for party in (0, 1))
    yield Case("take", "a seed of 15 bytes", {**at_a, "payload": at_a["payload"][2:]}, "exactly 16 bytes")
    yield Case("take", "a salt at server A", {**at_a, "salt": at_b["salt"]}, "A could test guesses of the update")
    for name, why, salt in (
        ("another salt", "digest_b is of this share under this salt", flipped(at_b["salt"])),
        ("a short salt", "salts have 32 bytes", at_b["salt"][2:]),
        ("no salt", "A could test guesses of the update", ""),
    ):
        yield Case("take", name, {**at_b, "salt": salt}, why)
    bare = {**made["binding"], "digest_b": hashlib.sha256(bytes.fromhex(at_b["payload"])).hexdigest()}
    yield Case("take", "a digest without a salt", {**at_b, "binding": bare}, "A could test guesses of the update")


def relayed(made: Json) -> Iterator[Case]:
    """Yield the cases of what B makes of what A relays. made: of alice, `masked` form."""
    given = upload_case("masked", 1, made)
    good = {name: given[name] for name in ("task", "task_id", "round", "model_digest", "chosen", "statement")}
    good |= {"client": "alice", "mask_seed": seed("mask/b"), "payload": made["payload_a"]}
    yield Case("take_relay", "as the client states", good)
    for name, why, given in (
        ("one bit of the vector", "A does not change what a client uploads", {"payload": flipped(good["payload"])}),
        ("one byte long", "exactly 8 d bytes", {"payload": good["payload"] + "00"}),
        ("one bit of the statement", "only the client makes it", {"statement": flipped(good["statement"])}),
        ("half a statement", "all 32 bytes count", {"statement": good["statement"][:32]}),
        ("another seed", "A's seed does not sign", {"mask_seed": seed("mask/a")}),
        ("another client's name", "bound to its client", {"client": "carol-2"}),
        ("another round", "bound to its round", {"round": ROUND + 1}),
        ("another model", "what the client saw is what B has", {"model_digest": "00" * 32}),
    ):
        yield Case("take_relay", name, {**good, **given}, f"{why}: dropped")


def flipped(text: str) -> str:
    data = bytes.fromhex(text)
    return (bytes([data[0] ^ 1]) + data[1:]).hex()


def upload_case(mode: str, party: int, made: Json) -> Json:
    given = submission_case(mode)
    return {
        "party": party,
        "task": given["task"],
        "task_id": TASK_ID,
        "round": ROUND,
        "model_digest": given["invitation"]["model_digest"],
        "chosen": ["carol-2", "alice"],
        "certificate": "alice",
        "binding": made["binding"],
        "payload": made["payload_b" if party else "payload_a"],
        "statement": made["statement"],
        "salt": given["salt"] if party == 1 else "",
    }


def batch(name: str, n_clients: int, dim: int, blocks: list[Json]) -> Json:
    p = 2**127 - 1
    return {
        "task": TASK_ID,
        "round": ROUND,
        "n_clients": n_clients,
        "dim": dim,
        "blocks": blocks,
        "keys": [seed(f"{name}/key a"), seed(f"{name}/key b")],
        "rho": [str(1 + integer(f"{name}/rho/{i}", p - 1)) for i in range(n_clients)],
        "omega": [str(integer(f"{name}/omega/{i}", p)) for i in range(n_clients)],
    }


def tuples() -> Iterator[Case]:
    for gate, n_clients, low_bits in (
        ("native", 3, [30] * 64 + [36]),
        ("native", 1, [30] * 64 + [30]),
        ("native", 0, [30] * 64 + [53]),
        ("crypten", 3, [30] * 64 + [36]),
        ("crypten", 5, [30] * 64 + [53]),
    ):
        given = {"gate": gate, "n_clients": n_clients, "low_bits": low_bits}
        yield Case("blocks", f"{gate}, {n_clients} clients, norm from bit {low_bits[-1]}", given)
    yield Case("blocks", "every length of a sum", {"gate": "native", "n_clients": 1, "low_bits": list(range(1, 54))})
    carry = {"kind": "CARRY", "n_words": 11, "block_bits": 3, "n_blocks": 4}
    bits = {"kind": "BIT", "n_words": 11, "block_bits": 0, "n_blocks": 0}
    ands = {"kind": "AND", "n_words": 3, "block_bits": 0, "n_blocks": 0}
    n_masks = ours.CarryBlock(11, 3, 4).n_masks
    for block, n in ((carry, n_masks), (bits, 1), (ands, 6)):
        given = {"block": block, "masks_a": random_words("masks/a", n), "masks_b": random_words("masks/b", n)}
        yield Case("products", block["kind"], given)
    for name, given in (
        ("two clients", batch("two clients", 2, 5, [carry, bits])),
        ("triples", batch("triples", 1, 3, [ands, bits])),
        ("nobody", batch("nobody", 0, 5, [])),
    ):
        yield Case("deal", name, given)
        dealt = ours.deal(given)
        for party in (0, 1):
            yield Case("tuples", f"{name}, at server {'AB'[party]}", side_of(given, dealt, party))
    given = batch("two clients", 2, 5, [carry, bits])
    at_b = side_of(given, ours.deal(given), 1)
    for name in ("squared_masks", "equality", "products"):
        shorter = {**at_b, name: at_b[name][: -48 * 2 if name == "equality" else -16]}
        yield Case("tuples", f"{name} too short", shorter, "corrections fit the batch")
    for name, digests_ in (("a digest short", at_b["peer_seed_digests"][:64]), ("no digests", "")):
        yield Case("tuples", name, {**at_b, "peer_seed_digests": digests_}, "32 bytes per client")
        at_a = side_of(given, ours.deal(given), 0)
        yield Case("tuples", f"{name}, at A", {**at_a, "peer_seed_digests": digests_}, "32 bytes per client")
    yield Case("tuples", "half a word", {**at_b, "products": at_b["products"][:-2]}, "corrections are whole words")
    yield Case("tuples", "corrections for A", {**at_b, "party": 0}, "server A gets a key and digests only")
    yield Case(
        "tuples", "a mask seed twice", {**at_b, "hand_out": [0, 1, 0]}, "a second vector would show a difference"
    )


def side_of(given: Json, dealt: Json, party: int) -> Json:
    shape = {name: given[name] for name in ("task", "round", "n_clients", "dim", "blocks")}
    corrections = {name: dealt[name] if party else "" for name in ("squared_masks", "equality", "products")}
    corrections["peer_seed_digests"] = dealt["peer_seed_digests"][party]
    hand_out = list(range(given["n_clients"]))
    return {**shape, "party": party, "key": given["keys"][party], **corrections, "hand_out": hand_out}


def coin() -> Iterator[Case]:
    context = f"{TASK_ID}/{ROUND}/challenge"
    values = [random_bytes(f"coin/{party}", 32).hex() for party in (0, 1)]
    commitments = []
    for party in (0, 1):
        given = {"party": party, "context": context, "value": values[party]}
        commitments.append(ours.commit(given)["commitment"])
        yield Case("commit", f"server {'AB'[party]}", given)

    def reveal(name: str, party: int, why: str = "", **changes: Any) -> Case:
        given = {
            "party": party,
            "context": context,
            "value": values[party],
            "peers_value": values[1 - party],
            "peers_commitment": commitments[1 - party],
            "transcript": "ab" * 32,
        }
        return Case("reveal", name, {**given, **changes}, why)

    yield reveal("server A", 0)
    yield reveal("server B", 1)
    yield reveal("without a transcript", 0, transcript="")
    enrolled = [f"client-{i}" for i in range(12)]
    for rate in ("0.0", "0.1", "0.5", "0.9999999999999999", "1.0"):
        at = {"seed": seed("selection"), "task": TASK_ID, "round": ROUND, "enrolled": enrolled}
        yield Case("select", f"q = {rate}", {**at, "client_rate": rate})
    bindings = [hashlib.sha256(bytes([slot])).hexdigest() for slot in range(4)]
    lock = {"party": 0, "task": TASK_ID, "round": ROUND, "coin": values[0]}
    full = commitments[1] + "".join(bindings)
    yield Case("lock", "all four", {**lock, "bindings": bindings, "received": full})
    mine: list[str | None] = [bindings[0], None, bindings[2], None]
    theirs = commitments[1] + bindings[0] + bindings[1] + "00" * 32 + "00" * 32
    yield Case("lock", "one in common", {**lock, "bindings": mine, "received": theirs})
    yield Case("lock", "nobody chosen", {**lock, "bindings": [], "received": commitments[1]})
    yield reveal("another value", 0, "not what was committed to", peers_value="00" * 32)
    yield reveal("31 bytes", 0, "a coin has 32", peers_value=values[1][:-2])
    yield reveal("an echo", 0, "a commitment names its party", peers_value=values[0], peers_commitment=commitments[0])
    yield reveal("of another round", 0, "and its context", context=f"{TASK_ID}/{ROUND + 1}/challenge")
    yield Case("select", "q > 1", {**at, "client_rate": "1.5"}, "a probability")
    other = full[:64] + flipped(bindings[0]) + full[128:]
    yield Case(
        "lock", "another binding", {**lock, "bindings": bindings, "received": other}, "that client is not active"
    )
    yield Case("lock", "one client fewer", {**lock, "bindings": bindings, "received": full[:-64]}, "another length")


def rows() -> Iterator[Case]:
    for dim in (1, 5, 64, 65):
        yield Case("rows", f"d = {dim}", {"seed": seed("rows"), "task": TASK_ID, "round": ROUND, "dim": dim})
    for name, share in (
        ("units", hex_words([1, 2**8, 2**16, 2**24, 2**32])),
        ("the top bit", hex_words([2**63] * 5)),
        ("uniform", random_words("rows", 70)),
    ):
        yield Case("project", name, {"seed": seed("rows"), "task": TASK_ID, "round": ROUND, "share": share})
    given = {
        "seed": seed("rows"),
        "task": TASK_ID,
        "round": ROUND + 1,
        "share": hex_words([1, 2**8, 2**16, 2**24, 2**32]),
    }
    yield Case("project", "the rows of another round", given, "other values: a challenge serves one round")


def local_step() -> Iterator[Case]:
    for party in (0, 1):
        for dim, n in ((1, 1), (5, 3), (65, 2)):
            clients = [
                {
                    "slot": 2 * i,
                    "opened": random_words(f"local/{dim}/{i}", dim),
                    "mask_seed": seed(f"local/{party}/{i}"),
                    "squared_mask_share": str(integer(f"local/{party}/{dim}/{i}", 2**64) - 2**63),
                }
                for i in range(n)
            ]
            given = {
                "party": party,
                "task": TASK_ID,
                "round": ROUND,
                "seed": seed("local"),
                "dim": dim,
                "clip_norm": "3.0",
                "frac_bits": 16,
                "clients": clients,
            }
            yield Case("local_step", f"server {'AB'[party]}, d = {dim}, {n} clients", given)
            if dim == 1:
                worse = [{**clients[0], "squared_mask_share": str(int(clients[0]["squared_mask_share"]) + 1)}]
                why = "a wrong share of <a, a> moves the norm's word by one, and nothing else"
                yield Case("local_step", f"server {'AB'[party]}, <a, a> + 1", {**given, "clients": worse}, why)


def gate_case(gate: str, low_bits: Sequence[int], sums: Sequence[Sequence[int]], n_dealt: int = 0) -> Json:
    shares_a = [[integer(f"gate/{i}/{j}", 2**64) for j in range(len(row))] for i, row in enumerate(sums)]
    shares_b = [[s - a for s, a in zip(row, share, strict=True)] for row, share in zip(sums, shares_a, strict=True)]
    return {
        "gate": gate,
        "task": TASK_ID,
        "round": ROUND,
        "n_clients": n_dealt or len(sums),
        "keys": [seed("gate/a"), seed("gate/b")],
        "low_bits": list(low_bits),
        "words": [[hex_words(row) for row in shares_a], [hex_words(row) for row in shares_b]],
    }


GATE_SUMS = (
    [0, 2**30 - 1, 2**30, 2**64 - 1, 2**33 - 1],
    [1, 2**29, 2**63, 2**63 - 1, 2**33],
    [12345, 2**31, 2**30 + 1, 0, 2**64 - 2**33],
)
"""Three clients; bits 30 and up of the first four words count, bits 33 and up of the last."""


def gates() -> Iterator[Case]:
    low_bits = (30, 30, 30, 30, 33)
    for name in ("native", "crypten"):
        yield Case("gate", f"{name}, two lengths", gate_case(name, low_bits, GATE_SUMS))
        yield Case("gate", f"{name}, one length", gate_case(name, (30,) * 5, GATE_SUMS))
        yield Case("gate", f"{name}, two of four clients", gate_case(name, low_bits, GATE_SUMS[:2], n_dealt=4))
    yield Case("gate", "native, short and long sums", gate_case("native", (1, 2, 10, 53, 53), GATE_SUMS))
    good = gate_case("native", low_bits, GATE_SUMS)
    for label, byte in (("gate/blocks", 17), ("gate/join", 1), ("gate/carries", 0)):
        why = "one flipped bit makes other strings, and no error"
        yield Case(
            "gate", f"a bit of {label}", {**good, "tamper": {"party": 1, "label": label, "flip_byte": byte}}, why
        )
        empty = {**good, "tamper": {"party": 1, "label": label, "payload": ""}}
        yield Case("gate", f"nothing in {label}", empty, "every step has one length")


def equality() -> Iterator[Case]:
    yield Case("hash_key", "of a round", {"seed": seed("equality"), "task": TASK_ID, "round": ROUND})
    p = 2**127 - 1
    key = str(integer("equality/key", p))
    for name, string in (
        ("zero", [0] * 65),
        ("one", [0] * 64 + [1]),
        ("all ones", [2**64 - 1] * 65),
        ("short", [3, 5]),
    ):
        yield Case("hash", name, {"words": hex_words(string), "key": key})
    yield Case("hash", "at p itself, which is zero", {"words": hex_words([7, 9]), "key": str(p)})
    strings = [random_words(f"equality/{i}", 65) for i in range(4)]
    other = [strings[0], flipped(strings[1]), strings[2], hex_words([0] * 65)]
    tuples_a, tuples_b = [], []
    for i in range(4):
        rho, omega = 1 + integer(f"equality/rho/{i}", p - 1), integer(f"equality/omega/{i}", p)
        a = [integer(f"equality/share/{i}/{j}", p) for j in range(3)]
        tuples_a.append([str(x) for x in a])
        tuples_b.append([str((x - y) % p) for x, y in zip((rho, omega, rho * omega), a, strict=True)])
    good = {"strings": [strings, other], "key": key, "tuples": [tuples_a, tuples_b]}
    yield Case("equality", "two equal, two not", good)
    too_large = (p).to_bytes(16, "little").hex() + "00" * 48
    for label in ("equality/difference", "equality/masked"):
        outside = {"party": 1, "label": label, "payload": too_large}
        yield Case("equality", f"{label} holds p", {**good, "tamper": outside}, "values are below p")
        empty = {"party": 1, "label": label, "payload": ""}
        yield Case("equality", f"nothing in {label}", {**good, "tamper": empty}, "16 bytes per client")
    forged = {"party": 0, "label": "equality/commit", "flip_byte": 0}
    yield Case("equality", "a bit of equality/commit", {**good, "tamper": forged}, "not what is opened")
    short = {"party": 1, "label": "equality/commit", "payload": "00" * 31}
    yield Case("equality", "a short equality/commit", {**good, "tamper": short}, "32 bytes")
    bit = {"party": 0, "label": "equality/masked", "flip_byte": 0}
    yield Case("equality", "a bit of equality/masked", {**good, "tamper": bit}, "not what was committed to")


def validation_case(mode: str, gate: str, clip_norm: str = "3.0", frac_bits: int = 16) -> Json:
    """Four clients, d = 5: honest, at the bound, one over it, wrapping; a fifth that the servers hold differently."""
    bound = int(float(clip_norm) * 2**frac_bits)
    vectors = ([1, -2, 3, -4, 5], [0, 0, -bound, 0, 0], [bound, 1, 0, 0, 0], [2**32, 0, 0, 0, 0], [0, 0, 0, 0, 0])
    names = ("honest", "at-the-bound", "one-over", "wrapping", "two-faced")
    clients = []
    for slot, (name, vector) in enumerate(zip(names, vectors, strict=True)):
        binding = hashlib.sha256(name.encode()).hexdigest()
        same = name != "two-faced"
        clients.append(
            {
                "name": name,
                "words": hex_words(vector),
                "seed": seed(f"validation/{slot}"),
                "bindings": [binding, binding if same else flipped(binding)],
            }
        )
    shape = batch(f"validation/{mode}/{gate}", len(clients), 5, [])
    return {
        **{name: shape[name] for name in ("task", "round", "dim", "keys", "rho", "omega")},
        "mode": mode,
        "gate": gate,
        "clip_norm": clip_norm,
        "frac_bits": frac_bits,
        "clients": clients,
        "coins": [random_bytes(f"validation/coin/{party}", 32).hex() for party in (0, 1)],
    }


def validation() -> Iterator[Case]:
    for mode in ("masked", "shares"):
        for gate in ("native", "crypten"):
            yield Case("validation", f"{mode}, {gate}", validation_case(mode, gate))
    yield Case("validation", "rows and norm of one length", validation_case("masked", "native", "0.4"))
    good = validation_case("masked", "native")
    alone = {"clients": good["clients"][4:], "rho": good["rho"][:1], "omega": good["omega"][:1]}
    yield Case("validation", "nobody in common", {**good, **alone})

    def tampered(name: str, why: str, label: str, party: int = 1, **what: Any) -> Case:
        return Case("validation", name, {**good, "tamper": {"party": party, "label": label, **what}}, why)

    yield tampered("a bit of the coin", "not what was committed to", "coin/reveal", flip_byte=0)
    yield tampered("a bit of the commitment", "not what is revealed", "validation/lock", flip_byte=0)
    yield tampered("a short lock", "another length", "validation/lock", payload="00" * 64)
    fails = "the first client's first row fails"
    yield tampered("a bit of the blocks", fails, "gate/blocks", flip_byte=736)
    yield tampered("a bit of A's blocks", fails, "gate/blocks", party=0, flip_byte=160)
    yield tampered("a bit of the joining step", fails, "gate/join", flip_byte=64)
    yield tampered("a bit of the carries", fails, "gate/carries", flip_byte=0)
    yield tampered("half a carry", "another length", "gate/carries", payload="00")
    good = validation_case("shares", "native")
    coin, words_of_b = good["coins"][1], 4 * 5
    yield tampered("shares: a bit of the coin", "not what was committed to", "coin/reveal", flip_byte=0)
    yield tampered("shares: a coin alone", "b of every active client comes with it", "coin/reveal", payload=coin)
    short = coin + "00" * (8 * words_of_b - 1)
    yield tampered("shares: a byte of b missing", "exactly 8 d bytes a client", "coin/reveal", payload=short)
    differs = "the servers hold different b of the first client, so that its norm comes out random"
    yield tampered("shares: a bit of b", differs, "coin/reveal", flip_byte=32)


def float32(values: Sequence[float]) -> str:
    return struct.pack(f"<{len(values)}f", *values).hex()


OWN_RATES: Json = {"carol-2": 0.07, "alice": 0.03}
ADAM: Json = {"server_optimizer": "adam", "server_beta2": 0.95, "server_adaptivity": 0.01}
SERVER_STEPS: tuple[tuple[str, int, Json], ...] = (
    ("a warm-up", 1, {"warmup_rounds": 3}),
    ("a rate that steps", 12, {"learning_rate_schedule": "step", "decay_rounds": 2, "decay_factor": 0.7}),
    ("a rate on a line", 8, {"learning_rate_schedule": "linear", "decay_rounds": 7, "warmup_rounds": 3}),
    ("a rate on a cosine", 2, {"learning_rate_schedule": "cosine", "decay_rounds": 7, "decay_factor": 0.05}),
    ("a rate past its cosine", 90, {"learning_rate_schedule": "cosine", "decay_rounds": 7, "decay_factor": 0.0}),
    ("momentum", 5, {"server_optimizer": "momentum", "server_momentum": 0.8}),
    ("Adam at its first step", 0, ADAM),
    ("Adam later, at a rate on a line", 7, {**ADAM, "learning_rate_schedule": "linear", "decay_rounds": 9}),
)
"""Names, committed rounds before, and fields of tasks whose step is another than eta / W."""


def aggregation() -> Iterator[Case]:
    shares = [random_words(f"sum/{party}", 5) for party in (0, 1)]
    noises = [["-5", "0", "131072", "-9223372036854775807", "7"], ["1", "-1", "-131073", "3", "0"]]
    yield Case("noisy_sum", "two servers", {"share_sums": shares, "noises": noises})
    theta = float32([0.0, 1.0, -0.1, 3.4e-39, 1e30])
    total = hex_words([1, -65536, 3, 2**40 + 1, -(2**62) - 1])
    yield Case("update", "five parameters", {"parameters": theta, "noisy_sum": total, "task": task()})
    coarse = task(frac_bits=10, learning_rate=0.1, client_rate=0.3, record_rate=0.7, noise_multiplier=8.0)
    yield Case("update", "nothing is a power of two", {"parameters": theta, "noisy_sum": total, "task": coarse})
    # 1 + 2^-24 lies halfway between two float32 values: the even one is 1; one more step goes up.
    tie = task(
        learning_rate=1.0, client_rate=1.0, record_rate=1.0, clients={"a": 1, "b": 1}, frac_bits=23, client_clip=1.0
    )
    given = {"parameters": float32([1.0, 1.0, 1.0]), "noisy_sum": hex_words([1, 2, 3]), "task": {**tie, "dim": 3}}
    yield Case("update", "ties go to the even float32", given)
    # 2^-24 + 2^-50 is more than half a float32 step above 1, and rounded to float32 it would be half a step exactly.
    fine = task(learning_rate=2.0**-9, client_rate=1.0, record_rate=1.0, clients={"a": 1, "b": 1}, frac_bits=40)
    fine |= {"client_clip": 2.0**-14, "noise_multiplier": 0.5, "dim": 2}
    given = {"parameters": float32([1.0, -1.0]), "noisy_sum": hex_words([2**26 + 1, -(2**26) - 1]), "task": fine}
    yield Case("update", "rounded once, after the sum", given)
    learnt = user_dp_task(**LEARNT, client_rate=0.7)
    for name, log_ratio, count in (
        ("a bound at its start", 0.0, 100_000),
        ("a bound that has moved", -1.7320508, -70_001),
        ("a bound at the end of its range", 6.931472, -(2**40)),
    ):
        given = {"parameters": float32([0.0, 1.0, -0.1, 3.4e-39, log_ratio]), "task": learnt}
        given["noisy_sum"] = hex_words([1, -65536, 3, 2**40 + 1, count])
        yield Case("update", name, given)
    own = {"parameters": theta, "noisy_sum": total, "task": task(client_rate=0.3) | {"record_rates": OWN_RATES}}
    yield Case("update", "rates of single clients", own)
    canaries = {"parameters": float32([0.0] * 150 + [1.0, -2.0, 0.5]), "task": audited_task()}
    yield Case("update", "audit clients", {**canaries, "noisy_sum": hex_words([*range(150), 65536, -3, 2**30])})
    for name, n_steps, fields in SERVER_STEPS:
        n_moments = {"momentum": 1, "adam": 2}.get(fields.get("server_optimizer", "sgd"), 0)
        moments = [float32([0.1, -2.0, 0.0, 3.5e-20, 7.0]), float32([0.3, 4.0, 0.0, 1e-38, 50.0])][:n_moments]
        given = {"parameters": theta, "noisy_sum": total, "task": task() | fields, "n_steps": n_steps}
        yield Case("update", name, {**given, "moments": moments})
    given = {"parameters": theta, "noisy_sum": hex_words([2, -65536, 3, 2**40 + 1, -(2**62) - 1]), "task": task()}
    yield Case("update", "one step of the grid more", given, "another model digest: the servers end the task")


FILES = {
    "encoding": encoding,
    "expansion": expansion,
    "digests": digests,
    "submission": submission,
    "tuples": tuples,
    "coin": coin,
    "rows": rows,
    "local_step": local_step,
    "gate": gates,
    "equality": equality,
    "validation": validation,
    "aggregation": aggregation,
}


def answer(case: Case) -> Json:
    """The case with what our implementation makes of it."""
    entry: Json = {"step": case.step, "name": case.name}
    if case.why:
        entry["why"] = case.why
    entry["input"] = case.given
    try:
        entry["output"] = ours.STEPS[case.step](case.given)
    except Exception as error:
        kind = ours.refusal(error)
        if kind is None or not case.why:
            raise
        entry["refused"] = kind
    return entry


def made(name: str) -> Json:
    """A whole file."""
    answers = [answer(case) for case in FILES[name]()]
    return {
        "protocol": "precad/v1.1",
        "positive": [entry for entry in answers if "why" not in entry],
        "tampered": [entry for entry in answers if "why" in entry],
    }


def written(content: Json) -> str:
    return json.dumps(content, indent=1, ensure_ascii=True) + "\n"


def main() -> int:
    differing = []
    for name in FILES:
        path, content = HERE / f"{name}.json", written(made(name))
        if "--check" not in sys.argv:
            path.write_text(content)
        elif not path.exists() or path.read_text() != content:
            differing.append(path.name)
    for name in differing:
        print(f"{name} differs from what this code makes")
    return 1 if differing else 0


if __name__ == "__main__":
    raise SystemExit(main())
