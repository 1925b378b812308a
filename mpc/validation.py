"""Secure validation: is ||X||_2 <= C, for every client of a round at once, one opened bit each.

The steps are those of PRECAD, Sec. 4.3, with the no-wrap test that the ring needs (docs/reference/protocol.md,
sections 9 to 12):

    lock      both servers fix the same set of uploads, and commit to a coin (`precad.mpc.locking`)
    reveal    the coin is shown, and in the `shares` form b = x - a with it; only now does anyone know the rows
    local     shares of <X, X> from the inner-product tuple, shares of 64 row values
    gate      the top bits of 65 words per client, which must vanish: their carries, one batch
    verdict   masked equality: one bit per client
    compare   both servers hold the same verdicts, or nothing is opened

Run by both servers, each in the one thread that does MPC. Everything that is exchanged is independent of d, except b
in the `shares` form.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from precad.mpc import joint_coin, opening, ring
from precad.mpc.channel import Channel, exchange_alike
from precad.mpc.convex_set import ConvexSet
from precad.mpc.errors import MalformedMessageError, VerdictsDifferError
from precad.mpc.gate import equality, top_bits
from precad.mpc.gate.top_bits import Gate
from precad.mpc.local.engines import CPU
from precad.mpc.local.rows import RowStreams
from precad.mpc.local.set_sums import set_sums
from precad.mpc.local.step import (
    Engine,
    LocalSums,
    Masked,
    Words,
    WritableWords,
    add_shares,
    local_sums,
    read_tile,
    require_length,
)
from precad.mpc.locking import Locked
from precad.mpc.norm_bound import WINDOW, NormBound
from precad.mpc.prg import Seed
from precad.mpc.ring import RingArray
from precad.mpc.sharing import Party
from precad.mpc.tuples.held import ServerTuples


@dataclass(frozen=True, slots=True, repr=False)
class Revealed:
    """Facts about the locked uploads that both servers know once the coin is shown: opened[i] is b of active[i],
    (d,)."""

    active: tuple[str, ...]
    opened: tuple[Words, ...]
    challenge: Seed
    """The seed of the rows; serves one round."""


def reveal(locked: Locked, masked: Mapping[str, Words], tuples: ServerTuples, channel: Channel) -> Revealed:
    """Show the coin, in the `masked` form: the clients uploaded b. One round. Run by both servers.

    Raises CommitmentError, MalformedMessageError, TupleReusedError.
    """
    tuples.burn_for_check(locked.active)
    challenge = joint_coin.reveal(locked.coin, locked.peers_commitment, locked.transcript, channel)
    return Revealed(locked.active, tuple(masked[client] for client in locked.active), challenge)


def reveal_and_open(
    locked: Locked,
    shares: Mapping[str, Words],
    tuples: ServerTuples,
    channel: Channel,
    rooms: Mapping[str, WritableWords] | None = None,
) -> Revealed:
    """Show the coin and open b = x - a of every active client, in the `shares` form. One round, run by both servers.

    One step in pieces, 8d bytes per client and direction behind the coin. The peer's coin is checked before any of its
    b is taken.

    rooms: where each client's b is written, d words, in memory unless the caller has another place. It may be where the
    share lies: every piece of that is read once, in order, and before b's. Beside them this holds a few pieces.
    Source: PRECAD, Sec. 4.3, step 1. Raises CommitmentError, MalformedMessageError, TupleReusedError.
    """
    dim = tuples.shape.dim
    require_length([shares[client] for client in locked.active], dim)
    tuples.burn_for_check(locked.active)
    ours: deque[RingArray] = deque()

    def our_pieces() -> Iterator[bytes]:
        yield locked.coin.value
        for client in locked.active:
            mask_share = tuples.mask_share(client)
            for piece in opening.pieces(dim):
                b = np.empty(piece.stop - piece.start, dtype=np.int64)
                mask_share.fill(b)
                np.subtract(read_tile(shares[client], piece), b, out=b)
                ours.append(b)
                yield ring.to_bytes(b)

    theirs = channel.exchange_pieces(joint_coin.REVEAL, our_pieces())
    challenge = joint_coin.joint_seed(locked.coin, next(theirs), locked.peers_commitment, locked.transcript)
    opened = [np.empty(dim, dtype=np.int64) if rooms is None else rooms[client] for client in locked.active]
    places = ((b, piece) for b in opened for piece in opening.pieces(dim))
    for (b, piece), received in zip(places, theirs, strict=True):
        b[piece] = ours.popleft() + ring.from_bytes(received, n_words=piece.stop - piece.start)
    return Revealed(locked.active, tuple(opened), challenge)


@dataclass(frozen=True, slots=True, repr=False)
class Validated:
    """Verdicts in the order of `active`, and this server's shares of the accepted clients' vectors, summed."""

    active: tuple[str, ...]
    verdicts: tuple[bool, ...]
    accepted_share_sum: RingArray
    squared_norms: RingArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """This server's shares of ||X||^2 in the order of `active`, (n,); not wrapped where the verdict is good."""

    @property
    def accepted(self) -> tuple[str, ...]:
        """Return the clients whose update enters the sum."""
        return tuple(c for c, ok in zip(self.active, self.verdicts, strict=True) if ok)

    @property
    def rejected(self) -> tuple[str, ...]:
        """Return the clients whose update is longer than C, or wraps."""
        return tuple(c for c, ok in zip(self.active, self.verdicts, strict=True) if not ok)


def validate(
    revealed: Revealed, tuples: ServerTuples, bound: NormBound, gate: Gate, channel: Channel, engine: Engine = CPU
) -> Validated:
    """Check every active client, and sum the accepted shares. Run by both servers.

    Every b is read twice at most, and once more for a smaller set than the ball, tile by tile. Rounds: the gate's, one
    for additive carries, 3.
    Raises: MalformedMessageError, PeerMismatchError, ChannelClosedError, TupleReusedError.
    """
    active, opened = revealed.active, revealed.opened
    tuples.burn_for_check(active)
    if not active:
        return Validated((), (), np.zeros(bound.dim, dtype=np.int64))
    label = tuples.shape.label()
    rows, hash_key = RowStreams(revealed.challenge, label), equality.hash_key(revealed.challenge, label)
    sums = local_sums(tuples.party, masked_shares(active, opened, tuples), rows, bound.dim, engine)
    words = words_to_check(active, sums, tuples, bound)
    if isinstance(bound, ConvexSet):
        words = np.hstack([words, words_of_set(active, opened, tuples, bound, engine)])
    verdicts = equality.all_zero(
        top_bits.shares_of_zero(words, bound.low_bits, gate, tuples.correlations(), channel),
        hash_key,
        tuples.equality_tuples(active),
        channel,
    )
    _keep_accepted(sums.share_sum, verdicts, active, opened, tuples, engine)
    norms = squared_norm_shares(tuples.party, tuples.squared_mask_shares(active), sums.by_mask, sums.by_opened)
    return Validated(active, tuple(verdicts), sums.share_sum, norms)


def accept_all(
    active: tuple[str, ...], uploads: Mapping[str, Words], tuples: ServerTuples, engine: Engine = CPU
) -> Validated:
    """Add up the shares of every active client without any check: a form with privacy alone. Nothing is exchanged.

    uploads: b of each, (d,), of the `masked` form. Raises TupleReusedError, MalformedMessageError.
    """
    tuples.burn_for_check(active)
    total = np.zeros(tuples.shape.dim, dtype=np.int64)
    add_shares(total, tuples.party, masked_shares(active, [uploads[client] for client in active], tuples), engine)
    return Validated(active, (True,) * len(active), total)


def accept_all_shares(active: tuple[str, ...], shares: Mapping[str, Words], dim: int) -> Validated:
    """Do what `accept_all` does in the `shares` form, where a server holds x_P itself, (d,), and needs no tuple."""
    require_length([shares[client] for client in active], dim)
    total = np.zeros(dim, dtype=np.int64)
    for client in active:
        for tile in ring.tiles(dim):
            total[tile] += read_tile(shares[client], tile)
    return Validated(active, (True,) * len(active), total)


def masked_shares(clients: Sequence[str], opened: Sequence[Words], tuples: ServerTuples) -> list[Masked]:
    """Return what this server holds of the clients, with every a_P at its start."""
    return [Masked(b, tuples.mask_share(client)) for client, b in zip(clients, opened, strict=True)]


def words_to_check(active: Sequence[str], sums: LocalSums, tuples: ServerTuples, bound: NormBound) -> RingArray:
    """Return shares of the words whose top bits must vanish: v_j + 2^29 per row, and T - N. (n, n_rows + 1)."""
    norms = squared_norm_shares(tuples.party, tuples.squared_mask_shares(active), sums.by_mask, sums.by_opened)
    words = np.empty((len(active), bound.n_rows + 1), dtype=np.int64)
    window, threshold = (WINDOW, bound.threshold) if tuples.party == 0 else (0, 0)
    np.add(sums.rows[:, : bound.n_rows], window, out=words[:, :-1])
    np.subtract(threshold, norms, out=words[:, -1])
    return words


def words_of_set(
    active: Sequence[str], opened: Sequence[Words], tuples: ServerTuples, within: ConvexSet, engine: Engine
) -> RingArray:
    """Return shares of further words whose top bits must vanish: T_l - N_l per layer, <X, g> - t per half-space.

    Shape: (n, L + J). They say nothing of a vector that wraps, so they count beside the rows and the norm alone.
    """
    party, directions = tuples.party, [it.direction for it in within.half_spaces]
    sums = set_sums(party, masked_shares(active, opened, tuples), within.layer_sizes, directions, within.dim, engine)
    norms = squared_norm_shares(party, tuples.layer_square_shares(active), sums.by_mask, sums.by_opened)
    if party == 1:
        return np.hstack([-norms, sums.along])
    most = np.array(within.layer_thresholds, dtype=np.int64)
    least = np.array([within.threshold_of(it) for it in within.half_spaces], dtype=np.int64)
    return np.hstack([most - norms, sums.along - least])


def squared_norm_shares(
    party: Party, squared_mask_shares: RingArray, by_mask: RingArray, by_opened: RingArray
) -> RingArray:
    """Return n_P with n_A + n_B = <X, X> modulo 2^64: r_P + 2 <b, a_P>, and server A adds the public <b, b>.

    Shapes: all alike, (n,) of whole vectors or (n, L) of their layers.

    Source: PRECAD, Sec. 4.3, step 2. The printed halving has no meaning modulo 2^64: one server adds the public term.
    """
    shares: RingArray = squared_mask_shares + 2 * by_mask
    return shares + by_opened if party == 0 else shares


def compare_verdicts(checked: Validated, channel: Channel) -> None:
    """Exchange the verdicts, a bit each in the order of `active`, before a sum is opened. One round, both servers.

    Whoever answers last in the masked equality can decide the other's verdicts. From here on both account for the same
    ones. Raises VerdictsDifferError, MalformedMessageError.
    """
    ours = np.packbits(np.array(checked.verdicts, dtype=bool), bitorder="little").tobytes()
    theirs = exchange_alike(channel, "verdicts", ours)
    said = np.unpackbits(np.frombuffer(theirs, dtype=np.uint8), bitorder="little").astype(bool).tolist()
    if any(said[len(checked.active) :]):
        raise MalformedMessageError(f"verdicts: expected {len(checked.active)} bits, then zeros")
    pairs = zip(checked.active, checked.verdicts, said, strict=False)
    if differing := [client for client, is_ours, is_theirs in pairs if is_ours is not is_theirs]:
        raise VerdictsDifferError(differing)


def _keep_accepted(
    share_sum: RingArray,
    verdicts: Sequence[bool],
    active: Sequence[str],
    opened: Sequence[Words],
    tuples: ServerTuples,
    engine: Engine,
) -> None:
    """Turn the sum of everybody's shares, (d,), into that of the accepted, in place, as `add_shares`.

    The rejected are taken out. Where they are the majority, the accepted are added up anew.
    """

    def clients_with(verdict: bool) -> list[Masked]:
        chosen = [i for i, ok in enumerate(verdicts) if ok is verdict]
        return masked_shares([active[i] for i in chosen], [opened[i] for i in chosen], tuples)

    if 2 * sum(verdicts) >= len(verdicts):
        add_shares(share_sum, tuples.party, clients_with(False), engine, negate=True)
    else:
        share_sum.fill(0)
        add_shares(share_sum, tuples.party, clients_with(True), engine)
