"""The task's algorithm as a deployment runs it: clients, two servers, a norm check, whoever's noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Final

from precad.clients.errors import ArgumentError
from precad.clients.training.round_update import Participant, require_runnable, round_updates
from precad.dp.accountants.pld import Unit, View
from precad.dp.accountants.task_cost import Level
from precad.dp.conditions import AGAINST, beside_earlier
from precad.dp.noise.correlated import SCALE_BITS, correlate
from precad.dp.task_privacy import DRAWN_OR_NOT, DRAWS_HIDDEN, task_cost, task_privacy
from precad.lab.simulation.algorithms.algorithm import Algorithm, Parameters, RoundOutcome
from precad.lab.simulation.config import SimulationSettings
from precad.lab.simulation.federation import Federation, Vector
from precad.lab.simulation.guarantee import Guarantee
from precad.lab.simulation.randomness import of_servers
from precad.lab.simulation.two_servers import CleartextServers, Proposed, TwoServers, mpc_servers
from precad.mpc.crypten.bridge import SumFunction
from precad.mpc.crypten.named import named_function
from precad.mpc.errors import FunctionRefusedError, raised_as
from precad.mpc.ring import RingArray
from precad.protos.task.algorithms import AS_DEPLOYED, BUDGETS, OF_AN_ALGORITHM
from precad.protos.task.evaluation import is_due, n_due
from precad.protos.task.task import Task
from precad.protos.task.trim_fields import Tested

_HIDDEN: Final = ", of a client whose draw nobody else learns"


class Deployed(Algorithm):
    """The round of a deployment, integer for integer, of any `task.algorithm`.

    Clients compute by `precad.clients.training.round_update`, as their processes do; malicious ones add no noise of
    their own. What the algorithm needs to know is in `[task]`.
    """

    name: ClassVar[str] = AS_DEPLOYED
    budgets: ClassVar[tuple[str, ...]] = BUDGETS
    has_two_servers: ClassVar[bool] = True
    is_of_any_task: ClassVar[bool] = True

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        require_runnable(self.task, federation.engine)
        self._privacy = task_privacy(self.task)
        self._costs = [task_cost(self.task, tasks) for tasks in federation.earlier or ((),)]
        """By server, where their ledgers count earlier tasks."""
        self._servers: TwoServers = self._make_servers()
        self._outputs: dict[int, list[RingArray]] = {0: [], 1: []}
        """The last noise of each server, the newest first, where it is correlated."""
        self._function = _function_of(self.task)
        rule = self.task.trim_rule
        self._trim_count = 0 if rule is None else rule.first_count
        """F of the coming round, where the task's servers trim."""
        self._next_noise = 0
        """The round that these outputs come before."""

    def _make_servers(self) -> TwoServers:
        """Raises ArgumentError for settings that a deployment has not, or has in `[task]`."""
        for name in ("validation", "client_clipping", *OF_AN_ALGORITHM):
            if (field := SimulationSettings.model_fields.get(name)) is None:
                continue  # of deployments alone
            if getattr(self.settings, name) != (default := field.default):
                where = f" (task.{name} says it)" if name in OF_AN_ALGORITHM else ""
                raise ArgumentError(
                    f"simulation.{name}: expected {default!r} in a deployment's round{where}, "
                    f"found {getattr(self.settings, name)!r}"
                )
        if self.settings.servers == "mpc":
            return mpc_servers(self.task)
        return CleartextServers(self.task, has_validation=self.task.checks_norms)

    def run_round(self, t: int, parameters: Parameters, chosen: Sequence[str]) -> RoundOutcome:
        """Run the task's algorithm at every chosen client, then Algorithm 1, lines 4 to 6."""
        task = self.task
        checked = self._servers.check_and_sum(t, self._uploads(t, parameters, chosen), self._proposed(t))
        total = checked.total if self._function is None else self._function.in_the_clear(checked.total)
        if not task.may_release(len(checked.accepted)):
            total = total * 0
        if task.noise_std_on_grid > 0:
            for noise in self._noise_of_servers(t, checked.test):
                total = total + noise
        self._take_in(checked.test)
        return RoundOutcome(self._updated(parameters, total, len(checked.accepted)), checked.accepted, checked.rejected)

    def _proposed(self, t: int) -> Proposed | None:
        """Return what the test of round t depends on; None of a task without."""
        if (rule := self.task.trim_rule) is None:
            return None
        scale = rule.mechanism.margin_scale
        of_a, of_b = (server.margin_noise(scale) for server in of_servers(self.federation.randomness, t))
        return Proposed(self._trim_count, (of_a, of_b))

    def _take_in(self, test: Tested | None) -> None:
        """Move F by the outcome of a round's test."""
        if test is not None and (rule := self.task.trim_rule) is not None:
            self._trim_count = rule.next_count(test.trim_count, has_passed=test.has_passed)

    def state(self) -> tuple[float, ...]:
        """Return F of the coming round, where the task's servers trim."""
        return (self._trim_count,) if self.task.rules.trims else ()

    def restore(self, state: tuple[float, ...]) -> None:
        """See Algorithm."""
        if len(state) != int(self.task.rules.trims):
            raise ArgumentError(
                f"the state of {self.name!r}: expected F of a task that trims, found {len(state)} numbers"
            )
        self._trim_count = int(state[0]) if state else 0

    def _noise_of_servers(self, t: int, test: Tested | None = None) -> list[RingArray]:
        """Return both servers' noise of round t, (d,) each, after a test that of its branch.

        All rounds are one block of correlated noise. A training that is resumed draws what came before again.
        """
        task, draws = self.task, self.federation.randomness
        if task.noise_bands == 1:
            std = task.noise_std_on_grid
            if test is not None and (rule := task.trim_rule) is not None:
                std = rule.mechanism.noise_std(has_passed=test.has_passed)
            return [server.noise(std, task.dim) for server in of_servers(draws, t)]
        if t != self._next_noise:
            self._outputs, self._next_noise = {0: [], 1: []}, 0
        std = math.ldexp(task.noise_std_on_grid, SCALE_BITS)
        for coming in range(self._next_noise, t + 1):
            for server, past in zip(of_servers(draws, coming), self._outputs.values(), strict=True):
                drawn = server.noise(std, task.dim)
                correlate(drawn, past, task.strategy)
                past[:] = [drawn, *past][: task.noise_bands - 1]
        self._next_noise = t + 1
        return [past[0] for past in self._outputs.values()]

    def _uploads(self, t: int, parameters: Parameters, chosen: Sequence[str]) -> dict[str, RingArray]:
        federation, task = self.federation, self.task
        groups = [[client] for client in chosen] if self.settings.batching == "client" else [list(chosen)]
        updates: dict[str, Vector] = {}
        for group in filter(None, groups):
            participants = [self._participant(t, client) for client in group]
            updates.update(zip(group, round_updates(task, parameters, participants, federation.engine), strict=True))
        updates = federation.attacked(t, parameters, updates, bound=task.enforced_bound, step=self.step_at(t))
        return federation.uploads(updates, is_clipped=True)

    def _participant(self, t: int, client: str) -> Participant:
        federation, drawn = self.federation, self.federation.drawn(t, client)

        def noise(step: int, std_on_grid: float, dim: int) -> RingArray:
            return federation.randomness.noise(t, f"{client}/{step}", std_on_grid, dim)

        return Participant(
            records=drawn.records,
            n_declared=self.task.clients[client],
            random_bytes=federation.randomness.records(t, client),
            record_rate=drawn.rate,
            noise=noise,
            adds_noise=not federation.is_malicious(client),
        )

    def guarantees(self, rounds: int, participation: Mapping[str, int]) -> list[Guarantee]:
        """Return the guarantees of the client that was in most rounds, in both views, as the servers' ledger has it
        (`precad.dp.task_privacy`).

        Where a whole client's epsilon has a budget, its guarantee stands first. Where the task hides draws, that of a
        whole client whose draw nobody else learns stands last.
        """
        privacy, most = self._privacy, max(participation.values(), default=0)
        evaluations = self._evaluations(rounds, participation)
        of_views = [
            Guarantee(
                unit=privacy.unit.value,
                group_size=privacy.group_size,
                against=against,
                epsilon=None
                if privacy.events[view] is None
                else max(cost.of_view(view, most, evaluations) for cost in self._costs),
                epsilon_if_discarded=None
                if privacy.events[view] is None
                else max(cost.view_if_discarded(view, most) for cost in self._costs),
                delta=self.task.delta,
                note=self._note(view),
            )
            for view, against in AGAINST.items()
        ]
        if Level.CLIENT in self._costs[0].budgets:
            suffix = DRAWN_OR_NOT if privacy.unit is Unit.CLIENT else ""
            of_views.insert(0, self._of_client(Level.CLIENT, suffix, rounds, evaluations))
        if Level.HIDDEN_CLIENT in privacy.every_round and self.settings.client_clipping:
            hidden = self._of_client(Level.HIDDEN_CLIENT, _HIDDEN, rounds, evaluations)
            of_views.append(replace(hidden, note=f"{DRAWS_HIDDEN}; {hidden.note}"))
        return of_views

    def _evaluations(self, rounds: int, participation: Mapping[str, int]) -> int:
        """Return how many evaluations there were. One that a budget refuses is the last that is due: it ends the
        training, as the servers' ledger does not charge it."""
        due, every = n_due(self.task.evaluation_every, rounds), self.task.evaluation_every
        return due - int(is_due(every, rounds) and not self.may_evaluate(rounds, participation))

    def _note(self, view: View) -> str:
        """Say on what a view's guarantee rests, and that it counts earlier tasks."""
        n = max(len(cost.earlier) for cost in self._costs)
        counted = f"counts {n} earlier task{'s' if n > 1 else ''} of the servers' ledgers" if n else ""
        earlier = [task for cost in self._costs for task in cost.earlier]
        return "; ".join(filter(None, (beside_earlier(self._privacy.rests_on[view], earlier, view), counted)))

    def _of_client(self, level: Level, suffix: str, rounds: int, evaluations: int) -> Guarantee:
        """Return the guarantee of any whole client, drawn or not, as the servers' ledger has it."""
        if_discarded = max(cost.level_if_discarded(level, rounds) for cost in self._costs)
        realised = max(cost.of_level(level, rounds, evaluations) for cost in self._costs)
        return Guarantee(
            unit="client",
            against=f"{AGAINST[View.CLIENTS_ONLY]}{suffix}",
            epsilon=min(if_discarded, realised),
            epsilon_if_discarded=if_discarded,
            delta=self.task.delta,
            note=self._note(View.CLIENTS_ONLY),
        )

    def may_start(self, rounds_done: int, participation: Mapping[str, int]) -> bool:
        """Decide as the servers' ledger: whoever is drawn, nobody's epsilon passes a budget of the task.

        Every client counts as drawn in every evaluation so far, which is at least as much as the ledger counts.
        """
        return self._is_within(max(participation.values(), default=0) + 1, rounds_done + 1, rounds_done)

    def may_evaluate(self, rounds_done: int, participation: Mapping[str, int]) -> bool:
        """Decide likewise."""
        return self._is_within(max(participation.values(), default=0), rounds_done, rounds_done)

    def _is_within(self, most: int, n_rounds: int, n_committed: int) -> bool:
        """Return whether every budget allows so many rounds of a client, and in all, with the evaluations so far."""
        evaluations = n_due(self.task.evaluation_every, n_committed)
        return all(
            (
                cost.of_view(key, most, evaluations)
                if isinstance(key, View)
                else cost.of_level(key, n_rounds, evaluations)
            )
            <= budget
            for cost in self._costs
            for key, budget in cost.budgets.items()
        )


def _function_of(task: Task) -> SumFunction | None:
    """Return the function of the sum that a task's servers evaluate. Raises ArgumentError."""
    if task.sum_function is None or task.sum_function_sha256 is None:
        return None
    named = (task.sum_function, task.sum_function_sha256, task.sum_function_arguments, task.dim)
    with raised_as(ArgumentError, FunctionRefusedError):
        return named_function(*named, is_bounded=not task.has_unbounded_sum)
