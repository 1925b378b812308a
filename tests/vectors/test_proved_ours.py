"""The vectors of mode `proved` by this project's packages: the bytes of the plain implementation, step by step.

Failure means: a client or server that somebody else wrote from the protocol does not work with ours.
"""

import json

import pytest

from precad.mpc.errors import MpcError
from tests.vectors import proved_ours
from tests.vectors.make_proved_vectors import FILES, FOLDER

ENTRIES = [
    entry
    for name in FILES
    for kind in ("positive", "tampered")
    for entry in json.loads((FOLDER / f"{name}.json").read_text())[kind]
]


@pytest.mark.parametrize("entry", ENTRIES, ids=[f"{entry['step']}: {entry['name']}" for entry in ENTRIES])
def test_a_step_gives_the_vectors_bytes_or_refusal(entry):
    """Equal outputs; where the vectors refuse, the same word."""
    step = proved_ours.STEPS[entry["step"]]
    if "refused" in entry:
        with pytest.raises(MpcError) as refused:
            step(entry["input"])
        assert proved_ours.kind_of(refused.value) == entry["refused"]
    else:
        assert step(entry["input"]) == entry["output"]


def test_every_step_is_played():
    assert set(proved_ours.STEPS) == {entry["step"] for entry in ENTRIES}
