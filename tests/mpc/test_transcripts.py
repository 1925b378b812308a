"""Whole validations under fixed seeds: every message, verdict and sum is what it was when the vectors were made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from precad.mpc import ring
from precad.mpc.parameters import Mode
from tests.vectors.transcripts import transcript

CASES = json.loads((Path(__file__).parent.parent / "vectors" / "transcripts.json").read_text())


@pytest.mark.parametrize("expected", CASES, ids=lambda case: case["name"])
def test_transcript_has_not_moved(expected):
    """Messages of both parties, in order, byte for byte by digest; verdicts; each server's share of the sum."""
    dim, gate_name, mode, n_rows = expected["name"].split("/")

    assert transcript(int(dim), gate_name=gate_name, mode=Mode(mode), n_rows=int(n_rows)) == expected


@pytest.mark.parametrize("expected", CASES[::5], ids=lambda case: case["name"])
def test_transcript_does_not_depend_on_the_tile(expected, monkeypatch):
    """Many small tiles, the last one cut, give the same messages and sums."""
    monkeypatch.setattr(ring, "TILE", 192)
    dim, gate_name, mode, n_rows = expected["name"].split("/")

    assert transcript(int(dim), gate_name=gate_name, mode=Mode(mode), n_rows=int(n_rows)) == expected
