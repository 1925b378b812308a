"""Read the flags of `precad certify`: which of them belong together, and what each of them stands for.

Evidence comes from a file of confidences, with the training's parameters as flags, or from run folders, which hold
them. A wish (`--plan --attackers K --epsilon E`) needs a task and a lead, from either, or both as flags.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from precad.deploy.errors import ConfigError
from precad.deploy.guarantees.certificates import Request, lead_of_confidences, methods_of, read_confidences
from precad.deploy.guarantees.certifying import DEFAULT_DELTA, certify_folders, certify_given
from precad.deploy.guarantees.planning import plan_wish
from precad.dp.certificates.planner import CentralTask, PrecadTask, Task, Wish
from precad.dp.certificates.prediction import Threat
from precad.protos.task.task import Task as ConfiguredTask

_NAMES: Final = {
    "q": "-q",
    "sigma": "--sigma",
    "rounds": "--rounds",
    "trainings": "--trainings",
    "clients": "--clients",
    "p": "-p",
    "records": "--records",
    "record_clip": "--record-clip",
    "client_clip": "--client-clip",
    "attackers": "--attackers",
    "epsilon": "--epsilon",
}
_OF_RECORDS: Final = ("p", "records", "record_clip", "client_clip")


@dataclass(frozen=True, kw_only=True, slots=True)
class CertifyFlags:
    """The command line, None where nothing was given."""

    confidences: Path | None
    runs: list[Path]
    q: float | None
    sigma: float | None
    rounds: int | None
    delta: float | None
    trainings: int | None
    threat: str
    method: str
    at_most: int
    psi: float
    with_attack_cost: bool
    is_planning: bool
    attackers: int | None
    epsilon: float | None
    lead: tuple[float, float] | None
    clients: int | None
    p: float | None
    records: int | None
    record_clip: float | None
    client_clip: float | None
    most_noise: float

    @property
    def is_wishing(self) -> bool:
        """Return whether a wish is to be planned. Raises ConfigError for one without --plan."""
        is_wish = self.attackers is not None or self.epsilon is not None
        if is_wish and not self.is_planning:
            raise ConfigError("--attackers, --epsilon: expected --plan with them, found none")
        return is_wish

    def certify(self) -> dict[str, Any]:
        """Return the report on the evidence. Raises ConfigError."""
        if (self.confidences is None) == (not self.runs):
            which = "both" if self.runs else "none"
            raise ConfigError(f"--confidences, --run: expected one of the two, found {which}")
        if self.runs:
            self._refuse("q", "sigma", "rounds", "trainings", beside="--run", why="the run folder says it")
            return certify_folders(self.runs, self._request)
        assert self.confidences is not None  # one of the two
        given = self._require("q", "sigma", "rounds")
        found, labels = read_confidences(self.confidences)
        return certify_given(found, labels, self._request(DEFAULT_DELTA), trainings=self.trainings, **given)

    def plan(self) -> dict[str, Any]:
        """Return the report on the wish. Raises ConfigError."""
        wished = self._require("attackers", "epsilon")
        self._refuse("sigma", beside="--attackers", why="it is what is looked for")
        self._refuse("trainings", beside="--attackers", why="a plan takes confidences as they are")
        if self.confidences is not None and self.runs:
            raise ConfigError("--confidences, --run: expected one of the two, found both")
        lead, task = self.lead, None
        if self.runs:
            self._refuse("q", "rounds", "clients", *_OF_RECORDS, beside="--run", why="the run folder says it")
            from precad.deploy.guarantees.run_evidence import read_runs

            evidence = read_runs(self.runs)
            lead = lead or lead_of_confidences(evidence.confidences, evidence.labels)
            task = _task_of_run(evidence.task)
        elif self.confidences is not None:
            lead = lead or lead_of_confidences(*read_confidences(self.confidences))
        if lead is None:
            raise ConfigError("--lead: expected FA and FB, or --confidences or --run to take them from, found none")
        try:
            wish = Wish(
                **wished,
                FA=lead[0],
                FB=lead[1],
                threat=Threat(self.threat),
                most_noise_to_signal=self.most_noise,
            )
            return plan_wish(wish, task or self._task())
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def _request(self, delta: float) -> Request:
        return Request(
            delta=delta if self.delta is None else self.delta,
            threat=Threat(self.threat),
            methods=methods_of(self.method),
            at_most=self.at_most,
            psi=self.psi,
            is_planning=self.is_planning,
            with_attack_cost=self.with_attack_cost,
        )

    def _task(self) -> Task:
        """Return the task: PRECAD's, if records are spoken of, else central DP over users."""
        given = self._require("q", "rounds", "clients")
        n, given["delta"] = given.pop("clients"), DEFAULT_DELTA if self.delta is None else self.delta
        if all(getattr(self, name) is None for name in _OF_RECORDS):
            return CentralTask(n_users=n, **given)
        of_records = self._require(*_OF_RECORDS)
        return PrecadTask(n_clients=n, n_records=of_records.pop("records"), **of_records, **given)

    def _require(self, *names: str) -> dict[str, Any]:
        """Return these flags' values, by name. Raises ConfigError naming all that are missing."""
        missing = [name for name in names if getattr(self, name) is None]
        if missing:
            raise ConfigError("\n".join(f"{_NAMES[name]}: expected a value, found none" for name in missing))
        return {name: getattr(self, name) for name in names}

    def _refuse(self, *names: str, beside: str, why: str) -> None:
        """Raises ConfigError naming those of these flags that were given."""
        lines = [
            f"{_NAMES[name]}: expected none with {beside} ({why}), found {getattr(self, name)}"
            for name in names
            if getattr(self, name) is not None
        ]
        if lines:
            raise ConfigError("\n".join(lines))


def _task_of_run(task: ConfiguredTask) -> PrecadTask:
    """Raises ConfigError for another algorithm's."""
    if task.algorithm != "precad":
        raise ConfigError(f"--run: expected runs of precad with --attackers, found {task.algorithm}")
    return PrecadTask(
        q=task.client_rate,
        p=task.record_rate,
        rounds=task.rounds,
        n_clients=len(task.clients),
        n_records=sum(task.clients.values()),
        record_clip=task.record_clip,
        client_clip=task.client_clip,
        delta=task.delta,
    )
