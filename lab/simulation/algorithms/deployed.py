"""The task's algorithm as a deployment runs it: clients, two servers, a norm check, whoever's noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from precad.clients.attacks.attack import crafts
from precad.clients.errors import ArgumentError
from precad.clients.training.round_update import Participant, require_runnable, round_updates
from precad.dp.accountants.pld import View
from precad.dp.task_privacy import task_cost, task_privacy
from precad.lab.simulation.algorithms.algorithm import Algorithm, Parameters, RoundOutcome
from precad.lab.simulation.config import SimulationSettings
from precad.lab.simulation.federation import Federation, Vector
from precad.lab.simulation.guarantee import Guarantee
from precad.lab.simulation.two_servers import CleartextServers, TwoServers, mpc_servers
from precad.mpc.ring import RingArray
from precad.protos.task.algorithms import AS_DEPLOYED, BUDGETS, OF_AN_ALGORITHM
from precad.protos.task.evaluation import n_due

_AGAINST: Final = {
    View.ONE_SERVER: "one aggregation server and any other clients",
    View.CLIENTS_ONLY: "any other clients, no server",
}


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
        self._refuse_rule()
        require_runnable(self.task, federation.engine)
        self._require_attacks_of_a_deployment()
        self._privacy = task_privacy(self.task)
        self._cost = task_cost(self.task)
        self._servers: TwoServers = self._make_servers()

    def _make_servers(self) -> TwoServers:
        """Raises ArgumentError for settings that a deployment has not, or has in `[task]`."""
        for name in ("validation", "client_clipping", *OF_AN_ALGORITHM):
            default = SimulationSettings.model_fields[name].default
            if getattr(self.settings, name) != default:
                where = f" (task.{name} says it)" if name in OF_AN_ALGORITHM else ""
                raise ArgumentError(
                    f"simulation.{name}: expected {default!r} in a deployment's round{where}, "
                    f"found {getattr(self.settings, name)!r}"
                )
        if self.settings.servers == "mpc":
            return mpc_servers(self.task)
        return CleartextServers(self.task, has_validation=self.task.checks_norms)

    def _require_attacks_of_a_deployment(self) -> None:
        """Raises ArgumentError for an attack that needs to know the model where uploads are not of its shape."""
        crafted = [attack.name for attack in self.federation.attacks.values() if crafts(attack)]
        if crafted and self.task.quantile_rule is not None:
            raise ArgumentError(
                "simulation.attack.kind: expected one that a deployment has, too, with "
                f"task.update_clipping = 'private-quantile', found {crafted[0]!r}"
            )

    def run_round(self, t: int, parameters: Parameters, chosen: Sequence[str]) -> RoundOutcome:
        """Run the task's algorithm at every chosen client, then Algorithm 1, lines 4 to 6."""
        task, draw = self.task, self.federation.randomness
        checked = self._servers.check_and_sum(t, self._uploads(t, parameters, chosen))
        total = checked.total
        if not task.may_release(len(checked.accepted)):
            total = total * 0
        if task.noise_std_on_grid > 0:
            for party in (0, 1):
                total = total + draw.noise(t, f"server-{party}", task.noise_std_on_grid, task.dim)
        return RoundOutcome(self._updated(parameters, total), checked.accepted, checked.rejected)

    def _uploads(self, t: int, parameters: Parameters, chosen: Sequence[str]) -> dict[str, RingArray]:
        federation, task = self.federation, self.task
        groups = [[client] for client in chosen] if self.settings.batching == "client" else [list(chosen)]
        updates: dict[str, Vector] = {}
        for group in filter(None, groups):
            participants = [self._participant(t, client) for client in group]
            found = round_updates(task, parameters, participants, federation.engine)
            updates.update(zip(group, found, strict=True))
        updates = federation.attacked(t, parameters, updates, bound=task.enforced_bound, step=self.step_at(t))
        return federation.uploads(updates, is_clipped=True)

    def _participant(self, t: int, client: str) -> Participant:
        federation = self.federation

        def noise(step: int, std_on_grid: float, dim: int) -> RingArray:
            return federation.randomness.noise(t, f"{client}/{step}", std_on_grid, dim)

        return Participant(
            records=federation.records[client],
            n_declared=self.task.clients[client],
            random_bytes=federation.randomness.records(t, client),
            record_rate=self.task.rate_of(client),
            noise=noise,
            adds_noise=not federation.is_malicious(client),
        )

    def guarantees(self, rounds: int, participation: Mapping[str, int]) -> list[Guarantee]:
        """Return the guarantees of the client that was in most rounds, in both views, as the servers' ledger has it
        (`precad.dp.task_privacy`)."""
        privacy, most = self._privacy, max(participation.values(), default=0)
        evaluations = n_due(self.task.evaluation_every, rounds)
        return [
            Guarantee(
                unit=privacy.unit.value,
                group_size=privacy.group_size,
                against=against,
                epsilon=None if privacy.events[view] is None else self._cost.of_view(view, most, evaluations),
                epsilon_if_discarded=None if privacy.events[view] is None else self._cost.view_if_discarded(view, most),
                delta=self.task.delta,
                note=privacy.rests_on[view],
            )
            for view, against in _AGAINST.items()
        ]

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
        cost, evaluations = self._cost, n_due(self.task.evaluation_every, n_committed)
        return all(
            (
                cost.of_view(key, most, evaluations)
                if isinstance(key, View)
                else cost.of_level(key, n_rounds, evaluations)
            )
            <= budget
            for key, budget in cost.budgets.items()
        )
