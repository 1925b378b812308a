"""Makes the vectors of `docs/reference/protocol-v2.md`, by the plain implementation of mode `proved`.

    python -m tests.vectors.make_proved_vectors            writes tests/vectors/proved/*.json
    python -m tests.vectors.make_proved_vectors --check    writes nothing; says what differs, and exits with 1

Files have the form of `make_vectors`. Everything is deterministic: randomness is SHAKE-128 of a name.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.vectors.independent import proved_steps
from tests.vectors.independent.proved_field import FIELD, SHARE, to_bytes
from tests.vectors.independent.proved_parameters import sizes
from tests.vectors.independent.ring import RefusedError

Json = dict[str, Any]
FOLDER = Path(__file__).resolve().parent / "proved"
P = FIELD.modulus
TASK, ROUND = "digits-0123456789abcdef", 7


@dataclass(frozen=True)
class Case:
    """Hold what is asked. `why` says, of a tampered case, what was done."""

    step: str
    name: str
    given: Json
    why: str = ""


def drawn(name: str, n: int) -> str:
    return hashlib.shake_128(f"proved/{name}".encode()).digest(n).hex()


def element(name: str) -> int:
    return int(drawn(f"element/{name}", 16), 16) % P


def drawn_elements(name: str, n: int) -> str:
    return to_bytes(element(f"{name}/{i}") for i in range(n)).hex()


def flipped(text: str, at: int = 0) -> str:
    data = bytearray.fromhex(text)
    data[at] ^= 1
    return data.hex()


def field() -> Iterator[Case]:
    edges = [0, 1, P - 1, (P - 1) // 2, (P + 1) // 2, 2**32 - 1, 2**55]
    pairs = [(a, b) for a in edges for b in edges] + [(element(f"a{i}"), element(f"b{i}")) for i in range(16)]
    yield Case(
        "multiply",
        "edges and random",
        {"a": to_bytes(a for a, _ in pairs).hex(), "b": to_bytes(b for _, b in pairs).hex()},
    )
    yield Case("read", "centred", {"data": to_bytes(edges).hex()})
    yield Case("read", "p", {"data": P.to_bytes(7, "little").hex()}, "an element that is p")
    yield Case("read", "ones", {"data": "00" * 7 + "ff" * 7}, "an element above p")
    yield Case("read", "short", {"data": "00" * 13}, "a length that is no multiple of seven")


def streams() -> Iterator[Case]:
    at = {"seed": drawn("stream", 16), "task": TASK, "round": ROUND}
    for purpose, slot in ((16, 0), (18, 3), (20, None)):
        yield Case("field_stream", f"purpose {purpose}", {**at, "purpose": purpose, "slot": slot, "first": 0, "n": 9})
    yield Case("field_stream", "from an odd position", {**at, "purpose": 16, "slot": 0, "first": 5, "n": 4})
    rare = {"seed": bytes(range(16)).hex(), "task": "twin-0123456789abcdef", "round": 4, "slot": 3, "purpose": SHARE}
    yield Case("field_stream", "an element of the second stream", {**rare, "first": 27_517_243, "n": 3})
    names = [f"client-{i}" for i in range(9)]
    for i, chosen in enumerate((names, names[2:7:2], names[:1], [])):
        known = {"task": TASK, "round": ROUND, "enrolled": names, "chosen": list(chosen)}
        yield Case("slots", f"{len(chosen)} of 9", {**known, "seed": drawn(f"slots/{i}", 16)})


def parameters() -> Iterator[Case]:
    allowed = [(1.0, 16, d) for d in (1, 256, 257, 26010, 10**5, 10**6, 10**8, 2**30)]
    allowed += [
        (1.0, 0, 1),
        (1.4, 0, 5),
        (1.402, 0, 5),
        (1434.0, 12, 10**6),
        (5876432.0, 0, 1_073_741_775),
        (0.3, 20, 77),
    ]
    for clip_norm, frac_bits, dim in allowed:
        given = {"clip_norm": repr(clip_norm), "frac_bits": frac_bits, "dim": dim}
        yield Case("parameters", f"C = {clip_norm}, f = {frac_bits}, d = {dim}", given)
    refused = [
        (math.nextafter(1.0, 0), 0, 1, "B is below 1"),
        (5876433.0, 0, 1, "the window is too large"),
        (1.0, 41, 1, "frac_bits is too large"),
        (5876432.0, 0, 1_073_741_776, "d(2b - 1) + b reaches p"),
        (1.0, 16, 2**30 + 1, "d is too large"),
        (1.0, 16, 0, "d is 0"),
    ]
    for clip_norm, frac_bits, dim, why in refused:
        given = {"clip_norm": repr(clip_norm), "frac_bits": frac_bits, "dim": dim}
        yield Case("parameters", why, given, why)


def task(clip_norm: float = 3.0, frac_bits: int = 0, dim: int = 6) -> Json:
    known = {"task": TASK, "round": ROUND, "config_digest": drawn("config", 32), "model_digest": drawn("model", 32)}
    return {**known, "clip_norm": repr(clip_norm), "frac_bits": frac_bits, "dim": dim}


X = [2, -1, 0, 0, 2, 0]


def submission() -> Iterator[Case]:
    told = {"task": TASK, "round": ROUND, "slot": 4, "dim": 6, "model_digest": drawn("model", 32), "n_committed": 3}
    seed = drawn("share seed", 16)
    pairs = [{**told, "share_seed": ""}, {**told, "share_seed": seed}]
    yield Case("agree", "holder A", {"invitations": pairs, "dim": 6})
    yield Case("agree", "holder B", {"invitations": [{**one, "slot": 5} for one in pairs[::-1]], "dim": 6})
    wrong = {"slot": 5, "round": 8, "task": "other", "dim": 7, "model_digest": drawn("other", 32), "n_committed": 4}
    for name, value in wrong.items():
        yield Case("agree", name, {"invitations": [pairs[0], {**pairs[1], name: value}], "dim": 6}, f"{name} differs")
    for share_seeds, why in (
        ((seed, seed), "a seed from the holder"),
        ((seed, ""), "a seed from the holder alone"),
        (("", seed[2:]), "a seed of 15 bytes"),
        (("", ""), "no seed"),
    ):
        changed = [{**one, "share_seed": value} for one, value in zip(pairs, share_seeds, strict=True)]
        yield Case("agree", why, {"invitations": changed, "dim": 6}, why)
    given = {**task(), "slot": 4, "client": "client-2", "x": X, "share_seed": seed, "salt": drawn("salt", 32)}
    yield Case("submission", "an upload", given)
    yield from taken(given, proved_steps.submission(given))


def taken(given: Json, made: Json) -> Iterator[Case]:
    """Yield what the holder and the seeded server check of an upload."""
    sent = {name: made[name] for name in ("binding", "statement", "payload")}
    upload = {**task(), **sent, "salt": given["salt"], "certificate": "client-2"}
    yield Case("take", "an upload", upload)
    for name, value in {"client": "client-3", "round": 8, "task": "other", "mode": "masked", "dim": 7}.items():
        yield Case("take", name, {**upload, "binding": {**made["binding"], name: value}}, f"{name} is another")
    digest = {**made["binding"], "digest": made["binding"]["digest"][2:]}
    yield Case("take", "short digest", {**upload, "binding": digest}, "31 bytes of digest")
    for name, value, why in (
        ("salt", "", "no salt"),
        ("salt", flipped(given["salt"]), "another salt"),
        ("payload", made["payload"] + "00" * 7, "an element more"),
        ("payload", flipped(made["payload"]), "another payload"),
        ("payload", P.to_bytes(7, "little").hex() + made["payload"][14:], "an element that is p"),
    ):
        yield Case("take", why, {**upload, name: value}, why)
    relay = {**task(), "slot": 4, "share_seed": given["share_seed"], "client": "client-2"}
    relay |= {"digest": made["binding"]["digest"], "statement": made["statement"]}
    yield Case("take_relay", "an upload", relay)
    for name, value, why in (
        ("statement", flipped(made["statement"]), "another statement"),
        ("slot", 2, "another slot"),
        ("digest", flipped(relay["digest"]), "another digest"),
        ("client", "client-3", "another client"),
    ):
        yield Case("take_relay", why, {**relay, name: value}, why)


def masks(name: str, case: Json) -> Json:
    n_wires = sizes(float(case["clip_norm"]), case["frac_bits"], case["dim"]).n_wires
    drawn_ = {part: drawn_elements(f"{name}/{part}", n_wires) for part in ("masks", "slopes")}
    return {**drawn_, "bit_masks": drawn_elements(f"{name}/bits", 2)}


PROOFS: dict[str, tuple[float, int, Sequence[int]]] = {
    "one coordinate at the bound": (3.0, 0, [-3]),
    "padding": (3.0, 0, X),
    "all of a square": (16.0, 0, [(-1) ** (i // 3) for i in range(256)]),
    "a part of a wire": (9.0, 0, [0] * 38 + [9, 0]),
    "32 coordinates a wire": (20.0, 0, [1, 0, -1] * 100),
    "the largest window": (5876432.0, 0, [5876432, 0, 0]),
}


def proof() -> Iterator[Case]:
    for name, (clip_norm, frac_bits, x) in PROOFS.items():
        case = {**task(clip_norm, frac_bits, len(x)), "x": list(x), "challenge": drawn("challenge", 16)}
        yield Case("proof", name, {**case, **masks(name, case)})
    seed, upload_salt = drawn("share seed", 16), drawn("salt", 32)
    upload = {**task(), "slot": 4, "client": "client-2", "x": X, "share_seed": seed, "salt": upload_salt}
    binding = proved_steps.submission(upload)["binding"]
    case = {**task(), "challenge": drawn("challenge", 16)}
    made = proved_steps.proof({**case, "x": X, **masks("padding", case)})["proof"]
    given = {**case, "slot": 4, "binding": binding, "proof": made, "share_seed": seed, "salt": drawn("proof salt", 32)}
    yield Case("prove_message", "a proof", given)
    yield from proofs_taken(given, proved_steps.prove_message(given))


def proofs_taken(given: Json, made: Json) -> Iterator[Case]:
    """Yield what the holder and the seeded server check of a proof."""
    known = {**task(), "challenge": given["challenge"], "locked": made["binding"]["binding_digest"]}
    sent = {**known, "binding": made["binding"], "statement": made["statement"], "payload": made["payload"]}
    sent |= {"salt": given["salt"], "certificate": "client-2"}
    yield Case("take_proof", "a proof", {**sent})
    for name, value in {
        "client": "client-3",
        "round": 8,
        "binding_digest": drawn("other", 32),
        "challenge": drawn("o", 16),
    }.items():
        yield Case("take_proof", name, {**sent, "binding": {**made["binding"], name: value}}, f"{name} is another")
    for name, value, why in (
        ("payload", made["payload"][:-14], "an element less"),
        ("salt", flipped(given["salt"]), "another salt"),
        ("payload", "ff" * 7 + made["payload"][14:], "an element above p"),
        ("statement", "", "no statement"),
    ):
        yield Case("take_proof", why, {**sent, name: value}, why)
    relay = {**known, "slot": 4, "share_seed": given["share_seed"], "client": "client-2"}
    relay |= {"digest": made["binding"]["proof_digest"], "statement": made["statement"]}
    yield Case("take_proof_relay", "a proof", relay)
    of_upload = proved_steps.statement_of_upload(given)
    for name, value, why in (
        ("challenge", drawn("o", 16), "another challenge"),
        ("locked", drawn("o", 32), "another upload"),
        ("statement", of_upload, "the statement of the upload"),
        ("digest", flipped(relay["digest"]), "another digest"),
    ):
        yield Case("take_proof_relay", why, {**relay, name: value}, why)


def verifier() -> Iterator[Case]:
    coins, digests = [drawn(f"query/{party}", 32) for party in (0, 1)], [drawn(f"proof/{i}", 32) for i in range(3)]
    yield Case("query", "three proofs", {**task(), "coins": coins, "digests": digests})
    yield Case("query", "one proof", {**task(), "coins": coins[::-1], "digests": digests[:1]})
    roots = [FIELD.root(16), FIELD.root(512), 1, P - 1]
    skipped = to_bytes([*roots, 77, 77, FIELD.root(256), 0, 5]).hex()
    yield Case("points", "roots and an element that comes twice", {**task(), "elements": skipped})
    for name in ("padding", "32 coordinates a wire"):
        clip_norm, frac_bits, x = PROOFS[name]
        case = {**task(clip_norm, frac_bits, len(x)), "challenge": drawn("challenge", 16)}
        made = proved_steps.proof({**case, "x": x, **masks(name, case)})["proof"]
        yield from messages(name, case, list(x), proved_steps.elements(made))


def messages(name: str, case: Json, x: list[int], made: list[int]) -> Iterator[Case]:
    """Yield both servers' messages for one client, and verdicts on them."""
    points, halves = to_bytes([element("t_1"), element("t_2")]).hex(), []
    for party in (0, 1):
        parts = []
        for what, values in (("share", x), ("proof", made)):
            masked = [element(f"{name}/{what}/{i}") for i in range(len(values))]
            parts.append(masked if party else [(a - b) % P for a, b in zip(values, masked, strict=True)])
        given = {
            **case,
            "party": party,
            "points": points,
            "share": to_bytes(parts[0]).hex(),
            "proof": to_bytes(parts[1]).hex(),
        }
        yield Case("verifier", f"{name}, server {'AB'[party]}", given)
        halves.append(proved_steps.verifier(given)["message"])
    sent = {**case, "points": points}
    yield Case("verdict", name, {**sent, "messages": halves})
    for at in range(0, len(halves[0]) // 2, 7):
        changed = [halves[0], flipped(halves[1], at)]
        yield Case(
            "verdict", f"{name}, element {at // 7}", {**sent, "messages": changed}, f"element {at // 7} of B is another"
        )
    for changed, why in (
        ([halves[0], halves[1][:-14]], "an element less"),
        ([halves[0], "ff" * 7 + halves[1][14:]], "an element above p"),
    ):
        yield Case("verdict", f"{name}, {why}", {**sent, "messages": changed}, why)


def rounds() -> Iterator[Case]:
    for n in (1, 4, 5):
        yield Case("round", f"{n} clients", whole_round(n))
    yield Case("round", "nobody uploaded", {**whole_round(2), "clients": [{"name": "client-0", "slot": 3}]})
    long = whole_round(4)
    long["clients"][1]["x"] = [9, 9, 9, 0, 0, 0]
    yield Case("round", "a client above the bound", long, "its client has no proof, and is silent")
    for step, party, at, why in (
        ("reveal", 1, 0, "B reveals another coin"),
        ("lock", 0, 32, "A lists another binding for the first slot"),
        ("proofs", 1, 32, "B lists another proof for the first slot"),
        ("verifier", 0, 3, "A sends another element"),
        ("accepted", 1, 9, "B accepted others"),
    ):
        yield Case("round", why, {**whole_round(4), "tamper": {"step": step, "party": party, "flip_byte": at}}, why)


def whole_round(n: int) -> Json:
    """Return a round of n clients whose slots have both holders."""
    case, clients = task(), []
    for i in range(n):
        x = [(-1) ** j * (element(f"x/{n}/{i}/{j}") % 2) for j in range(6)]
        one = {"name": f"client-{i}", "slot": (5 * i + 2) % 7, "x": x, "share_seed": drawn(f"seed/{n}/{i}", 16)}
        one |= {"salt": drawn(f"salt/{n}/{i}", 32), "proof_salt": drawn(f"proof salt/{n}/{i}", 32)}
        clients.append({**one, **masks(f"round/{n}/{i}", case)})
    coins = {name: [drawn(f"{name}/{n}/{party}", 32) for party in (0, 1)] for name in ("coins", "query_coins")}
    noises = [[str(element(f"noise/{n}/{party}/{j}") % 2001 - 1000) for j in range(6)] for party in (0, 1)]
    return {**case, "clients": clients, **coins, "noises": noises}


FILES = {
    "field": field,
    "streams": streams,
    "parameters": parameters,
    "submission": submission,
    "proof": proof,
    "verifier": verifier,
    "round": rounds,
}


def answer(case: Case) -> Json:
    """Return the case with what the plain implementation makes of it."""
    entry: Json = {"step": case.step, "name": case.name}
    if case.why:
        entry["why"] = case.why
    entry["input"] = case.given
    try:
        entry["output"] = proved_steps.STEPS[case.step](case.given)
    except RefusedError as error:
        if not case.why:
            raise
        entry["refused"] = error.kind
    return entry


def made(name: str) -> Json:
    """Return a whole file."""
    answers = [answer(case) for case in FILES[name]()]
    return {
        "protocol": "precad/v2",
        "positive": [entry for entry in answers if "why" not in entry],
        "tampered": [entry for entry in answers if "why" in entry],
    }


def written(content: Json) -> str:
    return json.dumps(content, indent=1, ensure_ascii=True) + "\n"


def main() -> int:
    differing = []
    FOLDER.mkdir(exist_ok=True)
    for name in FILES:
        path, content = FOLDER / f"{name}.json", written(made(name))
        if "--check" not in sys.argv:
            path.write_text(content)
        elif not path.exists() or path.read_text() != content:
            differing.append(path.name)
    for name in differing:
        print(f"{name} differs from what this code makes")
    return 1 if differing else 0


if __name__ == "__main__":
    raise SystemExit(main())
