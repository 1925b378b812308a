"""A round as numbers: all that an operator's status says of it, with what each epsilon stands for, and no name."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from precad.deploy.tracking.points import labels_of, points_of
from tests.harness.tracked import NAMED, a_round, a_status


def values(status):
    return {point.name: point.value for point in points_of(status.rounds[-1], status.epsilons, 0.0)}


def test_a_round_is_the_numbers_of_its_record():
    found = values(a_status(a_round(1, quality={"accuracy": 0.75, "accuracy_low": 0.5, "accuracy_high": 1.0})))
    assert {name: value for name, value in found.items() if not name.startswith("epsilon")} == {
        "uploads/chosen": 5,
        "uploads/accepted": 3,
        "uploads/rejected": 1,
        "uploads/missing": 1,
        "seconds/select": 0.125,
        "seconds/collect": 0.25,
        "seconds/validate": 0.5,
        "seconds/total": 0.875,
        "quality/accuracy": 0.75,
        "quality/accuracy_low": 0.5,
        "quality/accuracy_high": 1.0,
    }


def test_each_epsilon_says_whom_it_is_about_and_whether_draws_may_be_discarded():
    """A budget's rest is of that round, and zero where it was overspent. Nothing is made up where there is none."""
    status = a_status(a_round(0), a_round(2))
    found = {name: value for name, value in values(status).items() if name.startswith("epsilon")}
    assert found == {
        "epsilon/one_server/no_draw_discarded": pytest.approx(0.3),
        "epsilon/one_server/draws_discarded_or_not": 2.5,
        "epsilon/one_server/budget_left": 0.0,
        "epsilon/clients_only/no_draw_discarded": pytest.approx(0.15),
        "epsilon/clients_only/draws_discarded_or_not": 1.25,
        "epsilon/client/no_draw_discarded": pytest.approx(0.9),
        "epsilon/client/budget_left": pytest.approx(0.1),
    }
    labels = labels_of(status)
    assert labels.keys() == found.keys()
    assert "for one client, drawn or not" in labels["epsilon/client/no_draw_discarded"]
    assert "for one record in the rounds that it was drawn for" in labels["epsilon/one_server/no_draw_discarded"]
    assert all("delta = 1e-05" in text for text in labels.values())


def test_bounds_are_marked_so_that_no_rounding_lowers_them():
    points = list(points_of(a_round(0), a_status(a_round(0)).epsilons, 0.0))
    bounds = {point.name for point in points if point.is_bound}
    assert bounds == {p.name for p in points if p.name.startswith("epsilon") and not p.name.endswith("budget_left")}


def test_no_client_is_named():
    status = a_status(a_round(0), clients=({"client": NAMED},), absent=({"client": NAMED, "since": 0.0},))
    assert NAMED in status.model_dump_json()
    told = json.dumps(
        [[asdict(point) for point in points_of(status.rounds[0], status.epsilons, 0.0)], labels_of(status)]
    )
    assert NAMED not in told
