"""Attacks of the user's own whose code raises, and parameters that are none.

A process of a deployment may hold honest clients beside an attacker. Failure means an attack that takes them along,
or a parameter that fails only during a round. It also means a message with the text of an error, which may hold values
of a record.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precad.clients.attacks import ATTACKS, Attack, FalseProof, RandomLabels
from precad.clients.attacks.deployed import InDeployment
from precad.clients.attacks.named import ParametersError, made, wanted_of
from precad.clients.errors import ExtensionError, ProtocolError
from precad.clients.records import digits
from precad.clients.training.conduct import Trained
from tests.harness.harness import small_task

SECRET = "a record: 77"
TASK = small_task()


class Broken(Attack):
    """Raises in everything that it may have of its own."""

    def __init__(self, error: type[BaseException] = RuntimeError) -> None:
        self._error = error

    def _raise(self, *_: object) -> Any:
        raise self._error(SECRET)

    on_records = on_update = encode = on_upload = on_message = prove = success_records = _raise


def trained() -> Trained:
    """Return what a client trained, of zeros."""
    zeros = np.zeros(TASK.dim)
    nothing: Any = None
    return Trained(
        parameters=zeros.astype(np.float32),
        records=nothing,
        update=zeros,
        descend=nothing,
        gradient=nothing,
        clipped_sum=nothing,
    )


IN_A_ROUND: dict[str, Callable[[InDeployment], object]] = {
    "update": lambda conduct: conduct.on_trained(trained()),
    "encoding": lambda conduct: conduct.encode(np.zeros(TASK.dim), TASK),
    "upload": lambda conduct: conduct.on_upload(*[None] * 2),  # type: ignore[arg-type]
    "message": lambda conduct: conduct.on_message(None),  # type: ignore[arg-type]
    "proof": lambda conduct: conduct.prove(*[None] * 4),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, asyncio.CancelledError, MemoryError])
@pytest.mark.parametrize("step", IN_A_ROUND)
def test_an_attack_that_raises_leaves_out_the_round_alone(step: str, error: type[BaseException]) -> None:
    """The line of its own file is said, and nothing of its text."""
    with pytest.raises(ProtocolError, match=rf"stays silent in this round: Broken raises {error.__name__}") as caught:
        IN_A_ROUND[step](InDeployment(Broken(error), "c3", TASK, 1))
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__


def test_an_attack_whose_update_does_not_fit_the_ring_leaves_out_the_round(tmp_path: Path) -> None:
    """A factor may be any number."""
    conduct = InDeployment(ATTACKS["scaled"](gamma=1e308), "c3", TASK, 1)  # type: ignore[call-arg]
    with pytest.raises(ProtocolError, match="stays silent in this round: ScaledModelReplacement raises"):
        conduct.encode(conduct.attack.on_update(np.ones(TASK.dim)), TASK)


def test_before_a_round_an_attack_that_raises_is_refused_by_its_name() -> None:
    for ask in (
        lambda: InDeployment(Broken(), "c3", TASK, 1).on_records(digits().train),
        lambda: wanted_of({"c3": Broken()}, digits().test),
    ):
        with pytest.raises(ExtensionError, match=r"attack 'Broken': .* raises RuntimeError") as caught:
            ask()
        assert SECRET not in str(caught.value)


def test_an_attack_that_cannot_be_made_is_refused_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_broken.py").write_text(
        "from precad.clients.attacks import Attack\n\n\nclass Broken(Attack):\n    def __init__(self, **_):\n"
        f"        raise KeyError({SECRET!r})\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ExtensionError, match=r"making it raises KeyError in own_broken\.py, line 6$") as caught:
        made("own_broken:Broken", {})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("seed", ["x", math.nan, 0.5, True, -1])
@pytest.mark.parametrize("kind", ["random-labels", "feature-noise", "gaussian-features"])
def test_a_seed_that_is_none_is_refused(kind: str, seed: Any) -> None:
    with pytest.raises(ParametersError, match="seed: expected an integer of at least 0"):
        made(kind, {"seed": seed})
    assert made("random-labels", {"seed": 3}) == RandomLabels(seed=3)


@pytest.mark.parametrize("excess", ["x", math.inf, 0.5, True, 0])
def test_a_length_that_is_none_is_refused(excess: Any) -> None:
    with pytest.raises(ParametersError, match="excess: expected an integer"):
        made("wrong-length", {"excess": excess})


@pytest.mark.parametrize("gamma", ["x", math.nan, -math.inf, True])
@pytest.mark.parametrize("kind", ["scaled", "false-proof"])
def test_a_factor_that_is_no_number_is_refused(kind: str, gamma: Any) -> None:
    with pytest.raises(ParametersError, match="gamma: expected a finite number"):
        made(kind, {"gamma": gamma})
    assert made("false-proof", {"gamma": 10**400}) == FalseProof(gamma=10**400)
