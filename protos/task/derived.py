"""Derive what follows from a task's fields: bounds and noise on the grid, divisors, counts of rounds."""

from __future__ import annotations

import functools
import math
import operator
from functools import cached_property
from typing import TYPE_CHECKING, Final

from precad.dp.noise.correlated import Strategy
from precad.mpc.norm_bound import NormBound
from precad.mpc.parameters import Mode
from precad.protos.task.algorithms import RULES, AlgorithmRules
from precad.protos.task.audit_fields import AuditFields, canary_places
from precad.protos.task.bin_fields import BinFields
from precad.protos.task.convex_fields import FIXED_WORDS, ConvexFields, set_of
from precad.protos.task.core_fields import CoreFields
from precad.protos.task.evaluation import EvaluationFields
from precad.protos.task.function_fields import FunctionFields
from precad.protos.task.krum_fields import KrumFields, KrumRule
from precad.protos.task.learning import LearningFields
from precad.protos.task.proved_fields import ETA_OF_AN_UPLOAD, ProvedFields, eta
from precad.protos.task.proved_fields import MODE as PROVED
from precad.protos.task.quantile import BY_LAYER, LEARNT, QuantileRule, count_noise
from precad.protos.task.query import QueryFields
from precad.protos.task.record_fields import RecordFields
from precad.protos.task.server_step import ServerStepFields
from precad.protos.task.trim_fields import TrimFields, TrimRule, first_count
from precad.protos.task.turns import TurnFields
from precad.protos.task.validation_fields import ValidationFields

if TYPE_CHECKING:
    from precad.mpc.convex_set import ConvexSet
    from precad.mpc.proved.sizes import ProofSizes

_LOG_MARGIN: Final = 64 * math.log(2)
_OF_A_ROUNDED_DRAW: Final = 1 / 12
"""Variance that rounding adds to a server's noise, in steps of the grid."""


class DerivedFigures(
    CoreFields,
    RecordFields,
    LearningFields,
    ServerStepFields,
    ProvedFields,
    QueryFields,
    EvaluationFields,
    ValidationFields,
    AuditFields,
    TurnFields,
    TrimFields,
    KrumFields,
    FunctionFields,
    ConvexFields,
    BinFields,
):
    """Every field of a task, and what follows from them."""

    if TYPE_CHECKING:

        @property
        def evaluation_round(self) -> DerivedFigures | None:
            """See `precad.protos.task.task.Task`: a task itself."""

    @property
    def rules(self) -> AlgorithmRules:
        """Return what the algorithm asks of servers and clients."""
        return RULES[self.algorithm]

    @property
    def quantile_rule(self) -> QuantileRule | None:
        """Return how the bound of updates is learnt; None where it is not."""
        if self.update_clipping not in LEARNT:
            return None
        expected = self.expected_clients
        given, default = self.quantile_noise, count_noise(expected, self.noise_multiplier)
        return QuantileRule(
            clip=self.client_clip,
            frac_bits=self.frac_bits,
            noise_multiplier=self.noise_multiplier,
            count_noise=default if given is None else given,
            expected_clients=expected,
            quantile=self.quantile,
            rate=self.quantile_rate,
        )

    @property
    def trim_rule(self) -> TrimRule | None:
        """Return the test of the task's rounds; None where nothing is tested."""
        return TrimRule(self) if self.rules.trims else None

    @property
    def dropped_count(self) -> int | None:
        """Return F, how many of the longest updates every round leaves out; None where no round does so untested."""
        return first_count(self) if self.rules.drops else None

    @property
    def krum_rule(self) -> KrumRule | None:
        """Return which updates a round adds up; None where it is every accepted one."""
        return KrumRule(self) if self.rules.selects else None

    def n_summed(self, n_accepted: int) -> int:
        """Return how many updates are in the sum of a round with so many accepted ones, at most."""
        return n_accepted if (rule := self.krum_rule) is None else rule.n_kept(n_accepted)

    def divisor_of(self, n_accepted: int) -> float:
        """Return W of a round with so many accepted updates: a constant, but how many are added up by Krum's rule."""
        return self.divisor if self.krum_rule is None else max(1, self.n_summed(n_accepted))

    @property
    def n_parameters(self) -> int:
        """Return the number of the model's parameters, the first numbers of the task's vector, which has d."""
        return self.dim - (self.update_clipping in LEARNT) - self.n_canaries

    @property
    def n_canaries(self) -> int:
        """Return how many canaries the audit clients have together."""
        return sum(self.clients.get(client, 0) for client in self.audit_clients)

    @property
    def canary_coordinates(self) -> slice:
        """Return where the canaries' coordinates are in the task's vector: last."""
        return slice(self.dim - self.n_canaries, self.dim)

    @property
    def canaries_of(self) -> dict[str, range]:
        """Return which of these coordinates each audit client has."""
        return canary_places(self.audit_clients, self.clients)

    @property
    def clips_layers(self) -> bool:
        """Return whether a client clips its update layer by layer."""
        return self.update_clipping in BY_LAYER

    @cached_property
    def norm_bound(self) -> NormBound:
        """Return the parameters of the check of tuples. Raises ParameterError."""
        return NormBound(clip_norm=self.client_clip, dim=self.dim, frac_bits=self.frac_bits)

    @cached_property
    def convex_set(self) -> ConvexSet | None:
        """Return the set within the ball of radius C that each update has to lie in; None where it is the ball.

        Raises ParameterError, also where the file of its directions is not at hand.
        """
        return set_of(self)

    @property
    def update_set(self) -> NormBound:
        """Return what a check of tuples holds each upload against: `norm_bound`, or the smaller set. Raises as both."""
        return self.convex_set or self.norm_bound

    @cached_property
    def proof_sizes(self) -> ProofSizes:
        """Return the sizes of uploads and proofs in mode `proved`. Raises ParameterError."""
        from precad.mpc.proved.sizes import ProofSizes

        return ProofSizes(clip_norm=self.client_clip, dim=self.dim, frac_bits=self.frac_bits)

    @property
    def norm_check(self) -> NormBound | ProofSizes:
        """Return the parameters of the mode's own check of norms. Raises ParameterError."""
        return self.proof_sizes if self.is_proved else self.norm_bound

    @property
    def is_proved(self) -> bool:
        """Return whether clients prove their norms, and nobody deals tuples."""
        return self.mode == PROVED

    @property
    def hides_draws(self) -> bool:
        """Return whether rounds take as long whoever was drawn, and slots say nothing of it."""
        return self.is_proved and self.round_period_s is not None

    @property
    def challenge_after_s(self) -> float | None:
        """Return when challenges leave after the invitations, in a task that hides draws; None: as soon as they can.

        Half of the spare time after `submit_timeout_s`, so that the servers' work between them does not show. At most
        half of `proof_timeout_s`: clients wait for a challenge that long, and prove in what is left.
        """
        if not self.hides_draws or self.round_period_s is None:
            return None
        spare_s = self.round_period_s - self.submit_timeout_s - self.proof_timeout_s
        return self.submit_timeout_s + min(spare_s, self.proof_timeout_s) / 2

    @property
    def draws_ahead(self) -> int:
        """Return for how many coming rounds clients are drawn while others train: `batches_ahead`, if it has a use."""
        return 0 if self.is_proved else self.batches_ahead

    @property
    def noise_std_on_grid(self) -> float:
        """Return the standard deviation of each server's noise, in units of 2^-f; 0: servers add none.

        With `sum_function_factor` L it is L sigma R: sigma is the noise over the sensitivity of what is opened.
        """
        return self.sum_factor * self._noise_std_on_grid if self.rules.servers_add_noise else 0.0

    @property
    def strategy(self) -> Strategy:
        """Return how each server's noise is correlated over rounds."""
        return Strategy.banded(self.noise_bands)

    @property
    def client_noise_std_on_grid(self) -> float:
        """Return the standard deviation on the grid of the noise that a client adds by itself; 0 if it adds none.

        It is that of every step where there are several.
        """
        if not self.rules.clients_add_noise:
            return 0.0
        return self._noise_std_on_grid / math.sqrt(self.non_colluding if self.rules.clients_share_noise else 1)

    @property
    def noise_clip(self) -> float:
        """Return the bound that `noise_multiplier` is a multiple of: C or R, as the algorithm's row says."""
        return float(getattr(self, self.rules.noise_clip))

    @property
    def _noise_std_on_grid(self) -> float:
        return self.noise_multiplier * self.noise_clip * float(2**self.frac_bits)

    @property
    def update_bound(self) -> float:
        """Return what a client clips its update to: C, less the room for noise of its own that nobody clips.

        distributed-dp: C - std (sqrt(d) + sqrt(2 ln 2^64)) - sqrt(d) 2^-f / 2. The noise and its rounding exceed the
        room with probability at most 2^-64. For the norm of d normals is above sqrt(d) + t with probability at most
        exp(-t^2 / 2) (Gaussian concentration of a 1-Lipschitz function). So the check accepts whatever the records are,
        and its verdict says nothing of them. May be <= 0, which is a configuration error.
        """
        if not self.rules.clients_share_noise:
            return self.client_clip
        grid, root = math.ldexp(1.0, -self.frac_bits), math.sqrt(self.dim)
        room = self.client_noise_std_on_grid * (root + math.sqrt(2 * _LOG_MARGIN)) + root / 2
        return self.client_clip - room * grid * (1 + 2.0**-20)

    @property
    def divisor(self) -> float:
        """W = q * sum_i p_i N_i: the expected number of records in a round. A public constant, unlike the paper's
        divisor, which sums over the round's valid clients and reveals who they were. Canaries train nothing and do not
        count. Where clients send differences of models, W is the expected number of clients."""
        if self.rules.trains_locally:
            return self.expected_clients
        if self.record_rates:  # in the order of ids, which all parties know; `sum` adds otherwise from Python 3.12 on
            each = (self.rate_of(name) * n for name, n in sorted(self.clients.items()))
            return self.client_rate * functools.reduce(operator.add, each, 0.0)
        return self.client_rate * self.record_rate * (sum(self.clients.values()) - self.n_canaries)

    @property
    def expected_clients(self) -> float:
        """Return q n, or q n / b where clients take turns: the expected number of clients in a round."""
        expected = self.client_rate * len(self.clients)
        return expected if self.min_separation == 1 else expected / self.min_separation

    def rate_of(self, client: str) -> float:
        """Return p_i: the probability with which a record of this client enters a round that the client is in."""
        return self.record_rates.get(client, self.record_rate)

    def may_release(self, n_accepted: int) -> bool:
        """Return whether the sum of so many accepted uploads may be opened: distributed-dp needs tau of them, since
        fewer carry less noise than is accounted. If not, the round's sum is zero."""
        return not self.rules.clients_share_noise or n_accepted >= self.non_colluding

    def sum_bound(self, n_accepted: int) -> float:
        """Bound the norm of an opened sum of so many accepted updates, in units of 2^-f.

        n B + sqrt(2) s (sqrt(d) + 10) + sqrt(d), with B = C 2^f and s each server's noise. Each of the n updates that
        are added up is within B. The norm of d normals exceeds sqrt(d) + 10 with probability below e^-50 (Gaussian
        concentration), and rounding moves each server's noise by at most sqrt(d) / 2. Correlated noise has the reach of
        its strategy. A function of the sum makes it at most L times as long.
        Infinite where no norm is checked, or without L.
        """
        if not self.checks_norms or self.has_unbounded_sum:
            return math.inf
        root, (two_norm, one_norm) = math.sqrt(self.dim), self.strategy.reach(self.rounds)
        noise = math.sqrt(2) * two_norm * self.noise_std_on_grid * (root + 10) + one_norm * root
        longest = self.n_summed(n_accepted) * (math.isqrt(self.norm_check.threshold) + 1)
        return self.sum_factor * longest + noise

    @property
    def fixed_word(self) -> str | None:
        """Return the field of bounds that servers check by words which no coin draws, None where there are none."""
        return next((name for name in FIXED_WORDS if getattr(self, name)), None)

    @property
    def enforced_bound(self) -> float:
        """Return C; infinity where no server checks it."""
        return self.client_clip if self.checks_norms else math.inf

    @property
    def sum_noise_std(self) -> float:
        """Return the standard deviation of both servers' noise on each number of an opened sum, rounding included."""
        return math.ldexp(math.sqrt(2 * (self.noise_std_on_grid**2 + _OF_A_ROUNDED_DRAW)), -self.frac_bits)

    @property
    def most_lost_rounds(self) -> int:
        """Return `lost_rounds`, or where the task does not say, 3 and a tenth of the rounds, `batches_ahead` + 2 at
        least.

        An interruption loses the round in flight and those that were drawn ahead; so one alone never ends such a task.
        """
        return self.lost_rounds if self.lost_rounds is not None else max(3 + self.rounds // 10, self.draws_ahead + 2)

    @property
    def most_draws(self) -> int:
        """Return in how many rounds clients can be drawn at most, with those that are lost.

        A round begins while fewer than `most_lost_rounds` are lost. When it is lost, those drawn ahead of it are too.
        """
        return self.rounds + self.most_lost_rounds + max(self.draws_ahead - 1, 0)

    @property
    def rounds_of_a_client(self) -> int:
        """Return in how many of the T rounds a client can be drawn at most: T / min_separation, rounded up."""
        return -(-self.rounds // self.min_separation)

    @property
    def delta_slack(self) -> float:
        """Return what the mode itself takes from delta, as eta of `precad.dp.accountants.slack`; 0 but in `proved`.

        Where clients share the noise, the uploads of all whose noise counts take their part.
        """
        return self._n_noise_carriers * eta(self.rounds, self.most_evaluations) if self.is_proved else 0.0

    @property
    def _n_noise_carriers(self) -> int:
        """Return on how many clients' uploads a round's statement rests: one's own, and those that share its noise."""
        return self.non_colluding if self.rules.clients_share_noise else 1

    @property
    def most_evaluations(self) -> int:
        """Return how many evaluations by clients there are at most, those that are lost among them."""
        return 0 if self.evaluation_every is None else self.rounds // self.evaluation_every

    @property
    def upload_slack(self) -> float:
        """Return what one upload takes of `delta_slack`."""
        return self._n_noise_carriers * ETA_OF_AN_UPLOAD if self.is_proved else 0.0

    @property
    def wire_mode(self) -> Mode:
        """Return `mode` as `mpc` names it."""
        return Mode(self.mode)
