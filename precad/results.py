"""Results of the functions of `import precad`: the figures that people ask for, typed, and the whole report.

`report` and `summary` are what the command of that name prints with `--json`. An infinite epsilon is a float here, and
the string "inf" there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from precad.dp.accountants.pld import Label, View

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import nn


@dataclass(frozen=True, slots=True)
class Epsilon:
    """One accountant's figure, and what the figure is: a proved bound, an approximation, a published formula."""

    value: float
    label: Label


@dataclass(frozen=True, slots=True)
class ViewAccount:
    """Cost of a training for one record, against one adversary. Every epsilon is at the account's delta."""

    epsilon: float
    """Proved, for an adversary who only watches."""
    epsilon_if_discarded: float
    """Proved, for one who may discard draws: makes rounds fail, or ends the task, for what it saw."""
    most_rounds: int
    """Rounds that `epsilon_if_discarded` counts."""
    accountants: Mapping[str, Epsilon]
    """Every accountant's figure of the training's rounds, without evaluations, by its name."""

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Self:
        """Read one view of a report."""
        return cls(
            epsilon=float(found["bound"]),
            epsilon_if_discarded=float(found["if_discarded"]["epsilon"]),
            most_rounds=found["if_discarded"]["rounds"],
            accountants=_accountants(found),
        )


@dataclass(frozen=True, slots=True)
class ClientAccount:
    """Cost of a training for a whole client, against other clients."""

    epsilon: float
    """Proved, for an adversary who only watches."""
    epsilon_if_discarded: float
    """Proved, for one who may discard draws."""
    noise_multiplier: float
    """Noise of both servers over the client clip."""
    accountants: Mapping[str, Epsilon]
    """Every accountant's figure of the training's rounds, by its name."""

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Self:
        """Read a report's figures of a whole client."""
        return cls(
            epsilon=float(found["bound"]),
            epsilon_if_discarded=float(found["if_discarded"]),
            noise_multiplier=found["noise_multiplier"],
            accountants=_accountants(found),
        )


@dataclass(frozen=True, slots=True)
class Calibration:
    """Which noise meets a target epsilon, against one adversary."""

    smallest_sigma: float
    """Least noise that is enough, whether draws are discarded or not."""
    smallest_sigma_if_no_draw_is_discarded: float
    most_rounds_of_a_client: int
    """Rounds of a client that the target allows with the account's sigma."""


@dataclass(frozen=True, slots=True)
class Account:
    """Cost of a training. `precad.account` makes it."""

    sigma: float
    """Each server's noise over the record clip."""
    q: float
    """Rate of clients in a round."""
    p: float
    """Rate of a client's records in a round."""
    rounds: int
    delta: float
    participation: int
    """Rounds that the client takes part in: as given, or the expected number."""
    one_server: ViewAccount
    """One server is corrupted, with any clients."""
    clients_only: ViewAccount
    """Only clients are corrupted."""
    client_level: ClientAccount | None
    """None unless both clips are known."""
    calibrated: Mapping[View, Calibration] | None
    """None unless a target was given."""
    warnings: tuple[str, ...]
    report: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Self:
        """Read the report of `precad account --json`."""
        client, calibrated = report.get("client_level"), report.get("calibrated")
        return cls(
            **{name: report[name] for name in ("sigma", "q", "p", "rounds", "delta", "participation")},
            one_server=ViewAccount.of(report[View.ONE_SERVER.value]),
            clients_only=ViewAccount.of(report[View.CLIENTS_ONLY.value]),
            client_level=client and ClientAccount.of(client),
            calibrated=calibrated and {view: Calibration(**calibrated[view.value]) for view in View},
            warnings=tuple(report["warnings"]),
            report=report,
        )


@dataclass(frozen=True, slots=True)
class Certificates:
    """How many attackers predictions withstand. `precad.certify` makes it."""

    tolerated: Mapping[str, Sequence[int]]
    """How many attackers leave each sample's prediction as it is, by method; 0 says nothing of attackers."""
    certified_accuracy: Mapping[str, Sequence[float]]
    """Share of samples with a right prediction that k attackers leave as it is: k = 0, 1, ..., by method."""
    labels: Mapping[str, Label]
    """Whether a method is a proved bound or a published formula."""
    accuracy: float
    """Share of samples with a right prediction, without an attack."""
    confidence: float | None
    """Probability that all of it holds; None where the confidences were taken as exact."""
    estimate: Mapping[str, Any] | None
    """For runs, the certificate if their mean were the expectation: an approximation, not a guarantee."""
    report: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Self:
        """Read the report of `precad certify --json`."""
        return cls(
            tolerated=report["tolerated"],
            certified_accuracy=report["certified_accuracy"],
            labels={method: Label(label) for method, label in report["labels"].items()},
            accuracy=report["accuracy"],
            confidence=report["confidence"],
            estimate=report.get("estimate"),
            report=report,
        )


@dataclass(frozen=True, slots=True)
class SeedResult:
    """One training of a simulation."""

    seed: int
    rounds: int
    ended: str
    """Why it is over, for people."""
    model_is_finite: bool
    accuracy: float | None
    """On the test records, in [0, 1]; None where labels are no classes. `summary["metrics"]` has other metrics."""
    attack_success: float | None
    """The attackers' accuracy on what they aim at; None where they aim at nothing."""
    rejected_clients: tuple[str, ...]
    guarantees: tuple[str, ...]
    """Everything that the training guarantees, a sentence each."""
    folder: Path
    model: str
    """Name of the architecture."""
    summary: Mapping[str, Any] = field(repr=False)
    build: Callable[[int], nn.Module] = field(repr=False)
    """Makes the model from a seed."""

    @classmethod
    def of(cls, found: Mapping[str, Any], folder: Path, model: str, build: Callable[[int], nn.Module]) -> Self:
        """Read one seed's summary."""
        return cls(
            **{name: found[name] for name in ("seed", "rounds", "ended", "model_is_finite", "accuracy")},
            attack_success=found["attack_success"],
            rejected_clients=tuple(found["rejected_clients"]),
            guarantees=tuple(guarantee["sentence"] for guarantee in found["guarantees"]),
            folder=folder,
            model=model,
            summary=found,
            build=build,
        )

    def metrics(self) -> list[dict[str, Any]]:
        """Read the rounds, one object each: `round`, `chosen`, `accepted`, `rejected`, `seconds`, what was measured."""
        return _json_lines(self.folder / f"seed-{self.seed}.jsonl")[: self.rounds]

    def parameters(self) -> NDArray[np.float32]:
        """Read the model as one vector, (d,), with the learnt bound last where the task learns one.

        Raises: ConfigError once the folder was continued. The guarantees here are not those of its model.
        """
        import numpy as np

        from precad.deploy.errors import ConfigError

        path = self.folder / f"seed-{self.seed}.npz"
        with np.load(path, allow_pickle=False) as saved:
            found: NDArray[np.float32] = saved["parameters"]
            rounds = int(saved["rounds"])
        if rounds != self.rounds:
            raise ConfigError(f"{path}: expected the model of {self.rounds} rounds, found one of {rounds}")
        return found

    def load_model(self) -> nn.Module:
        """Return the trained PyTorch model."""
        from precad.clients.models import networks

        found, model = self.parameters(), self.build(0)
        return networks.trained(model, found[: networks.parameter_count(model)])


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """Trainings in one process. `precad.simulate` makes it."""

    seeds: tuple[SeedResult, ...]
    algorithm: str
    folder: Path
    """Configuration, rounds and models; the same call with this folder goes on where it stopped."""
    summary: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, summary: Mapping[str, Any], *, build: Callable[[int], nn.Module] | None = None) -> Self:
        """Read the summary of `precad simulate --json`. build: makes the model; None: its name does."""
        folder, model = Path(summary["output"]).absolute(), summary["model"]
        make = _by_name(model, summary.get("model_arguments", {})) if build is None else build
        return cls(
            seeds=tuple(SeedResult.of(found, folder, model, make) for found in summary["seeds"]),
            algorithm=summary["algorithm"],
            folder=folder,
            summary=summary,
        )

    def require_fulfilled(self) -> None:
        """Raise UnfulfilledError, a line for each seed, where a training diverged or had no round."""
        from precad.lab.simulation.simulate import require_fulfilled

        require_fulfilled(self.summary)


@dataclass(frozen=True, slots=True)
class RunResult:
    """A deployment on this machine. `precad.run` makes it. Every epsilon is a proved bound at `delta`."""

    rounds: int
    ended: str
    """Why it is over, for people."""
    accuracy: float | None
    """On the test records, in [0, 1]; None where labels are no classes. `summary["metrics"]` has other metrics."""
    accepted: int
    """Uploads."""
    rejected: int
    missing: int
    rejected_clients: tuple[str, ...]
    epsilon_one_server: float
    """The task's unit, one record in PRECAD, against a server that may discard draws, with any clients."""
    epsilon_clients_only: float
    """That unit, against clients that may discard draws."""
    delta: float
    seconds_total: float
    folder: Path
    """Configuration, rounds, model, report, logs, certificates and the servers' state."""
    model: str
    """Name of the architecture."""
    summary: Mapping[str, Any] = field(repr=False)
    model_arguments: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, summary: Mapping[str, Any], model: str, arguments: Mapping[str, Any]) -> Self:
        """Read the summary of `precad run --json`."""
        same = ("rounds", "ended", "accuracy", "accepted", "rejected", "missing", "delta", "seconds_total")
        return cls(
            **{name: summary[name] for name in same},
            rejected_clients=tuple(summary["rejected_clients"]),
            epsilon_one_server=float(summary["epsilon_one_server"]),
            epsilon_clients_only=float(summary["epsilon_clients_only"]),
            folder=Path(summary["output"]),
            model=model,
            summary=summary,
            model_arguments=arguments,
        )

    def metrics(self) -> list[dict[str, Any]]:
        """Read the rounds, one object each: who was in, bytes by link, seconds by step, epsilons so far, accuracy."""
        return _json_lines(self.folder / "metrics.jsonl")

    def load_model(self) -> nn.Module:
        """Return the trained PyTorch model."""
        import torch

        from precad.clients.models import networks

        model = networks.build(self.model, arguments=self.model_arguments)
        model.load_state_dict(torch.load(self.folder / "model.pt", weights_only=True))
        return model


@dataclass(frozen=True, slots=True)
class AuditedSeat:
    """Figures that an attack from one place showed: lower ones of epsilon, never a bound."""

    view: View
    printed: float
    """Proved epsilon of the rounds that were observed."""
    per_round: float
    """From single rounds, with a parametric test: the default figure."""
    f_dp: float
    """From guesses in one run, by the accountant's curves."""
    strict: float
    """From guesses in one run, with no assumption."""
    alarms: tuple[str, ...]
    """Contradictions of the printed round, a line each."""


@dataclass(frozen=True, slots=True)
class AuditResult:
    """An audit of a run. `precad.audit` makes it."""

    passed: bool
    """Whether nothing contradicts what is proved. At 95 % a sound run fails in at most one audit of twenty."""
    label: str
    """Name of its figures, such as `audit (95 %)`."""
    observations: int
    """Pairs of a round and a canary."""
    seats: Mapping[str, AuditedSeat]
    """By place: `server_a` and `server_b`, where that server kept its noise, and `clients`."""
    report: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Self:
        """Read the report of `precad audit privacy --json`."""
        return cls(
            passed=report["passed"],
            label=report["label"],
            observations=report["observations"],
            seats={
                seat["seat"]: AuditedSeat(
                    View(seat["view"]), float(seat["printed"]), **seat["figures"], alarms=tuple(seat["alarms"])
                )
                for seat in report["seats"]
            },
            report=report,
        )


@dataclass(frozen=True, slots=True)
class Signature:
    """One server's signature on an export."""

    certificate_sha256: str
    """In hexadecimal, as every digest here."""
    signed_on: str
    audit_log_chain: str
    ledger_chain: str
    """Empty where the task hides draws."""


@dataclass(frozen=True, slots=True)
class VerifiedExport:
    """An exported model, once every check has passed. `precad.verify_export` makes it."""

    guarantee: str
    """The servers' statement of what the model guarantees, for people."""
    signatures: Mapping[str, Signature]
    """By role: `aggregator-a`, `aggregator-b`."""
    files: Mapping[str, Sequence[str]]
    """Files of the model, and which roles signed each."""
    statement_sha256: str
    certificate: str
    """Against poisoning: `recomputed` from evidence in the folder, only `as stated`, or `none`."""
    audit: str
    """Sentence on what an attack on this training showed; or `none`."""
    statement: Mapping[str, Any] = field(repr=False)
    report: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Self:
        """Read the report of `precad verify-export --json`."""
        return cls(
            guarantee=report["statement"]["guarantee"],
            signatures={role: Signature(**found) for role, found in report["signatures"].items()},
            files=report["files"],
            statement_sha256=report["statement_sha256"],
            certificate=report["certificate"],
            audit=report["audit"],
            statement=report["statement"],
            report=report,
        )


def _by_name(model: str, arguments: Mapping[str, Any]) -> Callable[[int], nn.Module]:
    """Return what makes a model of that name from a seed."""

    def build(seed: int) -> nn.Module:
        from precad.clients.models import networks

        return networks.build(model, seed=seed, arguments=arguments)

    return build


def _accountants(found: Mapping[str, Any]) -> dict[str, Epsilon]:
    rows: Mapping[str, Mapping[str, Any]] = found["accountants"]
    return {name: Epsilon(float(row["epsilon"]), Label(row["label"])) for name, row in rows.items()}


def _json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
