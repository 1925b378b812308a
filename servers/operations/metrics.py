"""Metrics that Prometheus reads: the counters that telemetry keeps, and gauges made from the status at the moment of a
scrape.

The gauges are no second account: they are the value that the dashboard shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import prometheus_client as prometheus
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from precad.servers.telemetry.status import Status

CONTENT_TYPE = prometheus.CONTENT_TYPE_LATEST


class StatusCollector(Collector):
    """Gauges of a server's status."""

    def __init__(self, snapshot: Callable[[], Status]) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterable[Metric]:
        """Say nothing beforehand: a registry need not take a snapshot of a server that has not started."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield all of them, of one snapshot."""
        status = self._snapshot()
        info = {"role": status.role, "version": status.version, "task": status.task}
        yield _gauge("precad_info", "Which server and task this is; always 1.", [(info, 1)])
        yield _gauge("precad_state", "The server's state; always 1.", [({"state": status.state}, 1)])
        for name, text, value in _plain(status):
            yield _gauge(name, text, [({}, value)])
        queues = [({"queue": queue.name}, queue.depth) for queue in status.queues]
        yield _gauge("precad_queue_depth", "Things that wait, by queue.", queues)
        yield from _epsilons(status)
        yield from _quality(status)


def expose(registry: prometheus.CollectorRegistry) -> bytes:
    """Return the registry in Prometheus' text format."""
    return prometheus.generate_latest(registry)


def _plain(status: Status) -> Iterator[tuple[str, str, float]]:
    yield "precad_ready", "Whether the server is ready (1) or not (0).", status.is_ready
    yield "precad_draining", "Whether the server leaves after the round in flight.", status.is_draining
    yield "precad_state_since_timestamp_seconds", "When the state began.", status.since
    yield "precad_start_timestamp_seconds", "When this process began.", status.started_at
    yield "precad_connected", "Clients (at a dealer: aggregators) with an open session.", status.n_connected
    yield "precad_enrolled", "Clients enrolled in the task.", status.n_enrolled
    yield "precad_rounds_planned", "Rounds that the task has at most.", status.rounds_planned
    yield "precad_rounds_done", "Rounds of the task that are committed.", status.rounds_done
    yield "precad_rounds_lost", "Rounds of the task that were drawn and are not committed.", status.rounds_lost
    yield "precad_rounds_lost_limit", "So many lost rounds end the task.", status.rounds_lost_at_most
    unknown = sum(status.verdicts_unknown.values())
    yield "precad_verdicts_unknown", "Uploads checked in lost rounds whose verdict this server never saw.", unknown
    if status.last_commit_at is not None:
        yield "precad_last_commit_timestamp_seconds", "When the latest round was committed.", status.last_commit_at
    if status.rounds_left_in_budget is not None:
        yield "precad_budget_rounds_left", "Rounds that all budgets allow for certain.", status.rounds_left_in_budget
    if status.seconds_left is not None:
        yield "precad_seconds_left", "Estimated seconds of the rounds that are left.", status.seconds_left
    if (live := status.live) is not None:
        yield "precad_round_began_timestamp_seconds", "When the round in flight began.", live.began_at
        yield "precad_round_chosen", "Clients drawn for the round in flight.", live.n_chosen
        yield "precad_round_uploads_complete", "Uploads of the round in flight that are whole.", live.n_complete


def _epsilons(status: Status) -> Iterator[Metric]:
    conditions = dict.fromkeys(f" {one.name}: {one.rests_on}." for one in status.epsilons if one.rests_on)
    rests_on = "".join((" Rests on:", *conditions)) if conditions else ""
    for name, text in (
        ("spent", f"Proved epsilon so far, largest over clients, if no draw is discarded.{rests_on}"),
        ("if_discarded", f"Proved epsilon of the most rounds that there can be.{rests_on}"),
        ("budget", "The task's budget; absent without one."),
        ("left", "What is left of the budget; absent without one."),
        ("rounds_left", "Rounds that the budget still allows for certain; absent without one."),
        ("rounds_counted", "Rounds that the budget has counted so far, likewise; absent without one."),
    ):
        values = [({"view": epsilon.name}, getattr(epsilon, name)) for epsilon in status.epsilons]
        yield _gauge(f"precad_epsilon_{name}", text, [(labels, value) for labels, value in values if value is not None])


def _quality(status: Status) -> Iterator[Metric]:
    """Figures of the latest round that has any, and which round that is."""
    last = next((round for round in reversed(status.rounds) if round.quality), None)
    figures = [] if last is None else [({"metric": name}, value) for name, value in last.quality.items()]
    yield _gauge("precad_quality", "Figure of the latest measured model, on public or held-out records.", figures)
    yield _gauge("precad_quality_round", "Round of that model.", [] if last is None else [({}, last.round)])


def _gauge(name: str, text: str, samples: Sequence[tuple[dict[str, str], float]]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=list(samples[0][0]) if samples else [])
    for labels, value in samples:
        family.add_metric(list(labels.values()), float(value))
    return family
