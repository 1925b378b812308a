"""How long something takes, in words."""

from __future__ import annotations

from precad.deploy.shown.durations import in_words


def test_a_time_to_wait_in_words() -> None:
    found = [in_words(seconds) for seconds in (0, 29, 31, 89, 720, 7199, 7200, 36000)]
    minute = "less than a minute"
    assert found == [minute, minute, "1 minute", "1 minute", "12 minutes", "2 hours", "2 hours", "10 hours"]
