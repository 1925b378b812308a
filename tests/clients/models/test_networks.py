"""Models and their flat vectors: sizes, order, determinism across processes."""

import hashlib
import subprocess
import sys
from os import system  # noqa: F401 - for a task that names it here

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from torch.func import functional_call

from precad.clients.errors import DimensionError, ModelImportError, ModelInputError, UnknownNameError
from precad.clients.models import networks
from tests.harness.models import dimension_of

MADE = torch.nn.Linear(2, 2)
NAMES = [
    *("mlp", "cnn", "cnn-standardised", "cnn-half", "cnn-binary", "cnn-letters", "cnn-rgb", "cifar"),
    *("cnn-pooled", "cnn-pooled-binary", "lstm", "lstm-binary"),
]
FOR_EMNIST = {"cnn-letters": 26, "cnn-balanced": 47, "cnn-byclass": 62}


def test_cnn_has_the_26010_parameters_of_the_opacus_example():
    """Counted by hand: weights and biases of two convolutions and two linear layers."""
    by_hand = (16 * 8 * 8 + 16) + (32 * 16 * 4 * 4 + 32) + (32 * 512 + 32) + (10 * 32 + 10)
    assert dimension_of("cnn") == by_hand == 26_010


def test_the_standardised_cnn_is_the_cnn_on_standardised_pixels():
    """Share the initial parameters, in one order, and read (x - 0.1307) / 0.3081, as Opacus' example does for MNIST."""
    images = some_inputs("cnn", 4)
    standardised, plain = networks.build("cnn-standardised", seed=3), networks.build("cnn", seed=3)
    assert_array_equal(networks.flatten(standardised), networks.flatten(plain))
    torch.testing.assert_close(standardised(images), plain((images - 0.1307) / 0.3081))


@pytest.mark.parametrize(
    ("name", "classes", "dimension"),
    [
        ("cnn-binary", (0, 1), 26_010 - 8 * 33),
        ("cnn-pooled-binary", (0, 2), 131_466 - 8 * 129),
        ("lstm-binary", (0, 1), 122_506 - 8 * 65),
    ],
)
def test_a_binary_cnn_is_its_cnn_with_two_outputs(name, classes, dimension):
    """Eight outputs fewer; the other classes have no confidence at all, and the loss is that of two logits."""
    model, images = networks.build(name, seed=3), some_inputs(name, 4)
    assert dimension_of(name) == dimension
    logits, is_second = model(images), torch.tensor([0, 1, 1, 0])
    others = [label for label in range(10) if label not in classes]
    assert not logits.softmax(dim=1)[:, others].any()
    two = model[:-1](images)
    assert two.shape == (4, 2)
    cross_entropy = torch.nn.functional.cross_entropy
    labels = torch.tensor(classes)[is_second]
    torch.testing.assert_close(cross_entropy(logits, labels), cross_entropy(two, is_second))


def some_inputs(name, n):
    architecture = networks.ARCHITECTURES[name]
    if architecture.is_text:
        return torch.arange(n * architecture.shape[0]).view(n, -1)
    return torch.rand(n, *architecture.shape)


@pytest.mark.parametrize(
    ("name", "dimension"),
    [
        ("cnn-rgb", (16 * 3 * 64 + 16) + (32 * 16 * 16 + 32) + (32 * 800 + 32) + 330),
        ("cnn-pooled", (32 * 27 + 32) + (64 * 32 * 9 + 64) + (64 * 64 * 9 + 64) + (128 * 64 * 9 + 128) + 1290),
        ("cifar", 122_570),  # as the tutorial's model.summary() prints
        ("lstm", 2000 * 32 + 256 * (32 + 1) + 256 * (64 + 1) + 2 * 256 * 64 + 650),
    ],
)
def test_dimensions_by_hand(name, dimension):
    assert dimension_of(name) == dimension


def test_the_lstm_is_pytorch_s():
    """Same weights, same states: two layers of nn.LSTM, averaged over the words, in float64."""
    model = networks.build("lstm", seed=1).double()
    twin = torch.nn.LSTM(32, 64, num_layers=2, batch_first=True).double()
    with torch.no_grad():
        for layer, (read, recall) in enumerate(zip(model.reads, model.recalls, strict=True)):
            getattr(twin, f"weight_ih_l{layer}").copy_(read.weight)
            getattr(twin, f"bias_ih_l{layer}").copy_(read.bias)
            getattr(twin, f"weight_hh_l{layer}").copy_(recall.weight)
            getattr(twin, f"bias_hh_l{layer}").zero_()
        tokens = some_inputs("lstm", 3)
        # PyTorch orders gates input, forget, cell, output
        states, _ = twin(model.embedding(tokens))
        torch.testing.assert_close(model(tokens), model.classifier(states.mean(dim=1)), rtol=1e-12, atol=1e-12)


def own_model():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))


def no_model():
    return "a model"


def needs_argument(_width):
    return own_model()


def lazy_model():
    return torch.nn.Sequential(torch.nn.LazyLinear(8), torch.nn.Linear(8, 2))


def half_model():
    return own_model().half()


def test_a_model_of_the_user_s_own():
    """By import path; the seed decides its start."""
    here = f"{__name__}:own_model"
    assert dimension_of(here) == 650
    assert_array_equal(networks.initial_parameters(here, seed=1), networks.initial_parameters(here, seed=1))
    assert np.any(networks.initial_parameters(here, seed=1) != networks.initial_parameters(here, seed=2))


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("nowhere.at.all:Net", "No module named"),
        (f"{__name__}:missing", "has no attribute 'missing'"),
        (f"{__name__}:NAMES", "cannot be called"),
        (f"{__name__}:no_model", "it gave a str"),
        (f"{__name__}:needs_argument", "without arguments"),
        (f"{__name__}:half_model", "trained parameters: expected float32, and some, found float16"),
        (f"{__name__}:lazy_model", r"know their sizes, found LazyLinear"),
        ("torch.nn:Identity", "trained parameters: expected float32, and some, found none"),
        (f"{__name__}:MADE", "found a model: name its class, or a function that makes it"),
        (":own_model", "importing it raises ValueError"),
    ],
)
def test_what_is_no_model_is_refused(path, why):
    with pytest.raises(ModelImportError, match=why):
        networks.build(path)


@pytest.mark.parametrize(
    ("path", "arguments"),
    [
        ("os:system", {"command": "touch ran"}),
        ("subprocess:Popen", {"args": "touch ran", "shell": True}),
        ("torch.hub:load", {"repo_or_dir": ".", "model": "net", "source": "local"}),
        (f"{__name__}:system", {"command": "touch ran"}),
        ("runpy:run_path", {"path_name": "hubconf.py"}),
    ],
)
def test_a_task_s_author_runs_no_code_by_a_model_s_name(path, arguments, tmp_path, monkeypatch):
    """Kits carry names and arguments to machines of others. A folder with code stands for what is on the net."""
    (tmp_path / "hubconf.py").write_text(
        "import pathlib, torch\npathlib.Path('ran').touch()\ndef net():\n    return torch.nn.Linear(2, 2)\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelImportError, match="found code of an installed package"):
        networks.build(path, arguments=arguments)
    assert not (tmp_path / "ran").exists()


def test_a_model_s_class_of_an_installed_package_is_taken():
    found = networks.build("torch.nn:Linear", arguments={"in_features": 3, "out_features": 2})
    assert networks.parameter_count(found) == 8


def test_records_that_do_not_fit_are_named():
    with pytest.raises(ModelInputError, match=r"does not fit records of shape \(1, 28, 28\)"):
        networks.require_fit(networks.build("mlp"), (1, 28, 28), is_text=False)
    with pytest.raises(ModelInputError, match=r"same dtype.*; arrays of int64 with two axes are tokens"):
        networks.require_fit(torch.nn.Linear(3, 2), (3,), is_text=True)
    with pytest.raises(ModelInputError, match=r"of two classes or more, found \(1, 1\) for one record"):
        networks.require_fit(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 1)), (1, 8, 8), is_text=False)
    with pytest.raises(ModelInputError, match=r"expected a row of outputs for every record, found \(8, 2\) for one"):
        networks.require_fit(torch.nn.Sequential(torch.nn.Flatten(0, 1), torch.nn.Linear(8, 2)), (8, 8), is_text=False)


def test_mlp_dimension():
    """One hidden layer of 64 on 64 pixels."""
    assert dimension_of("mlp") == (64 * 64 + 64) + (64 * 10 + 10) == 4_810


@pytest.mark.parametrize("name", sorted({*NAMES, *FOR_EMNIST}))
def test_a_model_takes_images_of_its_side_and_gives_ten_logits_or_those_of_emnist(name):
    architecture, n_logits = networks.ARCHITECTURES[name], FOR_EMNIST.get(name, 10)
    assert networks.build(name)(some_inputs(name, 3)).shape == (3, n_logits)
    outputs = networks.require_fit(networks.build(name), architecture.shape, is_text=architecture.is_text)
    assert outputs == (n_logits,)


def test_emnist_s_cnns_are_the_cnn_with_more_outputs():
    """33 parameters for each logit."""
    for name, n_logits in FOR_EMNIST.items():
        assert dimension_of(name) == 26_010 + 33 * (n_logits - 10)


@pytest.mark.parametrize("name", NAMES)
def test_unflatten_inverts_flatten(name):
    """Names and shapes are those of the state dict, values those of the model, and the vector's order is theirs."""
    model = networks.build(name, seed=3)
    vector = networks.flatten(model)
    weights = networks.unflatten(torch.from_numpy(vector), model)
    assert vector.dtype == np.float32
    assert list(weights) == list(model.state_dict())
    assert all(torch.equal(weights[key], value) for key, value in model.state_dict().items())

    other = networks.build(name, seed=4)
    other.load_state_dict(weights)
    assert_array_equal(networks.flatten(other), vector)


@pytest.mark.parametrize("name", NAMES)
def test_functional_call_with_a_flat_vector_is_the_model_with_these_parameters(name):
    model, architecture = networks.build(name, seed=1), networks.build(name, seed=2)
    images = some_inputs(name, 2)
    weights = networks.unflatten(torch.from_numpy(networks.flatten(model)), architecture)
    assert torch.equal(functional_call(architecture, weights, (images,)), model(images))


def test_flatten_gives_a_vector_of_its_own():
    model = networks.build("mlp")
    networks.flatten(model)[:] = 0.0
    assert np.any(networks.flatten(model) != 0.0)


@pytest.fixture(scope="module")
def digests_of_a_fresh_interpreter():
    """Return the digests of the initial parameters from seed 7 of two models, by name."""
    program = (
        "import hashlib; from precad.clients.models import networks as models; "
        "print(*(f'{name} {hashlib.sha256(models.initial_parameters(name, seed=7).tobytes()).hexdigest()}' "
        "for name in ('mlp', 'cnn')), sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return dict(line.split() for line in done.stdout.splitlines())


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_initial_parameters_are_the_same_in_every_process(name, digests_of_a_fresh_interpreter):
    """A fresh interpreter and this one, whose generator has been used before, agree to the bit."""
    torch.rand(5)
    here = networks.initial_parameters(name, seed=7)
    assert digests_of_a_fresh_interpreter[name] == hashlib.sha256(here.tobytes()).hexdigest()
    assert np.any(here != networks.initial_parameters(name, seed=8))


def test_building_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    networks.build("mlp", seed=99)
    assert torch.equal(torch.rand(3), expected)


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(
        UnknownNameError,
        match="unknown model 'resnet', expected one of cifar, cnn, cnn-balanced, cnn-binary, cnn-byclass, cnn-half",
    ):
        networks.build("resnet")


@pytest.mark.parametrize("shape", [(4_809,), (4_811,), (1, 4_810)])
def test_a_vector_of_another_shape_is_refused(shape):
    with pytest.raises(DimensionError, match=r"parameters: expected a flat vector of shape \(4810,\)"):
        networks.unflatten(torch.zeros(shape), networks.build("mlp"))
