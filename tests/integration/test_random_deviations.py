"""Mode `proved` against a server that deviates at random, in several ways at once: steps, link, events and calls.

Failure means one of these:
- an honest server sends a step early, twice or after a deviation that ends the task, or ends with no reason of its own;
- a client sends other bytes a second time, answers a round twice, or answers a challenge that one server made up;
- a proof is opened at a third point, or opened to what does not fit the two equations.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from precad.clients.upload.patience import CUT_SHORT
from precad.mpc.errors import MpcError
from precad.protos.precad.v1 import aggregator_pb2, peer_pb2
from precad.servers.errors import ServerError
from precad.servers.rounds.states import Committed
from tests.harness.harness import asynchronous
from tests.harness.pki import Pki
from tests.integration.deviating_proved import (
    RETRY_HINT,
    STEPS,
    Deviant,
    Deviation,
    Plan,
    hangs_up,
    hangs_up_within_a_frame,
    names,
    says,
    sends_random_bytes,
    sends_twice,
)
from tests.integration.test_deviating_proved import CLIENTS, Attack, attacked

ROUNDS: Final = 3
CHANCE: Final = 0.08
"""Probability of a deviation, at each step, message of the link, event and call."""


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), CLIENTS)


class Capricious(Deviant):
    """Deviates at random. What it did is in `done`."""

    seed = 0

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._chance, self.done = random.Random(self.seed), list[str]()

    def _is_time(self, what: str) -> bool:
        if self._chance.random() >= CHANCE:
            return False
        self.done.append(what)
        return True

    async def run_round(self, t: int) -> None:
        """Plan the round's steps."""
        steps = {step: self._way() for step in STEPS if self._is_time(f"{t} {step}")}
        self.plans = [Plan()] * (self._n_begun + 1) + [Plan(steps, invites_twice=self._is_time("invites twice"))]
        await super().run_round(t)

    def _way(self) -> Deviation:
        other = names(self._chance.choice(STEPS))
        ways = (hangs_up, hangs_up_within_a_frame, other, says(self._flipped), sends_twice, sends_random_bytes)
        return self._chance.choice(ways)

    def _flipped(self, payload: bytes) -> bytes:
        at = self._chance.randrange(max(1, len(payload)))
        return (
            payload[:at]
            + bytes(byte ^ 1 << self._chance.randrange(8) for byte in payload[at : at + 1])
            + payload[at + 1 :]
        )

    async def tell(self, message: peer_pb2.PeerMessage) -> None:
        """Leave out, repeat or change what goes over the link, or say something more before."""
        if self._is_time("link: left out"):
            return
        if self._is_time("link: another word"):
            client = self._chance.choice(CLIENTS)
            word = {"client": client, "digest": self._draw(32), "statement": self._draw(32)}
            t, phase = self.next_round - 1, self._chance.randrange(2)
            relay = peer_pb2.Relay(round=t, phase=phase, **word)
            await super().tell(peer_pb2.PeerMessage(relays=peer_pb2.Relays(relays=[relay])))
        if message.HasField("relay") and self._is_time("link: changed"):
            message.relay.statement = self._flipped(message.relay.statement)
        await super().tell(message)
        if self._is_time("link: twice"):
            await super().tell(message)

    def send(self, client: str, **event: Any) -> None:
        """Leave out, repeat or change an event, or send a challenge before its time."""
        if self._is_time("event: left out"):
            return
        if "challenge" in event and self._is_time("event: another challenge"):
            event["challenge"].challenge = self._draw(16)
        if "invitation" in event and self._is_time("event: early challenge"):
            early = aggregator_pb2.Challenge(round=event["invitation"].round, challenge=self._draw(16))
            super().send(client, challenge=early)
        for _ in range(1 + self._is_time("event: twice")):
            super().send(client, **event)

    async def admit(self, phase: int, client: str, context: grpc.aio.ServicerContext) -> None:
        """Have a call made again, or refuse it."""
        if self._is_time("call: again"):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room", trailing_metadata=((RETRY_HINT, "1"),))
        if self._is_time("call: cut short"):
            await context.abort(grpc.StatusCode.INTERNAL, CUT_SHORT)
        if self._is_time("call: refused"):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "malformed: no")

    def _note(self, t: int, state: Any, theirs: bytes) -> None:
        """Look at what is opened where both servers mean the same slots and points."""
        if "validation/proofs" not in self._plan.steps and state.due != "proofs":
            super()._note(t, state, theirs)


def assert_within_the_protocol(attack: Attack) -> None:
    """Steps are in order and once, what clients repeat is the same, and openings are those of honest proofs."""
    server = attack.server
    assert isinstance(server, Capricious)
    assert attack.error is None or isinstance(attack.error, (MpcError, ServerError)), attack.error
    for t, steps in server.steps_seen().items():
        assert steps == [step for step in STEPS if step in steps], (t, steps)
    challenges = {t: state.check._challenge.reveal() for t, state in attack.proving.items()}
    said: dict[tuple[str, str, int], set[bytes]] = defaultdict(set)
    for one in server.seen:
        if one.channel in ("Submit", "Prove"):
            kind = aggregator_pb2.ProvePart if one.channel == "Prove" else aggregator_pb2.SubmitPart
            binding = kind.FromString(one.data).binding
            said[one.channel, one.who, binding.round].add(one.data)
            assert one.channel == "Submit" or binding.challenge == challenges[binding.round]
    assert {len(bodies) for bodies in said.values()} <= {1}, said.keys()
    assert server.are_openings_valid
    assert set(Counter((t, slot) for t, slot, _ in server.openings).values()) <= {2}
    committed = [state.round for state in attack.beside.of_kind(Committed)]
    assert len(set(committed)) == len(committed) <= ROUNDS


async def attacked_at_random(pki: Pki, folder: Path, seed: int) -> list[str]:
    """Run a task under an attack, and return what the server did."""
    kind = type("Seeded", (Capricious,), {"seed": seed})
    short = {"submit_timeout_s": 1.5, "proof_timeout_s": 1.5}
    attack = await attacked(
        pki,
        folder,
        [],
        kind=kind,
        party=seed % 2,
        length=8,
        rounds=ROUNDS,
        lost_rounds=3,
        comes_back=seed % 3 > 0,
        **short,
    )
    try:
        assert_within_the_protocol(attack)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, {attack.server.done}, {attack.error!r}") from error
    return attack.server.done


@pytest.mark.parametrize("seed", [11, 12])
@asynchronous
async def test_one_server_that_deviates_at_random(pki: Pki, tmp_path: Path, seed: int) -> None:
    """Many deviations in few seconds: none of them is one that the honest server waits for.

    How many fit into a task depends on how events interleave, which a stalled machine changes. So several tasks may
    be attacked until there are five; mostly one has more.
    """
    done: list[str] = []
    for i in range(5):
        done += await attacked_at_random(pki, tmp_path / f"{i}", seed + 100 * i)
        if len(done) >= 5:
            return
    raise AssertionError(done)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_servers_that_deviate_at_random(pki: Pki, tmp_path: Path) -> None:
    """A hundred of them, each with other deviations; each kind happens."""
    done = Counter[str]()
    for seed in range(100):
        done.update(
            " ".join(what.split(" ")[-2:]) for what in asyncio.run(attacked_at_random(pki, tmp_path / f"{seed}", seed))
        )
    assert len(done) >= 20, done
