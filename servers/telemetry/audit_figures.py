"""Read the audit of this task, for whoever watches: `audit.json` in a server's `state_dir`.

`precad audit privacy` writes it, during the task or after it. The file says what an attack showed, and never what is
guaranteed. One that is of another training, or cannot be read, is not shown; a log line says why.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from precad.dp.accountants.pld import View

log = structlog.get_logger(__name__)

FILE: Final = "audit.json"
_MOST_BYTES: Final = 1 << 20
_Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Figures(_Read):
    per_round: _Amount
    f_dp: _Amount
    strict: _Amount


class _Seat(_Read):
    view: View
    participation: Annotated[int, Field(ge=0)]
    printed: _Amount
    figures: _Figures


class _Report(_Read):
    task_digest: str
    confidence: Annotated[float, Field(ge=0.5, lt=1)]
    rounds: Annotated[int, Field(ge=1)]
    observations: Annotated[int, Field(ge=1)]
    passed: bool
    seats: Annotated[tuple[_Seat, ...], Field(min_length=1, max_length=8)]


class AuditedView(_Read):
    """Hold the figures of an attack against one adversary: each the smallest over this adversary's seats."""

    view: View
    lower: float
    """Epsilon that was shown, by single rounds."""
    f_dp: float | None = None
    """Likewise, by guesses in one run and the accountant's curves; None from servers of earlier versions."""
    strict: float | None = None
    """Likewise, by guesses in one run and no assumption."""
    proved: float
    """Epsilon that is proved for the same rounds."""
    participation: int
    """Rounds of an audit client that both are about."""


class Audit(_Read):
    """Hold an audit of the task so far."""

    confidence: float
    rounds: int
    observations: int
    passed: bool
    """Whether nothing contradicts what is proved."""
    views: tuple[AuditedView, ...]


class AuditFile:
    """The file, read again when it changed."""

    def __init__(self, state_dir: Path, task_digest: bytes) -> None:
        self._path, self._task_digest = state_dir / FILE, task_digest.hex()
        self._seen: tuple[int, int, int] | None = None
        self._audit: Audit | None = None

    def read(self) -> Audit | None:
        """Return the audit of this task; None where there is none."""
        try:
            found = self._path.stat()
        except OSError:
            self._seen = self._audit = None
            return None
        if (seen := (found.st_ino, found.st_mtime_ns, found.st_size)) != self._seen:
            self._seen = seen
            self._audit = self._parsed()
        return self._audit

    def _parsed(self) -> Audit | None:
        try:
            with self._path.open("rb") as file:
                content = file.read(_MOST_BYTES + 1)
            if len(content) > _MOST_BYTES:
                raise ValueError(f"expected at most {_MOST_BYTES} bytes")
            report = _Report.model_validate_json(content)
        except OSError as error:
            reason = error.strerror or "it cannot be read"
        except ValidationError as error:
            reason = f"expected an audit, found {error.error_count()} faults in it"
        except ValueError as error:
            reason = str(error)
        else:
            if report.task_digest == self._task_digest:
                return _audit_of(report)
            reason = "expected an audit of this task, found another's"
        log.warning("audit.not_shown", file=FILE, reason=reason)
        return None


def _audit_of(report: _Report) -> Audit:
    views = []
    for view in View:
        if seats := [seat for seat in report.seats if seat.view is view]:
            most = max(seats, key=lambda seat: seat.printed)
            views.append(
                AuditedView(
                    view=view,
                    lower=min(seat.figures.per_round for seat in seats),  # which both servers' seats show
                    f_dp=min(seat.figures.f_dp for seat in seats),
                    strict=min(seat.figures.strict for seat in seats),
                    proved=most.printed,
                    participation=most.participation,
                )
            )
    return Audit(
        confidence=report.confidence,
        rounds=report.rounds,
        observations=report.observations,
        passed=report.passed,
        views=tuple(views),
    )
