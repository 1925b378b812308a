"""A foreign trainer as one of the task's clients: its new parameters, minus the model, within C, as integers.

Nothing is known of a foreign trainer but what it returns. So it runs only in `user-dp-fedavg`, whose guarantee is of
whole clients and rests on the norm alone, and in `fedavg`, which guarantees nothing. A training that fails uploads
zeros: a client that stays away would say that it failed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import structlog
from numpy.typing import NDArray

from precad.clients.config import FLOWER, NVFLARE, SCRIPT, ClientConfig
from precad.clients.errors import ArgumentError, NonFiniteModelError
from precad.clients.external.arrays import ModelArrays
from precad.clients.external.kept_state import KeptState
from precad.clients.external.program import Program
from precad.clients.external.trainer import ExternalTrainer, Tally
from precad.clients.external.walls import Walls
from precad.clients.gradients.layers import require_layer_sizes
from precad.clients.models import networks
from precad.clients.own_code import look_in
from precad.clients.records.own.described import CLIENT
from precad.clients.training.conduct import Conduct, Vector
from precad.clients.training.held_out import answer_of_counts
from precad.clients.training.round_update import bounded, difference, require_set
from precad.mpc.ring import RingArray
from precad.protos.task.evaluation import has_accuracy
from precad.protos.task.task import Task

STATE_SUFFIX: Final = ".trainer-state"
_SHARE_OF_ROUND: Final = 0.8
"""The share of a round's time that a training may take: the upload needs the rest."""
log = structlog.get_logger(__name__)


def require_task(task: Task) -> None:
    """Raise ArgumentError unless the task's guarantee needs nothing of a trainer but an update within C."""
    if not task.rules.trains_locally or task.rules.protects_records:
        raise ArgumentError(
            "client.trainer: expected task.algorithm 'user-dp-fedavg', whose guarantee is of whole clients, or "
            f"'fedavg', found {task.algorithm!r}: nothing holds a foreign trainer to clipping single records"
        )


class ExternalTraining:
    """The foreign trainers of the clients that one process hosts, a process for each."""

    def __init__(self, *, task: Task, config: ClientConfig, conducts: Mapping[str, Conduct]) -> None:
        """Start every trainer, and wait until its code is loaded. Raises ArgumentError (also TrainerError)."""
        require_task(task)
        require_set(task)
        look_in(config.folder)
        model = networks.of_task(task)
        self._task, self._conducts = task, conducts
        self._layer_sizes = require_layer_sizes(model, "task.update_clipping") if task.clips_layers else []
        arrays = ModelArrays.of(model)
        self.tallies = {client: Tally() for client in conducts}
        self._files = {client: config.state_dir / f"{client}.prom" for client in conducts}
        self._trainers = {
            client: ExternalTrainer(program_of(task, config, client), arrays, client) for client in conducts
        }
        log.info("client.trainer", trainer=config.trainer, statement="client", record_statement=None)
        try:
            for trainer in self._trainers.values():
                trainer.start()
                _require_evaluations(task, config, trainer)
        except BaseException:
            self.close()
            raise

    def train(self, client: str, parameters: NDArray[np.float32]) -> RingArray:
        """Train from the global model (d,) to this client's encoded update (d,). Called by one thread per client.

        Raises: ClientError; nothing may be uploaded then.
        """
        conduct = self._conducts[client]
        return conduct.encode(conduct.on_update(self.update(client, parameters)), self._task)

    def update(self, client: str, parameters: NDArray[np.float32]) -> Vector:
        """Return the round's update before conduct and encoding: norm at most C. Counts what was clipped.

        Raises NonFiniteModelError.
        """
        if not np.isfinite(parameters).all():
            raise NonFiniteModelError
        own = parameters[: self._task.n_parameters]
        trained = self._trainers[client].train(own)
        found = None if trained is None else difference(trained, own)
        update = bounded(self._task, float(parameters[-1]), found, self._layer_sizes)
        self._count(client, found, update, is_answered=trained is not None)
        return update

    def _count(self, client: str, found: Vector | None, update: Vector, *, is_answered: bool) -> None:
        tally = self.tallies[client]
        if found is None:
            tally.failed += 1
            if is_answered:
                log.warning("client.trainer_failed", client=client, reason="its parameters are not finite")
        else:
            tally.trained += 1
            tally.clipped += self._is_clipped(found, update)
        counts = {"trained": tally.trained, "clipped": tally.clipped, "failed": tally.failed}
        log.info("client.trained", client=client, **counts)
        write_metrics(self._files[client], client, tally)

    def evaluate(self, client: str, parameters: NDArray[np.float32]) -> RingArray:
        """Return this client's encoded answer, (3,), to an evaluation of the model (d,).

        Called by one thread per client. Raises: ClientError; nothing may be uploaded then.
        """
        assert self._task.evaluation_round is not None  # nobody else asks
        return self._conducts[client].encode_evaluation(self.answer(client, parameters), self._task.evaluation_round)

    def answer(self, client: str, parameters: NDArray[np.float32]) -> Vector:
        """Return what its trainer's counts come to, (3,), of norm at most C; zeros where it gives none."""
        found = self._trainers[client].evaluate(parameters[: self._task.n_parameters])
        if found is not None and not found.is_sound:
            log.warning("client.trainer_failed", client=client, reason="no records can have its counts")
            found = None
        tally = self.tallies[client]
        if found is None:
            tally.evaluations_failed += 1
        else:
            tally.evaluated += 1
        log.info("client.evaluated", client=client, evaluated=tally.evaluated, failed=tally.evaluations_failed)
        write_metrics(self._files[client], client, tally)
        return answer_of_counts(self._task, *(found or (0.0, 0.0, 0.0)))

    def _is_clipped(self, found: Vector, update: Vector) -> bool:
        """Tell whether the trainer returned more than the bound. Where the bound is learnt, the last number says so."""
        return bool(update[-1] < 0) if self._task.quantile_rule is not None else not np.array_equal(found, update)

    def close(self) -> None:
        """End every trainer."""
        for trainer in self._trainers.values():
            trainer.close()


def tried_out(task: Task, config: ClientConfig, client: str) -> Walls:
    """Load a client's trainer as its start does, end it, and return its walls. Nothing is trained, logged or kept.

    Raises ArgumentError (also TrainerError).
    """
    require_set(task)
    look_in(config.folder)
    trainer = ExternalTrainer(program_of(task, config, client), ModelArrays.of(networks.of_task(task)), client)
    walls = trainer.try_out()
    _require_evaluations(task, config, trainer)
    return walls


def _require_evaluations(task: Task, config: ClientConfig, trainer: ExternalTrainer) -> None:
    """Raise ArgumentError where the task's clients evaluate models, and this trainer has no code for it."""
    if task.evaluation_round is not None and not trainer.may_evaluate:
        raise ArgumentError(
            f"client.trainer: expected one that evaluates models, as task.evaluation = {task.evaluation!r}, found "
            f"{config.trainer!r}, which has no evaluate"
        )


def program_of(task: Task, config: ClientConfig, client: str) -> Program:
    """Return what a client's configuration says of its trainer, with the client's id in its place.

    Raises ArgumentError unless the task has a place for it, and its files are apart from the client's keys.
    """
    require_task(task)
    assert config.trainer is not None  # whoever asks has one
    kind, path = split_trainer(config.trainer)
    ids = sorted(task.clients)  # in the file's order, two parties of one digest could count them otherwise
    standing = {"partition-id": ids.index(client), "num-partitions": len(ids), "client": client}
    longest = _SHARE_OF_ROUND * task.submit_timeout_s
    python = {} if config.trainer_python is None else {"python": config.trainer_python}
    secrets = (config.certificates, config.state_dir, config.key_passphrase_file)
    program = Program(
        kind=kind,
        path=path,
        folder=config.folder,
        config=_told(config.trainer_config, client),
        node={**standing, **_told(config.trainer_node, client)},
        message={"local-steps": task.local_steps, "lr": task.local_rate},
        hidden=tuple(secret for secret in secrets if secret is not None),
        timeout_s=min(longest, config.trainer_timeout_s or longest),
        memory_bytes=config.trainer_memory_mb << 20,
        threads=config.trainer_threads,
        is_isolation_required=config.trainer_isolation == "required",
        output=config.trainer_output,
        has_accuracy=has_accuracy(task.loss),
        state=KeptState(config.state_dir / f"{client}{STATE_SUFFIX}", _owner(task, config.trainer)),
        **python,
    )
    _require_apart(program)
    return program


def _owner(task: Task, trainer: str) -> bytes:
    """Return what a state belongs to: of another task, or by another trainer, it is not taken up."""
    return hashlib.sha256(task.digest() + trainer.encode()).digest()


def split_trainer(trainer: str) -> tuple[str, str]:
    """Return (kind, module:name) of what a configuration calls a trainer; the script in the place of a name."""
    kind, _, path = trainer.partition(":")
    if kind == NVFLARE and path.endswith(SCRIPT):
        return kind, path
    return (FLOWER, path) if kind == FLOWER and ":" in path else ("callable", trainer)


def _told(values: Mapping[str, bool | float | str], client: str) -> dict[str, bool | float | str]:
    return {name: value.replace(CLIENT, client) if isinstance(value, str) else value for name, value in values.items()}


def _require_apart(program: Program) -> None:
    """Raise ArgumentError where the trainer's own files are among what it must not read."""
    for name, needed in (("folder", program.folder), ("trainer_python", program.python)):
        for secret in program.hidden:
            if needed.resolve().is_relative_to(secret.resolve()):
                raise ArgumentError(
                    f"client.{name}: expected a place outside {secret}, which a trainer must not read, found {needed}"
                )


def write_metrics(file: Path, client: str, tally: Tally) -> None:
    """Write a client's counts in Prometheus's text form, for a collector of text files, in place of the last ones.

    A file that cannot be written is logged: it is no reason to end.
    """
    lines = [
        *_outcomes("trainings", client, {"trained": tally.trained, "failed": tally.failed}),
        "# TYPE precad_client_updates_clipped_total counter",
        f'precad_client_updates_clipped_total{{client="{client}"}} {tally.clipped}',
    ]
    if tally.evaluated or tally.evaluations_failed:
        lines += _outcomes("evaluations", client, {"evaluated": tally.evaluated, "failed": tally.evaluations_failed})
    partial = file.with_suffix(".prom.new")
    try:
        partial.write_text("\n".join([*lines, ""]))
        partial.replace(file)
    except OSError as error:
        log.warning("client.metrics_not_written", client=client, file=str(file), reason=error.strerror)


def _outcomes(what: str, client: str, counts: Mapping[str, int]) -> list[str]:
    """Return the lines of a counter by outcome."""
    name = f"precad_client_{what}_total"
    each = [f'{name}{{client="{client}",outcome="{outcome}"}} {count}' for outcome, count in counts.items()]
    return [f"# TYPE {name} counter", *each]
