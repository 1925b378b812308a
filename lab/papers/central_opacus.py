"""Train the adapters of `precad experiment adapters` by Opacus, at one party that holds all records.

Opacus runs in the peers' environment, on the transformer of PyTorch's own that the peers have
(`precad.lab.bench.peers.adapted_transformer`). It gets the weights of that of `transformers`. How far their logits are
apart at the start is a part of the result.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from precad.clients.models import networks
from precad.clients.models.adapters import adapted
from precad.clients.own_code import offer
from precad.clients.training import evaluation
from precad.deploy.errors import ConfigError, refusing
from precad.lab.bench import peers
from precad.lab.simulation import simulate

SCRIPTS: Final = Path(peers.__path__[0])
TIMEOUT_S: Final = 7200.0
N_COMPARED: Final = 256
NORM_EPSILON: Final = 1e-12
"""DistilBERT's, in its layer norms."""
MOST_APART: Final = 1e-3
"""Rounding moves logits by less."""
_NAMES: Final = (
    (r"^inner\.", ""),
    (r"^distilbert\.embeddings\.word_embeddings\.", "words."),
    (r"^distilbert\.embeddings\.position_embeddings\.", "places."),
    (r"^distilbert\.embeddings\.LayerNorm\.", "norm."),
    (r"^distilbert\.transformer\.layer\.", "blocks."),
    (r"\.ffn\.", "."),
)
"""How the peers' transformer calls DistilBERT's parts."""


def peers_name(name: str) -> str:
    """Return what the peers call a tensor or layer of ours."""
    for pattern, other in _NAMES:
        name = re.sub(pattern, other, name)
    return name


def trained(config: Mapping[str, Any], seeds: Sequence[int], python: Path) -> list[dict[str, float]]:
    """Return accuracy and epsilon of each seed. config: of the case whose adapters, records and rates these are.

    Raises ConfigError for an interpreter that fails, or another model than ours.
    """
    plan = simulate.resolve(config)
    offer(plan.client.base_model)
    job = _job(plan)
    return [_of_seed(job, seed, python) for seed in seeds]


def _job(plan: simulate.Plan) -> dict[str, Any]:
    task, model = plan.task, networks.of_task(plan.task).eval()
    part = adapted(model)
    assert part is not None  # the cases that come here have adapters
    some = plan.split.test.take(np.arange(N_COMPARED))
    tensors: dict[str, NDArray[Any]] = {
        f"tensor:{peers_name(name)}": value.numpy() for name, value in model.state_dict().items()
    }
    return {
        **tensors,
        "adapters": [peers_name(layer.name) for layer in part.layers()],
        "features": plan.split.train.features,
        "labels": plan.split.train.labels,
        "test_features": plan.split.test.features,
        "test_labels": plan.split.test.labels,
        "logits": evaluation.outputs(networks.flatten(model), model, some, evaluation.CPU),
        "rounds": task.rounds,
        "sample_rate": task.record_rate,
        "clip_norm": task.record_clip,
        "noise_multiplier": task.noise_multiplier,
        "learning_rate": task.learning_rate,
        "delta": task.delta,
        "norm_epsilon": NORM_EPSILON,
        "threads": 1,
    }


def _of_seed(job: Mapping[str, Any], seed: int, python: Path) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="precad-opacus-") as folder:
        given, result = Path(folder) / "job.npz", Path(folder) / "result.json"
        np.savez(given, seed=seed, **job)
        command = [str(python.absolute()), str(SCRIPTS / "opacus_central.py"), str(given), str(result)]
        environment = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
        with refusing(OSError, f"--peers-python: expected an interpreter, found {python}"):
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no word"])[-1]
            raise ConfigError(f"--peers-python: expected one that holds Opacus, found {last}")
        found: dict[str, float] = json.loads(result.read_text())
    if not found["apart"] <= MOST_APART:
        raise ConfigError(
            f"the peers' model: expected our logits within {MOST_APART:g}, found {found['apart']:g} apart"
        )
    return found
