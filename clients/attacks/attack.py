"""Define the base of all attacks: a conduct that deviates somewhere on the way from records to upload.

    records -> on_records -> Algorithm 2 -> craft -> encode -> on_encoded -> share -> on_upload -> upload

Before the first round it is asked which records only attackers shall have (`hoarded`) and what each of them does
(`of_attacker`). Every method has an honest default, so that an attack is one class with the methods that it changes.
A simulation asks `craft` for the upload, a deployment `on_update`, unless the attack says `is_crafted`
(`precad.clients.attacks.deployed`). An attack that needs what only a simulation can hand out says so with
`is_simulated_only`. Uploads exist in a deployment alone: an attack that changes uploads is a
`precad.clients.attacks.uploads.Forger`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from precad.clients.records.records import Records
from precad.clients.training.conduct import Conduct
from precad.clients.training.projection import project
from precad.mpc import fixed_point
from precad.mpc.local.step import Rows
from precad.mpc.proved.field import FieldArray, P, to_integers
from precad.mpc.proved.prover import ProofMasks, prove_low_bits
from precad.mpc.proved.sizes import ProofSizes
from precad.mpc.ring import RingArray
from precad.protos.task.task import Task

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Knowledge:
    """Hold the most that a malicious client knows in a round: the omniscient attacker of the robustness literature."""

    parameters: NDArray[np.float32]
    """theta_t (d,)."""
    records: Records
    """Its own, after `on_records`."""
    update: Vector
    """The update that an honest client would make of `records`, (d,)."""
    honest: NDArray[np.float64]
    """The updates of the round's honest clients, before their encoding and without any noise of theirs (m, d). None of
    them in a deployment."""
    own: NDArray[np.float64]
    """The updates that the round's attackers would make if they were honest, this one's included (k, d)."""
    n_attackers: int
    """In this round, this one included; in a deployment as far as it knows."""
    n_clients: int
    """In this round; in a deployment the number that is expected."""
    bound: float
    """C where updates are checked or clipped, infinity where nobody bounds them."""
    step: float
    """Factor on a sum of updates before it moves the model: eta / W."""
    train: Callable[[int, float], Vector]
    """(steps, rate) to parameters (d,): so many steps of gradient descent from theta_t on samples of `records`,
    without clipping or noise."""
    gradient: Callable[[Vector, Records], Vector]
    """Parameters (d,) and records to the gradient of their mean loss there (d,), without clipping or noise."""
    project: Callable[[Vector], Vector]
    """Update (d,) to a point near it that the servers accept. The update itself where nobody bounds it."""
    random: np.random.Generator
    """Seeded by the simulation: an attack repeats with its run. Protects nobody."""


class Attack(Conduct):
    """Base of the malicious conducts: without noise of its own, and its norm is what `on_encoded` makes of it.

    `on_update` and `on_encoded` return something new and leave their argument as it was.
    """

    __slots__ = ()

    name: ClassVar[str] = ""
    """The key in `ATTACKS`."""
    is_simulated_only: ClassVar[bool] = False
    """Whether it needs more than its own data: a deployment refuses it."""
    is_crafted: ClassVar[bool] = False
    """Whether a deployment, too, takes what `craft` returns in place of what `on_update` does."""
    needs_company: ClassVar[bool] = False
    """Whether it makes its upload of the other attackers' updates. In a deployment they share a folder."""
    is_deployed_only: ClassVar[bool] = False
    """Whether it works on uploads: a simulation, which has none, refuses it."""
    needs_proofs: ClassVar[bool] = False
    """Whether it works on what only mode `proved` has; a deployment of another mode refuses it."""

    @property
    def follows_protocol(self) -> bool:
        """Say whether only its records are an attacker's, and the client adds its noise like an honest one."""
        return False

    @property
    def is_omniscient(self) -> bool:
        """Say whether it reads the honest clients' updates, which a deployment hands to nobody."""
        return self.is_simulated_only

    def of_attacker(self, i: int) -> Self:
        """Return the attack of the i-th malicious client of its kind, from 0 on, where they do not all do the same."""
        return self

    def hoarded(self, records: Records) -> NDArray[np.bool_]:
        """Return which of these records no honest client shall have (n,).

        They go to every malicious one, where one data set is dealt to all clients.
        """
        return np.zeros(len(records), dtype=np.bool_)

    def on_update(self, update: Vector) -> Vector:
        """Return what goes into the encoding in place of the honest update (d,), which has norm <= C."""
        return update.copy()

    def encode(self, update: Vector, task: Task) -> RingArray:
        """Round to the grid, whatever the norm, and share what `on_encoded` makes of it.

        Raises: ArgumentError; MpcError where what `on_update` returned does not fit the ring.
        """
        shared = self.on_encoded(fixed_point.encode(update, task.frac_bits))
        return to_integers(np.mod(shared, P).astype(np.uint64)) if task.is_proved else shared

    def prove(self, encoded: RingArray, rows: Rows, sizes: ProofSizes, masks: ProofMasks) -> FieldArray:
        """Return a proof of whatever was shared: of a number that does not fit its bits, the low bits."""
        return prove_low_bits(encoded, rows, sizes, masks)

    def on_encoded(self, encoded: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return what is shared in place of the encoded update: words of Z_2^64 (d,), in [-2^63, 2^63)."""
        return encoded.copy()

    def craft(self, known: Knowledge) -> Vector:
        """Return what goes into the encoding (d,), as `on_update`, for an attacker that knows more than its update."""
        return self.on_update(known.update)

    def success_records(self, test: Records) -> Records | None:
        """Return records whose labels are what the attacker wants predicted: accuracy on them is its success. None
        where the attack has no such aim."""
        return None


def hoards(attack: Attack) -> bool:
    """Return whether there are records that it wants no honest client to have."""
    return type(attack).hoarded is not Attack.hoarded


def crafts(attack: Attack) -> bool:
    """Return whether it uploads what `craft` makes of the round, and not its client's own update or what it makes of
    that."""
    return (attack.is_simulated_only or type(attack).is_crafted) and not attack.follows_protocol


def within(vector: Vector, bound: float) -> Vector:
    """Return `vector`, brought into the ball of radius `bound` if it is outside: outside it would be refused."""
    return vector if math.isinf(bound) else project(vector, bound)
