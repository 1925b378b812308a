"""Final models under fixed seeds, coins and noise: byte for byte what they were when the vectors were made.

Failure means that a change moved the model of one algorithm, in a simulation or at two real servers.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from precad.clients.gradients.engine import RecordEngine
from precad.lab.simulation.algorithms import ALGORITHMS
from precad.protos.task.algorithms import AS_DEPLOYED, RULES
from tests.vectors.final_models import (
    CASES,
    FILE,
    OF_MODES,
    NumpyEngine,
    digest_of,
    engine,
    final_model,
    fractions,
    records_of,
    served_model,
)

EXPECTED = json.loads(FILE.read_text())


def test_every_algorithm_and_every_form_is_there() -> None:
    """Every row of both tables of algorithms, and no two of a deployment's have one model."""
    deployed = {f"deployed/{name}" for name in RULES}
    simulated = {f"simulated/{name}" for name in ALGORITHMS if name != AS_DEPLOYED}
    assert set(EXPECTED) == deployed | simulated | {f"servers/{mode}" for mode in OF_MODES}
    assert len({EXPECTED[name] for name in deployed}) == len(RULES)


@pytest.mark.parametrize("case", CASES)
def test_a_simulated_model_has_not_moved(case: str) -> None:
    """By gradients from a formula in NumPy, client by client."""
    assert digest_of(final_model(case)) == EXPECTED[case]


@pytest.mark.parametrize("case", CASES)
def test_kernels_do_not_move_a_model(case: str) -> None:
    """PyTorch's kernels, of all clients in one pass, add in another order, and the bytes stay."""
    assert digest_of(final_model(case, RecordEngine)) == EXPECTED[case]


@pytest.mark.parametrize("mode", OF_MODES)
def test_the_model_of_two_servers_has_not_moved(mode: str, tmp_path: Path) -> None:
    """Real servers, a dealer and clients over mutual TLS. All forms draw the same clients and open the same sums."""
    assert digest_of(served_model(mode, tmp_path)) == EXPECTED[f"servers/{mode}"]
    assert EXPECTED[f"servers/{mode}"] == EXPECTED["servers/masked"]


def test_the_formula_is_the_gradient() -> None:
    """Both engines agree in float64 but for rounding."""
    records, parameters = records_of("a"), fractions("parameters", (8,), 12)
    both = [engine(kind).gradient_sum(parameters, records) for kind in (NumpyEngine, RecordEngine)]
    assert_allclose(*both, rtol=1e-13)


def test_one_step_of_the_grid_moves_the_digest() -> None:
    """The digest is of all bytes: the least change of one parameter is seen."""
    model = final_model("deployed/precad")
    moved = model.copy()
    moved[3] = np.nextafter(moved[3], np.float32(2))
    assert digest_of(model) == EXPECTED["deployed/precad"] != digest_of(moved)
