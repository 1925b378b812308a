"""A server of mode `proved` that writes down, before it leaves, whatever must leave once.

Each server has one file, which all its lives append to. A line is what, for which round and slot, and a digest of the
value. A life that was killed behind a line may not have sent it. The next one must not send it either.

Failure means one of these, over all lives of a server:
- a share seed or a challenge that serves twice, or a slot of a round that is given two seeds;
- a proof that is opened twice, which are more than two points, or at other points than the other server's;
- a round whose noisy share leaves twice.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from precad.mpc.proved.check import ProofCheck
from precad.servers.rounds.proved_form import ProvedForm
from precad.servers.rounds.sessions import Sessions

SEED, CHALLENGE, OPENED, RELEASED = "seed", "challenge", "opened", "released"
Line = tuple[str, int, str, str]
"""A kind, the round's number, the slot or client that it is for, and a digest of the value."""


def watch(path: Path) -> None:
    """Write down from now on what this process sends, each line before its value leaves."""
    write = functools.partial(_append, path)
    _before(Sessions, "send", functools.partial(_event, write))
    _before(ProofCheck, "open", functools.partial(_opened, write))
    _before(ProvedForm, "open", lambda form, t, share: write(RELEASED, t, "", b""))


def _append(path: Path, what: str, number: int, whose: str, value: bytes) -> None:
    with path.open("a") as file:
        file.write(f"{what} {number} {whose or '-'} {hashlib.sha256(value).hexdigest()}\n")


def _event(write: Callable[[str, int, str, bytes], None], sessions: Sessions, client: str, event: Any) -> None:
    if event.WhichOneof("event") == "invitation" and event.invitation.mask_seed:
        write(SEED, event.invitation.round, client, event.invitation.mask_seed)
    if event.WhichOneof("event") == "challenge":
        write(CHALLENGE, event.challenge.round, client, event.challenge.challenge)


def _opened(write: Callable[[str, int, str, bytes], None], check: ProofCheck, proved: Any, query: Any, *_: Any) -> None:
    for slot in sorted(proved):
        write(OPENED, check.label.round, str(slot), repr(query.points).encode())


def _before(owner: Any, name: str, note: Callable[..., None]) -> None:
    """Call `note` with the arguments before each call of the owner's function."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def noted(*arguments: Any) -> Any:
        note(*arguments)
        return original(*arguments)

    setattr(owner, name, noted)


def read(path: Path) -> list[Line]:
    """Return the lines of all lives of a server; none where it never sent anything."""
    lines = path.read_text().splitlines() if path.exists() else []
    cut = [line.split(" ") for line in lines]
    return [(what, int(number), whose, digest) for what, number, whose, digest in cut]


def assert_once(*servers: list[Line]) -> None:
    """See the module."""
    points: dict[tuple[int, str], set[str]] = defaultdict(set)
    for lines in servers:
        for what in (SEED, OPENED, RELEASED):
            times = Counter((number, whose) for kind, number, whose, _ in lines if kind == what)
            assert max(times.values(), default=0) <= 1, (what, times.most_common(1))
        assert_of_one_round(lines)
        for what, number, whose, digest in lines:
            if what == OPENED:
                points[number, whose].add(digest)
    assert all(len(found) == 1 for found in points.values()), points
    seeds = Counter(digest for lines in servers for what, _, _, digest in lines if what == SEED)
    assert max(seeds.values(), default=0) <= 1


def assert_of_one_round(lines: list[Line]) -> None:
    """No two rounds have a challenge in common, and no round has two."""
    challenges = {(number, digest) for what, number, _, digest in lines if what == CHALLENGE}
    assert len({number for number, _ in challenges}) == len({digest for _, digest in challenges}) == len(challenges)
