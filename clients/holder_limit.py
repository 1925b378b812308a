"""Limit what a data holder's records pay over all tasks and queries: `[client.holder]`. Without it, tasks limit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, Field

from precad.protos.config_path import ConfigPath

CLIENT: Final = "{client}"


class HolderLimit(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """The holder's word on privacy, which no server and no task can change."""

    ledger: ConfigPath
    """The file of all payments, made where there is none (mode 0600). Keep it as long as the records. Tasks, queries
    and restarts share it. An older copy that is put back forgets payments: its chain is not the last statement's.
    `{client}` stands for the client's id."""
    limit_epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """The most that a person's records may lose to one server in everything that this file counts. The client takes
    part in no round that would pass it, and ends (exit code 3). `precad simulate` pays before it trains, or refuses
    (exit code 2). Fixed for the life of the file, as all of these are."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """delta of that limit."""
    records_per_person: Annotated[int, Field(ge=1)] = 1
    """How many records one person may have here, which the limit is for together. A task's own number does not count
    here."""

    def ledger_of(self, client: str) -> Path:
        """Return the file of this client."""
        return Path(str(self.ledger).replace(CLIENT, client))
