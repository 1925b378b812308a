"""Write metrics to an MLflow tracking server, or to its store on this machine, as one run for each training.

MLflow's own reports to its makers are turned off before it is imported. It reads credentials of a tracking server where
it always does, `MLFLOW_TRACKING_TOKEN` for one; the server is what `--to` names and no other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
from mlflow import MlflowClient
from mlflow.entities import Metric, Run

from precad.deploy.tracking.points import Point
from precad.deploy.tracking.scalars import Named

EXPERIMENT: Final = "precad"
_TRAINING, _LABEL = "precad.training", "precad.label."
_AT_ONCE: Final = 1000
"""Metrics that MLflow takes in one call."""


class MlflowWriter:
    """One run, found again by its tag."""

    def __init__(self, uri: str, training: str) -> None:
        """Raises what MLflow raises where the server does not answer."""
        self._client = MlflowClient(tracking_uri=uri)
        self._run = self._found(training).info.run_id
        self._labels: dict[str, str] = {}

    def _found(self, training: str) -> Run:
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        number = self._client.create_experiment(EXPERIMENT) if experiment is None else experiment.experiment_id
        runs = self._client.search_runs([number], filter_string=f"tags.`{_TRAINING}` = '{training}'", max_results=1)
        return next(iter(runs), None) or self._client.create_run(number, run_name=training, tags={_TRAINING: training})

    def written(self) -> set[Named]:
        """Return the steps of the history of every metric."""
        names = self._client.get_run(self._run).data.metrics
        return {(name, one.step) for name in names for one in self._client.get_metric_history(self._run, name)}

    def write(self, points: Sequence[Point], labels: Mapping[str, str]) -> None:
        """Log metrics at their rounds' times. Labels are tags of the run."""
        for name, text in labels.items():
            if self._labels.get(name) != text:
                self._client.set_tag(self._run, f"{_LABEL}{name}", text)
        self._labels.update(labels)
        metrics = [Metric(one.name, one.value, int(1000 * one.at), one.round) for one in points]
        for part in _parts(metrics):
            self._client.log_batch(self._run, metrics=part)

    def close(self) -> None:
        """Leave the run open: a later process may have more of it."""


def _parts(metrics: list[Metric]) -> Iterator[list[Metric]]:
    for start in range(0, len(metrics), _AT_ONCE):
        yield metrics[start : start + _AT_ONCE]
