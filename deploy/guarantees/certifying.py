"""Certificates from confidences as given, or from run folders: what `precad certify` and `precad.certify` compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from precad.deploy.errors import refusing
from precad.deploy.guarantees.certificates import Request, certify_runs, certify_samples
from precad.deploy.run_files.folder import each_training
from precad.dp.accountants.pld import SampledGaussian
from precad.dp.certificates.prediction import Training

DEFAULT_DELTA: Final = 1e-5
"""Given to the published method where no run says another."""


@refusing(ValueError)
def certify_given(
    confidences: list[list[float]],
    labels: list[int],
    request: Request,
    *,
    q: float,
    sigma: float,
    rounds: int,
    trainings: int | None,
) -> dict[str, Any]:
    """Certify confidences (n samples, n classes) of a training with these parameters. Raises ConfigError."""
    training = Training(SampledGaussian(q, sigma), rounds)
    return certify_samples(confidences, labels, training, request, trainings=trainings)


def certify_folders(folders: Sequence[Path], request_at: Callable[[float], Request]) -> dict[str, Any]:
    """Certify the runs of one configuration. `request_at` takes their task's delta. Raises ConfigError, ClientError."""
    from precad.deploy.guarantees.planning import require_no_evaluations
    from precad.deploy.guarantees.run_evidence import read_runs  # loads PyTorch

    evidence = read_runs([run for folder in folders for run in each_training(folder)])
    request = request_at(evidence.task.delta)
    if request.is_planning:
        require_no_evaluations(evidence.task, "--plan")
    return certify_runs(
        evidence.confidences,
        evidence.labels,
        evidence.training,
        replace(request, slack=evidence.task.delta_slack, hides_draws=evidence.hides_draws, earlier=evidence.earlier),
        n_runs=evidence.n_runs,
        provenance=evidence.provenance,
    )
