"""The two aggregators meet: hello, the same parameters, a lane, and one standing, from which both go on.

Every meeting begins like the first one: link, hello, lane. Then each tells the other which rounds it has charged in
vain, so that both ledgers hold both servers' charges. The server that lacks the last committed round gets its noisy
sum, which both were about to know anyway.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from contextlib import AsyncExitStack
from dataclasses import dataclass

import numpy as np

from precad.mpc import joint_coin, opening
from precad.mpc.channel import Channel, Prefixed
from precad.mpc.errors import MalformedMessageError, PeerMismatchError
from precad.mpc.joint_coin import digest
from precad.mpc.prg import SEED_BYTES, RandomBytes, Seed
from precad.mpc.proved import opening as proved_opening
from precad.mpc.ring import RingArray
from precad.mpc.sharing import Party
from precad.protos.messages.spoken import shown
from precad.protos.precad.v1 import common_pb2
from precad.protos.task.task import Task
from precad.protos.task.task_fields import differences
from precad.protos.tls.address import with_port
from precad.protos.tls.identity import AGGREGATORS, Role
from precad.protos.tls.transport import CONNECT_TIMEOUT_S, dial
from precad.servers.config import AggregatorConfig
from precad.servers.door.servicers import PeerServicer
from precad.servers.links import lane_seal
from precad.servers.links.credentials import Credentials
from precad.servers.links.lane import Lane
from precad.servers.links.lane_listener import LaneListener
from precad.servers.links.lane_opening import open_lane
from precad.servers.links.peer import PeerLink, dial_peer
from precad.servers.links.step_limits import StepLimits
from precad.servers.store.standing import MAX_ROUND, TASK_ID_DIGITS, Agreement, Standing, agree, require_task_id
from precad.servers.store.state import TaskState
from precad.servers.supervision import to_the_end

LANE_TIMEOUT_S = 2.0 * CONNECT_TIMEOUT_S
"""How long B waits for the lane of a link that stands. An A that died in between is back on another link, not on it."""

SPARE_ROUNDS = 16
"""Charges that are read although this server has begun no such round: it is told which one it lacks."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Both servers know how they go on; `level` brings them to the same standing."""

    link: PeerLink
    lane: Lane
    agreement: Agreement
    theirs: Standing


async def meet(
    stack: AsyncExitStack,
    state: TaskState,
    config: AggregatorConfig,
    servicer: PeerServicer,
    *,
    party: Party,
    peer_address: str,
    credentials: Credentials,
    timeout_s: float,
    random_bytes: RandomBytes,
) -> Meeting:
    """Link and lane last as long as the stack. peer_address: of B, for A. random_bytes: of a new task's name.

    Raises: PeerUnreachableError, PeerMismatchError, MalformedMessageError, TaskRefusedError, SetupError, StoreError.
    """
    await asyncio.to_thread(state.refresh)
    listener = None if party == 0 else _listen(stack, config, credentials)
    standing = await asyncio.to_thread(lambda: state.standing)
    lane_port, lane_token = (0, b"") if listener is None else (listener.port, listener.token)
    ours = hello_of(state.task, standing, random_bytes(16), lane_port=lane_port, lane_token=lane_token)
    ours.lane_key = secrets.token_bytes(lane_seal.SECRET_BYTES) if config.require_pqc else b""
    if listener is None:
        link, theirs = await dial_peer(
            stack,
            lambda: dial(peer_address, Role.AGGREGATOR_B, credentials.tls, credentials.peer),
            ours,
            peer_address,
            timeout_s,
            config.tls.certificate,
        )
    else:
        stack.callback(servicer.release)
        link, theirs = await servicer.wait_for_peer(ours, timeout_s)
    agreement = compare(party, state.task, ours, theirs)
    keys = lane_seal.keys_of(party, ours, theirs)
    if listener is None:
        lane = await open_lane(peer_address, theirs.lane_port, theirs.lane_token, credentials.lane, timeout_s)
    else:
        lane = await listener.accept(min(timeout_s, LANE_TIMEOUT_S))
    stack.callback(lane.close)
    if keys is not None:
        lane.seal(keys)
    lane.limits = limits = StepLimits.of(state.task, config)
    link.begin(agreement.next_round, patience_s=limits.every, n_phases=2 if state.task.is_proved else 1)
    peer = " or ".join(credentials.peer.load().fingerprints)
    await to_the_end(state.store.begin, agreement.task_id, AGGREGATORS[party])
    await to_the_end(state.store.joined, agreement.next_round, peer)
    await to_the_end(state.skip_to, agreement.next_round)
    return Meeting(link, lane, agreement, standing_of(theirs))


def _listen(stack: AsyncExitStack, config: AggregatorConfig, credentials: Credentials) -> LaneListener:
    """Server B's side of the lane, before it says where."""
    address = config.lane_listen or with_port(config.listen, 0)
    listener = LaneListener(address, credentials.lane)
    stack.callback(listener.close)
    return listener


def hello_of(task: Task, standing: Standing, nonce: bytes, lane_port: int, lane_token: bytes = b"") -> common_pb2.Hello:
    """Return what a server says first; B also where its lane opens, and to whom. nonce: 16 fresh bytes."""
    return common_pb2.Hello(
        protocol_version=task.protocol_version,
        config_digest=task.digest(),
        task_fields=task.carried_fields,
        nonce=nonce,
        lane_port=lane_port,
        lane_token=lane_token,
        task=standing.task_id,
        n_committed=standing.n_committed,
        last_round=standing.last_round,
        next_round=standing.next_round,
        model_digest=standing.model_digest,
        previous_model_digest=standing.previous_model_digest,
    )


def standing_of(hello: common_pb2.Hello) -> Standing:
    """Return how far the sender has come."""
    return Standing(
        task_id=hello.task,
        n_committed=hello.n_committed,
        last_round=hello.last_round,
        next_round=hello.next_round,
        model_digest=hello.model_digest,
        previous_model_digest=hello.previous_model_digest,
    )


def compare(party: Party, task: Task, ours: common_pb2.Hello, theirs: common_pb2.Hello) -> Agreement:
    """Return how both go on. Raises PeerMismatchError when version, parameters or states do not belong together, and
    MalformedMessageError when theirs is the state of no server."""
    if theirs.protocol_version != ours.protocol_version:
        said = shown(theirs.protocol_version, 40)
        raise PeerMismatchError("protocol_version", ours=ours.protocol_version, peers=said)
    if theirs.config_digest != ours.config_digest:
        found = differences(task, theirs.task_fields)
        if not found:
            our_digest, their_digest = ours.config_digest.hex()[:16], theirs.config_digest.hex()[:16]
            raise PeerMismatchError("config_digest", ours=our_digest, peers=their_digest)
        fields, our_values, their_values = (", ".join(texts) for texts in zip(*found, strict=True))
        raise PeerMismatchError(f"config_digest: {fields}", ours=our_values, peers=their_values)
    _require_possible(theirs, task)
    nonces = (ours.nonce, theirs.nonce) if party == 0 else (theirs.nonce, ours.nonce)
    fresh = f"{task.name}-{digest(b'task id', *nonces).hex()[:TASK_ID_DIGITS]}"
    return agree(party, standing_of(ours), standing_of(theirs), fresh_task_id=fresh)


def _require_possible(hello: common_pb2.Hello, task: Task) -> None:
    """Refuse a hello that no server of this task can say of itself. Raises MalformedMessageError."""
    if hello.task:
        require_task_id(hello.task, task.name)
    n_most = min(task.rounds, hello.next_round)
    # fewer than most_lost_rounds, a round with those drawn ahead of it, and a release that it lacks
    n_lost = task.most_lost_rounds + task.draws_ahead + 1
    n_evaluations = 0 if task.evaluation_every is None else min(hello.n_committed, n_most) // task.evaluation_every
    n_used = min(MAX_ROUND, hello.n_committed + n_evaluations + n_lost) if hello.task else 0
    for name, value, largest in (
        ("n_committed", hello.n_committed, n_most),
        ("last_round", hello.last_round, hello.next_round - 1 if hello.n_committed else 0),
        ("next_round", hello.next_round, n_used),
    ):
        if value > largest:
            raise MalformedMessageError(f"{name}: expected at most {largest}, found {value}")


def level(state: TaskState, meeting: Meeting, random_bytes: RandomBytes) -> None:
    """Bring both servers to the same charges, the same model and the same turns. In the MPC thread of both, in step.

    random_bytes: of this server's half of the coin that deals turns.
    Raises: PeerMismatchError, MalformedMessageError, CommitmentError, ChannelClosedError, and what `TaskState` raises.
    """
    agreement, dim = meeting.agreement, state.task.dim
    channel = Prefixed(meeting.lane, f"{agreement.task_id}/{agreement.next_round}/join")
    ours = {str(number): chosen for number, chosen in state.charges_told().items()}
    received = channel.exchange("charges", json.dumps(ours).encode(), charge_bytes(state.task, state.store.n_rounds))
    theirs = _charges(received, state.task, agreement.next_round)
    if agreement.behind == channel.party:
        state.attempt(meeting.theirs.last_round)  # before a vector is received for nothing
        noisy_sum = np.zeros(dim, dtype=np.int64)
        _swap_sum(channel, noisy_sum, is_proved=state.task.is_proved, is_behind=True)
        state.take_over(meeting.theirs.last_round, noisy_sum, meeting.theirs.model_digest)
    elif agreement.behind is not None:
        noisy_sum = state.checkpoints.noisy_sum(state.committed[-1].number)
        _swap_sum(channel, noisy_sum, is_proved=state.task.is_proved)
    state.charge_as_well(theirs)
    if state.task.min_separation > 1:
        state.deal_turns(_turns_coin(state, channel, random_bytes))


def _turns_coin(state: TaskState, channel: Channel, random_bytes: RandomBytes) -> Seed:
    """Return the coin of the clients' turns, tossed once: unless both servers hold it, neither has begun a round.

    A server that was stopped between the toss and its disk does not hold it. The other one then has drawn nobody, since
    it waits for this one's half of every draw.
    """
    ours = state.store.turns_coin
    theirs = channel.exchange("turns", ours, SEED_BYTES)
    if len(theirs) not in (0, SEED_BYTES):
        raise MalformedMessageError(f"turns: expected {SEED_BYTES} bytes or none, found {len(theirs)}")
    if ours == theirs != b"":
        return Seed(ours)
    if (ours and theirs) or state.store.n_rounds > 0:
        said = [coin.hex() or "none" for coin in (ours, theirs)]
        raise PeerMismatchError("turns (was a server given back an old state_dir?)", ours=said[0], peers=said[1])
    share, commitment = joint_coin.commit(f"{state.store.task_id}/turns", channel, random_bytes)
    coin = joint_coin.reveal(share, commitment, b"", channel)
    state.store.keep_turns_coin(coin.reveal())
    return coin


def _swap_sum(channel: Channel, noisy_sum: RingArray, *, is_proved: bool = False, is_behind: bool = False) -> None:
    """Send the vector that one server has, (d,), to the other, piece by piece, and nothing back."""
    form = proved_opening if is_proved else opening
    ours = (b"" for _ in opening.pieces(noisy_sum.size)) if is_behind else form.pieces_of_sum(noisy_sum)
    swapped = channel.exchange_pieces("noisy sum", ours, form.PIECE_BYTES if is_behind else 0)
    if is_behind:
        form.fill_sum(noisy_sum, swapped)
    else:
        deque(swapped, maxlen=0)


def charge_bytes(task: Task, n_rounds: int) -> int:
    """Return how long the other server's charges may be where this one has begun n_rounds.

    They are of lost rounds, as many as there can be, with every client.
    """
    longest = json.dumps({str(MAX_ROUND): list(task.clients)})
    return (min(n_rounds, task.most_lost_rounds) + SPARE_ROUNDS) * len(longest)


def _charges(message: bytes, task: Task, next_round: int) -> dict[int, tuple[str, ...]]:
    """Return the other server's charges, by round, all of them drawn already. Raises MalformedMessageError."""
    try:
        charges = {int(number): tuple(chosen) for number, chosen in json.loads(message).items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise MalformedMessageError("charges: expected rounds with their chosen clients") from None
    for number, chosen in charges.items():
        if not 0 <= number < next_round:
            raise MalformedMessageError(f"charges: expected rounds below {next_round}, found {number}")
        if not all(isinstance(client, str) and client in task.clients for client in chosen):
            raise MalformedMessageError(f"charges: expected enrolled clients, in round {number}")
        if len(set(chosen)) != len(chosen):
            raise MalformedMessageError(f"charges: expected each client once, in round {number}")
    return charges
