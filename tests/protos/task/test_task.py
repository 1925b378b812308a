"""A task's parameters: what is refused before anything starts, and that the digest covers all of them."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from precad.protos.task.algorithms import KRUM_FIELDS, OF_AN_ALGORITHM, TRIM_FIELDS
from precad.protos.task.audit_fields import AUDIT_FIELDS
from precad.protos.task.bin_fields import BIN_FIELDS
from precad.protos.task.convex_fields import CONVEX_FIELDS
from precad.protos.task.evaluation import EVALUATION_FIELDS
from precad.protos.task.function_fields import FUNCTION_FIELDS
from precad.protos.task.learning import LEARNING_FIELDS
from precad.protos.task.proved_fields import PROVED_FIELDS
from precad.protos.task.query import QUERY_FIELDS
from precad.protos.task.record_fields import RECORD_FIELDS
from precad.protos.task.server_step import SERVER_STEP_FIELDS
from precad.protos.task.task import Task
from precad.protos.task.turns import TURN_FIELDS
from precad.servers.store.folder import open_ledger
from tests.harness.harness import small_task

VECTORS = Path(__file__).parents[2] / "vectors" / "digests.json"
OTHER_VALUES: dict[str, Any] = {
    "name": "other",
    "clients": {"alice": 10, "bob": 11, "mallory": 13},
    "rounds": 3,
    "lost_rounds": 2,
    "client_rate": 0.5,
    "record_rate": 0.25,
    "record_clip": 2.0,
    "record_clipping": "per-layer",
    "client_clip": 1.5,
    "noise_multiplier": 1.5,
    "learning_rate": 0.1,
    "delta": 1e-6,
    "frac_bits": 15,
    "model": "cnn",
    "dim": 25,
    "model_seed": 1,
    "mode": "shares",
    "gate": "native",
    "batches_ahead": 2,
    "submit_timeout_s": 21.0,
    "registration_timeout_s": 21.0,
    "min_clients": 2,
    "epsilon_budget_one_server": 8.0,
    "epsilon_budget_clients_only": 8.0,
    "epsilon_budget_client": 8.0,
    "algorithm": "local-dp",
    "model_arguments": {"width": 8},
    "model_digest": "ab" * 32,
    "base_model_sha256": "ab" * 32,
    "adapter_sha256": "cd" * 32,
    "loss": "mse",
    "evaluation": "public",
    "validation": "none",
    "columns": {"age": {"mean": 50.0}},
    "class_names": ["no", "yes"],
    "record_shape": [3],
    "records_per_person": 2,
    "record_bins": 2,
    "record_rates": {"alice": 0.25},
    "warmup_rounds": 2,
    "server_optimizer": "momentum",
}
"""For every field, another value than the small task's."""
OTHER_VALUES_OF_AN_ALGORITHM: dict[str, Any] = {
    "local_steps": 2,
    "local_rate": 0.2,
    "local_batch": 5,
    "local_momentum": 0.5,
    "local_weight_decay": 0.25,
    "non_colluding": 2,
    "update_clipping": "per-layer",
    "quantile": 0.75,
    "quantile_rate": 0.25,
    "quantile_noise": 0.75,
    "trim_tau": 0.75,
    "trim_noise": 2.0,
    "trim_failure": 1e-9,
    "trim_count": 2,
    "trim_step": 2,
    "krum_attackers": 0,
    "krum_keep": 2,
}
"""Other values of the fields that mean nothing to `precad`."""
EVALUATED = {"evaluation": "clients", "evaluation_every": 1, "evaluation_noise": 5.0}
BESIDE: dict[str, dict[str, Any]] = {
    "learning_rate_schedule": {"decay_rounds": 2},
    "decay_rounds": {"learning_rate_schedule": "step"},
    "decay_factor": {"learning_rate_schedule": "step", "decay_rounds": 2},
    "server_momentum": {"server_optimizer": "momentum"},
    "server_beta2": {"server_optimizer": "adam"},
    "server_adaptivity": {"server_optimizer": "adam"},
    **dict.fromkeys(EVALUATION_FIELDS, EVALUATED),
}
"""Fields that mean something beside others only."""
OTHER_VALUES_BESIDE: dict[str, Any] = {
    "learning_rate_schedule": "cosine",
    "decay_rounds": 3,
    "decay_factor": 0.5,
    "server_momentum": 0.5,
    "server_beta2": 0.5,
    "server_adaptivity": 0.5,
    "evaluation_every": 2,
    "evaluation_noise": 6.0,
    "evaluation_clip": 3.0,
    "evaluation_loss_bound": 2.0,
}
"""Another value of each of them."""


def test_the_digest_covers_every_single_field() -> None:
    """A field that is added to `Task` fails here until it has another value to try."""
    with_mode = {"accept_weak_wire_form", *PROVED_FIELDS, *QUERY_FIELDS, *AUDIT_FIELDS, *TURN_FIELDS, *CONVEX_FIELDS}
    with_mode |= set(FUNCTION_FIELDS)  # never alone: tests/protos/task/test_function_fields.py
    tried = OTHER_VALUES.keys() | OTHER_VALUES_OF_AN_ALGORITHM.keys() | OTHER_VALUES_BESIDE.keys()
    assert tried | with_mode == Task.model_fields.keys()
    assert OTHER_VALUES_OF_AN_ALGORITHM.keys() == OF_AN_ALGORITHM.keys()
    digests = {small_task().digest()} | {small_task(**{name: v}).digest() for name, v in OTHER_VALUES.items()}
    assert len(digests) == 1 + len(OTHER_VALUES)
    assert all(len(digest) == 32 for digest in digests)
    for name, value in OTHER_VALUES_OF_AN_ALGORITHM.items():
        base: dict[str, Any] = {"algorithm": OF_AN_ALGORITHM[name][0], "client_clip": 100.0}
        if name.startswith("krum"):
            base |= {"noise_multiplier": 0.0, "clients": dict.fromkeys("abcde", 10)}
        if name.startswith("quantile"):
            base["update_clipping"] = "private-quantile"
        digests |= {small_task(**base).digest(), small_task(**base, **{name: value}).digest()}
    n_bases = 6  # five algorithms, and one of them with a quantile
    assert len(digests) == 1 + len(OTHER_VALUES) + len(OTHER_VALUES_OF_AN_ALGORITHM) + n_bases
    digests |= {small_task(**{**BESIDE[name], name: value}).digest() for name, value in OTHER_VALUES_BESIDE.items()}
    assert len(digests) == 1 + len(OTHER_VALUES) + len(OTHER_VALUES_OF_AN_ALGORITHM) + n_bases + len(BESIDE)


@pytest.mark.parametrize("algorithm", ["precad", "user-dp-fedavg"])
def test_fields_of_learning_are_absent_at_their_defaults(algorithm: str) -> None:
    """Tasks from before there were such fields keep their text; others have each of them by itself."""
    usual = small_task(algorithm=algorithm)
    named = small_task(algorithm=algorithm, model_arguments={}, model_digest=None, loss="cross-entropy")
    assert named.canonical() == usual.canonical()
    assert not {"model_arguments", "model_digest", "loss", "evaluation"} & json.loads(usual.canonical()).keys()
    arguments = {"width": 8, "rate": 1.0, "deep": True, "kind": "a"}
    text = small_task(algorithm=algorithm, model_arguments=arguments).canonical()
    assert '"model_arguments":{"deep":true,"kind":"a","rate":1.0,"width":8}' in text
    assert "loss" not in json.loads(text)


def test_the_digest_of_a_precad_task_has_no_field_of_other_algorithms() -> None:
    """Computed by the protocol's text: JSON of the fields that its table names, sorted, without white space."""
    task = small_task()
    later = {"record_rates", "validation", *RECORD_FIELDS, *LEARNING_FIELDS, *SERVER_STEP_FIELDS, *BIN_FIELDS}
    names = {*OTHER_VALUES, "accept_weak_wire_form"} - {"algorithm", *later}
    fields = {name: getattr(task, name) for name in names}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    assert task.digest() == hashlib.sha256(b"precad/v1.1\n" + text.encode()).digest()


def test_the_digest_of_a_task_without_a_later_field_is_what_it_was_before_that_field() -> None:
    """By the protocol's text: the fields of its table that are absent at their default are named here once more."""
    task = small_task(algorithm="user-dp-fedavg", local_steps=2)
    later = {"update_clipping", "quantile", "quantile_rate", "quantile_noise", *RECORD_FIELDS, *LEARNING_FIELDS}
    later |= {"validation", "record_rates", *SERVER_STEP_FIELDS, *PROVED_FIELDS, *QUERY_FIELDS, *AUDIT_FIELDS}
    names = Task.model_fields.keys() - later - {*EVALUATION_FIELDS, *TURN_FIELDS, *TRIM_FIELDS, *CONVEX_FIELDS}
    names -= {*FUNCTION_FIELDS, *KRUM_FIELDS, *BIN_FIELDS}
    text = json.dumps({name: getattr(task, name) for name in names}, sort_keys=True, separators=(",", ":"))
    assert task.digest() == hashlib.sha256(b"precad/v1.1\n" + text.encode()).digest()
    by_layer = small_task(algorithm="user-dp-fedavg", local_steps=2, update_clipping="per-layer")
    assert json.loads(by_layer.canonical()) == json.loads(text) | {"update_clipping": "per-layer"}
    learnt = {"update_clipping": "private-quantile", "quantile": 0.75}
    at_quantile = small_task(algorithm="user-dp-fedavg", local_steps=2, **learnt)
    assert json.loads(at_quantile.canonical()) == json.loads(text) | learnt


DIGESTS_BEFORE = {
    "a small task": "618e7d84954fd1dc3858c239cfe7d12768dd7ff5cd339b001cb4eb76ce07a352",
    "flat clipping": "a1fec003b8d6ce7e583002eb4354b8b0491b993e71ae1eaf09d5a8af7feb86a6",
    "a learnt bound": "5ad42f8f7fbc3666e65864ab227c153b1f8973826f3bf5dc0a3b9670986d97ae",
}
"""Digests of cases of `tests/vectors/digests.json`, as that file had them under precad/v1."""


@pytest.mark.parametrize("name", DIGESTS_BEFORE)
def test_the_digest_of_the_version_before_is_what_it_was_there(name: str) -> None:
    cases = json.loads(VECTORS.read_text())["positive"]
    (fields,) = [case["input"]["task"] for case in cases if case["name"] == name]
    task = Task(**fields)
    assert task.digest_before.hex() == DIGESTS_BEFORE[name]
    assert task.digest() != task.digest_before


def test_the_digest_covers_ids_and_counts_and_not_their_order() -> None:
    clients = {"alice": 10, "bob": 11, "carol": 12}
    base = small_task(clients=clients).digest()
    assert small_task(clients=dict(reversed(clients.items()))).digest() == base
    assert small_task(clients={"alice": 11, "bob": 10, "carol": 12}).digest() != base
    assert small_task(clients={"alice": 10, "bob": 11, "carol2": 12}).digest() != base


def test_the_digest_does_not_depend_on_how_a_number_was_written() -> None:
    """TOML's 1 and 1.0 are one parameter."""
    assert small_task(client_clip=1).digest() == small_task(client_clip=1.0).digest()


REFUSED: list[tuple[str, Any, str]] = [
    ("name", "", "pattern"),
    ("name", "Upper", "pattern"),
    ("name", "line\n", "pattern"),
    ("name", "a" * 64, "pattern"),
    ("clients", {}, "at least 2"),
    ("clients", {"alice": 1}, "at least 2"),
    ("clients", {"alice": 0, "bob": 1}, "greater than or equal to 1"),
    ("clients", {"alice": 1.5, "bob": 1}, "valid integer"),
    ("clients", {"Alice": 1, "bob": 1}, "name: expected one for a client that matches"),
    ("clients", {"al/ice": 1, "bob": 1}, "name: expected one for a client that matches"),
    ("clients", {"alice\n": 1, "bob": 1}, "name: expected one for a client that matches"),
    ("rounds", 0, "greater than or equal to 1"),
    ("rounds", 1_000_001, "less than or equal to 1000000"),
    ("rounds", 2.0, "valid integer"),
    ("rounds", True, "valid integer"),
    ("lost_rounds", 0, "greater than or equal to 1"),
    ("lost_rounds", 1_000_001, "less than or equal to 1000000"),
    ("client_rate", 1.01, "less than or equal to 1"),
    ("client_rate", -0.1, "greater than 0"),
    ("client_rate", 0.0, "greater than 0"),
    ("client_rate", math.nan, "finite|less than|greater than"),
    ("client_rate", "0.5", "valid number"),
    ("layer_clips", [0.0], "greater than 0"),
    ("layer_clips", [math.nan], "finite"),
    ("layer_clips", [math.inf], "finite"),
    ("layer_clips", [1.0] * 1025, "at most 1024 items"),
    ("layer_sizes", [0], "greater than or equal to 1"),
    ("layer_sizes", [1.5], "valid integer"),
    ("half_spaces", [0.5], "less than or equal to 0"),
    ("half_spaces", [-math.inf], "finite"),
    ("half_spaces", [-1.0] * 17, "at most 16 items"),
    ("directions_sha256", "f" * 63, "pattern"),
    ("directions", 5, "path"),
    ("trim_tau", 0.0, "greater than 0"),
    ("trim_tau", 1.0, "less than 1"),
    ("trim_tau", math.nan, "less than 1"),
    ("trim_noise", 0.0, "greater than 0"),
    ("trim_noise", math.inf, "less than or equal to 1000000"),
    ("trim_failure", 0.5, "less than 0.5"),
    ("trim_failure", 0.0, "greater than 0"),
    ("trim_count", -1, "greater than or equal to 0"),
    ("trim_step", 0, "greater than or equal to 1"),
    ("krum_attackers", -1, "greater than or equal to 0"),
    ("krum_keep", 0, "greater than or equal to 1"),
    ("record_rate", 0.0, "greater than 0"),
    ("record_rate", 1.5, "less than or equal to 1"),
    ("record_rates", {"alice": 0.0}, "greater than 0"),
    ("record_rates", {"alice": 0.75}, r"record_rates\.alice: expected at most record_rate, 0\.5, found 0\.75"),
    ("record_rates", {"nobody": 0.1}, "record_rates: expected enrolled clients, found 'nobody'"),
    ("record_clip", 0.0, "greater than 0"),
    ("record_clip", math.inf, "finite"),
    ("record_clipping", "per_layer", "flat"),
    ("client_clip", 0.0, "greater than 0"),
    ("client_clip", math.nan, "finite|greater than"),
    ("client_clip", 94_000_000 / 2**16 * (1 + 1e-15), r"client_clip \* 2\^frac_bits: expected at most 94000000"),
    ("client_clip", 2.0**-17, r"client_clip \* 2\^frac_bits: expected at least 1"),
    ("noise_multiplier", 0.0, "greater than 0"),
    ("noise_multiplier", 1e300, r"2\^frac_bits: expected a number in \[8, 2\^40\]"),
    ("learning_rate", 0.0, "greater than 0"),
    ("delta", 0.0, "greater than 0"),
    ("delta", 1.0, "less than 1"),
    ("frac_bits", -1, "greater than or equal to 0"),
    ("frac_bits", 41, "less than or equal to 40"),
    ("frac_bits", 27, r"client_clip \* 2\^frac_bits: expected at most 94000000"),
    ("model", "", "at least 1 character"),
    ("dim", 0, "greater than or equal to 1"),
    ("dim", 2**35, "dim: expected at most"),
    ("model_seed", -1, "greater than or equal to 0"),
    ("mode", "plain", "'masked', 'shares' or 'proved'"),
    ("accept_weak_wire_form", True, "is of mode 'shares', layer_clips and half_spaces only, found mode 'masked'"),
    ("gate", "none", "'crypten' or 'native'"),
    ("batches_ahead", -1, "greater than or equal to 0"),
    ("batches_ahead", 17, "less than or equal to 16"),
    ("submit_timeout_s", 0.0, "greater than 0"),
    ("proof_timeout_s", 0.0, "greater than 0"),
    ("round_period_s", 0.0, "greater than 0"),
    ("servers_follow_protocol", "yes", "valid boolean"),
    ("registration_timeout_s", -1.0, "greater than 0"),
    ("min_clients", 0, "greater than or equal to 1"),
    ("min_clients", 4, "at most the 3 enrolled"),
    ("epsilon_budget_one_server", 0.0, "greater than 0"),
    ("epsilon_budget_clients_only", math.inf, "finite"),
    ("epsilon_budget_client", -1.0, "greater than 0"),
    ("algorithm", "fedsgd", "'precad', 'user-dp-fedavg'"),
    ("local_steps", 0, "greater than or equal to 1"),
    ("min_separation", 0, "greater than or equal to 1"),
    ("noise_bands", 65, "less than or equal to 64"),
    ("local_rate", 0.0, "greater than 0"),
    ("local_batch", 0, "greater than or equal to 1"),
    ("local_momentum", 1.0, "less than 1"),
    ("local_weight_decay", -0.1, "greater than or equal to 0"),
    ("non_colluding", 0, "greater than or equal to 1"),
    ("non_colluding", 2**53 + 1, "less than or equal to 9007199254740992"),
    ("update_clipping", "per_layer", "'flat', 'per-layer', 'private-quantile' or"),
    ("quantile", 1.0, "less than 1"),
    ("quantile_rate", 0.0, "greater than 0"),
    ("quantile_noise", 0.0, "greater than 0"),
    ("model_arguments", {"width": [8]}, "valid string"),
    ("model_arguments", {"rate": math.inf}, "finite number"),
    ("model_digest", "AB" * 32, "pattern"),
    ("base_model_sha256", "AB" * 32, "pattern"),
    ("adapter_sha256", "ab", "pattern"),
    ("loss", "", "at least 1 character"),
    ("evaluation", "private", "'none', 'public' or 'clients'"),
    ("evaluation_every", 0, "greater than or equal to 1"),
    ("evaluation_noise", 0.0, "greater than 0"),
    ("evaluation_clip", 0.0, "greater than 0"),
    ("evaluation_loss_bound", math.inf, "finite number"),
    ("validation", "cosine", "'norm' or 'none'"),
    ("columns", {"age": {"std": 0.0}}, "greater than 0"),
    ("class_names", ["one"], "at least two classes"),
    ("record_shape", [0], "greater than or equal to 1"),
    ("records_per_person", 0, "greater than or equal to 1"),
    ("record_bins", 1, "greater than or equal to 2"),
    ("learning_rate_schedule", "exponential", "'constant', 'step', 'linear' or 'cosine'"),
    (
        "learning_rate_schedule",
        "step",
        "decay_rounds: expected a number with learning_rate_schedule 'step', found none",
    ),
    ("warmup_rounds", -1, "greater than or equal to 0"),
    ("decay_rounds", 0, "greater than or equal to 1"),
    ("decay_rounds", 3, "decay_rounds: expected none with learning_rate_schedule 'constant', found 3"),
    ("decay_factor", 1.5, "less than or equal to 1"),
    ("decay_factor", 0.5, "decay_factor: expected none with learning_rate_schedule 'constant', found 0.5"),
    ("server_optimizer", "lamb", "'sgd', 'momentum' or 'adam'"),
    ("server_momentum", 1.0, "less than 1"),
    ("server_momentum", 0.5, "server_momentum: expected none with server_optimizer 'sgd', found 0.5"),
    ("server_beta2", -0.1, "greater than or equal to 0"),
    ("server_beta2", 0.5, "server_beta2: expected none with server_optimizer 'sgd', found 0.5"),
    ("server_adaptivity", 0.0, "greater than 0"),
    ("query", {"kind": "mode", "column": "age", "low": 0.0, "high": 1.0}, "'count', 'mean', 'variance'"),
    ("audit_clients", ["nobody"], "audit_clients: expected enrolled clients, found 'nobody'"),
    ("real_audit_clients", ["nobody"], "real_audit_clients: expected audit_clients beside them"),
    ("sum_function", "clip", "should match pattern"),
    ("sum_function_arguments", {"bound": math.nan}, "finite number"),
    ("sum_function_sha256", "ab", "should match pattern"),
    ("sum_function_factor", 0.5, "greater than or equal to 1"),
]


@pytest.mark.parametrize(("name", "value", "message"), REFUSED)
def test_a_value_out_of_bounds_is_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        small_task(**{name: value})


def test_every_field_has_a_bound_that_is_tested() -> None:
    assert {name for name, _, _ in REFUSED} == Task.model_fields.keys()


def test_the_largest_values_are_taken() -> None:
    """Bounds are where the specification has them, not one short of it."""
    assert small_task(client_clip=94_000_000 / 2**16).norm_bound.encoded_clip == 94_000_000
    dim = (2**64 - 1 - 2**29) // (2**30 - 1)
    assert small_task(dim=dim).norm_bound.dim == dim
    with pytest.raises(ValidationError, match="dim: expected at most"):
        small_task(dim=dim + 1)
    assert small_task(client_clip=2.0**-16).norm_bound.threshold == 1


def test_the_weaker_wire_form_needs_a_word_that_says_so() -> None:
    with pytest.raises(ValidationError, match=r"accept_weak_wire_form: expected true with mode 'shares'.*found false"):
        small_task(mode="shares", accept_weak_wire_form=False)
    assert small_task(mode="shares", accept_weak_wire_form=True).accept_weak_wire_form


def test_lost_rounds_are_3_and_a_tenth_of_the_rounds_and_survive_one_interruption_unless_the_task_says() -> None:
    assert [small_task(rounds=n).most_lost_rounds for n in (1, 9, 10, 500)] == [3, 3, 4, 53]
    assert [small_task(rounds=10, batches_ahead=k).most_lost_rounds for k in (0, 1, 2, 3, 16)] == [4, 4, 4, 5, 18]
    assert [small_task(rounds=500, batches_ahead=16, lost_rounds=n).most_lost_rounds for n in (1, 7)] == [1, 7]


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(ValidationError, match="learning_rte"):
        small_task(learning_rte=0.1)


@pytest.mark.parametrize("name", ["clients", "rounds", "client_rate", "client_clip", "noise_multiplier", "dim"])
def test_a_parameter_that_has_no_safe_default_must_be_given(name: str) -> None:
    values = small_task().model_dump()
    del values[name]
    with pytest.raises(ValidationError, match=rf"{name}\n +Field required"):
        Task(**values)


def test_a_task_does_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        small_task().rounds = 3


def test_a_sum_that_could_wrap_is_refused() -> None:
    """n * C * 2^f plus the noise of both servers stays below 2^63.

    The bounds of C and of sigma R see to it, for as many clients as there are people, and 12 standard deviations of
    noise.
    """
    clip, noise_multiplier = 94_000_000 / 2**16, 2.0**40 / 2**16
    task = small_task(client_clip=clip, noise_multiplier=noise_multiplier)
    assert 10**10 * task.norm_bound.encoded_clip + 12 * math.sqrt(2) * task.noise_std_on_grid < 2**63
    for changes in (
        {"noise_multiplier": math.nextafter(noise_multiplier, math.inf)},
        {"client_clip": clip * (1 + 1e-15)},
    ):
        with pytest.raises(ValidationError, match=r"2\^frac_bits: expected"):
            small_task(**{"client_clip": clip, "noise_multiplier": noise_multiplier, **changes})


def test_the_divisor_is_the_expected_number_of_records() -> None:
    """W = q p (N_1 + ... + N_n), from public constants alone."""
    assert small_task(client_rate=0.5, record_rate=0.25).divisor == 0.5 * 0.25 * (10 + 11 + 12)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"client_rate": 0.25, "record_rate": 5e-324}, "0, found 0.3"),
        ({"record_rate": 1e-300, "learning_rate": 1e30}, "3.3e-299, found 1e\\+30"),
    ],
    ids=["of nothing", "of next to nothing"],
)
def test_a_divisor_that_no_step_survives_is_refused(changes: dict[str, float], found: str) -> None:
    """Servers divide by it after they charged the round and opened its sum."""
    with pytest.raises(ValidationError, match=f"learning_rate: expected a finite number once .* {found}"):
        small_task(**changes)


@pytest.mark.parametrize("name", ["operator", "dealer", "aggregator-a", "client"])
def test_a_client_that_no_certificate_can_name_is_refused(name: str) -> None:
    """`precad.protos.tls.identity` gives such a name to nobody, so the task would wait for it in vain."""
    with pytest.raises(ValidationError, match="name: expected one for a client that is no role's"):
        small_task(clients={"alice": 1, "bob": 1, name: 1})


@pytest.mark.parametrize("noise_multiplier", [1e-12, 2.0**41 / 2**16, 7.999 / 2**16, 2.0**40.001 / 2**16])
def test_noise_that_the_sampler_or_the_accountant_refuses_is_refused_at_once(noise_multiplier: float) -> None:
    """Both need the standard deviation on the grid within bounds: known before anything starts."""
    with pytest.raises(ValidationError, match=r"2\^frac_bits: expected a number in \[8, 2\^40\]"):
        small_task(noise_multiplier=noise_multiplier)


@pytest.mark.parametrize("noise_std_on_grid", [8.0, 2.0**40])
def test_noise_at_the_bounds_is_taken_and_accounted(noise_std_on_grid: float, tmp_path: Path) -> None:
    """Whatever configuration is accepted, its ledger opens."""
    task = small_task(noise_multiplier=noise_std_on_grid / 2**16)
    with open_ledger(tmp_path, task) as ledger:
        ledger.charge(0, tuple(task.clients))
