"""Fields of a task of mode `proved`, and what such a task must fulfil, each error naming the field.

The other modes' canonical text has none of these fields, and that of mode `proved` none of a dealer's
(docs/reference/protocol-v2.md, section 4).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Final

from pydantic import BaseModel, Field

from precad.mpc.parameters import PROVED_VERSION, Mode
from precad.protos.task.parameters import TaskParameters

MODE: Final = Mode.PROVED.value
STANDING: Final = "rests on proofs of our own, which nobody outside the project has read"
"""Caution of the commands that offer the mode."""
PROTOCOL_VERSION: Final = PROVED_VERSION
OF_A_DEALER: Final = ("gate", "batches_ahead", "accept_weak_wire_form")
"""Fields that say nothing in this mode."""
MOST_UPLOADS_PER_MODEL: Final = 3
"""m of the theorem."""


class ProvedFields(BaseModel, defer_build=True):
    """A part of `precad.protos.task.task.Task`."""

    proof_timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0
    """Mode `proved`: how long a round waits for proofs, once its uploads are locked."""
    round_period_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Mode `proved`: seconds from one round's start to the next one's, more than submit_timeout_s and proof_timeout_s
    together. Then challenges and rounds come at fixed times, whoever was drawn, unless a round overruns; and a whole
    client has a second figure (docs/explanation/privacy.md). None: a round follows as soon as it can."""
    servers_follow_protocol: bool = False
    """Mode `proved`: must be said with algorithms distributed-dp, non-private and fedavg. There, no noise of an honest
    server or client stands between one update and a server that deviates."""


PROVED_FIELDS: Final = tuple(ProvedFields.model_fields)


ETA_OF_AN_UPLOAD: Final = 2.0**-40 + 2.0**-65
"""How far at most one upload's view is from the simulated one, in total variation (theorem 2)."""


def eta(rounds: int, evaluations: int = 0) -> float:
    """Return eta of theorem 2 for one client: m (T + 1) uploads, each simulated up to `ETA_OF_AN_UPLOAD`.

    A mechanism's (epsilon, delta) is (epsilon, delta + (1 + e^epsilon) eta) in this mode. A client makes at most m
    uploads for each of T + 1 models, those of rounds that were lost among them. It makes one more for each evaluation.
    With `distributed-dp` others' noise protects it too, and their uploads count beside its own (`Task.delta_slack`).
    """
    return (MOST_UPLOADS_PER_MODEL * (rounds + 1) + evaluations) * ETA_OF_AN_UPLOAD


def refuse_proved_fields(mode: str, given: Collection[str]) -> None:
    """Refuse fields of mode `proved` in another, and those of a dealer in mode `proved`. Raises ValueError."""
    if mode == MODE:
        for name in OF_A_DEALER:
            if name in given:
                raise ValueError(f"{name}: expected none in mode 'proved', which has no dealer, found a value")
        return
    for name in PROVED_FIELDS:
        if name in given:
            raise ValueError(f"{name} is of mode 'proved' only, found mode {mode!r}")


def refuse_proved(task: TaskParameters) -> None:
    """Refuse a task of mode `proved` that its theorems do not cover. Raises ValueError."""
    from precad.mpc.proved.sizes import check_round

    check_round(len(task.clients), task.noise_std_on_grid)
    needs_word = task.rules.clients_share_noise or not task.rules.is_private
    if needs_word and not task.servers_follow_protocol:
        raise ValueError(
            f"servers_follow_protocol: expected true with algorithm {task.rules.name!r} in mode 'proved': a server "
            "that deviates may open the sum of one client's update there (docs/explanation/proved.md), found false"
        )
    if task.servers_follow_protocol and not needs_word:
        raise ValueError(
            f"servers_follow_protocol: expected none with algorithm {task.rules.name!r}, whose statement needs no "
            "such word, found true"
        )
    waits_s = task.submit_timeout_s + task.proof_timeout_s
    if task.round_period_s is not None and not task.round_period_s > waits_s:
        raise ValueError(
            f"round_period_s: expected more than {waits_s:g}, which uploads and proofs may take (submit_timeout_s, "
            f"proof_timeout_s), found {task.round_period_s:g}"
        )
    least = 2 * task.delta_slack
    if task.rules.is_private and task.delta <= least:
        raise ValueError(
            f"delta: expected more than {least:.3g}, which mode 'proved' itself takes in {task.rounds} rounds, "
            f"found {task.delta:g}: raise delta or lower rounds"
        )
