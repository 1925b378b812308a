"""The vectors of mode `proved`: they are those that the plain implementation makes, and each tampered case says so."""

from __future__ import annotations

import json

import pytest

from tests.vectors import make_proved_vectors as vectors
from tests.vectors.independent import proved_steps

STORED = {name: json.loads((vectors.FOLDER / f"{name}.json").read_text()) for name in vectors.FILES}


@pytest.mark.parametrize("name", vectors.FILES)
def test_a_file_is_what_its_code_makes(name):
    assert vectors.made(name) == STORED[name]


def test_every_step_has_a_case_and_every_file_is_known():
    steps = {
        entry["step"] for content in STORED.values() for kind in ("positive", "tampered") for entry in content[kind]
    }
    assert steps == set(proved_steps.STEPS)
    assert {path.stem for path in vectors.FOLDER.glob("*.json")} == set(vectors.FILES)


def test_tampered_cases_are_refused_dropped_or_not_valid():
    """A refusal, a relay that is dropped, or a verdict of false; of rounds, fewer valid slots than uploads."""
    for entry in (entry for content in STORED.values() for entry in content["tampered"]):
        output = entry.get("output", {})
        is_short = entry["step"] == "round" and len(output.get("valid", ())) == len(entry["input"]["clients"]) - 1
        assert "refused" in entry or output in ({"valid": False}, {"binding_digest": None}) or is_short, entry["name"]


def test_rounds_accept_who_is_within_the_bound_and_open_their_sum():
    """The sum in the clear, without shares, proofs or the field."""
    for entry in STORED["round"]["positive"]:
        clients = [one for one in entry["input"]["clients"] if "x" in one]
        vectors_ = [one["x"] for one in clients] + [[int(v) for v in noise] for noise in entry["input"]["noises"]]
        assert entry["output"]["valid"] == sorted(one["slot"] for one in clients)
        assert entry["output"]["noisy_sum"] == [sum(values) for values in zip(*vectors_, strict=True)]
