"""How figures are written: whatever is proved stays so in the digits that people read."""

from __future__ import annotations

import io
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from precad.deploy.guarantees.certificates_shown import print_certificates
from precad.deploy.shown.figures import (
    audit_label,
    rounded_down,
    rounded_up,
    three_digits_down,
    three_digits_up,
    within,
)

SHARES = st.floats(0.0, 1.0, exclude_max=True)


@given(SHARES)
def test_a_share_is_written_downwards_and_a_radius_upwards(value: float) -> None:
    """By exact fractions, but for the float's own last digits: at most 0.001 away, on the cautious side."""
    exact = Fraction(repr(value))
    low, high = Fraction(rounded_down(value)), Fraction(within(value).split()[1].rstrip(","))
    assert exact - Fraction(1, 1000) <= low <= exact
    assert exact <= high <= exact + Fraction(1, 1000) or within(value).endswith("VACUOUS")
    assert Fraction(rounded_up(value, 3)) >= exact


def test_certified_accuracy_is_printed_downwards() -> None:
    said = io.StringIO()
    report = {
        "threat": "join",
        "labels": {"exact": "bound"},
        "certified_accuracy": {"exact": [2 / 3, 0.49951]},
        "tolerated": {"exact": [1, 1, 0]},
    }
    print_certificates(Console(file=said, width=100), report)
    assert "0.666" in said.getvalue()
    assert "0.499" in said.getvalue()


def test_an_audit_is_printed_to_the_cautious_side() -> None:
    assert (audit_label(0.95), audit_label(0.999999999)) == ("audit (95 %)", "audit (99.9999999 %)")
    assert (three_digits_down(2.5379), three_digits_up(2.5371), three_digits_down(0.0)) == ("2.53", "2.54", "0")
