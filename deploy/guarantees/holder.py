"""Show a data holder's own ledger: the limit, what was paid in which task, and what a person's records lost so far."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precad.deploy.errors import ConfigError, refusing
from precad.deploy.shown.figures import NO_USEFUL_BOUND, plain, rounded_up, says_nothing
from precad.dp.accountants.pld import SampledGaussian
from precad.dp.ledgers.holder import (
    MOST_TIMES,
    SIMULATION,
    Account,
    HolderLedger,
    Line,
    Payment,
    Terms,
    has_begun,
    read,
)

_ADVERSARY = (
    "one server that follows the protocol, in mode proved any one server, and any number of clients other than the "
    "holder's own"
)


def statement(path: Path) -> dict[str, Any]:
    """Return what the ledger at `path` says, ready for JSON. Changes nothing.

    Raises: ConfigError for a file that cannot be read, LedgerCorruptedError.
    """
    account, chain = _read(path)
    terms = account.terms
    return {
        "ledger": str(path),
        "chain": chain,
        "adversary": _ADVERSARY,
        "limit_epsilon": terms.limit_epsilon,
        "delta": terms.delta,
        "records_per_person": terms.records_per_person,
        "share_spent": account.share_spent,
        "epsilon_so_far": plain(account.epsilon),
        "tasks": _tasks(account),
    }


def _tasks(account: Account) -> list[dict[str, Any]]:
    """Return what was paid alike, by task and client, in the order of first payments."""
    found: dict[tuple[object, ...], list[Line]] = {}
    for line in account.lines:
        paid = line.payment
        found.setdefault((paid.task, paid.client, paid.why, paid.event), []).append(line)
    return [
        {
            "task": paid.task,
            "client": paid.client,
            "why": paid.why,
            "first": lines[0].at,
            "last": lines[-1].at,
            "rounds": sum(line.payment.times for line in lines),
            "record_rate": None if paid.event is None else paid.event.sampling_rate,
            "noise_multiplier": None if paid.event is None else paid.event.noise_multiplier,
        }
        for lines in found.values()
        for paid in [lines[0].payment]
    ]


def charge(
    path: Path,
    *,
    client: str,
    task: str,
    why: str,
    noise_multiplier: float,
    record_rate: float,
    rounds: int,
    terms: Mapping[str, float | int],
) -> None:
    """Pay for what no client of precad paid, such as tuning on the same records.

    terms: those of a file that has not begun; of one that has, nothing.

    Raises: ConfigError, HolderLimitError, LedgerCorruptedError, LedgerInUseError.
    """
    if rounds > MOST_TIMES:
        raise ConfigError(f"--rounds: expected at most {MOST_TIMES}, found more")
    with refusing(OSError, f"{path}: expected a holder's ledger, found"):
        is_new = not has_begun(path)
    if not is_new and terms:
        raise ConfigError(f"--{next(iter(terms)).replace('_', '-')}: expected none, as {path} has its own, found one")
    if is_new and "limit_epsilon" not in terms:
        raise ConfigError(f"--limit-epsilon: expected a number, as {path} is new, found none")
    with refusing(ValueError):
        began = Terms(**{"delta": 1e-5, **terms}) if is_new else _read(path)[0].terms  # type: ignore[arg-type]
        event = SampledGaussian(record_rate, noise_multiplier, began.records_per_person)
        payment = Payment(client=client, task=task, why=why, event=event, times=rounds)
        Account(began).require_room(payment)  # or a file would begin with nothing in it
        with refusing(OSError, f"{path}: expected a file to write, found"), HolderLedger(path, began) as ledger:
            ledger.pay(payment)


def _read(path: Path) -> tuple[Account, str]:
    with refusing(OSError, f"{path}: expected a holder's ledger, found"):
        return read(path)


def figures_of(found: Mapping[str, Any]) -> list[str]:
    """Return what the statement says of everything together, for people: the limit, and what was lost so far."""
    k, epsilon = found["records_per_person"], found["epsilon_so_far"]
    whose = "a record loses" if k == 1 else f"{k} records of one person together lose"
    so_far = NO_USEFUL_BOUND if says_nothing(float(epsilon)) else f"epsilon <= {rounded_up(epsilon, 3)}"
    delta = f"at delta = {found['delta']:g}"
    return [
        f"{'ledger':<12}{found['ledger']}",
        *(f"{'' if i else 'against':<12}{line}" for i, line in enumerate(textwrap.wrap(found["adversary"], 88))),
        f"{'limit':<12}{whose} epsilon <= {found['limit_epsilon']:g} {delta} in everything below and to come,",
        f"{'':<12}however later tasks are chosen; {rounded_up(100 * found['share_spent'], 1)}% of it is spent",
        f"{'so far':<12}{so_far} {delta}, if no task or round was chosen for what had been released",
    ]


def lines_of(found: Mapping[str, Any]) -> list[str]:
    """Return the statement for people: its figures, then a line for what was paid alike."""
    lines = [
        *figures_of(found),
        "",
        f"{'task':<14}{'client':<14}{'for':<12}{'rounds':>8}{'rate':>8}{'noise':>9}  from, until",
    ]
    for paid in found["tasks"]:
        figures = f"{paid['rounds']:>8}" + (
            f"{paid['record_rate']:>8.4g}{paid['noise_multiplier']:>9.4g}"
            if paid["record_rate"] is not None
            else f"{'no noise':>17}"
        )
        names = f"{paid['task'][:12]:<14}{paid['client'][:12]:<14}{paid['why'][:10]:<12}"
        lines.append(f"{names}{figures}  {paid['first'][:10]}, {paid['last'][:10]}")
    if not found["tasks"]:
        lines[-1] = "nothing was paid yet"
    if any(paid["why"] == SIMULATION for paid in found["tasks"]):
        lines += [
            "",
            "both figures take it that nobody else knows the key of a simulation: holder.key of its run folder, from",
            "the operating system; AES-256 makes its draws and noise of it",
        ]
    return [*lines, "", f"{'chain':<12}{found['chain']}"]
