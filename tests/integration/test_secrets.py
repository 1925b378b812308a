"""No secret in anything that a run prints or writes.

A demo runs with `tests/harness/recorder/sitecustomize.py` in every process. That writes down all seeds, keys and coins
as they are drawn, derived or received, and the first words of all streams. Afterwards everything that the run left
behind, except the keys' own folder `pki/`, is searched for each of them. The search takes every form that a careless
print would give it.

What counts as failure: one hit; or so few recorded secrets that a hit was impossible.
"""

from __future__ import annotations

import base64
import pickle
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import structlog

from precad.clients.process import _Request
from precad.clients.records import Records
from precad.clients.submission import RoundInvitation, Submission
from precad.mpc import validation
from precad.mpc.errors import ParameterError
from precad.mpc.gate.top_bits import LowWords
from precad.mpc.joint_coin import CoinShare
from precad.mpc.local.step import Masked
from precad.mpc.locking import Locked
from precad.mpc.prg import Seed, Stream
from precad.mpc.tuples.correlations import AndBlock, BitBlock, CarryBlock
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, ServerTuples, equality_share_a
from precad.protos.precad.v1 import common_pb2
from precad.protos.tls.files import TlsMaterial
from precad.protos.tls.identity import Identity, Role
from precad.servers.rounds import states
from precad.servers.rounds.intake import Intake
from tests.harness.harness import small_task
from tests.harness.room import roomy
from tests.integration.conftest import RecordedDemo

# -- a run with every secret on record ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """Hold what a run wrote for others to read, and what nobody may find there."""

    texts: dict[str, bytes]
    """File name, or stdout or stderr, to contents."""
    secrets: dict[str, set[bytes]]
    """Command line of a process to the secrets that went through its hands."""
    keys: set[bytes]
    """The lines of base64 of every private key of the run."""


@pytest.fixture(scope="module")
def run(recorded_demo: RecordedDemo) -> RecordedRun:
    """A whole demo."""
    folder = recorded_demo.folder
    files = [path for path in folder.rglob("*") if path.is_file() and "pki" not in path.relative_to(folder).parts]
    texts = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    return RecordedRun(
        texts={**texts, "stdout": recorded_demo.stdout.encode(), "stderr": recorded_demo.stderr.encode()},
        secrets=dict(recorded(path) for path in recorded_demo.record.iterdir()),
        keys={line for path in (folder / "pki").rglob("*key*") for line in key_lines(path)},
    )


def recorded(path: Path) -> tuple[str, set[bytes]]:
    """One process' command line and secrets."""
    command, *lines = path.read_text().splitlines()
    return command, {bytes.fromhex(line.split()[1]) for line in lines}


def key_lines(path: Path) -> list[bytes]:
    """The base64 of a PEM key, line by line, but for the first, whose beginning all keys of this kind share."""
    return path.read_bytes().splitlines()[2:-1]


# -- what a print of them would look like ------------------------------------------------------------------------------


def printed_forms(secret: bytes) -> Iterator[bytes]:
    """The bytes as such, in hex, base64, repr, as a list of numbers, and as words of the ring."""
    yield secret
    yield secret.hex().encode()
    yield secret.hex().upper().encode()
    for shift in range(3):  # base64 of something longer that contains it: three alignments, less the shared ends
        encoded = base64.b64encode(bytes(shift) + secret)
        yield encoded[4 if shift else 0 : 4 * ((shift + len(secret)) // 3)]
    yield repr(secret)[2:-1].encode()
    yield ", ".join(map(str, secret)).encode()
    words = np.frombuffer(secret[: len(secret) // 8 * 8], dtype="<i8").tolist()
    for word in words:
        for number in (word, word % 2**64):
            if number > 10**15 or number < -(10**15):  # shorter ones could be anything
                yield str(number).encode()
                yield f"{number % 2**64:x}".encode()


def found_in(texts: dict[str, bytes], secrets: set[bytes]) -> list[str]:
    """Where a secret shows, in any form. (Names of files only: a report of a leak must not spread it.)"""
    forms: dict[bytes, list[bytes]] = defaultdict(list)
    for form in {form for secret in secrets for form in printed_forms(secret)}:
        forms[form[:8]].append(form)
    assert all(len(start) == 8 for start in forms)  # so one look at every place of a text finds all candidates
    return [
        name
        for name, text in texts.items()
        if any(text.startswith(form, i) for i in range(len(text) - 7) for form in forms.get(text[i : i + 8], ()))
    ]


# -- the tests ---------------------------------------------------------------------------------------------------------


def test_the_recorder_heard_every_process_that_holds_secrets(run: RecordedRun) -> None:
    """Dealer, both servers and all clients; hundreds of values, or the search below would prove nothing."""
    roles = ["serve dealer", "--role a", "--role b", *(f"--id client-{i}" for i in range(4))]
    counts = {role: sum(len(secrets) for command, secrets in run.secrets.items() if role in command) for role in roles}
    assert all(count >= 4 for count in counts.values()), counts
    assert counts["serve dealer"] > 20
    assert len(set[bytes]().union(*run.secrets.values())) > 100
    assert len(run.keys) >= 2 * (4 + 4 + 1)
    dealt = {command: secrets for command, secrets in run.secrets.items() if "serve dealer" in command}
    at_a = {command: secrets for command, secrets in run.secrets.items() if "--role a" in command}
    assert set.intersection(*dealt.values(), *at_a.values()), "the dealer's keys and A's are the same values"


def test_no_secret_is_printed_or_written(run: RecordedRun) -> None:
    """Logs, standard output and error, metrics, summary, configuration, ledgers and models of a whole demo."""
    assert {"logs/dealer.log", "logs/aggregator-a.log", "logs/client-2.log", "config.toml", "stderr"} <= set(run.texts)
    assert found_in(run.texts, set().union(*run.secrets.values())) == []


def test_no_private_key_leaves_the_keys_folder(run: RecordedRun) -> None:
    """Neither as PEM nor any line of one."""
    assert [name for name, text in run.texts.items() if re.search(b"PRIVATE KEY", text)] == []
    assert [name for name, text in run.texts.items() if any(line in text for line in run.keys)] == []


PRINTS: dict[str, Callable[[bytes], bytes]] = {
    "raw": bytes,
    "hex": lambda s: s.hex().encode(),
    "HEX": lambda s: s.hex().upper().encode(),
    "base64": base64.b64encode,
    "base64, one byte later": lambda s: base64.b64encode(b"x" + s + b"y"),
    "base64, two bytes later": lambda s: base64.b64encode(b"xx" + s + b"y"),
    "repr": lambda s: repr({"seed": s}).encode(),
    "list of bytes": lambda s: repr(list(s)).encode(),
    "array of words": lambda s: repr(np.frombuffer(s, dtype=np.int64)).encode(),
    "unsigned words": lambda s: str(np.frombuffer(s, dtype=np.uint64).tolist()).encode(),
    "message in hex": lambda s: common_pb2.Hello(nonce=s).SerializeToString().hex().encode(),
}


@pytest.mark.parametrize("show", PRINTS.values(), ids=PRINTS.keys())
def test_one_planted_secret_is_found(run: RecordedRun, show: Callable[[bytes], bytes]) -> None:
    """The search itself works: for a seed of every process, in a copy of a log, in every form."""
    log = run.texts["logs/dealer.log"]
    for secrets in run.secrets.values():
        planted = max(secret for secret in secrets if len(secret) == 16)
        leaky = log + b'{"event": "dealer.joined", "x": "' + show(planted) + b'"}\n'
        assert found_in({"clean": log, "leaky": leaky}, secrets) == ["leaky"]


# -- types that carry secrets ------------------------------------------------------------------------------------------

SECRET = bytes(range(101, 117))
WORDS = np.frombuffer(SECRET, dtype=np.int64)
SEED = Seed(SECRET)
SHAPE = BatchShape("task", 3, ("alice", "bob"), 5, (AndBlock(8), CarryBlock(64, 2, 2), BitBlock(64)))
DEALT = deal(SHAPE, random_bytes=lambda size: SECRET[:size])[1]
TUPLES = ServerTuples(1, SHAPE, DEALT)
COIN = CoinShare(0, "challenge", SECRET * 2)
EQUALITY, CORRELATIONS = equality_share_a(SEED, SHAPE.label("alice")), TUPLES.correlations()
INTAKE = Intake(
    task=small_task(), task_id="task", party=1, round=3, chosen=("alice",), model_digest=bytes(32), capacity=roomy()
)
INTAKE.await_relays({"alice": SEED})
LOCK = Locked(("alice",), COIN, bytes(32), bytes(32))


def correlated() -> set[bytes]:
    """Every array of the correlations, of all three kinds."""
    taken = ServerTuples(1, SHAPE, DEALT).correlations()
    return {part.tobytes() for part in (*taken.triples(8), *taken.carries(64)[1], *taken.bits(64))}


IN_DEALT = {SECRET, *(array.tobytes() for array in (DEALT.squared_masks, DEALT.equality[0], DEALT.products))}


@pytest.mark.parametrize(
    ("carrier", "secrets"),
    [
        (SEED, {SECRET}),
        (COIN, {SECRET}),
        (DEALT, IN_DEALT),
        (TUPLES, IN_DEALT),
        (EQUALITY, {getattr(EQUALITY, name).to_bytes(16, "little") for name in EQUALITY.__slots__}),
        (CORRELATIONS, correlated()),
        (RoundInvitation("task", 3, 0, bytes(32), (SEED, SEED)), {SECRET}),
        (Submission(common_pb2.Binding(client="alice"), (SECRET, SECRET), SECRET, SECRET), {SECRET}),
        (_Request("alice", np.zeros(2, np.float32), np.frombuffer(SECRET, np.float64)), {SECRET}),
        (LowWords(WORDS, 30), {SECRET}),
        (Masked(WORDS, Stream(SEED)), {SECRET}),
        (LOCK, {SECRET}),
        (validation.Validated(("alice",), (True,), WORDS), {SECRET}),
        (states.Locked(3, ("alice",), TUPLES, LOCK, INTAKE), {SECRET, *IN_DEALT}),
        (states.Collecting(3, ("alice",), TUPLES, INTAKE, SECRET), {SECRET, *IN_DEALT}),
        (states.Charged(3, ("alice",), TUPLES, LOCK, INTAKE), {SECRET, *IN_DEALT}),
        (states.Validated(3, ("alice",), ("alice",), (), WORDS), {SECRET}),
        (TlsMaterial(Identity(Role.CLIENT, "alice"), b"public", SECRET, b"public"), {SECRET}),
        (Records(np.frombuffer(SECRET, np.float32).reshape(1, 1, 2, 2), np.zeros(1, np.int64)), {SECRET}),
    ],
    ids=lambda value: "" if isinstance(value, set) else f"{type(value).__module__}.{type(value).__name__}",
)
def test_a_carrier_of_secrets_prints_without_them(carrier: object, secrets: set[bytes]) -> None:
    """However it ends up in a log or a message: alone, in a container, in an error, as a field of an event."""
    shown = {
        "repr": repr(carrier),
        "str": str(carrier),
        "format": f"{carrier}",
        "percent": "%s %r" % (carrier, carrier),  # noqa: UP031 - as `logging` does it
        "container": f"{[carrier]} {({'it': carrier},)}",
        "error": str(ValueError(carrier)),
        "event": str(structlog.processors.JSONRenderer()(None, "info", {"event": "x", "it": carrier})),
    }
    assert found_in({how: text.encode() for how, text in shown.items()}, secrets) == []


def test_a_seed_says_that_it_is_one_and_no_more() -> None:
    """The reader of a log sees that something was left out; pickling, which would spread it, is refused."""
    assert f"{SEED}" == "Seed(REDACTED)"
    with pytest.raises(TypeError, match="not pickled") as pickled:
        pickle.dumps(SEED)
    with pytest.raises(ParameterError, match="seed: expected 16 bytes, found 17") as refused:
        Seed(SECRET + b"!")
    messages = {"pickled": str(pickled.value).encode(), "refused": str(refused.value).encode()}
    assert found_in(messages, {SECRET}) == []
