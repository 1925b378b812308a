"""Tasks of mode `proved`: their text, their version, and the conditions that the mode's theorems need.

Failure means: a task that the theorems do not cover is accepted, or the digest of a task of another mode has changed.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from precad.deploy.configuration.check_privacy import privacy_facts
from precad.dp.accountants.pld import PldAccountant, SampledGaussian, View
from precad.dp.accountants.slack import with_slack
from precad.dp.task_privacy import noise_left, task_privacy
from precad.mpc.errors import ParameterError
from precad.mpc.proved.sizes import check_round, largest_frac_bits
from precad.protos.task.proved_fields import STANDING
from precad.protos.task.task import Task
from precad.protos.task.task_fields import hello_to
from tests.harness.harness import small_task

ROOT = Path(__file__).resolve().parents[3]
WORD = re.compile(r"(?<!\.)\b[Ee]xperimental\b")
"""Find the word about the mode: in gRPC's options a dot is before it."""


def test_the_text_has_the_fields_of_the_mode_and_none_of_a_dealer() -> None:
    task = small_task(mode="proved")
    fields = json.loads(task.canonical())
    assert (fields["mode"], fields["proof_timeout_s"], fields["lost_rounds"]) == ("proved", 60.0, 3)
    assert not {"gate", "batches_ahead", "accept_weak_wire_form", "servers_follow_protocol"} & fields.keys()
    assert task.digest() == hashlib.sha256(b"precad/v2\n" + task.canonical().encode()).digest()
    assert (task.protocol_version, hello_to(task).protocol_version) == ("precad/v2", "precad/v2")
    assert small_task(mode="proved", proof_timeout_s=61.0).digest() != task.digest()
    assert small_task(mode="proved", lost_rounds=4).digest() != task.digest()
    assert small_task(mode="proved", lost_rounds=3).digest() == task.digest()
    assert (task.draws_ahead, small_task().draws_ahead) == (0, 1)


@pytest.mark.parametrize("clip", [0.5, 1.0, 16.0, 1434.0])
def test_frac_bits_are_the_most_that_the_bound_allows_where_none_are_named(clip: float) -> None:
    task = small_task(mode="proved", client_clip=clip)
    assert task.frac_bits == largest_frac_bits(clip)
    assert clip * 2**task.frac_bits <= 5_876_432 < clip * 2 ** (task.frac_bits + 1)
    assert small_task(mode="proved", client_clip=clip, frac_bits=12).frac_bits == 12
    assert small_task(client_clip=clip).frac_bits == 16


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mode": "proved", "gate": "native"}, "gate: expected none in mode 'proved'"),
        ({"mode": "proved", "batches_ahead": 2}, "batches_ahead: expected none in mode 'proved'"),
        ({"mode": "proved", "client_clip": 100.0, "frac_bits": 16}, "frac_bits: expected at most 15"),
        ({"mode": "proved", "client_clip": 1e7}, "client_clip: expected at most 5876432"),
        ({"mode": "proved", "client_clip": 100.0, "frac_bits": 22}, "frac_bits: expected at most 15"),
        (
            {"mode": "proved", "client_clip": 1e-9, "frac_bits": 20},
            "frac_bits: expected client_clip .*: every",
        ),
        ({"mode": "proved", "frac_bits": 41}, "frac_bits\n"),
        ({"mode": "proved", "dim": 2**30 + 1}, "dim: expected 1 to 1073741824 .*: lower dim"),
        (
            {"mode": "proved", "client_clip": 89.6, "frac_bits": 16, "dim": 1_073_741_776},
            "dim: expected at most 1073741775 with client_clip 89.6 and frac_bits 16.*: lower frac_bits",
        ),
        ({"mode": "proved", "frac_bits": 2}, "noise_multiplier: expected .* found 4.0: raise noise_multiplier"),
        ({"mode": "proved", "noise_multiplier": 1e9}, "noise_multiplier: expected .*: lower noise_multiplier"),
        ({"mode": "proved", "delta": 1e-12}, "delta: expected more than"),
        ({"mode": "proved", "servers_follow_protocol": True}, "servers_follow_protocol: expected none"),
        (
            {"mode": "proved", "algorithm": "non-private", "noise_multiplier": 0.0},
            "servers_follow_protocol: expected true",
        ),
        ({"servers_follow_protocol": True}, "servers_follow_protocol is of mode 'proved' only"),
        ({"proof_timeout_s": 5.0}, "proof_timeout_s is of mode 'proved' only"),
    ],
)
def test_what_the_theorems_do_not_cover_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        small_task(**fields)


def test_a_task_has_one_check_of_norms_and_both_modes_one_threshold() -> None:
    """T = floor((C 2^f)^2) of the float that C is, whoever checks it; nothing else is made of a task without a set."""
    proved, dealt = (small_task(mode=mode, client_clip=0.1, frac_bits=16) for mode in ("proved", "masked"))
    assert proved.norm_check is proved.proof_sizes
    assert dealt.norm_check is dealt.norm_bound is dealt.update_set
    assert proved.norm_check.threshold == dealt.norm_check.threshold == math.floor(Fraction(0.1) ** 2 * 2**32)
    assert "norm_bound" not in vars(proved)


def test_conditions_hold_up_to_their_bounds() -> None:
    small_task(mode="proved", client_clip=89.6, frac_bits=16, dim=1_073_741_775)
    small_task(mode="proved", frac_bits=3)  # 8 units of noise
    small_task(mode="proved", frac_bits=20, noise_multiplier=2.0**20)
    with pytest.raises(ParameterError, match=r"clients: expected at most 1048576 enrolled .*: enrol fewer"):
        check_round(2**20 + 1, 0.0)


@pytest.mark.parametrize("dim", [26_010, 10**5, 10**6])
@pytest.mark.parametrize(
    ("frac_bits", "record_clip", "left"),
    [
        (8, 1.0, (0.61, 0.45, 0.20)),
        (10, 1.0, (0.86, 0.76, 0.51)),
        (12, 1.0, (0.96, 0.93, 0.80)),
        (8, 10.0, (0.94, 0.89, 0.72)),
        (10, 10.0, (0.98, 0.97, 0.91)),
        (12, 10.0, (0.996, 0.992, 0.976)),
    ],
)
def test_a_check_shows_what_rounding_leaves_of_the_noise(
    frac_bits: int, record_clip: float, left: tuple[float, ...], dim: int
) -> None:
    """By hand, what is left of the noise for C = 1000; above 0.1 % of epsilon a warning says what helps."""
    task = small_task(mode="proved", client_clip=1000.0, frac_bits=frac_bits, record_clip=record_clip, dim=dim)
    expected = left[(26_010, 10**5, 10**6).index(dim)]
    assert noise_left(task) == pytest.approx(expected, abs=6e-3)
    said = privacy_facts(task)["fixed_point"]
    added = rounding_adds(task)
    assert said.startswith("WARNING: ") == (added > 0.001)
    if added > 0.001:
        cure = "lower client_clip or raise record_clip" if frac_bits == 12 else 'frac_bits = "largest" costs nothing'
        share = f", {added:.1%} of it" if math.isfinite(added) else ""
        assert said.endswith(f"which every epsilon counts{share}: {cure}")
    assert privacy_facts(task)["delta"].startswith("mode proved itself takes 8.2e-12 (1 + e^epsilon)")


def rounding_adds(task: Task) -> float:
    """Return by how much of epsilon R + sqrt(d) 2^-f is worse than R, by the accountant alone."""
    rounded = task.noise_multiplier * task.record_clip / (task.record_clip + math.sqrt(task.dim) * 2.0**-task.frac_bits)
    accountant = with_slack(PldAccountant(), task.delta_slack)
    at, exact = (
        accountant.epsilon(SampledGaussian(task.record_rate, sigma), task.rounds, task.delta)
        for sigma in (rounded, task.noise_multiplier)
    )
    return at / exact - 1


def test_a_task_of_another_mode_is_warned_too_and_one_of_clients_is_not() -> None:
    assert "fixed_point" not in privacy_facts(small_task())
    coarse = small_task(frac_bits=5)
    assert privacy_facts(coarse)["fixed_point"] == (
        "WARNING: 5 fractional bits leave 0.8672 of noise_multiplier, which every epsilon counts, "
        f'{rounding_adds(coarse):.1%} of it: frac_bits = "largest" costs nothing'
    )
    whole = small_task(mode="proved", algorithm="user-dp-fedavg", frac_bits=5)
    assert "fixed_point" not in privacy_facts(whole)
    assert noise_left(whole) == 1


def test_rounding_that_takes_half_of_the_noise_is_warned_of_where_no_epsilon_is_left_to_compare() -> None:
    """Both are infinite in mode `proved`, with the finest grid and with this one."""
    coarse = small_task(mode="proved", client_clip=1000.0, frac_bits=8, dim=100_000, rounds=100)
    finest = coarse.model_copy(update={"frac_bits": 40})
    figures = [task_privacy(task).epsilon(View.ONE_SERVER, 100, task.delta) for task in (coarse, finest)]
    assert figures == [math.inf, math.inf]
    left = 1 / (1 + math.sqrt(100_000) * 2.0**-8)
    assert privacy_facts(coarse)["fixed_point"] == (
        f"WARNING: 8 fractional bits leave {left:.4f} of noise_multiplier, which every epsilon counts: "
        'frac_bits = "largest" costs nothing'
    )


def test_a_task_that_only_honest_servers_protect_needs_a_word_that_says_so() -> None:
    task = small_task(mode="proved", algorithm="non-private", noise_multiplier=0.0, servers_follow_protocol=True)
    assert json.loads(task.canonical())["servers_follow_protocol"] is True


def test_nothing_calls_the_mode_experimental_and_commands_and_pages_say_what_is_open() -> None:
    """Its rules are implemented and attacked. That nobody else has read its proofs is said wherever it is offered."""
    folders = ("clients", "deploy", "dp", "mpc", "protos", "servers")
    sources = [path for name in folders for kind in ("py", "toml", "yaml") for path in (ROOT / name).rglob(f"*.{kind}")]
    documents = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert not [path for path in (*sources, *documents) if WORD.search(path.read_text())]
    read_by = re.compile(r"[Nn]obody\s+outside\s+the\s+project\s+has\s+read")
    pages = ("explanation/proved.md", "reference/protocol-v2.md")
    assert all(read_by.search(text) for text in (STANDING, *((ROOT / "docs" / page).read_text() for page in pages)))
