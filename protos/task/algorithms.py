"""Describe every algorithm by one row: who adds noise, what is clipped, whom the noise protects, which fields it has.

All other code asks the row of a task, `Task.rules`, and compares no name. `precad.clients.training.round_update`
computes what a client uploads, and `precad.dp.task_privacy` what a round costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

AlgorithmName: TypeAlias = Literal[
    "precad",
    "user-dp-fedavg",
    "tsgd-ptr",
    "tsgd-gaussian",
    "ins-dp-fedavg",
    "local-dp",
    "distributed-dp",
    "non-private",
    "fedavg",
    "krum",
    "multi-krum",
]
"""Algorithms that two servers can run although they see no single update."""
DEFAULT: Final[AlgorithmName] = "precad"
AS_DEPLOYED: Final = "deployed"
"""`simulation.algorithm` of a simulation that runs what `task.algorithm` says."""
TRUSTED: Final = "central-record-dp"
"""One trusted server adds the noise."""
ONLY_SIMULATED: Final = ("bulyan", "median", "trimmed-mean", "geometric-median", TRUSTED)
"""Names that `precad simulate` knows, of what needs every update in the clear, or one trusted server."""
BUDGETS: Final = ("epsilon_budget_one_server", "epsilon_budget_clients_only", "epsilon_budget_client")
BUDGETS_OF_VIEWS: Final = BUDGETS[:2]
QUANTILE_FIELDS: Final = ("quantile", "quantile_rate", "quantile_noise")
TRIM_FIELDS: Final = ("trim_tau", "trim_noise", "trim_failure", "trim_count", "trim_step")
KRUM_FIELDS: Final = ("krum_attackers", "krum_keep")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmRules:
    """One algorithm. Without noise and without a unit that is protected, nothing is proved."""

    name: AlgorithmName
    servers_add_noise: bool = False
    """Whether each server adds noise, which protects against the other one."""
    clients_add_noise: bool = False
    """Whether clients add noise of their own, in every step."""
    clients_share_noise: bool = False
    """Whether it takes the noise of tau clients to protect one. A round of fewer releases nothing."""
    protects_records: bool = False
    """Whether statements are about single records, whose gradients are clipped to R."""
    protects_clients: bool = False
    """Whether statements are about whole clients, whose updates are clipped to C."""
    trains_locally: bool = False
    """Whether a client uploads the difference of two models. Other clients upload a sum of gradients."""
    trims: bool = False
    """Whether servers leave out the longest updates, and add less noise, where a noisy test allows it. What a round
    costs is no sampled Gaussian then, and no figure hides a client in the draw."""
    drops: bool = False
    """Whether servers leave out the F longest updates of every round, without a test. The sum moves with a client by at
    most C, as with all updates: noise and cost are those of a sum of all."""
    selects: bool = False
    """Whether servers add up the updates that are closest to their neighbours alone, by Krum's scores. Nobody adds
    noise: a round releases their sum, one client's update or few, as it is."""
    own_fields: tuple[str, ...] = ()
    """Fields of a task that mean something to this algorithm, and not to every other."""
    aliases: tuple[str, ...] = ()
    """Other names. The task has the algorithm's own, in its canonical text and digest too."""

    @property
    def is_default(self) -> bool:
        """Tell whether it is the algorithm of a task that names none. Texts leave out its name and its conditions."""
        return self.name == DEFAULT

    @property
    def is_private(self) -> bool:
        """Tell whether anybody adds noise. A task without noise protects nobody, and warns."""
        return self.servers_add_noise or self.clients_add_noise

    @property
    def keeps_some(self) -> bool:
        """Tell whether servers add up a part of the accepted updates, and do not know which."""
        return self.trims or self.drops or self.selects

    @property
    def clips_own_noise(self) -> bool:
        """Tell whether a client clips its update to C after it added noise. C then bounds noise of any size."""
        return self.clients_add_noise and not self.clients_share_noise

    @property
    def noise_clip(self) -> Literal["record_clip", "client_clip"]:
        """Return the field of the bound that `noise_multiplier` is a multiple of."""
        return "client_clip" if self.protects_clients else "record_clip"

    @property
    def idle_budgets(self) -> tuple[str, ...]:
        """Return the budgets that limit nothing, because nothing of their kind is proved."""
        if self.trims:
            return BUDGETS[2:]
        if self.servers_add_noise:
            return ()
        return BUDGETS[2:] if self.is_private else BUDGETS


_DESCENT: Final = ("local_steps", "local_rate")
_SGD: Final = ("local_momentum", "local_weight_decay")
_SELECTED: Final = (*_DESCENT, "local_batch", *_SGD, "update_clipping")
_BY_NAME: Final[dict[AlgorithmName, AlgorithmRules]] = {
    rules.name: rules
    for rules in (
        AlgorithmRules(name="precad", servers_add_noise=True, protects_records=True),
        AlgorithmRules(
            name="user-dp-fedavg",
            servers_add_noise=True,
            protects_clients=True,
            trains_locally=True,
            own_fields=(
                *(*_DESCENT, "local_batch", *_SGD),
                *("update_clipping", *QUANTILE_FIELDS),
            ),
            aliases=("central-dp",),
        ),
        AlgorithmRules(
            name="tsgd-ptr",
            servers_add_noise=True,
            protects_clients=True,
            trains_locally=True,
            trims=True,
            own_fields=(*_DESCENT, "local_batch", *_SGD, "update_clipping", *TRIM_FIELDS),
        ),
        AlgorithmRules(
            name="tsgd-gaussian",
            servers_add_noise=True,
            protects_clients=True,
            trains_locally=True,
            drops=True,
            own_fields=(*_DESCENT, "local_batch", *_SGD, "update_clipping", "trim_count"),
        ),
        AlgorithmRules(
            name="ins-dp-fedavg",
            clients_add_noise=True,
            protects_records=True,
            trains_locally=True,
            own_fields=(*_DESCENT, *_SGD),
        ),
        AlgorithmRules(name="local-dp", clients_add_noise=True, protects_records=True),
        AlgorithmRules(
            name="distributed-dp",
            clients_add_noise=True,
            clients_share_noise=True,
            protects_records=True,
            own_fields=("non_colluding",),
        ),
        AlgorithmRules(name="non-private"),
        AlgorithmRules(
            name="fedavg",
            trains_locally=True,
            own_fields=(*_DESCENT, "local_batch", *_SGD, "update_clipping"),
            aliases=("norm-bounding",),
        ),
        AlgorithmRules(name="krum", trains_locally=True, selects=True, own_fields=(*_SELECTED, *KRUM_FIELDS[:1])),
        AlgorithmRules(name="multi-krum", trains_locally=True, selects=True, own_fields=(*_SELECTED, *KRUM_FIELDS)),
    )
}
RULES: Final[Mapping[AlgorithmName, AlgorithmRules]] = MappingProxyType(_BY_NAME)
ALIASES: Final[Mapping[str, AlgorithmName]] = MappingProxyType(
    {alias: rules.name for rules in RULES.values() for alias in rules.aliases}
)
OF_AN_ALGORITHM: Final[Mapping[str, tuple[AlgorithmName, ...]]] = MappingProxyType(
    {
        field: tuple(rules.name for rules in RULES.values() if field in rules.own_fields)
        for field in dict.fromkeys(field for rules in RULES.values() for field in rules.own_fields)
    }
)
"""Fields that mean something to these algorithms only."""


def names_default(section: Mapping[str, Any]) -> bool:
    """Tell whether a section, of a task or a simulation and not yet validated, leaves the algorithm at PRECAD."""
    return section.get("algorithm", DEFAULT) in (DEFAULT, AS_DEPLOYED)


def named(algorithm: object) -> object:
    """Return the algorithm's own name in place of an alias. Raises ValueError for what only a simulation can run."""
    if not isinstance(algorithm, str):
        return algorithm
    if algorithm == TRUSTED:
        raise ValueError(
            f"{algorithm} trusts one server with every update, and here nobody is: the same noise is on the sum of "
            "'precad' with noise_multiplier / sqrt(2). It runs in `precad simulate`, by simulation.algorithm"
        )
    if algorithm in ONLY_SIMULATED:
        raise ValueError(
            f"{algorithm} needs one server that sees every update, and two servers that hold shares see none: it "
            "runs in `precad simulate`, by simulation.algorithm or simulation.aggregation"
        )
    return ALIASES.get(algorithm, algorithm)
