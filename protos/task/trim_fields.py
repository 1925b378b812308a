"""Fields of a task whose servers leave out the longest updates: once a noisy test has passed (`tsgd-ptr`), or always.

R of the mechanism is C. `tsgd-gaussian` leaves out the F longest of every round, and noise is that of a sum of all.
With `tsgd-ptr` each server adds Laplace noise to the margin of every round, and Gaussian noise to a sum. The number F
of updates that are left out moves with the tests' outcomes, which both servers know.
Source: Wang et al., NeurIPS '22, Algorithms 2 and 3; by two servers as docs/reference/protocol-trimmed-sums.md says.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BaseModel, Field

from precad.protos.task.parameters import TaskParameters
from precad.protos.task.proved_fields import MODE as PROVED
from precad.protos.task.refusals import MIN_NOISE_STD_ON_GRID

if TYPE_CHECKING:
    from precad.dp.accountants.pld import View
    from precad.dp.accountants.ptr_event import SampledProposeTestRelease
    from precad.dp.trimmed.two_servers import JointProposeTestRelease

MOST_EXPECTED: Final = 512
"""Expected clients of a round at most: each pair of them takes a comparison of shared norms. A round of more than 4096,
which is no round of so many expected ones, ends the task."""
MOST_DEALT: Final = 1 << 28
"""Expected words of a round's trim tuples at most, of 8 bytes each, which the dealer sends B. It deals up to four
times as many."""
_FIRST_SHARE, _STEP_SHARE = 0.25, 0.02


class TrimFields(BaseModel, defer_build=True):
    """A part of `precad.protos.task.task.Task`. The text has them where they are not at their default."""

    trim_tau: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """`tsgd-ptr`: tau, the proposed sensitivity of the sum without its longest updates, as a share of C."""
    trim_noise: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """`tsgd-ptr`: b, the scale of each server's Laplace noise on the margin, in clients."""
    trim_failure: Annotated[float, Field(gt=0, lt=0.5)] = 1e-8
    """`tsgd-ptr`: delta0, the chance that a round's test passes although its margin is zero."""
    trim_count: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """`tsgd-ptr`: F of the first round, how many of the longest updates are left out. None: a quarter of q n. It falls
    after a passed test and rises after a failed one, up to q n or the first, whichever is more. `tsgd-gaussian`: F of
    every round."""
    trim_step: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """`tsgd-ptr`: by how much F moves. None: a fiftieth of q n, at least 1."""


@dataclass(frozen=True, slots=True)
class Tested:
    """Outcome of a round's test, alike at both servers."""

    noisy_margin: int
    """In steps of 2^-20 clients."""
    has_passed: bool
    trim_count: int
    """F of the round: how many of the longest updates were left out, if the test passed."""

    @property
    def fields(self) -> dict[str, Any]:
        """Return it as the store and the audit log have it."""
        return {"noisy_margin": self.noisy_margin, "has_passed": self.has_passed, "trim_count": self.trim_count}


@dataclass(frozen=True)
class TrimRule:
    """The test of a task's rounds, and how F follows from what was released."""

    task: TaskParameters

    @cached_property
    def mechanism(self) -> JointProposeTestRelease:
        """Return one server's part in a round: its noise, the threshold, and what a round costs. F does not matter."""
        from precad.dp.trimmed.propose_test_release import ProposeTestRelease
        from precad.dp.trimmed.two_servers import JointProposeTestRelease

        task = self.task
        return JointProposeTestRelease(
            ProposeTestRelease(
                clip=task.client_clip,
                frac_bits=task.frac_bits,
                tau=task.trim_tau,
                trim_count=self.first_count,
                laplace_scale=task.trim_noise,
                test_failure=task.trim_failure,
                noise_multiplier=task.noise_multiplier,
            )
        )

    def event(self, view: View) -> SampledProposeTestRelease:
        """Return a round as a client that was drawn meets it, against this adversary."""
        return self.mechanism.event(view)

    @property
    def first_count(self) -> int:
        """Return F of the first round."""
        return first_count(self.task)

    def tested(self, noisy_margin: int, trim_count: int) -> Tested:
        """Return what a round released that opened this margin, in steps of 2^-20."""
        return Tested(noisy_margin, self.mechanism.has_passed(noisy_margin), trim_count)

    def next_count(self, trim_count: int, *, has_passed: bool) -> int:
        """Return F after a round that had this F and released this outcome."""
        from precad.dp.trimmed.propose_test_release import next_trim_count

        given, expected = self.task.trim_step, self.task.expected_clients
        step = max(1, round(_STEP_SHARE * expected)) if given is None else given
        most = max(self.first_count, int(expected))
        return next_trim_count(trim_count, has_passed=has_passed, step=step, at_most=most)


def first_count(task: TaskParameters) -> int:
    """Return F of the first round: `trim_count`, or a quarter of the expected clients."""
    return round(_FIRST_SHARE * task.expected_clients) if task.trim_count is None else task.trim_count


def refuse_unranked(task: TaskParameters, shared: str, checked: str, compared: str, most_expected: int) -> None:
    """Refuse a task whose servers would rank secret updates that they cannot rank. Raises ValueError.

    shared, checked, compared: what has shares, what the check is for, and what takes a comparison, in words.
    """
    name = task.rules.name
    if task.mode == PROVED:
        raise ValueError(f"mode: expected one with a dealer with algorithm {name!r}, whose {shared} are shared there")
    if not task.checks_norms:
        raise ValueError(f"validation: expected 'norm' with algorithm {name!r}, whose {checked}")
    if task.expected_clients > most_expected:
        raise ValueError(
            f"client_rate: expected at most {most_expected} clients of a round with algorithm {name!r}, which compares "
            f"{compared}, found {task.expected_clients:g}"
        )
    if (words := task.expected_clients * (task.dim + 1)) > MOST_DEALT:
        raise ValueError(
            f"dim: expected at most 2^28 dealt words of a round with algorithm {name!r}, dim + 1 for each expected "
            f"client, found {words:.3g}"
        )


def refuse_trims(task: TaskParameters) -> None:
    """Refuse a trimmed sum in a task whose servers cannot compute or account for one. Raises ValueError."""
    if not (task.rules.trims or task.rules.drops):
        return
    refuse_unranked(task, "norms", "ranks are those of checked norms", "each pair of them", MOST_EXPECTED)
    if task.rules.drops:
        return
    if not task.trim_tau * task.noise_std_on_grid >= MIN_NOISE_STD_ON_GRID:
        raise ValueError(
            "trim_tau * noise_multiplier * client_clip * 2^frac_bits: expected at least 8, the noise of a passed test "
            f"on the grid, found {task.trim_tau * task.noise_std_on_grid:.6g}"
        )
    if not task.trim_tau * task.client_clip * 2.0**task.frac_bits >= 2:
        raise ValueError(f"trim_tau: expected at least two steps of the grid of C 2^f, found {task.trim_tau:g}")
