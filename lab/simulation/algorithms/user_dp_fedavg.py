"""UserDP-FedAvg: clients train locally, a trusted server clips their updates and adds the noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from precad.dp.accountants.pld import PldAccountant, SampledGaussian
from precad.lab.simulation.algorithms.algorithm import Algorithm, Parameters, RoundOutcome
from precad.lab.simulation.federation import Federation, Vector
from precad.lab.simulation.guarantee import REALISED, Guarantee
from precad.lab.simulation.update_clipping import clipping_of
from precad.mpc import fixed_point


class UserDpFedAvg(Algorithm):
    """theta + eta / (q n) (sum_i clip_S(theta_i - theta) + N(0, (z S)^2)), theta_i after V local descent steps.

    S is the task's `client_clip`, z its `noise_multiplier`, eta its `learning_rate` (1: the average itself). The server
    clips, so that a malicious client moves the sum by S at most. `simulation.update_clipping` names other ways
    (`precad.lab.simulation.update_clipping`). Clients are drawn by Poisson sampling and the divisor is a public
    constant. The source draws a fixed number of clients and divides by it.
    Source: Xie, Long, Chen, Li, Chen and Li, "Unraveling the Connections between Privacy and Certified Robustness in
    Federated Learning Against Poisoning Attacks", CCS '23. It is Algorithm 1 there. Before it: McMahan, Ramage, Talwar
    and Zhang,
    "Learning Differentially Private Recurrent Language Models", ICLR '18.
    """

    name: ClassVar[str] = "user-dp-fedavg"
    trains_locally: ClassVar[bool] = True
    clips_updates: ClassVar[bool] = True

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        self.clipping = clipping_of(self.settings, self.task, federation.engine)
        self._event = SampledGaussian(self.task.client_rate, self.task.noise_multiplier)

    def run_round(self, t: int, parameters: Parameters, chosen: Sequence[str]) -> RoundOutcome:
        """Run the round. The server's part is on the integer grid, with exact noise."""
        task, federation = self.task, self.federation
        updates = federation.differences(t, parameters, chosen)
        updates = federation.attacked(t, parameters, updates, bound=self.clipping.known_bound, step=self.step_at(t))
        bound = self.clipping.bound(list(updates.values()))
        std = self.clipping.noise_multiplier * bound * float(2**task.frac_bits)
        total = federation.randomness.noise(t, "server", std, task.dim)
        for update in updates.values():
            total = total + fixed_point.encode(self.clipping.clipped(update, bound), task.frac_bits)
        self._learn(t, list(updates.values()))
        return RoundOutcome(self._moved(parameters, fixed_point.decode(total, task.frac_bits)), tuple(updates))

    def _learn(self, t: int, updates: Sequence[Vector]) -> None:
        """Learn from the noisy count of updates within the bound, where the way of clipping releases one."""
        count = self.clipping.count(updates)
        if count is not None:
            noise = self.federation.randomness.noise(t, "count", self.clipping.count_noise_std, 1)
            self.clipping.learn(count + int(noise[0]))

    def state(self) -> tuple[float, ...]:
        """Return the bound that was learnt, if one is."""
        return self.clipping.state()

    def restore(self, state: tuple[float, ...]) -> None:
        """See Algorithm."""
        self.clipping.restore(state)

    def guarantees(self, rounds: int, participation: Mapping[str, int]) -> list[Guarantee]:
        """Account a sampled Gaussian of multiplier z per round, what is learnt for the clipping included.

        Encoding rounds toward zero, so S bounds what is summed exactly.
        """
        why_not = self.clipping.why_not_private
        epsilon = None if why_not else PldAccountant().epsilon(self._event, rounds, self.task.delta)
        return [
            Guarantee(
                unit="client",
                against="any other clients",
                epsilon=epsilon,
                delta=self.task.delta,
                note=why_not or f"the server is trusted: it sees every update, and who takes part; {REALISED}",
            )
        ]
