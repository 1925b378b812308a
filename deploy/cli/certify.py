"""`precad certify`: its flags, which of them belong together, and what each of them stands for.

Evidence comes from a file of confidences, with the training's parameters as flags, or from run folders, which hold
them. A wish (`--plan --attackers K --epsilon E`) needs a task and a lead, from either, or both as flags.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from precad.deploy.cli.declared import declared
from precad.deploy.cli.shown import Shown
from precad.deploy.errors import ConfigError, flag_of

if TYPE_CHECKING:
    from precad.deploy.guarantees.certificates import Request
    from precad.dp.accountants.earlier_rounds import EarlierTask
    from precad.protos.task.task import Task

_OF_RECORDS: Final = ("p", "records", "record_clip", "client_clip")
_PER_PERSON: Final = "records_per_person"
_OF_WISHES: Final = ("lead", "clients", *_OF_RECORDS, _PER_PERSON, "most_noise")
_OF_EVIDENCE: Final = ("method", "at_most", "psi", "attack_cost")


class ThreatName(StrEnum):
    """The attackers' relation to the training: they join it, or replace members."""

    ADD = "add"
    REPLACE = "replace"


class MethodName(StrEnum):
    """Ways to bound the number of attackers."""

    PUBLISHED = "published"
    PLD = "pld"
    EXACT = "exact"
    ALL = "all"


@dataclass(frozen=True, kw_only=True)
class CertifyFlags(Shown):
    """Count the poisoning attackers that predictions withstand, and plan a training that withstands more."""

    confidences: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Read lists `confidences` and `labels` from this file.")
    ] = None
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            "--run", metavar="DIR", help="Take the evidence of this run folder; repeat for runs of one configuration."
        ),
    ] = None
    q: Annotated[
        float | None, typer.Option("-q", "--client-rate", help="Draw each attacking unit for a round at this rate.")
    ] = None
    sigma: Annotated[float | None, typer.Option(help="Set the noise over the clip of one attacking unit.")] = None
    rounds: Annotated[int | None, typer.Option(help="Count T rounds; the planner takes it as the most.")] = None
    delta: Annotated[
        float | None, typer.Option(help="Take this delta in the published method and the planner; 1e-5, or the run's.")
    ] = None
    threat: Annotated[ThreatName, typer.Option(help="Choose whether attackers join, or replace benign units.")] = (
        ThreatName.ADD
    )
    method: Annotated[
        MethodName | None, typer.Option(help="Choose how the number of attackers is bounded: all ways unless given.")
    ] = None
    at_most: Annotated[
        int | None, typer.Option(help="Stop the search at so many attackers: 128 unless given.", min=1)
    ] = None
    trainings: Annotated[
        int | None, typer.Option(help="Take the confidences as means of so many trainings; exact without.")
    ] = None
    psi: Annotated[
        float | None, typer.Option(help="Accept this probability that the trainings mislead: 0.01 unless given.")
    ] = None
    attack_cost: Annotated[
        bool, typer.Option("--attack-cost", help="Bound the expected confidence in the true class, by attackers.")
    ] = False
    is_planning: Annotated[
        bool, typer.Option("--plan", help="Find the least sigma for the median lead, by attackers; or for a wish.")
    ] = False
    attackers: Annotated[
        int | None, typer.Option(help="Wish, with --plan, for so many attackers to be tolerated.", min=1)
    ] = None
    epsilon: Annotated[float | None, typer.Option(help="Wish, with --plan, for an epsilon no larger.")] = None
    lead: Annotated[
        tuple[float, float] | None, typer.Option(metavar="FA FB", help="Plan for a prediction with this lead.")
    ] = None
    clients: Annotated[int | None, typer.Option(help="Plan with n clients.")] = None
    p: Annotated[
        float | None,
        typer.Option("-p", "--record-rate", help="Plan with this rate of records; without one, for users."),
    ] = None
    records: Annotated[int | None, typer.Option(help="Plan with so many records of all clients together.")] = None
    records_per_person: Annotated[
        int | None, typer.Option(help="Plan for so many records of one person together, all of one client.", min=1)
    ] = None
    record_clip: Annotated[float | None, typer.Option(help="Plan with this R.")] = None
    client_clip: Annotated[float | None, typer.Option(help="Plan with C, or less.")] = None
    most_noise: Annotated[
        float | None, typer.Option(help="Call a wish out of reach beyond this noise over signal: 1 unless given.")
    ] = None

    @property
    def is_wishing(self) -> bool:
        """Return whether a wish is to be planned. Raises ConfigError for one without --plan."""
        is_wish = self.attackers is not None or self.epsilon is not None
        if is_wish and not self.is_planning:
            raise ConfigError("--attackers, --epsilon: expected --plan with them, found none")
        return is_wish

    def certify(self) -> dict[str, Any]:
        """Return the report on the evidence. Raises ConfigError."""
        self._refuse(*_OF_WISHES, where="without --attackers and --epsilon", why="a wish alone reads it")
        from precad.deploy.guarantees.certificates import read_confidences
        from precad.deploy.guarantees.certifying import DEFAULT_DELTA, certify_folders, certify_given

        if (self.confidences is None) == (not self.runs):
            which = "both" if self.runs else "none"
            raise ConfigError(f"--confidences, --run: expected one of the two, found {which}")
        if self.runs:
            self._refuse("q", "sigma", "rounds", "trainings", where="with --run", why="the run folder says it")
            return certify_folders(self.runs, self._request)
        assert self.confidences is not None  # one of the two
        if self.trainings is None:
            self._refuse("psi", where="without --trainings", why="the confidences are taken as exact")
        given = self._require("q", "sigma", "rounds")
        found, labels = read_confidences(self.confidences)
        return certify_given(found, labels, self._request(DEFAULT_DELTA), trainings=self.trainings, **given)

    def plan(self) -> dict[str, Any]:
        """Return the report on the wish. Raises ConfigError."""
        from precad.deploy.guarantees.planning import plan_given

        wished = self._require("attackers", "epsilon")
        self._refuse("sigma", where="with --attackers", why="it is what is looked for")
        self._refuse("trainings", where="with --attackers", why="a plan takes confidences as they are")
        self._refuse(*_OF_EVIDENCE, where="with --attackers", why="it is of certificates, not of plans")
        if self.confidences is not None and self.runs:
            raise ConfigError("--confidences, --run: expected one of the two, found both")
        (FA, FB), task, earlier = self._lead_and_task()
        wish = {**wished, "FA": FA, "FB": FB, "threat": self.threat}
        if self.most_noise is not None:
            wish["most_noise_to_signal"] = self.most_noise
        return plan_given(wish, self._task() if task is None else task, earlier, delta=self.delta)

    def _lead_and_task(self) -> tuple[tuple[float, float], Task | None, tuple[tuple[EarlierTask, ...], ...]]:
        """Return the lead, as given or as the evidence has it, a run's task, and earlier tasks by server.

        Raises ConfigError without a lead.
        """
        from precad.deploy.guarantees.certificates import lead_of_confidences, read_confidences

        lead, task = self.lead, None
        earlier: tuple[tuple[EarlierTask, ...], ...] = ()
        if self.runs:
            self._refuse(
                "q", "rounds", "clients", *_OF_RECORDS, _PER_PERSON, where="with --run", why="the run folder says it"
            )
            from precad.deploy.guarantees.run_evidence import read_runs
            from precad.deploy.run_files.folder import each_training

            evidence = read_runs([run for folder in self.runs for run in each_training(folder)])
            lead = lead or lead_of_confidences(evidence.confidences, evidence.labels)
            task, earlier = evidence.task, evidence.earlier
        elif self.confidences is not None:
            lead = lead or lead_of_confidences(*read_confidences(self.confidences))
        if lead is None:
            raise ConfigError("--lead: expected FA and FB, or --confidences or --run to take them from, found none")
        return lead, task, earlier

    def _request(self, delta: float) -> Request:
        from precad.deploy.guarantees.certificates import request_of

        return request_of(
            self.threat,
            self.method or MethodName.ALL,
            delta=delta if self.delta is None else self.delta,
            is_planning=self.is_planning,
            with_attack_cost=self.attack_cost or self.plot is not None,
            **{name: value for name in ("at_most", "psi") if (value := getattr(self, name)) is not None},
        )

    def _task(self) -> dict[str, Any]:
        """Return the task's parameters: with those of records, if any of them is given. Raises ConfigError."""
        from precad.deploy.guarantees.certifying import DEFAULT_DELTA

        given = self._require("q", "rounds", "clients")
        given["delta"] = DEFAULT_DELTA if self.delta is None else self.delta
        if all(getattr(self, name) is None for name in (*_OF_RECORDS, _PER_PERSON)):
            return given
        size = {} if self.records_per_person is None else {_PER_PERSON: self.records_per_person}
        return given | self._require(*_OF_RECORDS) | size

    def _require(self, *names: str) -> dict[str, Any]:
        """Return these flags' values, by name. Raises ConfigError naming all that are missing."""
        missing = [name for name in names if getattr(self, name) is None]
        if missing:
            raise ConfigError("\n".join(f"{flag_of(name)}: expected a value, found none" for name in missing))
        return {name: getattr(self, name) for name in names}

    def _refuse(self, *names: str, where: str, why: str) -> None:
        """Raises ConfigError naming those of these flags that were given."""
        values = {name: getattr(self, name) for name in names}
        lines = [
            f"{flag_of(name)}: expected none {where} ({why}), found {value}"
            for name, value in values.items()
            if value is not None and value is not False
        ]
        if lines:
            raise ConfigError("\n".join(lines))


@declared(CertifyFlags)
def certify(flags: CertifyFlags) -> None:
    """Print the report on the evidence, or on the wish."""
    from precad.deploy.guarantees import certificates_shown, planning, plots

    flags.require_plot()
    if flags.is_wishing:
        flags.show(flags.plan(), planning.print_wish, plots.plot_wish)
    else:
        flags.show(flags.certify(), certificates_shown.print_certificates, plots.plot_certificates)
