"""State what is guaranteed against whom, in a sentence, and row by row with what it rests on.

Only proved bounds are guarantees. Accuracy under a simulated attack and certificates estimated from too few models are
measurements, and nothing here calls them anything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from precad.deploy.configuration.trainers import NO_RECORD_FIGURE
from precad.deploy.reporting.certificates import AT_MOST, RunCertificate
from precad.deploy.reporting.numbers import power_of_ten
from precad.deploy.reporting.runs import Run, Statement
from precad.deploy.shown.figures import LARGEST_USEFUL, NO_USEFUL_BOUND, rounded_down, says_nothing, three_digits_up
from precad.dp.accountants.pld import Unit, View
from precad.dp.accountants.slack import NO_BOUND, why_no_bound
from precad.dp.conditions import OF_SERVERS
from precad.dp.task_privacy import task_privacy

_NEXT_TO_NOTHING: Final = 10.0
"""An epsilon above it rules out almost nothing: e^10 is 22 026."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """One row."""

    against: str
    what: str
    rests_on: str
    is_proved: bool
    """Whether there is anything."""


def sentence(run: Run, certificate: RunCertificate | str) -> str:
    """Return all of it, shortly."""
    text = in_words(run.statements, certificate, with_notes=run.is_simulation or run.says_conditions)
    if not run.is_simulation:
        return text
    which = "any one of these trainings" if len(run.trainings) > 1 else "this training"
    return f"of {which}, had it drawn from the operating system's generator (from seeds it protects nobody): {text}"


def in_words(statements: Sequence[Statement], certificate: RunCertificate | str, *, with_notes: bool = False) -> str:
    """Say in one sentence what the statements and the certificate guarantee. with_notes: what an algorithm takes for
    granted. For PRECAD without a function of the sum the sentence says who is corrupted, and no more."""
    parts = [_privacy(statements, with_notes=with_notes)]
    if isinstance(certificate, RunCertificate):
        parts.append(f"against poisoning, {_with_conditions(certificate)}")
    return "; ".join(parts) + "."


def _privacy(statements: Sequence[Statement], *, with_notes: bool) -> str:
    """Return the statements about records, or about clients where there are no others."""
    wanted = [s for s in statements if s.unit is Unit.RECORD] or list(statements)
    proved = [statement for statement in wanted if _is_proved(statement)]
    if not proved:
        return f"for {wanted[0].whose} nothing is guaranteed" + (f": {why}" if (why := _why(wanted[0])) else "")
    found = [f"{_bound(s)} against {_who(s)}{f' ({s.note})' if with_notes and s.note else ''}" for s in proved]
    found += [f"nothing against {s.against}" for s in wanted if not _is_proved(s)]
    whose = f"{proved[0].whose}{' of a client that follows the protocol' if proved[0].unit is Unit.RECORD else ''}"
    return f"for {whose}, added or removed, it is proved that {', and '.join(found)}, at {_at(proved[0])}"


def _bound(statement: Statement) -> str:
    """Return the bound with the second figure, of whoever assumes more."""
    assert statement.epsilon is not None  # of those that are proved
    text = f"ε\u00a0≤\u00a0{three_digits_up(statement.epsilon)}"
    if statement.realised is None:
        return text
    return f"{text} ({three_digits_up(statement.realised)} if no draw is discarded)"


def _who(statement: Statement) -> str:
    """Return the adversary of the first figure."""
    return statement.against + (", draws discarded or not" if statement.realised is not None else "")


def _at(statement: Statement) -> str:
    return f"δ\u00a0=\u00a0{power_of_ten(statement.delta)}"


def _why(statement: Statement, slack: float = 0.0) -> str:
    """Say why nothing is guaranteed. slack: what the task's mode takes of delta, where that is known."""
    if statement.epsilon is None:
        return statement.note
    if says_nothing(statement.epsilon):
        return f"{NO_USEFUL_BOUND}: ε is above {LARGEST_USEFUL:g}"
    return why_no_bound(statement.delta, slack) if slack else f"{NO_BOUND} at {_at(statement)}"


def _is_proved(statement: Statement) -> bool:
    return statement.epsilon is not None and statement.epsilon <= LARGEST_USEFUL


def _certified(certificate: RunCertificate) -> str:
    if certificate.tolerated == 0:
        return "the certificate is VACUOUS: no prediction is proved to withstand even one further attacker"
    return (
        f"with probability {certificate.confidence:g}, a share of {rounded_down(certificate.proved[1])} of the "
        f"{certificate.n_samples} predictions withstands one further attacker, and some withstand "
        f"{certificate.tolerated}{' or more' if certificate.tolerated == AT_MOST else ''}"
    )


def _with_conditions(certificate: RunCertificate) -> str:
    """Return what is certified and, where that is something, what it rests on."""
    conditions = certificate.rests_on if certificate.tolerated else ()
    return "".join((_certified(certificate), *(f", if {condition}" for condition in conditions)))


def guarantees_of(run: Run, certificate: RunCertificate | str) -> list[Guarantee]:
    """Return the guarantees, row by row."""
    rows = [_of_statement(run, statement) for statement in run.statements]
    if run.client.trainer is not None:
        rows.append(
            Guarantee(
                against="whoever asks after one record",
                what="no figure is shown for one record",
                rests_on=NO_RECORD_FIGURE,
                is_proved=False,
            )
        )
    if run.has_two_servers:
        rows.append(_of_norms(run))
    if run.answer is None:
        rows.append(_of_poisoning(certificate))
    seen = "when answers come, or" if run.answer is not None else "when uploads come,"
    tested = "" if run.answer is not None else ", or how a model does on test records"
    rows.append(
        Guarantee(
            against=f"whoever sees {seen} which clients are missing{tested}",
            what="no epsilon counts these",
            rests_on="",
            is_proved=False,
        )
    )
    if run.is_validated and not task_privacy(run.task).is_local:
        rows.append(
            Guarantee(
                against=f"both servers together{'' if run.task.is_proved else ', or a server and the dealer'}",
                what="together they hold every update",
                rests_on="",
                is_proved=False,
            )
        )
    return rows


def _of_statement(run: Run, statement: Statement) -> Guarantee:
    if not _is_proved(statement):
        return Guarantee(
            against=statement.against,
            what=f"nothing is guaranteed for {statement.whose}",
            rests_on=_why(statement, run.task.delta_slack),
            is_proved=False,
        )
    is_weak = statement.epsilon is not None and statement.epsilon > _NEXT_TO_NOTHING
    weak = "; a bound this large rules out next to nothing" if is_weak else ""
    which = "any client" if statement.unit is Unit.CLIENT else "the client that was in most rounds"
    if statement.realised is not None:
        which = "any client" if statement.most_rounds is None else f"a client in up to {statement.most_rounds} rounds"
    seeds = ", largest of all seeds" if len(run.trainings) > 1 else ""
    return Guarantee(
        against=_who(statement),
        what=f"{_bound(statement)} at {_at(statement)} for {statement.whose}, added or removed{weak}",
        rests_on="; ".join(filter(None, (f"for {which}{seeds}", statement.note))),
        is_proved=True,
    )


def _of_norms(run: Run) -> Guarantee:
    against = "clients that upload whatever they like"
    if not run.is_validated:
        return Guarantee(against=against, what="no norm is checked", rests_on="", is_proved=False)
    probability = "below 2⁻⁶³" if run.task.is_proved else "at most 2⁻⁶⁴"
    if run.answer is not None:
        return Guarantee(
            against="clients that answer whatever they like",
            what=f"an answer of more than C = {run.task.client_clip:g} records enters the sum with probability "
            f"{probability}",
            rests_on=f"per answer; {OF_SERVERS[View.CLIENTS_ONLY]}. A lie of up to C records is not excluded",
            is_proved=True,
        )
    return Guarantee(
        against=against,
        what=f"an update longer than C = {run.task.client_clip:g} enters the sum with probability {probability}",
        rests_on=f"per upload; {OF_SERVERS[View.CLIENTS_ONLY]}. Poisoning within the bound is not excluded",
        is_proved=True,
    )


def certificate_in_words(certificate: RunCertificate | str) -> str:
    """Return what the certificate says of further attackers, on one line."""
    stated = _of_poisoning(certificate)
    what = stated.what.removeprefix("the certificate is ")
    return f"{what}; {stated.rests_on}" if isinstance(certificate, RunCertificate) else f"none: {certificate}"


def _of_poisoning(certificate: RunCertificate | str) -> Guarantee:
    against = "further malicious clients who poison the training"
    if isinstance(certificate, str):
        return Guarantee(against=against, what="no certificate", rests_on=certificate, is_proved=False)
    n, needed = certificate.n_trainings, certificate.trainings_needed
    return Guarantee(
        against=against,
        what=_certified(certificate),
        rests_on=f"{n} training{'s' if n > 1 else ''} of this configuration; "
        f"from fewer than {needed} nothing can follow. Attackers of the configuration are part of the training"
        + "".join(f"; {condition}" for condition in certificate.rests_on),
        is_proved=certificate.tolerated > 0,
    )
