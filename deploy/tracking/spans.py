"""Send a span for each round, and one below it for each phase, as OTLP over HTTP to one address.

The body is OTLP's JSON form, made and sent by this file. No library of OpenTelemetry takes part: its environment
variables (`OTEL_EXPORTER_OTLP_ENDPOINT` and others) and proxies could send the body elsewhere. Redirects are not
followed.

A record has how long its phases took, and not when each began. The spans of phases are laid one after another, in the
round's order, and end with the commit. Ids are hashes of the training and the round: a span that is sent twice is one.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import ssl
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from precad.deploy.errors import UNREACHABLE, RunFailedError
from precad.deploy.tracking.journal import Journal
from precad.protos.messages.phases import in_order
from precad.servers.telemetry.status import RoundSummary, Status

TRACES: Final = "/v1/traces"
"""Path of an endpoint that names none."""
_SPAN: Final = "round"
_TIMEOUT_S: Final = 10.0
_LONGEST_ANSWER: Final = 1 << 20
_AT_ONCE: Final = 100
"""Rounds in one request."""
_INTERNAL: Final = 1
"""OTLP's kind of a span that is no call."""


class Spans:
    """The sink of a collector of traces."""

    def __init__(self, folder: Path, training: str, url: str) -> None:
        """folder: gets the journal. Raises ConfigError."""
        name = hashlib.sha256(f"{url} {training}".encode()).hexdigest()[:16]
        self._journal = Journal(folder / f"otlp-{name}.jsonl")
        self._training, self._url = training, url
        self._host = urlsplit(url).netloc  # for messages: a path may hold a token
        self._sent = {number for _, number in self._journal.read()}
        self._untimed: set[int] = set()

    @property
    def remark(self) -> str:
        """Say how many rounds were left out, as nothing says when they ended. Return nothing where none was."""
        if not (n := len(self._untimed - self._sent)):
            return ""
        return f"rounds left out: {n}, which ended before anybody followed; a run folder has no times, a state_dir does"

    def show(self, status: Status, rounds: Sequence[RoundSummary], seen_at: float, *, are_new: bool) -> None:
        """Send rounds whose end is known. One that was over before anybody followed may have none."""
        ends = {one.round: seen_at if are_new and one.committed_at is None else one.committed_at for one in rounds}
        due = [(one, end) for one in rounds if one.round not in self._sent and (end := ends[one.round]) is not None]
        self._untimed |= {number for number, end in ends.items() if end is None}
        for start in range(0, len(due), _AT_ONCE):
            part = due[start : start + _AT_ONCE]
            spans = [span for round, end in part for span in spans_of(self._training, round, end)]
            self._post(json.dumps(_request(status, spans)).encode())
            numbers = {round.round for round, _ in part}
            self._journal.append((_SPAN, number) for number in numbers)
            self._sent |= numbers

    def _post(self, body: bytes) -> None:
        """Raises RunFailedError unless every span was taken."""
        connection = _connection(self._url)
        try:
            connection.request("POST", urlsplit(self._url).path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            said = answer.read(_LONGEST_ANSWER)
        except (OSError, http.client.HTTPException) as error:
            raise RunFailedError(
                f"otlp: {self._host}: {error or type(error).__name__}", exit_code=UNREACHABLE
            ) from None
        finally:
            connection.close()
        if answer.status != 200 or (n_refused := _refused(said)):
            found = f"HTTP {answer.status}" if answer.status != 200 else f"{n_refused} spans refused"
            raise RunFailedError(f"otlp: {self._host}: expected all spans taken, found {found}", exit_code=UNREACHABLE)

    def close(self) -> None:
        """Let another process send."""
        self._journal.close()


def _connection(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    if parts.scheme == "http":
        return http.client.HTTPConnection(parts.netloc, timeout=_TIMEOUT_S)
    return http.client.HTTPSConnection(parts.netloc, timeout=_TIMEOUT_S, context=ssl.create_default_context())


def _refused(said: bytes) -> int:
    """Return how many spans a collector says that it did not take."""
    try:
        return int(json.loads(said)["partialSuccess"]["rejectedSpans"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return 0


def spans_of(training: str, round: RoundSummary, end: float) -> Iterator[dict[str, Any]]:
    """Yield the spans of a round, in OTLP's JSON form. end: of its commit, in seconds since the epoch."""
    trace, parent = _id(training, round, "trace", 16), _id(training, round, _SPAN, 8)
    counts = {"chosen": round.n_chosen, "accepted": round.n_accepted, "rejected": round.n_rejected}
    counts |= {"missing": round.n_missing, "round": round.round}
    attributes = [{"key": f"precad.{name}", "value": {"intValue": str(count)}} for name, count in counts.items()]
    began = end - round.seconds_total
    common = {"traceId": trace, "kind": _INTERNAL}
    yield {**common, "spanId": parent, "name": _SPAN, **_times(began, end), "attributes": attributes}
    for phase in in_order(round.seconds):
        until = began + round.seconds[phase]
        yield {
            **common,
            "spanId": _id(training, round, phase, 8),
            "parentSpanId": parent,
            "name": phase,
            **_times(began, until),
        }
        began = until


def _id(training: str, round: RoundSummary, name: str, n_bytes: int) -> str:
    text = json.dumps([training, round.round, round.model_digest, name])
    return hashlib.sha256(text.encode()).hexdigest()[: 2 * n_bytes]


def _times(began: float, end: float) -> dict[str, str]:
    """Return both ends in whole microseconds: a float of seconds since the epoch has no finer ones."""
    return {f"{name}TimeUnixNano": f"{round(1e6 * at)}000" for name, at in (("start", began), ("end", end))}


def _request(status: Status, spans: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return an ExportTraceServiceRequest. It says nothing of this machine."""
    facts = {"service.namespace": "precad", "service.name": status.role, "precad.task": status.task}
    attributes = [{"key": key, "value": {"stringValue": value}} for key, value in facts.items()]
    scope = {"name": "precad", "version": metadata.version("precad")}
    return {
        "resourceSpans": [
            {"resource": {"attributes": attributes}, "scopeSpans": [{"scope": scope, "spans": list(spans)}]}
        ]
    }
