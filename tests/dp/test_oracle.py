"""Every case of an acceptance file, through tests/oracle_adapter.py. PRECAD_ORACLE names another file."""

import json
import os
from pathlib import Path

import pytest

from tests.oracle_adapter import CALLS, check

FILE = Path(os.environ.get("PRECAD_ORACLE") or Path(__file__).parents[1] / "vectors" / "oracle_public.json")
CASES = json.loads(FILE.read_text())["cases"]


@pytest.mark.parametrize("case", CASES, ids=[f"{case['id']}-{case['fn']}" for case in CASES])
def test_case(case):
    """Within the case's own tolerance, or the exception that it names."""
    check(case)


def test_the_file_is_whole():
    """The public file holds 94 cases, and no test passed because there was none."""
    assert len(CASES) == json.loads(FILE.read_text())["meta"]["count"]
    assert {case["fn"] for case in CASES} <= set(CALLS)
