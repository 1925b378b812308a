"""Mode `proved` against a server that deviates: what it sees of a zero update is what it sees of one at the bound.

The deviating server is an independent program (`tests.integration.deviating_proved`); the other server and the clients
are the program's own, over real sockets. Failure means one of these:
- an honest server or client sends something more than the protocol has, or something twice, after a deviation;
- bytes that are no pad, and differ with the update;
- pads that are not uniform: a run's nine chi-square tests are false alarms with probability below 1e-8 together.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from precad.clients.upload.session import ClientSession
from precad.clients.upload_limit import UploadLimit
from precad.deploy.errors import UNREACHABLE, exit_code_of
from precad.mpc.errors import (
    ChannelClosedError,
    CommitmentError,
    MalformedMessageError,
    PeerMismatchError,
    VerdictsDifferError,
)
from precad.mpc.proved.field import P
from precad.protos.precad.v1 import aggregator_pb2, peer_pb2
from precad.protos.task.task import Task
from precad.servers.errors import PeerUnreachableError, TaskRefusedError
from precad.servers.links.step_limits import StepLimits
from precad.servers.rounds.states import Charged, Committed, Opened, Proving
from tests.harness.harness import asynchronous, free_addresses
from tests.harness.pki import Pki
from tests.harness.plain_wire import Seen
from tests.integration.deviating_proved import (
    CHALLENGE,
    SELECTION,
    STEPS,
    Deviant,
    Deviation,
    Plan,
    answers_nothing,
    hangs_up,
    hangs_up_within_a_frame,
    names,
    says,
    sends_random_bytes,
    sends_twice,
)
from tests.integration.test_plain_over_sockets import Beside, at_work, fields_of
from tests.integration.test_proved_rounds import flipped, proved_task

CLIENTS = ("alice", "bob")
FEW_BITS = {"frac_bits": 3, "proof_timeout_s": 5.0}
"""B = 8, so that proofs are short."""
LIMIT_S = 90.0
MOST_CELLS = 16
SMALLEST_P = 1e-9
"""The least p-value of a chi-square test that passes; no run makes more than nine of them."""


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), CLIENTS)


@dataclass(frozen=True)
class Attack:
    """A task under attack, at its end."""

    server: Deviant
    beside: Beside
    error: BaseException | None
    """The honest server's end, if it did not finish."""

    @property
    def proving(self) -> dict[int, Proving]:
        return {state.round: state for state in self.beside.of_kind(Proving)}


async def attacked(
    pki: Pki,
    folder: Path,
    plans: Sequence[Plan],
    *,
    party: int = 1,
    length: int = 0,
    rounds: int = 1,
    lost_rounds: int = 20,
    comes_back: bool = True,
    kind: type[Deviant] = Deviant,
    reconnect_timeout_s: float = 10.0,
    **changes: Any,
) -> Attack:
    """Run a task with a server that deviates in its first rounds. length: of every update, in steps of the grid."""
    folder.mkdir(exist_ok=True)
    task = proved_task(CLIENTS, **{"rounds": rounds, "lost_rounds": lost_rounds, **FEW_BITS, **changes})
    addresses = free_addresses(2)
    beside = Beside(task, pki, folder, 1 - party, addresses, reconnect_timeout_s=reconnect_timeout_s)
    server = kind(party, fields_of(task), task.divisor, pki.directory, (addresses[0], addresses[1]))
    server.plans, server.comes_back = plans, comes_back
    vector = np.zeros(task.dim, dtype=np.int64)
    vector[0] = length
    clients = [session_of(client, task, pki, addresses, vector).run() for client in CLIENTS]
    async with at_work(*clients, server.run()):
        honest = asyncio.create_task(beside.server.run())
        try:
            await asyncio.wait([honest], timeout=LIMIT_S)
            error = honest.exception() if honest.done() else None
            await asyncio.sleep(0.1)  # whoever still sends something would do so now
        finally:
            honest.cancel()
            await asyncio.gather(honest, return_exceptions=True)
    return Attack(server, beside, error)


def session_of(client: str, task: Task, pki: Pki, addresses: list[str], vector: Any) -> ClientSession:
    """An honest client, which uploads the same vector in each round."""
    return ClientSession(
        client=client,
        task=task,
        addresses=(addresses[0], addresses[1]),
        tls=pki.tls(client),
        train=lambda parameters: vector.copy(),
        reconnect_timeout_s=20.0,
        limit=UploadLimit(client, task.digest(), most=3),
    )


def assert_nothing_more(attack: Attack) -> None:
    """Each step once and in order, each client's calls once, each proof opened once, and opened to what is uniform.

    What is opened fulfils both equations. So F and q follow from the wires' values and u, which are pads.
    """
    server = attack.server
    for t, steps in server.steps_seen().items():
        assert steps == [step for step in STEPS if step in steps], (t, steps)
    for method in ("Submit", "Prove"):
        assert set(server.calls_seen(method).values()) <= {1}
    assert server.are_openings_valid
    assert set(Counter((t, slot) for t, slot, _ in server.openings).values()) <= {2}


def shape_of(server: Deviant) -> dict[str, list[Any]]:
    """Return all that came but pads, coins and digests, and of those the lengths, in order.

    A model's digest follows from the released sum, which the deviating server has from its own step too.
    Slots are labels that a coin draws, so who holds which is left out. What a client sends to either server is counted.
    """
    found: dict[str, list[Any]] = defaultdict(list)
    sent: Counter[tuple[str, int, int]] = Counter()
    for one in server.seen:
        if one.channel == "lane":
            step = one.who.split("/", 2)[2].removeprefix("join/")
            found["steps"].append((step, len(one.data)))
            if step in ("validation/accepted", "charges"):
                found[step].append(one.data)
        elif one.channel == "link":
            message = peer_pb2.PeerMessage.FromString(one.data)
            if message.HasField("closed"):
                found["closed"].append((message.closed.round, message.closed.phase))
            for relay in message.relays.relays:
                sent[relay.client, relay.round, relay.phase] += len(relay.digest) == 32
        elif one.channel in ("Submit", "Prove"):
            sent.update(calls_of(one))
    found["sent or relayed"] = sorted(sent.items())
    return dict(found)


def calls_of(one: Seen) -> Counter[tuple[str, int, int]]:
    """Return the call that a client's message begins, as (client, round, phase)."""
    kind = aggregator_pb2.ProvePart if one.channel == "Prove" else aggregator_pb2.SubmitPart
    part = kind.FromString(one.data)
    phase = int(one.channel == "Prove")
    return Counter({(one.who, part.binding.round, phase): 1} if part.HasField("binding") else {})


HANG_UPS = (
    Plan({"coin/commit": hangs_up}),
    Plan({SELECTION: hangs_up}),
    Plan({"validation/lock": hangs_up}),
    Plan({CHALLENGE: hangs_up}),
    Plan(),
    Plan({"validation/proofs": hangs_up_within_a_frame}),
    Plan({"validation/verifier": hangs_up_within_a_frame}),
    Plan(),
    Plan({"validation/verifier": hangs_up}),
    Plan({"validation/accepted": hangs_up}),
    Plan(),
    Plan({"noisy sum": hangs_up}),
)
"""At every frame, at most twice for one model: then clients would stop."""
IN_THE_CHECK = (
    Plan({"validation/verifier": hangs_up}),
    Plan({"validation/accepted": hangs_up}),
    Plan(),
    Plan({"noisy sum": hangs_up}),
)


@pytest.mark.parametrize(
    ("party", "plans", "rounds"),
    [
        pytest.param(1, IN_THE_CHECK, 2, id="B in the check"),
        pytest.param(0, HANG_UPS, 4, id="A", marks=pytest.mark.slow),
        pytest.param(1, HANG_UPS, 4, id="B", marks=pytest.mark.slow),
    ],
)
@asynchronous
async def test_hang_ups_at_every_frame_show_the_same_of_two_updates(
    pki: Pki, tmp_path: Path, party: int, plans: Sequence[Plan], rounds: int
) -> None:
    """Zero, and the largest update: what came has the same steps and lengths, and equal verdicts."""
    seen = []
    for length in (0, 8):
        attack = await attacked(pki, tmp_path / f"{length}", plans, party=party, length=length, rounds=rounds)
        assert attack.error is None, attack.error
        assert_nothing_more(attack)
        assert len(attack.server.rounds) == rounds
        seen.append(attack.server)
    assert shape_of(seen[0]) == shape_of(seen[1])
    assert [valid for _, _, valid in seen[0].rounds] == [valid for _, _, valid in seen[1].rounds]
    assert_pads(*seen)


def assert_pads(zero: Deviant, at_bound: Deviant) -> None:
    """Payloads and openings are uniform for both updates, and alike: in 16 cells, or fewer, of at least 20 elements."""
    for pads in (uploads_of, proofs_of, openings_of):
        elements = [pads(one) for one in (zero, at_bound)]
        n_cells = min(MOST_CELLS, *(len(some) // 20 for some in elements))
        counts = [cells(some, n_cells) for some in elements]
        for count in counts:
            assert stats.chisquare(count).pvalue > SMALLEST_P, (pads.__name__, count)
        assert stats.chi2_contingency(np.array(counts)).pvalue > SMALLEST_P, (pads.__name__, counts)


def uploads_of(server: Deviant) -> list[int]:
    return server.elements_seen("Submit")


def proofs_of(server: Deviant) -> list[int]:
    return server.elements_seen("Prove")


def openings_of(server: Deviant) -> list[int]:
    return [element for _, _, value in server.openings for element in (*value.wires, value.bits)]


def cells(elements: list[int], n_cells: int) -> list[int]:
    """Count the elements in cells of equal width."""
    assert n_cells > 1, len(elements)
    return [int(n) for n in np.bincount([element * n_cells // P for element in elements], minlength=n_cells)]


@pytest.mark.slow
@asynchronous
async def test_seeds_challenges_and_invitations_of_its_own_choice(pki: Pki, tmp_path: Path) -> None:
    """Seeds that are zero and alike give nothing away. A client is silent to another challenge and to another slot, and
    answers no second invitation."""
    plans = (
        Plan(seeds=bytes, invites_twice=True),
        Plan(challenge=lambda challenge: bytes(16), invites_twice=True),
        Plan(invitation={"slot": 1 << 20}),
    )
    short = {"submit_timeout_s": 1.5, "proof_timeout_s": 1.5}
    attack = await attacked(pki, tmp_path, plans, length=8, rounds=3, **short)
    assert attack.error is None
    assert_nothing_more(attack)
    assert [sorted(valid) for _, _, valid in attack.server.rounds] == [list(CLIENTS), [], []]
    assert {t for _, t in attack.server.calls_seen("Submit")} <= {0, 1}
    assert {t for _, t in attack.server.calls_seen("Prove")} <= {0}


@asynchronous
async def test_what_is_refused_for_overload_comes_again_byte_for_byte(pki: Pki, tmp_path: Path) -> None:
    """Rule C1: a holder that asks for an upload or a proof two times has the same messages two times."""
    attack = await attacked(pki, tmp_path, [Plan(refusals=1)], length=8)
    assert attack.error is None
    calls: dict[tuple[str, str], Counter[bytes]] = defaultdict(Counter)
    for one in attack.server.seen:
        if one.channel in ("Submit", "Prove"):
            calls[one.channel, one.who][one.data] += 1
    held = {client for client, slot in attack.server.slots.items() if slot % 2 == attack.server.party}
    assert calls.keys() == {(method, client) for method in ("Submit", "Prove") for client in held}
    assert all(list(times.values()) == [2] for times in calls.values())
    assert [sorted(valid) for _, _, valid in attack.server.rounds] == [list(CLIENTS)]


FATAL: dict[str, tuple[str, Deviation, type[Exception]]] = {
    "a second lock": (CHALLENGE, names("validation/lock"), PeerMismatchError),
    "a false coin": (CHALLENGE, says(flipped), CommitmentError),
    "a second pair of points": ("validation/accepted", names("validation/proofs"), PeerMismatchError),
    "a verifier message twice": ("validation/verifier", sends_twice, PeerMismatchError),
    "an element that is none": ("validation/verifier", says(lambda b: b"\xff" * 7 + b[7:]), MalformedMessageError),
    "other verdicts": ("validation/accepted", says(flipped), VerdictsDifferError),
    "random bytes": ("validation/verifier", sends_random_bytes, MalformedMessageError),
}
DEFAULT = ("a second lock", "a second pair of points")


@pytest.mark.parametrize("party", [pytest.param(0, marks=pytest.mark.slow), 1], ids=["A deviates", "B deviates"])
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in DEFAULT else pytest.mark.slow) for n in FATAL])
@asynchronous
async def test_a_deviation_ends_the_task_with_nothing_more(pki: Pki, tmp_path: Path, name: str, party: int) -> None:
    """The honest server ends with its reason, has opened each proof once, and sends no part of a later step."""
    step, deviation, error = FATAL[name]
    attack = await attacked(pki, tmp_path, [Plan({step: deviation})], party=party, length=8, comes_back=False)
    assert isinstance(attack.error, error), attack.error
    assert_nothing_more(attack)
    (steps,) = attack.server.steps_seen().values()
    assert STEPS.index(steps[-1]) <= STEPS.index(step) + (
        name in ("a verifier message twice", "an element that is none")
    )
    assert not attack.beside.of_kind(Opened)
    if step == CHALLENGE:
        assert not attack.server.calls_seen("Prove")
        assert not attack.beside.of_kind(Charged)


@asynchronous
async def test_one_that_hangs_up_before_any_draw_is_not_met_for_ever(pki: Pki, tmp_path: Path) -> None:
    """No number is used up, so that no round is lost: the time that servers may be apart ends it."""
    attack = await attacked(
        pki, tmp_path, [Plan({"coin/commit": hangs_up})] * 10_000, lost_rounds=1, reconnect_timeout_s=2.0
    )
    assert isinstance(attack.error, (PeerUnreachableError, ChannelClosedError))  # by where time is up
    assert exit_code_of(attack.error) == UNREACHABLE
    assert attack.server.steps_seen().keys() <= {0}
    assert attack.beside.of_kind(Committed) == []


@asynchronous
async def test_one_that_answers_no_draw_is_met_again_for_no_longer_either(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is met and hears a commitment, three times at most: each time takes a step's whole limit."""
    monkeypatch.setattr(StepLimits, "of", lambda *_: StepLimits(every=1.0))
    attack = await attacked(
        pki, tmp_path, [Plan({"coin/commit": answers_nothing})] * 100, lost_rounds=1, reconnect_timeout_s=1.5
    )
    assert isinstance(attack.error, (PeerUnreachableError, ChannelClosedError))
    assert sum(one.who.endswith("coin/commit") for one in attack.server.seen) <= 3


@pytest.mark.parametrize("party", [pytest.param(0, marks=pytest.mark.slow), 1], ids=["A deviates", "B deviates"])
@asynchronous
async def test_a_sum_that_is_too_long_moves_no_model(pki: Pki, tmp_path: Path, party: int) -> None:
    """A share of half the field in one coordinate, which no updates and noise add up to."""
    far = says(lambda share: (P // 2).to_bytes(7, "little") + share[7:])
    attack = await attacked(pki, tmp_path, [Plan({"noisy sum": far})], party=party, length=8, comes_back=False)
    assert isinstance(attack.error, TaskRefusedError), attack.error
    assert str(attack.error).startswith("opened sum: expected accepted updates and both servers' noise")
    assert_nothing_more(attack)
    assert [steps[-1] for steps in attack.server.steps_seen().values()] == ["noisy sum"]
    assert attack.beside.of_kind(Opened)
    assert not attack.beside.of_kind(Committed)


OUT_OF_ORDER = [(due, instead) for due in STEPS for instead in STEPS if due.split(" 2")[0] != instead.split(" 2")[0]]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("party", [0, 1], ids=["A deviates", "B deviates"])
def test_every_step_in_the_place_of_every_other(pki: Pki, tmp_path: Path, party: int) -> None:
    """And every step twice, and random bytes in the place of each."""
    ways = [(due, names(instead), f"{due} {instead}") for due, instead in OUT_OF_ORDER]
    ways += [(due, way, f"{due} {way.__name__}") for due in STEPS for way in (sends_twice, sends_random_bytes)]
    for i, (due, deviation, name) in enumerate(ways):
        plan, folder = Plan({due: deviation}), tmp_path / f"{i}"
        attack = asyncio.run(attacked(pki, folder, [plan], party=party, length=8, rounds=2, comes_back=False))
        assert isinstance(attack.error, (PeerMismatchError, MalformedMessageError)), (name, attack.error)
        assert_nothing_more(attack)
        seen = [(t, STEPS.index(step)) for t, steps in attack.server.steps_seen().items() for step in steps]
        n_later = sum((t, step) > (0, STEPS.index(due)) for t, step in seen)
        assert n_later <= (deviation is sends_twice), (name, seen)


# The attacks on the norm and on coordinates of the other modes


def shifted(offset: int, at: int) -> Deviation:
    """Add an offset to one element of its part of a verifier message."""

    def change(payload: bytes) -> bytes:
        element = (int.from_bytes(payload[7 * at : 7 * at + 7], "little") + offset) % P
        return payload[: 7 * at] + element.to_bytes(7, "little") + payload[7 * at + 7 :]

    return says(change)


OFFSETS = ((1, 0), (64, 2), (1, 3), (P - 1, 4), (P - 64, 2))
"""Numbers that are added to a wire's value, F, u or q, at its place in the first slot's part: there are two wires."""


@pytest.mark.slow
@asynchronous
async def test_offsets_and_hang_ups_find_neither_a_norm_nor_a_coordinate(pki: Pki, tmp_path: Path) -> None:
    """Whatever the offset, the honest server rejects that slot and accepts the other, for both updates."""
    asks = [
        Plan({"validation/verifier": shifted(offset, at), "validation/accepted": hangs_up}) for offset, at in OFFSETS
    ]
    plans = [*asks[:2], Plan(), *asks[2:4], Plan(), *asks[4:]]
    for length in (0, 8):
        attack = await attacked(pki, tmp_path / f"{length}", plans, length=length, rounds=3)
        assert attack.error is None
        assert_nothing_more(attack)
        answers = [one.data for one in attack.server.seen if one.who.endswith("validation/accepted")]
        assert sorted(answers) == sorted([accepted(bytes([0, 1]))] * len(OFFSETS) + [accepted(bytes([1, 1]))] * 3)


def accepted(verdicts: bytes) -> bytes:
    """Return what a server says of its verdicts."""
    parts = (b"precad/v1", b"accepted", verdicts)
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()
