"""Fields of a task whose clients take turns, and of noise that is correlated over the rounds between two turns.

With `min_separation` = b the servers toss a coin once and deal every client a number below b. In round t only clients
of number t mod b may be drawn. So a client is in at most ceil(T / b) of T rounds, any two of them at least b apart.
Then noise may be correlated over up to b rounds (`precad.dp.noise.correlated`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Final

from pydantic import BaseModel, Field

from precad.dp.noise.correlated import MOST_BANDS, SCALE_BITS
from precad.protos.task.evaluation import BY_CLIENTS
from precad.protos.task.parameters import TaskParameters
from precad.protos.task.quantile import LEARNT
from precad.protos.task.refusals import MAX_NOISE_STD_ON_GRID


class TurnFields(BaseModel, defer_build=True):
    """A part of `precad.protos.task.task.Task`."""

    min_separation: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """b: a client is drawn in every b-th round at most. A joint coin deals its turn, and q is the rate of those whose
    turn it is. For `user-dp-fedavg`, `tsgd-ptr` and `tsgd-gaussian`. 1: everybody may be drawn in every round."""
    noise_bands: Annotated[int, Field(ge=1, le=MOST_BANDS)] = 1
    """Over how many rounds each server's noise is correlated, at most b; 1: independent noise."""


TURN_FIELDS: Final = tuple(TurnFields.model_fields)


def refuse_turns(task: TaskParameters, given: Collection[str]) -> None:
    """Refuse turns and bands in a task that cannot have them. Raises ValueError.

    given: fields that are not at their default.
    """
    rules = task.rules
    for name in TURN_FIELDS:
        has_turns = rules.protects_clients and rules.servers_add_noise
        if name in given and not has_turns:
            others = "tsgd-gaussian" if name == "noise_bands" else "tsgd-ptr and tsgd-gaussian"
            of = f"user-dp-fedavg and {others}"
            raise ValueError(f"{name} is of {of} only, found algorithm {rules.name!r}")
    if task.noise_bands > 1 and rules.trims:
        raise ValueError(f"noise_bands: expected 1 with algorithm {rules.name!r}, whose noise is of a test's outcome")
    if task.min_separation > len(task.clients):
        raise ValueError(
            f"min_separation: expected at most the {len(task.clients)} enrolled, found {task.min_separation}"
        )
    if task.min_separation > 1 and "epsilon_budget_client" in given:
        raise ValueError(
            "epsilon_budget_client: expected none with min_separation, by which turns are known and no draw hides "
            "anybody, found a value"
        )
    if task.noise_bands > task.min_separation:
        raise ValueError(
            f"noise_bands: expected at most min_separation, {task.min_separation}, found {task.noise_bands}"
        )
    if task.noise_bands > 1 and task.update_clipping in LEARNT:
        raise ValueError(f"noise_bands: expected 1 with update_clipping = {task.update_clipping!r}, whose bound moves")
    if task.min_separation > 1 and task.evaluation == BY_CLIENTS:
        raise ValueError(
            f"min_separation: expected 1 with evaluation = {BY_CLIENTS!r}, whose rounds would shift the turns, found "
            f"{task.min_separation}"
        )
    most = MAX_NOISE_STD_ON_GRID / 2**SCALE_BITS
    if task.noise_bands > 1 and not task.noise_std_on_grid <= most:
        raise ValueError(
            f"noise_multiplier * client_clip * 2^frac_bits: expected at most 2^24 with noise_bands, found "
            f"{task.noise_std_on_grid:.6g}"
        )
