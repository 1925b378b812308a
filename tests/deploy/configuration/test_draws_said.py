"""Numbers of records that `precad check` says of a round. Failure means that people read 1e+04 for 10,047."""

from __future__ import annotations

import pytest

from precad.deploy.configuration.check_records import on_average


@pytest.mark.parametrize(
    ("drawn", "said"),
    [(0.5, "0.5"), (97.1666, "97.17"), (999.96, "1000"), (10_000.0, "10000"), (10_047.2, "10047"), (6e5, "600000")],
)
def test_a_number_of_records_is_no_power_of_ten(drawn: float, said: str) -> None:
    assert on_average(drawn) == f"{said} on average"
