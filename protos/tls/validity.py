"""Dates of our own certificate while a process runs: it was valid at the start, and no peer says when it no longer is.

A refused handshake ends with a closed socket, at both ends without a reason.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from precad.protos.tls.identity import IdentityError, parse_certificate


def valid_between(certificate: Path) -> tuple[dt.datetime, dt.datetime] | None:
    """Return the dates of the certificate in a file; None where there is none: whoever loads it says why."""
    try:
        found = parse_certificate(certificate.read_bytes())
    except (OSError, IdentityError):
        return None
    return found.not_valid_before_utc, found.not_valid_after_utc


def why_not_valid(certificate: Path) -> str:
    """Say that the certificate in a file is not valid now, by this machine's clock; empty where it is."""
    now, dates = dt.datetime.now(dt.UTC), valid_between(certificate)
    if dates is None or dates[0] <= now <= dates[1]:
        return ""
    what = "has expired" if now > dates[1] else "is not valid yet"
    first, last, clock = (f"{date:%Y-%m-%d %H:%M}" for date in (*dates, now))
    return f"{what}: valid {first} to {last}, and this machine's clock says {clock} UTC"
