"""The report of `precad certify`, as people see it."""

from __future__ import annotations

import io

from rich.console import Console

from precad.deploy.guarantees.certificates_shown import print_certificates


def test_heads_of_seven_columns_are_whole_in_80_columns() -> None:
    """A run's report has bounds and estimates of three methods each."""
    curves = {name: [0.5, 0.0] for name in ("published", "pld", "exact")}
    labels = {"published": "published_reproduction", "pld": "bound", "exact": "bound"}
    estimate = {"label": "approximation", "of": "estimated from 1 model", "certified_accuracy": curves}
    report = {"threat": "add", "labels": labels, "certified_accuracy": curves, "estimate": estimate}
    printed = io.StringIO()
    print_certificates(Console(file=printed, width=80), {**report, "tolerated": {"pld": [1]}})
    heads = printed.getvalue().partition("│")[0].split()
    assert [heads.count(word) for word in ("reproduction)", "(bound)", "(approx.)")] == [1, 2, 3]
    assert "approx.: estimated from 1 model, not a guarantee" in printed.getvalue()
