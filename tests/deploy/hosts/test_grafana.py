"""Grafana's dashboard and Prometheus' alerts name metrics, labels and label values that a server really has.

Failure means: a panel that stays empty or an alert that never fires, because a name in it is nobody's.
"""

from __future__ import annotations

import inspect
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import precad.deploy
from precad.dp.accountants.pld import View
from precad.protos.messages.phases import PHASES
from precad.protos.tls.identity import Role
from precad.servers import dealer
from precad.servers.operations.metrics import StatusCollector, expose
from precad.servers.store.rounds import CommittedRound
from precad.servers.task import run
from precad.servers.telemetry.events import LINKS, Telemetry
from precad.servers.telemetry.status import Epsilon, LiveRound, Queue, RoundSummary, Status

FOLDER = Path(precad.deploy.__file__).parent / "hosts" / "grafana"
ADDED_BY_PROMETHEUS = {"instance", "job", "le"}
Known = dict[str, dict[str, set[str]]]
"""Values by label, by sample."""


@pytest.fixture(scope="module")
def known() -> Known:
    """Return what an aggregator exposes in the middle of a round, and a dealer."""
    aggregator, dealer = Telemetry(Role.AGGREGATOR_A), Telemetry(Role.DEALER)
    record = CommittedRound(0, ("alice",), ("alice",), (), b"", 1.0, 1.0, seconds=dict.fromkeys(PHASES, 0.1))
    aggregator.committed(record)
    aggregator.call_refused("Join", "PERMISSION_DENIED")
    dealer.batch_dealt(Role.AGGREGATOR_A)
    bound = dict.fromkeys(View, 1.0)
    counts = {"n_chosen": 1, "n_accepted": 1, "n_rejected": 0, "n_missing": 0}
    common: dict[str, Any] = {"version": "0", "state": "collecting", "since": 0.0, "started_at": 0.0, "is_ready": True}
    status = Status(
        role=Role.AGGREGATOR_A,
        **common,
        last_commit_at=0.0,
        live=LiveRound(round=1, phase="collect", began_at=0.0, n_chosen=1, n_complete=0, n_receiving=0),
        epsilons=tuple(
            Epsilon(view=view, spent=1.0, if_discarded=1.5, budget=2.0, rounds_left=3, rounds_counted=1, delta=1e-5)
            for view in View
        ),
        rounds_left_in_budget=3,
        seconds_left=60.0,
        queues=(Queue(name="uploads_complete", depth=0),),
        rounds=(
            RoundSummary(
                round=0,
                **counts,
                seconds={},
                bytes={},
                epsilon=bound,
                model_digest="",
                committed_at=0.0,
                quality={"accuracy": 0.5},
            ),
        ),
    )
    found: Known = defaultdict(lambda: defaultdict(set))
    for telemetry, shown in ((aggregator, status), (dealer, Status(role=Role.DEALER, **common))):
        telemetry.registry.register(StatusCollector(lambda shown=shown: shown))
        for family in text_string_to_metric_families(expose(telemetry.registry).decode()):
            for sample in family.samples:
                values = found[sample.name]
                for label, value in sample.labels.items():
                    values[label].add(value)
    assert set(found["precad_bytes_total"]["link"]) == {*LINKS}
    return found


def expressions() -> Iterator[tuple[str, str, set[str]]]:
    """(where, PromQL, labels that its legend or text uses) of both files."""
    dashboard = json.loads((FOLDER / "precad.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"], set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            text = " ".join(rule["annotations"].values())
            yield rule["alert"], rule["expr"], set(re.findall(r"\$labels\.(\w+)", text))


def test_every_name_in_an_expression_is_a_servers(known: Known) -> None:
    """Metrics, the labels that select, group and name, and the values they are compared with."""
    n_checked = 0
    for where, expression, labels in expressions():
        metrics = set(re.findall(r"\b(?:precad|process)_[a-z_]+", expression))
        assert metrics or expression.startswith("up{"), where
        assert metrics <= set(known), (where, metrics - set(known))
        have = ADDED_BY_PROMETHEUS.union(*(known[metric] for metric in metrics))
        grouped = {
            name.strip() for found in re.findall(r"(?:by|on) \(([^)]*)\)", expression) for name in found.split(",")
        }
        assert labels | grouped <= have, (where, (labels | grouped) - have)
        for metric, selector in re.findall(r"(\b(?:precad|process)_[a-z_]+){([^}]*)}", expression):
            for label, operator, value in re.findall(r'(\w+)(=~|=)"([^"]*)"', selector):
                assert label in ADDED_BY_PROMETHEUS or label in known[metric], (where, label)
                if operator == "=" and label not in ADDED_BY_PROMETHEUS:
                    assert value in known[metric][label], (where, value)
        n_checked += len(metrics)
    assert n_checked > 30


def test_expressions_are_balanced_and_counters_are_read_as_rates() -> None:
    """The mistakes that Prometheus would find: a bracket too few, a counter's absolute value."""
    for where, expression, _ in expressions():
        for opening, closing in ("()", "{}", "[]"):
            assert expression.count(opening) == expression.count(closing), where
        for counter in re.findall(r"precad_\w+_(?:total|sum|count|bucket)\b", expression):
            assert re.search(rf"(?:rate|increase)\({counter}(?:{{[^}}]*}})?\[", expression), (where, counter)


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    """Panels with distinct ids that lie in the grid and do not overlap, and variables that are declared."""
    text = (FOLDER / "precad.json").read_text()
    dashboard = json.loads(text)
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", text)) - {"__rate_interval", "__all"} == variables
    cells = [
        (x, y)
        for grid in (panel["gridPos"] for panel in dashboard["panels"])
        for x in range(grid["x"], grid["x"] + grid["w"])
        for y in range(grid["y"], grid["y"] + grid["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == 23
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


def test_every_alert_says_what_it_is_and_how_bad() -> None:
    (group,) = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]:
        assert rule["alert"].startswith("Precad")
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"]
    scrape = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    assert scrape["scrape_configs"][0]["job_name"] == "precad"
    assert "credentials_file" in scrape["scrape_configs"][0]["authorization"]


def test_a_wait_for_another_server_is_an_alert_in_each_state_that_it_has() -> None:
    """Such a server is ready, and answers. A state that is renamed would leave nobody to notice."""
    (rule,) = (expression for where, expression, _ in expressions() if where == "PrecadWaitsForServer")
    (states,) = re.findall(r'precad_state{state=~"([^"]*)"}', rule)
    entered = re.findall(
        r"""entered\("((?:linking|waiting)[^"]*)"\)""", inspect.getsource(run) + inspect.getsource(dealer)
    )
    assert len(set(entered)) == 3
    assert [state for state in entered if re.fullmatch(states, state) is None] == []
    assert re.fullmatch(states, "registering clients") is None


def test_the_epsilon_panel_shows_both_adversaries() -> None:
    """Show what was spent if no draw is discarded, and what holds if some are; the description says which is which."""
    panels = json.loads((FOLDER / "precad.json").read_text())["panels"]
    (spent,) = (panel for panel in panels if panel["title"] == "Epsilon spent and its budget")
    shown = {target["expr"].split("{")[0] for target in spent["targets"]}
    assert {"precad_epsilon_spent", "precad_epsilon_if_discarded"} <= shown
    assert "if no draw is discarded" in spent["description"]
