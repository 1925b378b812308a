"""Hold what an export's certificate against poisoning is computed from: independent trainings of the exported task.

Such a certificate is about the expected confidences over trainings, so one training proves next to nothing. The
evidence is the mean confidences of many trainings on test records, with the parameters by which an attacking client is
accounted. Whoever has the evidence can compute the certificate again. Only whoever has the run folders can check that
the confidences are of those models.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from precad.deploy.errors import ConfigError, refusing
from precad.deploy.exporting.statement import Count, Part, Probability, Sha256, canonical, parse
from precad.deploy.guarantees.certificates import require_confidences
from precad.deploy.guarantees.run_evidence import RunEvidence, read_runs, training_of
from precad.deploy.reporting.certificates import RunCertificate, certified, uncertified
from precad.deploy.reporting.run_folder import read_deployed
from precad.dp.accountants.pld import SampledGaussian
from precad.dp.accountants.task_cost import TaskCost
from precad.dp.certificates.prediction import Training
from precad.protos.task.task import Task

EVIDENCE: Final = "certificate.json"
FORMAT: Final = "precad/export-certificate/1"


class Evidence(Part):
    """The content of the file; the certificate follows from it alone."""

    format: Literal["precad/export-certificate/1"] = FORMAT
    configuration_sha256: Sha256
    """`Task.digest()` of the trainings, the exported one's."""
    client_rate: Annotated[float, Field(gt=0, le=1)]
    """At which an attacking client is drawn; 1 where nothing is claimed of the draw."""
    noise_multiplier: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """Both servers' noise over the norm bound C."""
    rounds: Annotated[int, Field(ge=1, le=3_000_000)]
    """Those that a client can be in: draws of lost rounds count, beside the task's 10^6 at most."""
    delta: Annotated[float, Field(gt=0, lt=1)]
    models: Annotated[tuple[Sha256, ...], Field(min_length=1)]
    """Digests of the trainings' last models, sorted."""
    labels: tuple[Count, ...]
    """Classes of the test records."""
    confidences: tuple[tuple[Probability, ...], ...]
    """Means over the trainings, (n records, n classes)."""

    def certificate(self) -> RunCertificate:
        """Compute the certificate that follows. Raises ConfigError where the values are no evidence."""
        rows, labels = [list(row) for row in self.confidences], list(self.labels)
        require_confidences(rows, labels, EVIDENCE)
        if len(set(self.models)) < len(self.models):
            raise ConfigError(f"{EVIDENCE}: expected different trainings, found a model twice")
        with refusing(ValueError, EVIDENCE):
            training = Training(SampledGaussian(self.client_rate, self.noise_multiplier), self.rounds)
        return certified(rows, labels, training, self.delta, len(self.models))

    def canonical(self) -> bytes:
        """Return the bytes of the file."""
        return canonical(self)


def evidence_for(task: Task, costs: Sequence[TaskCost], paths: Sequence[Path]) -> Evidence:
    """Read the evidence from the folders of finished runs, or from a file that another export has.

    costs: by the ledgers of the servers that sign. Raises ConfigError, ExportRefusedError.
    """
    if len(paths) == 1 and paths[0].is_file():
        with refusing(OSError, f"--certificate: {paths[0]}"):
            evidence = parse(paths[0].read_bytes(), Evidence, str(paths[0]))
    else:
        evidence = _of_runs(paths)
    _require_of(task, costs, evidence)
    return evidence


def _of_runs(folders: Sequence[Path]) -> Evidence:
    for folder in folders:
        if (why := uncertified(read_deployed(folder))) is not None:
            raise ConfigError(f"--certificate: expected runs that can be certified, found {folder}: {why}")
    try:
        found = read_runs(list(folders))
    except ConfigError as error:
        raise ConfigError(str(error).replace("--run:", "--certificate:")) from None
    return _written(found)


def _written(found: RunEvidence) -> Evidence:
    event = found.training.event
    return Evidence(
        configuration_sha256=found.task.digest().hex(),
        client_rate=event.sampling_rate,
        noise_multiplier=event.noise_multiplier,
        rounds=found.training.rounds,
        delta=found.task.delta,
        models=tuple(sorted(found.model_digests)),
        labels=tuple(found.labels),
        confidences=tuple(tuple(row) for row in found.confidences),
    )


def _require_of(task: Task, costs: Sequence[TaskCost], evidence: Evidence) -> None:
    """Refuse evidence of another training than the server's own task. A server signs only what its task and ledger say.

    A rate of 1, which claims nothing of the draw, is always true. Raises ConfigError.
    """
    training = training_of(task, costs)
    expected = {
        "configuration_sha256": task.digest().hex(),
        "client_rate": 1.0 if evidence.client_rate == 1.0 else training.event.sampling_rate,
        "noise_multiplier": training.event.noise_multiplier,
        "rounds": training.rounds,
        "delta": task.delta,
    }
    for name, value in expected.items():
        if (found := getattr(evidence, name)) != value:
            ours = f"the exported task's, {value!s:.16}"
            raise ConfigError(f"--certificate: {name}: expected {ours}, found {found!s:.16}")
