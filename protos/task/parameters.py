"""State what the conditions of a task read of it, each in the module of its fields: `precad.protos.task.task` calls
them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from precad.dp.task_privacy import PublicParameters
from precad.protos.task.algorithms import AlgorithmRules

if TYPE_CHECKING:
    from pathlib import Path

    from precad.mpc.norm_bound import NormBound


class TaskParameters(PublicParameters, Protocol):
    """Hold a task's parameters; `precad.protos.task.task.Task` is one. Its conditions read no other."""

    algorithm: Any
    clients: dict[str, int]
    audit_clients: list[str]
    real_audit_clients: list[str]
    query: Any
    """A `Query`, or None."""
    learning_rate: float
    submit_timeout_s: float
    proof_timeout_s: float
    round_period_s: float | None
    evaluation_every: int | None
    evaluation_clip: float | None
    evaluation_noise: float | None
    trim_tau: float
    trim_noise: float
    trim_failure: float
    trim_count: int | None
    trim_step: int | None
    krum_attackers: int
    krum_keep: int | None
    sum_function: str | None
    sum_function_sha256: str | None
    sum_function_factor: float | None
    layer_clips: list[float]
    layer_sizes: list[int]
    half_spaces: list[float]
    directions_sha256: str | None
    directions: Path | None

    @property
    def mode(self) -> str: ...
    @property
    def rules(self) -> AlgorithmRules: ...
    @property
    def evaluation(self) -> str: ...
    @property
    def checks_norms(self) -> bool: ...
    @property
    def update_clipping(self) -> str: ...
    @property
    def n_parameters(self) -> int: ...
    @property
    def expected_clients(self) -> float: ...
    @property
    def noise_clip(self) -> float: ...
    @property
    def noise_std_on_grid(self) -> float: ...
    @property
    def norm_bound(self) -> NormBound: ...
