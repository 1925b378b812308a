"""Describe one round of a task, by its algorithm, for those whom it protects: ledgers are opened with the result.

    precad            servers add N(0, (sigma R)^2) each           a record       Poisson(p), sigma and sqrt(2) sigma
    user-dp-fedavg    servers add N(0, (sigma C)^2) each           a whole client no sampling, sigma and sqrt(2) sigma
    tsgd-ptr          servers add Laplace, then Gaussian noise     a whole client no sampling, propose-test-release
    tsgd-gaussian     servers add N(0, (sigma C)^2) each           a whole client no sampling, sigma and sqrt(2) sigma
    ins-dp-fedavg     the client adds N(0, (sigma R)^2), V times   a record       Poisson(p), sigma, V steps a round
    local-dp          the client adds N(0, (sigma R)^2)            a record       Poisson(p), sigma
    distributed-dp    tau clients add N(0, (sigma R)^2 / tau)      a record       Poisson(p), sigma
    non-private       nobody adds anything; fedavg, krum alike     a record       nothing is proved

The first multiplier is against one server with any clients, the second against clients only; one alone holds for both.
Each is of a round that the client takes part in. A record's multiplier counts what rounding adds to its sensitivity
(`precad.dp.accountants.pld.effective_noise_multiplier`). A whole client's update is rounded toward zero and then
checked, so C bounds it as it is.

With `record_bins` = T each record of a `precad` task is in exactly one of the T rounds of an epoch, in place of
Poisson(p). Its figures are of whole epochs (`precad.dp.accountants.balls_in_bins`).

With `records_per_person` = k every figure of a record is of k records of one person together, all of one client. They
are drawn one by one, each adds at most R, and `precad.dp.accountants.group_mixture` is exact for them.

For a whole client no round is amplified by the draw of clients, in `user-dp-fedavg` as in the level that `precad` has
beside its records. Servers know who was drawn. So may clients. With a dealer, an invitation names the place of its
client among those drawn, in the order of ids. Two clients that collude can count who is between them. Adding or
removing a client means that its updates are there or are zero; that it was drawn is hidden from nobody. Our
derivation, from the wire format (docs/reference/protocol.md, sections 7 and 9).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from precad.dp.accountants.bins_event import BinnedGaussian
from precad.dp.accountants.calibration import short_noise_multiplier
from precad.dp.accountants.composed import Beside
from precad.dp.accountants.earlier_rounds import EarlierTask
from precad.dp.accountants.pld import (
    Event,
    PldAccountant,
    PrivacyAccountant,
    Release,
    SampledGaussian,
    TwoStageSampledGaussian,
    Unit,
    View,
    effective_noise_multiplier,
    round_event,
)
from precad.dp.accountants.precad_client import client_noise_multiplier
from precad.dp.accountants.ptr_event import SampledProposeTestRelease
from precad.dp.accountants.slack import with_slack
from precad.dp.accountants.task_cost import Evaluations, Level, TaskCost
from precad.dp.conditions import OF_DEALT_STEPS, OF_SERVERS, Evaluated, beside_earlier, must_be_said, on_a_function
from precad.dp.noise.correlated import Strategy


class AlgorithmRules(Protocol):
    """Answer what the privacy of a round depends on; a row of `precad.protos.task.algorithms` does."""

    @property
    def is_default(self) -> bool: ...
    @property
    def is_private(self) -> bool: ...
    @property
    def servers_add_noise(self) -> bool: ...
    @property
    def clients_share_noise(self) -> bool: ...
    @property
    def protects_clients(self) -> bool: ...
    @property
    def drops(self) -> bool: ...


class TestedRounds(Protocol):
    """Say what a round of propose-test-release costs; `precad.protos.task.trim_fields.TrimRule` does."""

    def event(self, view: View) -> SampledProposeTestRelease:
        """Return a round as a client that was drawn meets it, against this adversary."""


class ReleasedUpdates(Protocol):
    """Say what a round releases that adds up few updates; `precad.protos.task.krum_fields.KrumRule` does."""

    @property
    def released(self) -> str: ...


class PublicParameters(Evaluated, Protocol):
    """Hold the parameters of a task that its privacy depends on; `precad.protos.task.task.Task` is one."""

    client_rate: float
    record_rate: float
    record_clip: float
    client_clip: float
    noise_multiplier: float
    dim: int
    frac_bits: int
    local_steps: int
    non_colluding: int
    delta: float
    rounds: int
    epsilon_budget_one_server: float | None
    epsilon_budget_clients_only: float | None
    epsilon_budget_client: float | None
    records_per_person: int
    record_bins: int | None
    servers_follow_protocol: bool
    min_separation: int
    noise_bands: int

    @property
    def rules(self) -> AlgorithmRules: ...
    @property
    def most_draws(self) -> int: ...
    @property
    def hides_draws(self) -> bool: ...
    @property
    def rounds_of_a_client(self) -> int: ...
    @property
    def delta_slack(self) -> float: ...
    @property
    def evaluation_round(self) -> PublicParameters | None: ...
    @property
    def most_evaluations(self) -> int: ...
    @property
    def trim_rule(self) -> TestedRounds | None: ...
    @property
    def krum_rule(self) -> ReleasedUpdates | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPrivacy:
    """One algorithm's rounds, as adversaries see them."""

    unit: Unit
    """The unit that `events` are about."""
    events: Mapping[View, Release | None]
    """A step as one unit of a client that takes part meets it; None: a step costs everything."""
    rests_on: Mapping[View, str]
    """Under which condition, in words that follow a semicolon."""
    says_conditions: bool = False
    """Whether no figure is printed without its condition."""
    is_local: bool = False
    """Whether what leaves a client is private by itself, so that both servers together learn no more."""
    steps_per_round: int = 1
    """How often `events` happens in a round."""
    every_round: Mapping[Level, Event] = field(default_factory=dict)
    """A round as units of any enrolled client, drawn or not, meet it, against clients only."""
    group_size: int = 1
    """How many records of one person, all of one client, the figures of a record are of together."""
    slack: float = 0.0
    """Part of delta that the protocol of one task takes, as eta (`precad.dp.accountants.slack`)."""
    evaluations: Evaluations | None = None
    """Evaluations among a task's rounds; None where there are none."""

    @property
    def said(self) -> dict[View, str]:
        """Return the condition that a printed figure of each view has beside it; empty where none is needed."""
        return {view: self.rests_on[view] if self.says_conditions else "" for view in View}

    def beside(self, earlier: Iterable[EarlierTask]) -> TaskPrivacy:
        """Return the same rounds, whose figures count earlier tasks: they rest on what those of each rest on."""
        tasks = [task for task in earlier if task.rests_on]
        return replace(
            self,
            rests_on={view: beside_earlier(why, tasks, view) for view, why in self.rests_on.items()},
            says_conditions=self.says_conditions or bool(tasks),
        )

    @property
    def most_evaluations(self) -> int:
        """Return how many evaluations a task of this kind has at most."""
        return 0 if self.evaluations is None else self.evaluations.most

    @property
    def of_training(self) -> TaskPrivacy:
        """Return the rounds of the training alone, as canaries are in no evaluation."""
        return replace(self, evaluations=None)

    def epsilon(self, view: View, rounds: int, delta: float, n_tasks: int = 1) -> float:
        """Return the proved bound for one unit of a client that took part in so many rounds; infinite where nothing is
        proved.

        All evaluations that a task can have count as well.

        n_tasks: in how many tasks of this kind the rounds were, each of which takes its part of delta.
        """
        return TaskCost(
            events=self.events,
            delta=delta,
            steps_per_round=self.steps_per_round,
            slack=n_tasks * self.slack,
            evaluations=self.evaluations,
        ).of_view(view, rounds, n_tasks * self.most_evaluations)


def task_privacy(task: PublicParameters) -> TaskPrivacy:
    """Return what one round is, by the table above, and what the task's protocol takes from delta."""
    found = _round_of(task)
    return replace(
        found,
        rests_on={view: f"{why}{on_a_function(task, view)}" for view, why in found.rests_on.items()},
        says_conditions=must_be_said(task),
        slack=task.delta_slack,
        group_size=task.records_per_person,
        evaluations=_evaluations_of(task),
    )


def _evaluations_of(task: PublicParameters) -> Evaluations | None:
    """Return what an evaluation is to the units that the task's rounds are about; None where there is none.

    Its C and its noise are its own. Some of a person's records are trained on and others are held out, so every figure
    counts both kinds of rounds. A whole client's sum is rounded toward zero within C, as its update is.
    """
    if (one := task.evaluation_round) is None:
        return None
    found, noise = _precad(one), (one.noise_multiplier, one.record_clip, one.client_clip)
    if not task.rules.protects_clients:
        events = {view: event for view, event in found.events.items() if isinstance(event, SampledGaussian)}
        return Evaluations(events=events, levels=found.every_round, most=task.most_evaluations)
    of_clients = {
        View.ONE_SERVER: SampledGaussian(1.0, client_noise_multiplier(*noise, n_servers=1)),
        View.CLIENTS_ONLY: SampledGaussian(1.0, client_noise_multiplier(*noise)),
    }
    levels: dict[Level, Event] = {**found.every_round}
    levels.pop(Level.DRAWN_RECORD)
    return Evaluations(events=of_clients, levels=levels, most=task.most_evaluations)


def _round_of(task: PublicParameters) -> TaskPrivacy:
    rules = task.rules
    if not rules.is_private:
        nothing = task.krum_rule.released if task.krum_rule is not None else "nothing is clipped or noised for it"
        return TaskPrivacy(unit=Unit.RECORD, events=dict.fromkeys(View), rests_on=dict.fromkeys(View, nothing))
    if task.trim_rule is not None:
        return _tsgd_ptr(task.trim_rule)
    if rules.servers_add_noise:
        return _user_dp_fedavg(task) if rules.protects_clients else _precad(task)
    return _distributed_dp(task) if rules.clients_share_noise else _own_noise(task)


def upload_events(task: PublicParameters, records_per_person: int) -> tuple[SampledGaussian | None, int]:
    """Return a step as one upload costs a person, all of whose records are of one client, and its number of steps.

    Where records are in bins, all uploads of an epoch together cost one such step. At worst, all of the person's
    records are in the same one of them, for all to see.

    Against one server that follows everything it is sent, whether or not the round is released, and against any number
    of other clients. Where tau clients share the noise, the client's own draw alone protects from these. That is
    N(0, (sigma R)^2 / tau), rounded with its update. Where the task protects whole clients, a person may change
    the client's update by twice its bound: from one update within C to another. No account of propose-test-release
    covers that, so there an upload costs everything. It does, too, where servers evaluate a function of the sum. How
    far a record moves that is the word of their operators, and its holder cannot see it kept.
    """
    privacy = task_privacy(task)
    if task.sum_function is not None:
        return None, 1
    if task.rules.clients_share_noise:
        own = _record_multiplier(task) / math.sqrt(task.non_colluding)
        return SampledGaussian(task.record_rate, own, records_per_person), privacy.steps_per_round
    event = privacy.events[View.ONE_SERVER]
    if event is None or isinstance(event, SampledProposeTestRelease):
        return None, 1
    if isinstance(event, BinnedGaussian):
        return SampledGaussian(1.0, event.noise_multiplier, records_per_person), 1
    if privacy.unit is Unit.CLIENT:
        return SampledGaussian(event.sampling_rate, event.noise_multiplier / 2), privacy.steps_per_round
    return replace(event, group_size=records_per_person), privacy.steps_per_round


def answer_event(evaluation: PublicParameters) -> SampledGaussian:
    """Return an evaluation as an answer costs a person, where code that nothing is known of counts it.

    Against one server, as of `upload_events`. A record may then change all that the code counts, from one answer within
    the bound C to another: by 2 C.
    """
    noise = evaluation.noise_multiplier, evaluation.record_clip, evaluation.client_clip
    return SampledGaussian(1.0, client_noise_multiplier(*noise, n_servers=1) / 2)


def task_cost(task: PublicParameters, earlier: Sequence[EarlierTask] = ()) -> TaskCost:
    """Return the task's cost by its rounds, budgets, and the rounds that it may lose.

    A deployment draws at most `most_draws` times: its T rounds, and those that may be lost.

    earlier: finished tasks of the same clients, which count as well.
    """
    privacy = task_privacy(task)
    return TaskCost(
        events=privacy.events,
        delta=task.delta,
        every_round=privacy.every_round,
        budgets=budgets_of(task),
        steps_per_round=privacy.steps_per_round,
        most_rounds=task.most_draws,
        separation=task.min_separation,
        slack=privacy.slack,
        earlier=tuple(one.of_groups(privacy.group_size) for one in earlier),
        evaluations=privacy.evaluations,
    )


def calibrated_noise(target_epsilon: float, task_of: Callable[[float], PublicParameters], *, at_least: float) -> float:
    """Return the least noise multiplier of four digits, not below `at_least`, that meets the target.

    The target is against one server, for one unit of a client. It is for all evaluations together with all of the
    task's T rounds that the client can be in.

    - task_of: the task with a given noise multiplier

    Raises: ValueError where no multiplier meets it.
    """

    def event(noise_multiplier: float) -> Release:
        found = task_privacy(task_of(noise_multiplier)).events[View.ONE_SERVER]
        if found is None:
            raise ValueError("target_epsilon: expected an algorithm that adds noise, found one that proves nothing")
        return found

    task = task_of(at_least)
    privacy = task_privacy(task)
    accountant: PrivacyAccountant = with_slack(PldAccountant(), privacy.slack)
    if privacy.evaluations is not None:
        one = privacy.evaluations.events[View.ONE_SERVER]
        accountant = with_slack(Beside(one, privacy.evaluations.most), privacy.slack)
        if (of_evaluations := accountant.epsilon(one, 0, task.delta)) >= target_epsilon:
            raise ValueError(
                f"target_epsilon: expected more than {of_evaluations:.4g}, what {privacy.most_evaluations} "
                f"evaluations cost, found {target_epsilon:g}: raise evaluation_noise"
            )
    steps = task.rounds_of_a_client * privacy.steps_per_round
    return short_noise_multiplier(target_epsilon, event, steps, task.delta, accountant, at_least=at_least)


def budgets_of(task: PublicParameters) -> dict[View | Level, float]:
    """Return the budgets that the task has."""
    limits: dict[View | Level, float | None] = {
        View.ONE_SERVER: task.epsilon_budget_one_server,
        View.CLIENTS_ONLY: task.epsilon_budget_clients_only,
        Level.CLIENT: task.epsilon_budget_client,
    }
    return {key: limit for key, limit in limits.items() if limit is not None}


DRAWS_HIDDEN: Final = "if they learn no draw but their own, by times or otherwise, and no round overran its period"
"""Condition of the level `hidden_client`, beside that of the view."""
DRAWN_OR_NOT: Final = ", of a client that is drawn or not"
"""Words that follow an adversary in a level of a task that protects whole clients."""


def _precad(task: PublicParameters) -> TaskPrivacy:
    events = {view: _record_event(task, view) for view in View}
    client_multiplier = client_noise_multiplier(task.noise_multiplier, task.record_clip, task.client_clip)
    if task.record_bins is not None:
        return _in_bins(task.record_bins, events, TwoStageSampledGaussian(task.client_rate, 1.0, client_multiplier))
    every_round: dict[Level, Event] = {
        Level.CLIENT: TwoStageSampledGaussian(task.client_rate, 1.0, client_multiplier),
        Level.DRAWN_RECORD: TwoStageSampledGaussian(
            task.client_rate, task.record_rate, events[View.CLIENTS_ONLY].noise_multiplier, task.records_per_person
        ),
    }
    every_round |= _hidden_client(task, client_multiplier)
    return TaskPrivacy(unit=Unit.RECORD, events=events, rests_on=OF_SERVERS, every_round=every_round)


def _in_bins(bins: int, rounds: Mapping[View, SampledGaussian], client: TwoStageSampledGaussian) -> TaskPrivacy:
    """Return the round of records that are each in one of so many successive rounds, by a secret uniform draw.

    rounds: with Poisson sampling. Every client is in every round, so that a record's figure against clients is also
    that of a record of any client.
    """
    events = {view: BinnedGaussian(bins, event.noise_multiplier) for view, event in rounds.items()}
    rests_on = {
        view: f"{why}; a record's figures count whole epochs of {bins} rounds" for view, why in OF_SERVERS.items()
    }
    return TaskPrivacy(unit=Unit.RECORD, events=events, rests_on=rests_on, every_round={Level.CLIENT: client})


def _hidden_client(task: PublicParameters, multiplier: float) -> dict[Level, Event]:
    """Return a whole client whose draw no other client learns, where the task hides it.

    Slots are labels of a shuffle, and challenges and invitations leave at fixed times. What clients see of a round is
    then the released model alone. It is of a sum with the client's update, at most C long, drawn with probability q.
    """
    return {Level.HIDDEN_CLIENT: SampledGaussian(task.client_rate, multiplier)} if task.hides_draws else {}


def _user_dp_fedavg(task: PublicParameters) -> TaskPrivacy:
    """The check makes C the sensitivity, and the honest servers' noise is sigma C or sqrt(2) sigma C.

    As in `round_event` the sum of two rounded draws needs std >= 8 steps of the grid, which a task's validation asks
    for. The level of a whole client is the draw, visibly, and then the client's update for certain.

    A sum without its F longest updates (`tsgd-gaussian`) moves with a client by at most C, too. What moves it is
    the client's update, or the shortest that was cut, which its coming brings back. Both figures hold while servers
    and dealer follow the protocol. A server that shifts ranks could have one client decide over many updates. A dealer
    that deals no bits could have one update count many times.

    Correlated noise makes a round a release of the same kind with a smaller multiplier (`precad.dp.noise.correlated`).
    It is the same in both views: what protects against one server protects against clients. Where clients take turns,
    no draw hides anybody, and no level is claimed.
    """
    one = Strategy.banded(task.noise_bands).multiplier_of_a_round(task.noise_multiplier)
    both = client_noise_multiplier(task.noise_multiplier, task.client_clip, task.client_clip)
    events = {
        View.ONE_SERVER: SampledGaussian(1.0, one),
        View.CLIENTS_ONLY: SampledGaussian(1.0, both if task.noise_bands == 1 else one),
    }
    turns = f"; its rounds at least {task.min_separation} apart" if task.min_separation > 1 else ""
    rests_on = dict.fromkeys(View, OF_DEALT_STEPS) if task.rules.drops else OF_SERVERS
    return TaskPrivacy(
        unit=Unit.CLIENT,
        events=events,
        rests_on={view: f"what its updates say, not that it took part; {rests_on[view]}{turns}" for view in View},
        every_round={}
        if turns
        else {Level.CLIENT: TwoStageSampledGaussian(task.client_rate, 1.0, both), **_hidden_client(task, both)},
    )


def _tsgd_ptr(rounds: TestedRounds) -> TaskPrivacy:
    """The margin, the branch and the sum cost what `precad.dp.trimmed.two_servers` proves. No level is claimed."""
    return TaskPrivacy(
        unit=Unit.CLIENT,
        events={view: rounds.event(view) for view in View},
        rests_on=dict.fromkeys(View, f"what its updates say, not that it took part; {OF_DEALT_STEPS}"),
    )


def _own_noise(task: PublicParameters) -> TaskPrivacy:
    """Sampled Gaussians at the client; clipping to C, shares, sums are post-processing. A round that fails before it is
    charged is none to one server, which cannot read what was uploaded; both together can. Source:
    docs/explanation/privacy.md, "Algorithms other than PRECAD"; Xie et al., CCS '23, Algorithms 2 and 3, with Poisson
    sampling."""
    event = SampledGaussian(task.record_rate, _record_multiplier(task), task.records_per_person)
    note = (
        "by the noise of its own client: both servers together learn no more while they follow the protocol and no "
        "round fails"
    )
    return TaskPrivacy(
        unit=Unit.RECORD,
        events=dict.fromkeys(View, event),
        rests_on=dict.fromkeys(View, note),
        is_local=True,
        steps_per_round=task.local_steps,
        every_round=_drawn_record(task) if task.local_steps == 1 else {},
    )


def _distributed_dp(task: PublicParameters) -> TaskPrivacy:
    """The draws of tau clients add up to N(0, (sigma R)^2); servers hold shares and open the sum alone.

    tau draws rounded to the grid add up to what one rounded draw is, up to terms of order tau exp(-(pi std)^2) in its
    law. With std >= 8 steps these terms are below 1e-260. Our derivation, as in
    `precad.dp.accountants.pld.round_event`.
    """
    note = (
        f"if of the uploads of every released round at least {task.non_colluding} are of clients that follow the "
        "protocol and collude with nobody, its own among them"
    )
    if task.servers_follow_protocol:  # mode `proved`: a server that deviates chooses whose uploads those are
        note += "; only while both servers follow the protocol, as `servers_follow_protocol` says"
    return TaskPrivacy(
        unit=Unit.RECORD,
        events=dict.fromkeys(
            View, SampledGaussian(task.record_rate, _record_multiplier(task), task.records_per_person)
        ),
        rests_on=dict.fromkeys(View, note),
        every_round=_drawn_record(task),
    )


def _drawn_record(task: PublicParameters) -> dict[Level, Event]:
    event = TwoStageSampledGaussian(
        task.client_rate, task.record_rate, _record_multiplier(task), task.records_per_person
    )
    return {Level.DRAWN_RECORD: event}


def noise_left(task: PublicParameters) -> float:
    """Return the share of the noise multiplier that rounding to fixed point leaves a record: R / (R + sqrt(d) 2^-f).

    1 for a whole client, whose update is rounded toward zero within C.
    """
    return 1.0 if task.rules.protects_clients else _record_multiplier(task) / task.noise_multiplier


def _record_multiplier(task: PublicParameters) -> float:
    return effective_noise_multiplier(task.noise_multiplier, task.record_clip, task.dim, task.frac_bits)


def _record_event(task: PublicParameters, view: View) -> SampledGaussian:
    return round_event(
        view,
        record_sampling_rate=task.record_rate,
        noise_multiplier=task.noise_multiplier,
        record_clip=task.record_clip,
        dim=task.dim,
        frac_bits=task.frac_bits,
        group_size=task.records_per_person,
    )
