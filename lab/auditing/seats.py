"""Name the seats of an auditor, and whose printed epsilon each audits."""

from __future__ import annotations

from enum import StrEnum

from precad.dp.accountants.pld import View


class Seat(StrEnum):
    """Where the auditor sits."""

    SERVER_A = "server_a"
    SERVER_B = "server_b"
    CLIENTS = "clients"

    @property
    def view(self) -> View:
        """Return whose printed epsilon the seat audits."""
        return View.CLIENTS_ONLY if self is Seat.CLIENTS else View.ONE_SERVER
