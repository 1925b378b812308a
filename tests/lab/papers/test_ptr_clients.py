"""TSGD + PTR on two servers beside the paper's TSGD + Gaussian: the same records, corruption and epsilon."""

from __future__ import annotations

import pytest

from precad.lab.papers.ptr import clients
from precad.lab.papers.ptr.mnist import BATCH, DELTA
from precad.lab.papers.ptr.settings import CORRUPTIONS, GAUSSIAN
from precad.lab.simulation.rules.trimmed_sums import TsgdGaussian

CORRUPTED = [corruption for corruption in CORRUPTIONS if corruption.share]


@pytest.mark.parametrize("corruption", CORRUPTED, ids=lambda corruption: corruption.name)
def test_what_stands_beside_has_the_records_and_the_corruption(corruption):
    """One rule of aggregation differs, and the rounds."""
    experiment = clients.Experiment(epsilon=3.0)
    of_ptr, of_gaussian = experiment.case(corruption).config, experiment.beside(corruption).config
    assert of_ptr["client"] == of_gaussian["client"]
    assert of_ptr["simulation"]["attack"] == of_gaussian["simulation"]["attack"]
    shared = of_ptr["task"].keys() & of_gaussian["task"].keys() - {"rounds", "noise_multiplier"}
    assert {name: of_ptr["task"][name] for name in shared} == {name: of_gaussian["task"][name] for name in shared}
    assert {"clients", "client_rate", "record_clip", "client_clip", "learning_rate", "model"} <= shared


def test_it_has_the_rounds_that_the_epsilon_pays_for():
    """By the rule's own bound: one more round costs more."""
    experiment = clients.Experiment(epsilon=3.0)
    rounds = experiment.beside(CORRUPTED[0]).config["task"]["rounds"]
    rule = TsgdGaussian(rate=BATCH / clients.N_CLIENTS, n_enrolled=clients.N_CLIENTS, **GAUSSIAN.parameters)
    assert rule.epsilon(rounds, DELTA) <= 3.0 < rule.epsilon(rounds + 1, DELTA)
