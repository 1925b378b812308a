"""A task with audit clients: what it must fulfil, its digest, its vector, and a model that moves as without them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from pydantic import ValidationError

from precad.protos.task.model_update import Past, updated
from precad.protos.task.task import Task
from tests.harness.harness import small_task

CLIENTS = {"alice": 40, "bob": 60, "eve": 9, "dan": 4}
AUDITED: dict[str, Any] = {
    "clients": CLIENTS,
    "audit_clients": ["eve", "dan"],
    "dim": 700 + 13,
    "record_clip": 1.0,
    "client_clip": 3.0,
    "mode": "masked",
}


def audited(**fields: Any) -> Task:
    """Return a task of 700 parameters and 13 canaries of two audit clients."""
    return small_task(**AUDITED | fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"client_clip": 2.99},
            r"expected at least record_clip \* sqrt\(9\), as .* of eve else, found 2.99",
        ),
        ({"clients": CLIENTS | {"eve": 10}, "dim": 714}, r"record_clip \* sqrt\(10\)"),
        (
            {"dim": 649 + 13},
            "expected a model with 50 parameters for each of the 13 canaries, found 649",
        ),
        ({"dim": 10}, "for each of the 13 canaries, found 0"),
        ({"audit_clients": ["eve", "carol"]}, "audit_clients: expected enrolled clients, found 'carol'"),
        ({"audit_clients": ["eve", "eve"]}, "expected different clients, found one twice"),
        ({"audit_clients": list(CLIENTS)}, "audit_clients: expected a client that is none of them, found none"),
        ({"audit_clients": [""]}, "at least 1 character"),
        ({"algorithm": "user-dp-fedavg"}, "algorithm: expected none beside audit_clients"),
        ({"record_rates": {"alice": 0.1}}, "record_rates: expected none beside audit_clients"),
        ({"record_clipping": "per-layer"}, "record_clipping: expected none beside audit_clients"),
        ({"server_optimizer": "momentum"}, "server_optimizer: expected none beside audit_clients"),
        ({"loss": "mse"}, "loss: expected none beside audit_clients"),
        ({"base_model_sha256": "ab" * 32}, "base_model_sha256: expected none beside audit_clients"),
    ],
)
def test_what_an_audit_cannot_judge_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        audited(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"audit_clients": [], "dim": 700, "real_audit_clients": ["eve"]}, "expected audit_clients beside them"),
        ({"real_audit_clients": ["carol"]}, "expected enrolled clients that are not in audit_clients, found 'carol'"),
        ({"real_audit_clients": ["eve"]}, "expected enrolled clients that are not in audit_clients, found 'eve'"),
        ({"real_audit_clients": ["real", "real"]}, "expected different clients, found one twice"),
        ({"clients": CLIENTS | {"real": 10}}, "expected 2 to 9 records of real, whose sum the projection .* found 10"),
        ({"clients": CLIENTS | {"real": 1}}, "expected 2 to 9 records of real, .* found 1"),
        (
            {"clients": CLIENTS | {"real": 65}, "client_clip": 100.0, "dim": 3250 + 13},
            "expected 2 to 64 records of real, .* found 65",
        ),
        (
            {"clients": CLIENTS | {"real": 15}, "client_clip": 8.0},
            "expected 2 to 14 records of real, .* found 15",  # of 700 parameters
        ),
        ({"clients": {"eve": 9, "dan": 4, "real": 9}}, "real_audit_clients: expected a client that does not audit"),
        ({"rounds": 95_870}, "expected at most 67108864 parameters times rounds, .* found 67109000"),
        ({"record_clipping": "per-layer"}, "record_clipping: expected none beside audit_clients"),
    ],
)
def test_what_an_audit_with_real_records_cannot_judge_is_refused(fields: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"clients": CLIENTS | {"real": 9}, "real_audit_clients": ["real"]}
    with pytest.raises(ValidationError, match=message):
        audited(**given | fields)


def test_real_audit_clients_train_as_members_and_are_in_the_digest() -> None:
    """They have no coordinates of their own, and their records count in the divisor."""
    real = audited(clients=CLIENTS | {"zoe": 9, "ann": 2}, real_audit_clients=["zoe", "ann"])
    plain = audited(clients=CLIENTS | {"zoe": 9, "ann": 2})
    assert json.loads(real.canonical()) == json.loads(plain.canonical()) | {"real_audit_clients": ["ann", "zoe"]}
    assert real.digest() != plain.digest()
    assert (real.n_canaries, real.n_parameters, real.divisor) == (13, 700, plain.divisor)


def test_audit_clients_are_in_the_digest_and_absent_where_there_are_none() -> None:
    plain, one, both = (audited(audit_clients=names) for names in ([], ["dan"], ["dan", "eve"]))
    assert len({plain.digest(), one.digest(), both.digest()}) == 3
    assert both.digest() == audited(audit_clients=["eve", "dan"]).digest()
    assert "audit_clients" not in json.loads(plain.canonical())
    assert json.loads(both.canonical())["audit_clients"] == ["dan", "eve"]


def test_each_audit_client_has_coordinates_of_its_own_after_the_models() -> None:
    """In the order of ids, whatever the order in the list; an honest client has none."""
    task = audited()
    assert (task.n_parameters, task.n_canaries, task.canary_coordinates) == (700, 13, slice(700, 713))
    assert task.canaries_of == {"dan": range(4), "eve": range(4, 13)}
    assert audited(audit_clients=[], dim=700).canary_coordinates == slice(700, 700)


def test_the_model_moves_as_without_canaries_and_their_coordinates_by_the_same_step() -> None:
    """Bit for bit: the divisor counts the records of those who train alone."""
    task = audited()
    alone = small_task(**AUDITED | {"clients": {"alice": 40, "bob": 60}, "audit_clients": [], "dim": 700})
    draws = np.random.default_rng(1)
    total, theta = draws.integers(-(10**6), 10**6, 713), draws.normal(size=713).astype(np.float32)
    moved, _ = updated(theta, total, task, Past.first(task))
    expected, _ = updated(theta[:700], total[:700], alone, Past.first(alone))

    assert task.divisor == alone.divisor
    assert_array_equal(moved[:700], expected)
    step = task.learning_rate / task.divisor * total[700:] / 2**task.frac_bits
    assert_array_equal(moved[700:], (theta[700:] + step).astype(np.float32))
