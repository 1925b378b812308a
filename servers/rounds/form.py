"""The seam between Algorithm 1 and a mode: how updates are shared, checked and opened.

`precad.servers.rounds.round` has the paper's order, the charge, the commit and the clock. A form has the steps that
differ: `precad.servers.rounds.dealt_form` with a dealer's tuples, and `precad.servers.rounds.proved_form` with clients'
proofs.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from precad.mpc import joint_coin
from precad.mpc.channel import Channel, Prefixed
from precad.mpc.joint_coin import CoinShare
from precad.mpc.prg import Label, Seed
from precad.mpc.proved.field import FieldArray
from precad.mpc.ring import RingArray
from precad.mpc.sharing import Party
from precad.protos.precad.v1 import aggregator_pb2
from precad.protos.task.task import Task
from precad.protos.task.trim_fields import Tested
from precad.servers.rounds.equipment import Compute, Links
from precad.servers.rounds.own_noise import OwnNoise
from precad.servers.rounds.states import Charged, Collecting, Locked, Proving, Validated
from precad.servers.rounds.transfers import Capacity
from precad.servers.store.state import TaskState
from precad.servers.supervision import to_the_end

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ground:
    """Everything that a round stands on, in every mode."""

    state: TaskState
    links: Links
    compute: Compute
    capacity: Capacity
    noise: OwnNoise

    @property
    def task(self) -> Task:
        """Return the task."""
        return self.state.task

    @property
    def party(self) -> Party:
        """Return which server this is."""
        return self.links.peer.party

    def round_task(self, t: int) -> Task:
        """Return the parameters of the round in flight: the task's, or those of an evaluation."""
        return self.state.round_task(t)

    def is_evaluation(self, t: int) -> bool:
        """Return whether the clients evaluate the model in the round in flight, and do not train it."""
        return self.round_task(t) is not self.task

    def noise_of(self, of_round: Task, test: Tested | None = None) -> RingArray:
        """Return this server's noise of a round on the grid, (d,): an evaluation's is independent of all other noise.

        After a test it is that of its branch. Raises StoreError.
        """
        if test is not None and (rule := of_round.trim_rule) is not None:
            std = rule.mechanism.noise_std(has_passed=test.has_passed)
            return self.compute.randomness.noise(std, of_round.dim)
        if of_round is self.task:
            return self.noise.draw()
        return self.compute.randomness.noise(of_round.noise_std_on_grid, of_round.dim)

    def invitation(
        self, t: int, slot: int, seed: Seed | None, peer_mask_seed_digest: bytes = b""
    ) -> aggregator_pb2.Invitation:
        """Return a client's invitation to the round in flight. seed: that this server gives it, if it gives one."""
        return aggregator_pb2.Invitation(
            task=self.state.store.task_id,
            round=t,
            slot=slot,
            dim=self.round_task(t).dim,
            evaluation=self.is_evaluation(t),
            model_digest=self.state.model.digest,
            deadline_s=self.task.submit_timeout_s,
            mask_seed=b"" if seed is None else seed.reveal(),
            n_committed=self.state.n_committed,
            peer_mask_seed_digest=peer_mask_seed_digest,
        )

    def label(self, t: int) -> Label:
        """Return the label of the round's streams."""
        return Label(self.state.store.task_id, t)

    def channel(self, t: int) -> Channel:
        """Return the lane, for steps of this round."""
        return Prefixed(self.links.lane, f"{self.state.store.task_id}/{t}")

    async def in_mpc_thread(self, function: Callable[..., T], *args: object) -> T:
        """Run a step in the one thread that does MPC."""
        return await asyncio.get_running_loop().run_in_executor(self.compute.thread, function, *args)

    async def selection_coin(self, t: int) -> Seed:
        """Toss the coin that draws the clients of round t.

        The number is used up when our half of the coin may leave. A server that left between two rounds takes no part
        in the first step, so it costs none.
        """
        context, coin = f"{self.state.store.task_id}/{t}/selection", self.compute.randomness.coin
        ours, theirs = await self.in_mpc_thread(joint_coin.commit, context, self.channel(t), coin)
        # before, all that has left is a hash of a coin that may be forgotten
        await to_the_end(self.state.store.reserve, t)
        return await self.in_mpc_thread(self._reveal, t, ours, theirs)

    def _reveal(self, t: int, ours: CoinShare, theirs: bytes) -> Seed:
        return joint_coin.reveal(ours, theirs, b"", self.channel(t))

    def chosen(self, coin: Seed, t: int) -> list[str]:
        """Return the clients that a coin draws, sorted by name."""
        return joint_coin.select_poisson(coin, self.label(t), self.state.in_turn(t), self.task.client_rate)


class Form(ABC):
    """One mode's steps, for the rounds of one meeting."""

    @property
    @abstractmethod
    def round(self) -> int | None:
        """Return the number of the round whose uploads are held, if there is one."""

    @abstractmethod
    async def select(self, t: int) -> Collecting:
        """Draw the round's clients, and open the intake of their uploads."""

    @abstractmethod
    async def invite(self, state: Collecting) -> frozenset[str]:
        """Invite the chosen ones that are connected, and return who they are."""

    @abstractmethod
    async def lock(self, state: Collecting) -> Locked:
        """Fix the uploads at both servers, and commit to the coin of the challenge."""

    async def challenge(self, state: Locked) -> Proving | None:
        """Show the coin to the clients, and open the intake of proofs. None where clients prove nothing."""
        return None

    async def await_proofs(self, state: Proving) -> None:
        """Wait for the proofs, and take no more of them."""
        return  # of a form without a challenge

    @abstractmethod
    async def validate(self, state: Charged) -> Validated:
        """Find one bit per client, alike at both servers, and this server's share of the sum of the valid."""

    @abstractmethod
    def release(self, state: Validated) -> RingArray | FieldArray:
        """Return what leaves this server; in place, since d words may be most of a server's memory.

        Nothing of the uploads leaves where there are too few of them to hide one another by the noise that clients add.
        """

    @abstractmethod
    def open(self, t: int, noisy_share: RingArray | FieldArray) -> RingArray:
        """Exchange the noisy shares. Return the noisy sum, integers, (d,), in the room of ours."""

    @abstractmethod
    def forget(self) -> None:
        """Drop the uploads of the round: its accepted sum is made, or nothing comes of it."""

    @abstractmethod
    def give_up(self) -> None:
        """Take nothing more, and drop the uploads once the step that may still read them is over."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what was fetched ahead; none of it is ever used."""
