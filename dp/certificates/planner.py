"""Which noise, clip and number of rounds reach a wish: k attackers tolerated, at epsilon <= e, in a given training.

More noise helps both parts of a wish. For given rounds and clips there is a least sigma for each part, and the larger
of the two reaches the wish. Noise costs accuracy. Before anybody trains, `noise_to_signal` says how much accuracy must
be lost. It is the noise of all rounds together, along one direction, over the largest signal that the clips let
through. Real gradients point less one way and are clipped more, so the true ratio is larger. A wish for which
`noise_to_signal` exceeds a limit is out of reach. Fewer rounds and tighter clips are tried too.

The confidences F_A and F_B are taken to stay as they are, though other noise changes them. A planned training must be
certified anew once it is trained.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from scipy.optimize import brentq
from scipy.special import ndtri

from precad.dp.accountants.composed import composed_epsilon
from precad.dp.accountants.earlier_rounds import EarlierTask
from precad.dp.accountants.gaussian_dp import mu_from_eps_delta
from precad.dp.accountants.group_mixture import Direction, loss_distribution
from precad.dp.accountants.pld import Event, SampledGaussian, View, effective_noise_multiplier
from precad.dp.accountants.precad_client import expected_participation
from precad.dp.accountants.slack import left_of_delta
from precad.dp.certificates.prediction import Threat, Training, attacked_bounds
from precad.dp.checks import require_count, require_delta, require_positive, require_probability

LEAST_MULTIPLIER: Final = 0.25
"""Where the search starts: less noise is not looked for."""

_MOST_MULTIPLIER: Final = 1e4
_HALVINGS: Final = 4
_ROOM: Final = 1e-9
"""A plan leaves so much of epsilon for rounding."""


def most_draws(rounds: int, lost_rounds: int | None, batches_ahead: int) -> int:
    """Return in how many rounds clients can be drawn at most, with those that a task may lose.

    lost_rounds: None for as many as a task that does not say (`Task.most_draws`).
    """
    most_lost = max(3 + rounds // 10, batches_ahead + 2) if lost_rounds is None else lost_rounds
    return rounds + most_lost + max(batches_ahead - 1, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class PrecadTask:
    """PRECAD: epsilon of one record, or of a person's records together, against one server.

    Attackers are whole clients and control no server, however many records a person has.
    """

    q: float
    p: float
    rounds: int
    n_clients: int
    n_records: int
    """Records of all clients together, as declared."""
    record_clip: float
    client_clip: float
    delta: float
    lost_rounds: int | None = None
    batches_ahead: int = 1
    """As in a task's configuration: they say in how many rounds a client can be at most. Attackers are counted in all
    of these. Epsilon of a wish counts none that is lost."""
    end_tells: bool = False
    """Whether the task has a budget of a view, whose end would tell who was drawn: attackers count as drawn for
    certain. A certificate asks whether the budget can be spent as well, which depends on the noise that is planned."""
    slack: float = 0.0
    """Part of delta that the task's protocol takes, as eta (`precad.dp.accountants.slack`)."""
    records_per_person: int = 1
    """Records of one person, all of one client, that epsilon is of together."""
    dim: int | None = None
    frac_bits: int = 16
    """d and f: what rounding to the grid adds to a record's sensitivity counts. No d: none is counted."""
    earlier: tuple[tuple[EarlierTask, ...], ...] = ()
    """By server, finished tasks of the same clients that epsilon counts as well; `slack` does not have theirs."""

    def __post_init__(self) -> None:
        require_probability("q", self.q)
        require_probability("p", self.p)
        require_count("records_per_person", self.records_per_person, at_least=1)
        require_count("rounds", self.rounds, at_least=1)
        require_count("n_clients", self.n_clients, at_least=1)
        require_count("n_records", self.n_records, at_least=1)
        require_positive("record_clip", self.record_clip)
        require_positive("client_clip", self.client_clip)
        require_delta(self.delta)

    @property
    def attacked(self) -> tuple[float, int]:
        """Return the rate at which an attacker is drawn, and the most rounds in which it can be."""
        return 1.0 if self.end_tells else self.q, most_draws(self.rounds, self.lost_rounds, self.batches_ahead)

    @property
    def protected(self) -> tuple[float, int, int]:
        """Return the records of one person, whose client takes part in the expected number of rounds."""
        return self.p, expected_participation(self.q, self.rounds), self.records_per_person

    def least_sigma(self, epsilon: float, rounds: int, *, discarded: bool = False) -> float | None:
        """Return the least sigma that keeps epsilon of a client that was in so many rounds; None if there is none.

        discarded: whether draws of the earlier tasks may have been discarded.
        """
        found = [
            least_sigma_for_epsilon(
                epsilon,
                self.p,
                rounds,
                self.delta,
                self.slack + math.fsum(task.slack for task in tasks),
                together=self.records_per_person,
                beside=tuple((task.events[View.ONE_SERVER], task.counted(discarded=discarded)) for task in tasks),
            )
            for tasks in self.earlier or ((),)
        ]
        known = [sigma / self.noise_left for sigma in found if sigma is not None]
        return max(known) if len(known) == len(found) else None

    @property
    def noise_left(self) -> float:
        """Return what rounding leaves of each sigma: R / (R + sqrt(d) 2^-f)."""
        return 1.0 if self.dim is None else effective_noise_multiplier(1.0, self.record_clip, self.dim, self.frac_bits)

    def sigma_of(self, attacker_multiplier: float) -> float:
        """Return m C/(sqrt(2) R): both servers' noise counts."""
        return attacker_multiplier * self.client_clip / (math.sqrt(2) * self.record_clip)

    def noise_to_signal(self, sigma: float) -> float:
        """Return sqrt(2 T) sigma R over T min(q p N R, q n C)."""
        per_round = self.q * min(self.p * self.n_records * self.record_clip, self.n_clients * self.client_clip)
        return _ratio(math.sqrt(2 / self.rounds) * sigma * self.record_clip, per_round)

    def alternatives(self) -> list["PrecadTask"]:
        """Return T, T/2, .. with C, C/2, .., four halvings of each at most."""
        clips = [self.client_clip / 2**i for i in range(_HALVINGS + 1)]
        return [replace(self, rounds=T, client_clip=C) for T in _halved(self.rounds) for C in clips]


@dataclass(frozen=True, kw_only=True, slots=True)
class CentralTask:
    """Central DP: updates of whole users clipped to S and noised by sigma S; epsilon and attackers are about users."""

    q: float
    rounds: int
    n_users: int
    delta: float

    def __post_init__(self) -> None:
        require_probability("q", self.q)
        require_count("rounds", self.rounds, at_least=1)
        require_count("n_users", self.n_users, at_least=1)
        require_delta(self.delta)

    @property
    def slack(self) -> float:
        """Return nothing: a trusted server adds the noise."""
        return 0.0

    @property
    def client_clip(self) -> None:
        """None: S is the unit of noise and signal alike, and cancels."""
        return

    @property
    def attacked(self) -> tuple[float, int]:
        """Return the rate at which an attacker is drawn, and the rounds in which it can be."""
        return self.q, self.rounds

    @property
    def protected(self) -> tuple[float, int, int]:
        """Return every single user, in every round with probability q."""
        return self.q, self.rounds, 1

    def least_sigma(self, epsilon: float, rounds: int) -> float | None:
        """Return the least sigma that keeps epsilon of a user over so many rounds; None if there is none."""
        return least_sigma_for_epsilon(epsilon, self.q, rounds, self.delta)

    def sigma_of(self, attacker_multiplier: float) -> float:
        """Return the attacker's multiplier itself: an attacker is a user."""
        return attacker_multiplier

    def noise_to_signal(self, sigma: float) -> float:
        """Return sqrt(T) sigma S over T q n S."""
        return _ratio(sigma / math.sqrt(self.rounds), self.q * self.n_users)

    def alternatives(self) -> list["CentralTask"]:
        """Return T, T/2, .., four halvings at most."""
        return [replace(self, rounds=T) for T in _halved(self.rounds)]


Task = PrecadTask | CentralTask
"""A training whose noise is to be chosen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """`attackers` tolerated by a prediction with F_A against F_B, at epsilon <= `epsilon`, with signal left."""

    attackers: int
    epsilon: float
    FA: float
    FB: float
    threat: Threat = Threat.ADD
    most_noise_to_signal: float = 1.0
    """Beyond this the wish counts as out of reach: by default noise as large as the largest signal."""

    def __post_init__(self) -> None:
        require_count("attackers", self.attackers)
        require_positive("epsilon", self.epsilon)
        require_probability("FA", self.FA)
        require_probability("FB", self.FB)
        require_positive("most_noise_to_signal", self.most_noise_to_signal)


@dataclass(frozen=True, slots=True)
class Plan:
    """The least sigma for a wish with these rounds and clips. Label: bound, as long as F_A and F_B hold."""

    rounds: int
    client_clip: float | None
    sigma: float
    decided_by: str
    """`attackers` or `epsilon`: which of the two asked for this much."""
    noise_to_signal: float


def least_multiplier_for_attackers(k: int, FA: float, FB: float, q: float, rounds: int, threat: Threat) -> float | None:
    """Return the least noise over an attacking unit's clip, to 1e-3 from above, with which a prediction survives k of
    them.

    None if there is none up to 10^4, or the lead is none; LEAST_MULTIPLIER if that suffices. Exact method, a bound.
    """
    require_count("k", k)
    require_probability("FA", FA)
    require_probability("FB", FB)
    return _least_multiplier(k, float(FA), float(FB), float(q), rounds, Threat(threat)) if FA > FB else None


@functools.lru_cache(maxsize=4096)
def _least_multiplier(k: int, FA: float, FB: float, q: float, rounds: int, threat: Threat) -> float | None:
    def margin(multiplier: float) -> float:
        training = Training(SampledGaussian(q, multiplier), rounds)
        return attacked_bounds(FA, k, training, threat)[0] - attacked_bounds(FB, k, training, threat)[1]

    # k q sqrt(T) over the multiplier is the parameter of a Gaussian limit, in which half the lead is what may be lost
    lead = float(ndtri(min(FA, 1 - 1e-9)) - ndtri(max(FB, 1e-9)))
    guess = (1 if threat is Threat.ADD else 2) * k * q * math.sqrt(rounds) / max(lead / 2, 1e-9)
    return _least(margin, guess)


@functools.lru_cache(maxsize=4096)
def least_sigma_for_epsilon(
    epsilon: float,
    rate: float,
    rounds: int,
    delta: float,
    slack: float = 0.0,
    *,
    together: int = 1,
    beside: tuple[tuple[Event | None, int | None], ...] = (),
) -> float | None:
    """Return the least sigma that keeps epsilon, to 1e-3 from above; None if there is none up to 10^4.

    slack: what the protocol takes from delta; None also where that is all of it. together: units, each drawn by itself,
    that epsilon is of.

    beside: other rounds that count as well, by kind, None for a number that is not known.

    By `precad.dp.accountants.privacy_loss`, a bound like PLD's and faster where every sigma is a new one.
    """

    if (left := left_of_delta(delta, epsilon, slack)) <= 0:
        return None

    def margin(sigma: float) -> float:
        found = max(
            loss_distribution(together, rate, sigma, rounds, direction).epsilon(left) for direction in Direction
        )
        return math.log(epsilon) - math.log(min(found, 1e9) + 1e-9)

    if beside and rate and rounds:
        return _least_beside(epsilon, SampledGaussian(rate, 1.0, together), rounds, left, beside)
    if rate == 0 or rounds == 0:
        return LEAST_MULTIPLIER
    if rate == 1:
        return _least_without_sampling(epsilon, SampledGaussian(1.0, 1.0, together), rounds, left)
    return _least(margin, together * rate * math.sqrt(rounds) / mu_from_eps_delta(epsilon, left))


def _least_without_sampling(epsilon: float, event: SampledGaussian, rounds: int, left: float) -> float | None:
    """Return the least multiplier of such rounds that keeps epsilon at `left` of delta, as ledgers round it up."""
    found, step = event.group_size * math.sqrt(rounds) / mu_from_eps_delta(epsilon, left), _ROOM
    while found <= _MOST_MULTIPLIER:
        if composed_epsilon([(replace(event, noise_multiplier=found), rounds)], left) + _ROOM < epsilon:
            return found
        found, step = found * (1 + step), 2 * step
    return None


def _least_beside(
    epsilon: float,
    event: SampledGaussian,
    rounds: int,
    left: float,
    beside: tuple[tuple[Event | None, int | None], ...],
) -> float | None:
    """Return the least multiplier of such rounds that keeps epsilon at `left` of delta, beside other rounds."""
    known = [(other, n) for other, n in beside if n is not None]
    if len(known) < len(beside) or not composed_epsilon(known, left) < epsilon:
        return None

    def margin(sigma: float) -> float:
        found = composed_epsilon([(replace(event, noise_multiplier=sigma), rounds), *known], left)
        return math.log(epsilon) - math.log(min(found, 1e9) + 1e-9)

    return _least(margin, event.group_size * event.sampling_rate * math.sqrt(rounds) / mu_from_eps_delta(epsilon, left))


def _least(margin: Callable[[float], float], guess: float) -> float | None:
    """Return the least noise with a positive margin, of which more noise leaves more; to 1e-3 from above.

    None if there is none up to 10^4; LEAST_MULTIPLIER if that suffices.
    """
    low = high = min(max(guess, LEAST_MULTIPLIER), _MOST_MULTIPLIER)
    while not margin(high) > 0:
        if high >= _MOST_MULTIPLIER:
            return None
        low, high = high, min(1.25 * high, _MOST_MULTIPLIER)
    while margin(low) > 0:
        if low <= LEAST_MULTIPLIER:
            return LEAST_MULTIPLIER
        low, high = max(low / 1.25, LEAST_MULTIPLIER), low
    found = math.exp(brentq(lambda x: margin(math.exp(x)), math.log(low), math.log(high), xtol=5e-4))
    while not margin(found) > 0:  # by at most the root finder's tolerance, and then from above
        found *= 1 + 3e-4
    return found


def plan(wish: Wish, task: Task) -> Plan | None:
    """Return the least sigma that reaches the wish with the rounds and clips of this task; None if none does."""
    multiplier = least_multiplier_for_attackers(wish.attackers, wish.FA, wish.FB, *task.attacked, wish.threat)
    if multiplier is None:
        return None
    for_attackers = task.sigma_of(multiplier)
    if (for_epsilon := task.least_sigma(wish.epsilon, task.protected[1])) is None:
        return None
    sigma = max(for_attackers, for_epsilon)
    decided_by = "attackers" if for_attackers > for_epsilon else "epsilon"
    return Plan(task.rounds, task.client_clip, sigma, decided_by, task.noise_to_signal(sigma))


def search(wish: Wish, task: Task) -> list[Plan]:
    """Return the plan of every alternative to the task, the one that leaves most of the signal first. Empty: none
    does."""
    found = [made for other in task.alternatives() if (made := plan(wish, other)) is not None]
    return sorted(found, key=lambda made: made.noise_to_signal)


def frontier(ks: list[int], wish: Wish, task: Task) -> dict[int, Plan | None]:
    """Return the best plan for each number of attackers, the rest of the wish as it is; None where none exists."""
    return {k: next(iter(search(replace(wish, attackers=k), task)), None) for k in ks}


def _halved(rounds: int) -> list[int]:
    return sorted({max(1, rounds >> i) for i in range(_HALVINGS + 1)}, reverse=True)


def _ratio(noise: float, signal: float) -> float:
    return noise / signal if signal > 0 else math.inf
