"""Unmodified scripts of NVFLARE's client API, without its runtime, in an interpreter that need not have precad."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from torch import nn

from precad.clients.errors import TrainerError
from precad.clients.external.arrays import ModelArrays
from precad.clients.external.program import Program
from precad.clients.external.trainer import ExternalTrainer
from tests.harness.nvflare import nvflare_python

SCRIPTS = Path(__file__).parent / "nvflare_scripts"
START = np.linspace(-0.1, 0.1, 650, dtype=np.float32)


@pytest.fixture
def script(tmp_path):
    """Make a trainer of a script; all are closed at the end."""
    made = []

    def make(name, also="numpy", **config):
        program = Program(
            kind="nvflare",
            path=name,
            folder=SCRIPTS,
            python=nvflare_python(also=also),
            node={"client": "alice"},
            config=config,
            timeout_s=60.0,
            is_isolation_required=False,
            output=tmp_path / "output",
        )
        made.append(ExternalTrainer(program, ModelArrays.of(nn.Linear(64, 10)), "alice"))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_script_trains_round_after_round_with_its_own_arguments(script):
    """It counts rounds from zero, as NVFLARE does, and changes the arrays that it was given in place."""
    ours = script("loop.py", script_args="--step 0.5")
    for number in range(3):
        assert_allclose(ours.train(START), START + np.float32(0.5 + number), rtol=1e-6)


def test_a_model_that_comes_before_send_has_ended_is_not_lost(script):
    """NVFLARE's `send()` forgets at its end the model that it has then."""
    ours = script("slow_send.py")
    for _ in range(3):
        assert_allclose(ours.train(START), START + 1, rtol=1e-6)


def test_a_script_for_one_task_is_run_for_each(script):
    """It sends what it adds. Its end, after its answer, costs no round."""
    ours = script("once.py")
    for _ in range(4):
        assert_allclose(ours.train(START), START + 2, rtol=1e-6)


def test_a_script_of_pytorch_gets_tensors(script):
    ours = script("torch_loop.py", also="torch", exchange_format="pytorch")
    for _ in range(2):
        assert_allclose(ours.train(START), 2 * START, rtol=1e-6)


def test_a_script_counts_held_out_records_for_a_task_of_validation(script):
    """Between trainings and before them; each answer is of the model that it was asked about."""
    ours = script("validates.py")
    assert ours.may_evaluate
    for scale in (np.float32(1), np.float32(3)):
        found = ours.evaluate(START + scale)
        assert_allclose(found, (10, 40, 40 * float((START + scale).sum())), rtol=1e-4)
        assert_allclose(ours.train(START * scale), START * scale + 1, rtol=1e-6)
    assert_allclose(ours.evaluate(START + 2), (10, 40, 40 * 1300), rtol=1e-4)


def test_a_script_that_does_not_validate_counts_nothing(script):
    """It trains, whatever it is asked. Its parameters are no counts, and the next round is trained."""
    ours = script("hostile.py", ways="train,train,train")
    assert ours.evaluate(START) is None
    assert_allclose(ours.train(START), START + 1, rtol=1e-6)


@pytest.mark.parametrize("way", ["raise", "end", "shutdown", "metrics", "other"])
def test_a_script_that_fails_costs_its_round_alone(script, way, tmp_path):
    """The rounds before and after it are trained."""
    ours = script("hostile.py", ways=f"train,{way},train,train")
    answers = [ours.train(START) for _ in range(4)]
    assert answers[1] is None
    for answer in (answers[0], *answers[2:]):
        assert_allclose(answer, START + 1, rtol=1e-6)


def test_what_is_sent_without_being_asked_is_no_later_rounds_answer(script):
    ours = script("hostile.py", ways="late,train,train")
    for _ in range(3):
        assert_allclose(ours.train(START), START + 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("none.py", "no such file in "),
        ("no_init.py", "it raised ValueError"),
        ("broken.py", "no module 'precad_has_no_such_module', which .* lacks: install it there, or name another in "),
    ],
)
def test_a_script_that_does_not_begin_is_refused_before_a_round(script, name, why):
    with pytest.raises(TrainerError, match=f"found 'nvflare:{name}': loading: {why}"):
        script(name)
