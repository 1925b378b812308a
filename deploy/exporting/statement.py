"""Define the statement about an exported model: one JSON text that both servers make alike, so that both can sign it.

Nothing in it depends on who makes it, on when, or on the machine. Epsilons are rounded up to six decimals, so that the
last digits of two processors do not show. Its canonical form is ASCII JSON with sorted keys and without spaces.
Python's `json.dumps(sort_keys=True, separators=(",", ":"))` writes it, and the statement's file holds exactly these
bytes.

Format 2 says of every epsilon whether it holds if draws are discarded. Statements of format 1, whose epsilons of the
rounds that there were do not, are still verified.
"""

from __future__ import annotations

import enum
import hashlib
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from precad.deploy.errors import ExportRefusedError
from precad.deploy.exporting.finished import FinishedTask
from precad.deploy.reporting.certificates import RunCertificate
from precad.deploy.reporting.guarantees import in_words
from precad.deploy.reporting.run_folder import Figures, deployed_statements
from precad.dp.accountants.pld import Conduct, Label, PrivacyStatement, Unit, View, unit_words
from precad.dp.certificates.prediction import LABELS, Method, Threat
from precad.dp.ledgers.ledger import Level
from precad.dp.task_privacy import DRAWS_HIDDEN, TaskPrivacy, task_privacy

FORMAT: Final = "precad/export/2"
FORMAT_1: Final = "precad/export/1"
_DECIMALS: Final = 10**6
_ALIKE: Final = 20
"""Characters before the first in which two texts differ that are shown."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]
Date = Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
Probability = Annotated[float, Field(ge=0, le=1)]


P = TypeVar("P", bound="Part")


class Part(BaseModel):
    """Base of what is signed: nothing may stand beside the fields, and numbers are ones that JSON has."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class TaskPart(Part):
    """Which training."""

    name: str
    algorithm: str
    id: str
    """Identifier of this training; both servers agreed on it when they first met."""
    configuration_sha256: Sha256
    """`Task.digest()`, which `precad check` prints."""


class ModelPart(Part):
    """Which model."""

    architecture: str
    n_parameters: Count
    sha256: Sha256
    """Digest of the parameters as little-endian float32, in the order of `parameters`. Both servers agreed on this
    digest when they committed the last round. Where a bound was learnt, the servers' digest covers the bound as well,
    and differs."""
    initial_sha256: Sha256
    """Digest of the public model that training started from. A learnt bound, and each canary of audit clients, is a
    float32 zero after it."""
    parameters: tuple[str, ...]
    """Their names in the state_dict."""


class RoundsPart1(Part):
    """Count the rounds that were done, in format 1."""

    committed: Count
    charged: Count
    """By the ledger, which counts attempts that gave no model as well."""
    ended: str


class RoundsPart(RoundsPart1):
    """Count the rounds that were done, and the draws that were given up."""

    discarded: Count
    """Draws that were given up before their charge."""


class Counted(enum.StrEnum):
    """Which rounds are composed."""

    ANY = "most rounds that a client can be in"
    DRAWS = "all rounds that can be drawn"
    MOST = "rounds of the client that was in most"
    ALL = "all rounds, whoever was drawn"
    NONE = "none"


_ONE: Final = "add or remove one"


class PrivacyPart1(Part):
    """One row of what the releases revealed at most, in format 1."""

    unit: Unit
    view: View
    counts: Counted
    kind: Label | None
    """A proved upper bound, or nothing is claimed."""
    epsilon: Annotated[float, Field(ge=0, allow_inf_nan=False)] | Literal["inf"] | None
    delta: Probability
    relation: Annotated[str, Field(pattern=r"^add or remove (one|[0-9]{1,4} records of one person)$")] = _ONE
    rests_on: str
    """Under which condition."""


class PrivacyPart(PrivacyPart1):
    """One row of what the releases revealed at most, to an adversary who may do so much."""

    adversary: Conduct
    """Whether it may discard draws and end the task, or watches."""


class CertificatePart(Part):
    """State what predictions of these trainings withstand."""

    threat: Threat
    """`add`: attackers beside all who trained, enrolled then and silent. Rounds must not be lost for whom they drew."""
    label: Label
    n_trainings: Count
    trainings_needed: Count
    """Fewer prove nothing, were a model ever so certain."""
    confidence: Probability
    """With which the bounds hold, all together."""
    n_samples: Count
    certified_accuracy: tuple[Probability, ...]
    """After k = 0, 1, ... attackers."""
    tolerated: Count
    """The most attackers that any prediction is proved to withstand. 0: the certificate is vacuous."""


class PoisoningPart(Part):
    """Against malicious clients."""

    client_clip: float
    """C: an upload longer than that enters the sum with probability at most 2^`log2_probability`, if all servers
    follow the protocol, the dealer too."""
    log2_probability: float
    """0 where no norm was checked: any upload enters the sum."""
    certificate: CertificatePart | None
    why_none: str


class _Statement(Part):
    """Hold the fields that all formats have."""

    task: TaskPart
    model: ModelPart
    poisoning: PoisoningPart
    guarantee: str
    """In one sentence, what is guaranteed against whom."""
    date: Date | None
    """The day that the operators agreed on; null where they agreed on none."""

    def canonical(self) -> bytes:
        """Return the bytes that the file holds and that digests are of."""
        return canonical(self)


class ExportStatement1(_Statement):
    """All of it, in format 1."""

    format: Literal["precad/export/1"] = FORMAT_1
    rounds: RoundsPart1
    privacy: tuple[PrivacyPart1, ...]


class ExportStatement(_Statement):
    """All of it."""

    format: Literal["precad/export/2"] = FORMAT
    rounds: RoundsPart
    privacy: tuple[PrivacyPart, ...]


def canonical(part: Part) -> bytes:
    """Return the one text of these values."""
    return json.dumps(part.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def sha256(content: bytes) -> str:
    """Return the SHA-256 in hex."""
    return hashlib.sha256(content).hexdigest()


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hex; the file may be larger than memory. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parse(content: bytes, kind: type[P], where: str) -> P:
    """Return the values of a canonical text. Raises ExportRefusedError for any other text."""
    try:
        found = kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "text"
        raise ExportRefusedError(f"{where}: {field}: {first['msg']}") from None
    if canonical(found) != content:
        raise ExportRefusedError(f"{where}: expected canonical JSON (docs/guides/export.md), found another form of it")
    return found


def parse_statement(content: bytes, where: str) -> ExportStatement | ExportStatement1:
    """Return a statement of whichever format it says. Raises ExportRefusedError, as `parse`."""
    is_of_format_1 = f'"format":"{FORMAT_1}"'.encode() in content  # in a field's text the quotes would be escaped
    return parse(content, ExportStatement1, where) if is_of_format_1 else parse(content, ExportStatement, where)


def difference(ours: Part, theirs: Part) -> str | None:
    """Return the first field, in the order of names, in which two statements differ, with both values; None if none
    does."""
    return _difference(ours.model_dump(mode="json"), theirs.model_dump(mode="json"), "")


def _difference(ours: Any, theirs: Any, name: str) -> str | None:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys()):
            if (found := _difference(ours.get(key), theirs.get(key), f"{name}.{key}" if name else key)) is not None:
                return found
        return None
    if ours == theirs:
        return None
    if isinstance(ours, str) and isinstance(theirs, str):  # of long texts, from where they differ
        alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False))
        begin = max(0, len(list(alike)) - _ALIKE)
        ours, theirs = (text if begin == 0 else f"..{text[begin:]}" for text in (ours, theirs))
    return f"{name}: {ours!r:.100} and {theirs!r:.100}"


def statement_of(
    finished: FinishedTask, names: Sequence[str], certificate: RunCertificate | str, *, date: str | None = None
) -> ExportStatement:
    """State what is known of a finished task. names: of the parameters, in the order of the flat vector. certificate:
    or why there is none."""
    task = finished.task
    privacy = task_privacy(task).beside(finished.earlier)
    words = deployed_statements(task, privacy, _figures(finished), finished.most_rounds)
    return ExportStatement(
        task=TaskPart(
            name=task.name, algorithm=task.algorithm, id=finished.task_id, configuration_sha256=task.digest().hex()
        ),
        model=ModelPart(
            architecture=task.model,
            n_parameters=task.n_parameters,
            sha256=finished.model_sha256,
            initial_sha256=finished.initial_model_sha256,
            parameters=tuple(names),
        ),
        rounds=RoundsPart(
            committed=finished.n_committed,
            charged=finished.n_charged,
            ended=finished.ended,
            discarded=finished.n_discarded,
        ),
        privacy=_privacy(finished, privacy),
        poisoning=PoisoningPart(
            client_clip=task.client_clip,
            log2_probability=_upwards(task.norm_check.log2_soundness_error) if task.checks_norms else 0.0,
            certificate=certificate_part(certificate) if isinstance(certificate, RunCertificate) else None,
            why_none="" if isinstance(certificate, RunCertificate) else certificate,
        ),
        guarantee=in_words(words, certificate, with_notes=privacy.says_conditions) + _of_all(certificate),
        date=date,
    )


def _of_all(certificate: RunCertificate | str) -> str:
    """Say that the privacy is of one training, where the certificate publishes confidences of several."""
    if isinstance(certificate, str) or certificate.n_trainings < 2:
        return ""
    return (
        " The privacy is that of one training. The certificate publishes mean confidences of "
        f"{certificate.n_trainings}: whoever's records are in all of them has spent more, by `precad certify --run`."
    )


def _figures(finished: FinishedTask) -> dict[View | Level, Figures | None]:
    """Return both figures of each statement, as reports have them."""
    found: dict[View | Level, Figures | None] = {
        view: Figures(said.epsilon, finished.views[Conduct.WATCHES][view].epsilon)
        for view, said in finished.views[Conduct.MAY_DISCARD].items()
    }
    for level, said in finished.levels[Conduct.MAY_DISCARD].items():
        found[level] = Figures(said.epsilon, finished.levels[Conduct.WATCHES][level].epsilon)
    return found


def _privacy(finished: FinishedTask, privacy: TaskPrivacy) -> tuple[PrivacyPart, ...]:
    """State both views of what the algorithm protects, and the levels that are accounted beside it.

    Where a record is protected, nothing is claimed of a whole client against a server. Every statement comes first as
    it holds if draws may be discarded.
    """
    rows, n = list[PrivacyPart](), privacy.most_evaluations
    beside = f"; beside the rounds, evaluations by clients count, at most {n} of them" if n else ""
    rests_on = {view: f"{why}{beside}" for view, why in privacy.rests_on.items()}
    against_clients = rests_on[View.CLIENTS_ONLY]
    for conduct in Conduct:
        views, levels = finished.views[conduct], finished.levels[conduct]
        of_views, of_levels = _COUNTED[Conduct.MAY_DISCARD if finished.counts_hidden_draws else conduct]
        if of_levels is Counted.ALL and finished.task.hides_draws:
            of_views = of_levels
        rows += [
            _row(said, of_views, rests_on[view], conduct, is_proved=privacy.events[view] is not None)
            for view, said in views.items()
        ]
        rows += [
            _row(said, of_levels, _rests_on(level, against_clients), conduct, is_proved=True)
            for level, said in levels.items()
        ]
        if privacy.unit is Unit.RECORD:
            unclaimed = replace(views[View.ONE_SERVER], unit=Unit.CLIENT, group_size=1)
            rows.append(_row(unclaimed, Counted.NONE, "it is not accounted", conduct, is_proved=False))
    return tuple(rows)


def _rests_on(level: Level, of_view: str) -> str:
    return f"{DRAWS_HIDDEN}; {of_view}" if level is Level.HIDDEN_CLIENT else of_view


_COUNTED: Final = {
    Conduct.MAY_DISCARD: (Counted.ANY, Counted.DRAWS),
    Conduct.WATCHES: (Counted.MOST, Counted.ALL),
}


def _row(said: PrivacyStatement, counts: Counted, rests_on: str, conduct: Conduct, *, is_proved: bool) -> PrivacyPart:
    return PrivacyPart(
        unit=said.unit,
        view=said.view,
        adversary=conduct,
        counts=counts,
        kind=said.label if is_proved else None,
        epsilon=_epsilon(said.epsilon) if is_proved else None,
        delta=said.delta,
        relation=_ONE if said.group_size == 1 else f"add or remove {unit_words(said.unit, said.group_size)}",
        rests_on=rests_on,
    )


def _epsilon(epsilon: float) -> float | Literal["inf"]:
    return _upwards(epsilon) if math.isfinite(epsilon) else "inf"


def _upwards(bound: float) -> float:
    """Return a bound with six decimals, rounded up."""
    return math.ceil(bound * _DECIMALS) / _DECIMALS


def certificate_part(found: RunCertificate) -> CertificatePart:
    """Return what is stated of a certificate."""
    return CertificatePart(
        threat=Threat.ADD,
        label=LABELS[Method.EXACT],
        n_trainings=found.n_trainings,
        trainings_needed=found.trainings_needed,
        confidence=found.confidence,
        n_samples=found.n_samples,
        certified_accuracy=found.proved[: found.tolerated + 1],
        tolerated=found.tolerated,
    )
