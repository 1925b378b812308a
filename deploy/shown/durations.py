"""Say how long something takes, as people do."""

from __future__ import annotations


def in_words(seconds: float) -> str:
    """Return a time to wait, rounded: "less than a minute", "12 minutes", "3 hours"."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute"
    if minutes < 120:
        return f"{minutes} minute{'s' if minutes > 1 else ''}"
    return f"{round(minutes / 60)} hours"
