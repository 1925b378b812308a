"""Pay for trainings in one process from the ledgers of the holders whose records they take, before they begin.

A training that nobody sees costs nothing. Settings chosen by its outcome are released with the next task. So under
`[client.holder]` a simulation pays what the uploads of a task with the same rounds would. How often each client is
drawn follows from the run folder's secret key, and so does the noise (`precad.lab.simulation.holder_key`).
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, NonNegativeInt

from precad.clients.config import ClientConfig
from precad.clients.errors import HolderLimitReachedError
from precad.clients.payments import Payments, payments_of, payments_of_answers
from precad.clients.records import Records
from precad.clients.records.digest import sha256_of_records
from precad.deploy.errors import ConfigError, refusing
from precad.deploy.files.whole import write_whole
from precad.dp.ledgers.holder import SIMULATION
from precad.lab.simulation import holder_key
from precad.lab.simulation.config import SimulationSettings
from precad.lab.simulation.evaluations import FIRST_NUMBER
from precad.lab.simulation.randomness import Sources, drawn
from precad.protos.task.algorithms import AS_DEPLOYED, DEFAULT, names_default
from precad.protos.task.evaluation import is_due, n_due
from precad.protos.task.task import Task

FILE: Final = "holder.json"
"""Name of the file of a run folder that says how many rounds of each seed are paid."""
MayGoOn = Callable[[int, Mapping[str, int]], bool]


@dataclass(frozen=True, slots=True)
class Owed:
    """Count by client what is to be paid: uploads, or epochs of records in bins, and evaluations."""

    uploads: Counter[str] = field(default_factory=Counter)
    evaluations: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    """Rounds after which the training ends."""

    def without(self, paid: Owed) -> Owed:
        """Return what is left to pay of a training whose first rounds were paid."""
        return Owed(self.uploads - paid.uploads, self.evaluations - paid.evaluations, self.rounds)


@dataclass(frozen=True, slots=True)
class Draws:
    """Hold what says who is drawn in a training, and when its budgets end it."""

    task: Task
    randomness: Sources
    may_start: MayGoOn
    may_evaluate: MayGoOn

    def owed(self, rounds: int) -> Owed:
        """Return what the first rounds cost, to the end that a budget sets."""
        task, bins, done = self.task, self.task.record_bins or 1, 0
        participation, evaluations = Counter[str](), Counter[str]()
        epochs = set[tuple[str, int]]()
        while done < rounds and self.may_start(done, participation):
            chosen = drawn(self.randomness, task, done)
            participation.update(chosen)
            epochs.update((client, done // bins) for client in chosen)
            done += 1
            if is_due(task.evaluation_every, done) and self.may_evaluate(done, participation):
                evaluations.update(self._evaluating(done))
        return Owed(Counter(client for client, _ in epochs), evaluations, done)

    def _evaluating(self, n_done: int) -> list[str]:
        """Return who evaluates the model after so many rounds."""
        if (of_round := self.task.evaluation_round) is None:
            return []
        return self.randomness.chosen(FIRST_NUMBER + n_done, sorted(self.task.clients), of_round.client_rate)


class _Paid(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    rounds: dict[str, NonNegativeInt] = {}
    """By seed."""
    records: str = ""
    """Seal of the records (`sealed`); empty in folders of earlier versions."""
    configuration: str = ""
    """Digest of what is trained; likewise."""


def owed_by_seeds(
    task: Task, sources: Mapping[int, Sources], budgets: tuple[MayGoOn, MayGoOn], folder: Path
) -> dict[int, Owed]:
    """Return what trainings in a run folder cost, by seed, without what was paid there already.

    sources: what each draws from. budgets: whether they allow the next round, and the evaluation that is due.
    Raises ConfigError.
    """
    paid, found = _paid_in(folder).rounds, {}
    for seed, source in sources.items():
        draws = Draws(task, source, *budgets)
        found[seed] = draws.owed(task.rounds).without(draws.owed(paid.get(str(seed), 0)))
    return found


def key_of(folder: Path) -> bytes:
    """Return the key of a run folder, or a fresh one where no payment is on record: what is paid anew has other noise.

    Raises ConfigError.
    """
    return holder_key.kept_in(folder) if (folder / FILE).exists() else holder_key.fresh()


def owed_at_most(task: Task) -> Owed:
    """Return what a training costs whose draws nobody knows before: that of a client which is always drawn."""
    n_evaluations = n_due(task.evaluation_every, task.rounds)
    uploads = Counter(dict.fromkeys(task.clients, task.rounds_of_a_client))
    return Owed(uploads, Counter(dict.fromkeys(task.clients, n_evaluations)), task.rounds)


def note_paid(folder: Path, owed: Mapping[int, Owed], seal: str, configuration: str) -> None:
    """Write down in a run folder what is paid: whoever continues it pays the rest. Call after paying.

    seal: of the records that it is paid for. configuration: digest of what is trained on them.
    """
    rounds = _paid_in(folder).rounds
    for seed, one in owed.items():
        rounds[str(seed)] = max(rounds.get(str(seed), 0), one.rounds)
    paid = _Paid(rounds=rounds, records=seal, configuration=configuration)
    write_whole(folder / FILE, paid.model_dump_json().encode())


def sealed(key: bytes, records: Mapping[str, Records], held_out: Mapping[str, Records]) -> str:
    """Return a digest of records under the folder's key, in hexadecimal: nobody without it confirms a guess."""
    digests = [sha256_of_records(records), sha256_of_records(held_out)]
    return hmac.digest(key, " ".join(digests).encode(), "sha256").hex()


def require_records(folder: Path, seal: str) -> None:
    """Refuse other records than those that were paid for: the same draws and noise would show what changed.

    Raises ConfigError.
    """
    if _paid_in(folder).records not in ("", seal):
        raise ConfigError(
            f"--output: expected the records that were paid for in {folder / FILE}, found others: "
            "train them in another folder, which draws and pays anew"
        )


def require_configuration(folder: Path, configuration: str) -> None:
    """Refuse another training than was paid for: under the same noise, both show more than either. Raises ConfigError.

    configuration: digest of what is trained.
    """
    if _paid_in(folder).configuration not in ("", configuration):
        raise ConfigError(
            f"--output: expected the configuration that was paid for in {folder / FILE}, found another: "
            "train it in another folder, which draws and pays anew"
        )


def _paid_in(folder: Path) -> _Paid:
    path = folder / FILE
    if not path.exists():
        return _Paid()
    with refusing((OSError, ValueError), f"--output: expected how many rounds are paid in {path}, found"):
        return _Paid.model_validate_json(path.read_bytes())


class HolderCharge:
    """Charge trainings of one task to the ledgers of its clients' holders."""

    def __init__(self, task: Task, settings: SimulationSettings, client: ClientConfig, owed: Collection[Owed]) -> None:
        """Raises: ConfigError for trainings without a price; ArgumentError for a ledger that clients would share."""
        _require_priced(settings, client)
        kinds = (
            (payments_of(task, task.clients, client.holder), [one.uploads for one in owed]),
            (payments_of_answers(task, task.clients, client), [one.evaluations for one in owed]),
        )
        self._unit, self._answer = kinds[0][0], kinds[1][0]
        self.uploads = sum((one.uploads for one in owed), Counter[str]())
        self._evaluations = sum((one.evaluations for one in owed), Counter[str]())
        self._bills: dict[str, list[Payments]] = {}
        for payments, counts in kinds:
            for name, n in sorted(sum(counts, Counter[str]()).items()):
                self._bills.setdefault(name, []).append(payments[name].for_rounds(n, SIMULATION))

    def require_room(self) -> None:
        """Refuse trainings that would pass a holder's limit. Changes nothing. Raises: ConfigError, StateFileError."""
        for client, (first, *others) in self._bills.items():
            try:
                first.require_room(*others)
            except HolderLimitReachedError as error:
                owed, left = self._room(client)
                raise ConfigError(
                    f"client.holder: expected room for {owed} of {client!r} by these trainings, found room for "
                    f"{left}: {error}"
                ) from None

    def _room(self, client: str) -> tuple[str, str]:
        """Return what a client owes, and how much of it there is room for. Raises StateFileError."""
        n, of_evaluations = self.uploads[client], self._evaluations[client]
        if not of_evaluations or client not in self._answer:
            return f"{n} uploads", str(self._unit[client].uploads_left())
        answer = self._answer[client]
        if not n:
            return f"{of_evaluations} evaluations", str(answer.uploads_left())
        left = self._unit[client].uploads_left_beside(answer, lambda some: of_evaluations * some // n)
        return f"{n} uploads and {of_evaluations} evaluations", f"{left} with their evaluations"

    def pay(self) -> None:
        """Pay all, on disk on return. Raises: StateFileError; HolderLimitReachedError where others paid meanwhile."""
        for bill in self._bills.values():
            for payments in bill:
                payments.pay()


def _require_priced(settings: SimulationSettings, client: ClientConfig) -> None:
    """Refuse trainings in which a client's records pay another price than in a task, or none. Raises ConfigError."""
    if not names_default({"algorithm": settings.algorithm}):
        raise ConfigError(
            f"client.holder: expected simulation.algorithm {DEFAULT} or {AS_DEPLOYED}, whose uploads have a price, "
            f"found {settings.algorithm!r}"
        )
    if client.attacks or settings.attack is not None:
        raise ConfigError("client.holder: expected no attacks in a simulation, whose uploads have no price, found some")
