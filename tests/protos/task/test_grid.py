"""`frac_bits = "largest"`: the most that the norm check of each mode has, and not one more."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from precad.dp.accountants.pld import View
from precad.dp.task_privacy import noise_left, task_privacy
from precad.mpc.errors import ParameterError
from precad.mpc.norm_bound import NormBound, largest_frac_bits
from precad.mpc.proved.sizes import ProofSizes
from precad.protos.task.task import Task
from tests.harness.harness import small_task

CLIPS = (1e-6, 0.37, 1.0, 3.0, 1000.0, 1e6)


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("mode", ["masked", "proved"])
def test_one_bit_more_is_refused_by_the_check_itself(mode: str, clip: float) -> None:
    check = ProofSizes if mode == "proved" else NormBound
    fields = {"mode": mode, "client_clip": clip, "record_clip": clip, "frac_bits": "largest"}
    found = small_task(**fields).frac_bits
    _ = check(clip_norm=clip, dim=3, frac_bits=found)
    if found < 40:
        with pytest.raises(ParameterError):
            _ = check(clip_norm=clip, dim=3, frac_bits=found + 1)


def test_the_digest_is_that_of_the_number_written_out() -> None:
    asked = small_task(client_clip=3.0, frac_bits="largest")
    assert asked == small_task(client_clip=3.0, frac_bits=asked.frac_bits)
    assert json.loads(asked.canonical())["frac_bits"] == asked.frac_bits == largest_frac_bits(3.0)


def test_a_task_that_names_none_has_16_as_every_task_before() -> None:
    section = json.loads(small_task().canonical())
    del section["frac_bits"]
    assert Task.model_validate(section).frac_bits == 16


def test_rounding_takes_less_than_a_thousandth_of_epsilon_at_the_demo_size() -> None:
    """By two calls of the accountant; 16 bits take several thousandths there."""
    settings = {"dim": 26_010, "client_clip": 10.0, "record_clip": 1.0, "record_rate": 0.05, "rounds": 500}
    coarse, fine = (small_task(**settings, noise_multiplier=1.0, frac_bits=bits) for bits in (16, "largest"))
    exact = small_task(**settings, noise_multiplier=1.0 / noise_left(fine), frac_bits="largest")
    at_16, at_most, without = (task_privacy(task).epsilon(View.ONE_SERVER, 500, 1e-5) for task in (coarse, fine, exact))
    assert at_most <= 1.001 * without < at_16
    assert at_16 > 1.002 * without


@pytest.mark.parametrize("clip", [2e9, "much", True, None])
def test_a_bound_without_room_is_refused_by_its_own_name(clip: object) -> None:
    with pytest.raises(ValidationError, match="client_clip"):
        small_task(client_clip=clip, record_clip=1.0, frac_bits="largest")


def test_another_word_is_refused() -> None:
    with pytest.raises(ValidationError, match="frac_bits"):
        small_task(frac_bits="most")
