"""Ask a command for a paper's figures, and write the paper's equations out anew."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from scipy.stats import norm

from precad.deploy.cli.main import app
from tests.harness.command_line import CliRunner


def report(*arguments: object) -> dict[str, Any]:
    """Return what `precad experiment ... --json` prints."""
    done = CliRunner().invoke(app, [str(word) for word in ("experiment", *arguments, "--json")], prog_name="precad")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def delta(epsilon: Any, mu: float) -> Any:
    """Return Eq. 3 and 8 of PRECAD's paper."""
    return norm.cdf(-epsilon / mu + mu / 2) - np.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)
