"""A server that is killed at transitions of a round whose servers add up what Krum's rule chooses, and started again.

Failure means what `tests.faults.deployment` names:
- a model that is not of the updates which the rule chooses of those accepted;
- a round that is charged twice or not at all;
- correlations that served twice.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from precad.protos.tls.identity import Role
from tests.faults.deployment import committed
from tests.faults.kills import kills, require_nothing_wrong_after_a_kill
from tests.faults.server_main import POINTS, POINTS_OF_SELECTED
from tests.harness.harness import small_task
from tests.harness.pki import AGGREGATORS

TASK = small_task(
    ("alice", "bob", "carol", "dave"), algorithm="multi-krum", rounds=4, gate="native", noise_multiplier=0.0,
    client_rate=0.9, krum_attackers=0, krum_keep=2, learning_rate=1.0,
)  # fmt: skip
A, B = AGGREGATORS
DEFAULT = {(A, "after-select"), (B, "after-validated")}
"""In the default suite; everything else is slow."""


@pytest.mark.parametrize(("victim", "point"), kills([*POINTS_OF_SELECTED, *POINTS], DEFAULT))
def test_what_is_chosen_is_released_once_wherever_a_server_dies(victim: Role, point: str, tmp_path: Path) -> None:
    """Two of those who were drawn move the model, by the rule; who they are is in no record."""
    require_nothing_wrong_after_a_kill(tmp_path, TASK, victim, point)
    sizes = {len(one.accepted) for one in committed(tmp_path, TASK, A)}
    assert max(sizes) > 2
