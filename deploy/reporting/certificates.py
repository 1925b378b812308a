"""Certify what a run's predictions withstand: proved of its trainings, and estimated from their models.

The method is the exact law of k sampled attackers, joining, as `precad certify --run` computes it. Seeds of one
simulation count as independent trainings, as the folders of one configuration do there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from precad.clients.errors import MissingDataError
from precad.clients.models import networks
from precad.clients.records import DataSource
from precad.clients.training import evaluation
from precad.deploy.errors import ConfigError
from precad.deploy.guarantees.certificates import Request, certify_runs
from precad.deploy.guarantees.run_evidence import read_runs, training_of, uncertifiable
from precad.deploy.reporting.runs import Run, Trained, names_own
from precad.dp.certificates.prediction import Method, Training

AT_MOST: Final = 32
"""Where the search for more attackers stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCertificate:
    """Certified accuracy after k = 0, 1, ... attackers."""

    proved: tuple[float, ...]
    """All bounds hold together with probability `confidence`."""
    estimated: tuple[float, ...]
    """If the models' mean confidences were the expected ones. No guarantee."""
    n_trainings: int
    trainings_needed: int
    """Fewer can prove nothing, were a model ever so certain."""
    confidence: float
    n_samples: int
    rests_on: tuple[str, ...]
    """Conditions, beside what its training says."""

    @property
    def tolerated(self) -> int:
        """Return the most attackers that any prediction is proved to withstand. 0: the certificate is vacuous."""
        return _most(self.proved)

    @property
    def words(self) -> str:
        """Say in one line what stands in place of the plot of a vacuous certificate."""
        trainings = "1 training proves" if self.n_trainings == 1 else f"{self.n_trainings} trainings prove"
        return (
            f"The certificate is VACUOUS and has no plot: {trainings} nothing. If the models' confidences were "
            f"the expected ones, some predictions would withstand {_most(self.estimated)} attackers: an estimate, "
            "no guarantee."
        )


def certificate_of(run: Run) -> RunCertificate | str:
    """Return the certificate, or why there is none. Raises ConfigError where a model's file is damaged."""
    if (why := uncertified(run)) is not None:
        return why
    if not any(trained.rounds for trained in run.trainings):
        return "its model is the initial one, as no round was done"
    try:
        confidences, labels, training = _evidence(run)
    except MissingDataError:
        return f"its data set, {run.client.dataset}, is not on this machine"
    return certified(confidences.tolist(), labels, training, run.task.delta, len(run.trainings))


def certified(
    confidences: list[list[float]], labels: list[int], training: Training, delta: float, n_trainings: int
) -> RunCertificate:
    """Return the certificate. confidences: means over n_trainings, (n samples, n classes). Raises ConfigError."""
    request = Request(delta=delta, methods=(Method.EXACT,), at_most=AT_MOST)
    report = certify_runs(confidences, labels, training, request, n_runs=n_trainings, provenance={})
    return RunCertificate(
        proved=_curve(report),
        estimated=_curve(report["estimate"]),
        n_trainings=n_trainings,
        trainings_needed=report["run"]["runs_needed"],
        confidence=report["confidence"],
        n_samples=len(labels),
        rests_on=tuple(report["run"]["rests_on"]),
    )


def with_certificate_note(run: Run, found: RunCertificate | str) -> Run:
    """Return the run; with a note where there is no certificate, or one that proves nothing."""
    if run.answer is not None or (isinstance(found, RunCertificate) and found.tolerated > 0):
        return run
    note = f"No certificate: {found}." if isinstance(found, str) else found.words
    return replace(run, notes=(*run.notes, note))


def _most(curve: Sequence[float]) -> int:
    """Return the most attackers that any prediction withstands."""
    return max((k for k, share in enumerate(curve) if share > 0), default=0)


def _curve(report: dict[str, Any]) -> tuple[float, ...]:
    return tuple(report["certified_accuracy"][Method.EXACT.value][: AT_MOST + 1])


def uncertified(run: Run) -> str | None:
    """Return why nothing can be certified of such a run; None if something can."""
    if run.answer is not None or not run.has_two_servers:
        return f"certificates are of PRECAD's training, this is {run.algorithm if run.answer is None else 'a query'}"
    if not run.is_validated:
        return "nothing bounds what an attacker uploads where norms are not checked"
    if (why := uncertifiable(run.task)) is not None:
        return why
    if (what := names_own(run)) is not None:
        return f"its configuration names {what}"
    if run.reacting_attack is not None:
        return f"attackers of kind {run.reacting_attack} act upon what others send, further attackers among them"
    return None


def _evidence(run: Run) -> tuple[NDArray[np.float64], list[int], Training]:
    """Return the mean over the models (n samples, n classes), the true labels, and the training as an attacker meets
    it.

    Raises: DataError, ConfigError.
    """
    source = replace(DataSource.of(run.client), may_download=False)  # a report asks nobody for anything
    test = source.load(side=networks.image_side(run.task.model)).test
    if not run.is_simulation:
        try:
            evidence = read_runs([run.folder])
        except ConfigError as error:
            raise ConfigError(f"{run.folder}: {str(error).removeprefix('--run: ')}") from None
        return np.array(evidence.confidences), evidence.labels, evidence.training
    each = []
    for trained in run.trainings:
        parameters = _parameters(run.folder / f"seed-{trained.seed}.npz", trained, run.task.dim)
        each.append(evaluation.confidences(parameters[: run.task.n_parameters], networks.of_task(run.task), test))
    mean = sum(each, np.zeros_like(each[0])) / len(run.trainings)
    mean /= np.maximum(mean.sum(axis=1, keepdims=True), 1.0)
    return mean, test.labels.tolist(), training_of(run.task, has_unknown_costs=run.counts_earlier_tasks)


def _parameters(path: Path, trained: Trained, dim: int) -> NDArray[np.float32]:
    """Return a seed's final model (dim,). Raises ConfigError."""
    try:
        with np.load(path, allow_pickle=False) as saved:
            parameters, rounds = np.array(saved["parameters"]), int(saved["rounds"])
    except Exception as error:  # noqa: BLE001 - a damaged archive can fail anywhere in zipfile, zlib and NumPy
        raise ConfigError(f"{path}: expected the model of a finished training, found: {error}") from None
    if parameters.shape != (dim,) or parameters.dtype != np.float32 or rounds != len(trained.rounds):
        raise ConfigError(
            f"{path}: expected {dim} float32 parameters after {len(trained.rounds)} rounds, "
            f"found {parameters.dtype} of shape {parameters.shape} after {rounds}"
        )
    return parameters
