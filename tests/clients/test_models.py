"""Models and their flat vectors: sizes, order, determinism across processes."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from torch.func import functional_call

from clients import models
from clients.errors import DimensionError, UnknownNameError

NAMES = ["mlp", "cnn"]


def test_cnn_has_the_26010_parameters_of_the_opacus_example():
    """Counted by hand: weights and biases of two convolutions and two linear layers."""
    by_hand = (16 * 8 * 8 + 16) + (32 * 16 * 4 * 4 + 32) + (32 * 512 + 32) + (10 * 32 + 10)
    assert models.dimension("cnn") == by_hand == 26_010


def test_mlp_dimension():
    """One hidden layer of 64 on 64 pixels."""
    assert models.dimension("mlp") == (64 * 64 + 64) + (64 * 10 + 10) == 4_810


@pytest.mark.parametrize("name", NAMES)
def test_a_model_takes_images_of_its_side_and_gives_ten_logits(name):
    side = models.IMAGE_SIDE[name]
    assert models.build(name)(torch.zeros(3, 1, side, side)).shape == (3, 10)


@pytest.mark.parametrize("name", NAMES)
def test_unflatten_inverts_flatten(name):
    """Names and shapes are those of the state dict, values those of the model, and the vector's order is theirs."""
    model = models.build(name, seed=3)
    vector = models.flatten(model)
    weights = models.unflatten(torch.from_numpy(vector), model)
    assert vector.dtype == np.float32
    assert list(weights) == list(model.state_dict())
    assert all(torch.equal(weights[key], value) for key, value in model.state_dict().items())

    other = models.build(name, seed=4)
    other.load_state_dict(weights)
    assert_array_equal(models.flatten(other), vector)


@pytest.mark.parametrize("name", NAMES)
def test_functional_call_with_a_flat_vector_is_the_model_with_these_parameters(name):
    model, architecture = models.build(name, seed=1), models.build(name, seed=2)
    images = torch.rand(2, 1, models.IMAGE_SIDE[name], models.IMAGE_SIDE[name])
    weights = models.unflatten(torch.from_numpy(models.flatten(model)), architecture)
    assert torch.equal(functional_call(architecture, weights, (images,)), model(images))


def test_flatten_gives_a_vector_of_its_own():
    model = models.build("mlp")
    models.flatten(model)[:] = 0.0
    assert np.any(models.flatten(model) != 0.0)


@pytest.mark.parametrize("name", NAMES)
def test_initial_parameters_are_the_same_in_every_process(name):
    """Two fresh interpreters and this one, whose generator has been used before, agree to the bit."""
    program = (
        "import hashlib; from clients import models; "
        f"print(hashlib.sha256(models.initial_parameters({name!r}, seed=7).tobytes()).hexdigest())"
    )
    digests = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    torch.rand(5)
    here = models.initial_parameters(name, seed=7)
    assert len(digests) == 1
    assert digests.pop().strip() == hashlib.sha256(here.tobytes()).hexdigest()
    assert np.any(here != models.initial_parameters(name, seed=8))


def test_building_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    models.build("mlp", seed=99)
    assert torch.equal(torch.rand(3), expected)


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(UnknownNameError, match="unknown model 'resnet', expected one of cnn, mlp"):
        models.build("resnet")


@pytest.mark.parametrize("shape", [(4_809,), (4_811,), (1, 4_810)])
def test_a_vector_of_another_shape_is_refused(shape):
    with pytest.raises(DimensionError, match=r"must have shape \(4810,\)"):
        models.unflatten(torch.zeros(shape), models.build("mlp"))
