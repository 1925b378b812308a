"""How far both servers are, and how they go on together: after the first start, a crash of one, or of both.

A server sends its digest of a new model only when that model is on disk. It begins the next round only when it has the
other's. So two honest servers are never more than one committed round apart, and the one behind has charged the round
that it lacks. Nor are their next numbers. A server reserves a number only in a draw with the other, which has reserved
all before it. A server that meets has caught up before it says anything on the lane. Everything else means that a
server lost its state, or was given back an old one. Then it is for the operators to decide, and nothing is released.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from precad.mpc.errors import MalformedMessageError, PeerMismatchError
from precad.mpc.sharing import Party

MAX_ROUND = 1 << 32
"""No round has a larger number: at one a second, they last for more than a century."""
TASK_ID_DIGITS = 16
"""Hexadecimal ones, behind the task's name."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Standing of a server, as it says when the servers meet."""

    task_id: str
    """Empty when it has not met the other one yet."""
    n_committed: int
    last_round: int
    """Number of the last committed round; 0 before the first."""
    next_round: int
    """The first number that it has never used."""
    model_digest: bytes
    previous_model_digest: bytes
    """Digest of the model before the last committed round; equal to `model_digest` before the first."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How both go on."""

    task_id: str
    next_round: int
    behind: Party | None
    """The server that lacks the other's last committed round, if one does."""


def require_task_id(found: str, name: str) -> None:
    """Raise MalformedMessageError for an identifier that no two servers give to a task of this name."""
    if re.fullmatch(rf"{re.escape(name)}-[0-9a-f]{{{TASK_ID_DIGITS}}}", found) is None:
        raise MalformedMessageError(
            f"task: expected {name}-, then {TASK_ID_DIGITS} hexadecimal digits, found {found[:80]!r}"
        )


def agree(party: Party, ours: Standing, theirs: Standing, *, fresh_task_id: str) -> Agreement:
    """Decide how both go on, alike at both servers. Raises PeerMismatchError when their states do not belong
    together."""
    known = {standing.task_id for standing in (ours, theirs) if standing.task_id}
    if len(known) > 1:
        raise PeerMismatchError("task", ours=ours.task_id, peers=theirs.task_id)
    for standing in (ours, theirs):
        if not standing.task_id and ours.n_committed + theirs.n_committed:
            raise PeerMismatchError(
                "committed rounds (has a server lost its state_dir?)", ours=ours.n_committed, peers=theirs.n_committed
            )
    behind = _behind(party, ours, theirs)
    if ours.task_id and theirs.task_id and abs(ours.next_round - theirs.next_round) > 1:
        field = "next_round (was a server given back an old state_dir?)"
        raise PeerMismatchError(field, ours=ours.next_round, peers=theirs.next_round)
    task_id = known.pop() if known else fresh_task_id
    return Agreement(task_id, max(ours.next_round, theirs.next_round), behind)


def _behind(party: Party, ours: Standing, theirs: Standing) -> Party | None:
    lead = ours.n_committed - theirs.n_committed
    if lead == 0:
        _require_same("model", ours.model_digest, theirs.model_digest)
        if ours.n_committed and ours.last_round != theirs.last_round:
            raise PeerMismatchError("last committed round", ours=ours.last_round, peers=theirs.last_round)
        return None
    if abs(lead) > 1:
        raise PeerMismatchError(
            "committed rounds (was a server given back an old state_dir?)",
            ours=ours.n_committed,
            peers=theirs.n_committed,
        )
    ahead, other = (ours, theirs) if lead == 1 else (theirs, ours)
    if other.n_committed and ahead.last_round <= other.last_round:
        raise PeerMismatchError(
            "last committed round, of which the further server's comes later",
            ours=ours.last_round,
            peers=theirs.last_round,
        )
    if lead == 1:
        _require_same("model before the last round", ours.previous_model_digest, theirs.model_digest)
        return 0 if party == 1 else 1
    _require_same("model before the last round", ours.model_digest, theirs.previous_model_digest)
    return party


def _require_same(what: str, ours: bytes, peers: bytes) -> None:
    if ours != peers:
        raise PeerMismatchError(what, ours=ours.hex()[:16], peers=peers.hex()[:16])
