"""Rounds of robust sums by both servers' real program, beside the same rounds in the clear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from precad.lab.simulation.two_servers import CleartextServers, MpcServers, Proposed
from precad.mpc import validation
from precad.mpc.errors import VerdictsDifferError
from precad.mpc.ring import RingArray
from precad.protos.task.task import Task
from tests.harness.harness import small_task

IDS = ("alice", "bob", "carol", "dave", "erin", "frank")
LENGTHS = {
    "all fit": (0.1, 0.2, 0.3, 0.4, 0.45, 0.2),
    "two do not": (0.1, 0.2, 2.0, 0.4, 1.1, 0.8),
    "nobody does": (2.0,) * len(IDS),
}
"""Lengths of the updates, in units of C."""
TRIMS = {"trim_tau": 0.5, "trim_noise": 0.01, "trim_failure": 0.4, "trim_count": 1, "noise_multiplier": 1.0}
KRUM = {"krum_attackers": 1, "noise_multiplier": 0.0}
SHARES = {"mode": "shares", "accept_weak_wire_form": True}


def uploads(task: Task, lengths: Sequence[float]) -> dict[str, RingArray]:
    """Return an update of each length, in directions from a fixed seed, on the grid."""
    directions = np.random.default_rng(3).standard_normal((len(IDS), task.dim))
    directions *= task.client_clip * 2**task.frac_bits / np.linalg.norm(directions, axis=1)[:, None]
    return {name: np.rint(x * v).astype(np.int64) for name, x, v in zip(IDS, lengths, directions, strict=True)}


@pytest.mark.parametrize("form", [{}, SHARES], ids=["masked", "shares"])
def test_servers_compare_their_verdicts_before_a_sum_is_made(
    form: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a deployment's do: a server whose verdicts differ ends the round."""
    task = small_task(IDS, gate="native", **form)
    validated, parties = validation.validate, []

    def of_a_liar(*given: Any) -> validation.Validated:
        checked, channel = validated(*given), given[-1]
        parties.append(channel.party)
        return replace(checked, verdicts=(False,) * len(IDS)) if channel.party else checked

    monkeypatch.setattr(validation, "validate", of_a_liar)
    with pytest.raises(VerdictsDifferError):
        MpcServers(task).check_and_sum(1, uploads(task, LENGTHS["all fit"]))
    assert sorted(parties) == [0, 1]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("form", [{}, SHARES], ids=["masked", "shares"])
@pytest.mark.parametrize(
    ("algorithm", "fields", "proposed"),
    [
        ("precad", {}, None),
        ("krum", KRUM, None),
        ("multi-krum", KRUM, None),
        *(("tsgd-gaussian", {"trim_count": count}, None) for count in (0, 1, 2, 9)),
        ("tsgd-ptr", TRIMS, Proposed(1, (5, -3))),
        ("tsgd-ptr", TRIMS, Proposed(2, (1 << 19, 7))),
        ("tsgd-ptr", TRIMS, Proposed(0, (-5, -9))),
    ],
)
def test_both_servers_release_what_the_clear_round_does(
    algorithm: str, fields: dict[str, Any], proposed: Proposed | None, form: dict[str, Any], lengths: str
) -> None:
    """They agree on verdicts, on the outcome of a test and on integers, but for a chance of 2^-64 an update."""
    task = small_task(IDS, algorithm=algorithm, gate="native", rounds=3, **fields, **form)
    sent = uploads(task, LENGTHS[lengths])
    clear, secure = (kind(task).check_and_sum(1, sent, proposed) for kind in (CleartextServers, MpcServers))

    assert (clear.accepted, clear.rejected, clear.test) == (secure.accepted, secure.rejected, secure.test)
    assert_array_equal(clear.total, secure.total)
